// linear/sm90/linear_ways.cuh: the gradient of a chunk's decays. A decay g_t lies on every way that crosses t: from the state
// before the chunk to a row i >= t, from a column j < t to the state behind it, from one state to the other, and from j < t
// to i >= t:
//
//     dg_t = across + sum over i >= t of to_i + sum over j < t of from_j + sum over i >= t > j of c_ij
//
// All are sums and none a difference: where decays are strong, what crosses t is far less than what does not.
#pragma once
#include "arch/mma.cuh"
#include "linear/sm90/linear_token_sums.cuh"
#include "linear/sm90/rows_pipeline.cuh"
#include "score/fragment.cuh"

// The sum of what lanes have that share a row.
LUATTN_FN float row_total(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Sums over pairs of a warp's 16 rows. Sums over j < t are products with ones, of numbers in two halves of bf16.
struct PairWays {
  const int warp, lane;  // warp: of the chunk's rows

  // 1 where column j < t, for rows j and j + 1 of a B operand.
  __device__ __forceinline__ static u32 ones(int j, int t) {
    return (j < t ? 0x3f80u : 0u) | (j + 1 < t ? 0x3f800000u : 0u);
  }
  // x_it = sum over j < t of c_ij.
  __device__ __forceinline__ void sum_columns(float (&x)[8][4], const float (&c)[32]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = 0;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      u32 upper[4], lower[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = c[8 * s + 2 * i], b = c[8 * s + 2 * i + 1];
        upper[i] = pack<bf16_t>(a, b);
        lower[i] = pack<bf16_t>(a - __uint_as_float(upper[i] << 16), b - __uint_as_float(upper[i] & 0xffff0000u));
      }
#pragma unroll
      for (int n = 2 * s; n < 8; ++n) {
        const int j = 16 * s + MmaFragment::column(lane), t = 8 * n + MmaFragment::row(lane);
        mma_16x8x16<bf16_t>(x[n], upper, ones(j, t), ones(j + 8, t));
        mma_16x8x16<bf16_t>(x[n], lower, ones(j, t), ones(j + 8, t));
      }
    }
  }
  // Stores the sums over the warp's rows i >= t, for each t.
  __device__ __forceinline__ void store(const float (&c)[32], u32 to) const {
    float x[8][4];
    sum_columns(x, c);
    const int row = 16 * warp + MmaFragment::row(lane);
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = 8 * n + MmaFragment::column(lane) + i;
        float sum = (row >= t ? x[n][i] : 0.f) + (row + 8 >= t ? x[n][2 + i] : 0.f);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane < 4) store_number(to + t * 4, sum);
      }
  }
};

// A warp that adds up a chunk's ways, and stores dg.
template <class Spec, class Config>
struct DecayWays {
  using Shared = SharedRows<Spec, Config>;
  using Chain = LinearChain<Config>;

  const LuattnLinearParams &p;
  const Shared shared;
  const int lane;

  __device__ __forceinline__ float2 total(u32 ways) const {
    const u32 at = ways + 8 * u32(lane);
    const float2 query = load_pair(at + WAYS_TO_QUERY), read = load_pair(at + WAYS_TO_READ);
    const TokenSums tokens{lane};
    const float2 to = tokens.suffix({query.x + read.x, query.y + read.y}),
                 from = tokens.prefix(load_pair(at + WAYS_FROM_KEY));
    float2 sum = {to.x + from.x, to.y + from.y};
#pragma unroll
    for (int warp = 0; warp < 8; ++warp) {
      const float2 pairs = load_pair(at + WAYS_OF_PAIRS + warp * 256);
      sum.x += pairs.x, sum.y += pairs.y;
    }
    float across = 0;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) across += load_number(ways + WAYS_ACROSS + 4 * warp);
    return {sum.x + across, sum.y + across};
  }
  __device__ __forceinline__ void run() const {
    for_each_chunk<Config>(p, [&](const Chain &chain, int chunk, int done) {
      barrier_wait(shared.ways_full(), u32(done) & 1);
      const float2 dg = total(shared.ways());
      __syncwarp();
      if (elected()) barrier_arrive(shared.ways_empty());
      const int t = chunk * LUATTN_CHUNK + 2 * lane;
      float *const to = p.sums.decay;
      if (to != nullptr && chain.has(t)) to[chain.token(p, t)] = dg.x;
      if (to != nullptr && chain.has(t + 1)) to[chain.token(p, t + 1)] = dg.y;
    });
  }
};
