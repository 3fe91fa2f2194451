/* passes.h: passes over IR: print, check, simplify, differentiate, evaluate. Intervals are in interval.h. */
#ifndef LUATTN_GEN_IR_PASSES_H
#define LUATTN_GEN_IR_PASSES_H

#include "gen/base/text.h"
#include "gen/ir/ir.h"

/* Prints the nodes under roots[0..n), arguments first, one per line (`%7 = add %3, %5`), then `name[i] = %k`.
 * Deterministic; golden-tested. input_names may be NULL. */
void ir_print(const ir *g, text *out, const ir_ref *roots, const char *const *names, int n,
              const char *const *input_names);

/* Verifier: types, arities, arguments before users, variables in range. `pass` is named in the message. */
luattn_status ir_check(const ir *g, const ir_ref *roots, int n, const char *pass, luattn_error *err);

/* Rewrites roots in place: algebra, constant folding, cancellation. Exact in real arithmetic, never changes
 * kept/dropped; never introduces a division or a log that was not there. REAL operands of comparisons, floor
 * and the like keep every bit. INT comparisons are brought into one normal form, with positive coefficients
 * on both sides and common divisors removed: `a < b`, `a + c <= b`, `a <= b + c` (c a positive constant), `a
 * <= c`, `c <= a`. NOT moves to leaves and REAL comparisons. */
void ir_simplify(ir *g, ir_ref *roots, int n);

/* Of which type comparisons are (decide.c): float32, unless what one compares is double. */
typedef struct ir_decisions {
  bool doubles;           /* the call is of float64: scores and positions are doubles */
  uint32_t double_inputs; /* bit i: input i holds float64 */
  bool of_kernel;         /* Real is the call's own type; otherwise double */
  bool values;            /* rounds values, too: what plain arithmetic in float32 gives */
  bool contracts;         /* and no product that is added at once, but for what comparisons read: fused multiply-adds */
  bool coarse; /* rounds values to SCALAR_COARSE_BITS fewer bits than double has, and not what comparisons read */
} ir_decisions;

/* Rewrites roots in place, so that what comparisons, floor and the like read is rounded to that type after each
 * operation. */
void ir_decide(ir *g, ir_ref *roots, int n, const ir_decisions *rule);

/* Rewrites the roots in place: integer arithmetic that may leave 32 bits is taken modulo 2^32 where a mask of bits says
 * that only the low bits of it count (low_bits.c). The rest stays. false: out of memory. */
bool ir_keep_low_bits(ir *g, ir_ref *const *roots, int n);

/* Reverse mode. Given roots y[i] with adjoints dy[i], finds d(sum dy*y)/d(wrt[j]) for j < n_wrt (IR_NONE
 * where it is identically zero). wrt are variables, LOADs, or any nodes. Visits nodes in reverse topological
 * order: a shared subexpression is counted once. An out is the node's whole adjoint: if one wrt depends on
 * another, the path through it counts for both. An arm that a select does not take contributes 0, even where
 * its own derivative is infinite. STOP_GRADIENT, comparisons, floor and integers stop it. REDUCE nodes are
 * refused by assertion: analysis/ removes reductions first. */
void ir_grad(ir *g, const ir_ref *y, const ir_ref *dy, int n_y, const ir_ref *wrt, ir_ref *out, int n_wrt);

/* Forward mode. Given tangents d[j] of wrt[j] for j < n_wrt, finds the tangent of each root y[i] (IR_NONE where it is
 * identically zero). wrt are variables, LOADs, or any nodes, to whose own tangent d[j] is added. It is the transpose of
 * ir_grad: the same derivatives, stops and guards, so that the sum of out * dy is that of d * gradient. A select has the
 * tangent of the arm that it takes. An assertion refuses REDUCE nodes, as in ir_grad. */
void ir_tangent(ir *g, const ir_ref *y, int n_y, const ir_ref *wrt, const ir_ref *d, int n_wrt, ir_ref *out);

/* d * x and d / x for an adjoint d: 0 where d is 0 by its selects, even where x is infinite or NaN. An
 * ordinary product where x, or 1 / x, is finite for all values up to 1e6. */
ir_ref ir_grad_mul(ir *g, ir_ref d, ir_ref x);
ir_ref ir_grad_div(ir *g, ir_ref d, ir_ref x);

/* For an adjoint d = factor * y: the factor where d may differ from 0, and 0 where d is 0 by its selects, so
 * that a later multiplicand may be infinite or NaN there. Only for conditions that are known before the row's
 * scores: on inputs, scalars and positions. */
ir_ref ir_grad_factor(ir *g, ir_ref d, ir_ref factor);

/* The level of an expression: what it depends on, which decides where emit hoists it (dependence.c). */
typedef enum ir_level { LEVEL_HEAD, LEVEL_ROW, LEVEL_COL, LEVEL_ELEMENT } ir_level;
void analyse_levels(const ir *g, uint8_t *level /* [ir_count] */);

/* Whether all roots are functions of q - kv, over a grid along each axis, and of values that are constant per (batch, head). May be false
 * when it could not be shown (distance.c). */
bool analyse_distance(arena *a, const ir *g, const ir_ref *roots, int n);
/* Whether r is *q * VAR_Q + *kv * VAR_KV + a value that is constant per (batch, head). Likewise; of a grid only where no
 * position occurs. */
bool analyse_linear(arena *a, const ir *g, ir_ref r, double *q, double *kv);

/* Evaluation in double precision, vectorised: a program is compiled once from roots, then run over blocks of lanes.
 * Thread safe: a program is immutable, the scratch belongs to the caller. */
typedef struct ir_program ir_program;
#define IR_LANES 64 /* lanes evaluated per run */

/* Values of a block of lanes. Booleans are 0 or 1, integers of 32 bits are exact; those of 64 are computed as such, and
 * become the nearest double where something else takes them, or a root returns them. */
typedef double ir_lane_block[IR_LANES];

typedef struct ir_env {
  void *user;
  /* Fills out[0..lanes) with variable v, index i. Called once per variable and run. */
  void (*variable)(void *user, ir_var v, uint32_t index, int lanes, double *out);
  /* Gathers input k at the given index lanes into out. The callee handles and reports out-of-range
   * indices. */
  void (*load)(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out);
  /* The same of an input whose integers have 64 bits (ir_is_wide). NULL: `load` gives them, which a double holds up to
   * 2^53. */
  void (*load_wide)(void *user, uint32_t input, int n_index, const double *const *index, int lanes, int64_t *out);
  /* Draws IR_RANDOM for the lanes of its four arguments. NULL: with a seed of 0 and one head, for tests of
   * expressions. */
  void (*random)(void *user, const double *const at[4], int lanes, double *out);
} ir_env;

/* The value of IR_RANDOM: abi/philox.h, with so many query heads in the whole. */
double ir_random_value(uint64_t seed, uint64_t offset, int heads, const double at[4]);

ir_program *ir_program_new(arena *a, const ir *g, const ir_ref *roots, int n); /* NULL: out of memory */
size_t ir_program_scratch(const ir_program *p);                                /* bytes */
void ir_program_run(const ir_program *p, const ir_env *env, int lanes, void *scratch,
                    double *const *out /* [n][lanes] */);

#endif
