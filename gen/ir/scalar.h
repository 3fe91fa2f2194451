/* scalar.h: the functions that the value column of ops.def calls, and the constants of its derivative
 * column. */
#ifndef LUATTN_GEN_IR_SCALAR_H
#define LUATTN_GEN_IR_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

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

/* From halfway between the largest float32 and 2^128 on, infinity is the nearest: the conversion is undefined there. */
static inline double scalar_round_float(double x) {
  return x >= 0x1.ffffffp127 ? (double)INFINITY : x <= -0x1.ffffffp127 ? -(double)INFINITY : (double)(float)x;
}

/* To nearest even; infinities and NaN stay. */
enum { SCALAR_COARSE_BITS = 16 };
static inline double scalar_round_coarse(double x) {
  uint64_t bits;
  if (!(x - x == 0)) return x;
  memcpy(&bits, &x, sizeof bits);
  bits += (UINT64_C(1) << (SCALAR_COARSE_BITS - 1)) - 1 + (bits >> SCALAR_COARSE_BITS & 1);
  bits &= ~((UINT64_C(1) << SCALAR_COARSE_BITS) - 1);
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline double scalar_sigmoid(double x) { return 1 / (1 + exp(-x)); }

static inline double scalar_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x)); }

static inline double scalar_gelu(double x) { return 0.5 * x * erfc(-SCALAR_SQRT_1_2 * x); }

static inline double scalar_to_int(double x) {
  if (!(x == x)) return 0;
  return x < -2147483648.0 ? -2147483648.0 : x > 2147483647.0 ? 2147483647.0 : x;
}

/* Converts to Lua's 64-bit integers and clamps larger numbers, which kernels never see. */
static inline int64_t scalar_bits(double x) {
  return x < 0x1p63 ? x >= -0x1p63 ? (int64_t)x : INT64_MIN : x == x ? INT64_MAX : 0;
}
static inline double scalar_of_bits(uint64_t x) {
  return x >> 63 != 0 ? -(double)(~x) - 1 : (double)x; /* two's complement */
}
static inline uint64_t scalar_shl(double x, double n) {
  const uint64_t bits = (uint64_t)scalar_bits(x);
  if (!(n > -64 && n < 64)) return 0;
  return n >= 0 ? bits << (int)n : bits >> -(int)n;
}
static inline uint64_t scalar_shr(double x, double n) { return scalar_shl(x, -n); }
static inline double scalar_band(double x, double y) { return (double)(scalar_bits(x) & scalar_bits(y)); }
static inline double scalar_bor(double x, double y) { return (double)(scalar_bits(x) | scalar_bits(y)); }
static inline double scalar_bxor(double x, double y) { return (double)(scalar_bits(x) ^ scalar_bits(y)); }
static inline double scalar_shr_band(double x, double n, double mask) {
  return scalar_of_bits(scalar_shr(x, n) & (uint64_t)scalar_bits(mask));
}
/* Modulo 2^32, as a number of 32 bits with a sign. */
static inline double scalar_wrap(double x, double y, double z) {
  const uint32_t low = (uint32_t)scalar_bits(x) * (uint32_t)scalar_bits(y) + (uint32_t)scalar_bits(z);
  return low >> 31 != 0 ? -(double)(~low) - 1 : (double)low;
}

/* Integers of 64 bits, which wrap, as kernels and torch compute with them. */
static inline int64_t wide_add(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static inline int64_t wide_sub(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static inline int64_t wide_mul(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
static inline int64_t wide_floordiv(int64_t x, int64_t y) {
  if (y == 0) return 0;
  if (y == -1) return wide_sub(0, x);
  const int64_t q = x / y;
  return q - (q * y != x && (x < 0) != (y < 0));
}
static inline int64_t wide_mod(int64_t x, int64_t y) { return wide_sub(x, wide_mul(wide_floordiv(x, y), y)); }
static inline int64_t wide_shl(int64_t x, int64_t n) {
  if (n <= -64 || n >= 64) return 0;
  return (int64_t)(n >= 0 ? (uint64_t)x << n : (uint64_t)x >> -n);
}
static inline int64_t wide_shr(int64_t x, int64_t n) { return wide_shl(x, n > -64 && n < 64 ? -n : 64); }

#endif
