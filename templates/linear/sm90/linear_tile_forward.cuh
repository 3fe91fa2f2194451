// linear/sm90/linear_tile_forward.cuh: the chain forwards that makes o, where decays differ between channels, of tiles that
// luattn_linear_tiles has made:
//
//     U = (w V - S' (r e^G)') T'     O' = S' (scale q e^G)' + U P'     S' = S' e^GC + U (k e^(GC - G))     additive: U is V
//
// A warpgroup owns 64 value channels of the state, as in linear_tile_chain.cuh.
#pragma once
#include "linear/sm90/linear_tile_chain.cuh"

template <class Spec, class Config>
struct TileForward : TileChain<Spec, Config, false> {
  using Chain = TileChain<Spec, Config, false>;
  using Elem = typename Chain::Elem;
  using Shared = typename Chain::Shared;
  using Chain::chain, Chain::group, Chain::in, Chain::k_dim, Chain::lane, Chain::p, Chain::shared, Chain::warp;

  // ---- o ----

  // A box is free once the store before the last one has read it.
  __device__ __forceinline__ void store_rows(const u32 (&o)[16], int n) const {
    const u32 box = shared.kept(group, n % 2),
              to = box + box_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
#pragma unroll
    for (int s = 0; s < 4; ++s)
      stmatrix_x4_turned(to + s * 16 * 128, o[4 * s], o[4 * s + 1], o[4 * s + 2], o[4 * s + 3]);
    fence_async();
    const bool first = warp == 0 && elected();
    if (first) bulk_wait_read();
    named_sync(Chain::barrier + group, 128);
    if (first) {
      tensor_store(box, this->maps.o, this->first_value(), chain.box(chain.at(n)), chain.site.hv);
      bulk_commit();
    }
  }
  __device__ __forceinline__ void store_nothing() const {
    const u32 none[16] = {};
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) store_rows(none, n);
    if (warp == 0 && elected()) bulk_wait_read();
  }

  // ---- chunks ----

  __device__ __forceinline__ void step(float (&state)[k_dim / 2], u32 (&done)[16], int n) {
    u32 rounded[k_dim / 16][4], v[4][4];
    float o[32], u[32];
    lane = lane_anew();
    Chain::round(rounded, state);
    barrier_wait(shared.full(in.stage), in.parity);
    wgmma_fence();
    if constexpr (Spec::erases) Chain::meet(u, rounded, shared.reads(in.stage));
    Chain::meet(o, rounded, shared.queries(in.stage));
    if (n > 0) store_rows(done, n - 1);
    this->load_values(v);
    this->hooks().modify(v, chain.at(n));
    this->decay(state);
    if constexpr (Spec::erases) {
      wgmma_wait<0>();  // for o, too, whose operand would have no registers beside what comes
      wgmma_arrived(u), wgmma_arrived(o);
      this->subtract(v, u);
      wgmma_fence();
      WgmmaKept<Elem>::template dots64<true>(u, v, wgmma_operand(shared.inverse(in.stage), 0));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_arrived(u);
      Chain::round(v, u);
    }
    wgmma_fence();
    Chain::join(state, v, shared.keys(in.stage));
    WgmmaKept<Elem>::template dots64<false>(o, v, wgmma_operand(shared.pairs(in.stage), 0));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(state), wgmma_arrived(o);
    if constexpr (Spec::has_skip) {
      this->load_values(v);
      this->hooks().skip(o, v, chain.at(n));
    }
    this->release();
#pragma unroll
    for (int i = 0; i < 16; ++i) done[i] = pack<Elem>(o[2 * i], o[2 * i + 1]);
  }
  __device__ __forceinline__ void run() {
    float state[k_dim / 2];
    u32 done[16];
    this->load_begin(state);
#pragma unroll 1
    for (int n = 0; n < chain.chunks(); ++n) {
      this->rows().store_between(state, p, chain.at(n));
      step(state, done, n);
    }
    if (chain.chunks() > 0) store_rows(done, chain.chunks() - 1);
    this->store_end(state);
  }
};
