// work/packed_kv_scheduler.cuh: the order of kv tiles of packed sequences in the sm90 family's backward, which always has a tile
// table. Heads come one after another, and the sequences of a head the longest first, so that blocks that run together share q,
// dO and dQ in the L2 cache. The last heads come together: a long tile that starts last would leave other multiprocessors idle.
#pragma once
#include "work/kv_tile_scheduler.cuh"
#include "work/tile_table.cuh"

template <class Spec, class Config, int Together>
struct PackedKvTileScheduler {
  const LuattnParams &p;

  __device__ __forceinline__ explicit PackedKvTileScheduler(const LuattnParams &params) : p(params) {}
  __device__ __forceinline__ u32 draw_ticket() const {
    u32 ticket = 0;
    if (threadIdx.x % 32 == 0) ticket = atomicAdd(p.scratch.turns, 1u);
    return uniform(ticket);
  }
  __device__ __forceinline__ KvBlock draw() const { return block_at(draw_ticket()); }
  LUATTN_FN bool next(KvBlock &) { return false; }
  // Returns the block of a ticket. Tile -1: no tiles are left.
  __device__ __forceinline__ KvBlock block_at(u32 ticket) const {
    const TileTable table = TileTable::of<true, Together * Config::tile_n>(p);
    const u32 count = table.count(), heads = u32(p.shape.heads_kv), together = TileTable::all(p).together;
    if (ticket >= count * heads) return {-1, 0, 0, 0};
    const u32 alone = heads - together, first = alone * count;
    const bool last = ticket >= first;
    const u32 rest = last ? ticket - first : ticket, by = last ? together : count, quotient = rest / by,
              remainder = rest - quotient * by;
    return last ? block(table, quotient, alone + remainder) : block(table, remainder, quotient);
  }

 private:
  // In the dQ order larger tiles of a head come first; otherwise the first ones, for which a causal mask leaves most work.
  LUATTN_FN KvBlock block(const TileTable &table, u32 rank, u32 h) {
    const LuattnPackedTile at = table[rank];
    const u32 tile = Needs<Spec, Config>::dq_in_order ? at.count - 1 - at.tile : at.tile;
    return {int(tile), int(h), int(at.entry), 0};
  }
};

template <>
struct KvTileSchedulerKind<true> {
  template <class Spec, class Config, int Together>
  using type = PackedKvTileScheduler<Spec, Config, Together>;
};
