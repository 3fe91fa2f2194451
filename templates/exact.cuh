// exact.cuh: sums of floating-point numbers that do not depend on the order of the additions.
//
// A number is its bits at a place: 24 of a float (53 of a double) that begin at one of 254 (2046) places.
// Such a sum is an integer of that many places, kept in limbs of exact_bits bits, each in 64: a number is
// added to the two (three) limbs that it covers by integer atomics, which commute, and nothing is carried
// before all has been added. The 35 bits that are left hold 2^35 additions to a limb, which take a GPU
// minutes. Infinities and NaN have no place: they go to the gradient itself, where their sum is the same in
// any order too.
//
// Limb k of element i lies at [k * count + i], so that neighbours are added to neighbouring words.
#pragma once
#include "base.cuh"
#include "params.h"

static constexpr u32 exact_bits = 28;
static constexpr u64 exact_mask = (1u << exact_bits) - 1;
template <class Real>
constexpr int exact_limbs = LUATTN_EXACT_LIMBS(sizeof(Real));

LUATTN_FN void exact_add_limb(u64 *limb, u64 x, bool negative) {
  if (x != 0) atomicAdd(limb, negative ? 0 - x : x);
}

LUATTN_OUTLINED void exact_add(u64 *sum, i64 count, float *special, float x) {
  const u32 bits = __float_as_uint(x), exponent = bits >> 23 & 255;
  if (exponent == 255) return atomic_add(special, x);
  const u32 place = max_of(exponent, 1u) - 1, limb = place / exact_bits;
  const u64 wide = u64((bits & 0x7fffffu) | (exponent > 0 ? 0x800000u : 0)) << (place - limb * exact_bits);
  u64 *at = sum + i64(limb) * count;
  exact_add_limb(at, wide & exact_mask, bits >> 31 != 0);
  exact_add_limb(at + count, wide >> exact_bits, bits >> 31 != 0);
}
LUATTN_OUTLINED void exact_add(u64 *sum, i64 count, double *special, double x) {
  const u64 bits = u64(__double_as_longlong(x));
  const u32 exponent = u32(bits >> 52) & 2047;
  if (exponent == 2047) return atomic_add(special, x);
  const u32 place = max_of(exponent, 1u) - 1, limb = place / exact_bits, shift = place - limb * exact_bits;
  const u64 value = (bits & ((u64(1) << 52) - 1)) | (exponent > 0 ? u64(1) << 52 : 0);
  u64 *at = sum + i64(limb) * count;
  const u64 rest =
      value >> (exact_bits - shift);  // beyond the first limb, of which it fills `shift` bits and on
  exact_add_limb(at, value << shift & exact_mask, bits >> 63 != 0);
  exact_add_limb(at + count, rest & exact_mask, bits >> 63 != 0);
  exact_add_limb(at + 2 * count, rest >> exact_bits, bits >> 63 != 0);
}

// What has been carried out of the last limb of a sum, or of its negative: negative where that is.
template <int Limbs, class Visit>
LUATTN_FN i64 exact_carry(const u64 *sum, i64 count, bool negated, const Visit &visit) {
  i64 carry = 0;
#pragma unroll 1
  for (int k = 0; k < Limbs; ++k) {
    const i64 limb = i64(sum[k * count]), all = carry + (negated ? -limb : limb);
    visit(k, u64(all) & exact_mask);
    carry = all >> exact_bits;
  }
  return carry;
}
// The sum as a Real: the four highest limbs that it has, 85 bits or more.
template <class Real>
LUATTN_FN Real exact_value(const u64 *sum, i64 count) {
  constexpr int limbs = exact_limbs<Real>;
  const bool negative = exact_carry<limbs>(sum, count, false, [](int, u64) {}) < 0;
  double last[3] = {}, value = 0;  // the limbs before this one, the latest first
  int top = 0;
  const auto visit = [&](int k, u64 digit) {
    constexpr double radix = double(1u << exact_bits);
    if (digit != 0) {
      value = ((double(digit) * radix + last[0]) * radix + last[1]) * radix + last[2];
      top = k;
    }
    last[2] = last[1], last[1] = last[0], last[0] = double(digit);
  };
  visit(limbs, u64(exact_carry<limbs>(sum, count, negative, visit)));
  value = scalbn(value, (top - 3) * int(exact_bits) - (sizeof(Real) == 4 ? 149 : 1074));
  return Real(negative ? -value : value);
}
