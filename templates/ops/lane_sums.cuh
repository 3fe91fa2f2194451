// ops/lane_sums.cuh: sums of which a warp's lanes keep one each, where a thread has no registers for all of
// them.
#pragma once
#include "arch/types.cuh"

// Sums over a warp's elements: lane i of 32 keeps sum 32 k + i in x[k]; after the last sum, zeros or copies.
template <class Real, int Count>
struct LaneSums {
  static constexpr int count = Count, registers = (Count + 31) / 32;
  Real x[registers];
  bool kept;  // grad is called for a whole warp, and this says whether the lane's element counts
};

// Sums each of term's numbers over a warp. Lane i gets sum i, modulo the next power of two. At each step a
// lane hands half of its numbers to another, which adds them to its own of the same terms: with 32 terms that
// takes 31 exchanges.
template <class Real, int Count>
LUATTN_FN Real sum_by_lane(const Real (&term)[Count]) {
  constexpr int width = Count > 16 ? 32 : Count > 8 ? 16 : Count > 4 ? 8 : Count > 2 ? 4 : Count;
  const u32 lane = threadIdx.x;
  Real x[width];
#pragma unroll
  for (int i = 0; i < width; ++i) x[i] = i < Count ? term[i < Count ? i : 0] : Real(0);
#pragma unroll
  for (int half = width / 2; half > 0; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const Real other = upper ? x[i] : x[i + half], own = upper ? x[i + half] : x[i];
      x[i] = own + __shfl_xor_sync(0xffffffffu, other, half);
    }
  }
#pragma unroll
  for (int apart = width; apart < 32; apart *= 2) x[0] += __shfl_xor_sync(0xffffffffu, x[0], apart);
  return x[0];
}
