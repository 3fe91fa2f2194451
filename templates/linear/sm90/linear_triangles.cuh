// linear/sm90/linear_triangles.cuh: pairs of a wide chunk (LinearTiles), by mma of the rows of q and k that lie in shared
// memory as they came, with decays that differ between channels between them:
//
//     s_ij = sum over d of q_id k_jd e^(G_id - G_jd)     for j <= i
//
// A warp has 16 rows. Blocks of 16 columns to the left have the beginning of its rows as the reference: no exponent is above
// 0. In the block on the diagonal, the largest triangles that decay by less than the limit are one product, whose reference is
// their first token; what lies between two of them has the first one's end as the reference, for all of a size at once.
#pragma once
#include "linear/sm90/linear_tiles.cuh"
#include "score/fragment.cuh"

// RowBytes: of a row of sums of decays. Box: bytes from 64 channels of rows and keys to the next ones.
template <class Config, int RowBytes, int Box = LINEAR_BOX>
struct LinearTriangles {
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int block = 16, k_dim = ceil_div(Config::k_dim, 64) * 64, row_bytes = RowBytes,
                       block_bytes = block * row_bytes;

  const u32 rows, keys, gates;
  const int warp, lane;

  // ---- operands ----

  // The lane's place for 16 rows and channels 16 step .. 16 step + 15, of rows (A), and of keys, which B has turned.
  __device__ __forceinline__ static u32 place(int row, int channel) {
    return channel / 64 * Box + box_place(row, channel % 64);
  }
  __device__ __forceinline__ void load_rows(u32 (&a)[4], int step) const {
    ldmatrix_x4(a, rows + place(warp * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  // In the order of A: rows g and g + 8 of channels 2 t, then both of 2 t + 8.
  __device__ __forceinline__ void load_keys(u32 (&b)[4], int which, int step) const {
    ldmatrix_x4(b, keys + place(which * block + lane % 16, step * 16 + lane / 16 * 8));
  }
  // Sums of decays of the elements of an operand: of element i at channels + (i / 2 * 8) of row g + (i % 2 * 8).
  __device__ __forceinline__ u32 channels(int which, int step) const {
    return gates + which * block_bytes + (step * 16 + Fragment::column(lane)) * 4;
  }
  __device__ __forceinline__ static u32 scaled(u32 two, float low, float high) {
    return pack<Elem>(to_real(Elem{u16(two)}) * low, to_real(Elem{u16(two >> 16)}) * high);
  }
  __device__ __forceinline__ static void multiply(float *s, const u32 (&a)[4], const u32 (&b)[4]) {
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[0]), a, b[0], b[2]);
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(s[4]), a, b[1], b[3]);
  }

  // ---- to the left of the diagonal ----

  __device__ __forceinline__ void add_left(float (&s)[32]) const {
    const u32 row = Fragment::row(lane) * row_bytes;
#pragma unroll 1
    for (int step = 0; step < k_dim / 16; ++step) {
      u32 a[4], b[4];
      load_rows(a, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 sum = load_pair(channels(warp, step) + row + i % 2 * (8 * row_bytes) + i / 2 * 32);
        a[i] = scaled(a[i], fast_exp2(sum.x), fast_exp2(sum.y));
      }
      float2 until[2] = {{0, 0}, {0, 0}};  // from a block's beginning to the rows
#pragma unroll
      for (int which = 2; which >= 0; --which)
        if (which < warp) {
          load_keys(b, which, step);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float2 all = load_pair(channels(which, step) + 15 * row_bytes + i * 32);
            until[i].x += all.x, until[i].y += all.y;
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 sum = load_pair(channels(which, step) + row + i % 2 * (8 * row_bytes) + i / 2 * 32);
            b[i] = scaled(b[i], fast_exp2(until[i / 2].x - sum.x), fast_exp2(until[i / 2].y - sum.y));
          }
          multiply(s + 8 * which, a, b);
        }
    }
  }

  // ---- on the diagonal ----

  // The size of the largest triangles of which all decay by less than the limit; 1: a token.
  __device__ __forceinline__ int narrow_size() const {
    return narrow_size(gates + warp * block_bytes + lane % (k_dim / 4) * 16);
  }
  // from: a lane's sums of 4 channels of the block's first token.
  __device__ __forceinline__ static int narrow_size(u32 from) {
#pragma unroll 1
    for (int size = block; size > 1; size /= 2) {
      float most = 0;
#pragma unroll 1
      for (int first = 0; first < block; first += size) {
        float begin[4], end[4];
        load_four(begin, from + first * row_bytes), load_four(end, from + (first + size - 1) * row_bytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) most = max_of(most, begin[i] - end[i]);
      }
      if (__all_sync(0xffffffffu, most < tile_limit<Elem>)) return size;
    }
    return 1;
  }
  // Pairs of triangles of a size, or between them: rows of the second of two, keys of the first.
  template <bool Between>
  __device__ __forceinline__ void add_diagonal(float (&s)[8], int size) const {
    float x[8] = {};
    const int token[2] = {Fragment::row(lane), Fragment::row(lane, 1)};
    bool second[2];
    u32 own[2], reference[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      second[r] = (token[r] & size) != 0;
      own[r] = token[r] * row_bytes;
      reference[r] = (Between ? (token[r] & ~(2 * size - 1)) + size - 1 : token[r] & ~(size - 1)) * row_bytes;
    }
#pragma unroll 1
    for (int step = 0; step < k_dim / 16; ++step) {
      u32 a[4], b[4];
      load_rows(a, step), load_keys(b, warp, step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 at = channels(warp, step) + i / 2 * 32;
        const float2 sum = load_pair(at + own[i % 2]), from = load_pair(at + reference[i % 2]);
        const float low = sum.x - from.x, high = sum.y - from.y;
        if constexpr (Between) {
          a[i] = second[i % 2] ? scaled(a[i], fast_exp2(low), fast_exp2(high)) : 0u;
          b[i] = second[i % 2] ? 0u : scaled(b[i], fast_exp2(-low), fast_exp2(-high));
        } else {
          a[i] = scaled(a[i], fast_exp2(low), fast_exp2(high));
          b[i] = scaled(b[i], fast_exp2(-low), fast_exp2(-high));
        }
      }
      multiply(x, a, b);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = token[r] / size, column = Fragment::column(lane, j) / size;
        const bool mine = Between ? second[r] && row == column + 1 : row == column;
        s[Fragment::element(r, j)] += mine ? x[Fragment::element(r, j)] : 0.f;
      }
  }
  // The block on the diagonal; what lies above this is not said.
  __device__ __forceinline__ void add_block(float (&own)[8]) const {
    const int size = narrow_size();
#pragma unroll 1
    for (int n = size; n < block; n *= 2) add_diagonal<true>(own, n);
    add_diagonal<false>(own, size);
  }
  // The warp's rows.
  __device__ __forceinline__ void run(float (&s)[32]) const {
    float own[8] = {};
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0;
    add_left(s);
    add_block(own);
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (b == warp)
#pragma unroll
        for (int i = 0; i < 8; ++i) s[8 * b + i] = own[i];
  }
};
