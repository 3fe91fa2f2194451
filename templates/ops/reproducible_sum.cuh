// ops/reproducible_sum.cuh: sums of floating-point numbers that do not depend on the order of the additions.
//
// A float is a 24-bit integer (53 bits for a double), shifted by one of 254 (2046) amounts. A sum is a wide
// integer in limbs. Each limb holds exact_bits bits of the sum in a 64-bit word. Integer atomics, which
// commute, add a number to the two (three) limbs that it covers. Carries are propagated only after all
// additions. The remaining 35 bits of a word leave room for 2^35 additions to a limb, which take a GPU
// minutes. Infinities and NaN have no integer form; they are added to the gradient itself, where the order of
// additions does not change their sum.
//
// exact_add is inlined, because a call would take the registers of a kernel's accumulators. A hook that adds
// many numbers one by one would need too many inlined copies; it calls exact_add_called. Atomics on one word
// serialise, and the lanes of a warp often add to the same element. In that case exact_add_together first
// reduces over the active lanes. The reduction needs registers that kernels of the sm90 family do not have.
//
// Limb k of element i lies at [k * count + i], so that adjacent elements have adjacent words.
#pragma once
#include "arch/types.cuh"
#include "abi/workspace.h"

static constexpr u32 exact_bits = LUATTN_EXACT_BITS;
static constexpr u64 exact_mask = (1u << exact_bits) - 1;
template <class Real>
constexpr int exact_limbs = workspace_limbs(sizeof(Real));

LUATTN_FN void exact_add_limb(u64 *limb, u64 x, bool negative) {
  if (x != 0) atomicAdd(limb, negative ? 0 - x : x);
}

// A finite float as an integer: `bits` is aligned to the lowest bit of limb `limb`, and fits two limbs.
struct ExactParts {
  u64 bits;
  u32 limb;
  bool negative;
};
LUATTN_FN ExactParts exact_parts(float x) {
  const u32 bits = __float_as_uint(x), exponent = bits >> 23 & 255;
  const u32 place = max_of(exponent, 1u) - 1, limb = place / exact_bits;
  return {u64((bits & 0x7fffffu) | (exponent > 0 ? 0x800000u : 0)) << (place - limb * exact_bits), limb,
          bits >> 31 != 0};
}
LUATTN_FN void exact_add(u64 *sum, i64 count, float *special, float x) {
  if ((__float_as_uint(x) >> 23 & 255) == 255) return atomic_add(special, x);
  const ExactParts parts = exact_parts(x);
  u64 *at = sum + i64(parts.limb) * count;
  exact_add_limb(at, parts.bits & exact_mask, parts.negative);
  exact_add_limb(at + count, parts.bits >> exact_bits, parts.negative);
}
LUATTN_FN void exact_add(u64 *sum, i64 count, double *special, double x) {
  const u64 bits = u64(__double_as_longlong(x));
  const u32 exponent = u32(bits >> 52) & 2047;
  if (exponent == 2047) return atomic_add(special, x);
  const u32 place = max_of(exponent, 1u) - 1, limb = place / exact_bits, shift = place - limb * exact_bits;
  const u64 value = (bits & ((u64(1) << 52) - 1)) | (exponent > 0 ? u64(1) << 52 : 0);
  u64 *at = sum + i64(limb) * count;
  const u64 rest = value >> (exact_bits - shift);  // bits that do not fit in the first limb
  exact_add_limb(at, value << shift & exact_mask, bits >> 63 != 0);
  exact_add_limb(at + count, rest & exact_mask, bits >> 63 != 0);
  exact_add_limb(at + 2 * count, rest >> exact_bits, bits >> 63 != 0);
}

template <class Real>
LUATTN_OUTLINED void exact_add_called(u64 *sum, i64 count, Real *special, Real x) {
  exact_add(sum, count, special, x);
}
// Adds to limb `limb` and the next one of an element, for the lanes in `lanes`. Each iteration reduces over
// the lanes that share a limb: `low` and `middle` are halves of a limb, and `high` is the part in the next
// limb.
LUATTN_FN void exact_add_lanes(u32 lanes, u64 *sum, i64 count, u32 limb, int low, int middle, int high) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (u32 left = lanes; left != 0;) {
    const int first = __ffs(int(left)) - 1;
    const u32 common = __shfl_sync(lanes, limb, first);
    const bool adds = limb == common;
    const i64 all_low = __reduce_add_sync(lanes, adds ? low : 0),
              all_middle = __reduce_add_sync(lanes, adds ? middle : 0),
              all_high = __reduce_add_sync(lanes, adds ? high : 0);
    if (lane == first) {
      u64 *at = sum + i64(common) * count;
      exact_add_limb(at, u64(all_low + all_middle * (1 << exact_bits / 2)), false);
      exact_add_limb(at + count, u64(all_high), false);
    }
    left &= ~__ballot_sync(lanes, adds);
  }
}
LUATTN_OUTLINED void exact_add_together(u64 *sum, i64 count, float *special, float x) {
  const u32 lanes = __activemask();
  int one_element;
  __match_all_sync(lanes, reinterpret_cast<unsigned long long>(sum), &one_element);
  if (!one_element || __any_sync(lanes, (__float_as_uint(x) >> 23 & 255) == 255))
    return exact_add(sum, count, special, x);
  const ExactParts parts = exact_parts(x);
  constexpr u32 half_bits = exact_bits / 2, half_mask = (1u << half_bits) - 1;
  const int sign = parts.negative ? -1 : 1;
  exact_add_lanes(lanes, sum, count, parts.limb, sign * int(u32(parts.bits) & half_mask),
                  sign * int(u32(parts.bits) >> half_bits & half_mask), sign * int(parts.bits >> exact_bits));
}
LUATTN_FN void exact_add_together(u64 *sum, i64 count, double *special, double x) {
  exact_add_called(sum, count, special, x);
}

// Propagates carries through a sum or, if `negated`, its negative; returns the last limb's carry.
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
// Converts a sum to Real from its four highest limbs, which hold at least 85 bits.
template <class Real>
LUATTN_FN Real exact_value(const u64 *sum, i64 count) {
  constexpr int limbs = exact_limbs<Real>;
  const bool negative = exact_carry<limbs>(sum, count, false, [](int, u64) {}) < 0;
  double last[3] = {}, value = 0;  // the three preceding limbs, highest first
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
