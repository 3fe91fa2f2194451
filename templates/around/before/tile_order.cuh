// around/before/tile_order.cuh: luattn_tile_order: sorts the tiles of each head by how many cells they keep something
// of (LuattnTileOrder). One block sorts the tiles of a set.
//
// Grid (sets, orders): the one order that a launch asks for, or those of a batch (abi/workspace.h).
//
// Tiles within a quarter of the mean length of one another count as equally long and stay in the order of their
// positions, because neighbours share more of what they read. The order depends on the bits alone: a deterministic
// backward adds in it.
#pragma once
#include "abi/workspace.h"
#include "around/around.cuh"

static constexpr int tile_order_threads = 512, tile_order_lanes = 8, tile_order_levels = 64;

// The cells of which a tile keeps something, by tile_order_lanes lanes; all of them get the sum. of_kv: a kv tile, for
// all query heads of a kv head h.
LUATTN_FN u32 cells_of_tile(const LuattnTileBitsParams &p, const LuattnTileOrder &o, bool of_kv, int b, int h,
                            int tile) {
  const LuattnTileBits &bits = p.bits;
  const int len = of_kv ? Site::longest_kv(p) : Site::longest_q(p),
            other = of_kv ? Site::longest_q(p) : Site::longest_kv(p), lines = workspace_cells(len),
            words = workspace_bit_words(workspace_cells(other)), first = tile * int(o.size),
            last = min_of(first + int(o.size), len) - 1, group = int(bits.heads / o.heads);
  u32 count = 0;
#pragma unroll 1
  for (int i = 0; i < group; ++i) {
    const i64 set = i64(bits.batch > 1 ? b : 0) * bits.heads + h * group + i;
    const u32 *line = (of_kv ? bits.columns : bits.rows) + set * lines * words * 2;
#pragma unroll 1
    for (int w = int(threadIdx.x) % tile_order_lanes; w < words; w += tile_order_lanes) {
      u32 kept = 0;
      for (int c = first / LUATTN_CELL; c <= last / LUATTN_CELL; ++c) kept |= line[(i64(c) * words + w) * 2];
      count += u32(__popc(kept));
    }
  }
#pragma unroll
  for (int i = 1; i < tile_order_lanes; i *= 2) count += __shfl_xor_sync(0xffffffffu, count, i);
  return count;
}

// The sum of a number of each thread.
LUATTN_FN u64 sum_of_threads(u64 *sums, u64 x) {
  sums[threadIdx.x] = x;
  __syncthreads();
#pragma unroll 1
  for (int i = tile_order_threads / 2; i > 0; i /= 2) {
    if (int(threadIdx.x) < i) sums[threadIdx.x] += sums[threadIdx.x + i];
    __syncthreads();
  }
  return sums[0];
}

// The number of earlier lanes that have the same key, and whether this lane is the last one of its key.
LUATTN_FN int equal_lanes_before(int key, bool &is_last) {
  const int lane = int(threadIdx.x) % 32;
  int before = 0;
  is_last = true;
#pragma unroll 1
  for (int i = 0; i < 32; ++i) {
    const bool equal = __shfl_sync(0xffffffffu, key, i) == key;
    before += equal && i < lane;
    if (equal && i > lane) is_last = false;
  }
  return before;
}

// Turns numbers of tiles by key into numbers of tiles before each key. Called by a warp, two keys a lane.
LUATTN_FN void count_before(u32 (&next)[tile_order_levels]) {
  static_assert(tile_order_levels == 64);
  const int lane = int(threadIdx.x) % 32;
  const u32 first = next[lane * 2], both = first + next[lane * 2 + 1];
  u32 sum = both;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const u32 earlier = __shfl_sync(0xffffffffu, sum, max_of(lane - i, 0));
    if (lane >= i) sum += earlier;
  }
  next[lane * 2] = sum - both, next[lane * 2 + 1] = sum - both + first;
}

// Order number blockIdx.y of a batch.
LUATTN_FN LuattnTileOrder order_of_batch(const LuattnTileBitsParams &p) {
  const int order = int(blockIdx.y), q_len = Site::longest_q(p), kv_len = Site::longest_kv(p);
  const u32 batch = p.bits.batch, of_q = p.bits.heads, of_kv = of_q > 1 ? u32(Site::heads_kv(p)) : 1;
  LuattnTileOrder o = p.tile_order;
  o.tiles += workspace_order_words(order, q_len, kv_len, batch * of_q, batch * of_kv);
  o.count = u32(workspace_order_tiles(order, q_len, kv_len));
  o.batch = batch, o.heads = workspace_order_of_kv(order) ? of_kv : of_q;
  o.size = u32(workspace_order_size(order)), o.descending = u32(workspace_order_descends(order));
  return o;
}

// of_kv: in a launch's own order.
template <class Config>
LUATTN_FN void find_tile_order(const LuattnTileBitsParams &p, bool of_kv) {
  static_assert(SequenceOf<Config>::is_line, "cells have as many positions as the lengths say");
  constexpr int warps = tile_order_threads / 32, levels = tile_order_levels;
  __shared__ u64 sums[tile_order_threads];
  __shared__ u32 next[levels];            // the rank of the next tile of each key
  __shared__ u32 of_warp[warps][levels];  // how many tiles of each key a warp has; then the first one's rank
  LuattnTileOrder o = p.tile_order;
  if (o.size == 0) o = order_of_batch(p), of_kv = workspace_order_of_kv(int(blockIdx.y)) != 0;
  const int thread = int(threadIdx.x), warp = thread / 32, count = int(o.count), set = int(blockIdx.x),
            b = set / int(o.heads), h = set - b * int(o.heads);
  if (b >= int(o.batch)) return;                                        // heads of k are fewer
  u32 *tiles = o.tiles + i64(set) * 2 * count, *ranks = tiles + count;  // ranks: first the lengths
  u64 mine = 0;
#pragma unroll 1
  for (int i = thread / tile_order_lanes; i - thread / tile_order_lanes < count;
       i += tile_order_threads / tile_order_lanes) {
    const u32 length = cells_of_tile(p, o, of_kv, b, h, min_of(i, count - 1));
    if (i < count && thread % tile_order_lanes == 0) ranks[i] = length, mine += length;
  }
  if (thread < levels) next[thread] = 0;
  const float quarter = float(sum_of_threads(sums, mine)) / (4.0f * float(count));  // of the mean length
  // Key 0 for the longest tiles, and the last key for those that keep nothing.
  const auto key_of = [=](int tile) {
    const u32 length = ranks[tile];
    if (length == 0) return levels - 1;
    return levels - 1 - int(min_of(max_of(float(length) / quarter, 1.0f), float(levels - 1)));
  };
  for (int i = thread; i < count; i += tile_order_threads) atomicAdd(&next[key_of(i)], 1u);
  __syncthreads();
  if (warp == 0) count_before(next);
#pragma unroll 1
  for (int base = 0; base < count; base += tile_order_threads) {
    const int i = base + thread, tile = o.descending ? count - 1 - i : i, key = i < count ? key_of(tile) : -1;
    bool is_last;
    const int equal = equal_lanes_before(key, is_last);
    for (int k = thread; k < warps * levels; k += tile_order_threads) of_warp[k / levels][k % levels] = 0;
    __syncthreads();
    if (key >= 0 && is_last) of_warp[warp][key] = u32(equal + 1);
    __syncthreads();
    if (thread < levels) {
      u32 has[warps], at = next[thread];
#pragma unroll
      for (int w = 0; w < warps; ++w) has[w] = of_warp[w][thread];
#pragma unroll
      for (int w = 0; w < warps; ++w) of_warp[w][thread] = at, at += has[w];
      next[thread] = at;
    }
    __syncthreads();
    if (key >= 0) {
      const u32 rank = of_warp[warp][key] + u32(equal);
      tiles[rank] = u32(tile);
      ranks[tile] = rank;
    }
    __syncthreads();
  }
}
