// bwd_sm80.cu: entry points of the sm80 family's backward pass.
#include "spec.cuh"

#include "bwd_sm80.cuh"

static_assert(ValidSpec<Spec>);

extern "C" __global__ void __launch_bounds__(Config::threads) luattn_dkdv(const __grid_constant__ LuattnParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  BwdSm80<Spec, Config>(p, shared).run();
}
