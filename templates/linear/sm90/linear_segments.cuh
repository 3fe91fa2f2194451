// linear/sm90/linear_segments.cuh: chunks of updates that erase, without o, and what a segment of them is: a map of the state,
//
//     S <- M S + N
//
// N is what the segment makes of 0, and M, [K, K], what it makes of the unit matrix where nothing is written. So blocks of
// luattn_linear_states for channels of the map are like those for value channels; the first segment begins with the first
// state, and has no map. linear_join.cuh makes states of them.
#pragma once
#include "linear/sm90/linear_values.cuh"

template <class Spec, class Config, bool OnlyState>
struct ErasingChain : LinearValues<Spec, Config, OnlyState> {
  using Values = LinearValues<Spec, Config, OnlyState>;
  using Elem = typename Values::Elem;
  using Values::chain, Values::in, Values::k_dim, Values::lane, Values::p, Values::shared;

  // x = S' K'. Meanwhile `meanwhile` has S' rounded.
  template <class Meanwhile>
  __device__ __forceinline__ void read_keys(float (&x)[32], float (&state)[k_dim / 2],
                                            const Meanwhile &meanwhile) const {
    u32 rounded[k_dim / 16][4];
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) Values::round(rounded[s], state, s);
    this->await_numbers();
    this->decay_state(state);
    barrier_wait(shared.full(in.stage), in.parity);
    wgmma_fence();
    Values::read_state(x, rounded, shared.k(in.stage));
    meanwhile(rounded);
    wgmma_wait<0>();
    wgmma_arrived(x);
  }
  // A chunk forwards; u becomes U, rounded.
  template <class Meanwhile>
  __device__ __forceinline__ void advance(u32 (&v)[4][4], float (&state)[k_dim / 2], int chunk,
                                          const Meanwhile &meanwhile) {
    float u[32];
    u32 weighed[4][4];
    lane = lane_anew();
    read_keys(u, state, meanwhile);
    this->load_values(v);
    this->modify(v, chunk);
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i / 4][i % 4] = chain.of_map ? 0 : v[i / 4][i % 4];
    this->subtract(v, v, u);
    wgmma_fence();
    WgmmaKept<Elem>::template dots64<true>(u, v, wgmma_operand(shared.taken_inverse(in.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(u);
    this->round_values(v, weighed, u);
    wgmma_fence();
    this->write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    this->release();
  }
  __device__ __forceinline__ void load_begin(float (&state)[k_dim / 2]) const {
    if (p.segments.count > 1)
      this->rows().template load_segment<true>(state, p);
    else
      this->rows().load_first(state, p);
  }

  // N or M of a segment; the first state is copied.
  __device__ __forceinline__ void run_segment() {
    float state[k_dim / 2];
    this->rows().load_unit(state);
    if (chain.segment == 0 && !chain.of_map) {
      this->rows().load_first(state, p);
      this->rows().store(state, this->rows().slot(p, 0));
    }
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      u32 u[4][4];
      advance(u, state, chain.at(n), [](const auto &) {});
    }
    if (chain.of_map)
      this->rows().store(state, this->rows().map(p, chain.segment));
    else
      this->rows().store(state, this->rows().slot(p, chain.segment + 1));
  }
};
