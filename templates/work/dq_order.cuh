// work/dq_order.cuh: the order in which blocks add to dq_acc in deterministic backward
// (Config::deterministic).
//
// The blocks' contributions to dq of a q tile are the same in each run, but their sum depends on the order,
// because each addition rounds. So the kv tiles of a q tile add in a fixed order, the last one first. A
// semaphore in memory holds 1 + the kv tile that added last, and 0 at first. Each block finds its predecessor
// by itself: the next kv tile above it that has the same q tile. It waits for that one only, adds, and writes
// its own number. If kv tiles are taken in another order (work/tile_order.cuh), it is the order of additions, too:
// "above" then means an earlier rank.
//
// A block waits for blocks of the same head with a larger kv tile. Tiles are drawn from a work counter,
// larger ones first, so a block's predecessors have always begun before it, and the very first block waits
// for nobody. Hence there is no deadlock in any schedule. Starting with the last kv tile suits a causal mask:
// a block begins with the diagonal, where it is the first, and by then every block above it has finished its
// second q tile.
//
// p.scratch.dq_order[0] is the work counter, and the semaphores begin at LUATTN_DQ_ORDER_FIRST. The runtime zeroes
// all of them, and dq_acc, before each launch. In the sm90 family luattn_prepare zeroes them instead, and
// dq_acc is not zeroed: the first block of a q tile stores its part, and luattn_finish takes a q tile as 0 if
// nobody has written its semaphore.
#pragma once
#include "work/tile_order.cuh"
#include "work/tile_walk.cuh"

// The position of a block of luattn_dkdv: its kv tile, kv head and batch, and which of num_splits shares of
// the kv tile's q tiles it has.
struct KvBlock {
  int tile, h, b, split;

  // For kernels with a block for each kv tile: by the order of the grid; drawn from the work counter.
  LUATTN_FN KvBlock of_grid() { return {int(blockIdx.x), int(blockIdx.y), int(blockIdx.z), 0}; }
  // With Ordered, in the order of work/tile_order.cuh, if there is one.
  template <bool Ordered>
  LUATTN_FN KvBlock of_grid(const LuattnParams &p) {
    if constexpr (Ordered)
      if (tile_order_of(p).tiles != nullptr) {
        const LuattnTileOrder &o = tile_order_of(p);
        const HeadRank at =
            head_rank(o, blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), gridDim.y * gridDim.z);
        const int b = int(at.head / gridDim.y), h = int(at.head % gridDim.y);
        return {int(ranked_tiles(o, b, h)[at.rank]), h, b, 0};
      }
    return of_grid();
  }
  template <bool Ordered>
  LUATTN_FN KvBlock drawn(const LuattnParams &p);
};

// Returns the tile for a value of the work counter. Each of `all` heads has `tiles` kv tiles in shares of
// their q tiles, and a batch has heads_kv heads. The shares of a kv tile are consecutive, so that all tiles
// above have begun. Without a mask a block follows the one above through all q tiles, so blocks of
// neighbouring tiles that begin together would wait for each other. Hence heads form groups with at least
// `together` tiles, and a group takes one tile of each head before the next tile of any: blocks that begin
// together have different heads. A group fills the GPU, but no more, because its reads and additions share
// the L2 cache.
LUATTN_FN KvBlock kv_block_of(u32 drawn, u32 kv_tiles, u32 heads_kv, u32 all, u32 splits, u32 together) {
  const u32 tiles = kv_tiles * splits;
  u32 heads = 1;
  while (heads * tiles < together) heads *= 2;
  const u32 group = drawn / (heads * tiles), first = group * heads, within = drawn - first * tiles;
  const u32 size = min_of(heads, all - first), row = within / size, head = first + (within - row * size),
            b = head / heads_kv;
  return {int(kv_tiles - 1 - row / splits), int(head - b * heads_kv), int(b), int(row % splits)};
}
// The same with ranks instead of tiles counted from the last one: the first ranks of all heads, then groups of heads.
LUATTN_FN KvBlock kv_block_in_order(const LuattnTileOrder &o, u32 drawn, u32 heads_kv, u32 all, u32 splits,
                                    u32 together) {
  const u32 begin = o.first * splits * all;
  KvBlock at;
  u32 rank;
  if (drawn < begin) {
    const u32 row = drawn / all, head = drawn - row * all, b = head / heads_kv;
    at = {0, int(head - b * heads_kv), int(b), int(row % splits)};
    rank = row / splits;
  } else {
    at = kv_block_of(drawn - begin, o.count - o.first, heads_kv, all, splits, together);
    rank = o.count - 1 - u32(at.tile);
  }
  at.tile = int(ranked_tiles(o, at.b, at.h)[rank]);
  return at;
}
// Draws the tile of the block, in one thread. Every block of the grid (kv tiles, kv heads, batch and splits)
// draws.
template <bool Ordered>
__device__ __forceinline__ KvBlock KvBlock::drawn(const LuattnParams &p) {
  if constexpr (Ordered)
    if (tile_order_of(p).tiles != nullptr)
      return kv_block_in_order(tile_order_of(p), atomicAdd(p.scratch.dq_order, 1u), gridDim.y,
                               gridDim.y * u32(p.shape.batch), u32(p.schedule.num_splits), 256);
  return kv_block_of(atomicAdd(p.scratch.dq_order, 1u), gridDim.x, gridDim.y, gridDim.y * u32(p.shape.batch),
                     u32(p.schedule.num_splits),
                     256);  // a multiprocessor may have two blocks
}

// Returns the same as dq_order_before, if kv tiles have an order.
template <class Spec, int TileM, int TileN>
LUATTN_FN u32 dq_order_by_rank(const LuattnParams &p, const Site &s, int q_tile, int kv_tile) {
  const LuattnTileOrder &o = tile_order_of(p);
  const u32 group = static_cast<const LuattnTileBitsParams &>(p).bits.heads / o.heads;
  const u32 *ranked = ranked_tiles(o, s.b, int(u32(s.h) / group));
  const int q0 = q_tile * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1;
#pragma unroll 1
  for (int base = int(ranked[o.count + u32(kv_tile)]) - 1; base >= 0; base -= 32) {
    const int rank = base - int(threadIdx.x) % 32, tile = rank >= 0 ? int(ranked[rank]) : 0, kv0 = tile * TileN,
              kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    const bool computed = rank >= 0 &&
                          TileBitmap<Spec>(p, s, tile, int(o.count), ceil_div(s.q_len, TileM)).has(q_tile) &&
                          class_of<Spec>(p, s, q0, q1, kv0, kv1) != TILE_EMPTY;
    const u32 found = __ballot_sync(0xffffffffu, computed);
    if (found != 0) return u32(__shfl_sync(0xffffffffu, tile, __ffs(int(found)) - 1)) + 1;
  }
  return 0;
}

// As dq_order_before, by a walk that says which tiles there are.
template <class Walk, int TileN, class Sequence>
LUATTN_FN u32 dq_order_in_walk(const LuattnParams &p, const Sequence &s, int q_tile, int kv_tile) {
  const int count = ceil_div(s.kv_end(p), TileN);
#pragma unroll 1
  for (int base = kv_tile + 1; base < count; base += 32) {
    const int tile = base + int(threadIdx.x) % 32;
    const u32 found = __ballot_sync(0xffffffffu, tile < count && Walk::has(p, s, tile, q_tile));
    if (found != 0) return u32(base + __ffs(int(found)));
  }
  return 0;
}
template <class Spec, int TileM, int TileN, class Sequence>
LUATTN_FN u32 dq_order_on_line(const LuattnParams &p, const Sequence &s, int q_tile, int kv_tile) {
  static_assert(Sequence::is_line, "the order is found by the walks' tiles, which are of positions along lines");
  static_assert(walks_stats<Spec, TileM, TileN>);
  const int q0 = q_tile * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1, count = ceil_div(s.kv_len, TileN);
  if constexpr (Spec::has_tile_bits)
    if (tile_order_of(p).tiles != nullptr) return dq_order_by_rank<Spec, TileM, TileN>(p, s, q_tile, kv_tile);
  if constexpr (!Spec::has_mask && !Spec::has_score_bounds) return kv_tile + 1 < count ? u32(kv_tile + 2) : 0;
#pragma unroll 1
  for (int base = kv_tile + 1; base < count; base += 32) {
    const int tile = base + int(threadIdx.x) % 32, kv0 = tile * TileN, kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    bool computed = false;
    if (tile < count) {  // the same test as in QTiles and WarpQTiles
#ifdef LUATTN_CHUNKS
      const Sequence at = in_chunks<Sequence>(p, s, q0, kv0);
#else
      const Sequence &at = s;
#endif
      const Range todo = tiles_of(kept_queries<Spec>(p, at, kv0, kv1), s.q_len, TileM);
      computed = q_tile >= todo.lo && q_tile < todo.hi &&
                 TileBitmap<Spec>(p, s, tile, count, ceil_div(s.q_len, TileM)).has(q_tile) &&
                 class_of<Spec>(p, at, q0, q1, kv0, kv1) != TILE_EMPTY;
    }
    const u32 found = __ballot_sync(0xffffffffu, computed);
    if (found != 0) return u32(base + __ffs(int(found)));
  }
  return 0;
}

// Returns the semaphore value that kv_tile waits for in q_tile. Called by a whole warp.
template <class Spec, int TileM, int TileN, class Sequence>
LUATTN_FN u32 dq_order_before(const LuattnParams &p, const Sequence &s, int q_tile, int kv_tile) {
  if constexpr (Sequence::is_line)
    return dq_order_on_line<Spec, TileM, TileN>(p, s, q_tile, kv_tile);
  else
    return dq_order_in_walk<QTilesOf<Spec, Sequence, TileM, TileN>, TileN>(p, s, q_tile, kv_tile);
}

LUATTN_FN u32 semaphore_value(const u32 *semaphore) {
  u32 passed;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(passed) : "l"(semaphore) : "memory");
  return passed;
}
// Acquire and release fences around the semaphore.
LUATTN_FN void semaphore_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// Makes a whole warp wait for `before`. What the warp adds then comes after the additions of that block.
LUATTN_FN void semaphore_wait(const u32 *semaphore, u32 before) {
  if (threadIdx.x % 32 == 0) {
    while (semaphore_value(semaphore) != before) {}
    semaphore_fence();
  }
  __syncwarp();
}
// Passes the semaphore on. Called by a whole warp, after all of its additions.
LUATTN_FN void semaphore_release(u32 *semaphore, int kv_tile) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore), "r"(u32(kv_tile + 1)) : "memory");
}
// Does the same as semaphore_release, and also tests `next` early, under the same fence. Returns whether semaphore_wait
// would return at once.
LUATTN_FN bool semaphore_release(u32 *semaphore, int kv_tile, const u32 *next, u32 before) {
  u32 passed = 0;
  if (threadIdx.x % 32 == 0) passed = semaphore_value(next);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    semaphore_fence();
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(semaphore), "r"(u32(kv_tile + 1)) : "memory");
  }
  return __shfl_sync(0xffffffffu, passed, 0) == before;
}
