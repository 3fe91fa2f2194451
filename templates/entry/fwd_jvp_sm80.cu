// entry/fwd_jvp_sm80.cu: the forward image of the sm80 family with tangents.
#include "entry/entries_fwd.cuh"
#include "sm80/fwd_jvp_sm80.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, ForwardJvpSm80<Spec, ValueConfig<Config>>::blocks)
    luattn_fwd_jvp(const __grid_constant__ TangentParams p) {
  extern __shared__ __align__(512) unsigned char shared[];
  if (has_queries<Config>(p)) fwd_jvp_sm80<Spec, Config>(p, shared);
  write_padding<Spec, Config>(p);
  write_tangent_padding<Spec, Config>(p);
}
#endif
