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
