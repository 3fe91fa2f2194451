// entry/linear_step.cu: the image of linear attention token by token, with a kernel for a few tokens of many states.
#include "entry/linear_recurrent.cuh"
#include "linear/recurrent/step_part.cuh"
#include "linear/recurrent/step_state.cuh"
#include "linear/recurrent/step_tokens.cuh"

extern "C" __global__ void __launch_bounds__(LINEAR_PART_THREADS, LINEAR_PART_BLOCKS)
    luattn_linear_part(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  if constexpr (Config::k_dim <= LINEAR_PART_KEYS) step_part<Spec, Config, false>(p, step_shared);
}
extern "C" __global__ void __launch_bounds__(LINEAR_PART_THREADS, LINEAR_PART_HALF_BLOCKS)
    luattn_linear_part_half(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  if constexpr (Config::k_dim <= LINEAR_PART_KEYS) step_part<Spec, Config, true>(p, step_shared);
}
extern "C" __global__ void __launch_bounds__(LINEAR_TOKENS_THREADS, LINEAR_TOKENS_BLOCKS)
    luattn_linear_tokens(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  if constexpr (TakesTokens<Spec, Config>) step_tokens<Spec, Config, LINEAR_TOKENS_FEW>(p, step_shared);
}
extern "C" __global__ void __launch_bounds__(LINEAR_TOKENS_THREADS, LINEAR_TOKENS_MORE_BLOCKS)
    luattn_linear_tokens_more(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  if constexpr (TakesTokens<Spec, Config>) step_tokens<Spec, Config, LINEAR_TOKENS_MORE>(p, step_shared);
}
extern "C" __global__ void __launch_bounds__(StepRoles<Config>::threads, 2)
    luattn_linear_step(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(128) unsigned char step_shared[];
  step_states<Spec, Config>(p, step_shared);
}
