/* image.h: an image that carries its PTX: the cubin, which is an ELF file whose headers give its size, then a
 * mark and the PTX. */
#ifndef LUATTN_TESTS_PTX_IMAGE_H
#define LUATTN_TESTS_PTX_IMAGE_H

#include <stdint.h>
#include <string.h>

#define PTX_MARK "luattn: PTX follows"

/* Returns the size of a 64-bit ELF file: the end of its last section or header. System V ABI, chapter 4. */
static inline size_t elf_size(const unsigned char *elf) {
  uint64_t sections, segments, end = 64;
  uint16_t num_sections, num_segments;
  memcpy(&segments, elf + 32, 8), memcpy(&sections, elf + 40, 8);
  memcpy(&num_segments, elf + 56, 2), memcpy(&num_sections, elf + 60, 2);
  if (segments + 56u * num_segments > end) end = segments + 56u * num_segments;
  if (sections + 64u * num_sections > end) end = sections + 64u * num_sections;
  for (unsigned i = 0; i < num_sections; i++) {
    uint32_t type;
    uint64_t offset, size;
    memcpy(&type, elf + sections + 64 * i + 4, 4);
    memcpy(&offset, elf + sections + 64 * i + 24, 8), memcpy(&size, elf + sections + 64 * i + 32, 8);
    if (type != 8 && offset + size > end) end = offset + size;
  }
  return end;
}

/* Returns the PTX of an image, or NULL if the image has none. */
static inline const char *ptx_of_image(const void *image) {
  const unsigned char *elf = (const unsigned char *)image;
  if (memcmp(elf, "\177ELF", 4) != 0) return strncmp((const char *)image, "//", 2) == 0 ? (const char *)image : NULL;
  const char *mark = (const char *)elf + elf_size(elf);
  return memcmp(mark, PTX_MARK, sizeof PTX_MARK) == 0 ? mark + sizeof PTX_MARK : NULL;
}

#endif
