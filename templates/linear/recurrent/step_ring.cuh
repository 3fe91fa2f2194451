// linear/recurrent/step_ring.cuh: a few tokens behind a checkpoint and a ring of rows: the state is read as it streams, and
// written only where the ring is full: then its rows are folded into it first, in the same launch.
//
// A block has a value head, with all of its value channels, so that nobody reads rows that it writes. The last warp asks for
// the ring's rows before all else; then each warp for its part of the state, value channels of its own, and it solves for them.
// Warps meet where rows are there, with decays of channels once more where these are added up, and where pairs are there.
#pragma once
#include "linear/recurrent/ring_states.cuh"

template <class Spec, class Config, class State>
__device__ __forceinline__ void step_ring_head(const LuattnLinearParams &p, const RecurrentPlace<Config> &place,
                                               const RecurrentRows<Spec, Config> &rows,
                                               const RingRows<Spec, Config> &ring) {
  using Ring = RingFacts<Spec, Config>;
  const int values = int(blockDim.x / 32) * State::values;
  for (int first = 0; first < Config::v_dim; first += values) {
    State state(rows.order, first);
    if (first == 0) ring.ask();
    state.load(p, place);
    if (first == 0) {
      rows.fill(0, ring.tokens);
      ring.arrived();
      if constexpr (Ring::channels) {
        ring.add_up_channels();
        __syncthreads();
      }
      ring.multiply_pairs(ring.add_up_numbers());
      State::prepare(ring);
      ring.store_keys();
      __syncthreads();
      ring.store_sums();
    }
    if (ring.before < ring.used) state.fold(p, place, ring);
    state.read_checkpoint(ring);
    __syncwarp();
    ring.template solve<State::values>(state.first);
  }
}

// State: how a warp has its part of a checkpoint (ring_states.cuh).
template <class Spec, class Config, class State>
__device__ __forceinline__ void step_ring(const LuattnLinearParams &p, typename Config::Number *shared) {
  using Ring = RingFacts<Spec, Config>;
  if (p.tokens == 0) return;
  const StateOrder<Config> order(p.first);
  const RecurrentPlace<Config> place(p);
  const RecurrentRows<Spec, Config> rows{p, place, order, shared, 0, Config::v_block};
  if (place.row < 0) return rows.store_zeros();
  const int used = Ring::clamped_used(p, place.entry);
  const RingRows<Spec, Config> ring{
      p, place, order, shared, Ring::places(p), used, place.tokens, used + place.tokens > p.ring.count ? 0 : used};
  step_ring_head<Spec, Config, State>(p, place, rows, ring);
}
