// around/before/tile_bits.cuh: luattn_tile_bits: evaluates a mask from data for each cell of 64 x 64 scores, and writes
// whether it keeps some of them, and whether all: rows and columns of LuattnTileBits.
//
// Grid (words of a row, 8 rows of cells each, sets): a block has 8 rows of 32 cells. First a lane for each cell
// classifies it by bounds of what the mask reads (cell_class, tile_class) and by what is known of positions (kv_range,
// position_class), and evaluates the mask once if that decides it. Then all warps of the block take the cells that are
// left, which may all lie in a few rows: lanes have columns, and a warp goes down the rows until some score is kept and
// another is not. Where the part of the mask that reads data is constant on blocks of a cell, and the other keeps all
// of it, one score of each block is enough. Where a flag of each score decides, lanes read 16 at once.
#pragma once
#include "abi/workspace.h"
#include "around/around.cuh"
#include "score/flag_lines.cuh"
#include "work/sequence.cuh"
#include "work/tile_bits.cuh"

static constexpr int tile_bits_rows = 8, tile_bits_threads = 512;

// The bits of 32 cells of a row.
struct CellPair {
  u32 kept, whole;
};

// What a block finds.
struct CellsOfBlock {
  CellPair row[tile_bits_rows];
  int num_open;                              // cells that are left to evaluate
  unsigned short open[tile_bits_rows * 32];  // row * 32 + column of the block's cells, and is_inside
  static constexpr int is_inside = 1 << 15;  // positions alone would keep all of it
};

// A row of a set's cells.
template <class Spec>
struct CellRow {
  const LuattnParams &p;
  const Site site;
  const typename Spec::Head head;
  int q0, q1;  // positions, inclusive

  // The class of a cell as far as ranges, minima of data, and what is read once for all of it bound the mask.
  __device__ __forceinline__ TileClass by_bounds(int kv0, int kv1) const {
    if constexpr (Spec::num_block_bounds > 0) {
      if (p.scratch.stats[0] == nullptr) return TILE_PARTIAL;
      // A cell must be a part of one tile.
      if (Spec::walk_rows % LUATTN_CELL != 0 || Spec::walk_columns % LUATTN_CELL != 0) return TILE_PARTIAL;
    }
    if constexpr (Spec::has_cell_class)
      return Spec::cell_class(p, site, q0, q1, kv0, kv1);
    else if constexpr (Spec::num_block_bounds > 0)
      return Spec::tile_class(p, site, q0, q1, kv0, kv1);
    else
      return TILE_PARTIAL;
  }
  // The class of a cell by its positions alone; the rest of the mask may still drop scores of it.
  __device__ __forceinline__ TileClass by_position(Range keys, int kv0, int kv1) const {
    if (kv0 >= keys.hi || kv1 < keys.lo) return TILE_EMPTY;
    if constexpr (Spec::has_data_part)
      return Spec::position_class(p, site, q0, q1, kv0, kv1);
    else
      return TILE_FULL;
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
  // The same for scores that are kept if their flags are, of a cell inside the lengths. A quarter of a line is 16
  // flags.
  __device__ __forceinline__ u32 evaluate_flags(int kv0) const {
    constexpr int steps = 4, down = 8;
    const int lane = int(threadIdx.x) % 32;
    bool some = false, dropped = false;
#pragma unroll 1
    for (int r = lane / 4; r < LUATTN_CELL; r += steps * down) {
      uint4 flags[steps];
#pragma unroll
      for (int i = 0; i < steps; ++i)
        flags[i] = read_flags(Spec::flag_line(p, site, head, min_of(q0 + r + i * down, q1)) + u32(kv0 + lane % 4 * 16));
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        const u32 kept = bits_of_flags(flags[i]);
        some |= kept != 0;
        dropped |= kept != 0xffffu;
      }
      if (__any_sync(0xffffffffu, some) && __any_sync(0xffffffffu, dropped)) return 3;
    }
    return u32(__any_sync(0xffffffffu, some)) | u32(__any_sync(0xffffffffu, dropped)) << 1;
  }
};

// Classifies the 32 cells of a row from `cell` on, a lane each, and lists those that are left.
template <class Spec>
LUATTN_FN void classify_cells(const CellRow<Spec> &row, int number, int cell, CellsOfBlock &to) {
  const int lane = int(threadIdx.x) % 32, kv_len = row.site.kv_len, kv0 = (cell + lane) * LUATTN_CELL,
            kv1 = min_of(kv0 + LUATTN_CELL, kv_len) - 1;
  constexpr bool once = Spec::cell_rows == LUATTN_CELL && Spec::cell_columns == LUATTN_CELL;
  TileClass c = TILE_EMPTY, known = TILE_EMPTY;
  if (kv0 < kv_len) known = row.by_bounds(kv0, kv1);
  if (known == TILE_PARTIAL) c = row.by_position(kept_keys<Spec>(row.p, row.site, row.q0, row.q1), kv0, kv1);
  if constexpr (once)
    if (c == TILE_FULL && !row.keeps(row.q0, kv0)) c = TILE_EMPTY;
  const bool is_open = c == TILE_PARTIAL || (!once && c == TILE_FULL);
  const u32 all = __ballot_sync(0xffffffffu, known == TILE_FULL || (once && c == TILE_FULL)),
            open = __ballot_sync(0xffffffffu, is_open);
  if (lane == 0) to.row[number] = {all, all};
  if (open == 0) return;
  int at = 0;
  if (lane == 0) at = atomicAdd(&to.num_open, __popc(open));
  at = __shfl_sync(0xffffffffu, at, 0) + __popc(open & ((1u << lane) - 1));
  if (is_open) to.open[at] = (unsigned short)(number * 32 + lane + (c == TILE_FULL ? CellsOfBlock::is_inside : 0));
}

template <class Spec>
LUATTN_FN CellRow<Spec> row_of_cells(const LuattnParams &p, const Site &site, int row) {
  return {p, site, Spec::head(p, site), row * LUATTN_CELL, min_of((row + 1) * LUATTN_CELL, site.q_len) - 1};
}

// Whether scores that positions alone would keep are kept if their flags are (score/flag_lines.cuh).
template <class Spec>
LUATTN_FN constexpr bool flags_decide() {
  if constexpr (Spec::has_flag_line)
    return !Spec::has_keep_beside || Spec::flag_is_data_part;
  else
    return false;
}

// Evaluates the cells that are left, a warp each.
template <class Spec>
LUATTN_FN void evaluate_cells(const LuattnParams &p, const Site &site, int first_row, int cell, CellsOfBlock &to) {
  constexpr int warps = tile_bits_threads / 32;
  constexpr bool by_blocks = Spec::cell_rows * Spec::cell_columns > 1;
  bool by_flags = false;
  if constexpr (flags_decide<Spec>()) by_flags = flags_are_wide<Spec>(p, site.kv_len);
#pragma unroll 1
  for (int n = int(threadIdx.x) / 32; n < to.num_open; n += warps) {
    const int which = to.open[n], number = which / 32 % tile_bits_rows, i = which % 32, kv0 = (cell + i) * LUATTN_CELL,
              kv1 = min_of(kv0 + LUATTN_CELL, site.kv_len) - 1;
    const CellRow<Spec> row = row_of_cells<Spec>(p, site, first_row + number);
    const bool is_inside = (which & CellsOfBlock::is_inside) != 0;
    u32 found;
    if constexpr (flags_decide<Spec>())
      found = by_flags && is_inside && kv0 + LUATTN_CELL <= site.kv_len ? row.evaluate_flags(kv0)
                                                                        : row.template evaluate<1, 1>(kv0, kv1);
    else if (by_blocks && is_inside)
      found = row.template evaluate<Spec::cell_rows, Spec::cell_columns>(kv0, kv1);
    else
      found = row.template evaluate<1, 1>(kv0, kv1);
    if (threadIdx.x % 32 != 0 || (found & 1) == 0) continue;
    atomicOr(&to.row[number].kept, 1u << i);
    if (found == 1) atomicOr(&to.row[number].whole, 1u << i);
  }
}

template <class Spec, class Config>
LUATTN_FN void find_tile_bits(const LuattnTileBitsParams &p) {
  __shared__ CellsOfBlock cells;
  const LuattnTileBits &out = p.bits;
  static_assert(SequenceOf<Config>::is_line, "cells are of positions along lines");
  const int q_len = Site::longest_q(p), kv_len = Site::longest_kv(p), q_cells = workspace_cells(q_len),
            kv_cells = workspace_cells(kv_len), words = workspace_bit_words(kv_cells), lane = int(threadIdx.x) % 32,
            warp = int(threadIdx.x) / 32, first_row = int(blockIdx.y) * tile_bits_rows, cell = int(blockIdx.x) * 32;
  const int set = int(blockIdx.z), b = set / int(out.heads), h = set - b * int(out.heads);
  const SequenceOf<Config> site(p, b, h);
  const int own_cells = Config::packed ? workspace_cells(site.q_len) : q_cells;  // rows that the entry has
  if (threadIdx.x == 0) cells.num_open = 0;
  if (threadIdx.x < tile_bits_rows) cells.row[threadIdx.x] = {0, 0};  // rows past the end keep nothing
  __syncthreads();
  if (warp < tile_bits_rows && first_row + warp < own_cells)
    classify_cells<Spec>(row_of_cells<Spec>(p, site, first_row + warp), warp, cell, cells);
  __syncthreads();
  evaluate_cells<Spec>(p, site, first_row, cell, cells);
  __syncthreads();
  if (warp < tile_bits_rows && first_row + warp < q_cells && lane < 2) {
    u32 *pair = out.rows + ((i64(set) * q_cells + first_row + warp) * words + int(blockIdx.x)) * 2;
    pair[lane] = lane == 0 ? cells.row[warp].kept : cells.row[warp].whole;
  }
  // Turns 8 rows of 32 cells into a byte of each of 32 columns: warp 0 what is kept, warp 1 what is whole.
  if (warp >= 2 || cell + lane >= kv_cells) return;
  u32 byte = 0;
#pragma unroll
  for (int i = 0; i < tile_bits_rows; ++i)
    byte |= ((warp == 0 ? cells.row[i].kept : cells.row[i].whole) >> lane & 1) << i;
  const i64 pairs = (i64(set) * kv_cells + cell + lane) * workspace_bit_words(q_cells) + int(blockIdx.y) / 4;
  reinterpret_cast<unsigned char *>(out.columns + pairs * 2 + warp)[blockIdx.y % 4] = (unsigned char)byte;
}
