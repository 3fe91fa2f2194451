/* scalar_range.h: the numbers that a function of the standard library takes a scalar for, and their words in
 * messages. */
#ifndef LUATTN_SCALAR_RANGE_H
#define LUATTN_SCALAR_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct scalar_range {
  double least, most;    /* finite, or, of the most, infinite */
  uint32_t whole, above; /* integers alone, and infinity where that is the most; least itself is none */
  char by[48];           /* who takes it, as "softcap: c"; "": any number will do */
} scalar_range;

bool scalar_range_has(const scalar_range *r, double x);
/* "a finite number above 0" */
void scalar_range_words(const scalar_range *r, char *text, size_t size);

#endif
