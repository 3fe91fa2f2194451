// entry/linear_adding_bwd_sm90.cu: the backward image of linear attention's additive updates with gradients of numbers of tokens, in
// the sm90 family: a chain that keeps states, and one kernel that has all gradients.
#include "config.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/linear_grads_sm90.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct ChainConfig : PassConfig<Config, Pass> {
  using Base = PassConfig<Config, Pass>;
  static constexpr int stages = Pass == LINEAR_STATES ? 2 : linear_grad_stages(Base::k_dim, Base::v_block);
};

#define CHAIN(name, pass)                                                                                 \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, ChainConfig<pass>>::threads, 1)         \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    fwd_linear_sm90<Spec, ChainConfig<pass>, true>(p, maps, shared);                                      \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES)
CHAIN(luattn_linear_chain_states, LINEAR_FORWARD)
CHAIN(luattn_linear_grad_chain_states, LINEAR_GRAD_V)

using GradsConfig = ChainConfig<LINEAR_GRAD_STATES>;

extern "C" __global__ void __launch_bounds__(SharedGrads<Spec, GradsConfig>::threads, 1)
    luattn_linear_grads(const __grid_constant__ LuattnLinearParams p,
                        const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_grads_sm90<Spec, GradsConfig>(p, maps, shared);
}
