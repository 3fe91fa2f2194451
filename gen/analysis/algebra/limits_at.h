/* limits_at.h: shows what expressions are where the score is a given number, as -inf or 0, for all finite states, scalars
 * and inputs. An expression is a number, a number above 0, some finite number, or unknown, by what its arguments are.
 */
#ifndef LUATTN_GEN_LIMITS_AT_H
#define LUATTN_GEN_LIMITS_AT_H

#include "gen/base/arena.h"
#include "gen/ir/ir.h"

typedef struct limit limit;

typedef struct limits {
  arena *a;
  ir *g;
  double score;
  limit *memo; /* of nodes that there were */
  uint32_t count;
} limits;

/* False: out of memory, which the arena remembers. */
bool limits_open(limits *l, arena *a, ir *g, double score);

/* Whether r is shown to be one number, which may be infinite; of a condition, 0 or 1. */
bool limits_is_number(limits *l, ir_ref r, double *x);
bool limits_is_finite(limits *l, ir_ref r);

/* r with what is infinite in it as a constant, of which algebra knows what it is beside other numbers. */
ir_ref limits_with_infinities(limits *l, ir_ref root);

#endif
