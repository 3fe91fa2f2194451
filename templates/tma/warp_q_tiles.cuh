// tma/warp_q_tiles.cuh: the walk over q tiles of a backward producer, a warp that walks for its whole block.
#pragma once
#include "tma/warp_kv_tiles.cuh"

// Walks the q tiles of a kv tile, as QTiles (work/tile_walk.cuh) does, over a share of the tiles and with a
// whole warp, whose lanes classify 32 tiles at a time. With Halves, the lanes also classify each half of the
// kv tile, one for each consumer. A half may keep nothing. With Whole, a tile stays in the walk if it is not
// empty as a whole, even if both halves are, because other blocks classify only the whole. With SameBucket,
// the lanes compute Tile::same_bucket.
template <class Spec, int TileM, int TileN, bool Halves = false, bool Whole = false,
          bool SameBucket = Spec::may_be_same_bucket>
struct WarpQTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  static constexpr bool by_words = Spec::has_tile_bits && has_words(TileM) && (!Halves || TileN == 2 * LUATTN_CELL);
  int kv0, kv1, base;
  bool ragged;
  u32 present, masked, same_bucket, by_range;  // bits of tiles base .. base + 31 that are still to come
  u32 none[2], all[2];                         // tiles where each half keeps nothing; all, inside the lengths
  Range todo;
  TileBitmap<Spec> bitmap;
  // Describes the tile that `next` returned last. Bits 0 and 1: half 0 or 1 keeps nothing of it. Bits 2 and
  // 3: half 0 or 1 keeps everything.
  u32 halves;

  // An empty walk.
  __device__ __forceinline__ WarpQTiles()
      : kv0(0),
        kv1(0),
        base(0),
        ragged(false),
        present(0),
        masked(0),
        same_bucket(0),
        by_range(0),
        todo{0, 0},
        halves(0) {}
  template <class Sequence>
  __device__ __forceinline__ WarpQTiles(const LuattnParams &p, const Sequence &s, int kv_tile, QShare share)
      : bitmap(p, s, kv_tile, ceil_div(s.kv_len, TileN), ceil_div(s.q_len, TileM)) {
    static_assert(Sequence::is_line, "tiles are cut from positions 0 to q_len and kv_len");
    kv0 = kv_tile * TileN;
    kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    ragged = kv0 + TileN > s.kv_len;
    const Range queries = has_chunks ? Range{0, s.q_len} : kept_queries<Spec>(p, s, kv0, kv1);  // of all chunks
    todo = share.of(p, bitmap_hull(bitmap, tiles_of(queries, s.q_len, TileM)), s.h);
    present = masked = same_bucket = by_range = halves = 0;
    base = 0;
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (todo.lo >= todo.hi) return Tile{-1, false};
      if constexpr (by_words) {
        const CellBits<true> bits(p, s);
        if (bits.known()) {
          take_word(bits, p, s);
          continue;
        }
      }
      base = todo.lo;
      const int tile = base + int(threadIdx.x) % 32, q0 = tile * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1;
      const bool inside = !ragged && q0 + TileM <= s.q_len;
#ifdef LUATTN_CHUNKS
      const Site at = in_chunks<Site>(p, s, q0, kv0);
#else
      const Site &at = s;
#endif
      TileClass rest = TILE_EMPTY, c = TILE_EMPTY;
      if (tile < todo.hi && bitmap.has(tile)) {
        rest = TILE_FULL;
        if constexpr (Spec::columns_need_full_data) rest = Spec::data_class(p, at, q0, q1, kv0, kv1);
      }
      if constexpr (Halves)
        c = classify_halves(p, at, rest, q0, q1, inside);
      else if (rest != TILE_EMPTY)
        c = least_of(rest, other_class(p, at, q0, q1, kv0, kv1));
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || !inside);
      if constexpr (Spec::columns_need_full_data) by_range = __ballot_sync(0xffffffffu, rest == TILE_FULL);
      if constexpr (SameBucket)
        same_bucket = __ballot_sync(0xffffffffu, kv0 < kv1 && Spec::same_bucket(p, at, q0, q1, kv0, kv1));
      todo.lo += 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    if constexpr (Halves)
      halves = (none[0] >> i & 1) | (none[1] >> i & 1) << 1 | (all[0] >> i & 1) << 2 | (all[1] >> i & 1) << 3;
    return Tile{base + i, ((masked >> i) & 1u) != 0, ((same_bucket >> i) & 1u) != 0, ((by_range >> i) & 1u) != 0};
  }

 private:
  // Takes the first 32 tiles, which may all be empty.
  __device__ __forceinline__ void take_word(const CellBits<true> &bits, const LuattnParams &p, const Site &s) {
    base = todo.lo / 32 * 32;
    const int tile = base + int(threadIdx.x) % 32, q0 = tile * TileM;
    const u32 inside = __ballot_sync(0xffffffffu, !ragged && q0 + TileM <= s.q_len);
    if constexpr (Halves) {
      present = 0, masked = ~inside;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = kv0 + half * LUATTN_CELL;
        const TileWord<TileM, true> word(bits, key, min_of(kv1, key), base);  // none if the half lies past the end
        none[half] = ~word.kept, all[half] = word.whole & inside;
        present |= word.kept, masked |= ~word.whole;
      }
    } else {
      const TileWord<TileM, true> word(bits, kv0, kv1, base);
      present = word.kept, masked = ~(word.whole & inside);
    }
    present &= tiles_inside(todo, base);
    if constexpr (Spec::has_score_bounds) present &= __ballot_sync(0xffffffffu, tile < todo.hi && bitmap.has(tile));
    if constexpr (SameBucket)
      same_bucket =
          __ballot_sync(0xffffffffu, kv0 < kv1 && tile < todo.hi &&
                                         Spec::same_bucket(p, s, q0, min_of(q0 + TileM, s.q_len) - 1, kv0, kv1));
    todo.lo = base + 32;
  }
  // The class of a tile by all conditions that data_class does not cover.
  LUATTN_FN TileClass other_class(const LuattnParams &p, const Site &s, int q0, int q1, int lo, int hi) {
    if constexpr (Spec::columns_need_full_data)
      return Spec::position_class(p, s, q0, q1, lo, hi);
    else
      return class_of<Spec, true>(p, s, q0, q1, lo, hi);
  }
  __device__ __forceinline__ TileClass classify_halves(const LuattnParams &p, const Site &s, TileClass rest, int q0,
                                                       int q1, bool inside) {
    u32 kept = 0, full = 0;  // of halves 0 and 1
    bool some = false;       // of the whole tile
    // Classifies the whole tile first. If no lane's tile is partly kept, as far from a causal diagonal, the
    // halves need no classes of their own.
#pragma unroll 1
    for (int part = -1; part < 2; ++part) {
      const int lo = kv0 + (part > 0 ? TileN / 2 : 0), hi = part == 0 ? min_of(lo + TileN / 2 - 1, kv1) : kv1;
      TileClass c = TILE_EMPTY;
      if (rest != TILE_EMPTY && lo <= hi) c = least_of(rest, other_class(p, s, q0, q1, lo, hi));
      const u32 bits = part < 0 ? 3 : 1 << part;
      kept = (kept & ~bits) | (c != TILE_EMPTY ? bits : 0);
      full = (full & ~bits) | (c == TILE_FULL && inside ? bits : 0);
      if (Whole && part < 0) some = c != TILE_EMPTY;
      if (part < 0 && !ragged && __all_sync(0xffffffffu, c != TILE_PARTIAL)) break;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      none[half] = __ballot_sync(0xffffffffu, (kept >> half & 1) == 0);
      all[half] = __ballot_sync(0xffffffffu, (full >> half & 1) != 0);
    }
    return (Whole ? !some : kept == 0) ? TILE_EMPTY : full == 3 ? TILE_FULL : TILE_PARTIAL;
  }
};

// The walk of a Sequence, as QTilesOf.
template <class Spec, class Sequence, int TileM, int TileN, bool Halves, bool Whole>
struct WarpQTilesKind {
  using type = WarpQTiles<Spec, TileM, TileN, Halves, Whole>;
};
template <class Spec, class Sequence, int TileM, int TileN, bool Halves = false, bool Whole = false>
using WarpQTilesOf = typename WarpQTilesKind<Spec, Sequence, TileM, TileN, Halves, Whole>::type;
