// entry/bwd_sm90.cu: the backward image of the sm90 family.
#include "spec.cuh"
#include "sm90/bwd/bwd_sm90.cuh"

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
  find_tile_bitmap_bwd<Spec, Config, Config::tile_n>(p);
}
#endif

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_dkdv(const __grid_constant__ ParamsOf<Config> p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  bwd_sm90<Spec, Config>(p, maps, shared);
}
#endif
