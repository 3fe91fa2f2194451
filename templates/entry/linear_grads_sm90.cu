// entry/linear_grads_sm90.cu: the last image of the backward of linear attention's updates that erase, in the sm90 family, where
// one kernel has the chain of gradients and what is made of them.
#include "config.cuh"
#include "linear/sm90/linear_grads_sm90.cuh"
#include "spec.cuh"

extern "C" __global__ void __launch_bounds__(SharedGrads<Spec, Config>::threads, 1)
    luattn_linear_grads(const __grid_constant__ LuattnLinearParams p,
                        const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_grads_sm90<Spec, Config>(p, maps, shared);
}
