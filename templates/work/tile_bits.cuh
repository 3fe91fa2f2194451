// work/tile_bits.cuh: the class of a tile from the bits of its cells (LuattnTileBits), which luattn_tile_bits has found
// by evaluating the mask (around/before/tile_bits.cuh).
//
// A part of a cell has the cell's class, except that it may be empty or full where the cell is neither. So a tile of
// any size and place is asked for: it may keep something if one of the cells that it touches does, and keeps
// everything if all of them do.
#pragma once
#include "abi/workspace.h"
#include "ops/hook_types.cuh"

// Positions that lines of bits are made for: the lengths, or of packed sequences those of the longest one.
LUATTN_FN int line_positions(const LuattnParams &p, const Site &s, bool of_q) {
#ifdef LUATTN_PACKED_BITS
  return of_q ? Site::longest_q(p) : Site::longest_kv(p);
#else
  return of_q ? s.q_len : s.kv_len;
#endif
}

// Reads the bits by rows of cells. With Columns it reads the transposed copy, whose rows are columns of cells.
template <bool Columns>
struct CellBits {
  const u32 *rows;  // of this batch entry and head; nullptr: the mask is not evaluated
  int words;        // pairs (kept, whole) of words in a row

  __device__ __forceinline__ CellBits(const LuattnParams &p, const Site &s) {
    const LuattnTileBits &bits = static_cast<const LuattnTileBitsParams &>(p).bits;
    const int of_q = workspace_cells(line_positions(p, s, true)), of_kv = workspace_cells(line_positions(p, s, false)),
              count = Columns ? of_kv : of_q;
    const u32 set = (bits.batch > 1 ? u32(s.b) * bits.heads : 0) + (bits.heads > 1 ? u32(s.h) : 0);
    words = workspace_bit_words(Columns ? of_q : of_kv);
    rows = Columns ? bits.columns : bits.rows;
    if (rows != nullptr) rows += i64(set) * count * words * 2;
  }
  __device__ __forceinline__ bool known() const { return rows != nullptr; }

  // Returns the class of a tile: positions first .. last along the rows, lo .. hi within a row, inclusive and
  // inside the lengths.
  __device__ __forceinline__ TileClass class_of(int first, int last, int lo, int hi) const {
    lo /= LUATTN_CELL, hi /= LUATTN_CELL;
    u32 kept = 0, whole = ~0u;
#pragma unroll 1
    for (int w = lo / 32; w <= hi / 32; ++w) {
      const u32 from = w == lo / 32 ? ~0u << lo % 32 : ~0u, to = w == hi / 32 ? ~0u >> (31 - hi % 32) : ~0u,
                some = from & to;
#pragma unroll 1
      for (int row = first / LUATTN_CELL; row <= last / LUATTN_CELL; ++row) {
        const u32 *pair = rows + (i64(row) * words + w) * 2;
        kept |= pair[0] & some;
        whole &= pair[1] | ~some;
      }
    }
    return kept == 0 ? TILE_EMPTY : whole == ~0u ? TILE_FULL : TILE_PARTIAL;
  }
  // Returns the first of the tiles `tile` .. `end` - 1 along the rows that touches a kept cell, or `end`; skips 32
  // cells of which nothing is kept at a time. A tile has `size` positions, and first .. last in the other direction.
  __device__ __forceinline__ int next_kept(int first, int last, int tile, int end, int size) const {
#pragma unroll 1
    for (int cell = tile * size / LUATTN_CELL; cell * LUATTN_CELL < end * size;) {
      const int w = cell / 32;
      u32 kept = 0;
#pragma unroll 1
      for (int row = first / LUATTN_CELL; row <= last / LUATTN_CELL; ++row) kept |= rows[(i64(row) * words + w) * 2];
      kept &= ~0u << cell % 32;
      if (kept != 0) return min_of(max_of((w * 32 + __ffs(int(kept)) - 1) * LUATTN_CELL / size, tile), end);
      cell = (w + 1) * 32;
    }
    return end;
  }
};

// The number of cells of a row that lines first .. last keep something of, by a whole warp; all lanes get it.
template <bool Columns>
LUATTN_FN int kept_cells(const CellBits<Columns> &bits, int first, int last) {
  u32 count = 0;
#pragma unroll 1
  for (int w = int(threadIdx.x) % 32; w < bits.words; w += 32) {
    u32 kept = 0;
#pragma unroll 1
    for (int row = first / LUATTN_CELL; row <= last / LUATTN_CELL; ++row)
      kept |= bits.rows[(i64(row) * bits.words + w) * 2];
    count += u32(__popc(kept));
  }
  return int(__reduce_add_sync(0xffffffffu, count));
}

// Whether a walk along tiles of so many positions can take them from words.
LUATTN_FN constexpr bool has_words(int size) { return size == LUATTN_CELL || size == 2 * LUATTN_CELL; }

// Moves the even bits next to one another.
LUATTN_FN u32 even_bits(u32 x) {
  x &= 0x55555555u;
  x = (x | x >> 1) & 0x33333333u;
  x = (x | x >> 2) & 0x0f0f0f0fu;
  x = (x | x >> 4) & 0x00ff00ffu;
  return (x | x >> 8) & 0x0000ffffu;
}

// The bits of 32 tiles along the rows of `bits`, from `base` on, a multiple of 32. A tile has Size positions there, and
// first .. last in the other direction: with Lines at most so many cells, whose loads then do not wait for one another.
template <int Size, bool Columns, int Lines = 0>
struct TileWord {
  u32 kept, whole;

  __device__ __forceinline__ TileWord(const CellBits<Columns> &bits, int first, int last, int base)
      : kept(0), whole(~0u) {
    u32 more = 0, all = ~0u;  // of the second word
    first /= LUATTN_CELL, last /= LUATTN_CELL;
    if constexpr (Lines > 0) {
#pragma unroll
      for (int i = 0; i < Lines; ++i) add(bits, min_of(first + i, last), base, more, all);
    } else {
#pragma unroll 1
      for (int row = first; row <= last; ++row) add(bits, row, base, more, all);
    }
    if constexpr (words == 2) {
      kept = even_bits(kept | kept >> 1) | even_bits(more | more >> 1) << 16;
      whole = even_bits(whole & whole >> 1) | even_bits(all & all >> 1) << 16;
    }
  }

 private:
  static constexpr int words = Size / LUATTN_CELL;
  __device__ __forceinline__ void add(const CellBits<Columns> &bits, int row, int base, u32 &more, u32 &all) {
    const u32 *pair = bits.rows + (i64(row) * bits.words + base / 32 * words) * 2;
    kept |= pair[0], whole &= pair[1];
    if (words == 2 && base / 32 * words + 1 < bits.words) more |= pair[2], all &= pair[3];
  }
};

// The bits of tiles base .. base + 31 that lie in a range.
LUATTN_FN u32 tiles_inside(Range tiles, int base) {
  return ~0u << max_of(tiles.lo - base, 0) & ~0u >> max_of(32 - (tiles.hi - base), 0);
}
