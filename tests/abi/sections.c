#include "tests/abi/sections.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>

static size_t round_up(size_t n) { return (n + 15) / 16 * 16; }

void sections_read(const void *bytes, sections *out) {
  const unsigned char *b = bytes;
  uint64_t count, size;
  size_t at = SECTIONS_HEADER;
  memcpy(&count, b + 40, sizeof count);
  if (count > SECTIONS_MOST) abort();
  out->count = (size_t)count;
  for (size_t i = 0; i < out->count; ++i) {
    one_section *s = &out->list[i];
    at = round_up(at);
    memcpy(s->tag, b + at, 4);
    memcpy(&s->flags, b + at + 4, 4);
    memcpy(&size, b + at + 8, 8);
    s->size = (size_t)size;
    s->bytes = b + at + 16;
    at += 16 + s->size;
  }
}

one_section *sections_find(sections *s, const char *tag) {
  for (size_t i = 0; i < s->count; ++i)
    if (memcmp(s->list[i].tag, tag, 4) == 0) return &s->list[i];
  return NULL;
}

void sections_insert(sections *s, size_t at, const char *tag, uint32_t flags, const void *bytes, size_t size) {
  if (s->count == SECTIONS_MOST) abort();
  memmove(&s->list[at + 1], &s->list[at], (s->count++ - at) * sizeof *s->list);
  s->list[at] = (one_section){.flags = flags, .size = size, .bytes = bytes};
  memcpy(s->list[at].tag, tag, 4);
}

void sections_remove(sections *s, size_t at) {
  memmove(&s->list[at], &s->list[at + 1], (--s->count - at) * sizeof *s->list);
}

void sections_sign(unsigned char *bytes, size_t size) {
  const XXH128_hash_t sum = XXH3_128bits(bytes + 32, size - 32);
  memcpy(bytes + 16, &sum.low64, 8);
  memcpy(bytes + 24, &sum.high64, 8);
}

unsigned char *sections_write(const sections *s, size_t *size) {
  size_t total = SECTIONS_HEADER;
  for (size_t i = 0; i < s->count; ++i) total = round_up(total) + 16 + s->list[i].size;
  unsigned char *b = calloc(1, total);
  if (b == NULL) abort();
  const uint32_t version = 8, order = 0x01020304u;
  const uint64_t numbers[2] = {total, s->count};
  memcpy(b, "LUATTNIM", 8);
  memcpy(b + 8, &version, 4);
  memcpy(b + 12, &order, 4);
  memcpy(b + 32, numbers, sizeof numbers);
  size_t at = SECTIONS_HEADER;
  for (size_t i = 0; i < s->count; ++i) {
    const one_section *one = &s->list[i];
    const uint64_t bytes = one->size;
    at = round_up(at);
    memcpy(b + at, one->tag, 4);
    memcpy(b + at + 4, &one->flags, 4);
    memcpy(b + at + 8, &bytes, 8);
    if (one->size > 0) memcpy(b + at + 16, one->bytes, one->size);
    at += 16 + one->size;
  }
  sections_sign(b, total);
  *size = total;
  return b;
}
