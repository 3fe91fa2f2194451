#include "runtime/parts/split_list.h"

#include <inttypes.h>

#include "common/call/batch.h"
#include "common/call/kernel_time.h"
#include "runtime/call/args.h"
#include "runtime/call/sizes.h"
#include "runtime/device/check_mode.h"
#include "runtime/parts/made_ahead.h"

/* What blocks take before their first tile and after their last, in bytes that memory delivers meanwhile (H200). A
 * multiprocessor of 227 KB has two blocks of DECODE_HALF bytes of shared memory. */
#define DECODE_START 7e6
enum { DECODE_HALF = 113 * 1024 };

/* Blocks that share a tile with others, for each that runs at once. */
enum { PARTS_RESIDENT = 8 };

/* By the time that is predicted for entries which are all as long as the longest, in microseconds: blocks find their
 * places from `places` on, and are as many as run at once, 2 and 3 times as many from the next ones on. Of more entries
 * than can be looked at a launch makes a list from `list` on. Else neither gains what it takes (bench/journal/decode.md,
 * 12). */
static const struct {
  double places, twice, thrice, list;
} least_time = {20, 40, 150, 400};

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

static int blocks_each(const manifest_entry *main) { return main->shared_bytes > DECODE_HALF ? 1 : 2; }

static double blocks_resident(const args_call *c, const manifest_entry *main) {
  return (double)c->multiprocessors * blocks_each(main);
}

static double bytes_of_key(const image_manifest *m) { return (m->head_dim + m->head_dim_v) * 2.0; }

/* Bytes of what a block leaves for luattn_merge, which are written and read. */
static double bytes_of_part(const image_manifest *m, const manifest_entry *main) {
  return 2.0 * main->tile_m * m->head_dim_v * 4;
}

static int64_t splits_alone(int64_t keys) {
  const int64_t splits = ceil_div(keys, LUATTN_SPLIT_KEYS);
  return splits < 1 ? 1 : least_of(splits, LUATTN_MAX_SPLITS);
}

/* Packed sequences have their total of keys; lengths of entries are not known. Of some entries. */
static decode_sizes sizes_of(const args_call *c, const LuattnParams *p) {
  const image_manifest *m = c->info;
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_FORWARD);
  const bool totals = m->packed && !m->paged;
  return (decode_sizes){.tiles = (double)ceil_div((int64_t)p->shape.q_len * p->shape.group, main->tile_m) *
                                 p->shape.heads_kv * p->shape.batch,
                        .keys = totals ? (double)c->args->k->shape[0] / p->shape.batch : (double)p->shape.kv_len,
                        .longest = p->shape.kv_len,
                        .tile_m = (int)main->tile_m,
                        .tile_n = (int)main->tile_n,
                        .head_dim = (int)m->head_dim,
                        .head_dim_v = (int)m->head_dim_v,
                        .multiprocessors = c->multiprocessors,
                        .blocks_each = blocks_each(main)};
}

/* The number for each entry, where there is no list, and the predicted time; 0: it does not matter. */
static int best_splits(const args_call *c, const LuattnParams *p, double *time) {
  *time = 0;
  if (c->info->deterministic) return (int)splits_alone(p->shape.kv_len);
  if (p->shape.batch == 0 || c->args->num_splits != 0) return 1;
  const decode_sizes sizes = sizes_of(c, p);
  return decode_best_splits(&sizes, time);
}

/* ---- the list ---- */

bool split_list_of(const image_manifest *m) { return sizes_entry(m, LUATTN_ROLE_SPLIT_LIST) != NULL; }

static bool holds_list(const args_call *c) {
  const luattn_batch *batch = c->args->batch;
  return batch != NULL && batch->splits.memory != NULL && batch->splits.device == c->device;
}

/* Whether the call may share keys by its entries' lengths. */
static bool may_list(const args_call *c, const LuattnParams *p) {
  return split_list_of(c->info) && c->args->num_splits == 0 && p->shape.batch > 0 && p->shape.q_len > 0;
}

/* How many rounds of blocks a call has whose blocks find their places; 0: they do not. */
static int rounds_in_place(const args_call *c, const LuattnParams *p, double time) {
  const manifest_entry *list = sizes_entry(c->info, LUATTN_ROLE_SPLIT_LIST);
  if (c->info->deterministic || list->tile_n <= 1 || p->shape.batch > (int)list->tile_n || p->shape.batch == 1)
    return 0;
  return (time >= least_time.places) + (time >= least_time.twice) + (time >= least_time.thrice);
}

/* Tiles of rows of all entries, and how many of a head's blocks may share one. */
static int64_t all_tiles(const args_call *c, const LuattnParams *p, int64_t tile_m, int64_t tiles) {
  const int64_t longest = tiles * p->shape.batch;
  return c->info->packed ? least_of(longest, c->args->q->shape[0] * p->shape.group / tile_m + p->shape.batch) : longest;
}
static int64_t most_parts(const args_call *c, const LuattnParams *p, const manifest_entry *main, int64_t tiles,
                          int64_t all) {
  if (!c->info->deterministic)
    return least_of(
        all * LUATTN_MAX_SPLITS,
        max_of((int64_t)(PARTS_RESIDENT * blocks_resident(c, main)) / p->shape.heads_kv, LUATTN_MAX_SPLITS));
  const int64_t splits = splits_alone(p->shape.kv_len), parts = splits > 1 ? all * splits : 0;
  /* An entry that is split has more keys than one block, and at most twice as many blocks as they fill. */
  const bool totals = c->info->packed && !c->info->paged;
  return totals ? least_of(parts, tiles * (c->args->k->shape[0] * 2 / LUATTN_SPLIT_KEYS)) : parts;
}

/* Enters the sizes of the list that a launch makes, without its memory. */
static luattn_status find_sizes(const args_call *c, const LuattnParams *p, LuattnSplitList *out) {
  const image_manifest *m = c->info;
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_FORWARD);
  const int64_t rows = (int64_t)p->shape.q_len * p->shape.group, tiles = ceil_div(rows, main->tile_m),
                all = all_tiles(c, p, main->tile_m, tiles), parts = most_parts(c, p, main, tiles, all);
  if (all + parts > INT32_MAX / p->shape.heads_kv)
    return args_fail(c,
                     "%s: may need %" PRId64 " x %d blocks, expected at most %d; split the call into smaller batches",
                     main->name, all + parts, p->shape.heads_kv, INT32_MAX);
  *out = (LuattnSplitList){.most_items = (unsigned)(all + parts),
                           .most_parts = (unsigned)parts,
                           .tile_m = (int)main->tile_m,
                           .tiles = (int)tiles,
                           .rows = (int)least_of(main->tile_m, rows),
                           .heads_kv = p->shape.heads_kv,
                           .chunk = m->deterministic ? LUATTN_SPLIT_KEYS : 0,
                           .resident = (float)blocks_resident(c, main),
                           .multiprocessors = (float)c->multiprocessors,
                           .start = (float)(DECODE_START / bytes_of_key(m)),
                           .part = (float)(bytes_of_part(m, main) / bytes_of_key(m))};
  return LUATTN_OK;
}

/* Places a list of these sizes from `base` on, a multiple of 256 (0: only measures). Returns its bytes. */
static size_t place(const LuattnParams *p, uintptr_t base, LuattnSplitList *list) {
  const size_t items = ((size_t)list->most_items + 1) * sizeof *list->items,
               tiles = (size_t)list->tiles * (size_t)p->shape.batch * sizeof *list->of_tile,
               at = (items + 255) / 256 * 256;
  list->items = base != 0 ? (LuattnSplitItem *)base : NULL;
  list->of_tile = base != 0 ? (LuattnTileSplits *)(base + at) : NULL;
  return at + tiles;
}

/* ---- the batch's ---- */

static batch_splits made_for(const args_call *c, const LuattnParams *p, const LuattnSplitList *list,
                             const void *memory) {
  return (batch_splits){.memory = memory,
                        .device = c->device,
                        .entries = p->shape.batch,
                        .queries = p->shape.q_len,
                        .group = p->shape.group,
                        .tile_m = list->tile_m,
                        .chunk = list->chunk,
                        .most_items = list->most_items,
                        .most_parts = list->most_parts};
}

static luattn_status refuse(const args_call *c, const char *what, int64_t was, int64_t is) {
  return args_fail(c,
                   "batch: its list of splits was made for another call: %s %" PRId64 ", here %" PRId64
                   "; call luattn_batch_prepare_tiles with these arguments, or give a batch without a list",
                   what, was, is);
}

static luattn_status take_from_batch(const args_call *c, const LuattnParams *p, LuattnSplitList *out, bool *found) {
  *found = holds_list(c);
  if (!*found) return LUATTN_OK;
  const batch_splits *have = &c->args->batch->splits, need = made_for(c, p, out, NULL);
  const struct {
    const char *what;
    int64_t was, is;
  } row[] = {{"entries were", have->entries, need.entries},
             {"the most queries of an entry were", have->queries, need.queries},
             {"query heads of a kv head were", have->group, need.group},
             {"rows of the kernel's tiles were", have->tile_m, need.tile_m},
             {"keys of each block (0: not of a deterministic kernel) were", have->chunk, need.chunk}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i)
    if (row[i].was != row[i].is) return refuse(c, row[i].what, row[i].was, row[i].is);
  out->most_items = have->most_items, out->most_parts = have->most_parts;
  (void)place(p, (uintptr_t)have->memory, out);
  return LUATTN_OK;
}

/* The items that blocks begin with: those that run at once, or of a list in memory a few rounds of them, as the GPU hands
 * out blocks to whichever place is free; each takes further ones if there are more. At least one of each tile. Of images
 * of before, blocks take one item each. */
int64_t split_list_items(const args_call *c, const prepared *p) {
  enum { LIST_ROUNDS = 4 };
  const LuattnSplitList *list = &p->all.list;
  const manifest_entry *main = sizes_entry(c->info, LUATTN_ROLE_FORWARD);
  if (sizes_entry(c->info, LUATTN_ROLE_SPLIT_LIST)->tile_m <= 1) return list->most_items;
  const int64_t all = all_tiles(c, &p->all.dense, main->tile_m, list->tiles),
                rounds = list->in_place > 0 ? 1 : LIST_ROUNDS;
  return least_of(list->most_items, max_of(all, (int64_t)((double)rounds * blocks_resident(c, main)) / list->heads_kv));
}

/* No list, but memory for what the first block of each tile finds. */
static luattn_status take_places(const args_call *c, int rounds, prepared *to) {
  const LuattnParams *p = &to->all.dense;
  LuattnSplitList *const list = &to->all.list;
  const manifest_entry *main = sizes_entry(c->info, LUATTN_ROLE_FORWARD);
  TRY(find_sizes(c, p, list));
  const int64_t all = all_tiles(c, p, main->tile_m, list->tiles),
                at_once = (int64_t)(rounds * blocks_resident(c, main)) / p->shape.heads_kv;
  list->most_items = list->most_parts = (unsigned)least_of(max_of(all, at_once), list->most_items);
  list->in_place = p->shape.batch;
  list->of_tile = room_take(&to->room, sizeof *list->of_tile, list->tiles, p->shape.batch, 1, 1);
  return LUATTN_OK;
}

/* The list comes from the batch, or is made in the workspace, or blocks do without it, by the time without a list. */
static luattn_status take_list(const args_call *c, double time, prepared *to) {
  const LuattnParams *p = &to->all.dense;
  LuattnSplitList *const list = &to->all.list;
  bool found;
  if (!may_list(c, p)) return LUATTN_OK;
  const bool in_batch = holds_list(c);
  const int rounds = in_batch ? 0 : rounds_in_place(c, p, time);
  to->has_list = in_batch || c->info->deterministic || rounds > 0 || (time >= least_time.list && p->shape.batch > 1);
  if (!to->has_list) return LUATTN_OK;
  if (rounds > 0) return take_places(c, rounds, to);
  TRY(find_sizes(c, p, list));
  TRY(take_from_batch(c, p, list, &found));
  to->makes_list = !found;
  if (found) return LUATTN_OK;
  void *memory = room_take(&to->room, place(p, 0, list), 1, 1, 1, 1);
  (void)place(p, (uintptr_t)memory, list);
  return LUATTN_OK;
}

luattn_status split_list_take(const args_call *c, prepared *to) {
  const image_manifest *m = c->info;
  const LuattnParams *p = &to->all.dense;
  const LuattnSplitList *list = &to->all.list;
  LuattnSplits *const out = &to->all.splits;
  const int asked = c->args->num_splits;
  if (!m->decode) return LUATTN_OK;
  if (asked < 0 || asked > LUATTN_MAX_SPLITS)
    return args_fail(c, "num_splits: is %d, expected 1 to %d, or 0 to leave it to the launch", asked,
                     LUATTN_MAX_SPLITS);
  double time;
  const int best = best_splits(c, p, &time);
  TRY(take_list(c, time, to));
  out->count = to->has_list ? (list->most_parts > 0 ? (int)list->most_parts : 1) : asked > 0 ? asked : best;
  if (out->count == 1) return LUATTN_OK;
  const int64_t rows = to->has_list ? (int64_t)list->heads_kv * list->rows
                                    : (int64_t)p->shape.heads *
                                          (m->packed ? c->args->q->shape[0] : (int64_t)p->shape.batch * p->shape.q_len);
  out->o = room_take(&to->room, sizeof(float), out->count, rows, m->head_dim_v, 1);
  out->state = room_take(&to->room, sizeof(float), (int64_t)m->num_state[0] + 1, out->count, rows, 1);
  return LUATTN_OK;
}

luattn_status split_list_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry;
  size[0] = p->makes_list;
  size[1] = size[2] = 1;
  return LUATTN_OK;
}

luattn_status split_merge_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry;
  if (p->all.splits.count > 1) size[0] = p->all.dense.shape.q_len;
  return LUATTN_OK;
}

/* ---- making one ahead ---- */

/* Lists the blocks in p->all.list. The device's context is current. */
static luattn_status make(const luattn_kernel *kernel, const args_call *c, prepared *p, cu_stream stream) {
  p->makes_list = true;
  return part_launch(kernel, c, LUATTN_ROLE_SPLIT_LIST, split_list_grid, p, &p->all, stream);
}

/* A call's shapes, as luattn_workspace_size reads them, and the bytes of its list. */
static luattn_status read_call(const luattn_kernel *kernel, const luattn_args *used, args_call *c, prepared *p,
                               size_t *size, luattn_error *err) {
  LuattnCallParams *const all = &p->all;
  *c = args_call_of(kernel, used, true, err);
  prepared_begin(p, 0);
  *size = 0;
  TRY(args_fill(c, all));
  if (all->dense.shape.batch == 0 || all->dense.shape.q_len == 0) return LUATTN_OK;
  TRY(find_sizes(c, &all->dense, &all->list));
  *size = place(&all->dense, 0, &all->list);
  return LUATTN_OK;
}

luattn_status split_list_batch_size(const luattn_kernel *kernel, const luattn_args *used, size_t *size,
                                    luattn_error *err) {
  args_call c;
  prepared p;
  return read_call(kernel, used, &c, &p, size, err);
}

luattn_status split_list_prepare(luattn_batch *batch, const luattn_kernel *kernel, const luattn_args *used,
                                 void *memory, size_t size, void *stream, luattn_error *err) {
  args_call c;
  prepared p;
  size_t need;
  TRY(read_call(kernel, used, &c, &p, &need, err));
  if (need == 0) return LUATTN_OK;
  TRY(ahead_check_memory(&c, "list of splits", "luattn_batch_tiles_size", memory, size, need));
  c.shapes_only = false;
  TRY(args_fill_arrays(&c, &p.all));
  (void)place(&p.all.dense, (uintptr_t)memory, &p.all.list);
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = make(kernel, &c, &p, stream);
  driver_pop(kernel->driver);
  if (status == LUATTN_OK) batch->splits = made_for(&c, &p.all.dense, &p.all.list, memory);
  return status;
}

/* ---- LUATTN_CHECK ---- */

static int64_t tiles_of(const prepared *p) { return (int64_t)p->all.dense.shape.batch * p->all.list.tiles; }

static luattn_status compare(const args_call *c, const prepared *p, const char *of_tile, const char *others) {
  const LuattnSplitList *list = &p->all.list;
  const LuattnTileSplits *have = (const LuattnTileSplits *)(const void *)of_tile,
                         *want = (const LuattnTileSplits *)(const void *)others;
  for (int64_t i = 0; i < tiles_of(p); ++i) {
    const bool same = list->chunk > 0 ? have[i].count == want[i].count : (have[i].count > 0) == (want[i].count > 0);
    if (!same)
      return args_fail(c,
                       "batch: its list of splits is not of its lengths: tile %" PRId64 " of entry %" PRId64
                       " had %u splits, expected %u; they have changed, call luattn_batch_prepare_tiles again",
                       i % list->tiles, i / list->tiles, have[i].count, want[i].count);
  }
  return LUATTN_OK;
}

static luattn_status make_again(const luattn_kernel *kernel, const args_call *c, prepared *p, uintptr_t memory,
                                cu_stream stream) {
  (void)place(&p->all.dense, memory, &p->all.list);
  return make(kernel, c, p, stream);
}

luattn_status split_list_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream) {
  LuattnSplitList unplaced = p->all.list;
  if (!p->has_list || p->makes_list || p->all.list.in_place > 0 || !check_asked()) return LUATTN_OK;
  const size_t compared = (size_t)tiles_of(p) * sizeof *unplaced.of_tile, size = place(&p->all.dense, 0, &unplaced);
  const ahead_part part = {.what = "a list of splits",
                           .have = p->all.list.of_tile,
                           .compared = compared,
                           .at = size - compared,
                           .size = size,
                           .make = make_again,
                           .compare = compare};
  return ahead_check(kernel, c, p, &part, stream);
}
