#include "runtime/launch/launch_parts.h"

#include <inttypes.h>

#include "common/call/batch.h"
#include "runtime/launch/launch_grids.h"
#include "runtime/parts/backward_scratch.h"
#include "runtime/parts/batch_masks.h"
#include "runtime/parts/grid_copies.h"
#include "runtime/parts/kv_splits.h"
#include "runtime/parts/modified_copies.h"
#include "runtime/parts/split_list.h"
#include "runtime/parts/stats.h"
#include "runtime/parts/tile_bitmap.h"
#include "runtime/parts/tile_table.h"

/* A work counter, which is used only if none of the kernel's own is free. */
static luattn_status take_counter(const args_call *c, prepared *p) {
  LuattnScratch *to = &p->all.dense.scratch;
  if (c->info->draws_tiles) to->work_counter = room_take(&p->room, sizeof *to->work_counter, 1, 1, 1, 1);
  return LUATTN_OK;
}

/* Of an entry that a launch leaves out, because a function of its own launches it. */
static luattn_status no_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry, (void)p;
  size[0] = 0;
  return LUATTN_OK;
}

/* In the order of luattn_role, in which parts are taken: a part may read what those before it have entered. */
static const struct {
  part_take *take;
  part_check *check;
  part_grid *grid;
} parts[LUATTN_ROLE_COUNT] = {
    /* role                      take                check              grid */
    [LUATTN_ROLE_STATS] = {stats_take, NULL, stats_grid},
    [LUATTN_ROLE_MOD] = {modified_take, NULL, modified_grid},
    [LUATTN_ROLE_NORMS] = {NULL, NULL, tile_bitmap_norms_grid}, /* room: with the bitmap's */
    [LUATTN_ROLE_TILE_BITMAP] = {tile_bitmap_take, NULL, tile_bitmap_grid},
    [LUATTN_ROLE_FORWARD] = {take_counter, NULL, forward_grid},
    [LUATTN_ROLE_PREPARE] = {backward_rows_take, NULL, backward_rows_grid},
    [LUATTN_ROLE_DKDV] = {kv_splits_take, NULL, dkdv_grid},
    [LUATTN_ROLE_DQ] = {NULL, NULL, dq_grid},
    [LUATTN_ROLE_FINISH] = {backward_sums_take, NULL, backward_finish_grid},
    [LUATTN_ROLE_ROUND] = {NULL, NULL, backward_round_grid}, /* room: with the other sums' */
    [LUATTN_ROLE_TILE_BITS] = {batch_masks_take, batch_masks_check, batch_masks_grid},
    [LUATTN_ROLE_TILE_ORDER] = {tile_order_take, NULL, tile_order_grid},
    [LUATTN_ROLE_BLOCK_TABLE] = {NULL, NULL, no_grid}, /* luattn_block_table */
    [LUATTN_ROLE_TILE_TABLE] = {tile_table_take, tile_table_check, tile_table_grid},
    [LUATTN_ROLE_MERGE] = {NULL, NULL, split_merge_grid}, /* room: with the list's */
    [LUATTN_ROLE_APPEND] = {NULL, NULL, no_grid},         /* luattn_append, append_first */
    [LUATTN_ROLE_SPLIT_LIST] = {split_list_take, split_list_check, split_list_grid},
    [LUATTN_ROLE_COPY_IN] = {grid_copies_take, NULL, grid_copies_in_grid},
    [LUATTN_ROLE_COPY_OUT] = {NULL, NULL, grid_copies_out_grid}, /* room: with the other copies' */
};

luattn_status parts_take(const args_call *c, uintptr_t base, prepared *p) {
  prepared_begin(p, base);
  for (int role = 0; role < LUATTN_ROLE_COUNT; ++role)
    if (parts[role].take != NULL) TRY(parts[role].take(c, p));
  if (p->room.overflow)
    return args_fail(c, "workspace: would exceed what this machine can address; use smaller tensors");
  return LUATTN_OK;
}

luattn_status parts_grids(const args_call *c, const prepared *p, unsigned (*grid)[3]) {
  for (uint32_t i = 0; i < c->info->num_entries; ++i) {
    const manifest_entry *e = &c->info->entry[i];
    if (e->role >= LUATTN_ROLE_COUNT || parts[e->role].grid == NULL) /* refused when the image was opened */
      return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no role", e->name);
    TRY(part_find_grid(c, e, parts[e->role].grid, p, grid[i]));
  }
  return LUATTN_OK;
}

luattn_status parts_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream) {
  const luattn_batch *batch = c->args->batch;
  if (batch == NULL || (batch->num_masks == 0 && batch->table == NULL && batch->splits.memory == NULL))
    return LUATTN_OK; /* made ahead: none */
  for (int role = 0; role < LUATTN_ROLE_COUNT; ++role)
    if (parts[role].check != NULL) TRY(parts[role].check(kernel, c, p, stream));
  return LUATTN_OK;
}

luattn_status parts_check_workspace(const args_call *c, size_t need) {
  const uintptr_t address = (uintptr_t)c->args->workspace;
  if (need == 0) return LUATTN_OK;
  if (address == 0)
    return args_fail(c, "workspace: is NULL, expected %zu bytes of device memory, as luattn_workspace_size says", need);
  if (c->args->workspace_size < need)
    return args_fail(c, "workspace: has %zu bytes, expected %zu, as luattn_workspace_size says",
                     c->args->workspace_size, need);
  if (need > UINTPTR_MAX - address)
    return args_fail(c, "workspace: its %zu bytes at 0x%" PRIxPTR " reach beyond what can be addressed", need, address);
  if (address % 256 != 0)
    return args_fail(c, "workspace: address 0x%" PRIxPTR " is not a multiple of 256 bytes; align it", address);
  return LUATTN_OK;
}
