#include "runtime/parts/batch_masks.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/workspace.h"
#include "common/call/batch.h"
#include "common/call/choices.h"
#include "common/host.h"
#include "runtime/call/args.h"
#include "runtime/call/inputs.h"
#include "runtime/device/check_mode.h"
#include "runtime/device/launch_entry.h"
#include "runtime/parts/made_ahead.h"
#include "runtime/parts/stats.h"
#include "runtime/parts/tile_bits.h"

_Static_assert(LUATTN_MAX_INPUTS <= 12 && LUATTN_MAX_SCALARS <= 32 && LUATTN_MAX_AXES <= 4,
               "batch_mask has room for them");

/* ---- what bits are made for ---- */

static void describe(const args_call *c, const LuattnParams *p, batch_mask *out) {
  const image_manifest *m = c->info;
  const manifest_tile_bits *t = &m->bits[0];
  *out = (batch_mask){.device = c->device,
                      .is_float64 = m->dtype == LUATTN_F64,
                      .q_len = p->shape.q_len,
                      .kv_len = p->shape.kv_len,
                      .batch = p->shape.batch,
                      .heads = p->shape.heads,
                      .heads_kv = p->shape.heads_kv};
  memcpy(out->spec, t->spec, sizeof out->spec);
  for (uint32_t i = 0; i < m->num_scalars; ++i)
    if (t->scalars >> i & 1) out->scalar[i] = p->inputs.scalar[i];
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const LuattnInput *in = &p->inputs.input[i];
    batch_mask_input *to = &out->input[i];
    if (!(t->inputs >> i & 1)) continue;
    *to = (batch_mask_input){.data = in->data, .dtype = m->input[i].dtype};
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) to->size[a] = in->size[a], to->stride[a] = in->stride[a];
  }
}

/* A difference as messages say it: what, and both values. */
typedef struct difference {
  char what[LUATTN_NAME_SIZE + 48], made[32], now[32];
} difference;

static bool differ(difference *d, long long made, long long now, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static bool differ(difference *d, long long made, long long now, const char *fmt, ...) {
  if (made == now) return false;
  va_list list;
  va_start(list, fmt);
  vsnprintf(d->what, sizeof d->what, fmt, list);
  va_end(list);
  snprintf(d->made, sizeof d->made, "%lld", made);
  snprintf(d->now, sizeof d->now, "%lld", now);
  return true;
}

static bool input_differs(const args_call *c, const char *name, const batch_mask_input *a, const batch_mask_input *b,
                          difference *d) {
  if (differ(d, a->dtype, b->dtype, "the luattn_input_dtype of input '%s'", name)) return true;
  for (int axis = 0; axis < 4; ++axis)
    if (differ(d, a->size[axis], b->size[axis], "the size of axis %d of input '%s'", axis, name)) return true;
  if (c->shapes_only) return false; /* a size query may have no data, and strides go with that */
  for (int axis = 0; axis < 4; ++axis)
    if (differ(d, a->stride[axis], b->stride[axis], "the stride of axis %d of input '%s'", axis, name)) return true;
  if (a->data == b->data) return false;
  snprintf(d->what, sizeof d->what, "the address of input '%s'", name);
  snprintf(d->made, sizeof d->made, "%p", a->data);
  snprintf(d->now, sizeof d->now, "%p", b->data);
  return true;
}

static bool inputs_differ(const args_call *c, const batch_mask *made, const batch_mask *now, difference *d) {
  for (uint32_t i = 0; i < c->info->num_inputs; ++i)
    if (input_differs(c, c->info->input[i].name, &made->input[i], &now->input[i], d)) return true;
  return false;
}

static bool scalars_differ(const args_call *c, const batch_mask *made, const batch_mask *now, difference *d) {
  for (uint32_t i = 0; i < c->info->num_scalars; ++i) {
    if (made->scalar[i] == now->scalar[i]) continue;
    snprintf(d->what, sizeof d->what, "scalar '%s'", c->info->scalar[i].name);
    host_format(d->made, sizeof d->made, "%.9g", made->scalar[i]);
    host_format(d->now, sizeof d->now, "%.9g", now->scalar[i]);
    return true;
  }
  return false;
}

/* Sizes that the mask does not read may differ. */
static bool masks_differ(const args_call *c, const batch_mask *made, const batch_mask *now, difference *d) {
  const manifest_tile_bits *t = &c->info->bits[0];
  return differ(d, made->device, now->device, "CUDA device") || differ(d, made->q_len, now->q_len, "the length of q") ||
         differ(d, made->kv_len, now->kv_len, "the length of k") ||
         (t->by_batch && differ(d, made->batch, now->batch, "the number of batch entries")) ||
         ((t->by_head || t->reads_heads) && differ(d, made->heads, now->heads, "the number of heads of q")) ||
         (t->reads_heads && differ(d, made->heads_kv, now->heads_kv, "the number of heads of k")) ||
         (t->has_reals && differ(d, made->is_float64, now->is_float64, "q of float64 (1) or not (0)")) ||
         inputs_differ(c, made, now, d) || scalars_differ(c, made, now, d);
}

/* ---- memory ---- */

static size_t round_up(size_t size) { return (size + 255) / 256 * 256; }

/* Fills sizes and sets of the bits; both sizes are 0 if the mask needs none. Errors: LUATTN_INVALID (more than can be
 * addressed). */
static luattn_status measure(const args_call *c, const LuattnParams *p, LuattnTileBits *bits, batch_mask *out) {
  *bits = (LuattnTileBits){.rows = NULL};
  out->rows_size = out->bits_size = out->orders_at = out->size = 0;
  if (!c->info->tile_bits || c->info->packed || c->info->paged || p->shape.q_len == 0 || p->shape.kv_len == 0 ||
      p->shape.batch == 0)
    return LUATTN_OK;
  tile_bits_sets(c->info, &p->shape, bits);
  const int64_t words[] = {tile_bits_row_words(&p->shape), tile_bits_column_words(&p->shape)};
  const size_t sets = (size_t)bits->batch * bits->heads;
  size_t size[2];
  for (int i = 0; i < 2; ++i)
    if (__builtin_mul_overflow(sets, (size_t)words[i] * sizeof(unsigned), &size[i]) || size[i] > SIZE_MAX / 8)
      return args_fail(
          c,
          "tile bits of %zu masks of %d x %d scores: would exceed what this machine can address; use smaller tensors",
          sets, p->shape.q_len, p->shape.kv_len);
  LuattnParams unplaced = *p;
  out->rows_size = round_up(size[0]);
  out->bits_size = out->rows_size + round_up(size[1]);
  out->orders_at = out->bits_size + stats_place(c->info, &unplaced, 0);
  out->size = out->orders_at + round_up((size_t)tile_orders_words(c->info, &p->shape, bits) * sizeof(unsigned));
  return LUATTN_OK;
}

static void place(LuattnTileBits *bits, const batch_mask *made) {
  bits->rows = (unsigned *)(uintptr_t)made->memory;
  bits->columns = (unsigned *)((uintptr_t)made->memory + made->rows_size);
}

/* Likewise, with the memory in which bits are made. */
static void place_all(const args_call *c, LuattnCallParams *all, const batch_mask *made) {
  place(&all->bits, made);
  (void)stats_place(c->info, &all->dense, (uintptr_t)made->memory + made->bits_size);
}

/* The orders of its tiles, if they are for as many heads of k: bits may not depend on that. */
static unsigned *orders_of(const LuattnShape *s, const LuattnTileBits *bits, const batch_mask *made) {
  if (made->orders_at == made->size || (bits->heads > 1 && made->heads_kv != s->heads_kv)) return NULL;
  return (unsigned *)((uintptr_t)made->memory + made->orders_at);
}

/* Takes the bits of this call's mask from its batch, if the batch has some of its spec; otherwise p->all.bits.rows
 * stays NULL. */
static luattn_status take_from_batch(const args_call *c, prepared *to) {
  const luattn_batch *batch = c->args->batch;
  const LuattnParams *p = &to->all.dense;
  batch_mask now;
  difference d = {.what = ""};
  if (batch == NULL || batch->num_masks == 0 || !c->info->tile_bits || c->args->skip == LUATTN_SKIP_NEVER)
    return LUATTN_OK;
  LuattnTileBits bits;
  TRY(measure(c, p, &bits, &now));
  if (now.size == 0) return LUATTN_OK;
  describe(c, p, &now);
  for (int i = 0; i < batch->num_masks; ++i) {
    const batch_mask *made = &batch->mask[i];
    if (memcmp(made->spec, now.spec, sizeof now.spec) != 0 || masks_differ(c, made, &now, &d)) continue;
    place(&bits, made);
    to->all.bits = bits;
    to->orders = orders_of(&p->shape, &bits, made);
    return LUATTN_OK;
  }
  if (d.what[0] == 0) return LUATTN_OK; /* it has bits of other specs alone */
  return args_fail(
      c,
      "batch: its tile bits were made for another call: %s was %s, and is %s; call luattn_batch_prepare_mask with "
      "these arguments too, or give a batch without them",
      d.what, d.made, d.now);
}

luattn_status batch_masks_take(const args_call *c, prepared *p) {
  const LuattnShape *shape = &p->all.dense.shape;
  LuattnTileBits *const out = &p->all.bits;
  TRY(take_from_batch(c, p));
  if (out->rows != NULL && tile_bits_decide(c->info)) /* nothing reads them */
    memset(p->all.dense.scratch.stats, 0, sizeof p->all.dense.scratch.stats);
  p->makes_bits = out->rows == NULL && tile_bits_pay(c->info, shape, c->args->skip);
  if (!p->makes_bits) return LUATTN_OK;
  tile_bits_sets(c->info, shape, out);
  out->rows = room_take(&p->room, sizeof *out->rows, out->batch, out->heads, tile_bits_row_words(shape), 1);
  out->columns = room_take(&p->room, sizeof *out->columns, out->batch, out->heads, tile_bits_column_words(shape), 1);
  return LUATTN_OK;
}

luattn_status batch_masks_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry;
  if (p->makes_bits) tile_bits_grid(&p->all.bits, &p->all.dense.shape, size);
  return LUATTN_OK;
}

luattn_status tile_order_take(const args_call *c, prepared *p) {
  LuattnTileOrder *const out = &p->all.tile_order;
  const LuattnTileBits *bits = &p->all.bits;
  if (!p->makes_bits && bits->rows == NULL) return LUATTN_OK;
  const int64_t words = tile_order_fill(c->info, &p->all.dense, bits, c->args->skip, c->multiprocessors, out);
  if (words == 0) return LUATTN_OK;
  out->tiles = tile_orders_find(c->info, &p->all.dense.shape, bits, out, p->orders);
  p->makes_order = out->tiles == NULL;
  if (p->makes_order) out->tiles = room_take(&p->room, sizeof *out->tiles, words, 1, 1, 1);
  return LUATTN_OK;
}

luattn_status tile_order_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)c, (void)entry;
  const LuattnTileOrder *o = &p->all.tile_order;
  const LuattnTileBits *bits = &p->all.bits;
  if (p->makes_order) size[0] = o->size > 0 ? (int64_t)o->batch * o->heads : (int64_t)bits->batch * bits->heads;
  size[1] = o->size > 0 ? 1 : LUATTN_ORDERS;
  size[2] = 1;
  return LUATTN_OK;
}

/* ---- making them ahead ---- */

static part_grid *grid_of(const manifest_entry *e) {
  switch ((luattn_role)e->role) {
    case LUATTN_ROLE_STATS:
      return stats_grid;
    case LUATTN_ROLE_TILE_BITS:
      return batch_masks_grid;
    case LUATTN_ROLE_TILE_ORDER:
      return tile_order_grid;
    default:
      return NULL; /* not made here */
  }
}

/* Evaluates the mask into p->all.bits, after minima of what it reads, which go where stats_place puts them, and writes
 * all orders of a batch to p->all.tile_order.tiles, if that is not NULL. The device's context is current. All checks
 * come first. */
static luattn_status make(const luattn_kernel *kernel, const args_call *c, prepared *p, cu_stream stream) {
  const image_manifest *m = &kernel->info;
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  LuattnTensorMaps maps;
  memset(&maps, 0, sizeof maps);
  p->makes_bits = true;
  p->makes_order = p->all.tile_order.tiles != NULL;
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (grid_of(&m->entry[i]) != NULL) TRY(part_find_grid(c, &m->entry[i], grid_of(&m->entry[i]), p, grid[i]));
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (grid_of(&m->entry[i]) != NULL) TRY(launch_entry(kernel, i, &p->all, &maps, grid[i], stream, c->err));
  return LUATTN_OK;
}

/* A call's shapes, as luattn_workspace_size reads them. */
static luattn_status read_call(const luattn_kernel *kernel, const luattn_args *used, args_call *c, prepared *p,
                               batch_mask *made, luattn_error *err) {
  *c = args_call_of(kernel, used, true, err);
  prepared_begin(p, 0);
  TRY(args_fill(c, &p->all));
  return measure(c, &p->all.dense, &p->all.bits, made);
}

luattn_status luattn_batch_mask_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                     luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  args_call c;
  prepared p;
  batch_mask made;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(choices_take(args, args_place(kernel), &used, err));
  *size = 0;
  if (kernel->cpu_run != NULL) return LUATTN_OK;
  TRY(read_call(kernel, &used, &c, &p, &made, err));
  *size = made.size;
  return LUATTN_OK;
}

/* Drops bits that these replace: of the same arguments, or in the same memory. */
static void drop_replaced(const args_call *c, luattn_batch *batch, const batch_mask *made) {
  difference d;
  int kept = 0;
  for (int i = 0; i < batch->num_masks; ++i) {
    const batch_mask *other = &batch->mask[i];
    const bool is_same = memcmp(other->spec, made->spec, sizeof made->spec) == 0 && !masks_differ(c, other, made, &d);
    if (other->memory != made->memory && !is_same) batch->mask[kept++] = *other;
  }
  batch->num_masks = kept;
}

/* Makes room for one more mask in the batch. */
static luattn_status make_room(const args_call *c, luattn_batch *batch, const batch_mask *made) {
  const uintptr_t at = (uintptr_t)made->memory;
  if (batch->mask == NULL) batch->mask = calloc(BATCH_MAX_MASKS, sizeof *batch->mask);
  if (batch->mask == NULL) return luattn_fail(c->err, LUATTN_NO_MEMORY, "luattn_batch_prepare_mask: out of memory");
  drop_replaced(c, batch, made);
  for (int i = 0; i < batch->num_masks; ++i) {
    const uintptr_t other = (uintptr_t)batch->mask[i].memory;
    if (at >= other + batch->mask[i].size || other >= at + made->size) continue;
    return args_fail(
        c,
        "tile bits: memory: its %zu bytes at %p are shared with the tile bits of another mask at %p; give each memory "
        "of its own",
        made->size, made->memory, batch->mask[i].memory);
  }
  if (batch->num_masks < BATCH_MAX_MASKS) return LUATTN_OK;
  return args_fail(
      c,
      "batch: has the tile bits of %d masks, and there is room for no more; use a second batch, or memory whose bits "
      "are no longer needed",
      BATCH_MAX_MASKS);
}

luattn_status luattn_batch_prepare_mask(luattn_batch *batch, const luattn_kernel *kernel, const luattn_args *args,
                                        void *memory, size_t size, void *stream, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  args_call c;
  prepared p;
  batch_mask made;
  fail_clear(err);
  NEED(batch);
  NEED(kernel);
  NEED(args);
  TRY(choices_take(args, args_place(kernel), &used, err));
  used.batch = batch;
  if (kernel->cpu_run != NULL) return LUATTN_OK;
  TRY(read_call(kernel, &used, &c, &p, &made, err));
  const batch_mask sizes = made;
  if (sizes.size == 0) return LUATTN_OK;
  TRY(ahead_check_memory(&c, "tile bits", "luattn_batch_mask_size", memory, size, sizes.size));
  c.shapes_only = false;
  TRY(args_inputs(&c, &p.all.dense));
  describe(&c, &p.all.dense, &made);
  made.memory = memory, made.rows_size = sizes.rows_size, made.bits_size = sizes.bits_size;
  made.orders_at = sizes.orders_at, made.size = sizes.size;
  TRY(make_room(&c, batch, &made));
  place_all(&c, &p.all, &made);
  if (made.orders_at < made.size) p.all.tile_order.tiles = (unsigned *)((uintptr_t)memory + made.orders_at);
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = make(kernel, &c, &p, stream);
  driver_pop(kernel->driver);
  if (status == LUATTN_OK) batch->mask[batch->num_masks++] = made;
  return status;
}

/* ---- LUATTN_CHECK ---- */

/* Compares the words of rows of cells. */
static luattn_status compare(const args_call *c, const prepared *p, const char *bits, const char *others) {
  const unsigned *have = (const unsigned *)(const void *)bits, *want = (const unsigned *)(const void *)others;
  const LuattnCallParams *all = &p->all;
  const LuattnShape *s = &all->dense.shape;
  const int64_t words = workspace_bit_words(workspace_cells(s->kv_len)) * 2, rows = workspace_cells(s->q_len),
                sets = (int64_t)all->bits.batch * all->bits.heads;
  int64_t wrong = 0, first = 0;
  for (int64_t i = sets * rows * words; i-- > 0;)
    if (have[i] != want[i]) ++wrong, first = i;
  if (wrong == 0) return LUATTN_OK;
  const int64_t bit = first % words / 2 * 32 + __builtin_ctz(have[first] ^ want[first]), row = first / words % rows,
                set = first / words / rows;
  return args_fail(c,
                   "batch: its tile bits are not those of the mask: queries from %" PRId64 " and keys from %" PRId64
                   " on, of batch entry %" PRId64 " and head %" PRId64 ", and %" PRId64
                   " more words of cells; an input has changed, call luattn_batch_prepare_mask again",
                   row * LUATTN_CELL, bit * LUATTN_CELL, set / all->bits.heads, set % all->bits.heads, wrong - 1);
}

static luattn_status make_again(const luattn_kernel *kernel, const args_call *c, prepared *p, uintptr_t memory,
                                cu_stream stream) {
  batch_mask made = {.device = c->device};
  TRY(measure(c, &p->all.dense, &p->all.bits, &made));
  made.memory = (const void *)memory;
  memset(p->all.dense.scratch.stats, 0, sizeof p->all.dense.scratch.stats); /* not yet computed */
  p->all.tile_order = (LuattnTileOrder){.tiles = NULL};
  place_all(c, &p->all, &made);
  return make(kernel, c, p, stream);
}

luattn_status batch_masks_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream) {
  if (p->makes_bits || p->all.bits.rows == NULL || !check_asked()) return LUATTN_OK;
  LuattnTileBits bits;
  batch_mask sizes = {.device = c->device};
  TRY(measure(c, &p->all.dense, &bits, &sizes));
  const ahead_part part = {.what = "tile bits",
                           .have = p->all.bits.rows,
                           .compared = sizes.rows_size,
                           .size = sizes.size,
                           .make = make_again,
                           .compare = compare};
  return ahead_check(kernel, c, p, &part, stream);
}
