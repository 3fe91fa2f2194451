// entry/linear_channels_bwd_sm90.cu: the backward image of linear attention's additive updates whose decays differ between
// channels, in the sm90 family.
#include "config.cuh"
#include "entry/linear_entries_bwd.cuh"
#include "linear/sm90/fwd_linear_sm90.cuh"
#include "linear/sm90/linear_columns_sm90.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct ChainConfig : PassConfig<Config, Pass> {
  static constexpr int stages = 2;
};
using ColumnsConfig = PassConfig<Config, LINEAR_ROWS>;

#define CHAIN(name, pass)                                                                                 \
  extern "C" __global__ void __launch_bounds__(SharedLinear<Spec, ChainConfig<pass>>::threads, 1)         \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    fwd_linear_sm90<Spec, ChainConfig<pass>, true>(p, maps, shared);                                      \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES)
CHAIN(luattn_linear_grad_chain, LINEAR_GRAD_STATES)

extern "C" __global__ void __launch_bounds__(SharedColumns<Spec, ColumnsConfig>::threads, 1)
    luattn_linear_columns(const __grid_constant__ LuattnLinearParams p,
                          const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_columns_sm90<Spec, ColumnsConfig>(p, maps, shared);
}
