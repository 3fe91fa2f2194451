// work/dq_order.cuh: deterministic backward (Config::deterministic): the order in which blocks add to dq_acc.
//
// What blocks add to the dq of a q tile is the same in each run, but its sum depends on the order, for each
// addition rounds. So the kv tiles that a q tile has take turns, the last one first. A number in memory says
// whose turn has passed: 1 + the kv tile that added last, 0 at first. A block that adds finds by itself whom
// it comes after: the next kv tile above that visits the same q tile. It waits for that one alone, adds, and
// writes its own number.
//
// A block waits for blocks of the same head with a larger kv tile. Tiles are drawn from a counter, larger
// ones first, so those it waits for have always begun before, and the first of all waits for nobody: whatever
// runs where and when, nobody waits for ever. Last first suits a causal mask: a block begins with the
// diagonal, where it is the first, and every other block above has passed its second q tile by then.
//
// p.scratch.turns[0] is that counter, and the numbers begin at LUATTN_TURNS_FIRST; the runtime zeroes them
// all before each launch, with dq_acc. In the sm90 family luattn_prepare does, and nobody zeroes dq_acc:
// the first of a q tile stores what it has, and luattn_finish takes a q tile for 0 in which nobody took a
// turn.
#pragma once
#include "work/tile_walk.cuh"

// The kv tile, kv head and batch that a block of luattn_dkdv has, and which of p.schedule.num_splits shares
// of the kv tile's q tiles.
struct KvBlock {
  int tile, h, b, split;
};

// What a ticket stands for: of `tiles` kv tiles of each of `all` heads, heads_kv of them of one batch, in
// shares of their q tiles; those of a kv tile one behind the other, so that all of the tiles above have
// begun. Without a mask a block follows the one above through all q tiles, so that neighbours that begin
// together wait for each other. Hence heads come in groups of `together` tiles or more, and within a group a
// tile of each head before the next tile of any: what begins together are tiles of different heads. They fill
// the GPU, but no more than that, for what they read and add to shares the L2 cache.
LUATTN_FN KvBlock kv_block_of(u32 ticket, u32 kv_tiles, u32 heads_kv, u32 all, u32 splits, u32 together) {
  const u32 tiles = kv_tiles * splits;
  u32 heads = 1;
  while (heads * tiles < together) heads *= 2;
  const u32 group = ticket / (heads * tiles), first = group * heads, within = ticket - first * tiles;
  const u32 size = min_of(heads, all - first), row = within / size, head = first + (within - row * size),
            b = head / heads_kv;
  return {int(kv_tiles - 1 - row / splits), int(head - b * heads_kv), int(b), int(row % splits)};
}
// The next block's, for one thread of each block. All blocks of the grid (kv tiles, kv heads, batch and
// splits) draw.
LUATTN_FN KvBlock draw_kv_block(const LuattnParams &p) {
  return kv_block_of(atomicAdd(p.scratch.turns, 1u), gridDim.x, gridDim.y, gridDim.y * u32(p.shape.batch),
                     u32(p.schedule.num_splits), 256);  // a multiprocessor may have two blocks
}

// Whom kv_tile comes after in q_tile, as the number in memory says it. For a whole warp.
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
// What this thread does from here on comes after what it has looked at, and what it has done before what it
// writes.
LUATTN_FN void turn_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// A whole warp waits until `before` has passed; what it adds then comes after what that one has added.
LUATTN_FN void turn_await(const u32 *turn, u32 before) {
  if (threadIdx.x % 32 == 0) {
    while (turn_look(turn) != before) {}
    turn_fence();
  }
  __syncwarp();
}
// For a whole warp, all of whose additions have been made, as its lanes see it.
LUATTN_FN void turn_pass(u32 *turn, int kv_tile) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(u32(kv_tile + 1)) : "memory");
}
// turn_pass, with a look at `next`, for which one fence serves as well; true: `before` has passed there, as
// turn_await says it.
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
