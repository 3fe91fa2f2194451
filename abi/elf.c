#include "abi/elf.h"

#include <stdint.h>
#include <string.h>

/* Sizes in bytes of the headers of a 64-bit ELF file, a section and a segment, and values of two fields
 * (System V ABI, chapters 4 and 5). */
enum { HEADER_SIZE = 64, SECTION_SIZE = 64, SEGMENT_SIZE = 56, CLASS_64 = 2, NO_BYTES = 8 /* SHT_NOBITS */ };

static uint64_t read_number(const unsigned char *at, int bytes) {
  uint64_t x = 0;
  for (int i = bytes - 1; i >= 0; --i) x = x << 8 | at[i]; /* cubins are little-endian */
  return x;
}

static bool is_within(uint64_t offset, uint64_t count, size_t size) { return offset <= size && count <= size - offset; }

bool elf_is_within(const void *bytes, size_t size) {
  static const unsigned char magic[4] = {0x7f, 'E', 'L', 'F'};
  const unsigned char *b = bytes;
  if (size < sizeof magic || memcmp(b, magic, sizeof magic) != 0) return true;
  if (size < HEADER_SIZE || b[4] != CLASS_64) return false;
  const uint64_t segments = read_number(b + 32, 8), sections = read_number(b + 40, 8);
  const uint64_t num_segments = read_number(b + 56, 2), num_sections = read_number(b + 60, 2);
  if (num_segments > 0 && read_number(b + 54, 2) != SEGMENT_SIZE) return false;
  if (num_sections > 0 && read_number(b + 58, 2) != SECTION_SIZE) return false;
  if (!is_within(segments, num_segments * SEGMENT_SIZE, size)) return false;
  if (!is_within(sections, num_sections * SECTION_SIZE, size)) return false;
  for (uint64_t i = 0; i < num_segments; ++i) {
    const unsigned char *at = b + segments + i * SEGMENT_SIZE;
    if (!is_within(read_number(at + 8, 8), read_number(at + 32, 8), size)) return false;
  }
  for (uint64_t i = 0; i < num_sections; ++i) {
    const unsigned char *at = b + sections + i * SECTION_SIZE;
    if (read_number(at + 4, 4) == NO_BYTES) continue;
    if (!is_within(read_number(at + 24, 8), read_number(at + 32, 8), size)) return false;
  }
  return true;
}
