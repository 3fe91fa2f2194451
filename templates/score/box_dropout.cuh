// score/box_dropout.cuh: which weights dropout keeps over a grid, whose patches are of 4 x 4 places of the two innermost
// axes (abi/philox.h) and lie in boxes as the boxes' extents and starts have it.
#pragma once
#include "ops/grid_places.cuh"
#include "score/dropout.cuh"

// A lane's scores of a tile of RowBlocks * 16 rows by Blocks * 16 columns, as DroppedBlocks. A lane draws once for columns that come
// one after another in the same patch.
template <class Config, class Fragment, bool Transposed, int Blocks, int RowBlocks = 1>
struct DroppedBoxes {
  static constexpr int columns = Fragment::columns(Blocks * 16), words = (columns + 31) / 32;
  u32 bits[2 * RowBlocks][words];  // of two rows of each block

  __device__ __forceinline__ bool get(int column, int half, int row_block = 0) const {
    return (bits[2 * row_block + half][column / 32] >> column % 32 & 1u) != 0;
  }
  // As that of DroppedBlocks.
  __device__ __forceinline__ u32 mask_of_two(int column, int half) const {
    const u32 two = bits[half][column / 32] >> column % 32;
    return ((two & 1u) | (two & 2u) << 15) * 0xffffu;
  }

  // `row` and `column`: the slots of the tile's first ones.
  LUATTN_FN DroppedBoxes draw(const Dropout<Config> &from, const LuattnParams &p, int row, int column, int lane) {
    using Rows = GridSideOf<Transposed>;
    using Columns = GridSideOf<!Transposed>;
    DroppedBoxes made;
#pragma unroll
    for (int r = 0; r < 2 * RowBlocks; ++r)
      draw_row(made.bits[r], from, Rows::drawn_at(p, row + Fragment::row(lane, r % 2) + r / 2 * 16),
               [&](int j) { return Columns::drawn_at(p, column + Fragment::column(lane, j)); });
    return made;
  }
  // Those of a query in slot `row`, over keys that begin with key0.
  template <class Key>
  LUATTN_FN void draw_keys(u32 (&bits)[words], const Dropout<Config> &from, const LuattnParams &p, int row,
                           const Key &key0) {
    draw_row(bits, from, GridSideOf<false>::drawn_at(p, row),
             [&](int j) { return (key0 + Fragment::column_of(j)).drawn_at(p); });
  }
  // The bits of one of a lane's rows, which draws by `of_row`, as its column number j does by of_column(j).
  template <class OfColumn>
  LUATTN_FN void draw_row(u32 (&row)[words], const Dropout<Config> &from, int of_row, const OfColumn &of_column) {
    u32 patch = ~0u, drawn = 0;
#pragma unroll
    for (int w = 0; w < words; ++w) {
      row[w] = 0;
#pragma unroll 1
      for (int j = 32 * w; j < columns && j < 32 * w + 32; ++j) {
        const int other = of_column(j), q = Transposed ? other : of_row, kv = Transposed ? of_row : other;
        const u32 at = Transposed ? dropout_q_patch(q) : dropout_kv_patch(kv);
        if (at != patch) drawn = from.draw(dropout_q_patch(q), dropout_kv_patch(kv));
        patch = at;
        row[w] |= (drawn >> dropout_bit(q, kv) & 1u) << j % 32;
      }
    }
  }
};
template <>
struct DroppedOf<true> {
  template <class Config, class Fragment, bool Transposed, int Blocks, int RowBlocks>
  using type = DroppedBoxes<Config, Fragment, Transposed, Blocks, RowBlocks>;
};
