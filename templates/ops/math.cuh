// ops/math.cuh: the ops of the IR that are not operators (column cuda of gen/ir/ops.def).
//
// float functions have two forms. With Config::fast_math (16-bit storage), exp, log and division use hardware
// approximations with relative errors near 2^-22; otherwise they are CUDA's accurate functions. sin, cos,
// pow, erf, log1p and expm1 are always accurate, because their fast forms fail for arguments in the usual range of
// positions and scores. Include this file after Config. The bounds in ops/interval.cuh allow for these
// errors.
//
// The exp2 unit (MUFU) limits kernels on the tensor cores: it gives 16 results a cycle, and each score needs
// one. So two functions use coarser approximations where the result is rounded anyway, or where the error is
// that of a rounding: op_rough_tanh and op_sigmoid2_alternating. gen/lower/approximations.c says where.
#pragma once
#include "arch/types.cuh"

// ---- hardware approximations of float

LUATTN_FN float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LUATTN_FN float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LUATTN_FN float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LUATTN_FN float fast_sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float op_log2_e = 1.4426950408889634f;
inline constexpr float op_ln_2 = 0.6931471805599453f;

// ---- arithmetic

LUATTN_FN float op_div(float x, float y) {
  if constexpr (Config::fast_math)
    return __fdividef(x, y);
  else
    return x / y;
}
LUATTN_FN double op_div(double x, double y) { return x / y; }

// Sums, differences and products that are never merged into a multiply-add, and quotients that are never approximate.
LUATTN_FN float op_sum(float x, float y) { return __fadd_rn(x, y); }
LUATTN_FN double op_sum(double x, double y) { return __dadd_rn(x, y); }
LUATTN_FN float op_quotient(float x, float y) { return __fdiv_rn(x, y); }
LUATTN_FN double op_quotient(double x, double y) { return __ddiv_rn(x, y); }
LUATTN_FN float op_difference(float x, float y) { return __fsub_rn(x, y); }
LUATTN_FN double op_difference(double x, double y) { return __dsub_rn(x, y); }
LUATTN_FN float op_product(float x, float y) { return __fmul_rn(x, y); }
LUATTN_FN double op_product(double x, double y) { return __dmul_rn(x, y); }

LUATTN_FN float op_fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
LUATTN_FN double op_fma(double x, double y, double z) { return __fma_rn(x, y, z); }

// Adds a compile-time constant to a number that is constant per thread. The asm keeps the compiler from
// adding the constant to one term of `base` first and the other terms per element.
LUATTN_FN int op_sum_apart(int base, int offset) {
  asm("" : "+r"(base));
  return base + offset;
}
LUATTN_FN float op_sum_apart(float base, float offset) { return base + offset; }
LUATTN_FN double op_sum_apart(double base, double offset) { return base + offset; }

LUATTN_FN float op_floor(float x) { return floorf(x); }
LUATTN_FN double op_floor(double x) { return floor(x); }

// Lua's // and %: rounding towards minus infinity, with the sign of the divisor. For an integer divisor of 0,
// x // 0 = 0 and x % 0 = x. Divisors are nearly always constants, so the first branch of each function is
// decided at compile time.
LUATTN_FN int op_floordiv(int x, int y) {
  if (y > 0 && (y & (y - 1)) == 0) return x >> (31 - __clz(y));
  if (y == 0) return 0;
  const int q = x / y;
  return q - (q * y != x && (x < 0) != (y < 0));
}
LUATTN_FN int op_mod(int x, int y) {
  if (y > 0 && (y & (y - 1)) == 0) return x & (y - 1);
  if (y == 0) return x;
  const int m = x % y;
  return m + (m != 0 && (m < 0) != (y < 0) ? y : 0);
}
LUATTN_FN float op_floordiv(float x, float y) { return floorf(__fdiv_rn(x, y)); }
LUATTN_FN double op_floordiv(double x, double y) { return floor(x / y); }
LUATTN_FN float op_mod(float x, float y) {
  const float m = fmodf(x, y);
  return m * y < 0 ? m + y : m;
}
LUATTN_FN double op_mod(double x, double y) {
  const double m = fmod(x, y);
  return m * y < 0 ? m + y : m;
}

// Integers of 64 bits, which wrap around.
LUATTN_FN i64 op_add_wide(i64 x, i64 y) { return i64(u64(x) + u64(y)); }
LUATTN_FN i64 op_sub_wide(i64 x, i64 y) { return i64(u64(x) - u64(y)); }
LUATTN_FN i64 op_mul_wide(i64 x, i64 y) { return i64(u64(x) * u64(y)); }
LUATTN_FN i64 op_neg_wide(i64 x) { return i64(0 - u64(x)); }
LUATTN_FN i64 op_floordiv(i64 x, i64 y) {
  if (y == 0) return 0;
  if (y == -1) return op_neg_wide(x);
  const i64 q = x / y;
  return q - (q * y != x && (x < 0) != (y < 0));
}
LUATTN_FN i64 op_mod(i64 x, i64 y) {
  if (y > 0 && (y & (y - 1)) == 0) return x & (y - 1);
  return op_sub_wide(x, op_mul_wide(op_floordiv(x, y), y));
}
LUATTN_FN i64 op_min(i64 x, i64 y) { return x < y ? x : y; }
LUATTN_FN i64 op_max(i64 x, i64 y) { return x < y ? y : x; }
LUATTN_FN i64 op_abs(i64 x) { return x < 0 ? op_neg_wide(x) : x; }
LUATTN_FN i64 op_sign(i64 x) { return (x > 0) - (x < 0); }
LUATTN_FN i64 op_shl(i64 x, i64 n) {
  if (n <= -64 || n >= 64) return 0;
  return i64(n >= 0 ? u64(x) << n : u64(x) >> -n);
}
LUATTN_FN i64 op_shr(i64 x, i64 n) { return n > -64 && n < 64 ? op_shl(x, -n) : 0; }

// If one operand is NaN, the result is the other operand.
LUATTN_FN float op_min(float x, float y) { return fminf(x, y); }
LUATTN_FN double op_min(double x, double y) { return fmin(x, y); }
LUATTN_FN int op_min(int x, int y) { return min_of(x, y); }
LUATTN_FN float op_max(float x, float y) { return fmaxf(x, y); }
LUATTN_FN double op_max(double x, double y) { return fmax(x, y); }
LUATTN_FN int op_max(int x, int y) { return max_of(x, y); }
LUATTN_FN float op_relu(float x) { return fmaxf(x, 0.0f); }
LUATTN_FN double op_relu(double x) { return fmax(x, 0.0); }

LUATTN_FN float op_abs(float x) { return fabsf(x); }
LUATTN_FN double op_abs(double x) { return fabs(x); }
LUATTN_FN int op_abs(int x) { return x < 0 ? -x : x; }
LUATTN_FN float op_sign(float x) { return float((x > 0) - (x < 0)); }
LUATTN_FN double op_sign(double x) { return double((x > 0) - (x < 0)); }
LUATTN_FN int op_sign(int x) { return (x > 0) - (x < 0); }

// ---- conversions: saturate to 32 bits, NaN gives 0

LUATTN_FN int op_to_int(float x) { return __float2int_rz(x); }
LUATTN_FN int op_to_int(double x) { return x == x ? __double2int_rz(x) : 0; }
LUATTN_FN int op_floor_int(float x) { return __float2int_rd(x); }
LUATTN_FN int op_floor_int(double x) { return x == x ? __double2int_rd(x) : 0; }

// ---- functions

// Long functions of double are called instead of inlined. An f64 kernel uses each in many places, and
// inlining would make its compilation a fifth slower. They are templates, so that other kernels do not
// contain them.
#define LUATTN_CALLED(f)                    \
  template <class Real>                     \
  LUATTN_OUTLINED Real called_##f(Real x) { \
    return f(x);                            \
  }
LUATTN_CALLED(exp2)
LUATTN_CALLED(exp)
LUATTN_CALLED(expm1)
LUATTN_CALLED(log2)
LUATTN_CALLED(log)
LUATTN_CALLED(log1p)
LUATTN_CALLED(tanh)
#undef LUATTN_CALLED

LUATTN_FN float op_exp2(float x) {
  if constexpr (Config::fast_math)
    return fast_exp2(x);
  else
    return exp2f(x);
}
LUATTN_FN double op_exp2(double x) { return called_exp2(x); }

LUATTN_FN float op_exp(float x) {
  if constexpr (Config::fast_math)
    return fast_exp2(x * op_log2_e);
  else
    return expf(x);
}
LUATTN_FN double op_exp(double x) { return called_exp(x); }

LUATTN_FN float op_expm1(float x) { return expm1f(x); }
LUATTN_FN double op_expm1(double x) { return called_expm1(x); }

LUATTN_FN float op_log2(float x) {
  if constexpr (Config::fast_math)
    return fast_log2(x);
  else
    return log2f(x);
}
LUATTN_FN double op_log2(double x) { return called_log2(x); }

LUATTN_FN float op_log(float x) {
  if constexpr (Config::fast_math)
    return fast_log2(x) * op_ln_2;
  else
    return logf(x);
}
LUATTN_FN double op_log(double x) { return called_log(x); }

LUATTN_FN float op_log1p(float x) { return log1pf(x); }
LUATTN_FN double op_log1p(double x) { return called_log1p(x); }

LUATTN_FN float op_sqrt(float x) {
  if constexpr (Config::fast_math)
    return fast_sqrt(x);
  else
    return __fsqrt_rn(x);
}
LUATTN_FN double op_sqrt(double x) { return sqrt(x); }
LUATTN_FN float op_rsqrt(float x) { return rsqrtf(x); }
LUATTN_FN double op_rsqrt(double x) { return rsqrt(x); }

// 1 - 2 / (e^2x + 1): correct at both ends without a branch, absolute error near 2^-23.
LUATTN_FN float op_tanh(float x) {
  if constexpr (Config::fast_math)
    return __fmaf_rn(-2.0f, fast_reciprocal(fast_exp2(x * (2 * op_log2_e)) + 1.0f), 1.0f);
  else
    return tanhf(x);
}
LUATTN_FN double op_tanh(double x) { return called_tanh(x); }

// Uses one operation of the exp2 unit instead of two. Its relative error is 2^-10.9 (PTX ISA), so a capped
// score s is off by at most |s| 2^-10.9. That is an eighth of the error of rounding s to bf16, as a plain
// bf16 computation does; `luattn check` compares against such a computation. In f16 it would equal that
// error. Backward recomputes accurate scores, so its P differs from forward's by this error.
LUATTN_FN float op_rough_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LUATTN_FN double op_rough_tanh(double x) { return op_tanh(x); }

LUATTN_FN float op_sigmoid(float x) {
  if constexpr (Config::fast_math)
    return fast_reciprocal(1.0f + fast_exp2(x * -op_log2_e));
  else
    return __fdiv_rn(1.0f, 1.0f + expf(-x));
}
LUATTN_FN double op_sigmoid(double x) { return 1.0 / (1.0 + op_exp(-x)); }

LUATTN_FN float op_sigmoid2(float x) {
  if constexpr (Config::fast_math)
    return fast_reciprocal(1.0f + fast_exp2(-x));
  else
    return __fdiv_rn(1.0f, 1.0f + exp2f(-x));
}
LUATTN_FN double op_sigmoid2(double x) { return 1.0 / (1.0 + op_exp2(-x)); }

// Computes 1 / a for 1 <= a <= 2^126.5 without the hardware reciprocal, which occupies the exp2 unit. The
// subtraction of bit patterns gives 1 / a to 5.1 %, so the remainder e is within 0.0506. y0 (1 + e + e^2) is
// then accurate to e^3 = 2^-12.9, a quarter of f16's rounding. Results below the least normal number are 0.
LUATTN_FN float reciprocal_by_fma(float a) {
  const float y0 = __int_as_float(0x7EF311C7 - __float_as_int(a));
  const float e = __fmaf_rn(-a, y0, 1.0f);
  float y;
  asm("fma.rn.ftz.f32 %0, %1, %2, %1;" : "=f"(y) : "f"(y0), "f"(__fmaf_rn(e, e, e)));
  return y;
}

// For five of eight elements, divides without the exp2 unit; this share is the fastest (bench/journal.md).
// Element 0 uses the exp2 unit.
LUATTN_FN float op_sigmoid2_alternating(float x, int element) {
  if (!Config::fast_math || element % 8 < 3) return op_sigmoid2(x);
  float z;  // clamped so that exp2(z) is finite; NaN passes through
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(-x), "f"(126.5f));
  return reciprocal_by_fma(1.0f + fast_exp2(z));
}
LUATTN_FN double op_sigmoid2_alternating(double x, int) { return op_sigmoid2(x); }

LUATTN_FN float op_softplus(float x) {
  if constexpr (Config::fast_math)
    return fmaxf(x, 0.0f) + fast_log2(1.0f + fast_exp2(fabsf(x) * -op_log2_e)) * op_ln_2;
  else
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}
LUATTN_FN double op_softplus(double x) { return fmax(x, 0.0) + op_log1p(op_exp(-fabs(x))); }

LUATTN_FN float op_silu(float x) { return x * op_sigmoid(x); }
LUATTN_FN double op_silu(double x) { return x * op_sigmoid(x); }

LUATTN_FN float op_erf(float x) { return erff(x); }
LUATTN_FN double op_erf(double x) { return erf(x); }

// erfc is accurate in the left tail, where 1 + erf suffers cancellation.
LUATTN_FN float op_gelu(float x) {
  if constexpr (Config::fast_math)
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  else
    return 0.5f * x * erfcf(x * -0.70710678118654752f);
}
LUATTN_FN double op_gelu(double x) { return 0.5 * x * erfc(x * -0.70710678118654752440); }

LUATTN_FN float op_sin(float x) { return sinf(x); }
LUATTN_FN double op_sin(double x) { return sin(x); }
LUATTN_FN float op_cos(float x) { return cosf(x); }
LUATTN_FN double op_cos(double x) { return cos(x); }
LUATTN_FN float op_pow(float x, float y) { return powf(x, y); }
LUATTN_FN double op_pow(double x, double y) { return pow(x, y); }
