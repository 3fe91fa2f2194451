// linear/sm90/linear_scores.cuh: the warpgroup that is up to two chunks ahead of the values':
//
//     P_ij = scale q_i k_j' w_j e^(G_i - G_j)     for j <= i, rounded; mirrored for j >= i, with e^(G_j - G_i)
//
// of erasing updates without w; luattn_linear_inverses has made what else these need. Where decays differ between channels it also
// makes tiles of q and k (LinearTiles), in which they are.
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "arch/wgmma.cuh"
#include "linear/sm90/linear_pair_weights.cuh"
#include "linear/sm90/linear_triangles.cuh"
#include "score/fragment.cuh"
#include "source/cp_async_tile.cuh"

template <class Spec, class Config>
struct LinearScores {
  using Shared = SharedLinear<Spec, Config>;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;

  const Shared shared;
  const int chunks, warp;
  int lane;
  PipelineState<Config::stages> in{0};
  PipelineState<Shared::number_stages> of_tokens{0};
  PipelineState<Shared::pair_stages> out{1};
  PipelineState<Shared::by_channel ? Shared::gate_stages : 1> of_channels{0};

  // s = rows k'
  __device__ __forceinline__ void multiply(float (&s)[32], u32 rows, int stage) const {
    const u64 a = wgmma_operand(rows, 0), b = wgmma_operand(shared.k(stage), 0);
    wgmma_fence();
    if constexpr (Shared::k_dim == 128)
      Wgmma<Elem, 64>::first128(s, a, b);
    else
      Wgmma<Elem, 64>::first64(s, a, b);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
  }
  __device__ __forceinline__ void weigh(float (&s)[32]) const {
    PairWeights<Spec, Config>{shared.numbers(of_tokens.stage), warp, lane}.template apply<false>(s);
  }
  __device__ __forceinline__ void store(const float (&s)[32], u32 to) const {
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      stmatrix_x4(to + box_place(row, 16 * n + lane / 16 * 8), pack<Elem>(s[8 * n], s[8 * n + 1]),
                  pack<Elem>(s[8 * n + 2], s[8 * n + 3]), pack<Elem>(s[8 * n + 4], s[8 * n + 5]),
                  pack<Elem>(s[8 * n + 6], s[8 * n + 7]));
  }

  __device__ __forceinline__ void release_rows() {
    __syncwarp();
    if (elected()) barrier_arrive(shared.empty(in.stage));
    in.advance();
  }
  __device__ __forceinline__ void tell_pairs() {
    __syncwarp();
    if (elected()) barrier_arrive(shared.numbers_empty(of_tokens.stage));
    fence_async();
    barrier_arrive(shared.told(out.stage));
    of_tokens.advance(), out.advance();
  }
  // What derives from the thread's number is computed anew in each chunk: the loop has no registers to keep it.
  __device__ __forceinline__ void step() {
    float s[32];
    lane = lane_anew();
    barrier_wait(shared.full(in.stage), in.parity);
    multiply(s, shared.q(in.stage), in.stage);
    release_rows();
    barrier_wait(shared.numbers_full(of_tokens.stage), of_tokens.parity);
    weigh(s);
    barrier_wait(shared.read(out.stage), out.parity);
    store(s, shared.pairs(out.stage));
    tell_pairs();
  }
  // The same of two heads, which share q k'.
  __device__ __forceinline__ void step_two() {
    float s[32];
    lane = lane_anew();
    barrier_wait(shared.full(in.stage), in.parity);
    multiply(s, shared.q(in.stage), in.stage);
    release_rows();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float of_head[32];
#pragma unroll
      for (int e = 0; e < 32; ++e) of_head[e] = s[e];
      barrier_wait(shared.numbers_full(of_tokens.stage), of_tokens.parity);
      weigh(of_head);
      barrier_wait(shared.read(out.stage), out.parity);
      store(of_head, shared.pairs(out.stage));
      tell_pairs();
    }
  }
  __device__ __forceinline__ void store_pairs(float (&s)[32]) const {
    weigh(s);
    store(s, shared.pairs(out.stage));
  }
  __device__ __forceinline__ void make_tiles(const LinearTiles<Spec, Config> &tiles, u32 gates, bool narrow) {
    tiles.make(shared.q(in.stage), shared.k(in.stage), gates, narrow);
    __syncwarp();
    if (elected()) barrier_arrive(shared.gates_empty(of_channels.stage));
    fence_async();
    barrier_arrive(shared.tiled(out.stage));
    of_channels.advance();
  }
  // Where decays differ between channels. Pairs of a wide chunk are made before q and k become tiles.
  __device__ __forceinline__ void step_by_channel() {
    float s[32];
    lane = lane_anew();
    barrier_wait(shared.read(out.stage), out.parity);
    barrier_wait(shared.gates_full(of_channels.stage), of_channels.parity);
    const LinearTiles<Spec, Config> tiles{shared, warp, lane};
    const u32 q = shared.q(in.stage), k = shared.k(in.stage), gates = shared.gates(of_channels.stage);
    const bool narrow = tiles.find_factors(gates, out.stage);
    barrier_wait(shared.full(in.stage), in.parity);
    barrier_wait(shared.numbers_full(of_tokens.stage), of_tokens.parity);
    if (narrow) {
      make_tiles(tiles, gates, true);
      tiles.sync();
      multiply(s, q, in.stage);
      store_pairs(s);
    } else {
      LinearTriangles<Config, LinearTiles<Spec, Config>::row_bytes>{q, k, gates, warp, lane}.run(s);
      store_pairs(s);
    }
    if (!narrow) {
      tiles.sync();
      make_tiles({shared, thread_anew() / 32 % 4, lane_anew()}, gates, false);
    }
    release_rows();
    tell_pairs();
  }
  __device__ __forceinline__ void run() {
    if constexpr (Shared::by_channel) LinearTiles<Spec, Config>{shared, warp, lane}.begin();
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      if constexpr (Shared::by_channel)
        step_by_channel();
      else if constexpr (Shared::two_heads)
        step_two();
      else
        step();
    }
  }
};
