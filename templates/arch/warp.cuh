// arch/warp.cuh: values that are the same in a whole warp.
#pragma once
#include "arch/types.cuh"

// Broadcasts lane 0's value, so that ptxas knows it to be the same in the whole warp. ptxas serialises wgmmas
// after a branch that might diverge.
LUATTN_FN u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }

// The greater of two, and NaN where one is: fmaxf would leave that out.
LUATTN_FN float greater_of(float x, float y) { return (y > x) | (y != y) ? y : x; }

// The greatest of the lanes' values, likewise.
LUATTN_FN float greatest_of_warp(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = greater_of(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// Lane `from`'s value, of one word.
template <class T>
LUATTN_FN T of_lane(const T &x, int from) {
  static_assert(sizeof(T) == sizeof(u32));
  const u32 word = __shfl_sync(0xffffffffu, *reinterpret_cast<const u32 *>(&x), from);
  return *reinterpret_cast<const T *>(&word);
}

// Sums over a warp, in one order.
template <int N>
LUATTN_FN void sum_over_warp(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int m = 16; m > 0; m /= 2) x[i] += __shfl_xor_sync(0xffffffffu, x[i], m);
}
