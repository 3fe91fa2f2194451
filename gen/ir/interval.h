/* interval.h: bounds of IR expressions over boxes of index values. The arithmetic is
 * templates/ops/interval.cuh, compiled here as C, so that the compiler and the generated device code cannot
 * disagree. */
#ifndef LUATTN_GEN_IR_INTERVAL_H
#define LUATTN_GEN_IR_INTERVAL_H

#include "gen/ir/ir.h"

#define LUATTN_INTERVAL_HOST 1
#include "templates/ops/interval.cuh" /* iv (real), ivi (integer), tri (boolean) and their operations */
#include "templates/ops/bits.cuh"

/* Bounds of any type: the node's type selects the member in use. */
typedef struct ir_bounds {
  iv real;
  ivi integer;
  tri boolean;
} ir_bounds;

typedef struct ir_bounds_env {
  void *user;
  /* Bounds of a variable; bounds of input k gathered at indices within the given bounds (for INT and BOOL
   * inputs whose values the caller knows, otherwise everything). */
  ir_bounds (*variable)(void *user, ir_var v, uint32_t index, ir_type type);
  ir_bounds (*load)(void *user, uint32_t input, ir_type type, int n_index, const ivi *index);
  /* Or NULL: tightens the bounds of node r, of_nodes[r], by what else the caller knows. */
  void (*refine)(void *user, ir_ref r, const ir_bounds *of_nodes, ir_bounds *bounds);
} ir_bounds_env;

/* out[i] = bounds of roots[i]. scratch: one ir_bounds per node of g (ir_count(g)). */
void ir_interval(const ir *g, const ir_ref *roots, int n, const ir_bounds_env *env, ir_bounds *scratch, ir_bounds *out);

/* The same in two steps, for many boxes: finds the nodes under the roots, arguments first, at most ir_count(g), and
 * returns their number; then fills bounds[r] of each of these nodes r. */
int ir_interval_nodes(const ir *g, const ir_ref *roots, int n, ir_bounds *scratch, ir_ref *nodes);
void ir_interval_over(const ir *g, const ir_ref *nodes, int count, const ir_bounds_env *env, ir_bounds *bounds);

/* The largest length L up to 2^31 - 1 such that no INT node under the roots leaves 32 bits for positions and lengths in
 * [0, L], batch and channel numbers up to 65535, heads up to LUATTN_MAX_HEADS and loaded integers less than 2^24 from
 * 0. 0: not even L = 0 is safe. -1: out of memory. */
int64_t ir_int_limit(const ir *g, const ir_ref *roots, int n);
/* Whether `length` is such a length. */
bool ir_ints_fit(const ir *g, const ir_ref *roots, int n, int64_t length);
/* The first node that leaves 32 bits at this length, and its largest value; IR_NONE: none, or out of
 * memory. */
ir_ref ir_int_overflow(const ir *g, const ir_ref *roots, int n, int64_t length, double *reach);
/* Bounds of the INT nodes under the roots at this length, with the same assumptions: [ir_count(g)], those of other
 * nodes undefined. NULL: out of memory. */
ir_bounds *ir_int_bounds(const ir *g, const ir_ref *roots, int n, int64_t length);

#endif
