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

// The same with fewer instructions, in two parts, of which a warp that has more time makes the sums (`total`): of blocks of 16
// columns left of the diagonal one sums over the rows of each column; and for each t of the warp's rows the sum over its rows
// i >= t of all columns j < t.
struct PairWayParts {
  const int warp, lane;

  // Sums over lanes that share columns: of 2 N numbers, of which a lane keeps N; `Bit` of its number says which.
  template <int N, int Bit>
  __device__ __forceinline__ void halve(float *x) const {
    const bool upper = lane & Bit;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float sent = upper ? x[i] : x[i + N], kept = upper ? x[i + N] : x[i];
      x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, Bit);
    }
  }
  // Then a lane has columns 2 lane and 2 lane + 1; from the diagonal block on these are 0.
  __device__ __forceinline__ void store_columns(const float (&c)[32], u32 to) const {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int e = i / 2 * 4 + i % 2;
      x[i] = i / 4 < warp ? c[e] + c[e + 2] : 0.f;
    }
    halve<8, 16>(x), halve<4, 8>(x), halve<2, 4>(x);
    const float two[2] = {x[0], x[1]};
    store_pair(to + 8 * u32(lane), two);
  }
  // The diagonal block, and of both rows what is left of it.
  __device__ __forceinline__ void split(float (&own)[8], float (&left)[2], const float (&c)[32]) const {
    left[0] = left[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i] = c[i];
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      const float *const x = c + 8 * n;
      const float a = x[0] + x[1] + (x[4] + x[5]), b = x[2] + x[3] + (x[6] + x[7]);
      left[0] += n < warp ? a : 0.f, left[1] += n < warp ? b : 0.f;
#pragma unroll
      for (int i = 0; i < 8; ++i) own[i] = n < warp ? x[8 + i] : own[i];
    }
    left[0] = row_total(left[0]), left[1] = row_total(left[1]);
  }
  __device__ __forceinline__ void store_diagonal(const float (&c)[32], u32 to) const {
    float own[8], left[2], x[2][4], sums[4];
    u32 upper[4], lower[4];
    split(own, left, c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = own[2 * i], b = own[2 * i + 1];
      upper[i] = pack<bf16_t>(a, b);
      lower[i] = pack<bf16_t>(a - __uint_as_float(upper[i] << 16), b - __uint_as_float(upper[i] & 0xffff0000u));
    }
    const int j = MmaFragment::column(lane), row = MmaFragment::row(lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const u32 first = PairWays::ones(j, 8 * n + row), second = PairWays::ones(j + 8, 8 * n + row);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[n][i] = left[i / 2];
      mma_16x8x16<bf16_t>(x[n], upper, first, second);
      mma_16x8x16<bf16_t>(x[n], lower, first, second);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = 8 * n + j + i;
        sums[2 * n + i] = (row >= t ? x[n][i] : 0.f) + (row + 8 >= t ? x[n][2 + i] : 0.f);
      }
    }
    halve<2, 16>(sums), halve<1, 8>(sums);
    const float sum = sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 4);
    if (!(lane & 4)) store_number(to + (16 * warp + lane / 16 * 8 + j + lane / 8 % 2) * 4, sum);
  }
  // columns: of all warps, arrays of LUATTN_CHUNK floats; diagonal: one.
  __device__ __forceinline__ void store(const float (&c)[32], u32 columns, u32 diagonal) const {
    store_columns(c, columns + warp * 256);
    store_diagonal(c, diagonal);
  }
  // Of tokens 2 lane and 2 lane + 1.
  __device__ __forceinline__ static float2 total(int lane, u32 columns, u32 diagonal) {
    float2 sum = load_pair(diagonal + 8 * u32(lane));
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) {
      const float2 before = TokenSums{lane}.prefix(load_pair(columns + warp * 256 + 8 * u32(lane)));
      sum.x += warp > lane / 8 ? before.x : 0.f, sum.y += warp > lane / 8 ? before.y : 0.f;
    }
    return sum;
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
