// entry/linear_group_bwd_sm90.cu: the backward image of linear attention's additive updates in the sm90 family where q and k have more
// than 64 channels and v has not: chains that keep states and their gradients, and a kernel over chunks that adds up value heads.
#include "config.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/linear_group_rows_sm90.cuh"
#include "spec.cuh"

template <LinearPass Pass, bool Keeps>
struct ChainConfig : PassConfig<Config, Pass> {
  using Base = PassConfig<Config, Pass>;
  static constexpr bool keeps_grad_states = Keeps && Pass == LINEAR_GRAD_V;
  static constexpr bool shares = Keeps;
  static constexpr int stages = Keeps ? 3 : linear_grad_stages(Base::k_dim, Base::v_block);
};

#define CHAIN(name, pass, keeps)                                                                                 \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, ChainConfig<pass, keeps>>::threads, 1 + keeps) \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) {        \
    extern __shared__ __align__(1024) unsigned char shared[];                                                    \
    fwd_linear_sm90<Spec, ChainConfig<pass, keeps>, true>(p, maps, shared);                                      \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES, true)
CHAIN(luattn_linear_grad_chain, LINEAR_GRAD_V, true)
CHAIN(luattn_linear_chain_states, LINEAR_FORWARD, false)
CHAIN(luattn_linear_grad_chain_states, LINEAR_GRAD_V, false)

using RowsConfig = PassConfig<Config, LINEAR_ROWS>;
extern "C" __global__ void __launch_bounds__(SharedGroup<Spec, RowsConfig>::threads, 1)
    luattn_linear_group_rows(const __grid_constant__ LuattnLinearParams p,
                             const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_group_rows_sm90<Spec, RowsConfig>(p, maps, shared);
}
