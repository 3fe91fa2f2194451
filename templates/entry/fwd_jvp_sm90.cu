// entry/fwd_jvp_sm90.cu: the forward image of the sm90 family with tangents.
#include "entry/entries_fwd.cuh"
#include "sm90/fwd_jvp/fwd_jvp_sm90.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, 1)
    luattn_fwd_jvp(const __grid_constant__ TangentParams p, const __grid_constant__ LuattnTangentMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  fwd_jvp_sm90<Spec, Config>(p, maps, shared);
}
#endif
