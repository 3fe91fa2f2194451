/* prob_range.h: bounds of an online function's expressions for scores within bounds, and the range that P may then have.
 * Internal to gen/lower. */
#ifndef LUATTN_GEN_PROB_RANGE_H
#define LUATTN_GEN_PROB_RANGE_H

#include "gen/ir/interval.h"
#include "gen/lower/lowering.h"

/* The range of P for a bounded score: at least `least`, so that they, and their sum for a row of scores at
 * the lower end, are normal numbers in the type they are rounded to; at most `most`, so that the sum of their
 * products with values stays below 2^-most of the range of float. */
typedef struct prob_range {
  double least, most;
} prob_range;
prob_range prob_range_of(const plan *p);

/* Bounds r for scores within `score`. Out of memory: returns the whole line. */
iv prob_bounds(lowered *f, ir_ref r, iv score);

/* Whether all P and the other summed terms are in range. */
bool prob_in_range(lowered *f, const online_split *s, iv score);
/* Whether the epilogue takes exp of something unbounded, which the maximum had kept in range. */
bool prob_exp_unbounded(lowered *f, ir_ref root);

#endif
