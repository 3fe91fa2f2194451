// entry/fwd_simt.cu: the forward image of the simt family.
#include "entry/entries_fwd.cuh"
#include "simt/fwd_simt.cuh"

#if LUATTN_PART != 2
extern "C" __global__ void __launch_bounds__(Config::threads, fwd_simt_blocks<Spec, Config>)
    luattn_fwd(const __grid_constant__ ParamsOf<Config> p) {
  if (has_queries<Config>(p)) fwd_simt<Spec, Config>(p);
  write_padding<Spec, Config>(p);
}
#endif
