/* tile_table.c: decides when a launch lists the tiles of its packed sequences, and lets a batch hold the list for all
 * launches. */
#include "runtime/parts/tile_table.h"

#include <inttypes.h>
#include <string.h>

#include "abi/workspace.h"
#include "common/call/batch.h"
#include "common/call/choices.h"
#include "common/host.h"
#include "runtime/call/args.h"
#include "runtime/call/order.h"
#include "runtime/call/sizes.h"
#include "runtime/device/check_mode.h"
#include "runtime/parts/made_ahead.h"
#include "runtime/parts/split_list.h"

/* Passing over a tile takes a block about 0.7 us, and making a table 3 us. */
enum { TILES_FOR_TABLE = 4 };

/* Tiles at the end of backward that come for all heads, for each multiprocessor. */
enum { TILES_AT_END = 2 };

/* Blocks of luattn_prepare and luattn_finish have this many rows (templates/around/around.cuh). */
enum { AUX_ROWS = 64 };

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t total_of(const args_call *c, int side) { return (side == 0 ? c->args->q : c->args->k)->shape[0]; }

static int64_t padded_tiles(const LuattnParams *p, int side, int64_t size) {
  const int64_t longest = side == 0 ? p->shape.q_len : p->shape.kv_len;
  return (longest + size - 1) / size * p->shape.batch;
}

/* An upper bound of the tiles of `size` queries (side 0) or keys (side 1) that a head's sequences have together. */
static int64_t most_tiles(const args_call *c, const LuattnParams *p, int side, int64_t size) {
  return least_of(workspace_table_tiles(total_of(c, side), p->shape.batch, (int)size), padded_tiles(p, side, size));
}

static bool has_table(const image_manifest *m) { return sizes_entry(m, LUATTN_ROLE_TILE_TABLE) != NULL; }

/* The tiles of the main kernel: of queries in forward, of keys in backward. */
static int64_t main_size(const image_manifest *m) {
  const manifest_entry *e = sizes_main(m);
  if (e == NULL) return AUX_ROWS;
  return m->pass == LUATTN_FORWARD ? (int64_t)e->tile_m
                                   : (int64_t)e->tile_n * workspace_blocks_together(1, (int)e->tile_n);
}

static bool holds_table(const args_call *c) {
  const luattn_batch *batch = c->args->batch;
  return batch != NULL && batch->table != NULL && batch->table_device == c->device;
}

static bool pays(const args_call *c, const LuattnParams *p) {
  const image_manifest *m = c->info;
  if (!has_table(m) || p->shape.batch == 0) return false;
  if (m->pass == LUATTN_BACKWARD) return true;
  const int64_t total = total_of(c, 0), size = main_size(m);
  if (total * 8 >= (int64_t)p->shape.q_len * p->shape.batch * 7) return false;
  if (holds_table(c)) return true;
  /* The last tile of a sequence is half empty on average. */
  const int64_t surplus = padded_tiles(p, 0, size) - total / size - p->shape.batch / 2;
  return surplus * p->shape.heads >= (int64_t)TILES_FOR_TABLE * c->multiprocessors;
}

/* Places all sets, or those of this launch: of the main kernel, and in backward of the rows of the others. */
static size_t place(const args_call *c, const LuattnParams *p, uintptr_t base, bool all, LuattnTileTable *out) {
  const bool forward = c->info->pass == LUATTN_FORWARD;
  const int main_slot = workspace_table_slot((int)main_size(c->info));
  size_t used = 0;
  out->at_end = (unsigned)(1 + TILES_AT_END * (int64_t)c->multiprocessors / most_of(p->shape.heads_kv, 1));
  for (int side = 0; side < 2; ++side)
    for (int slot = 0; slot < LUATTN_TABLE_SIZES; ++slot) {
      const int size = workspace_table_size(slot);
      const bool is_main = side == (forward ? 0 : 1) && slot == main_slot,
                 is_rows = !forward && side == 0 && size == AUX_ROWS;
      out->sets[side][slot] = NULL;
      if (!all && !is_main && !is_rows) continue;
      if (base != 0) out->sets[side][slot] = (LuattnPackedTile *)(base + used);
      used += (1 + (size_t)workspace_table_tiles(total_of(c, side), p->shape.batch, size)) * sizeof(LuattnPackedTile);
    }
  return used;
}

static luattn_status take_from_batch(const args_call *c, const LuattnParams *p, LuattnTileTable *out, bool *found) {
  const luattn_batch *batch = c->args->batch;
  *found = holds_table(c);
  if (!*found) return LUATTN_OK;
  for (int side = 0; side < 2; ++side)
    if (batch->table_rows[side] != total_of(c, side))
      return args_fail(c,
                       "batch: its packed tiles were made for another call: %s had %" PRId64 " rows, and has %" PRId64
                       "; call luattn_batch_prepare_tiles with these arguments, or give a batch without them",
                       side == 0 ? "q" : "k", batch->table_rows[side], total_of(c, side));
  (void)place(c, p, (uintptr_t)batch->table, true, out);
  return LUATTN_OK;
}

/* Heads of forward: as in a batch of equal lengths (runtime/call/order.h), whose heads all have the tiles of a
 * table. */
static void choose_together(const args_call *c, const LuattnParams *p, LuattnTileTable *out) {
  const image_manifest *m = c->info;
  const int64_t heads_kv = p->shape.heads_kv, group = p->shape.group;
  if (m->pass == LUATTN_BACKWARD) return;
  const int64_t most = most_of(most_tiles(c, p, 0, main_size(m)), 1);
  LuattnParams one = *p; /* a batch of one entry */
  one.shape.batch = 1;
  const int64_t kv_bytes = (int64_t)sizes_elem(m) * (m->head_dim + m->head_dim_v);
  const int64_t groups = order_groups_resident(&one, most, m->has_mask, kv_bytes);
  out->together = (unsigned)((heads_kv + groups - 1) / groups * group);
}

/* A table of packed sequences comes from the batch, or is made in the workspace, or there is none. */
luattn_status tile_table_take(const args_call *c, prepared *p) {
  const LuattnParams *dense = &p->all.dense;
  LuattnTileTable *const table = &p->all.table;
  bool found;
  p->has_table = pays(c, dense);
  if (!p->has_table) return LUATTN_OK;
  TRY(take_from_batch(c, dense, table, &found));
  p->makes_table = !found;
  choose_together(c, dense, table);
  if (found) return LUATTN_OK;
  void *memory = room_take(&p->room, place(c, dense, 0, false, table), 1, 1, 1, 1);
  (void)place(c, dense, (uintptr_t)memory, false, table);
  return LUATTN_OK;
}

luattn_status tile_table_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry;
  if (p->makes_table) size[0] = (int64_t)p->all.dense.shape.batch + 1;
  size[1] = size[2] = 1;
  return LUATTN_OK;
}

void tile_table_q_tiles(const args_call *c, const prepared *p, int64_t tile, int64_t size[3]) {
  size[0] = ceil_div(p->all.dense.shape.q_len, tile);
  if (!p->has_table) return;
  size[0] = most_tiles(c, &p->all.dense, 0, tile);
  size[2] = 1;
}

void tile_table_kv_tiles(const args_call *c, const prepared *p, const manifest_entry *entry, int64_t size[3]) {
  const LuattnParams *dense = &p->all.dense;
  const int64_t together = sizes_blocks_together(c->info, entry);
  size[0] = sizes_kv_blocks(c->info, entry, dense);
  size[1] = dense->shape.heads_kv;
  size[2] = (int64_t)dense->shape.batch * dense->schedule.num_splits;
  if (!p->has_table) return;
  size[0] = most_tiles(c, dense, 1, entry->tile_n * together) * together;
  size[2] = 1;
}

/* ---- the batch's ---- */

/* Sorts packed sequences into p->all.table. The device's context is current. */
static luattn_status make(const luattn_kernel *kernel, const args_call *c, prepared *p, cu_stream stream) {
  p->makes_table = true;
  return part_launch(kernel, c, LUATTN_ROLE_TILE_TABLE, tile_table_grid, p, &p->all, stream);
}

/* A call's shapes, as luattn_workspace_size reads them, and the bytes of its table. */
static luattn_status read_call(const luattn_kernel *kernel, const luattn_args *used, args_call *c, prepared *p,
                               size_t *size, luattn_error *err) {
  *c = args_call_of(kernel, used, true, err);
  prepared_begin(p, 0);
  *size = 0;
  if (!has_table(&kernel->info)) return LUATTN_OK;
  TRY(args_fill(c, &p->all));
  if (p->all.dense.shape.batch > 0) *size = place(c, &p->all.dense, 0, true, &p->all.table);
  return LUATTN_OK;
}

luattn_status luattn_batch_tiles_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                      luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  args_call c;
  prepared p;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  *size = 0;
  TRY(choices_take(args, args_place(kernel), &used, err));
  if (kernel->cpu_run != NULL) return LUATTN_OK;
  if (split_list_of(&kernel->info)) return split_list_batch_size(kernel, &used, size, err);
  return read_call(kernel, &used, &c, &p, size, err);
}

luattn_status luattn_batch_prepare_tiles(luattn_batch *batch, const luattn_kernel *kernel, const luattn_args *args,
                                         void *memory, size_t size, void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  args_call c;
  prepared p;
  size_t need;
  fail_clear(err);
  NEED(batch);
  NEED(kernel);
  NEED(args);
  TRY(choices_take(args, args_place(kernel), &used, err));
  used.batch = batch;
  if (kernel->cpu_run != NULL) return LUATTN_OK;
  if (split_list_of(&kernel->info)) return split_list_prepare(batch, kernel, &used, memory, size, stream, err);
  TRY(read_call(kernel, &used, &c, &p, &need, err));
  if (need == 0) return LUATTN_OK;
  TRY(ahead_check_memory(&c, "packed tiles", "luattn_batch_tiles_size", memory, size, need));
  c.shapes_only = false;
  TRY(args_fill_arrays(&c, &p.all));
  (void)place(&c, &p.all.dense, (uintptr_t)memory, true, &p.all.table);
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = make(kernel, &c, &p, stream);
  driver_pop(kernel->driver);
  if (status != LUATTN_OK) return status;
  batch->table = memory;
  batch->table_device = kernel->device;
  for (int side = 0; side < 2; ++side) batch->table_rows[side] = total_of(&c, side);
  return LUATTN_OK;
}

/* ---- LUATTN_CHECK ---- */

/* Compares two copies of the sets in host memory, as they lie in a batch's memory. */
static luattn_status compare(const args_call *c, const prepared *p, const char *have, const char *want) {
  const LuattnParams *dense = &p->all.dense;
  LuattnTileTable made, now;
  (void)place(c, dense, (uintptr_t)have, true, &made);
  (void)place(c, dense, (uintptr_t)want, true, &now);
  for (int side = 0; side < 2; ++side)
    for (int slot = 0; slot < LUATTN_TABLE_SIZES; ++slot) {
      const LuattnPackedTile *a = made.sets[side][slot], *b = now.sets[side][slot];
      const int64_t most = workspace_table_tiles(total_of(c, side), dense->shape.batch, workspace_table_size(slot)),
                    count = least_of(b[0].count, most);
      if (a[0].count == b[0].count && memcmp(a + 1, b + 1, (size_t)count * sizeof *a) == 0) continue;
      return args_fail(c,
                       "batch: its packed tiles are not those of cu_seqlens: %u tiles of %d %s, and the lengths have "
                       "%u or others; they have "
                       "changed, call luattn_batch_prepare_tiles again",
                       a[0].count, workspace_table_size(slot), side == 0 ? "queries" : "keys", b[0].count);
    }
  return LUATTN_OK;
}

static luattn_status make_again(const luattn_kernel *kernel, const args_call *c, prepared *p, uintptr_t memory,
                                cu_stream stream) {
  (void)place(c, &p->all.dense, memory, true, &p->all.table);
  return make(kernel, c, p, stream);
}

luattn_status tile_table_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream) {
  LuattnTileTable unplaced;
  if (!p->has_table || p->makes_table || !check_asked()) return LUATTN_OK;
  const size_t size = place(c, &p->all.dense, 0, true, &unplaced);
  const ahead_part part = {.what = "packed tiles",
                           .have = c->args->batch->table,
                           .compared = size,
                           .size = size,
                           .make = make_again,
                           .compare = compare};
  return ahead_check(kernel, c, p, &part, stream);
}
