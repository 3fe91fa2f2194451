// tma/warp_kv_tiles.cuh: the walk over kv tiles of a producer, a warp that walks for its whole block.
#pragma once
#include "work/tile_walk.cuh"

// Shrinks `tiles` to the range from the first to the last tile that the tile bitmap keeps.
template <class Spec>
LUATTN_FN Range bitmap_hull(const TileBitmap<Spec> &bitmap, Range tiles) {
  if constexpr (Spec::has_score_bounds) {
    if (bitmap.words == nullptr) return tiles;
    int lo = tiles.hi, hi = tiles.lo;
#pragma unroll 1
    for (int w = tiles.lo / 32 + int(threadIdx.x) % 32; w * 32 < tiles.hi; w += 32) {
      const u32 bits = bitmap.words[w];
      if (bits == 0) continue;
      lo = min_of(lo, w * 32 + __ffs(int(bits)) - 1);
      hi = max_of(hi, w * 32 + 32 - __clz(int(bits)));
    }
    tiles.lo = max_of(__reduce_min_sync(0xffffffffu, lo), tiles.lo);
    tiles.hi = min_of(__reduce_max_sync(0xffffffffu, hi), tiles.hi);
  }
  return tiles;
}

// Walks the kv tiles of a q tile, as KvTiles (work/tile_walk.cuh) does, but with a whole warp, whose lanes
// classify 32 tiles at a time. One tile at a time would be too slow for the products if the mask is read from
// memory or leaves many tiles empty. The walk goes downwards, so the diagonal tile of a causal mask comes
// first. The maxima of the first tile are always taken, and scores that fall with the distance from the
// diagonal, as with ALiBi, need no other maxima.
template <class Spec, int TileM, int TileN>
struct WarpKvTiles {
  static_assert(walks_stats<Spec, TileM, TileN>());
  static constexpr bool by_words = Spec::has_tile_bits && has_words(TileN);
  int q0, q1, base;
  u32 present, masked, by_range;  // bits of tiles base, base - 1, .. base - 31 that are still to come
  Range todo;
  TileBitmap<Spec> bitmap;
  // by_words: the words of tiles todo.hi .. todo.hi + 1023, one a lane, and the lanes with tiles that are still to
  // come.
  u32 kept, whole, lanes;

  template <class Sequence>
  __device__ __forceinline__ WarpKvTiles(const LuattnParams &p, const Sequence &s, int q_tile)
      : bitmap(p, s, q_tile, ceil_div(s.q_len, TileM), ceil_div(s.kv_len, TileN)) {
    static_assert(Sequence::is_line, "tiles are cut from positions 0 to q_len and kv_len");
    q0 = q_tile * TileM;
    q1 = min_of(q0 + TileM, s.q_len) - 1;
    const Range keys = has_chunks ? Range{0, s.kv_len} : kept_keys<Spec>(p, s, q0, q1);  // of all chunks
    todo = bitmap_hull(bitmap, tiles_of(keys, s.kv_len, TileN));
    present = masked = by_range = kept = whole = lanes = 0;
    base = 0;
  }

  __device__ __forceinline__ Tile next(const LuattnParams &p, const Site &s) {
    while (present == 0) {
      if (by_words && lanes != 0) {
        take_word();
        continue;
      }
      if (todo.lo >= todo.hi) return Tile{-1, false};
      if constexpr (by_words) {
        const CellBits<false> bits(p, s);
        if (bits.known()) {
          load_words(bits, s);
          continue;
        }
      }
      base = todo.hi - 1;
      const int tile = base - int(threadIdx.x) % 32, kv0 = tile * TileN, kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
#ifdef LUATTN_CHUNKS
      const Site at = in_chunks<Site>(p, s, q0, kv0);
#else
      const Site &at = s;
#endif
      TileClass c = TILE_EMPTY;
      if constexpr (Spec::rows_need_full_data) {
        TileClass rest = TILE_EMPTY;
        if (tile >= todo.lo && bitmap.has(tile)) rest = Spec::data_class(p, at, q0, q1, kv0, kv1);
        if (rest != TILE_EMPTY) c = least_of(rest, Spec::position_class(p, at, q0, q1, kv0, kv1));
        by_range = __ballot_sync(0xffffffffu, rest == TILE_FULL);
      } else if (tile >= todo.lo && bitmap.has(tile)) {
        c = class_of<Spec>(p, at, q0, q1, kv0, kv1);
      }
      present = __ballot_sync(0xffffffffu, c != TILE_EMPTY);
      masked = __ballot_sync(0xffffffffu, c == TILE_PARTIAL || kv0 + TileN > s.kv_len);
      todo.hi -= 32;
    }
    const int i = __ffs(int(present)) - 1;
    present &= present - 1;
    return Tile{base - i, ((masked >> i) & 1u) != 0, false, ((by_range >> i) & 1u) != 0};
  }

 private:
  // Loads the words of the last 1024 tiles at once, because each load takes about a quarter of a tile's time.
  __device__ __forceinline__ void load_words(const CellBits<false> &bits, const Site &s) {
    const int group = (todo.hi - 1) / 1024 * 1024, first = group + int(threadIdx.x) % 32 * 32;
    kept = 0;
    if (first < todo.hi && first + 32 > todo.lo) {
      const TileWord<TileN, false, TileM / LUATTN_CELL> word(bits, q0, q1, first);
      const u32 past = u32(s.kv_len / TileN - first);  // the first tile that is not all inside
      kept = word.kept & tiles_inside(todo, first);
      whole = past < 32 ? word.whole & ~(1u << past) : word.whole;
      if constexpr (Spec::has_score_bounds)
        if (bitmap.words != nullptr) kept &= bitmap.words[first / 32];
    }
    lanes = __ballot_sync(0xffffffffu, kept != 0);
    todo.hi = group;
  }
  // Takes the tiles of the last lane that has some.
  __device__ __forceinline__ void take_word() {
    const int lane = 31 - __clz(int(lanes));
    lanes ^= 1u << lane;
    present = __brev(__shfl_sync(0xffffffffu, kept, lane));
    masked = __brev(~__shfl_sync(0xffffffffu, whole, lane));
    base = todo.hi + lane * 32 + 31;
  }
};

// The walk of a Sequence, as KvTilesOf.
template <class Spec, class Sequence, int TileM, int TileN>
struct WarpKvTilesKind {
  using type = WarpKvTiles<Spec, TileM, TileN>;
};
template <class Spec, class Sequence, int TileM, int TileN>
using WarpKvTilesOf = typename WarpKvTilesKind<Spec, Sequence, TileM, TileN>::type;

#ifdef LUATTN_FREE_BOXES
#include "tma/warp_key_boxes.cuh"
#endif
