// entry/linear_tiles_fwd.cuh: forward where decays differ between channels, by tiles of all chunks that a kernel makes before.
#pragma once
#include "config.cuh"
#include "linear/sm90/linear_tile_kernel.cuh"
#include "linear/sm90/linear_tile_maker.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(SharedMaker<Spec, Config>::threads, SharedMaker<Spec, Config>::blocks)
    luattn_linear_tiles(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_make_tiles<Spec, Config>(p, shared);
}

// A chain; sums: of segments, before it.
#define TILE_CHAIN(name, sums)                                                                            \
  extern "C" __global__ void __launch_bounds__(SharedChain<Spec, Config, sums>::threads, 1)               \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    linear_tile_chain<Spec, Config, sums>(p, maps, shared);                                               \
  }
