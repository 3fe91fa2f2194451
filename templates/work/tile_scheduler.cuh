// work/tile_scheduler.cuh: the tile scheduler of forward. site_of is the order of the q tiles of all heads,
// for every tensor-core kernel. TileScheduler says which block takes which tile, for persistent kernels
// (sm90). With Ordered, they take the tiles in the order of work/tile_order.cuh, if there is one.
#pragma once
#include "arch/divisor.cuh"
#include "contract/contract.cuh"
#include "work/tile_order.cuh"

struct BlockSite {
  int q_tile, h, b, h_kv;

  // For kernels with a block for each q tile of the longest entry: by the order of the grid, where the long
  // rows of a causal mask come first; by the order of site_of.
  template <bool Ordered>
  LUATTN_FN BlockSite of_grid(const LuattnParams &p) {
    if constexpr (Ordered)
      if (tile_order_of(p).tiles != nullptr) return of_order(p);
    const int h = int(blockIdx.y);
    return {int(gridDim.x - 1 - blockIdx.x), h, int(blockIdx.z), h / p.shape.group};
  }
  template <bool Ordered>
  LUATTN_FN BlockSite of_block(const LuattnParams &p);
  // The kv head of a query head, without a division.
  LUATTN_FN int kv_head(const LuattnParams &p, int h);

 private:
  LUATTN_FN BlockSite of_order(const LuattnParams &p) {
    const LuattnTileOrder &o = tile_order_of(p);
    const HeadRank at =
        head_rank(o, blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), gridDim.y * gridDim.z);
    const int b = int(at.head / gridDim.y), h = int(at.head % gridDim.y);
    return {int(ranked_tiles(o, b, h)[at.rank]), h, b, h / p.shape.group};
  }
};

// Returns tile `index` of o.tiles. Heads form groups of sizes as equal as whole kv heads allow, and the heads
// of a group are neighbours. Within a group the last queries come first: under a causal mask they take
// longest, and a long tile that starts last would leave other multiprocessors idle. A group should have
// enough tiles to hide its own longest one, and no more, because the K and V of its heads share the L2 cache
// (runtime/call/order.h).
LUATTN_FN BlockSite site_of(const LuattnOrder &o, u32 index) {
  const u32 group = quotient(index, o.group_tiles), within = index - group * o.group_tiles.d;
  const LuattnDivisor &heads = o.group_heads[group == o.last];
  const u32 row = quotient(within, heads), head = group * o.group_heads[0].d + (within - row * heads.d);
  const u32 b = quotient(head, o.heads), h = head - b * o.heads.d;
  return {int(o.q_tiles - 1 - row), int(h), int(b), int(quotient(h, o.group))};
}

__device__ __forceinline__ int BlockSite::kv_head(const LuattnParams &p, int h) {
  return int(quotient(u32(h), p.order.group));
}

// Does the same if all batches read the same bias rows (Spec::bias_row_shared). Batches come one after
// another, so that later ones find the rows in the L2 cache. Without a mask, heads do not mix.
template <bool Masked>
LUATTN_FN BlockSite site_of_batches(const LuattnShape &shape, const LuattnOrder &order, u32 index) {
  const u32 batch = u32(shape.batch), heads = u32(shape.heads);
  if constexpr (Masked) {
    const BlockSite s = site_of(order, index);
    const u32 head = u32(s.b) * heads + u32(s.h), h = head / batch;
    return {s.q_tile, int(h), int(head - h * batch), int(quotient(h, order.group))};
  }
  const u32 row = index / batch, h = row / order.q_tiles;
  return {int((h + 1) * order.q_tiles - 1 - row), int(h), int(index - row * batch), int(quotient(h, order.group))};
}

// The same in the order of the tiles' lengths. `order` is of the tiles that are not among the first ranks.
template <bool Masked, bool BatchesTogether>
LUATTN_FN BlockSite site_in_order(const LuattnTileOrder &o, const LuattnShape &shape, const LuattnOrder &order,
                                  u32 index) {
  const u32 all = u32(shape.batch) * u32(shape.heads), begin = o.first * all;
  BlockSite s;
  u32 rank;
  if (index < begin) {
    rank = index / all;
    const u32 head = index - rank * all, by = u32(BatchesTogether ? shape.batch : shape.heads), outer = head / by,
              inner = head - outer * by, h = BatchesTogether ? outer : inner;
    s = {0, int(h), int(BatchesTogether ? inner : outer), int(quotient(h, order.group))};
  } else {
    if constexpr (BatchesTogether)
      s = site_of_batches<Masked>(shape, order, index - begin);
    else
      s = site_of(order, index - begin);
    rank = o.count - 1 - u32(s.q_tile);  // site_of counts tiles from the last one
  }
  s.q_tile = int(ranked_tiles(o, s.b, s.h)[rank]);
  return s;
}

template <bool Ordered>
__device__ __forceinline__ BlockSite BlockSite::of_block(const LuattnParams &p) {
  const u32 index = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if constexpr (Ordered)
    if (tile_order_of(p).tiles != nullptr) return site_in_order<true, false>(tile_order_of(p), p.shape, p.order, index);
  return site_of(p.order, index);
}

// The tiles of a persistent block. Without a mask all tiles take equally long, and a block takes every
// gridDim.x-th tile. With a mask, the block's first tile is the one of its number, and it draws each further
// tile from the work counter; the longest tiles are drawn first. The counter is 0 before and after a launch:
// a block draws once for each tile that it takes, so the total number of draws is known, and the last draw
// resets the counter. Called by one warp: draw(), and later, when the answer has had time to arrive,
// advance().
template <bool Masked, bool BatchesTogether = false, bool Ordered = false>
struct TileScheduler {
  const LuattnParams &p;
  u32 index;
  u32 drawn;  // only in lane 0, and possibly in flight

  __device__ __forceinline__ explicit TileScheduler(const LuattnParams &params)
      : p(params), index(blockIdx.x), drawn(0) {}
  __device__ __forceinline__ bool valid() const { return index < p.order.tiles; }
  __device__ __forceinline__ BlockSite site() const {
    if constexpr (Ordered)
      if (tile_order_of(p).tiles != nullptr)
        return site_in_order<Masked, BatchesTogether>(tile_order_of(p), p.shape, p.order, index);
    if constexpr (BatchesTogether) return site_of_batches<Masked>(p.shape, p.order, index);
    return site_of(p.order, index);
  }
  __device__ __forceinline__ void draw() {
    if constexpr (Masked)
      if (threadIdx.x % 32 == 0) drawn = atomicInc(p.scratch.work_counter, p.order.tiles - 1);
  }
  __device__ __forceinline__ void advance() {
    if constexpr (Masked)
      index = gridDim.x + __shfl_sync(0xffffffffu, drawn, 0);
    else
      index += gridDim.x;
  }
};

// The scheduler of a persistent kernel: this one, or that of work/packed_scheduler.cuh.
template <bool Packed, bool Paged = false>
struct TileSchedulerKind {
  template <class Spec, class Config>
  using type = TileScheduler<Spec::has_mask, Spec::bias_row_shared, Spec::has_tile_bits>;
};
// Over keys in pages, every block draws its tiles, because lengths differ.
template <bool Packed>
struct TileSchedulerKind<Packed, true> {
  template <class Spec, class Config>
  using type = TileScheduler<true, Spec::bias_row_shared>;
};
template <class Spec, class Config>
using TileSchedulerOf = typename TileSchedulerKind<Config::packed, Config::paged>::template type<Spec, Config>;

#ifdef LUATTN_TILE_TABLE
#include "work/packed_scheduler.cuh"  // a specialisation, which whoever names the scheduler must have seen
#endif
