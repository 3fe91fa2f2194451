// work/packed_scheduler.cuh: the tile scheduler of packed sequences in the sm90 family's forward. With a tile table,
// sequences come one after another, the longest first: what starts last is short. Heads come in groups whose K and V
// stay in the L2 cache, and each tile for all heads of a group. Without a table, tiles are those of as many sequences
// of the longest one's length, in the order of a batch of equal lengths, and the producer passes over tiles that a
// sequence lacks.
#pragma once
#include "work/tile_scheduler.cuh"
#include "work/tile_table.cuh"

// Every block draws its tiles from the work counter, because lengths differ.
template <class Config, bool BatchesTogether>
struct PackedTileScheduler : TileScheduler<true, BatchesTogether> {
  using Base = TileScheduler<true, BatchesTogether>;
  using Base::index, Base::p;
  const TileTable table;
  const u32 tiles;  // of all heads

  __device__ __forceinline__ explicit PackedTileScheduler(const LuattnParams &params)
      : Base(params),
        table(TileTable::of<false, Config::tile_m>(params)),
        tiles(table.known() ? table.count() * u32(params.shape.heads) : params.order.tiles) {}
  __device__ __forceinline__ bool valid() const { return index < tiles; }
  __device__ __forceinline__ BlockSite site() const {
    if (!table.known()) return Base::site();
    const u32 heads = u32(p.shape.heads), together = TileTable::all(p).together, each = tiles / heads * together;
    const u32 group = index / each, rest = index - group * each, first = group * together,
              size = min_of(together, heads - first), rank = rest / size, h = first + (rest - rank * size);
    const LuattnPackedTile at = table[rank];
    return {int(at.tile), int(h), int(at.entry), int(quotient(h, p.order.group))};
  }
  __device__ __forceinline__ void draw() {
    if (threadIdx.x % 32 == 0) this->drawn = atomicInc(p.scratch.work_counter, tiles - 1);
  }
};

template <>
struct TileSchedulerKind<true> {
  template <class Spec, class Config>
  using type = PackedTileScheduler<Config, Spec::bias_row_shared>;
};
