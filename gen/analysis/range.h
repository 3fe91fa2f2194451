/* range.h: from a predicate, bounds of one position given an interval of the other. Internal to analysis/. */
#ifndef LUATTN_GEN_RANGE_H
#define LUATTN_GEN_RANGE_H

#include "gen/ir/ir.h"

/* Positions that may be kept lie in [lo, hi); IR_NONE: no bound. `never`: nothing is kept. exact: where the
 * predicate does not read the other position, all of them in [0, length) are kept. */
typedef struct range {
  ir_ref lo, hi;
  bool never, exact;
  bool gate; /* range.c: all positions, or none */
} range;

/* Kept `main` positions (VAR_KV or VAR_Q) for all positions of the other kind in [other_lo, other_hi]:
 * expressions of what does not depend on a position, of VAR_TILE and of lengths. Sound: no kept position is
 * outside. */
range range_of(ir *g, ir_ref predicate, ir_var main);

#endif
