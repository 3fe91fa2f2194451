// around/tile_bits.cuh: luattn_tile_bits: evaluates a mask from data for each cell of 64 x 64 scores, and writes
// whether it keeps some of them, and whether all: rows and columns of LuattnTileBits.
//
// Grid (words of a row, 8 rows of cells each, sets): a block has 32 x 8 cells, a warp a row of 32. First each lane
// classifies a cell of its own by what is known of positions (kv_range, position_class) and by minima of data
// (tile_class), and evaluates the mask once if that decides it. Then the warp evaluates the other cells one after the other: lanes have columns, and
// it goes down the rows until some score is kept and another is not. Where the part of the mask that reads data
// is constant on blocks of a cell, and the other keeps all of it, one score of each block is enough.
#pragma once
#include "abi/workspace.h"
#include "around/around.cuh"
#include "work/tile_bits.cuh"

static constexpr int tile_bits_rows = 8, tile_bits_threads = 32 * tile_bits_rows;

// The bits of one cell.
struct CellPair {
  u32 kept, whole;
};

// A row of a set's cells.
template <class Spec>
struct CellRow {
  const LuattnParams &p;
  const Site site;
  const typename Spec::Head head;
  int q0, q1;  // positions, inclusive

  // The class of a cell as far as ranges and minima of data bound the mask.
  __device__ __forceinline__ TileClass by_bounds(int kv0, int kv1) const {
    if constexpr (Spec::num_block_bounds > 0) {
      // A cell must be a part of one tile.
      constexpr bool inside = Spec::walk_rows % LUATTN_CELL == 0 && Spec::walk_columns % LUATTN_CELL == 0;
      if (inside && p.scratch.stats[0] != nullptr) return Spec::tile_class(p, site, q0, q1, kv0, kv1);
    }
    return TILE_PARTIAL;
  }
  // The class of a cell by its positions alone; the rest of the mask may still drop scores of it.
  __device__ __forceinline__ TileClass by_position(Range keys, int kv0, int kv1) const {
    if (kv0 >= keys.hi || kv1 < keys.lo) return TILE_EMPTY;
    if constexpr (Spec::has_data_part) return Spec::position_class(p, site, q0, q1, kv0, kv1);
    else return TILE_FULL;
  }
  __device__ __forceinline__ bool keeps(int q, int kv) const {
    return Spec::keep(p, site, head, Spec::row(p, site, head, q), Spec::col(p, site, head, Position{kv, 0}), q, kv);
  }
  // Bit 0: some score of the cell is kept, bit 1: some is dropped, of one score in each block of Rows x Columns. By
  // a warp; all lanes get the same.
  template <int Rows, int Columns>
  __device__ __forceinline__ u32 evaluate(int kv0, int kv1) const {
    constexpr int rows = LUATTN_CELL / Rows, columns = LUATTN_CELL / Columns, across = columns < 32 ? columns : 32,
                  down = 32 / across, steps = rows < 4 * down ? (rows + down - 1) / down : 4;
    const int lane = int(threadIdx.x) % 32;
    bool some = false, dropped = false;
#pragma unroll 1
    for (int c = lane % across; c < columns; c += across) {
      const int kv = min_of(kv0 + c * Columns, kv1);
      const typename Spec::Col col = Spec::col(p, site, head, Position{kv, 0});
#pragma unroll 1
      for (int r = 0; r < rows; r += steps * down) {
#pragma unroll
        for (int i = 0; i < steps; ++i) {
          // past the end, the last position again
          const int q = min_of(q0 + (r + i * down + lane / across) * Rows, q1);
          const bool keep = Spec::keep(p, site, head, Spec::row(p, site, head, q), col, q, kv);
          some |= keep;
          dropped |= !keep;
        }
        if (__any_sync(0xffffffffu, some) && __any_sync(0xffffffffu, dropped)) return 3;
      }
    }
    return u32(__any_sync(0xffffffffu, some)) | u32(__any_sync(0xffffffffu, dropped)) << 1;
  }
};

// The bits of the warp's 32 cells from `cell` on.
template <class Spec>
LUATTN_FN CellPair bits_of_cells(const CellRow<Spec> &row, int cell) {
  const int lane = int(threadIdx.x) % 32, kv_len = row.site.kv_len, kv0 = (cell + lane) * LUATTN_CELL,
            kv1 = min_of(kv0 + LUATTN_CELL, kv_len) - 1;
  constexpr bool once = Spec::cell_rows == LUATTN_CELL && Spec::cell_columns == LUATTN_CELL;
  TileClass c = TILE_EMPTY, known = TILE_EMPTY;
  if (kv0 < kv_len) known = row.by_bounds(kv0, kv1);
  if (known == TILE_PARTIAL) c = row.by_position(kept_keys<Spec>(row.p, row.site, row.q0, row.q1), kv0, kv1);
  if constexpr (once)
    if (c == TILE_FULL && !row.keeps(row.q0, kv0)) c = TILE_EMPTY;
  const u32 full = __ballot_sync(0xffffffffu, c == TILE_FULL);
  u32 todo = __ballot_sync(0xffffffffu, c == TILE_PARTIAL) | (once ? 0 : full);
  const u32 all = __ballot_sync(0xffffffffu, known == TILE_FULL) | (once ? full : 0);
  CellPair bits = {all, all};
#pragma unroll 1
  for (; todo != 0; todo &= todo - 1) {
    const int i = __ffs(int(todo)) - 1, first = (cell + i) * LUATTN_CELL, last = min_of(first + LUATTN_CELL, kv_len) - 1;
    constexpr bool by_blocks = !once && Spec::cell_rows * Spec::cell_columns > 1;
    u32 found;
    if (by_blocks && (full >> i & 1) != 0) found = row.template evaluate<Spec::cell_rows, Spec::cell_columns>(first, last);
    else found = row.template evaluate<1, 1>(first, last);
    bits.kept |= (found & 1) << i;
    bits.whole |= u32(found == 1) << i;
  }
  return bits;
}

template <class Spec>
LUATTN_FN void find_tile_bits(const LuattnTileBitsParams &p) {
  __shared__ CellPair found[tile_bits_rows];
  const LuattnTileBits &out = p.bits;
  const int q_len = AroundParams::q_len(p), kv_len = AroundParams::kv_len(p), q_cells = workspace_cells(q_len),
            kv_cells = workspace_cells(kv_len), words = workspace_bit_words(kv_cells), lane = int(threadIdx.x) % 32,
            warp = int(threadIdx.x) / 32, line = int(blockIdx.y) * tile_bits_rows + warp, cell = int(blockIdx.x) * 32;
  const int set = int(blockIdx.z), b = set / int(out.heads), h = set - b * int(out.heads);
  CellPair bits = {0, 0};
  if (line < q_cells) {
    const Site site{b, h, q_len, kv_len};
    const CellRow<Spec> row{p, site, Spec::head(p, site), line * LUATTN_CELL, min_of((line + 1) * LUATTN_CELL, q_len) - 1};
    bits = bits_of_cells(row, cell);
    u32 *pair = out.rows + ((i64(set) * q_cells + line) * words + int(blockIdx.x)) * 2;
    if (lane < 2) pair[lane] = lane == 0 ? bits.kept : bits.whole;
  }
  if (lane == 0) found[warp] = bits;
  __syncthreads();
  // Turns 8 rows of 32 cells into a byte of each of 32 columns: warp 0 what is kept, warp 1 what is whole.
  if (warp >= 2 || cell + lane >= kv_cells) return;
  u32 byte = 0;
#pragma unroll
  for (int i = 0; i < tile_bits_rows; ++i) byte |= ((warp == 0 ? found[i].kept : found[i].whole) >> lane & 1) << i;
  const i64 pairs = (i64(set) * kv_cells + cell + lane) * workspace_bit_words(q_cells) + int(blockIdx.y) / 4;
  reinterpret_cast<unsigned char *>(out.columns + pairs * 2 + warp)[blockIdx.y % 4] = (unsigned char)byte;
}
