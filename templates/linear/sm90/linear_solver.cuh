// linear/sm90/linear_solver.cuh: T = (I + A)^-1 of two chunks by a warpgroup. A is strictly below the diagonal.
//
// Blocks of 16 x 16 on the diagonal by forward substitution in float, a lane for each column of each chunk. Then blocks of 32
// and of 64 of two halves each:
//
//     T_10 = -T_11 A_10 T_00
//
// in tf32 (arch/mma_tf32.cuh) where r' k of all tokens lies in [0, 1], but for roundings: then no sum on the way is larger than
// its terms, and T loses less than by its own rounding, at the end. Else an update may turn a key around, T's rows are long
// and alternate, and products are those of numbers in two halves (linear_inverse.cuh).
#pragma once
#include "arch/mma_tf32.cuh"
#include "arch/stmatrix.cuh"
#include "linear/sm90/linear_inverse.cuh"
#include "linear/sm90/linear_pipeline.cuh"
#include "score/fragment.cuh"

// Places of what T of a chunk is made of: LINEAR_SOLVER_CHUNK bytes, so many that the same of two chunks lies in other banks.
enum {
  SOLVER_ROW = 96,                 // bytes of 16 numbers, with which 8 rows lie in other banks
  SOLVER_BLOCK = 16 * SOLVER_ROW,  // 16 x 16 numbers by row or column
  SOLVER_SQUARE = 1024,            // 16 x 16 numbers as a warp has them
  AT_COLUMNS = 0,                  // blocks on the diagonal of A, columns; then of T
  AT_ROWS = 4 * SOLVER_BLOCK,      // the same of T, rows
  AT_BELOW = 8 * SOLVER_BLOCK,     // blocks of A below the diagonal, transposed
  // Where what was there has been read:
  AT_LOW = AT_COLUMNS + 3 * SOLVER_BLOCK,  // T_10, columns
  AT_HIGH = AT_BELOW + 5 * SOLVER_SQUARE   // T_32 as a warp has it, of A_32
};
static_assert(AT_BELOW + 6 * SOLVER_SQUARE + 64 == LINEAR_SOLVER_CHUNK);

// Of two chunks at once: what follows from each other of one takes so long that as much fits between.
template <class Elem>
struct ChunkSolver {
  using Fragment = MmaFragment;

  const u32 places;
  const u32 to;  // two boxes for T, whose blocks above the diagonal are 0
  const int barrier, warp, lane;

  // ---- squares ----

  __device__ __forceinline__ u32 of(int chunk) const { return places + chunk * LINEAR_SOLVER_CHUNK; }
  __device__ __forceinline__ u32 square(int chunk, int at) const { return of(chunk) + at + lane * 16; }
  __device__ __forceinline__ static void store(u32 at, const Square &s) {
    store_shared_16(at, s.x[0], s.x[1], s.x[2], s.x[3]);
    store_shared_16(at + SOLVER_SQUARE / 2, s.x[4], s.x[5], s.x[6], s.x[7]);
  }
  __device__ __forceinline__ static Square load(u32 at) {
    Square s;
    load_four(reinterpret_cast<float(&)[4]>(s.x[0]), at);
    load_four(reinterpret_cast<float(&)[4]>(s.x[4]), at + SOLVER_SQUARE / 2);
    return s;
  }
  __device__ __forceinline__ static int below(int row, int column) {
    return AT_BELOW + (row * (row - 1) / 2 + column) * SOLVER_SQUARE;
  }
  __device__ __forceinline__ u32 lines(int chunk, int at) const {
    return of(chunk) + at + Fragment::row(lane) * SOLVER_ROW + Fragment::column(lane) * 4;
  }
  __device__ __forceinline__ static Square load_lines(u32 at) {
    Square s;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = load_pair(at + i % 2 * (8 * SOLVER_ROW) + i / 2 * 32);
      s.x[2 * i] = two.x, s.x[2 * i + 1] = two.y;
    }
    return s;
  }
  // An A operand, and a B operand, of block `n` on T's diagonal.
  __device__ __forceinline__ Square diagonal(int chunk, int n) const {
    return load_lines(lines(chunk, AT_ROWS + n * SOLVER_BLOCK));
  }
  __device__ __forceinline__ Square turned(int chunk, int n) const {
    return load_lines(lines(chunk, AT_COLUMNS + n * SOLVER_BLOCK));
  }
  __device__ __forceinline__ static float rounded(float x, bool exact) {
    return round_tf32(x, exact ? 0u : u32(ROUNDS_TF32));
  }
  // -(sum) as an operand.
  template <bool Exact>
  __device__ __forceinline__ static void negate(Square &s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) s.x[i] = rounded(-s.x[i], Exact);
  }
  __device__ __forceinline__ static Halves split(const Square &s) {
    Halves h;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = s.x[2 * i], high = s.x[2 * i + 1];
      h.upper[i] = pack<Elem>(low, high);
      h.lower[i] = pack<Elem>(low - half_of<Elem>(h.upper[i], 0), high - half_of<Elem>(h.upper[i], 1));
    }
    return h;
  }
  __device__ __forceinline__ static void add(Square &sum, const u32 (&a)[4], const u32 (&b)[4]) {
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(sum.x[0]), a, b[0], b[2]);
    mma_16x8x16<Elem>(reinterpret_cast<float(&)[4]>(sum.x[4]), a, b[1], b[3]);
  }
  // sum += a b'
  template <bool Exact>
  __device__ __forceinline__ static void add(Square &sum, const Square &a, const Square &b) {
    if constexpr (Exact) {
      const Halves x = split(a), y = split(b);
      add(sum, x.lower, y.upper), add(sum, x.upper, y.lower), add(sum, x.upper, y.upper);
    } else {
      mma_tf32(sum, a, b);
    }
  }
  // A block of T, rounded, to its place.
  __device__ __forceinline__ void round(int chunk, const Square &t, int row, int column) const {
    stmatrix_x4(to + chunk * LINEAR_BOX + box_place(16 * row + lane % 16, 16 * column + lane / 16 * 8),
                pack<Elem>(t.x[0], t.x[1]), pack<Elem>(t.x[2], t.x[3]), pack<Elem>(t.x[4], t.x[5]),
                pack<Elem>(t.x[6], t.x[7]));
  }

  // ---- A ----

  // Block `column` of the warp's rows of A', which is a block of A transposed.
  __device__ __forceinline__ void take(int chunk, const float (&x)[8], int column, bool exact) const {
    if (column == warp) {
      const u32 at = lines(chunk, AT_COLUMNS + warp * SOLVER_BLOCK);
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair(at + i % 2 * (8 * SOLVER_ROW) + i / 2 * 32, {x[2 * i], x[2 * i + 1]});
      return;
    }
    Square s;
#pragma unroll
    for (int i = 0; i < 8; ++i) s.x[i] = rounded(x[i], exact);
    store(square(chunk, below(column, warp)), s);
  }

  // ---- T ----

  // The warp's block on the diagonal of each chunk, of which half of the lanes have the columns. As soon as a row is known it is
  // taken from all rows below.
  __device__ __forceinline__ void invert_diagonals(bool exact) const {
    const u32 block = of(lane / 16) + warp * SOLVER_BLOCK, at = block + AT_COLUMNS;
    const int column = lane % 16;
    float t[16];
    __syncwarp();
#pragma unroll
    for (int row = 0; row < 16; ++row) t[row] = row == column ? 1.f : 0.f;
#pragma unroll
    for (int j = 0; j < 15; ++j) {
#pragma unroll
      for (int row = (j + 1) / 4 * 4; row < 16; row += 4) {
        float a[4];
        load_four(a, at + j * SOLVER_ROW + row * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (row + i > j) t[row + i] -= a[i] * t[j];
      }
    }
    __syncwarp();
    const u32 rows = block + AT_ROWS + column * 4;
#pragma unroll
    for (int row = 0; row < 16; ++row) t[row] = rounded(t[row], exact);
#pragma unroll
    for (int row = 0; row < 16; row += 4)
      store_shared_16(at + column * SOLVER_ROW + row * 4, t[row], t[row + 1], t[row + 2], t[row + 3]);
#pragma unroll
    for (int row = 0; row < 16; ++row) store_number(rows + row * SOLVER_ROW, t[row]);
    __syncwarp();
  }
  // The blocks below the diagonal of the 32 x 32: of the first chunk by warps 1 and 3, of the second one by warps 0 and 2.
  template <bool Exact>
  __device__ __forceinline__ void join_two() const {
    const int chunk = 1 - warp % 2, row = warp | 1;
    const Square own = diagonal(chunk, row);
    Square sum = {}, t = {};
    add<Exact>(sum, own, load(square(chunk, below(row, row - 1))));
    negate<Exact>(sum);
    add<Exact>(t, sum, turned(chunk, row - 1));
    round(chunk, t, row, row - 1);
#pragma unroll
    for (int i = 0; i < 8; ++i) t.x[i] = rounded(t.x[i], Exact);
    if (row == 3) {
      store(square(chunk, AT_HIGH), t);
    } else {
      const u32 at = of(chunk) + AT_LOW + Fragment::column(lane) * SOLVER_ROW + Fragment::row(lane) * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) store_number(at + (i / 4 * 8 + i % 2) * SOLVER_ROW + i % 4 / 2 * 32, t.x[i]);
    }
  }
  // One of rows 2 and 3 of blocks 0 and 1 of T.
  template <bool Exact, int Row>
  __device__ __forceinline__ void join_four(int chunk, int column) const {
    const Square own = diagonal(chunk, Row);
    Square high, sum[2] = {}, t = {};
    if constexpr (Row == 3) high = load(square(chunk, AT_HIGH));
#pragma unroll
    for (int c = 1; c >= 0; --c) {
      if (c < column) continue;
      if constexpr (Row == 3) add<Exact>(sum[c], high, load(square(chunk, below(2, c))));
      add<Exact>(sum[c], own, load(square(chunk, below(Row, c))));
      negate<Exact>(sum[c]);
    }
    if (column == 0) {
      add<Exact>(t, sum[0], turned(chunk, 0));
      add<Exact>(t, sum[1], load_lines(lines(chunk, AT_LOW)));
    } else {
      add<Exact>(t, sum[1], turned(chunk, 1));
    }
    round(chunk, t, Row, column);
  }
  __device__ __forceinline__ void sync() const { named_sync(barrier, 128); }
  // A warp has a block of row 2 of one chunk, and the other column's of row 3 of the other one: 7 or 8 products.
  template <bool Exact>
  __device__ __forceinline__ void join() const {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) round(chunk, diagonal(chunk, warp), warp, warp);
    sync();
    join_two<Exact>();
    sync();
    join_four<Exact, 2>(warp / 2, warp % 2);
    join_four<Exact, 3>(1 - warp / 2, 1 - warp % 2);
  }
  // Behind invert_diagonals().
  __device__ __forceinline__ void join(bool exact) const {
    if (exact)
      join<true>();
    else
      join<false>();
  }
};
