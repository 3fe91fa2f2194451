// entry/fwd_jvp_simt.cu: the forward image of the simt family with tangents.
#include "entry/entries_fwd.cuh"
#include "simt/fwd_jvp_simt.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, fwd_jvp_simt_blocks<Spec, Config>)
    luattn_fwd_jvp(const __grid_constant__ TangentParams p) {
  if (has_queries<Config>(p)) fwd_jvp_simt<Spec, Config>(p);
  write_padding<Spec, Config>(p);
  write_tangent_padding<Spec, Config>(p);
}
#endif
