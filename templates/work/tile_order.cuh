// work/tile_order.cuh: the order in which blocks take the tiles of a head whose tile bits are known (LuattnTileOrder,
// which luattn_tile_order writes): the longest first, because a long tile that starts last would leave other
// multiprocessors idle.
//
// The first ranks of all heads come before all others. Then heads come as they do without an order, so that those
// that run together share the L2 cache.
#pragma once
#include "ops/hook_types.cuh"

LUATTN_FN const LuattnTileOrder &tile_order_of(const LuattnParams &p) {
  return static_cast<const LuattnTileBitsParams &>(p).tile_order;
}

// The tiles by rank, of batch entry b and head h (backward: kv head).
LUATTN_FN const u32 *ranked_tiles(const LuattnTileOrder &o, int b, int h) {
  const u32 set = (o.batch > 1 ? u32(b) * o.heads : 0) + (o.heads > 1 ? u32(h) : 0);
  return o.tiles + i64(set) * 2 * o.count;
}

// A tile's rank, and its head among those of all batch entries.
struct HeadRank {
  u32 head, rank;
};
// For index `index` of the tiles of `heads` heads, which come one after another.
LUATTN_FN HeadRank head_rank(const LuattnTileOrder &o, u32 index, u32 heads) {
  const u32 begin = o.first * heads;
  if (index < begin) return {index % heads, index / heads};
  const u32 rest = index - begin, each = o.count - o.first, head = rest / each;
  return {head, o.first + (rest - head * each)};
}
