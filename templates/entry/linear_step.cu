// entry/linear_step.cu: the image of linear attention token by token, with a kernel for a few tokens of many states.
#include "entry/linear_recurrent.cuh"
#include "linear/recurrent/step_state.cuh"

extern "C" __global__ void __launch_bounds__(StepRoles<Config>::threads, 2)
    luattn_linear_step(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  step_states<Spec, Config>(p, step_shared);
}
