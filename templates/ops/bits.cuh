// ops/bits.cuh: Lua's bit operations on integers, and interval arithmetic for them. The compiler (C11, see
// gen/ir/interval.h) and generated code (CUDA C++) compile the same source; generated code includes this file
// only if the spec has bit operations.
//
// Lua's integers have 64 bits, and a spec's have 32 in kernels. A kernel computes the lower 32 bits of a
// result; the compiler has checked that the result fits in them. Shifts are logical. A negative shift count
// shifts in the other direction, and a count of 64 or more gives 0.
#ifndef LUATTN_BITS_CUH
#define LUATTN_BITS_CUH

#ifdef LUATTN_INTERVAL_HOST
#include "interval.cuh"
#else
#include "arch/types.cuh"
#include "ops/interval.cuh"
#endif

// ---- bounds

#ifdef LUATTN_SMALL_BOUNDS
typedef unsigned ivi_bits;
#else
typedef unsigned long long ivi_bits;
#endif
#define IVI_SIGN ((ivi_bits)1 << (8 * sizeof(ivi_bits) - 1))

IV_FN bool ivi_has_open(ivi a) { return ivi_is_open(a.lo) || ivi_is_open(a.hi); }
// Treats an end beyond the range of ivi as unbounded.
IV_FN ivi ivi_saturated(ivi_end lo, ivi_end hi) {
  return IVI_SMALL ? ivi_make(lo, hi) : ivi_make(ivi_clamp(lo), ivi_clamp(hi));
}

// Sets all bits below the highest set bit of x.
IV_FN ivi_bits ivi_filled(ivi_bits x) {
  for (int n = 1; n < 8 * (int)sizeof x; n *= 2) x |= x >> n;
  return x;
}
// ivi_undecided: the bits in which numbers of a may differ, that is, all bits from the highest one in which
// the ends differ. ivi_some: bits that are set in some number of a. ivi_every: bits that are set in all of
// them.
IV_FN ivi_bits ivi_undecided(ivi a) {
  if (ivi_has_open(a)) return a.lo >= 0 || a.hi < 0 ? ~IVI_SIGN : ~(ivi_bits)0;
  return ivi_filled((ivi_bits)a.lo ^ (ivi_bits)a.hi);
}
IV_FN ivi_bits ivi_some(ivi a) { return (ivi_bits)a.lo | ivi_undecided(a); }
IV_FN ivi_bits ivi_every(ivi a) { return (ivi_bits)a.lo & ~ivi_undecided(a); }
// Bounds the numbers that have all bits of `every` set, and no bit outside of `some`.
IV_FN ivi ivi_of_bits(ivi_bits some, ivi_bits every) {
  const bool any_sign = ((some ^ every) & IVI_SIGN) != 0;
  return ivi_saturated((ivi_end)(any_sign ? every | IVI_SIGN : every), (ivi_end)(any_sign ? some & ~IVI_SIGN : some));
}

// A mask of the low bits; in each number of a, all bits above the mask equal the sign bit.
IV_FN ivi_bits ivi_magnitude(ivi a) {
  return ivi_filled((ivi_bits)(a.lo < 0 ? ~a.lo : a.lo) | (ivi_bits)(a.hi < 0 ? ~a.hi : a.hi));
}
IV_FN ivi ivi_within(ivi x, ivi_end lo, ivi_end hi) { return ivi_make(x.lo > lo ? x.lo : lo, x.hi < hi ? x.hi : hi); }
// Clips x, the bounds of a bit operation on a and b, to the numbers that need no more bits than a and b do.
IV_FN ivi ivi_no_wider(ivi x, ivi a, ivi b) {
  if (ivi_has_open(a) || ivi_has_open(b)) return x;
  const ivi_end most = (ivi_end)(ivi_magnitude(a) | ivi_magnitude(b));
  return ivi_within(x, ~most, most);
}

IV_FN ivi ivi_flipped(ivi a) {  // ~x
  return ivi_make(ivi_is_open(a.hi) ? -IVI_INF : ~a.hi, ivi_is_open(a.lo) ? IVI_INF : ~a.lo);
}
// x & y is at most min(x, y) if x and y have the same sign, else at most the non-negative operand.
IV_FN ivi ivi_band(ivi a, ivi b) {
  ivi r = ivi_no_wider(ivi_of_bits(ivi_some(a) & ivi_some(b), ivi_every(a) & ivi_every(b)), a, b);
  const bool both_negative = a.hi < 0 && b.hi < 0;
  if ((a.lo >= 0 || both_negative) && a.hi < r.hi) r.hi = a.hi;
  if ((b.lo >= 0 || both_negative) && b.hi < r.hi) r.hi = b.hi;
  return r;
}
IV_FN ivi ivi_bor(ivi a, ivi b) { return ivi_flipped(ivi_band(ivi_flipped(a), ivi_flipped(b))); }
IV_FN ivi ivi_bxor(ivi a, ivi b) {
  const ivi_bits some = (ivi_some(a) | ivi_some(b)) & ~(ivi_every(a) & ivi_every(b)),
                 every = (ivi_every(a) & ~ivi_some(b)) | (ivi_every(b) & ~ivi_some(a));
  return ivi_no_wider(ivi_of_bits(some, every), a, b);
}

// x * 2^n for n >= 0. Returns IVI_INF on overflow, because the wrapped 64-bit result may have either sign.
IV_FN ivi_end ivi_end_shl(ivi_end x, ivi_end n) {
  if (x == 0) return 0;
  if (IVI_SMALL) return n > 31 ? 0 : (ivi_end)((ivi_bits)x << n);
  return n > 59 || ivi_is_open(x) ? IVI_INF : ivi_end_mul(x, (ivi_end)1 << n);
}
IV_FN ivi ivi_up(ivi a, ivi_end least, ivi_end most) {
  if (least > 63) return ivi_point(0);
  const ivi p = ivi_hull(ivi_point(ivi_end_shl(a.lo, least)), ivi_point(ivi_end_shl(a.lo, most)));
  const ivi q = ivi_hull(ivi_point(ivi_end_shl(a.hi, least)), ivi_point(ivi_end_shl(a.hi, most)));
  const ivi r = ivi_hull(p, q);
  return ivi_has_open(r) ? ivi_all() : r;
}

// Shifts a 64-bit x right by n >= 0.
IV_FN ivi_end ivi_end_down(unsigned long long x, ivi_end n) {
  const unsigned long long y = n > 63 ? 0 : x >> n, most = (unsigned long long)IVI_INF;
  return (ivi_end)(y < most ? y : most);
}
IV_FN ivi ivi_down(ivi a, ivi_end least, ivi_end most) {
  const unsigned long long sign = 1ull << 63;
  ivi r = ivi_all();
  bool any = false;
  if (a.hi >= 0) {
    const unsigned long long hi = ivi_is_open(a.hi) ? sign - 1 : (unsigned long long)a.hi;
    r = ivi_make(ivi_end_down(a.lo > 0 ? (unsigned long long)a.lo : 0, most), ivi_end_down(hi, least));
    any = true;
  }
  if (a.lo < 0 && least == 0) {  // a shift by 0 leaves negative numbers unchanged
    const ivi same = ivi_make(a.lo, a.hi < 0 ? a.hi : -1);
    r = any ? ivi_hull(r, same) : same;
    any = true;
  }
  if (a.lo < 0 && most > 0) {  // a logical shift by n > 0 makes negative numbers positive
    const unsigned long long lo = ivi_is_open(a.lo) ? sign : (unsigned long long)(long long)a.lo,
                             hi = a.hi < 0 ? (unsigned long long)(long long)a.hi : ~0ull;
    const ivi ones = ivi_make(ivi_end_down(lo, most), ivi_end_down(hi, least > 0 ? least : 1));
    r = any ? ivi_hull(r, ones) : ones;
  }
  return r;
}
IV_FN ivi ivi_shr(ivi a, ivi n) {
  if (n.lo >= 0) return ivi_down(a, n.lo, n.hi);
  const ivi up = ivi_up(a, n.hi < 0 ? -n.hi : 1, -n.lo);
  return n.hi < 0 ? up : ivi_hull(up, ivi_down(a, 0, n.hi));
}
IV_FN ivi ivi_shl(ivi a, ivi n) { return ivi_shr(a, ivi_neg(n)); }
// (x >> n) & m. If m is not negative, the result lies in [0, m] for any x.
IV_FN ivi ivi_shr_band(ivi a, ivi n, ivi m) {
  if (m.lo >= 0 && (a.lo < 0 || n.lo < 0)) return ivi_make(0, m.hi);
  return ivi_band(ivi_shr(a, n), m);
}

// x * y + z modulo 2^32, as a number with a sign. Where no number of the box crosses a multiple of 2^32 from the next,
// bounds move with it.
IV_FN bool ivi_is_word(ivi a) { return a.lo >= -2147483647 - 1 && a.hi <= 2147483647; }
IV_FN ivi ivi_wrap(ivi x, ivi y, ivi z) {
  const long long half = 1ll << 31;
  if (!ivi_is_word(x) || !ivi_is_word(y) || !ivi_is_word(z)) return ivi_make((ivi_end)-half, (ivi_end)(half - 1));
  const long long p[4] = {(long long)x.lo * y.lo, (long long)x.lo * y.hi, (long long)x.hi * y.lo,
                          (long long)x.hi * y.hi};
  long long lo = p[0], hi = p[0];
  for (int i = 1; i < 4; i++) {
    lo = p[i] < lo ? p[i] : lo;
    hi = p[i] > hi ? p[i] : hi;
  }
  lo += z.lo + half, hi += z.hi + half;
  if ((lo >> 32) != (hi >> 32)) return ivi_make((ivi_end)-half, (ivi_end)(half - 1));
  return ivi_make((ivi_end)((lo & 0xffffffffll) - half), (ivi_end)((hi & 0xffffffffll) - half));
}

// ---- values

#ifndef LUATTN_INTERVAL_HOST
// Shift x, sign-extended to 64 bits, and return the lower 32 bits.
LUATTN_FN int op_bits_up(int x, u32 n) { return n < 32 ? int(u32(x) << n) : 0; }
LUATTN_FN int op_bits_down(int x, u32 n) {
  if (n < 32) return x >> n;
  return n < 64 ? int(u32(x >> 31) >> (n - 32)) : 0;
}
LUATTN_FN int op_wrap(int x, int y, int z) { return int(u32(x) * u32(y) + u32(z)); }
LUATTN_FN int op_shl(int x, int n) { return n >= 0 ? op_bits_up(x, n) : op_bits_down(x, 0u - u32(n)); }
LUATTN_FN int op_shr(int x, int n) { return n >= 0 ? op_bits_down(x, n) : op_bits_up(x, 0u - u32(n)); }
#endif

#endif  // LUATTN_BITS_CUH
