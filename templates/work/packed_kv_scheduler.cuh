// work/packed_kv_scheduler.cuh: the order of kv tiles of packed sequences in the sm90 family's backward, which always
// has a tile table. Sequences come one after another, the longest first, and in a sequence heads: blocks that run
// together share q, dO and dQ in the L2 cache, and rows of all heads, which lie beside each other. Of the last
// sequences each tile comes for all heads, the first tiles of all these sequences first if they are equally long: with
// a mask, a long tile that starts last would leave other multiprocessors idle.
#pragma once
#include "arch/warp.cuh"
#include "work/kv_tile_scheduler.cuh"
#include "work/tile_table.cuh"

template <class Spec, class Config, int Together>
struct PackedKvTileScheduler {
  const LuattnParams &p;

  __device__ __forceinline__ explicit PackedKvTileScheduler(const LuattnParams &params) : p(params) {}
  __device__ __forceinline__ u32 draw_number() const {
    u32 drawn = 0;
    if (threadIdx.x % 32 == 0) drawn = atomicAdd(p.scratch.dq_order, 1u);
    return uniform(drawn);
  }
  __device__ __forceinline__ KvBlock draw() const { return block_at(draw_number()); }
  LUATTN_FN bool next(KvBlock &) { return false; }
  // Returns the block of a drawn. Tile -1: no tiles are left.
  __device__ __forceinline__ KvBlock block_at(u32 drawn) const {
    const TileTable table = TileTable::of<true, Together * Config::tile_n>(p);
    const uint4 head = *reinterpret_cast<const uint4 *>(&table.head());  // LuattnPackedHead: rows, columns, count, last
    const u32 heads = u32(p.shape.heads_kv), count = head.z, alone = count - (Spec::has_mask ? head.w : 0);
    u32 rank = drawn / heads, h = drawn - rank * heads;
    if (rank >= count) return {-1, 0, 0, 0};
    const bool is_last = Spec::has_mask && rank >= alone;
    if (is_last) {  // rank counts down the columns
      const u32 i = rank - alone, column = i / head.x;
      if (column < head.y) rank = alone + (i - column * head.x) * head.y + column;
    }
    const LuattnPackedTile at = table[rank];
    u32 tile = at.tile;
    if (!is_last) {
      const u32 rest =
          drawn - (rank - tile) * heads;  // the sequence's tiles of all heads have scheduler one after another
      h = rest / at.count, tile = rest - h * at.count;
    }
    // In the dQ order larger tiles of a head come first; otherwise the first ones, for which a causal mask leaves most
    // work.
    return {int(Needs<Spec, Config>::dq_in_order ? at.count - 1 - tile : tile), int(h), int(at.entry), 0};
  }
};

template <>
struct KvTileSchedulerKind<true> {
  template <class Spec, class Config, int Together>
  using type = PackedKvTileScheduler<Spec, Config, Together>;
};
