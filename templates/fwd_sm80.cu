// fwd_sm80.cu: the sm80 family's forward image.
#include "fwd_sm80.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(Config::threads, MIN_BLOCKS) luattn_fwd(const __grid_constant__ LuattnParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  forward_sm80<Spec, Config>(p, shared);
}
