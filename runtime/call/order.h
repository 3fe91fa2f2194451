/* order.h: chooses the order in which a forward kernel on the tensor cores takes its q tiles, as numbers that
 * the kernel reads (LuattnOrder in abi/params.h; templates/work/tile_scheduler.cuh takes the tiles). Inline,
 * because the test of work/tile_scheduler.cuh includes it. */
#ifndef LUATTN_RUNTIME_ORDER_H
#define LUATTN_RUNTIME_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/params.h"

/* 1 <= d < 2^31. */
static inline LuattnDivisor order_divisor(int64_t d) {
  LuattnDivisor by = {(unsigned)d, 0, d > 1 ? 32 - (unsigned)__builtin_clz((unsigned)d - 1) : 0};
  by.multiplier = (unsigned)((((uint64_t)1 << (31 + by.shift)) + (uint64_t)d - 1) / (uint64_t)d);
  return by;
}

/* The number of tiles that hides the longest of them: a few for each multiprocessor. */
enum { ORDER_TILES_FOR_BALANCE = 640 };

/* How many groups of heads run one after another, in a grid with a block for each tile: as many as have
 * enough tiles. */
static inline int64_t order_groups(int64_t tiles) {
  return tiles < ORDER_TILES_FOR_BALANCE ? 1 : tiles / ORDER_TILES_FOR_BALANCE;
}

/* The same for a persistent grid. Where no tile is much longer than those that follow, a group is one kv head, so
 * that all blocks read the same K and V. Else (`uneven`: with a mask, without an order by length) a group has as
 * many heads as load balance takes, if their K and V stay in the L2 cache, or if they are so few that misses do
 * not matter. kv_bytes: of a position's K and V. */
static inline int64_t order_groups_resident(const LuattnParams *p, int64_t q_tiles, bool uneven, int64_t kv_bytes) {
  const int64_t cache_bytes = 32 << 20, few = 4; /* about half of the cache of an H100 or H200 */
  const int64_t all_kv = (int64_t)p->shape.heads_kv * p->shape.batch, tiles_of_head = q_tiles * p->shape.group;
  if (!uneven) return all_kv;
  const int64_t fitting = cache_bytes / kv_bytes / (p->shape.kv_len > 0 ? p->shape.kv_len : 1);
  const int64_t balanced = (ORDER_TILES_FOR_BALANCE + tiles_of_head - 1) / tiles_of_head;
  const int64_t most = fitting > few ? fitting : few, heads = balanced < most ? balanced : most;
  return all_kv > heads ? all_kv / heads : 1;
}

/* Fills p->order. Groups are as equal as whole kv heads allow; q_tiles * heads * batch is at least 1 and
 * below 2^31. */
static inline void order_fill(LuattnParams *p, int64_t q_tiles, int64_t groups) {
  const int64_t all = (int64_t)p->shape.heads * p->shape.batch, all_kv = (int64_t)p->shape.heads_kv * p->shape.batch;
  const int64_t heads = (all_kv + groups - 1) / groups * p->shape.group, last = (all + heads - 1) / heads - 1;
  LuattnOrder *const o = &p->order;
  o->q_tiles = (unsigned)q_tiles;
  o->tiles = (unsigned)(q_tiles * all);
  o->last = (unsigned)last;
  o->group_tiles = order_divisor(heads * q_tiles);
  o->group_heads[0] = order_divisor(heads);
  o->group_heads[1] = order_divisor(all - last * heads);
  o->heads = order_divisor(p->shape.heads);
  o->group = order_divisor(p->shape.group);
}

#endif
