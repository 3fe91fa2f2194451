// ops/interval.cuh: interval arithmetic for every op of the IR. The compiler (C11, see gen/ir/interval.h) and
// generated tile classifiers (CUDA C++) compile the same source. A function's name is a prefix for the type
// of its last argument (iv_ real, ivi_ integer, tri_ boolean), followed by the stem in ops.def: iv_mul,
// ivi_lt, tri_select.
//
// Sound: for all arguments within their bounds, the value computed on the device (float, with or without fast
// approximations, or double) or on the CPU (double) lies within the result's bounds.
#ifndef LUATTN_INTERVAL_CUH
#define LUATTN_INTERVAL_CUH

#ifdef LUATTN_INTERVAL_HOST
#include <math.h>
#include <stdbool.h>
#define IV_FN static inline
#define IV_INF ((double)INFINITY)
#else
#define IV_FN static __device__ __forceinline__
#define IV_INF (__longlong_as_double(0x7ff0000000000000ll))
#endif

// Integer bounds, inclusive. Ends saturate: lo = -IVI_INF means no lower bound, hi = IVI_INF no upper bound.
// If the compiler knows that all integers have bounds within 32 bits, it selects 32-bit ends without
// saturation, which need a third of the instructions.
#ifdef LUATTN_SMALL_BOUNDS
typedef int ivi_end;
#define IVI_SMALL 1
#define IVI_INF 2147483647
#else
typedef long long ivi_end;
#define IVI_SMALL 0
#define IVI_INF (1ll << 60)
#endif
typedef struct ivi {
  ivi_end lo, hi;
} ivi;

typedef struct tri {
  bool can_be_false, can_be_true;
} tri;

// ---- constructors

IV_FN ivi ivi_make(ivi_end lo, ivi_end hi) {
  ivi r;
  r.lo = lo;
  r.hi = hi;
  return r;
}
IV_FN ivi ivi_all(void) { return ivi_make(-IVI_INF, IVI_INF); }
IV_FN ivi ivi_point(ivi_end x) { return ivi_make(x, x); }

IV_FN tri tri_make(bool can_be_false, bool can_be_true) {
  tri r;
  r.can_be_false = can_be_false;
  r.can_be_true = can_be_true;
  return r;
}
IV_FN tri tri_all(void) { return tri_make(true, true); }
IV_FN tri tri_point(bool x) { return tri_make(!x, x); }

#if defined(LUATTN_MIN_MAX_APART) && IVI_SMALL
IV_FN ivi_end ivi_least(ivi_end a, ivi_end b) { return min_of(a, b); }
IV_FN ivi_end ivi_most(ivi_end a, ivi_end b) { return max_of(a, b); }
#else
IV_FN ivi_end ivi_least(ivi_end a, ivi_end b) { return a < b ? a : b; }
IV_FN ivi_end ivi_most(ivi_end a, ivi_end b) { return a > b ? a : b; }
#endif
IV_FN ivi ivi_hull(ivi a, ivi b) { return ivi_make(ivi_least(a.lo, b.lo), ivi_most(a.hi, b.hi)); }

// ---- integers of 64 bits

// Ends far from 0 are open, before arithmetic saturates them or wraps around. What is computed from open ends may be
// anything; what is loaded has one.
IV_FN ivi ivi_wide(ivi a, bool loaded) {
  const ivi_end far = IVI_SMALL ? IVI_INF : IVI_INF / 2;
  const bool above = a.hi >= far, below = a.lo <= -far;
  if (!loaded && (above || below)) return ivi_all();
  return ivi_make(below ? -IVI_INF : a.lo < far ? a.lo : far, above ? IVI_INF : a.hi > -far ? a.hi : -far);
}
// Minima and maxima of the nearest numbers of 32 bits: what lies at an end of these may lie beyond.
IV_FN ivi ivi_of_32_bits(ivi a) {
  const ivi_end most = 2147483647, least = -2147483647 - 1;
  return ivi_make(a.lo <= least ? -IVI_INF
                  : a.lo < most ? a.lo
                                : most,
                  a.hi >= most   ? IVI_INF
                  : a.hi > least ? a.hi
                                 : least);
}

// ---- integer arithmetic

IV_FN ivi ivi_same(ivi a) { return a; }
IV_FN ivi_end ivi_clamp(ivi_end x) { return x > IVI_INF ? IVI_INF : x < -IVI_INF ? -IVI_INF : x; }
IV_FN bool ivi_is_open(ivi_end x) { return !IVI_SMALL && (x >= IVI_INF || x <= -IVI_INF); }

IV_FN ivi ivi_neg(ivi a) { return ivi_make(-a.hi, -a.lo); }
IV_FN ivi ivi_add(ivi a, ivi b) {
  if (IVI_SMALL) return ivi_make(a.lo + b.lo, a.hi + b.hi);
  const ivi_end lo = a.lo == -IVI_INF || b.lo == -IVI_INF ? -IVI_INF : ivi_clamp(a.lo + b.lo);
  const ivi_end hi = a.hi == IVI_INF || b.hi == IVI_INF ? IVI_INF : ivi_clamp(a.hi + b.hi);
  return ivi_make(lo, hi);
}
IV_FN ivi ivi_sub(ivi a, ivi b) { return ivi_add(a, ivi_neg(b)); }

// Integers are finite, so 0 times an infinite end is 0.
IV_FN ivi_end ivi_end_mul(ivi_end a, ivi_end b) {
  if (IVI_SMALL) return a * b;
  if (a == 0 || b == 0) return 0;
  const double p = (double)a * (double)b;
  if (ivi_is_open(a) || ivi_is_open(b) || p > 4e18 || p < -4e18) return (a < 0) == (b < 0) ? IVI_INF : -IVI_INF;
  return ivi_clamp(a * b);
}
IV_FN ivi ivi_mul(ivi a, ivi b) {
  const ivi p = ivi_hull(ivi_point(ivi_end_mul(a.lo, b.lo)), ivi_point(ivi_end_mul(a.lo, b.hi)));
  const ivi q = ivi_hull(ivi_point(ivi_end_mul(a.hi, b.lo)), ivi_point(ivi_end_mul(a.hi, b.hi)));
  return ivi_hull(p, q);
}
IV_FN ivi ivi_square(ivi a) {  // a * a of one value
  const ivi_end l = ivi_end_mul(a.lo, a.lo), h = ivi_end_mul(a.hi, a.hi);
  return ivi_make(a.lo <= 0 && a.hi >= 0 ? 0 : l < h ? l : h, l > h ? l : h);
}

IV_FN ivi_end ivi_end_floordiv(ivi_end x, ivi_end m) {  // m > 0
  if (ivi_is_open(x)) return x;
  const ivi_end q = x / m;
  return q * m > x ? q - 1 : q;
}
// Divides by m in [least, most], 0 < least. x / m is monotone in x; for x of fixed sign also in m.
IV_FN ivi ivi_floordiv_positive(ivi a, ivi_end least, ivi_end most) {
  const ivi_end lo1 = ivi_end_floordiv(a.lo, least), hi1 = ivi_end_floordiv(a.hi, least);
  if (least == most) return ivi_make(lo1, hi1);
  const ivi_end lo2 = ivi_end_floordiv(a.lo, most), hi2 = ivi_end_floordiv(a.hi, most);
  return ivi_make(ivi_least(lo1, lo2), ivi_most(hi1, hi2));
}
IV_FN ivi ivi_floordiv(ivi a, ivi b) {
  if (b.lo > 0) return ivi_floordiv_positive(a, b.lo, b.hi);
  if (b.hi < 0) return ivi_floordiv_positive(ivi_neg(a), -b.hi, -b.lo);
  ivi r = ivi_point(0);  // x // 0 = 0
  if (b.hi > 0) r = ivi_hull(r, ivi_floordiv_positive(a, 1, b.hi));
  if (b.lo < 0) r = ivi_hull(r, ivi_floordiv_positive(ivi_neg(a), 1, -b.lo));
  return r;
}

IV_FN ivi ivi_mod_positive(ivi a, ivi_end least, ivi_end most) {
  if (a.lo >= 0 && a.hi < least) return a;
  if (least == most && !ivi_is_open(a.lo) && !ivi_is_open(a.hi)) {
    const ivi_end lo = ivi_end_floordiv(a.lo, least), hi = ivi_end_floordiv(a.hi, least);
    if (lo == hi) return ivi_make(a.lo - lo * least, a.hi - hi * least);
  }
  const ivi_end top = ivi_is_open(most) ? IVI_INF : most - 1;
  return ivi_make(0, a.lo >= 0 && a.hi < top ? a.hi : top);
}
IV_FN ivi ivi_mod(ivi a, ivi b) {
  if (b.lo > 0) return ivi_mod_positive(a, b.lo, b.hi);
  if (b.hi < 0) return ivi_neg(ivi_mod_positive(ivi_neg(a), -b.hi, -b.lo));
  ivi r = a;  // x % 0 = x
  if (b.hi > 0) r = ivi_hull(r, ivi_mod_positive(a, 1, b.hi));
  if (b.lo < 0) r = ivi_hull(r, ivi_neg(ivi_mod_positive(ivi_neg(a), 1, -b.lo)));
  return r;
}

IV_FN ivi ivi_min(ivi a, ivi b) { return ivi_make(ivi_least(a.lo, b.lo), ivi_least(a.hi, b.hi)); }
IV_FN ivi ivi_max(ivi a, ivi b) { return ivi_make(ivi_most(a.lo, b.lo), ivi_most(a.hi, b.hi)); }
IV_FN ivi ivi_abs(ivi a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return ivi_neg(a);
  return ivi_make(0, ivi_most(-a.lo, a.hi));
}
IV_FN ivi ivi_sign(ivi a) { return ivi_make(a.lo > 0 ? 1 : a.lo < 0 ? -1 : 0, a.hi > 0 ? 1 : a.hi < 0 ? -1 : 0); }

// ---- comparisons and logic
IV_FN tri tri_not(tri a) { return tri_make(a.can_be_true, a.can_be_false); }
IV_FN bool ivi_below(ivi_end hi, ivi_end lo) { return hi < lo && !ivi_is_open(hi) && !ivi_is_open(lo); }
IV_FN bool ivi_not_above(ivi_end hi, ivi_end lo) { return hi <= lo && !ivi_is_open(hi) && !ivi_is_open(lo); }
IV_FN tri ivi_lt(ivi a, ivi b) { return tri_make(!ivi_below(a.hi, b.lo), !ivi_not_above(b.hi, a.lo)); }
IV_FN tri ivi_le(ivi a, ivi b) { return tri_make(!ivi_not_above(a.hi, b.lo), !ivi_below(b.hi, a.lo)); }
IV_FN tri ivi_eq(ivi a, ivi b) {
  const bool point = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo && !ivi_is_open(a.lo);
  return tri_make(!point, !ivi_below(a.hi, b.lo) && !ivi_below(b.hi, a.lo));
}
IV_FN tri ivi_ne(ivi a, ivi b) { return tri_not(ivi_eq(a, b)); }

IV_FN tri tri_and(tri a, tri b) { return tri_make(a.can_be_false || b.can_be_false, a.can_be_true && b.can_be_true); }
IV_FN tri tri_or(tri a, tri b) { return tri_make(a.can_be_false && b.can_be_false, a.can_be_true || b.can_be_true); }

IV_FN ivi ivi_select(tri c, ivi a, ivi b) { return !c.can_be_false ? a : !c.can_be_true ? b : ivi_hull(a, b); }
IV_FN tri tri_select(tri c, tri a, tri b) {
  if (!c.can_be_false) return a;
  if (!c.can_be_true) return b;
  return tri_make(a.can_be_false || b.can_be_false, a.can_be_true || b.can_be_true);
}

// ---- real numbers
// Most masks compute only with integers. Skipping this part then saves 3 ms of each compilation.

#ifndef LUATTN_NO_REAL_BOUNDS

// Real bounds: a value lies in [lo, hi] or is NaN, the latter only if `nan`. Ends may be infinite.
typedef struct iv {
  double lo, hi;
  bool nan;
} iv;

IV_FN iv iv_make(double lo, double hi, bool nan) {
  iv r;
  r.lo = lo;
  r.hi = hi;
  r.nan = nan;
  return r;
}
IV_FN iv iv_all(void) { return iv_make(-IV_INF, IV_INF, true); }
// Any finite float.
IV_FN iv iv_finite(void) { return iv_make(-3.4028234663852886e38, 3.4028234663852886e38, false); }

IV_FN double iv_least(double a, double b) { return a < b ? a : b; }
IV_FN double iv_most(double a, double b) { return a > b ? a : b; }
IV_FN double iv_abs_of(double a) { return a < 0 ? -a : a; }
IV_FN bool iv_has(iv a, double x) { return a.lo <= x && x <= a.hi; }
IV_FN bool iv_unbounded(iv a) { return a.lo == -IV_INF || a.hi == IV_INF; }
IV_FN iv iv_hull(iv a, iv b) { return iv_make(iv_least(a.lo, b.lo), iv_most(a.hi, b.hi), a.nan || b.nan); }

// ---- rounding
// Rounding is monotone, so the result of a correctly rounded op, in float or double, lies between the float
// below the exact lower end and the float above the exact upper end. Subnormals may be flushed to zero.

#define IV_TINY 1.1754943508222875e-38  // smallest normal float
#define IV_HUGE 3.4028234663852886e38   // largest float

IV_FN double iv_float_below(double x) {
  if (x != x || x < -IV_HUGE) return -IV_INF;
  if (x > IV_HUGE) return x == IV_INF ? IV_INF : IV_HUGE;
  if (x > -IV_TINY && x < IV_TINY) return x < 0 ? -IV_TINY : 0;
  const double f = (double)(float)x;
  return f <= x ? f : f - iv_abs_of(f) * 1.1920928955078125e-7;
}
IV_FN double iv_float_above(double x) { return -iv_float_below(-x); }

// Rounds ends, computed in double, outwards to float, for an op whose float result is correctly rounded.
IV_FN iv iv_rounded(double lo, double hi, bool nan) {
  if (lo != lo || hi != hi) return iv_all();
  const double below = iv_float_below(lo),
               above = iv_float_above(hi);  // double may not overflow where float does
  return iv_make(below == IV_INF ? IV_HUGE : below, above == -IV_INF ? -IV_HUGE : above, nan);
}
// Widens ends for an op with the given relative and absolute error.
IV_FN iv iv_widened(double lo, double hi, double relative, double absolute, bool nan) {
  if (lo != lo || hi != hi) return iv_all();
  const double l = iv_abs_of(lo) < IV_INF ? lo - (iv_abs_of(lo) * relative + absolute) : lo;
  const double h = iv_abs_of(hi) < IV_INF ? hi + (iv_abs_of(hi) * relative + absolute) : hi;
  return iv_rounded(l, h, nan);
}
// Generous error bounds of the device's approximations. IV_REL_FUNCTION: exp and related functions.
// IV_ABS_FUNCTION: functions that lose relative accuracy near a zero. IV_REL_DIVISION: division, square root.
#define IV_REL_FUNCTION 6.103515625e-5      // 2^-14
#define IV_ABS_FUNCTION 3.814697265625e-6   // 2^-18
#define IV_REL_DIVISION 9.5367431640625e-7  // 2^-20
IV_FN iv iv_relative(double lo, double hi, bool nan) { return iv_widened(lo, hi, IV_REL_FUNCTION, 0, nan); }
IV_FN iv iv_absolute(double lo, double hi, bool nan) {
  return iv_widened(lo, hi, IV_REL_FUNCTION, IV_ABS_FUNCTION, nan);
}

IV_FN iv iv_point(double x) {
  if (x != x) return iv_all();
  return iv_abs_of(x) == IV_INF ? iv_make(x, x, false) : iv_rounded(x, x, false);
}
IV_FN iv iv_any(iv a) {
  (void)a;
  return iv_all();
}
IV_FN iv iv_same(iv a) { return a; }

// ---- real arithmetic

IV_FN iv iv_neg(iv a) { return iv_make(-a.hi, -a.lo, a.nan); }

// The result may be NaN only if both +inf and -inf are possible, since inf - inf is NaN.
IV_FN iv iv_add(iv a, iv b) {
  const bool clash = (a.hi == IV_INF && b.lo == -IV_INF) || (a.lo == -IV_INF && b.hi == IV_INF);
  if (clash) return iv_all();
  return iv_rounded(a.lo + b.lo, a.hi + b.hi, a.nan || b.nan);
}
IV_FN iv iv_sub(iv a, iv b) { return iv_add(a, iv_neg(b)); }

// Multiplies two ends. An infinite end also bounds large finite numbers, and 0 times those is 0.
IV_FN double iv_end_mul(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }
IV_FN iv iv_product(iv a, iv b) {
  const double p = iv_end_mul(a.lo, b.lo), q = iv_end_mul(a.lo, b.hi);
  const double r = iv_end_mul(a.hi, b.lo), s = iv_end_mul(a.hi, b.hi);
  const bool clash = (iv_unbounded(a) && iv_has(b, 0)) || (iv_unbounded(b) && iv_has(a, 0));
  return iv_make(iv_least(iv_least(p, q), iv_least(r, s)), iv_most(iv_most(p, q), iv_most(r, s)),
                 a.nan || b.nan || clash);
}
IV_FN iv iv_mul(iv a, iv b) {
  const iv p = iv_product(a, b);
  return iv_rounded(p.lo, p.hi, p.nan);
}
IV_FN iv iv_square(iv a) {  // a * a of one value
  const double l = a.lo * a.lo, h = a.hi * a.hi;
  return iv_rounded(iv_has(a, 0) ? 0 : iv_least(l, h), iv_most(l, h), a.nan);
}
// Holds with or without contraction: the rounded product's bounds contain the exact product's.
IV_FN iv iv_fma(iv a, iv b, iv c) { return iv_add(iv_mul(a, b), c); }

// Exact bounds of the quotient; b may not contain 0.
IV_FN iv iv_quotient(iv a, iv b) {
  const bool clash = iv_unbounded(a) && iv_unbounded(b);
  if (clash) return iv_all();
  const double p = a.lo / b.lo, q = a.lo / b.hi, r = a.hi / b.lo, s = a.hi / b.hi;
  return iv_make(iv_least(iv_least(p, q), iv_least(r, s)), iv_most(iv_most(p, q), iv_most(r, s)), a.nan || b.nan);
}
// Treats a subnormal divisor as zero, because the device may flush it.
IV_FN bool iv_may_be_zero(iv b) { return b.lo < IV_TINY && b.hi > -IV_TINY; }
// The reciprocal of a huge divisor may be flushed to zero, and the quotient with it.
IV_FN iv iv_div(iv a, iv b) {
  if (iv_may_be_zero(b)) return iv_all();
  const iv q = iv_quotient(a, b);
  if (b.hi > 4e37 || b.lo < -4e37)
    return iv_widened(iv_least(q.lo, 0), iv_most(q.hi, 0), IV_REL_DIVISION, 0, q.nan || iv_unbounded(a));
  return iv_widened(q.lo, q.hi, IV_REL_DIVISION, 0, q.nan);
}

// floor is exact, and monotone.
IV_FN iv iv_floor(iv a) { return iv_make(floor(a.lo), floor(a.hi), a.nan); }
IV_FN iv iv_floordiv(iv a, iv b) {
  if (iv_may_be_zero(b)) return iv_all();
  const iv q = iv_quotient(a, b);  // this division is correctly rounded on the device too
  return iv_floor(iv_rounded(q.lo, q.hi, q.nan));
}

IV_FN double iv_end_mod(double x, double m) {  // m > 0
  const double r = fmod(x, m);
  return r < 0 ? r + m : r;
}
IV_FN iv iv_mod_positive(iv a, double least, double most, bool nan) {
  const double width = a.hi - a.lo;
  if (least == most && width * 1.000001 < most) {  // at most one period: a sawtooth, which either jumps inside or not
    const double lo = iv_end_mod(a.lo, most), hi = iv_end_mod(a.hi, most);
    if (lo <= hi) return iv_widened(lo, hi, 1e-6, 0, nan);
  }
  return iv_rounded(0, most, nan);
}
IV_FN iv iv_mod(iv a, iv b) {
  if (iv_may_be_zero(b) || iv_unbounded(a) || iv_unbounded(b)) return iv_all();
  const bool nan = a.nan || b.nan;
  if (b.lo > 0) return iv_mod_positive(a, b.lo, b.hi, nan);
  return iv_neg(iv_mod_positive(iv_neg(a), -b.hi, -b.lo, nan));
}

// If one operand is NaN, the result is the other operand.
IV_FN iv iv_min(iv a, iv b) {
  iv r = iv_make(iv_least(a.lo, b.lo), iv_least(a.hi, b.hi), a.nan && b.nan);
  if (a.nan) r.hi = iv_most(r.hi, b.hi);
  if (b.nan) r.hi = iv_most(r.hi, a.hi);
  return r;
}
IV_FN iv iv_max(iv a, iv b) { return iv_neg(iv_min(iv_neg(a), iv_neg(b))); }
IV_FN iv iv_clamp(iv a, iv lo, iv hi) { return iv_min(iv_max(a, lo), hi); }
IV_FN iv iv_abs(iv a) {
  if (a.lo >= 0) return a;
  if (a.hi <= 0) return iv_neg(a);
  return iv_make(0, iv_most(-a.lo, a.hi), a.nan);
}
IV_FN iv iv_sign(iv a) {
  const double lo = a.lo > 0 ? 1 : a.lo < 0 ? -1 : 0, hi = a.hi > 0 ? 1 : a.hi < 0 ? -1 : 0;
  return a.nan ? iv_make(iv_least(lo, 0), iv_most(hi, 0), false) : iv_make(lo, hi, false);
}
IV_FN iv iv_relu(iv a) { return iv_make(a.nan ? 0 : iv_most(a.lo, 0), iv_most(a.hi, 0), false); }

// ---- functions

IV_FN iv iv_at_least(iv a, double lo) { return iv_make(iv_most(a.lo, lo), iv_most(a.hi, lo), a.nan); }

IV_FN iv iv_exp(iv a) { return iv_at_least(iv_relative(exp(a.lo), exp(a.hi), a.nan), 0); }
IV_FN iv iv_exp2(iv a) { return iv_at_least(iv_relative(exp2(a.lo), exp2(a.hi), a.nan), 0); }
IV_FN iv iv_expm1(iv a) { return iv_absolute(expm1(a.lo), expm1(a.hi), a.nan); }
IV_FN iv iv_log(iv a) {
  if (a.lo < IV_TINY)
    return a.lo < 0 || a.hi < IV_TINY ? iv_all() : iv_make(-IV_INF, iv_absolute(0, log(a.hi), false).hi, a.nan);
  return iv_absolute(log(a.lo), log(a.hi), a.nan);
}
IV_FN iv iv_log2(iv a) {
  if (a.lo < IV_TINY)
    return a.lo < 0 || a.hi < IV_TINY ? iv_all() : iv_make(-IV_INF, iv_absolute(0, log2(a.hi), false).hi, a.nan);
  return iv_absolute(log2(a.lo), log2(a.hi), a.nan);
}
IV_FN iv iv_log1p(iv a) {
  if (a.lo < -1) return iv_all();
  return iv_absolute(log1p(a.lo), log1p(a.hi), a.nan);
}
IV_FN iv iv_sqrt(iv a) {
  if (a.lo < 0) return a.hi < 0 ? iv_all() : iv_make(0, iv_widened(0, sqrt(a.hi), IV_REL_DIVISION, 0, false).hi, true);
  return iv_at_least(iv_widened(sqrt(a.lo < IV_TINY ? 0 : a.lo), sqrt(a.hi), IV_REL_DIVISION, 0, a.nan), 0);
}
IV_FN iv iv_rsqrt(iv a) {
  if (a.hi < IV_TINY || a.lo <= 0) return iv_all();  // log of -0 is -inf
  const double lo = 1 / sqrt(a.hi), hi = a.lo < IV_TINY ? IV_INF : 1 / sqrt(a.lo);
  return iv_at_least(iv_widened(lo, hi, IV_REL_DIVISION, 0, a.nan), 0);
}
IV_FN iv iv_tanh(iv a) { return iv_absolute(tanh(a.lo), tanh(a.hi), a.nan); }
IV_FN iv iv_rough_tanh(iv a) { return iv_widened(tanh(a.lo), tanh(a.hi), 0.000625, 0, a.nan); }
IV_FN iv iv_erf(iv a) { return iv_absolute(erf(a.lo), erf(a.hi), a.nan); }
IV_FN double iv_end_sigmoid(double x) { return 1 / (1 + exp(-x)); }
IV_FN iv iv_sigmoid(iv a) { return iv_at_least(iv_relative(iv_end_sigmoid(a.lo), iv_end_sigmoid(a.hi), a.nan), 0); }
IV_FN double iv_end_sigmoid2(double x) { return 1 / (1 + exp2(-x)); }
IV_FN iv iv_sigmoid2(iv a) { return iv_at_least(iv_relative(iv_end_sigmoid2(a.lo), iv_end_sigmoid2(a.hi), a.nan), 0); }
// The relative error of op_sigmoid2_alternating is 2^-12.9.
IV_FN iv iv_sigmoid2_alternating(iv a) {
  return iv_at_least(iv_widened(iv_end_sigmoid2(a.lo), iv_end_sigmoid2(a.hi), 1.4e-4, 1e-37, a.nan), 0);
}
IV_FN double iv_end_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x)); }
IV_FN iv iv_softplus(iv a) { return iv_absolute(iv_end_softplus(a.lo), iv_end_softplus(a.hi), a.nan); }

// gelu and silu decrease to a single minimum and increase after it; towards -inf they approach 0 from below.
IV_FN iv iv_valley(iv a, double low, double at_low, double at_lo, double at_hi) {
  const bool nan = a.nan || a.lo == -IV_INF;  // -inf * 0
  if (a.lo >= low) return iv_absolute(at_lo, at_hi, nan);
  if (a.hi <= low) return iv_absolute(at_hi, at_lo, nan);
  return iv_absolute(at_low, iv_most(at_lo, at_hi), nan);
}
IV_FN double iv_end_gelu(double x) {
  return x < -40 ? 0 : x == IV_INF ? x : 0.5 * x * erfc(-0.70710678118654752440 * x);
}
IV_FN iv iv_gelu(iv a) { return iv_valley(a, -0.75179162, -0.16997121, iv_end_gelu(a.lo), iv_end_gelu(a.hi)); }
IV_FN double iv_end_silu(double x) { return x < -100 ? 0 : x == IV_INF ? x : x / (1 + exp(-x)); }
IV_FN iv iv_silu(iv a) { return iv_valley(a, -1.27846454, -0.27846455, iv_end_silu(a.lo), iv_end_silu(a.hi)); }

IV_FN iv iv_sin(iv a) { return iv_absolute(-1, 1, a.nan || iv_unbounded(a)); }
IV_FN iv iv_cos(iv a) { return iv_sin(a); }

// For a base of 0 or more, x^y is monotone in each argument, so its extremes are at corners.
IV_FN iv iv_pow_corners(iv a, iv b) {
  const double p = pow(a.lo, b.lo), q = pow(a.lo, b.hi), r = pow(a.hi, b.lo), s = pow(a.hi, b.hi);
  if (p != p || q != q || r != r || s != s) return iv_all();
  double lo = iv_least(iv_least(p, q), iv_least(r, s)), hi = iv_most(iv_most(p, q), iv_most(r, s));
  if (iv_has(a, 1) || iv_has(b, 0)) {  // 1^inf and inf^0 are 1, whatever the limits
    lo = iv_least(lo, 1);
    hi = iv_most(hi, 1);
  }
  return iv_relative(lo, hi, a.nan || b.nan);
}
IV_FN iv iv_pow(iv a, iv b) {
  if (a.lo >= 0) {
    if (a.lo < IV_TINY) a.lo = 0;
    if (a.lo == 0 && b.lo < 0) return iv_all();  // a power of -0 may be -inf
    return iv_at_least(iv_pow_corners(a, b), 0);
  }
  // A negative base has a power only for integral exponents, whose parity matters.
  if (b.lo != b.hi || b.lo != floor(b.lo) || b.lo < 0 || b.lo > 64) return iv_all();
  const bool odd = floor(b.lo / 2) * 2 != b.lo;
  if (odd) return iv_relative(pow(a.lo, b.lo), pow(a.hi, b.lo), a.nan || b.nan);
  return iv_pow_corners(iv_abs(a), b);
}

// ---- conversions

IV_FN iv ivi_to_real(ivi a) {
  return iv_rounded(a.lo <= -IVI_INF ? -IV_INF : (double)a.lo, a.hi >= IVI_INF ? IV_INF : (double)a.hi, false);
}
IV_FN iv ivi_real_sum(ivi a, ivi b) { return iv_add(ivi_to_real(a), ivi_to_real(b)); }
IV_FN long long ivi_saturate(double x) {
  return x < -2147483648.0 ? -2147483648ll : x > 2147483647.0 ? 2147483647ll : (long long)x;
}
IV_FN ivi iv_to_ivi(double lo, double hi, bool nan) {  // a NaN converts to 0
  const ivi r = ivi_make(ivi_saturate(lo), ivi_saturate(hi));
  return nan ? ivi_hull(r, ivi_point(0)) : r;
}
IV_FN ivi iv_to_int(iv a) { return iv_to_ivi(trunc(a.lo), trunc(a.hi), a.nan); }
IV_FN ivi iv_floor_int(iv a) { return iv_to_ivi(floor(a.lo), floor(a.hi), a.nan); }

// ---- comparisons: with a NaN operand all except `ne` are false

IV_FN tri iv_lt(iv a, iv b) {
  const bool nan = a.nan || b.nan;
  return tri_make(nan || a.hi >= b.lo, a.lo < b.hi);
}
IV_FN tri iv_le(iv a, iv b) {
  const bool nan = a.nan || b.nan;
  return tri_make(nan || a.hi > b.lo, a.lo <= b.hi);
}
IV_FN tri iv_eq(iv a, iv b) {
  const bool nan = a.nan || b.nan, point = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  return tri_make(nan || !point, a.lo <= b.hi && b.lo <= a.hi);
}
IV_FN tri iv_ne(iv a, iv b) { return tri_not(iv_eq(a, b)); }

IV_FN iv iv_select(tri c, iv a, iv b) { return !c.can_be_false ? a : !c.can_be_true ? b : iv_hull(a, b); }

#endif
#endif
