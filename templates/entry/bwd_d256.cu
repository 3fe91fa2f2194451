// entry/bwd_d256.cu: the backward image of the sm90 family for head dims above 128.
#include "spec.cuh"
#include "sm90/bwd_d256/bwd_d256.cuh"

using RowOrder = ResultGroups;
#if LUATTN_PART != 1
#include "around/after/finish_grouped.cuh"
using DqOrder = WrittenGroups;
using KvOrder = WrittenGroups;
#endif
#include "entry/entries_bwd.cuh"

#if defined(LUATTN_SCORE_BOUNDS) && LUATTN_PART != 1
#include "around/before/tile_skipping.cuh"
extern "C" __global__ void __launch_bounds__(norm_threads) luattn_norms(const __grid_constant__ ParamsOf<Config> p) {
  find_norms<Config, true>(p);
}
extern "C" __global__ void __launch_bounds__(tile_bitmap_threads)
    luattn_tile_bitmap(const __grid_constant__ ParamsOf<Config> p) {
  find_tile_bitmap_bwd<Spec, Config, 2 * Config::tile_n>(p);
}
#endif

#if LUATTN_PART != 2
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Config::threads, 1)
    luattn_dkdv(const __grid_constant__ ParamsOf<Config> p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  bwd_d256<Spec, Config>(p, maps, shared);
}
#endif
