// source/box_tile.cuh: copies boxes of a grid to shared memory (source/cp_async_tile.cuh), 16 bytes per thread and step. Where a
// box begins is found once for a tile; a row's place in the box is a constant beside that of the thread's first row, so that a
// row costs an address and a comparison an axis. Rows of places that do not exist become zeros and are never read.
#pragma once
#include "source/cp_async_tile.cuh"
#include "work/grid_sequence.cuh"

// A thread's part of the rows of a box: a chunk of every `pass`-th of them.
template <class Side, int Dim, int Threads>
struct BoxCopy {
  static_assert(Dim % 8 == 0, "whole chunks");
  using Tile = SharedTile<padded_dim(Dim)>;
  static constexpr int width = power_above(Tile::chunks), pass = Threads / width,
                       passes = (Side::rows + pass - 1) / pass;
  static_assert(Threads % width == 0);
  // Whether rows of a pass have no bit in common with the thread's first row along any axis.
  static constexpr bool apart = (Side::rows & (Side::rows - 1)) == 0 && (pass & (pass - 1)) == 0;

  const LuattnParams &p;
  const LuattnTensor &t;
  const LuattnGridSteps &steps;
  int own, chunk;  // its first row
  bool exists;     // whether its chunk holds channels
  int at[LUATTN_GRID_AXES];
  i64 from_first;  // of its first row; else of the corner

  template <class Elem, class Where>
  __device__ __forceinline__ BoxCopy(const LuattnParams &p, const GridRows<Elem, Side::of_keys> &src,
                                     const Where &corner, int thread)
      : p(p),
        t(*src.t),
        steps(*src.steps),
        own(thread / width),
        chunk(thread % width),
        exists(src.exist && (Dim % 16 == 0 || chunk * 8 < Dim)),
        from_first(chunk * 8) {
    corner([&](auto axis, int first) {
      constexpr int a = axis.value;
      at[a] = first + (apart ? Side::template along<a>(own) : 0);
      from_first += at[a] * step_in<a>(t, steps);
    });
  }
  __device__ __forceinline__ bool has_part() const { return width == Tile::chunks || chunk < Tile::chunks; }
  // Copies the thread's row of pass i. What `i` gives is a constant where the loop is unrolled.
  template <class Elem>
  __device__ __forceinline__ void copy(u32 tile, Elem *data, int i) const {
    const int row = own + i * pass;
    bool in = exists;
    i64 more = 0;
    each_axis([&](auto axis) {
      constexpr int a = axis.value;
      const int along = Side::template along<a>(apart ? i * pass : row);
      in = in && u32(at[a] + along) < u32(Side::extent(p, a));
      more += along * step_in<a>(t, steps);
    });
    cp_async_16(tile + Tile::offset(u32(row), u32(chunk)), data + from_first + more, in);
  }
};

// Copies the box whose corner `corner(body)` hands to body(axis, coordinate), of Rows rows.
template <bool Rolled, int Rows, int Dim, int Threads, class Elem, bool Keys, class Where>
LUATTN_FN void copy_box_async(u32 tile, const GridRows<Elem, Keys> &src, const Where &corner, int thread) {
  using Side = GridSideOf<Keys>;
  static_assert(Rows == Side::rows, "a tile is a box");
  using Copy = BoxCopy<Side, Dim, Threads>;
  const Copy copy(*src.p, src, corner, thread);
  if (!copy.has_part()) return;
#pragma unroll(Rolled ? 1 : Copy::passes < 8 ? Copy::passes : 8)
  for (int i = 0; i < Copy::passes; ++i) {
    if (Rows % Copy::pass != 0 && copy.own + i * Copy::pass >= Rows) break;
    copy.copy(tile, src.data, i);
  }
}

// As those of source/cp_async_tile.cuh: the box of slots from `slot0` on, and one of keys that begins anywhere.
template <int Rows, int Dim, int Threads, class Elem, bool Keys>
LUATTN_FN void copy_tile_async(u32 tile, const GridRows<Elem, Keys> &src, int slot0, int thread) {
  using Side = GridSideOf<Keys>;
  copy_box_async<false, Rows, Dim, Threads>(
      tile, src, [&](const auto &body) { Side::each_corner(*src.p, u32(slot0) / Side::rows, body); }, thread);
}
template <int Dim, int Threads, class Elem, bool Keys>
LUATTN_FN void copy_rows_async(u32 tile, const GridRows<Elem, Keys> &src, int, int slot0, int thread) {
  using Side = GridSideOf<Keys>;
  copy_box_async<true, Side::rows, Dim, Threads>(
      tile, src, [&](const auto &body) { Side::each_corner(*src.p, u32(slot0) / Side::rows, body); }, thread);
}
#ifdef LUATTN_FREE_BOXES
template <int Rows, int Dim, int Threads, class Elem>
LUATTN_FN void copy_tile_async(u32 tile, const GridRows<Elem, true> &src, const BoxKey &key0, int thread) {
  copy_box_async<false, Rows, Dim, Threads>(
      tile, src, [&](const auto &body) { each_axis([&](auto axis) { body(axis, key0.box.first(axis.value)); }); },
      thread);
}
#endif
