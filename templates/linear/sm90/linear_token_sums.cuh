// linear/sm90/linear_token_sums.cuh: sums over a chunk's tokens, of which a lane of a warp has two.
#pragma once
#include "arch/warp.cuh"

struct TokenSums {
  const int lane;

  // Of tokens 2 lane and 2 lane + 1: sums over tokens from them on; and over those before them.
  __device__ __forceinline__ float2 suffix(float2 x) const {
    float all = x.x + x.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_down_sync(0xffffffffu, all, step);
      if (lane + step < 32) all += other;
    }
    const float behind = __shfl_down_sync(0xffffffffu, all, 1);
    return {all, x.y + (lane < 31 ? behind : 0.f)};
  }
  __device__ __forceinline__ float2 prefix(float2 x) const {
    float all = x.x + x.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, all, step);
      if (lane >= step) all += other;
    }
    const float up = __shfl_up_sync(0xffffffffu, all, 1), before = lane > 0 ? up : 0.f;
    return {before, before + x.x};
  }
};
