// source/cp_async_tile.cuh: copies tiles between global and shared memory, 16 bytes per thread and step.
//
// A tensor's base pointer and its strides are multiples of 8 elements (the runtime refuses others for the
// sm80 family), so every chunk is one aligned access. Rows beyond the tensor's length and columns between Dim
// and the tile's padded width become zeros and are never read from global memory: what lies there may be NaN,
// and 0 * NaN is NaN.
#pragma once
#include "arch/mma.cuh"
#include "work/positions.cuh"

LUATTN_FN constexpr int padded_dim(int dim) { return (dim + 15) / 16 * 16; }

// Return the thread's number, its lane, or a value, opaque to the compiler: it recomputes values derived from
// them each time, instead of keeping them in registers.
LUATTN_FN int thread_anew() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
LUATTN_FN int lane_anew() {
  int x;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(x));
  return x;
}
LUATTN_FN int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

LUATTN_FN constexpr int power_above(int x) {
  int y = 1;
  while (y < x) y *= 2;
  return y;
}

// Copies rows row0 .. row0 + Rows - 1 of `src` to a SharedTile<padded_dim(Dim)> at `tile`, asynchronously;
// the caller commits the group. Rows that do not exist become zeros, by the same code: a separate copy for whole
// tiles would be no faster. A thread keeps to one chunk column and walks down the rows with one pointer, even
// where that leaves threads without a column: an address for each chunk costs registers that the accumulators
// need, and a division for each costs time.
template <int Rows, int Dim, int Threads, class Elem>
LUATTN_FN void copy_tile_async(u32 tile, const LineRows<Elem> &src, int row0, int thread) {
  static_assert(sizeof(Elem) == 2 && Dim % 8 == 0, "16-bit elements, whole chunks");
  using Tile = SharedTile<padded_dim(Dim)>;
  constexpr int width = power_above(Tile::chunks),
                pass = Threads / width,  // threads per row, rows per pass
      passes = (Rows + pass - 1) / pass;
  static_assert(Threads % width == 0);
  const int first = thread / width, chunk = thread % width;
  if (width > Tile::chunks && chunk >= Tile::chunks) return;
  const int end = Dim % 16 != 0 && chunk * 8 >= Dim ? 0 : src.len - row0 - first;
  const Elem *from = src.data + i64(row0 + first) * src.seq + chunk * 8;
  const u32 to = tile + Tile::offset(u32(first), u32(chunk));
  if constexpr (Rows % pass == 0 && pass % 8 == 0 && passes % 4 == 0) {  // the swizzle repeats every 8 rows
    constexpr int bytes = pass * Tile::chunks * 16;
#pragma unroll
    for (int i = 0; i < passes; i += 4)
      cp_async_16_x4<pass, bytes>(to + i * bytes, __cvta_generic_to_global(from + i * pass * src.seq),
                                  2 * pass * src.seq, end - i * pass);
  } else {
#pragma unroll
    for (int i = 0; i < passes; ++i) {
      if (Rows % pass != 0 && first + i * pass >= Rows) break;
      cp_async_16(tile + Tile::offset(u32(first + i * pass), u32(chunk)), from, i * pass < end);
      from += pass * src.seq;
    }
  }
}

// Does the same for rows that do not lie along a line (work/positions.cuh): each address is looked up.
template <int Rows, int Dim, int Threads, class Source>
LUATTN_FN void copy_tile_async(u32 tile, const Source &src, int row0, int thread) {
  static_assert(Dim % 8 == 0, "whole chunks");
  using Tile = SharedTile<padded_dim(Dim)>;
  constexpr int width = power_above(Tile::chunks), pass = Threads / width, passes = (Rows + pass - 1) / pass;
  static_assert(Threads % width == 0);
  const int first = thread / width, chunk = thread % width;
  if (width > Tile::chunks && chunk >= Tile::chunks) return;
  const auto rows = src.from(row0).if_all(Dim % 16 == 0 || chunk * 8 < Dim);
#pragma unroll(passes < 8 ? passes : 8)
  for (int i = 0; i < passes; ++i) {
    const int row = first + i * pass;
    if (Rows % pass != 0 && row >= Rows) break;
    const bool in = rows.has(row);
    cp_async_16(tile + Tile::offset(u32(row), u32(chunk)), rows.row_if(in, row) + (in ? chunk * 8 : 0), in);
  }
}

// Does the same for a number of rows known at run time, in a rolled loop.
template <int Dim, int Threads, class Elem>
LUATTN_FN void copy_rows_async(u32 tile, const LineRows<Elem> &src, int rows, int row0, int thread) {
  static_assert(sizeof(Elem) == 2 && Dim % 8 == 0, "16-bit elements, whole chunks");
  using Tile = SharedTile<padded_dim(Dim)>;
  constexpr int width = power_above(Tile::chunks),
                pass = Threads / width;  // threads per row, rows per pass
  static_assert(Threads % width == 0);
  const int chunk = thread % width;
  if (width > Tile::chunks && chunk >= Tile::chunks) return;
  const int end = Dim % 16 != 0 && chunk * 8 >= Dim ? 0 : src.len - row0;
  const Elem *from = src.data + i64(row0 + thread / width) * src.seq + chunk * 8;
#pragma unroll 1
  for (int row = thread / width; row < rows; row += pass) {
    cp_async_16(tile + Tile::offset(u32(row), u32(chunk)), row < end ? from : src.data, row < end);
    from += pass * src.seq;
  }
}

template <int Dim, int Threads, class Source>
LUATTN_FN void copy_rows_async(u32 tile, const Source &src, int rows, int row0, int thread) {
  using Tile = SharedTile<padded_dim(Dim)>;
  constexpr int width = power_above(Tile::chunks), pass = Threads / width;
  const int chunk = thread % width;
  if (width > Tile::chunks && chunk >= Tile::chunks) return;
  const auto from = src.from(row0).if_all(Dim % 16 == 0 || chunk * 8 < Dim);
#pragma unroll 1
  for (int row = thread / width; row < rows; row += pass) {
    const bool in = from.has(row);
    cp_async_16(tile + Tile::offset(u32(row), u32(chunk)), from.row_if(in, row) + (in ? chunk * 8 : 0), in);
  }
}

// Stores a shared tile to the rows of `dst` that `exist` has (asked of it, not of `dst`, which orders instructions).
// Called by `Threads` threads; `thread` is the caller's number among them.
template <int Rows, int Dim, int Threads, class Target, class Exist>
LUATTN_FN void store_tile(const Target &dst, u32 tile, const Exist &exist, int thread) {
  using Tile = SharedTile<padded_dim(Dim)>;
  constexpr int chunks = Dim / 8, total = Rows * chunks;
  constexpr int passes = (total + Threads - 1) / Threads;
#pragma unroll(passes < 4 ? passes : 4)
  for (int i = 0; i < passes; ++i) {
    const int index = thread + i * Threads;
    if (total % Threads != 0 && index >= total) break;
    const int row = index / chunks, chunk = index % chunks;
    if (exist.has(row))
      *reinterpret_cast<uint4 *>(dst.element(row, chunk * 8)) =
          load_shared_16(tile + Tile::offset(u32(row), u32(chunk)));
  }
}
