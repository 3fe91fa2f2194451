/* range.h: derives bounds of one position from a predicate, given an interval of the other. Internal to
 * analysis/. */
#ifndef LUATTN_GEN_RANGE_H
#define LUATTN_GEN_RANGE_H

#include "gen/ir/ir.h"

/* Positions that may be kept lie in [lo, hi), or, if `two`, in [lo2, hi2), which may touch, overlap or be
 * empty; IR_NONE: no bound. `never`: nothing is kept. exact: where the predicate does not read the other
 * position, all of them in [0, length) are kept. */
typedef struct range {
  ir_ref lo, hi, lo2, hi2;
  bool never, exact, two;
  /* range.c */
  bool gate;   /* keeps all positions, or none */
  ir_ref only; /* INT: where it is below 0, nothing is kept, and each interval goes from the length or beyond
                * to 0 or below, so that a hull with it adds nothing; IR_NONE: unknown */
} range;

/* The kept `main` positions (VAR_KV or VAR_Q) over all positions of the other kind in [other_lo, other_hi]:
 * expressions of VAR_TILE, of lengths, and of values that do not depend on a position. Sound: no kept
 * position is outside. One interval. */
range range_of(ir *g, ir_ref predicate, ir_var main);

/* The same for a predicate that does not read the other position, in up to two intervals. */
range ranges_of(ir *g, ir_ref predicate, ir_var main);

/* How a comparison of x and y uses integers of 64 bits, whose sums wrap around. */
typedef enum wide_use {
  WIDE_NONE,
  WIDE_PLAIN, /* as they were read, on one side at most */
  WIDE_SUMS,  /* in sums and the like, which do not wrap where *near holds, which no position decides */
  WIDE_UNKNOWN
} wide_use;
wide_use range_wide_use(ir *g, ir_ref x, ir_ref y, ir_ref *near); /* wide_sums.c */

/* The intersection; not exact where both have two intervals. */
range range_both(ir *g, range a, range b);

#endif
