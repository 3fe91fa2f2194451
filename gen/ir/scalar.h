/* scalar.h: the functions that the value column of ops.def calls, and the constants of its derivative
 * column. */
#ifndef LUATTN_GEN_IR_SCALAR_H
#define LUATTN_GEN_IR_SCALAR_H

#include <math.h>

#include "gen/ir/ir.h"

#define SCALAR_LN_2 0.69314718055994530942
#define SCALAR_LOG2_E 1.4426950408889634074
#define SCALAR_SQRT_1_2 0.70710678118654752440
#define SCALAR_2_SQRT_PI 1.1283791670955125739     /* 2 / sqrt(pi) */
#define SCALAR_INV_SQRT_2PI 0.39894228040143267794 /* 1 / sqrt(2 pi) */

/* INT: x and y are integers below 2^53, for which floor of the rounded quotient is exact. */
static inline double scalar_floordiv(ir_type type, double x, double y) {
  if (type == IR_INT && y == 0) return 0;
  return floor(x / y);
}

/* The result has the sign of y, as in Lua. */
static inline double scalar_mod(ir_type type, double x, double y) {
  if (type == IR_INT && y == 0) return x;
  const double m = fmod(x, y);
  return m * y < 0 ? m + y : m;
}

static inline double scalar_clamp(double x, double lo, double hi) {
  const double y = x > lo || lo != lo ? x : lo;
  return y < hi || hi != hi ? y : hi;
}

static inline double scalar_sigmoid(double x) { return 1 / (1 + exp(-x)); }

static inline double scalar_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x)); }

static inline double scalar_gelu(double x) { return 0.5 * x * erfc(-SCALAR_SQRT_1_2 * x); }

static inline double scalar_to_int(double x) {
  if (!(x == x)) return 0;
  return x < -2147483648.0 ? -2147483648.0 : x > 2147483647.0 ? 2147483647.0 : x;
}

#endif
