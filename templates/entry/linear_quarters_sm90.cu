// entry/linear_quarters_sm90.cu: the forward image of linear attention whose decays differ between channels and whose updates
// erase, by one kernel, in the sm90 family; where entries are cut, and segments do not begin early, by tiles of all chunks.
#include "config.cuh"
#include "entry/linear_entries.cuh"
#include "linear/sm90/linear_join.cuh"
#include "linear/sm90/linear_quarter_kernel.cuh"
#include "linear/sm90/linear_tile_kernel.cuh"
#include "linear/sm90/linear_tile_maker.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(LINEAR_QUARTER_END_THREADS, 1)
    luattn_linear_end(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_quarter_end<Spec, Config>(p, shared);
}

extern "C" __global__ void __launch_bounds__(SharedQuarters<Spec, Config>::threads, 1)
    luattn_linear(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_quarter_chain<Spec, Config>(p, maps, shared);
}

extern "C" __global__ void __launch_bounds__(SharedMaker<Spec, Config>::threads, SharedMaker<Spec, Config>::blocks)
    luattn_linear_tiles(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (!is_done<Config>(p)) linear_make_tiles<Spec, Config>(p, shared);
}

// A chain of tiles; sums: of segments, before it.
#define TILE_CHAIN_OR_NOT(name, sums)                                                                     \
  extern "C" __global__ void __launch_bounds__(SharedChain<Spec, Config, sums>::threads, 1)               \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    if (!is_done<Config>(p)) linear_tile_chain<Spec, Config, sums>(p, maps, shared);                      \
  }
TILE_CHAIN_OR_NOT(luattn_linear_states, true)
TILE_CHAIN_OR_NOT(luattn_linear_chain, false)

extern "C" __global__ void __launch_bounds__(LINEAR_JOIN_THREADS)
    luattn_linear_join(const __grid_constant__ LuattnLinearParams p) {
  if (!is_done<Config>(p)) linear_join<Spec, Config>(p);
}
