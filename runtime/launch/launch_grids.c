#include "runtime/launch/launch_grids.h"

#include <inttypes.h>

#include "runtime/call/sizes.h"
#include "runtime/parts/split_list.h"
#include "runtime/parts/tile_table.h"

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
static luattn_status make_resident(const args_call *c, const manifest_entry *entry, int64_t together, int64_t size[3]) {
  TRY(check_tiles(c, entry, size, INT32_MAX / 2)); /* a block counts past the last tile */
  const int spare = c->args->spare_multiprocessors;
  if (spare > 0 && spare >= c->multiprocessors)
    return args_fail(c, "spare_multiprocessors: is %d, and device %d has %d; leave this call at least one", spare,
                     c->device, c->multiprocessors);
  const int64_t tiles = size[0] * size[1] * size[2],
                most = max_of((c->multiprocessors - spare) / together, 1) * together;
  size[0] = tiles < most ? tiles : most;
  size[1] = size[2] = 1;
  return LUATTN_OK;
}

/* The splits of a tile lie side by side, or kv heads of the items of a list (templates/work/decode_work.cuh). */
static void decode_tiles(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  const LuattnShape *s = &p->all.dense.shape;
  if (p->has_list) {
    size[0] = split_list_items(c, p) * s->heads_kv;
    size[1] = size[2] = 1;
    return;
  }
  size[0] = ceil_div((int64_t)s->q_len * s->group, entry->tile_m) * p->all.splits.count;
  size[1] = s->heads_kv;
}

luattn_status forward_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  if (c->info->decode)
    decode_tiles(c, entry, p, size);
  else
    tile_table_q_tiles(c, p, entry->tile_m, size);
  sizes_add_padding(c, &p->all, size);
  if (manifest_traits(c->info)->is_resident) return make_resident(c, entry, 1, size);
  return manifest_traits(c->info)->numbers_tiles ? check_tiles(c, entry, size, INT32_MAX) : LUATTN_OK;
}

luattn_status dkdv_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  tile_table_kv_tiles(c, p, entry, size);
  if (!sizes_draws_kv(c->info)) return LUATTN_OK;
  return make_resident(c, entry, sizes_blocks_together(c->info, entry), size);
}

luattn_status dq_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c;
  size[0] = ceil_div(p->all.dense.shape.q_len, entry->tile_m);
  return LUATTN_OK;
}
