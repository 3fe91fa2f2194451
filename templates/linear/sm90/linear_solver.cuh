// linear/sm90/linear_solver.cuh: T = (I + A)^-1 of two chunks by a warpgroup. A is strictly below the diagonal.
//
// Blocks of 8 x 8 on the diagonal by forward substitution in float, a lane for each column of each chunk. Then blocks of 16, 32
// and 64 of two halves each:
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
  SOLVER_TWO_ROWS = 192,           // bytes of rows r and r + 8 of a block, in turns: an A operand is two loads
  AT_COLUMNS = 0,                  // blocks on the diagonal of A, columns; then of T
  AT_ROWS = 4 * SOLVER_BLOCK,      // the same of T, two rows at once
  AT_BELOW = 8 * SOLVER_BLOCK,     // blocks of A below the diagonal, transposed
  // Where what was there has been read:
  AT_LOW = AT_COLUMNS + 3 * SOLVER_BLOCK,  // T_10, columns
  AT_HIGH = AT_BELOW + 5 * SOLVER_SQUARE   // T_32 as an A operand, of A_32
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
  __device__ __forceinline__ static void store(u32 at, const float (&x)[8]) {
    store_shared_16(at, x[0], x[1], x[2], x[3]);
    store_shared_16(at + SOLVER_SQUARE / 2, x[4], x[5], x[6], x[7]);
  }
  // x: of a square. Next: bytes to the second half.
  template <int Next = SOLVER_SQUARE / 2>
  __device__ __forceinline__ static void load(float (&x)[8], u32 at) {
    load_four(reinterpret_cast<float(&)[4]>(x[0]), at);
    load_four(reinterpret_cast<float(&)[4]>(x[4]), at + Next);
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
  // A block of A below the diagonal as a B operand.
  template <bool Exact>
  __device__ __forceinline__ Square load_below(int chunk, int row, int column) const {
    Square s;
    load(s.x, square(chunk, below(row, column)));
#pragma unroll
    for (int i = 0; i < 8; ++i) s.x[i] = rounded(s.x[i], Exact);
    return s;
  }
  // An A operand, and a B operand, of block `n` on T's diagonal.
  __device__ __forceinline__ u32 two_rows(int chunk, int n) const {
    return of(chunk) + AT_ROWS + n * SOLVER_BLOCK + Fragment::row(lane) * SOLVER_TWO_ROWS + Fragment::column(lane) * 8;
  }
  __device__ __forceinline__ SquareRows diagonal(int chunk, int n) const {
    SquareRows s;
    load<64>(s.x, two_rows(chunk, n));
    return s;
  }
  __device__ __forceinline__ Square turned(int chunk, int n) const {
    return load_lines(lines(chunk, AT_COLUMNS + n * SOLVER_BLOCK));
  }
  __device__ __forceinline__ static float rounded(float x, bool exact) {
    return round_tf32(x, exact ? 0u : u32(ROUNDS_TF32));
  }
  // A sum as an A operand, and what there is less of it.
  template <bool Exact>
  __device__ __forceinline__ static SquareRows operand(const Square &s) {
    SquareRows rows;
#pragma unroll
    for (int i = 0; i < 8; ++i) rows.x[square_row(i)] = rounded(s.x[i], Exact);
    return rows;
  }
  template <bool Exact>
  __device__ __forceinline__ static SquareRows negated(const Square &s) {
    SquareRows rows;
#pragma unroll
    for (int i = 0; i < 8; ++i) rows.x[square_row(i)] = Exact ? -s.x[i] : round_tf32(s.x[i], NEGATES_TF32);
    return rows;
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
  // sum = a b' + (First ? 0 : sum)
  template <bool Exact, bool First = false>
  __device__ __forceinline__ static void add(Square &sum, const SquareRows &a, const Square &b) {
    if constexpr (Exact) {
      const Halves x = split(square_of(a)), y = split(b);
      if constexpr (First) sum = {};
      add(sum, x.lower, y.upper), add(sum, x.upper, y.lower), add(sum, x.upper, y.upper);
    } else {
      mma_tf32<First>(sum, a, b);
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
  __device__ __forceinline__ void take(int chunk, const float (&x)[8], int column) const {
    if (column == warp) {
      const u32 at = lines(chunk, AT_COLUMNS + warp * SOLVER_BLOCK);
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair(at + i % 2 * (8 * SOLVER_ROW) + i / 2 * 32, {x[2 * i], x[2 * i + 1]});
      return;
    }
    Square s;
#pragma unroll
    for (int i = 0; i < 8; ++i) s.x[i] = x[i];
    store(square(chunk, below(column, warp)), s.x);
  }

  // ---- T ----

  // The column of a lane of a block of so many rows, whose columns begin at `at`. As soon as a row is known it is taken from all rows
  // below; above the diagonal nothing is, whatever A has there: 16 rows are those of an A that may have no numbers.
  template <int Rows>
  __device__ __forceinline__ static void substitute(float (&t)[Rows], u32 at, int column) {
#pragma unroll
    for (int row = 0; row < Rows; ++row) t[row] = row == column ? 1.f : 0.f;
#pragma unroll
    for (int j = 0; j < Rows - 1; ++j) {
#pragma unroll
      for (int row = (j + 1) / 4 * 4; row < Rows; row += 4) {
        float a[4];
        load_four(a, at + j * SOLVER_ROW + row * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (row + i > j && (Rows == 8 || column <= j)) t[row + i] -= a[i] * t[j];
      }
    }
  }
  // Rounds and stores the lane's column to `columns`, and to rows.
  template <int Rows>
  __device__ __forceinline__ static void store_column(float (&t)[Rows], u32 columns, u32 rows, bool exact) {
#pragma unroll
    for (int row = 0; row < Rows; ++row) t[row] = rounded(t[row], exact);
#pragma unroll
    for (int row = 0; row < Rows; row += 4)
      store_shared_16(columns + row * 4, t[row], t[row + 1], t[row + 2], t[row + 3]);
#pragma unroll
    for (int row = 0; row < Rows; ++row) store_number(rows + row % 8 * SOLVER_TWO_ROWS + row / 8 * 4, t[row]);
  }
  // The warp's block on the diagonal of each chunk: half of the lanes have the columns of one.
  __device__ __forceinline__ void invert_exactly() const {
    const u32 block = of(lane / 16) + warp * SOLVER_BLOCK;
    const int column = lane % 16;
    float t[16];
    substitute(t, block + AT_COLUMNS, column);
    __syncwarp();
    store_column(t, block + AT_COLUMNS + column * SOLVER_ROW, block + AT_ROWS + column * 8, true);
  }
  // The same by blocks of 8 x 8 and products of these: of 16 rows of an operand 8 are of the first chunk, and 8 of the second one.
  __device__ __forceinline__ void invert_by_products() const {
    const int column = lane % 16, first = column & 8;
    const u32 block = of(lane / 16) + warp * SOLVER_BLOCK,
              columns = block + AT_COLUMNS + column * SOLVER_ROW + first * 4;
    float t[8];
    substitute(t, block + AT_COLUMNS + first * (SOLVER_ROW + 4), column % 8);
    __syncwarp();
    store_column(t, columns, block + AT_ROWS + column * 8 + first / 2, false);
    __syncwarp();
    float2 low[2], a[2];
    float high[2][4];  // of which elements 1 and 3 are of the second 8 rows
    u32 at[2];
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      at[chunk] = lines(chunk, AT_COLUMNS + warp * SOLVER_BLOCK);
      a[chunk] = load_pair(at[chunk] + 32), low[chunk] = load_pair(at[chunk]);
      load_four(high[chunk], two_rows(chunk, warp) + 64);
      a[chunk].x = rounded(a[chunk].x, false), a[chunk].y = rounded(a[chunk].y, false);
    }
    const float rows[4] = {high[0][1], high[1][1], high[0][3], high[1][3]};
    float sum[2][4], x[2][4];
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) mma_tf32<true>(sum[chunk], rows, a[chunk]);
    const float left[4] = {round_tf32(sum[0][0], NEGATES_TF32), round_tf32(sum[1][2], NEGATES_TF32),
                           round_tf32(sum[0][1], NEGATES_TF32), round_tf32(sum[1][3], NEGATES_TF32)};
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) mma_tf32<true>(x[chunk], left, low[chunk]);
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const u32 to = of(chunk) + warp * SOLVER_BLOCK + AT_COLUMNS + Fragment::column(lane) * SOLVER_ROW +
                     Fragment::row(lane) * 4 + 32;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float t = rounded(x[chunk][2 * chunk + i], false);
        store_number(two_rows(chunk, warp) + 4 + 8 * i, t), store_number(to + i * SOLVER_ROW, t);
      }
    }
  }
  __device__ __forceinline__ void invert_diagonals(bool exact) const {
    __syncwarp();
    if (exact)
      invert_exactly();
    else
      invert_by_products();
    __syncwarp();
  }
  // Rounds the warp's diagonal blocks, and makes the blocks below the diagonal of the 32 x 32: of the first chunk by warps 1 and 3,
  // of the second one by warps 0 and 2.
  template <bool Exact>
  __device__ __forceinline__ void join_two() const {
    const int chunk = 1 - warp % 2, row = warp | 1;
    Square sum, t;
    const SquareRows own[2] = {diagonal(0, warp), diagonal(1, warp)};
    add<Exact, true>(sum, diagonal(chunk, row), load_below<Exact>(chunk, row, row - 1));
    const Square other = turned(chunk, row - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) round(i, square_of(own[i]), warp, warp);  // beside the product
    add<Exact, true>(t, negated<Exact>(sum), other);
    round(chunk, t, row, row - 1);
    if (row == 3) {
      store(square(chunk, AT_HIGH), operand<Exact>(t).x);
    } else {
      const u32 at = of(chunk) + AT_LOW + Fragment::column(lane) * SOLVER_ROW + Fragment::row(lane) * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        store_number(at + (i / 4 * 8 + i % 2) * SOLVER_ROW + i % 4 / 2 * 32, rounded(t.x[i], Exact));
    }
  }
  // One of rows 2 and 3 of blocks 0 and 1 of T.
  template <bool Exact, int Row, int Column>
  __device__ __forceinline__ Square join_four(int chunk) const {
    const SquareRows own = diagonal(chunk, Row);
    SquareRows high;
    Square sum[2], t;
    if constexpr (Row == 3) load(high.x, square(chunk, AT_HIGH));
#pragma unroll
    for (int c = 1; c >= Column; --c) {
      if constexpr (Row == 3) add<Exact, true>(sum[c], high, load_below<Exact>(chunk, 2, c));
      add<Exact, Row == 2>(sum[c], own, load_below<Exact>(chunk, Row, c));
    }
    if constexpr (Column == 0) {
      add<Exact, true>(t, negated<Exact>(sum[0]), turned(chunk, 0));
      add<Exact>(t, negated<Exact>(sum[1]), load_lines(lines(chunk, AT_LOW)));
    } else {
      add<Exact, true>(t, negated<Exact>(sum[1]), turned(chunk, 1));
    }
    return t;
  }
  // A block of row 2 of one chunk, and the other column's of row 3 of the other one: 7 or 8 products.
  template <bool Exact, int Column>
  __device__ __forceinline__ void join_fours() const {
    const int chunk = warp / 2;
    const Square second = join_four<Exact, 2, Column>(chunk), third = join_four<Exact, 3, 1 - Column>(1 - chunk);
    round(chunk, second, 2, Column), round(1 - chunk, third, 3, 1 - Column);
  }
  __device__ __forceinline__ void sync() const { named_sync(barrier, 128); }
  template <bool Exact>
  __device__ __forceinline__ void join() const {
    sync();
    join_two<Exact>();
    sync();
    if (warp % 2 == 0)
      join_fours<Exact, 0>();
    else
      join_fours<Exact, 1>();
  }
  // Behind invert_diagonals().
  __device__ __forceinline__ void join(bool exact) const {
    if (exact)
      join<true>();
    else
      join<false>();
  }
};
