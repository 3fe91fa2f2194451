// entry/linear_step_ring.cu: the image of a step behind checkpoints and rings, with a kernel for many states.
#include "entry/linear_ring.cuh"
#include "linear/recurrent/step_ring_parts.cuh"

extern "C" __global__ void __launch_bounds__(StepRoles<Config>::threads, 2)
    luattn_linear_step(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  step_rings<Spec, Config>(p, step_shared);
}
