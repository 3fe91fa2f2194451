// entry/fwd_sm90.cu: the forward image of the sm90 family.
#include "entry/entries_fwd.cuh"
#include "sm90/fwd/fwd_sm90.cuh"

#if defined(LUATTN_SCORE_BOUNDS) && LUATTN_PART != 1
#include "around/before/tile_skipping.cuh"
extern "C" __global__ void __launch_bounds__(norm_threads) luattn_norms(const __grid_constant__ ParamsOf<Config> p) {
  find_norms<Config, false>(p);
}
extern "C" __global__ void __launch_bounds__(Config::tile_m)
    luattn_tile_bitmap(const __grid_constant__ ParamsOf<Config> p) {
  find_tile_bitmap_fwd<Spec, Config>(p);
}
#endif

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_fwd(const __grid_constant__ ParamsOf<Config> p, const __grid_constant__ MapsOf<Config> maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_sm90<Spec, Config>(p, maps, shared);
}
#endif
