// schedule.cuh: in which order the q tiles of all heads are taken. site_of: the order, for every forward
// kernel on the tensor cores. Tickets: which block takes which, for kernels whose blocks take several (sm90).
#pragma once
#include "contract.cuh"

struct BlockSite {
  int q_tile, h, b;
};

// How many tiles hide the longest of them, a few for each multiprocessor.
inline constexpr u32 tiles_for_balance = 640;

// So many kv heads have as many. Unsigned, here and below: a division takes half the instructions.
LUATTN_FN u32 heads_for_balance(const LuattnParams &p, u32 q_tiles) {
  const u32 tiles_of_head = q_tiles * u32(p.group);
  return (tiles_for_balance + tiles_of_head - 1) / tiles_of_head;
}

// Tile `index` of q_tiles * heads * batch. Neighbours are the heads of one of `groups` groups, as equal as
// whole kv heads allow, and within a group the last queries come first: under a causal mask they are the
// longest, and a long one that starts last would leave the other multiprocessors idle. A group should have
// enough tiles to hide its own longest one and no more, because the K and V of its heads share the L2 cache.
LUATTN_FN BlockSite site_of(const LuattnParams &p, u32 q_tiles, u32 index, u32 groups) {
  const u32 heads = u32(p.heads), all = heads * u32(p.batch), all_kv = u32(p.heads_kv) * u32(p.batch);
  const u32 group = (all_kv + groups - 1) / groups * u32(p.group);
  const u32 first = index / (group * q_tiles) * group, within = index - first * q_tiles;
  const u32 size = min_of(group, all - first);  // the last group may be smaller
  const u32 row = within / size, head = first + (within - row * size), b = head / heads;
  return {int(q_tiles - 1 - row), int(head - b * heads), int(b)};
}
// As many groups as have tiles enough.
LUATTN_FN u32 groups_for_balance(const LuattnParams &p, u32 q_tiles) {
  return max_of(q_tiles * u32(p.heads) * u32(p.batch) / tiles_for_balance, 1u);
}

// The tiles of a block that stays on its multiprocessor. Without a mask all take equally long, and a block
// takes every gridDim.x-th. With one, a block's first tile is that of its number, and it draws each further
// one from a counter; the longest are drawn first. The counter is 0 before a launch and after it: a block
// draws once for each tile that it takes, so `count` draws are made in all, and the last of them turns the
// counter back to 0. One warp calls: draw, and then, when the answer has had time to come, advance.
template <bool Masked, int TileM, int KvBytes>
struct Tickets {
  const LuattnParams &p;
  const u32 q_tiles, count;
  u32 index;
  u32 drawn;  // lane 0's alone, and still on its way

  __device__ __forceinline__ explicit Tickets(const LuattnParams &params)
      : p(params),
        q_tiles(u32(ceil_div(params.q_len, TileM))),
        count(q_tiles * u32(params.heads) * u32(params.batch)),
        index(blockIdx.x),
        drawn(0) {}
  __device__ __forceinline__ bool valid() const { return index < count; }
  // Without a mask one head after the other, so that all blocks read the same K and V. With one as many as
  // balance takes, if their K and V stay in the L2 cache, or if they are so few that its misses do not
  // matter.
  __device__ __forceinline__ u32 kv_heads() const {
    constexpr u32 cache_bytes = 32u << 20, few = 4;  // about half of the cache of an H100 or H200
    if constexpr (!Masked) return 1;
    const u32 fitting = cache_bytes / u32(KvBytes) / u32(max_of(p.kv_len, 1));
    return min_of(heads_for_balance(p, q_tiles), max_of(fitting, few));
  }
  __device__ __forceinline__ BlockSite site_at(u32 ticket) const {
    return site_of(p, q_tiles, ticket, max_of(u32(p.heads_kv) * u32(p.batch) / kv_heads(), 1u));
  }
  __device__ __forceinline__ BlockSite site() const { return site_at(index); }
  __device__ __forceinline__ void draw() {
    if constexpr (Masked)
      if (threadIdx.x % 32 == 0) drawn = atomicInc(p.tickets, count - 1);
  }
  __device__ __forceinline__ void advance() {
    if constexpr (Masked)
      index = gridDim.x + __shfl_sync(0xffffffffu, drawn, 0);
    else
      index += gridDim.x;
  }
};
