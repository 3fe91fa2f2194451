// entry/linear_grads_bwd_sm90.cu: the same where q, k and v have more channels: one kernel has the chain of gradients and what is
// made of them.
#include "entry/linear_erasing_bwd.cuh"
#include "linear/sm90/linear_grads_sm90.cuh"

using GradsConfig = ChainConfig<LINEAR_GRAD_STATES>;

extern "C" __global__ void __launch_bounds__(SharedGrads<Spec, GradsConfig>::threads, 1)
    luattn_linear_grads(const __grid_constant__ LuattnLinearParams p,
                        const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_grads_sm90<Spec, GradsConfig>(p, maps, shared);
}
