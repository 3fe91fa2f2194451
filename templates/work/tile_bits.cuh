// work/tile_bits.cuh: the class of a tile from the bits of its cells (LuattnTileBits), which luattn_tile_bits has found
// by evaluating the mask (around/tile_bits.cuh).
//
// A part of a cell has the cell's class, except that it may be empty or full where the cell is neither. So a tile of
// any size and place is asked for: it may keep something if one of the cells that it touches does, and keeps
// everything if all of them do.
#pragma once
#include "abi/workspace.h"
#include "ops/hook_types.cuh"

// Reads the bits by rows of cells. With Columns it reads the transposed copy, whose rows are columns of cells.
template <bool Columns>
struct CellBits {
  const u32 *rows;  // of this batch entry and head; nullptr: the mask is not evaluated
  int words;        // pairs (kept, whole) of words in a row

  __device__ __forceinline__ CellBits(const LuattnParams &p, const Site &s) {
    const LuattnTileBits &bits = static_cast<const LuattnTileBitsParams &>(p).bits;
    const int of_q = workspace_cells(s.q_len), of_kv = workspace_cells(s.kv_len), count = Columns ? of_kv : of_q;
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
};
