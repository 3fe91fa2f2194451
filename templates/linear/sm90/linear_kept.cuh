// linear/sm90/linear_kept.cuh: the chains of backward where decays are of tokens: a warpgroup of the values', which keeps in
// memory what kernels behind it need of each chunk. Forwards (LINEAR_STATES) the state before it, S', and where updates erase U:
//
//     Y = S' K'   U = (w V - r Y) T'   S' = a S' + U K
//
// and backwards (LINEAR_GRAD_STATES), with dS' of the state behind it, dS', and dR, where V is the gradient of o:
//
//     dU = e^(GC - G) dS' K' + V P      A: dS' rounded, V     B: K, a row for each token; P, transposed
//     dR = dU T                         A: dU rounded         B: T, transposed
//     dS' = a dS' + (scale e^G V) Q - (r e^G dR) K            B: Q and K, transposed
#pragma once
#include "linear/sm90/linear_segments.cuh"

template <class Spec, class Config, bool OnlyState>
struct KeptStates : ErasingChain<Spec, Config, OnlyState> {
  using Values = ErasingChain<Spec, Config, OnlyState>;
  using Shared = typename Values::Shared;
  using Elem = typename Values::Elem;
  using Fragment = MmaFragment;
  using Values::chain, Values::group, Values::in, Values::lane, Values::of_tokens, Values::p, Values::pairs,
      Values::shared, Values::warp;
  static constexpr int k_dim = Values::k_dim, boxes_k = Shared::boxes_k;
  static constexpr bool backwards = LinearChain<Config>::backwards, has_values = Spec::erases;

  // ---- load ----

  // V times the factors of its tokens in numbers `of`.
  template <int Of>
  __device__ __forceinline__ void weigh_by(u32 (&weighed)[4][4], const u32 (&v)[4][4]) const {
    const u32 from = shared.numbers(of_tokens.stage) + Of + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factor = load_pair(from + (16 * s + i / 2 * 8) * 4);
        weighed[s][i] = pack<Elem>(half_of<Elem>(v[s][i], 0) * factor.x, half_of<Elem>(v[s][i], 1) * factor.y);
      }
  }
  // The same of an accumulator, with the sign turned.
  template <int Of>
  __device__ __forceinline__ void weigh_negative(u32 (&weighed)[4][4], const float (&x)[32]) const {
    const u32 from = shared.numbers(of_tokens.stage) + Of + Fragment::column(lane) * 4;
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = 8 * s + 2 * i;
        const float2 factor = load_pair(from + (16 * s + i / 2 * 8) * 4);
        weighed[s][i] = pack<Elem>(-x[e] * factor.x, -x[e + 1] * factor.y);
      }
  }
  __device__ __forceinline__ void scale_by_key(float (&x)[32]) const {
    const u32 from = shared.numbers(of_tokens.stage) + OF_KEY + Fragment::column(lane) * 4;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float2 factor = load_pair(from + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r) x[Fragment::element(r, j)] *= factor.x, x[Fragment::element(r, j + 1)] *= factor.y;
    }
  }

  // ---- finish: what is kept ----

  // Keeps the state of chunk number n, if there is one, and values of the one before it.
  __device__ __forceinline__ void keep(const u32 (&state)[k_dim / 16][4], const u32 (&values)[16], int n,
                                       bool has_state) const {
    const LuattnLinearKept &kept = p.kept;
    const u32 box = shared.kept(group, boxes_k);
    this->await_boxes();
    if (has_state) this->stage_state(state);
    if (has_values && n > 0) this->stage_rows(box, values);
    fence_async();
    named_sync(Values::store_barrier + group, 128);
    if (warp == 0 && elected()) {
      if (has_state) this->copy(backwards ? kept.grad_states : kept.states, shared.kept(group, 0), boxes_k, n);
      if (has_values && n > 0) this->copy(backwards ? kept.grad_values : kept.values, box, 1, n - 1);
      bulk_commit();
    }
  }

  // ---- chunks ----

  // Forwards, of additive updates.
  __device__ __forceinline__ void step_additive(float (&state)[k_dim / 2], int n) {
    u32 rounded[k_dim / 16][4], v[4][4], weighed[4][4], none[16] = {};
    lane = lane_anew();
#pragma unroll
    for (int s = 0; s < k_dim / 16; ++s) Values::round(rounded[s], state, s);
    keep(rounded, none, n, true);
    this->await_numbers();
    this->decay_state(state);
    barrier_wait(shared.full(in.stage), in.parity);
    this->load_values(v);
    this->weigh(weighed, v);
    wgmma_fence();
    this->write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    this->release();
  }
  // Forwards, with what is kept leaving beside a product; done becomes U.
  __device__ __forceinline__ void step(float (&state)[k_dim / 2], u32 (&done)[16], int n) {
    u32 u[4][4];
    this->advance(u, state, chain.at(n), [&](const auto &rounded) { keep(rounded, done, n, true); });
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i] = u[i / 4][i % 4];
  }
  template <bool Keeps>
  __device__ __forceinline__ void step_back(float (&state)[k_dim / 2], u32 (&done)[16], int n) {
    float x[32];
    u32 v[4][4], weighed[4][4];
    lane = lane_anew();
    this->read_keys(x, state, [&](const auto &rounded) {
      if constexpr (Keeps) keep(rounded, done, n, true);
    });
    scale_by_key(x);
    this->load_values(v);
    weigh_by<OF_QUERY>(weighed, v);
    this->await_pairs();
    wgmma_fence();
    Wgmma<Elem, 64>::sums64(x, v[0], v[1], v[2], v[3], wgmma_operand(shared.pairs(pairs.stage), 0));
    wgmma_commit();
    Wgmma<Elem, k_dim>::sums64(state, weighed[0], weighed[1], weighed[2], weighed[3],
                               wgmma_operand(shared.q(in.stage), Shared::box));
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_arrived(x);
    float r[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) r[i] = 0;
#pragma unroll
    for (int s = 0; s < 4; ++s) Values::round(v[s], x, s);
    wgmma_fence();
    Wgmma<Elem, 64>::sums64(r, v[0], v[1], v[2], v[3], wgmma_operand(shared.taken_inverse(in.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(r), wgmma_arrived(state);
    weigh_negative<OF_READ>(weighed, r);
    wgmma_fence();
    this->write_state(state, weighed);
    wgmma_wait<0>();
    wgmma_arrived(state);
    this->release();
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i] = pack<Elem>(r[2 * i], r[2 * i + 1]);
  }
  // Backwards: what a segment makes of a gradient of 0, and the last one of that of the last state, which is copied.
  __device__ __forceinline__ void run_sums(bool forgets) {
    float state[k_dim / 2];
    u32 none[16];
    this->rows().begin_sums(state, p, forgets);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) step_back<false>(state, none, n);
    this->rows().store(state, this->rows().slot(p, chain.segment + 1));
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    u32 done[16], none[k_dim / 16][4] = {};
    this->load_begin(state);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      if constexpr (!Spec::erases)
        step_additive(state, n);
      else if constexpr (backwards)
        step_back<true>(state, done, n);
      else
        step(state, done, n);
    }
    if (has_values && chain.chunks() > 0) keep(none, done, chain.chunks(), false);
    if (chain.segment == p.segments.count - 1) this->rows().store_last(state, p);
    this->await_stores();
  }
};
