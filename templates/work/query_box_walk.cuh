// work/query_box_walk.cuh: the walk over boxes of queries of a backward kernel over a grid, by a warp: a producer's for its whole
// block (tma/warp_q_boxes.cuh), or where there is none each warp's own; and the order in which a deterministic backward adds
// to a box of queries.
#pragma once
#include "work/box_walk.cuh"
#include "work/dq_order.cuh"

// Walks a share of the boxes of queries of one of keys, of which lanes classify 32 at a time. With Halves, they also
// classify each half of the box of keys, one for each consumer. With InOrder, a box stays in the walk if it is not empty as
// a whole, and only if it is among those that dq_order_before finds.
template <class Spec, bool Halves, bool InOrder>
struct QueryBoxWalk {
  using Queries = GridSideOf<false>;
  using Keys = GridSideOf<true>;
  BoxWalk<Spec, false> walk;
  Range todo;
  u32 present;  // bits of the 32 at work that are still to come
  u32 mine;     // of the lane's one: its number times 32, 1 if it is masked, and `halves` times 2
  u32 halves;   // as WarpQTiles (tma/warp_q_tiles.cuh)

  // An empty walk.
  __device__ __forceinline__ QueryBoxWalk() : todo{0, 0}, present(0), halves(0) {}
  __device__ __forceinline__ QueryBoxWalk(const LuattnParams &p, const GridSequence &s, int kv_tile, QShare share)
      : walk(p, s, kv_tile), todo(share.of(p, {0, walk.end}, s.h)), present(0), halves(0) {}

  // All of them.
  __device__ __forceinline__ QueryBoxWalk(const LuattnParams &p, const GridSequence &s, int kv_tile)
      : walk(p, s, kv_tile), todo{0, walk.end}, present(0), halves(0) {}

  __device__ __forceinline__ Tile next(const LuattnParams &p, const GridSequence &s) {
    while (present == 0) {
      if (todo.lo >= todo.hi) return Tile{-1, false};
      classify(p, s, todo.lo + int(threadIdx.x) % 32);
      todo.lo += 32;
    }
    const u32 found = __shfl_sync(0xffffffffu, mine, __ffs(int(present)) - 1);
    present &= present - 1;
    if constexpr (Halves) halves = found >> 1 & 15;
    return Tile{int(found >> 5), (found & 1) != 0};
  }

  // Whether the walk of a box of keys has a box of queries, with InOrder.
  LUATTN_FN bool has(const LuattnParams &p, const GridSequence &s, int kv_tile, int q_tile) {
    return BoxWalk<Spec, false>(p, s, kv_tile).has(p, q_tile) && BoxWalk<Spec, true>(p, s, q_tile).has(p, kv_tile) &&
           class_of_boxes<Spec>(p, s, q_tile * Queries::rows, kv_tile * Keys::rows) != TILE_EMPTY;
  }

 private:
  __device__ __forceinline__ void classify(const LuattnParams &p, const GridSequence &s, int at) {
    const int key = walk.own, tile = at < todo.hi ? walk.number(p, at) : 0, query = tile * Queries::rows;
    const bool inside = Keys::has_all(p, key) && Queries::has_all(p, query);
    mine = u32(tile) << 5;
    bool some = at < todo.hi && (!InOrder || BoxWalk<Spec, true>(p, s, tile).has(p, key / Keys::rows));
    u32 none = 0;
    // The box as a whole, then each half of its keys, unless nothing is kept in part, as far from the mask's bounds.
#pragma unroll 1
    for (int part = -1; part < (Halves ? 2 : 0); ++part) {
      const int keys = part < 0 ? Keys::rows : Keys::rows / 2;
      TileClass c = TILE_EMPTY;
      if (some) c = class_of_parts<Spec>(p, s, query, Queries::rows, key + max_of(part, 0) * keys, keys);
      const bool whole = c == TILE_FULL && inside;
      if (part < 0) {
        some = c != TILE_EMPTY;
        mine |= u32(!whole) | (Halves ? u32(!some) * 6 | u32(whole) * 24 : 0);
        if (Halves && __all_sync(0xffffffffu, c != TILE_PARTIAL)) break;
        mine &= ~30u;
      } else {
        none += u32(c == TILE_EMPTY);
        mine |= u32(c == TILE_EMPTY) << (1 + part) | u32(whole) << (3 + part);
      }
    }
    if (Halves && !InOrder) some = some && none < 2;
    present = __ballot_sync(0xffffffffu, some);
  }
};

// As dq_order_before of a line: the number of the next box of keys with this box of queries, plus 1. It lies in the range
// of boxes of these queries, so few are asked.
template <class Spec, int TileM, int TileN>
LUATTN_FN u32 dq_order_before(const LuattnParams &p, const GridSequence &s, int q_tile, int kv_tile) {
  const BoxWalk<Spec, true> of_q(p, s, q_tile);
#pragma unroll 1
  for (int base = of_q.rank(p, kv_tile) + 1; base < of_q.end; base += 32) {
    const int at = base + int(threadIdx.x) % 32, tile = at < of_q.end ? of_q.number(p, at) : kv_tile;
    const u32 found =
        __ballot_sync(0xffffffffu, at < of_q.end && QueryBoxWalk<Spec, false, true>::has(p, s, tile, q_tile));
    if (found != 0) return u32(__shfl_sync(0xffffffffu, tile, __ffs(int(found)) - 1)) + 1;
  }
  return 0;
}
