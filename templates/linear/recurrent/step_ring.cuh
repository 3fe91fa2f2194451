// linear/recurrent/step_ring.cuh: a few tokens behind a checkpoint and a ring of rows: the state is read as it streams, and
// written only where the ring is full: then its rows are folded into it first, in the same launch.
//
// A block has an entry and a value head, with all of its value channels, so that nobody reads rows that it writes.
#pragma once
#include "linear/recurrent/fwd_recurrent.cuh"
#include "linear/recurrent/ring_rows.cuh"

template <class Spec, class Config>
__device__ __forceinline__ void fold_ring(RecurrentState<Spec, Config> &state, const RingRows<Spec, Config> &ring) {
  using Ring = RingLayout<Spec, Config>;
  const int last = ring.used - 1;
  if constexpr (Ring::decays) state.scale(ring.shared, ring.old_sum(last));
  for (int j = 0; j < ring.used; ++j) {
    const int from = Ring::decays ? ring.old_sum(j) : -1, to = Ring::decays ? ring.old_sum(last) : -1;
    state.add(ring.shared, ring.old_k(j), from, to, ring.u(j), 1);
    if constexpr (Ring::erases) state.add(ring.shared, ring.old_e(j), from, to, ring.y(j), -1);
  }
}

// What new tokens read of the checkpoint: o, and what is written without what is erased; or with `erase` what r reads.
template <class Spec, class Config>
__device__ __forceinline__ void read_checkpoint(const RecurrentState<Spec, Config> &state,
                                                const RingRows<Spec, Config> &ring) {
  using Ring = RingLayout<Spec, Config>;
  using Layout = TokenLayout<Spec, Config>;
  for (int i = 0; i < ring.tokens; ++i) {
    auto *const row = ring.row(i);
    const int n = ring.before + i;
    state.times(ring.shared, ring.row_at(i) + Layout::q, Ring::decays ? ring.new_sum(i) : -1,
                [&](int v, auto x) { row[Layout::o + v] = x; });
    if constexpr (Ring::reads) {
      state.times(ring.shared, ring.row_at(i) + Layout::read, Ring::decays ? ring.read_sum(i) : -1, [&](int v, auto x) {
        ring.u(n)[v] = row[Layout::written + v] - (Ring::erases ? 0 : x);
        if constexpr (Ring::erases) ring.y(n)[v] = x;
      });
    } else {
      state.each([&](int v) { ring.u(n)[v] = row[Layout::written + v]; });
    }
  }
}

template <class Spec, class Config>
__device__ __forceinline__ void step_ring_values(const LuattnLinearParams &p, const RecurrentRows<Spec, Config> &rows,
                                                 const RingRows<Spec, Config> &ring, bool is_first) {
  RecurrentState<Spec, Config> state(rows.order, rows.first_value);
  const bool folds = ring.before < ring.used;
  state.load(p, ring.place);
  if (p.ahead > 0) prefetch_state<Config>(p, rows.first_value, rows.block_values);
  if (is_first) ring.prefetch();
  rows.fill(0, ring.tokens);
  if (is_first) ring.load_rows();
  ring.load_values(rows.first_value, rows.block_values);
  __syncthreads();
  if (folds) {
    fold_ring(state, ring);
    state.store(p, ring.place, true);
    __syncthreads();  // u of old rows is read
  }
  if (is_first) {
    ring.add_up_decays();
    __syncthreads();
    ring.multiply_pairs();
  }
  read_checkpoint(state, ring);
  __syncthreads();
  for (int v = int(threadIdx.x); v < rows.block_values; v += int(blockDim.x)) ring.solve(v);
  __syncthreads();
  rows.store(0, ring.tokens);
  if (is_first) ring.store_rows();
  ring.store_values(rows.first_value, rows.block_values);
}

template <class Spec, class Config>
__device__ __forceinline__ void step_ring(const LuattnLinearParams &p, typename Config::Number *shared) {
  const RecurrentPlace<Config> place(p);
  const StateOrder<Config> order(p.first);
  const int values = int(blockDim.x / 32) * RecurrentShape<Config>::v_warp;
  const int rows_of = p.ring.count, tokens = min_of(place.tokens, rows_of);
  const int used = place.row < 0 ? 0 : max_of(min_of(__ldg(p.ring.used + place.entry), rows_of), 0);
  const RingRows<Spec, Config> ring{p, place, order, shared, used, tokens, used + tokens > rows_of ? 0 : used};
  for (int first = 0; first < Config::v_dim; first += values) {
    const RecurrentRows<Spec, Config> rows{p, place, order, shared, first, values};
    if (first > 0) __syncthreads();
    if (place.row < 0)
      rows.store_zeros();
    else if (tokens > 0)
      step_ring_values<Spec, Config>(p, rows, ring, first == 0);
  }
}
