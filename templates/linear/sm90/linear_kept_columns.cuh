// linear/sm90/linear_kept_columns.cuh: the chains of additive updates whose decays differ between channels, for backward: as
// linear_kept.cuh, but for U, which is w V:
//
//     S' = S' a + V (w k e^(GC - G))          forwards: the state before the chunk is kept
//     dS' = dS' a + do' (scale q e^G)         backwards: that behind it
//
// where a differs between columns, and the last factors are tiles (LinearTiles::make_joining) but for numbers of tokens.
#pragma once
#include "linear/sm90/linear_kept.cuh"

template <class Spec, class Config, bool OnlyState>
struct KeptColumns : KeptStates<Spec, Config, OnlyState> {
  using Kept = KeptStates<Spec, Config, OnlyState>;
  using Values = typename Kept::Values;
  using Shared = typename Kept::Shared;
  using Kept::backwards, Kept::boxes_k, Kept::chain, Kept::in, Kept::k_dim, Kept::lane, Kept::p, Kept::pairs,
      Kept::shared, Kept::warp;

  __device__ __forceinline__ void keep_state(const u32 (&state)[k_dim / 16][4], int n) const {
    const bool first = warp == 0 && elected();
    if (first) bulk_wait_read();
    named_sync(Values::store_barrier + this->group, 128);  // boxes are free
    this->stage_state(state);
    fence_async();
    named_sync(Values::store_barrier + this->group, 128);
    if (first) {
      this->copy(backwards ? p.kept.grad_states : p.kept.states, 0, boxes_k, n);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void step(float (&state)[k_dim / 2], int n) {
    u32 rounded[k_dim / 16][4], v[4][4], weighed[4][4];
    lane = lane_anew();
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) Values::round(rounded[s], state, s);
    keep_state(rounded, n);
    barrier_wait(shared.full(in.stage), in.parity);
    this->load_values(v);
    this->await_numbers();
    this->template weigh_by<backwards ? OF_QUERY : OF_KEY>(weighed, v);
    barrier_wait(shared.tiled(pairs.stage), pairs.parity);
    this->scale_columns(state, shared.factors(pairs.stage) + OF_WITHIN);
    wgmma_fence();
    this->write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    this->release();
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    this->rows().load_first(state, p);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) step(state, n);
    this->rows().store_last(state, p);
    this->await_stores();
  }
};
