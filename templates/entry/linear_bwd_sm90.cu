// entry/linear_bwd_sm90.cu: the backward image of linear attention's additive updates, in the sm90 family: a pass of the forward
// kernel for each gradient, and one over chunks for gradients of numbers of tokens.
#include "config.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/number_grads.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct GradConfig : PassConfig<Config, Pass> {
  static constexpr int stages = linear_grad_stages(PassConfig<Config, Pass>::k_dim, PassConfig<Config, Pass>::v_block);
};

#define GRADIENT(name, pass)                                                                                       \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, GradConfig<pass>>::threads, 1)                   \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {          \
    extern __shared__ __align__(1024) unsigned char shared[];                                                      \
    fwd_linear_sm90<Spec, GradConfig<pass>, false>(p, maps, shared);                                               \
  }                                                                                                                \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, GradConfig<pass>>::threads, 1)                   \
      name##_states(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                                      \
    fwd_linear_sm90<Spec, GradConfig<pass>, true>(p, maps, shared);                                                \
  }
GRADIENT(luattn_linear_grad_q, LINEAR_GRAD_Q)
GRADIENT(luattn_linear_grad_k, LINEAR_GRAD_K)
GRADIENT(luattn_linear_grad_v, LINEAR_GRAD_V)

extern "C" __global__ void __launch_bounds__(SharedNumbers<Spec, Config>::threads, 1)
    luattn_linear_numbers(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (Config::has_ways) number_grads<Spec, Config>(p, maps, shared);
}
