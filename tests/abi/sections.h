/* sections.h: splits an image into sections and joins them again, so that tests can alter them. Follows the
 * format in abi/image.h's comment, and does not use the code under test. */
#ifndef LUATTN_TESTS_ABI_SECTIONS_H
#define LUATTN_TESTS_ABI_SECTIONS_H

#include <stddef.h>
#include <stdint.h>

enum { SECTIONS_MOST = 80, SECTIONS_HEADER = 48 };

typedef struct one_section {
  char tag[4];
  uint32_t flags;
  size_t size;
  const void *bytes;
} one_section;

typedef struct sections {
  size_t count;
  one_section list[SECTIONS_MOST];
} sections;

/* Fills *out with pointers into `bytes`, which must be a valid image. */
void sections_read(const void *bytes, sections *out);
one_section *sections_find(sections *s, const char *tag); /* NULL: not present */
void sections_insert(sections *s, size_t at, const char *tag, uint32_t flags, const void *bytes, size_t size);
void sections_remove(sections *s, size_t at);

/* Joins sections in a new block of exactly the image's size, stored in *size. The caller frees the block. */
unsigned char *sections_write(const sections *s, size_t *size);
/* Recomputes the checksum. */
void sections_sign(unsigned char *bytes, size_t size);

#endif
