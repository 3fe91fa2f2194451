// linear/sm90/linear_pair_weights.cuh: applies decays and factors of tokens to a chunk's products of rows, q k' or k k'.
#pragma once
#include "linear/sm90/linear_pipeline.cuh"
#include "ops/math.cuh"
#include "score/fragment.cuh"

// numbers: of the chunk's tokens (OF_SUM and others). A warp has 16 rows.
template <class Spec, class Config>
struct PairWeights {
  using Fragment = MmaFragment;
  static constexpr bool decays = SharedLinear<Spec, Config>::by_token,
                        by_column = SharedLinear<Spec, Config>::has_column_factor;

  const u32 numbers;
  const int warp, lane;

  // Applies decays, and factors of rows and columns, to pairs up to the diagonal, or below it; mirrored, from it on.
  // Pairs are selected, never multiplied by 0.
  template <bool Below>
  __device__ __forceinline__ void apply(float (&s)[32]) const {
    const u32 rows = numbers + (16 * warp + Fragment::row(lane)) * 4, columns = numbers + Fragment::column(lane) * 4;
    float row_sum[2], row_factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] = load_number(rows + OF_SUM + r * 32);
      row_factor[r] = load_number(rows + (Below ? OF_READ_ROW : OF_ROW) + r * 32);
    }
    const int behind = 16 * warp + Fragment::row(lane) - Fragment::column(lane);  // of the first row and column
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      float2 sum = {0, 0}, factor = {1, 1};
      if constexpr (decays) sum = load_pair(columns + OF_SUM + Fragment::column_of(j) * 4);
      if constexpr (by_column) factor = load_pair(columns + OF_COLUMN + Fragment::column_of(j) * 4);
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float &e = s[Fragment::element(r, j + n)];
          float weight = row_factor[r] * (n == 0 ? factor.x : factor.y);
          if constexpr (decays) weight *= fast_exp2(row_sum[r] - (n == 0 ? sum.x : sum.y));
          const int column = Fragment::column_of(j + n) - 8 * r;
          e = (LinearChain<Config>::mirrored ? column >= behind : column + Below <= behind) ? e * weight : 0.f;
        }
    }
  }
};

// The same of blocks of 16 x 16 by themselves. OfQueries: of P's rows; else of those of A', which are columns of A, so that pairs
// lie above the diagonal. Decays between different blocks are products of two, to a token between both: neither exponent is
// above 0.
template <class Spec, class Config, bool OfQueries>
struct BlockWeights {
  using Fragment = MmaFragment;
  static constexpr bool decays = SharedLinear<Spec, Config>::by_token,
                        by_column = SharedLinear<Spec, Config>::has_column_factor;
  static constexpr bool has_row = OfQueries || by_column, has_column = !OfQueries || by_column;

  const u32 numbers;
  const int warp, lane;
  float row[2], between;  // row: to the token between

  __device__ __forceinline__ BlockWeights(u32 numbers, int warp, int lane) : numbers(numbers), warp(warp), lane(lane) {
    const u32 from = rows();
    between = decays ? load_number(numbers + OF_SUM + (16 * warp + (OfQueries ? 0 : 15)) * 4) : 0.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = 1;
      if constexpr (has_row) row[r] = load_number(from + (OfQueries ? OF_ROW : OF_COLUMN) + r * 32);
      if constexpr (decays) row[r] *= to_between(load_number(from + OF_SUM + r * 32));
    }
  }
  __device__ __forceinline__ u32 rows() const { return numbers + (16 * warp + Fragment::row(lane)) * 4; }
  __device__ __forceinline__ u32 columns(int block) const {
    return numbers + (16 * block + Fragment::column(lane)) * 4;
  }
  __device__ __forceinline__ float to_between(float sum) const {
    return fast_exp2(OfQueries ? sum - between : between - sum);
  }
  __device__ __forceinline__ float from_between(float sum) const {
    return fast_exp2(OfQueries ? between - sum : sum - between);
  }
  __device__ __forceinline__ float2 column_factors(int block, int j) const {
    if constexpr (!has_column) return {1, 1};
    return load_pair(columns(block) + (OfQueries ? OF_COLUMN : OF_READ_ROW) + Fragment::column_of(j) * 4);
  }
  __device__ __forceinline__ float2 column_sums(int block, int j) const {
    return load_pair(columns(block) + OF_SUM + Fragment::column_of(j) * 4);
  }
  // Of a block that is not the warp's own: of two columns, times row[] what these elements are multiplied by.
  __device__ __forceinline__ float2 column_weights(int block, int j) const {
    float2 weight = column_factors(block, j);
    if constexpr (decays) {
      const float2 sum = column_sums(block, j);
      weight.x *= from_between(sum.x), weight.y *= from_between(sum.y);
    }
    return weight;
  }
  __device__ __forceinline__ void scale(float *s, int j, const float2 &weight) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s[Fragment::element(r, j)] *= row[r] * weight.x;
      s[Fragment::element(r, j + 1)] *= row[r] * weight.y;
    }
  }
  __device__ __forceinline__ void apply(float *s, int block) const {
#pragma unroll
    for (int j = 0; j < 4; j += 2) scale(s, j, column_weights(block, j));
  }
  // Of the block on the diagonal.
  __device__ __forceinline__ void own_weights(float (&weights)[8]) const {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const float2 factor = column_factors(warp, j), sum = decays ? column_sums(warp, j) : float2{0, 0};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float own = 0, row_factor = 1;
        if constexpr (has_row) row_factor = load_number(rows() + (OfQueries ? OF_ROW : OF_COLUMN) + r * 32);
        if constexpr (decays) own = load_number(rows() + OF_SUM + r * 32);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float of_column = n == 0 ? sum.x : sum.y;
          float &weight = weights[Fragment::element(r, j + n)];
          weight = row_factor * (n == 0 ? factor.x : factor.y);
          if constexpr (decays) weight *= fast_exp2(OfQueries ? own - of_column : of_column - own);
        }
      }
    }
  }
  // Pairs are selected, never multiplied by 0.
  __device__ __forceinline__ void scale_own(float *s, const float (&weights)[8]) const {
    const int behind = Fragment::row(lane) - Fragment::column(lane);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int e = Fragment::element(r, j), column = Fragment::column_of(j) - 8 * r;
        s[e] = (OfQueries ? column <= behind : column > behind) ? s[e] * weights[e] : 0.f;
      }
  }
  __device__ __forceinline__ void apply_own(float *s) const {
    float weights[8];
    own_weights(weights);
    scale_own(s, weights);
  }
};
