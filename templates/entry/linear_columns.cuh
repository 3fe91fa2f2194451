// entry/linear_columns.cuh: the main kernels of the backward of linear attention whose decays differ between channels, in the
// sm90 family, of which entry/linear_columns_sm90.cu has no others.
#pragma once
#include "config.cuh"
#include "linear/sm90/linear_columns_sm90.cuh"
#include "linear/sm90/linear_tile_chain.cuh"
#include "linear/sm90/linear_tile_maker.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct ColumnsConfig : Config {
  static constexpr LinearPass pass = Pass;
  static constexpr int v_block = Config::v_dim > 64 ? 128 : 64;
};
using RowsConfig = ColumnsConfig<LINEAR_ROWS>;

extern "C" __global__ void __launch_bounds__(SharedMaker<Spec, RowsConfig>::threads, 2)
    luattn_linear_tiles(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_make_tiles<Spec, RowsConfig>(p, shared);
}

#define CHAIN(name, pass)                                                                                 \
  extern "C" __global__ void __launch_bounds__(SharedChain<Spec, ColumnsConfig<pass>>::threads, 1)        \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    linear_tile_chain<Spec, ColumnsConfig<pass>>(p, maps, shared);                                        \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES)
CHAIN(luattn_linear_grad_chain, LINEAR_GRAD_STATES)

extern "C" __global__ void __launch_bounds__(SharedColumns<Spec, RowsConfig>::threads, 1)
    luattn_linear_columns(const __grid_constant__ LuattnLinearParams p,
                          const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_columns_sm90<Spec, RowsConfig>(p, maps, shared);
}
