// work/dq_order.cuh: deterministic backward (Config::deterministic): the order in which blocks add to dq_acc.
//
// The contributions of blocks to the dq of a q tile are the same in each run, but their sum depends on the
// order, because each addition rounds. So the kv tiles of a q tile add in a fixed order, the last one first.
// A semaphore in memory says which has added: 1 + the kv tile that added last, 0 at first. A block computes
// by itself whom it comes after: the next kv tile above that has the same q tile. It waits for that one only,
// adds, and writes its own number.
//
// A block waits for blocks of the same head with a larger kv tile. Tiles are drawn from a work counter,
// larger ones first, so those it waits for have always begun before, and the first of all waits for nobody:
// there is no deadlock in any schedule. Last first suits a causal mask: a block begins with the diagonal,
// where it is the first, and every block above has finished its second q tile by then.
//
// p.scratch.turns[0] is that counter, and the semaphores begin at LUATTN_TURNS_FIRST; the runtime zeroes them
// all before each launch, with dq_acc. In the sm90 family luattn_prepare does, and dq_acc is not zeroed: the
// first block of a q tile stores its part, and luattn_finish takes a q tile as 0 whose semaphore nobody has
// written.
#pragma once
#include "work/tile_walk.cuh"

// The kv tile, kv head and batch of a block of luattn_dkdv, and which of num_splits shares of the
// kv tile's q tiles it has.
struct KvBlock {
  int tile, h, b, split;

  // Of kernels with a block for each kv tile: the grid's own order, and drawn.
  LUATTN_FN KvBlock of_grid() { return {int(blockIdx.x), int(blockIdx.y), int(blockIdx.z), 0}; }
  LUATTN_FN KvBlock drawn(const LuattnParams &p);
};

// The tile for a value of the work counter: of `tiles` kv tiles of each of `all` heads, heads_kv of them of
// one batch, in shares of their q tiles; shares of a kv tile are consecutive, so that all tiles above have
// begun. Without a mask a block follows the one above through all q tiles, so blocks of neighbouring tiles
// that begin together wait for each other. Hence heads come in groups with `together` tiles or more, and
// within a group a tile of each head before the next tile of any: blocks that begin together have different
// heads. A group fills the GPU, but no more, because its reads and additions share the L2 cache.
LUATTN_FN KvBlock kv_block_of(u32 ticket, u32 kv_tiles, u32 heads_kv, u32 all, u32 splits, u32 together) {
  const u32 tiles = kv_tiles * splits;
  u32 heads = 1;
  while (heads * tiles < together) heads *= 2;
  const u32 group = ticket / (heads * tiles), first = group * heads, within = ticket - first * tiles;
  const u32 size = min_of(heads, all - first), row = within / size, head = first + (within - row * size),
            b = head / heads_kv;
  return {int(kv_tiles - 1 - row / splits), int(head - b * heads_kv), int(b), int(row % splits)};
}
// Draws the next block's tile, in one thread of each block. All blocks of the grid (kv tiles, kv heads, batch
// and splits) draw.
__device__ __forceinline__ KvBlock KvBlock::drawn(const LuattnParams &p) {
  return kv_block_of(atomicAdd(p.scratch.turns, 1u), gridDim.x, gridDim.y,
                     gridDim.y * u32(p.shape.batch), u32(p.schedule.num_splits),
                     256);  // a multiprocessor may have two blocks
}

// The semaphore value that kv_tile waits for in q_tile. Called by a whole warp.
template <class Spec, int TileM, int TileN>
LUATTN_FN u32 turn_before(const LuattnParams &p, const Site &s, int q_tile, int kv_tile) {
  static_assert(walks_stats<Spec, TileM, TileN>);
  const int q0 = q_tile * TileM, q1 = min_of(q0 + TileM, s.q_len) - 1, count = ceil_div(s.kv_len, TileN);
  if constexpr (!Spec::has_mask && !Spec::has_score_bounds) return kv_tile + 1 < count ? u32(kv_tile + 2) : 0;
#pragma unroll 1
  for (int base = kv_tile + 1; base < count; base += 32) {
    const int tile = base + int(threadIdx.x) % 32, kv0 = tile * TileN,
              kv1 = min_of(kv0 + TileN, s.kv_len) - 1;
    bool visits = false;
    if (tile < count) {  // exactly as QTiles and WarpQTiles decide it
      const Range todo = tiles_of(kept_queries<Spec>(p, s, kv0, kv1), s.q_len, TileM);
      visits = q_tile >= todo.lo && q_tile < todo.hi &&
               Visits<Spec>(p, s, tile, count, ceil_div(s.q_len, TileM)).has(q_tile) &&
               class_of<Spec>(p, s, q0, q1, kv0, kv1) != TILE_EMPTY;
    }
    const u32 found = __ballot_sync(0xffffffffu, visits);
    if (found != 0) return u32(base + __ffs(int(found)));
  }
  return 0;
}

LUATTN_FN u32 turn_look(const u32 *turn) {
  u32 passed;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(passed) : "l"(turn) : "memory");
  return passed;
}
// Acquire and release fences around the semaphore.
LUATTN_FN void turn_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// A whole warp waits for `before`; what it adds then comes after that block's additions.
LUATTN_FN void turn_await(const u32 *turn, u32 before) {
  if (threadIdx.x % 32 == 0) {
    while (turn_look(turn) != before) {}
    turn_fence();
  }
  __syncwarp();
}
// Called by a whole warp, after all of its additions.
LUATTN_FN void turn_pass(u32 *turn, int kv_tile) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(u32(kv_tile + 1)) : "memory");
}
// turn_pass, with an early test of `next` under the same fence; returns whether turn_await would return at
// once.
LUATTN_FN bool turn_pass(u32 *turn, int kv_tile, const u32 *next, u32 before) {
  u32 passed = 0;
  if (threadIdx.x % 32 == 0) passed = turn_look(next);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    turn_fence();
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(u32(kv_tile + 1)) : "memory");
  }
  return __shfl_sync(0xffffffffu, passed, 0) == before;
}
