// linear/recurrent/fwd_recurrent.cuh: linear attention token by token, whatever the class: a block has an entry and value head,
// and a block of value channels, whose part of the state it keeps in registers. It reads the state once and writes it once.
//
// The grid is (entries * value heads, blocks of value channels): each block takes as many warps as the launch gives it, and of
// value channels that no block has what is left. Where o is normalised, one block has all of a head: the sum's state is read
// by all of its warps and written once.
#pragma once
#include "linear/recurrent/recurrent_rows.cuh"
#include "linear/recurrent/recurrent_state.cuh"

// Asks for the state of the value head that a multiprocessor takes about when it is through with this one: registers alone hold too
// little of it on its way to keep memory busy.
template <class Config>
LUATTN_FN void prefetch_state(const LuattnLinearParams &p, int first_value, int values) {
  const LuattnStates &m = p.first;
  if (m.data == nullptr || p.ahead <= 0) return;
  const RecurrentAhead head(p);
  if (head.row < 0) return;
  const int size = linear_state_bytes(m.type), n = min_of(values, Config::v_dim - first_value);
  const bool by_k = m.key == 1;
  const u64 at =
      reinterpret_cast<u64>(m.data) + u64(head.row * m.row + head.hv * m.head + first_value * m.value) * size;
  const u64 step = u64(by_k ? m.value : m.key) * size;  // of rows, along K or V
  const int lines = ceil_div((by_k ? Config::k_dim : n) * size, 128), rows = by_k ? n : Config::k_dim;
  for (int i = int(threadIdx.x); i < rows * lines; i += int(blockDim.x))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at + u64(i / lines) * step + u64(i % lines) * 128));
}

// Calls store(states, row) where the state before token t, the first one of a batch, or behind the last token goes to memory.
struct ForwardGoals {
  template <class Config, class Store>
  __device__ __forceinline__ void operator()(const LuattnLinearParams &p, const RecurrentPlace<Config> &place, int t,
                                             const Store &store) const {
    const bool is_last = t >= place.tokens;
    if (is_last ? p.last.data == nullptr : p.between.every == 0 || t % p.between.every != 0) return;
    store(is_last ? p.last : p.between.states,
          is_last ? place.row : linear_state_between(&p.between, place.entry, place.start, t, Config::packed));
  }
};

template <class Spec, class Config, class Goals>
__device__ __forceinline__ void fwd_recurrent_values(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                                     const RecurrentRows<Spec, Config> &rows, bool is_last,
                                                     const Goals &goals) {
  RecurrentState<Spec, Config> state(rows.order, rows.first_value);
  state.load(p, place);
  prefetch_state<Config>(p, rows.first_value, rows.block_values);
  for (int first = 0;; first += Config::batch) {
    const int count = min_of(Config::batch, place.tokens - first);
    if (count > 0 ? first > 0 : Spec::normalizes) __syncthreads();  // rows are read; all warps have the sum's state
    goals(p, place, first, [&](const LuattnStates &to, i64 row) { state.store_to(to, row, place.site.hv, is_last); });
    if (count <= 0) break;
    rows.fill(first, count);
    __syncthreads();
    for (int i = 0; i < count; ++i) state.step(rows.of(i));
    __syncthreads();
    if constexpr (Config::run == 0 || Spec::normalizes)
      rows.store(first, count);  // in backward o is for its sums alone
  }
}

template <class Spec, class Config, class Goals>
__device__ __forceinline__ void fwd_recurrent(const LuattnLinearParams &p, typename Config::Number *shared,
                                              const StateOrder<Config> order, const Goals &goals) {
  const RecurrentPlace<Config> place(p);
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp;
  const int tiles = ceil_div(Config::v_dim, values);
  for (int tile = place.first_block; tile < tiles; tile += place.blocks) {
    const RecurrentRows<Spec, Config> rows{p, place, order, shared, tile * values, values};
    if (tile >= place.blocks) __syncthreads();
    if (place.row >= 0)
      fwd_recurrent_values<Spec, Config>(p, place, rows, tile + place.blocks >= tiles, goals);
    else if constexpr (Config::run == 0)
      rows.store_zeros();  // backward has no o of rows of nobody
  }
}

template <class Spec, class Config>
__device__ __forceinline__ void fwd_recurrent(const LuattnLinearParams &p, typename Config::Number *shared) {
  const StateOrder<Config> order(p.first.data != nullptr ? p.first : p.last);
  fwd_recurrent<Spec, Config>(p, shared, order, ForwardGoals());
}
