// entry/linear_columns.cuh: the main kernels of the backward of linear attention whose decays differ between channels, in the
// sm90 family, of which entry/linear_columns_sm90.cu has no others.
#pragma once
#include "config.cuh"
#include "linear/sm90/linear_columns_sm90.cuh"
#include "linear/sm90/linear_join.cuh"
#include "linear/sm90/linear_tile_kernel.cuh"
#include "linear/sm90/linear_tile_maker.cuh"
#include "spec.cuh"

template <LinearPass Pass>
struct ColumnsConfig : Config {
  static constexpr LinearPass pass = Pass;
  static constexpr int v_block = Config::v_dim > 64 ? 128 : 64;
};
using RowsConfig = ColumnsConfig<LINEAR_ROWS>;

extern "C" __global__ void __launch_bounds__(SharedMaker<Spec, RowsConfig>::threads,
                                             SharedMaker<Spec, RowsConfig>::blocks)
    luattn_linear_tiles(const __grid_constant__ LuattnLinearParams p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_make_tiles<Spec, RowsConfig>(p, shared);
}

#define CHAIN(name, pass, sums)                                                                           \
  extern "C" __global__ void __launch_bounds__(SharedChain<Spec, ColumnsConfig<pass>, sums>::threads, 1)  \
      name(const __grid_constant__ LuattnLinearParams p, const __grid_constant__ LuattnTensorMaps maps) { \
    extern __shared__ __align__(1024) unsigned char shared[];                                             \
    linear_tile_chain<Spec, ColumnsConfig<pass>, sums>(p, maps, shared);                                  \
  }
CHAIN(luattn_linear_chain, LINEAR_STATES, false)
CHAIN(luattn_linear_grad_chain, LINEAR_GRAD_STATES, false)
// Of segments; both chains have the same maps, or what is left of channels.
CHAIN(luattn_linear_chain_states, LINEAR_STATES, true)
CHAIN(luattn_linear_grad_chain_states, LINEAR_GRAD_STATES, true)

#define JOIN(name, pass)                                                   \
  extern "C" __global__ void __launch_bounds__(LINEAR_JOIN_THREADS)        \
      name(const __grid_constant__ LuattnLinearParams p) {                 \
    if constexpr (Spec::erases) linear_join<Spec, ColumnsConfig<pass>>(p); \
  }
JOIN(luattn_linear_chain_join, LINEAR_STATES)
JOIN(luattn_linear_grad_chain_join, LINEAR_GRAD_STATES)

extern "C" __global__ void __launch_bounds__(SharedColumns<Spec, RowsConfig>::threads, 1)
    luattn_linear_columns(const __grid_constant__ LuattnLinearParams p,
                          const __grid_constant__ LuattnLinearRowMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  linear_columns_sm90<Spec, RowsConfig>(p, maps, shared);
}
