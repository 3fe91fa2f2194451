// linear/recurrent/fwd_recurrent.cuh: linear attention token by token, whatever the class: a block has an entry and value head,
// and a block of value channels, whose part of the state it keeps in registers. It reads the state once and writes it once.
//
// The grid is (entries * value heads, blocks of value channels): each block takes as many warps as the launch gives it, and of
// value channels that no block has what is left. Where o is normalised, one block has all of a head: the sum's state is read
// by all of its warps and written once.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"

template <class Spec, class Config>
__device__ __forceinline__ void fwd_recurrent_values(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                                     const RecurrentRows<Spec, Config> &rows, bool is_last) {
  RecurrentState<Spec, Config> state(rows.order, rows.first_value);
  state.load(p, place);
  for (int first = 0; first < place.tokens; first += Config::batch) {
    const int count = min_of(Config::batch, place.tokens - first);
    if (first > 0) __syncthreads();
    rows.fill(first, count);
    __syncthreads();
    for (int i = 0; i < count; ++i) state.step(rows.of(i));
    __syncthreads();
    rows.store(first, count);
  }
  if constexpr (Spec::normalizes) __syncthreads();  // all warps have read the sum's state
  state.store(p, place, is_last);
}

template <class Spec, class Config>
__device__ __forceinline__ void fwd_recurrent(const LuattnLinearParams &p, typename Config::Number *shared) {
  const RecurrentPlace<Config> place(p);
  const StateOrder<Config> order(p.first.data != nullptr ? p.first : p.last);
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp;
  const int tiles = ceil_div(Config::v_dim, values);
  for (int tile = place.first_block; tile < tiles; tile += place.blocks) {
    const RecurrentRows<Spec, Config> rows{p, place, order, shared, tile * values, values};
    if (tile >= place.blocks) __syncthreads();
    if (place.row < 0)
      rows.store_zeros();
    else
      fwd_recurrent_values<Spec, Config>(p, place, rows, tile + place.blocks >= tiles);
  }
}
