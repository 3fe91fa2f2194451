/* expr.h: shared by the IR tests: a small random generator, random expressions, and a plain evaluator of a
 * graph. */
#ifndef LUATTN_TESTS_IR_EXPR_H
#define LUATTN_TESTS_IR_EXPR_H

#include <stddef.h>
#include <stdint.h>

#include "gen/ir/passes.h"

typedef struct rng {
  uint64_t state;
} rng;
uint64_t rng_next(rng *r);
int rng_below(rng *r, int n);
double rng_between(rng *r, double lo, double hi);

/* Values of the variables that random expressions use. */
enum { POINT_REALS = 3, POINT_INTS = 4 };
typedef struct point {
  double real[POINT_REALS];   /* VAR_SCALAR[i] */
  double integer[POINT_INTS]; /* VAR_Q, VAR_KV, VAR_H, VAR_Q_LEN */
} point;
extern const ir_var point_int_var[POINT_INTS];
double point_get(const point *p, ir_var v, uint32_t index);

/* Rounding of a plain evaluation. */
typedef enum rounding {
  IN_DOUBLE,
  IN_FLOAT, /* every result is rounded to the nearest float */
  IN_FAST,  /* in addition, errors of hardware approximations, and flushed subnormals */
} rounding;

/* Computes value[r] for every node, using only the value column of the table. */
void plain_eval(const ir *g, const point *p, rounding how, rng *noise, double *value);
/* Returns the largest magnitude of all nodes under the roots; infinity if one is not finite. */
double largest_value(const ir *g, const ir_ref *roots, int n, const double *value);
/* Evaluates one root with ir_program. */
double program_eval(arena *a, const ir *g, ir_ref root, const point *p);

__extension__ typedef unsigned __int128 op_set; /* a bit for each op */
_Static_assert(IR_OP_COUNT <= 128, "op_set has too few bits");

/* A random graph of `size` ops, drawn from all ops except those in `avoid` (one bit per op), and its last
 * node of each type. */
typedef struct random_expr {
  ir_ref real, integer, boolean;
} random_expr;
random_expr random_build(ir *g, rng *r, int size, op_set avoid);
#define OP_BIT(id) ((op_set)1 << IR_##id)

/* Returns whether the op takes arguments of this type. */
int op_accepts(ir_op op, ir_type type);

#endif
