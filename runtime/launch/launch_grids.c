/* launch_grids.c: the grid of each role. */
#include "runtime/launch/launch_grids.h"

#include <inttypes.h>

#include "abi/workspace.h"
#include "runtime/call/sizes.h"
#include "runtime/parts/tile_bits.h"
#include "runtime/parts/tile_table.h"

luattn_status grid_check(const args_call *c, const manifest_entry *entry, const int64_t size[3]) {
  static const char *const axis = "xyz";
  static const int64_t limit[] = {INT32_MAX, 65535, 65535};
  for (int i = 0; i < 3; ++i)
    if (size[i] > limit[i])
      return args_fail(c,
                       "%s: needs a grid of %" PRId64 " x %" PRId64 " x %" PRId64
                       ", and %c is at most %" PRId64 "; split the call into smaller batches or fewer heads",
                       entry->name, size[0], size[1], size[2], axis[i], limit[i]);
  return LUATTN_OK;
}

/* Kernels number their tiles with an int. */
static luattn_status check_tiles(const args_call *c, const manifest_entry *entry, const int64_t size[3],
                                 int64_t limit) {
  const int64_t per_tile = size[1] * size[2];
  if (size[0] > 0 && per_tile > 0 && (per_tile > limit || size[0] > limit / per_tile))
    return args_fail(c,
                     "%s: has %" PRId64 " x %" PRId64 " x %" PRId64 " tiles, expected at most %" PRId64
                     "; split the call into smaller batches or fewer heads",
                     entry->name, size[0], size[1], size[2], limit);
  return LUATTN_OK;
}

/* A persistent grid of the sm90 family: one block per multiprocessor, which takes tile after tile, alone or
 * with the `together` - 1 others of its cluster. */
static luattn_status resident_grid(const args_call *c, const manifest_entry *entry, const int64_t size[3],
                                   int64_t together, unsigned grid[3]) {
  TRY(check_tiles(c, entry, size, INT32_MAX / 2)); /* a block counts past the last tile */
  const int64_t tiles = size[0] * size[1] * size[2],
                most = max_of(c->multiprocessors / together, 1) * together;
  grid[0] = (unsigned)(tiles < most ? tiles : most);
  grid[1] = grid[2] = 1;
  return LUATTN_OK;
}

/* In backward a warp handles 32 q tiles of a kv tile. */
static int64_t reach_blocks(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p) {
  int64_t rows, words;
  sizes_of_visits(m, p, &rows, &words);
  return m->pass == LUATTN_FORWARD ? rows : ceil_div(rows * words, entry->threads / 32);
}

/* Tiles of queries along x: those of all entries, or with a table of packed sequences at most as many as there are, which
 * then have no entries along z. Likewise of keys. */
static void q_tiles_size(const args_call *c, const workspace_need *need, const LuattnParams *p, int64_t tile, int64_t size[3]) {
  size[0] = ceil_div(p->shape.q_len, tile);
  if (!need->has_table) return;
  size[0] = tile_table_most(c, p, 0, tile);
  size[2] = 1;
}

static void kv_tiles_size(const args_call *c, const workspace_need *need, const manifest_entry *entry, const LuattnParams *p,
                          int64_t size[3]) {
  const int64_t together = sizes_blocks_together(c->info, entry);
  size[0] = sizes_kv_blocks(c->info, entry, p);
  size[1] = p->shape.heads_kv;
  size[2] = (int64_t)p->shape.batch * p->schedule.num_splits;
  if (!need->has_table) return;
  size[0] = tile_table_most(c, p, 1, entry->tile_n * together) * together;
  size[2] = 1;
}

/* The functions below enter the grid of one role; size[1] and size[2] are p->shape.heads and batch before,
 * and size[0] is 0. */
static void stats_size(const image_manifest *m, const LuattnParams *p, int64_t size[3]) {
  size[1] = 0;
  size[2] = m->num_stats;
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    int64_t num_rows, blocks;
    sizes_of_stat(m, p, i, &num_rows, &blocks);
    size[0] = max_of(size[0], blocks);
    size[1] = max_of(size[1], num_rows);
  }
}

static void norms_size(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p,
                       int64_t size[3]) {
  if (p->scratch.visits == NULL) return;
  size[0] = ceil_div(p->shape.kv_len, entry->tile_m);
  size[1] = p->shape.heads_kv;
  if (m->pass == LUATTN_FORWARD) return;
  size[0] = max_of(size[0], ceil_div(p->shape.q_len, entry->tile_m));
  size[1] = p->shape.heads;
  size[2] = (int64_t)p->shape.batch * 2;
}

/* Finishes dq only, or all three. */
static void finish_size(const args_call *c, const workspace_need *need, const manifest_entry *entry, const LuattnParams *p,
                        int64_t size[3]) {
  const bool kv = p->scratch.dk_acc != NULL || p->scratch.dv_acc != NULL;
  if (p->scratch.dq_acc == NULL && !kv) return;
  if (need->has_table && !kv && !c->info->has_query_mod) { /* mods are undone entry by entry */
    q_tiles_size(c, need, p, entry->tile_m, size);
    return;
  }
  size[0] = ceil_div(kv ? max_of(p->shape.q_len, p->shape.kv_len) : p->shape.q_len, entry->tile_m);
  size[2] = (int64_t)p->shape.batch * (kv ? 3 : 1);
}

/* A launch's own order, or all of a batch. */
static void order_size(const LuattnCallParams *p, const workspace_need *need, int64_t size[3]) {
  const LuattnTileOrder *o = &p->tile_order;
  if (need->has_tile_order) size[0] = o->size > 0 ? (int64_t)o->batch * o->heads : (int64_t)p->bits.batch * p->bits.heads;
  size[1] = o->size > 0 ? 1 : LUATTN_ORDERS;
  size[2] = 1;
}

/* The last of size[1] is for the scalars, which are fewer than a block's threads. */
static void round_size(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p,
                       int64_t size[3]) {
  size[0] = p->inputs.num_scalars > 0 && p->inputs.scalar_exact != NULL;
  for (uint32_t i = 0; i < m->num_inputs; ++i)
    if (p->inputs.input[i].exact != NULL)
      size[0] = max_of(size[0], ceil_div(p->inputs.input[i].count, entry->tile_m));
  size[1] = (int64_t)m->num_inputs + 1;
  size[2] = 1;
}

/* The splits of a tile lie side by side, or kv heads of the items of a list (templates/work/decode_work.cuh). */
static void decode_size(const LuattnParams *p, const workspace_need *need, const manifest_entry *entry, int64_t size[3]) {
  if (need->has_list) {
    size[0] = (int64_t)need->list.most_items * p->shape.heads_kv;
    size[1] = size[2] = 1;
    return;
  }
  size[0] = ceil_div((int64_t)p->shape.q_len * p->shape.group, entry->tile_m) * need->splits.count;
  size[1] = p->shape.heads_kv;
}

/* Rows of packed outputs that no sequence has are written where other kernels have nothing to do, too: then by one block. */
static void add_padding_block(const args_call *c, const LuattnCallParams *all, int64_t size[3]) {
  if (!c->info->writes_padding || all->packed.total_q + (int64_t)all->packed.total_k == 0) return;
  if (size[0] == 0 || size[1] == 0 || size[2] == 0) size[0] = size[1] = size[2] = 1;
}

luattn_status grid_of_entry(const args_call *c, const manifest_entry *entry, const LuattnCallParams *all,
                            const workspace_need *need, unsigned grid[3]) {
  const LuattnParams *p = &all->dense;
  int64_t size[3] = {0, p->shape.heads, p->shape.batch};
  switch ((luattn_role)entry->role) {
    case LUATTN_ROLE_STATS:
      if (p->scratch.stats[0] != NULL) stats_size(c->info, p, size);
      break;
    case LUATTN_ROLE_MOD:
      size[0] = ceil_div(c->info->paged ? p->shape.q_len : max_of(p->shape.q_len, p->shape.kv_len), entry->tile_m);
      size[2] = (int64_t)p->shape.batch * 3; /* keys in pages have no mod */
      break;
    case LUATTN_ROLE_FINISH:
      finish_size(c, need, entry, p, size);
      break;
    case LUATTN_ROLE_NORMS:
      norms_size(c->info, entry, p, size);
      break;
    case LUATTN_ROLE_REACH:
      if (p->scratch.visits != NULL) size[0] = reach_blocks(c->info, entry, p);
      break;
    case LUATTN_ROLE_TILE_BITS:
      if (need->has_tile_bits) tile_bits_grid(&all->bits, &p->shape, size);
      break;
    case LUATTN_ROLE_TILE_ORDER:
      order_size(all, need, size);
      break;
    case LUATTN_ROLE_TILE_TABLE:
      if (need->makes_table) size[0] = (int64_t)p->shape.batch + 1;
      size[1] = size[2] = 1;
      break;
    case LUATTN_ROLE_SPLIT_LIST:
      size[0] = need->makes_list;
      size[1] = size[2] = 1;
      break;
    case LUATTN_ROLE_FORWARD:
      if (c->info->decode) {
        decode_size(p, need, entry, size);
        add_padding_block(c, all, size);
        break;
      }
      q_tiles_size(c, need, p, entry->tile_m, size);
      add_padding_block(c, all, size);
      if (c->info->family == LUATTN_SM90) return resident_grid(c, entry, size, 1, grid);
      if (c->info->family == LUATTN_SM80) TRY(check_tiles(c, entry, size, INT32_MAX));
      break;
    case LUATTN_ROLE_PREPARE: /* at least one block, where it zeroes a counter */
      q_tiles_size(c, need, p, entry->tile_m, size);
      size[0] = max_of(size[0], sizes_draws_kv(c->info));
      add_padding_block(c, all, size);
      break;
    case LUATTN_ROLE_DQ:
      size[0] = ceil_div(p->shape.q_len, entry->tile_m);
      break;
    case LUATTN_ROLE_DKDV:
      kv_tiles_size(c, need, entry, p, size);
      if (sizes_draws_kv(c->info)) return resident_grid(c, entry, size, sizes_blocks_together(c->info, entry), grid);
      break;
    case LUATTN_ROLE_ROUND:
      round_size(c->info, entry, p, size);
      break;
    case LUATTN_ROLE_MERGE:
      if (need->splits.count > 1) size[0] = p->shape.q_len;
      break;
    case LUATTN_ROLE_BLOCK_TABLE: /* for luattn_block_table */
    case LUATTN_ROLE_APPEND: /* for luattn_append */
      break;
    case LUATTN_ROLE_COUNT: /* refused when the image was opened */
      return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no role", entry->name);
  }
  TRY(grid_check(c, entry, size));
  for (int i = 0; i < 3; ++i) grid[i] = (unsigned)size[i];
  return LUATTN_OK;
}
