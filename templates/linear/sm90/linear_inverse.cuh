// linear/sm90/linear_inverse.cuh: T = (I + A)^-1 of a chunk, A strictly below the diagonal, in blocks of 16 x 16.
//
// Blocks on the diagonal by forward substitution in float, a lane for each column. Then a warp makes its 16 rows, from the
// diagonal leftwards:
//
//     T_ij = -(sum over j < k <= i of T_ik A_kj) T_jj
//
// by products of numbers in two halves, upper and lower, of which the product of the lower ones is left out: 16 bits, where
// a Neumann series, or products of rounded numbers, lose all digits if keys are alike. T is rounded once, at the end.
#pragma once
#include "arch/mma.cuh"
#include "arch/stmatrix.cuh"
#include "linear/sm90/linear_pipeline.cuh"
#include "score/fragment.cuh"

// 16 x 16 numbers, or so many of an operand, in halves.
struct Halves {
  u32 upper[4], lower[4];
};

// Of: has places for halves (`parts`) and the blocks on the diagonal.
template <class Spec, class Config, class Of = SharedLinear<Spec, Config>>
struct ChunkInverse {
  using Shared = Of;
  using Elem = typename Config::Elem;
  using Fragment = MmaFragment;
  static constexpr int rows_barrier = 1 + Shared::groups;  // behind those of o's stores

  const Shared shared;
  const int warp, lane;  // warp: which 16 rows

  // Accumulators of 16 columns, as an A operand.
  __device__ __forceinline__ static Halves split(const float *x) {
    Halves h;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      h.upper[i] = pack<Elem>(x[2 * i], x[2 * i + 1]);
      h.lower[i] = pack<Elem>(x[2 * i] - half_of<Elem>(h.upper[i], 0), x[2 * i + 1] - half_of<Elem>(h.upper[i], 1));
    }
    return h;
  }
  // A lane's place for a matrix of 16 x 16: that of ldmatrix and stmatrix of A operands, and of B operands turned.
  __device__ __forceinline__ u32 place(int row_block, int column_block) const {
    return box_place(16 * row_block + lane % 16, 16 * column_block + lane / 16 * 8);
  }
  // The same of a block on the diagonal, which lies there turned.
  __device__ __forceinline__ u32 turned_place(int block) const {
    return box_place(16 * block + lane % 8 + lane / 16 * 8, 16 * block + lane / 8 % 2 * 8);
  }
  __device__ __forceinline__ void store(u32 to, const u32 (&x)[4]) const { stmatrix_x4(to, x[0], x[1], x[2], x[3]); }
  // B operands.
  __device__ __forceinline__ Halves load_turned(int row_block, int column_block) const {
    Halves h;
    const u32 at = place(row_block, column_block);
    ldmatrix_x4_turned(h.upper, shared.parts(0) + at);
    ldmatrix_x4_turned(h.lower, shared.parts(1) + at);
    return h;
  }
  __device__ __forceinline__ Halves load_diagonal(int block) const {
    Halves h;
    const u32 at = turned_place(block);
    ldmatrix_x4(h.upper, shared.parts(0) + at);
    ldmatrix_x4(h.lower, shared.parts(1) + at);
    return h;
  }
  __device__ __forceinline__ static void add(float (&x)[8], const u32 (&a)[4], const u32 (&b)[4]) {
    float(&left)[4] = reinterpret_cast<float(&)[4]>(x[0]), (&right)[4] = reinterpret_cast<float(&)[4]>(x[4]);
    mma_16x8x16<Elem>(left, a, b[0], b[1]);
    mma_16x8x16<Elem>(right, a, b[2], b[3]);
  }
  // Upper halves, and the rest, by themselves: a product takes longer than it takes to begin the next one.
  __device__ __forceinline__ static void add(float (&x)[8], const Halves &a, const Halves &b) {
    float rest[8] = {};
    add(rest, a.lower, b.upper);
    add(x, a.upper, b.upper);
    add(rest, a.upper, b.lower);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += rest[i];
  }

  // ---- the diagonal ----

  // The warp's own block, a row of shared memory for each of its columns.
  __device__ __forceinline__ void store_diagonal(const float *x) const {
    const u32 at = shared.diagonal(warp) + Fragment::column(lane) * 80 + Fragment::row(lane) * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) store_number(at + Fragment::column_of(j) * 80 + r * 32, x[Fragment::element(r, j)]);
  }
  // The column of a lane of a block's inverse. As soon as a row is known it is taken from all rows below.
  __device__ __forceinline__ void substitute(float (&t)[16], int block) const {
    const u32 at = shared.diagonal(block);
    __syncwarp();
    const int column = lane % 16;
#pragma unroll
    for (int row = 0; row < 16; ++row) t[row] = row == column ? 1.f : 0.f;
#pragma unroll
    for (int j = 0; j < 15; ++j)
#pragma unroll
      for (int row = (j + 1) / 4 * 4; row < 16; row += 4) {
        float a[4];
        load_four(a, at + j * 80 + row * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (row + i > j) t[row + i] -= a[i] * t[j];
      }
  }
  // A column is a row of what is stored.
  __device__ __forceinline__ void store_column(const u32 (&bits)[8], int which, int block) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_shared_16(shared.parts(which) + box_place(16 * block + lane % 16, 16 * block + 8 * i),
                      __uint_as_float(bits[4 * i]), __uint_as_float(bits[4 * i + 1]), __uint_as_float(bits[4 * i + 2]),
                      __uint_as_float(bits[4 * i + 3]));
  }
  // The inverse of the warp's own block, to shared memory in halves. Lanes from 16 on have the same numbers, and store the lower
  // halves.
  __device__ __forceinline__ void invert_diagonal() const {
    float t[16];
    substitute(t, warp);
    u32 bits[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const u32 upper = pack<Elem>(t[2 * i], t[2 * i + 1]),
                lower = pack<Elem>(t[2 * i] - half_of<Elem>(upper, 0), t[2 * i + 1] - half_of<Elem>(upper, 1));
      bits[i] = lane < 16 ? upper : lower;
    }
    store_column(bits, lane / 16, warp);
    __syncwarp();
  }
  // Those of two blocks, of which half of the lanes have one each.
  __device__ __forceinline__ void invert_diagonals(int first, int second) const {
    const int block = lane < 16 ? first : second;
    float t[16];
    substitute(t, block);
    u32 upper[8], lower[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      upper[i] = pack<Elem>(t[2 * i], t[2 * i + 1]);
      lower[i] = pack<Elem>(t[2 * i] - half_of<Elem>(upper[i], 0), t[2 * i + 1] - half_of<Elem>(upper[i], 1));
    }
    store_column(upper, 0, block), store_column(lower, 1, block);
    __syncwarp();
  }

  // ---- rows ----

  // Blocks of the warp's rows of A, in halves.
  __device__ __forceinline__ void store_rows(const float (&a)[32]) const {
#pragma unroll
    for (int j = 0; j < 3; ++j)
      if (j < warp) {
        const Halves h = split(a + 8 * j);
        store(shared.parts(0) + place(warp, j), h.upper);
        store(shared.parts(1) + place(warp, j), h.lower);
      }
  }
  // T of the warp's rows, `left` blocks to the left of the diagonal.
  template <int Left>
  __device__ __forceinline__ void make(Halves (&t)[4]) const {
    float sum[8] = {}, product[8] = {};
#pragma unroll
    for (int k = 0; k < Left; ++k) add(sum, t[k], load_turned(warp - k, warp - Left));
    add(product, split(sum), load_diagonal(warp - Left));
#pragma unroll
    for (int i = 0; i < 8; ++i) product[i] = -product[i];
    t[Left] = split(product);
  }
  __device__ __forceinline__ void make_rows(u32 to) const {
    Halves t[4];
    ldmatrix_x4_turned(t[0].upper, shared.parts(0) + turned_place(warp));
    ldmatrix_x4_turned(t[0].lower, shared.parts(1) + turned_place(warp));
    if (warp >= 1) make<1>(t);
    if (warp >= 2) make<2>(t);
    if (warp >= 3) make<3>(t);
    const u32 none[4] = {};
#pragma unroll
    for (int left = 0; left < 4; ++left)
      if (left <= warp) store(to + place(warp, warp - left), t[left].upper);
#pragma unroll
    for (int j = 1; j < 4; ++j)
      if (j > warp) store(to + place(warp, j), none);
  }
  __device__ __forceinline__ void run(const float (&a)[32], u32 to) const {
    store_rows(a);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j == warp) store_diagonal(a + 8 * j);
    invert_diagonal();
    named_sync(rows_barrier, 128);
    make_rows(to);
    named_sync(rows_barrier, 128);  // all have read what the next chunk writes
  }
};
