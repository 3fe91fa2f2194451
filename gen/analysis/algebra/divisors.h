/* divisors.h: which numbers cannot be 0, so that backward may divide by them. */
#ifndef LUATTN_GEN_DIVISORS_H
#define LUATTN_GEN_DIVISORS_H

#include "gen/analysis/algebra/derivation.h"

/* What x or y divide by themselves. */
typedef struct divisors {
  const derivation *d;
  const uint8_t *divides; /* [count] */
  uint32_t count;
} divisors;
bool divisors_open(divisors *v, arena *a, const derivation *d, ir_ref x, ir_ref y); /* false: out of memory */

/* Whether `ratio`, which stands for x / y, divides only by what cannot be 0 in a row that keeps something, in
 * floating point too, or by what x or y divide by themselves. */
bool divisors_safe(const divisors *v, ir_ref ratio);

/* A quotient of products without the factors that its numerator and its denominator share. */
ir_ref divisors_cancel(ir *g, ir_ref r);

/* Whether reduction k is a sum of positive numbers. */
bool divisors_sum_is_positive(const derivation *d, int k);
bool divisors_sum_is_not_below(const derivation *d, int k); /* 0: of numbers that are not */

#endif
