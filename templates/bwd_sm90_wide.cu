// bwd_sm90_wide.cu: the backward image of the sm90 family for head dims above 128.
#include "entries_fwd.cuh"
#include "bwd_sm90_wide.cuh"
#include "dq_finish.cuh"

#if defined(LUATTN_SCORE_BOUNDS) && LUATTN_PART != 1
#include "reach.cuh"
extern "C" __global__ void __launch_bounds__(norm_threads)
    luattn_norms(const __grid_constant__ LuattnParams p) {
  reach_norms<Config, true>(p);
}
extern "C" __global__ void __launch_bounds__(reach_threads)
    luattn_reach(const __grid_constant__ LuattnParams p) {
  reach_bwd<Spec, Config, 2 * Config::tile_n>(p);
}
#endif

#if LUATTN_PART != 2
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Config::threads, 1)
    luattn_dkdv(const __grid_constant__ LuattnParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  bwd_sm90_wide<Spec, Config>(p, maps, shared);
}
#endif

#if LUATTN_PART != 1
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_prepare(const __grid_constant__ LuattnParams p) {
  aux_prepare<Spec, Config, ResultGroups>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_finish(const __grid_constant__ LuattnParams p) {
  aux_finish<Spec, Config, WrittenGroups, WrittenGroups>(p);
}
extern "C" __global__ void __launch_bounds__(aux_threads)
    luattn_round(const __grid_constant__ LuattnParams p) {
  aux_round<Spec, Config>(p);
}
#endif
