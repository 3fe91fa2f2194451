// work/tile_walk.cuh: walks the tiles that the mask keeps, for every kernel family.
//
// A tile is TileM rows x TileN columns of the score matrix of one (b, h). KvTiles walks the kv tiles of one q
// tile (forward, dq), QTiles the q tiles of one kv tile (dk, dv). Both go upwards and skip tiles that the
// mask leaves empty. A kernel that prefetches finds the next tile before it computes the current one:
//
//     KvTiles<Spec, TileM, TileN> walk(p, site, q_tile);
//     for (Tile tile = walk.next(p, site); tile.valid(); tile = walk.next(p, site)) ...
//
// All threads that walk see the same tiles. `site.h` is the query head: a mask may differ between the query
// heads of one kv head. If the mask's bits are known, walks take tiles from their words and
// skip empty words. The sm90 walks also leave out tiles with negligible weights (TileBitmap). WarpKvTiles yields
// the tiles of KvTiles downwards, in one warp that walks for its whole block.
#pragma once
#include "abi/workspace.h"
#include "contract/contract.cuh"
#include "work/tile_bits.cuh"

// Index: KeyTile of a Sequence (work/positions.cuh), or int.
template <class Index>
struct TileOf {
  Index index;  // position / TileN (KvTiles) or position / TileM (QTiles); -1 past the last
  bool masked;  // false: every pair of the tile is kept and lies inside the lengths, as each walk defines it
                // below
  bool same_bucket = false;  // WarpQTiles: see Spec::same_bucket
  bool by_range = false;     // WarpKvTiles: if masked, row_interval alone decides what its rows keep; WarpQTiles:
                             // column_interval
  __device__ __forceinline__ bool valid() const {
    if constexpr (same_type<Index, int>::value)
      return index >= 0;
    else
      return index.valid();
  }
  // The index of no tile.
  LUATTN_FN constexpr Index none() {
    if constexpr (same_type<Index, int>::value)
      return -1;
    else
      return Index::none();
  }
};
using Tile = TileOf<int>;

// Tiles of one axis that intersect a range of positions.
LUATTN_FN Range tiles_of(Range positions, int len, int tile) {
  const int lo = max_of(positions.lo, 0), hi = min_of(positions.hi, len);
  return lo < hi ? Range{lo / tile, ceil_div(hi, tile)} : Range{0, 0};
}

// Whether the tiles of a walk have the size for which the spec has block statistics.
template <class Spec, int TileM, int TileN>
LUATTN_FN constexpr bool walks_stats() {
  if constexpr (Spec::num_block_bounds == 0)
    return true;
  else
    return TileM == Spec::walk_rows && TileN == Spec::walk_columns;
}

// Columns: lanes of a warp ask for q tiles of one kv tile, rather than for kv tiles of one q tile.
template <class Spec, bool Columns = false>
LUATTN_FN TileClass class_of(const LuattnParams &p, const Site &s, int q0, int q1, int kv0, int kv1) {
  if constexpr (Spec::has_tile_bits) {
    const CellBits<Columns> bits(p, s);
    if (bits.known()) return Columns ? bits.class_of(kv0, kv1, q0, q1) : bits.class_of(q0, q1, kv0, kv1);
  }
  if constexpr (Spec::has_mask)
    return Spec::tile_class(p, s, q0, q1, kv0, kv1);
  else
    return TILE_FULL;
}

// The class of a tile, from the classes of the two parts of the mask.
LUATTN_FN TileClass least_of(TileClass a, TileClass b) { return a < b ? a : b; }

// The tile bitmap (around/before/tile_skipping.cuh). For each q tile in forward, and each kv tile in backward, it
// has one bit for each tile on the other axis, which says whether the tile is computed. Empty if the spec's
// scores have no bounds.
template <class Spec, bool Some = Spec::has_score_bounds>
struct TileBitmap {
  const u32 *words;  // nullptr: all tiles are computed

  __device__ __forceinline__ TileBitmap() : words(nullptr) {}
  // Row `row` of the `rows` bitmap rows of a head. A row has `tiles` bits.
  __device__ __forceinline__ TileBitmap(const LuattnParams &p, const Site &s, int row, int rows, int tiles)
      : words(p.scratch.tile_bitmap) {
    if (words != nullptr) words += ((i64(s.b) * Site::heads(p) + s.h) * rows + row) * workspace_words(tiles);
  }
  __device__ __forceinline__ bool has(int tile) const {
    return words == nullptr || (words[tile / 32] >> tile % 32 & 1) != 0;
  }
};
template <class Spec>
struct TileBitmap<Spec, false> {
  __device__ __forceinline__ TileBitmap() {}
  __device__ __forceinline__ TileBitmap(const LuattnParams &, const Site &, int, int, int) {}
  __device__ __forceinline__ bool has(int) const { return true; }
};

// A tile is unmasked if every row below q_len keeps all TileN columns. Rows at or past q_len do not make a
// tile masked, because they influence only themselves and are not stored.
template <class Spec, int TileM, int TileN>
struct KvTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  int q0, q1;
  Range todo;

  // Requires q_tile * TileM < q_len.
  template <class Sequence>
  __device__ __forceinline__ KvTiles(const LuattnParams &p, const Sequence &s, int q_tile) {
    static_assert(Sequence::is_line, "tiles are cut from positions 0 to q_len and kv_len");
    q0 = q_tile * TileM;
    q1 = min_of(q0 + TileM, s.q_len) - 1;
    todo = tiles_of(kept_keys<Spec>(p, s, q0, q1), s.kv_len, TileN);
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    if constexpr (Spec::has_tile_bits) {
      const CellBits<false> bits(p, s);
      if (bits.known()) todo.lo = bits.next_kept(q0, q1, todo.lo, todo.hi, TileN);
    }
    for (; todo.lo < todo.hi; ++todo.lo) {
      const int kv0 = todo.lo * TileN, kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
      const TileClass c = class_of<Spec>(p, s, q0, q1, kv0, kv1);
      if (c != TILE_EMPTY) return Tile{todo.lo++, c == TILE_PARTIAL || kv0 + TileN > s.kv_len};
    }
    return Tile{-1, false};
  }
};

// A block's share of the q tiles of a kv tile, number `split` of num_splits. The q tiles of all heads of the
// group form one sequence, divided into equal parts as if no head had fewer tiles than another.
struct QShare {
  int split;

  // The number of blocks that share a kv tile. If it is above one, they leave dk and dv to luattn_finish.
  LUATTN_FN int count(const LuattnParams &p) { return p.schedule.num_splits; }
  // The range of the group's heads in which the share has tiles.
  __device__ __forceinline__ int first(const LuattnParams &p) const {
    return split * p.shape.group / p.schedule.num_splits;
  }
  __device__ __forceinline__ int end(const LuattnParams &p) const {
    return ceil_div((split + 1) * p.shape.group, p.schedule.num_splits);
  }
  // The share's tiles of query head h.
  __device__ __forceinline__ Range of(const LuattnParams &p, Range tiles, int h) const {
    const int from = split * p.shape.group - h % p.shape.group * p.schedule.num_splits, count = tiles.hi - tiles.lo;
    return {tiles.lo + count * max_of(from, 0) / p.schedule.num_splits,
            tiles.lo + count * min_of(from + p.shape.group, p.schedule.num_splits) / p.schedule.num_splits};
  }
};

// A tile is unmasked if all TileM x TileN pairs are kept and inside both lengths. Here a row past q_len would
// be summed into dk and dv, and a column past kv_len into the gradients of inputs, so either makes the tile
// masked.
template <class Spec, int TileM, int TileN>
struct QTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  int kv0, kv1;
  bool ragged;
  Range todo;

  // Requires kv_tile * TileN < kv_len.
  template <class Sequence>
  __device__ __forceinline__ QTiles(const LuattnParams &p, const Sequence &s, int kv_tile) {
    static_assert(Sequence::is_line, "tiles are cut from positions 0 to q_len and kv_len");
    kv0 = kv_tile * TileN;
    kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    ragged = kv0 + TileN > s.kv_len;
    todo = tiles_of(kept_queries<Spec>(p, s, kv0, kv1), s.q_len, TileM);
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    if constexpr (Spec::has_tile_bits) {
      const CellBits<true> bits(p, s);
      if (bits.known()) todo.lo = bits.next_kept(kv0, kv1, todo.lo, todo.hi, TileM);
    }
    for (; todo.lo < todo.hi; ++todo.lo) {
      const int q0 = todo.lo * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1;
      const TileClass c = class_of<Spec, true>(p, s, q0, q1, kv0, kv1);
      if (c != TILE_EMPTY) return Tile{todo.lo++, c == TILE_PARTIAL || ragged || q0 + TileM > s.q_len};
    }
    return Tile{-1, false};
  }
};

// The kv tiles that the mask may leave for rows q0 .. q1, of a line; else {0, 0}.
template <class Spec, int TileN, class Sequence>
LUATTN_FN Range kv_tiles_of(const LuattnParams &p, const Sequence &s, int q0, int q1) {
  if constexpr (Sequence::is_line)
    return tiles_of(kept_keys<Spec>(p, s, q0, q1), s.kv_len, TileN);
  else
    return {0, 0};
}

// The walks of a Sequence. One whose positions lie along no line specialises these, with walks that have the same
// functions.
template <class Spec, class Sequence, int TileM, int TileN>
struct KvTilesKind {
  using type = KvTiles<Spec, TileM, TileN>;
};
template <class Spec, class Sequence, int TileM, int TileN>
using KvTilesOf = typename KvTilesKind<Spec, Sequence, TileM, TileN>::type;
template <class Spec, class Sequence, int TileM, int TileN>
struct QTilesKind {
  using type = QTiles<Spec, TileM, TileN>;
};
template <class Spec, class Sequence, int TileM, int TileN>
using QTilesOf = typename QTilesKind<Spec, Sequence, TileM, TileN>::type;

#ifdef LUATTN_CHUNKS
#include "work/chunk_walk.cuh"
#endif
