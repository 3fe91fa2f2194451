/* append.c: luattn_append, which writes new rows of keys and values to a cache, through the mods of a spec or as they
 * are. */
#include "runtime/parts/append.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/batch.h"
#include "common/host.h"
#include "common/call/overlap.h"
#include "common/struct_size.h"
#include "runtime/call/batch_arrays.h"
#include "runtime/call/inputs.h"
#include "runtime/call/offsets.h"
#include "runtime/call/order.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/device/check_mode.h"
#include "runtime/parts/part.h"

static bool has_mods(const image_manifest *m) { return m->append_mods[0].key_mod || m->append_mods[0].value_mod; }

static luattn_status check_given(const args_call *c, const luattn_append_args *a) {
  const struct {
    const char *name;
    const DLTensor *t;
    bool is_packed;
  } all[] = {{"k", a->k, false},
             {"v", a->v, false},
             {"new_k", a->new_k, c->info->packed},
             {"new_v", a->new_v, c->info->packed}};
  if (!c->info->paged)
    return args_fail(c,
                     "luattn_append: this kernel is for keys that are not in pages; take one with luattn_target.pages");
  if (!batch_is_paged(a->batch))
    return args_fail(c, "luattn_append: batch: %s; give seqused_k, and the block_table of pages",
                     a->batch == NULL ? "is missing" : "has no seqused_k without cu_seqlens_k");
  if (batch_is_packed(a->batch) != (c->info->packed != 0))
    return args_fail(c, "luattn_append: batch: has %s cu_seqlens_q, and this kernel's queries are %s",
                     c->info->packed ? "no" : "a", c->info->packed ? "packed" : "not packed");
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    const int ndim = all[i].is_packed ? 3 : 4;
    if (all[i].t == NULL) return args_fail(c, "luattn_append: %s: is missing", all[i].name);
    if (all[i].t->ndim != ndim || all[i].t->shape == NULL)
      return args_fail(c, "luattn_append: %s: has %d axes, expected %d: [%s]", all[i].name, all[i].t->ndim, ndim,
                       i < 2              ? "num_pages, heads_kv, page_size, head_dim"
                       : all[i].is_packed ? "total rows, heads_kv, head_dim"
                                          : "batch, heads_kv, rows, head_dim");
    for (int j = 0; j < ndim; ++j)
      if (all[i].t->shape[j] < 0 || all[i].t->shape[j] > INT32_MAX)
        return args_fail(c, "luattn_append: %s: axis %d has size %" PRId64 ", expected 0 to %d", all[i].name, j,
                         all[i].t->shape[j], INT32_MAX);
  }
  return LUATTN_OK;
}

/* Takes the cache's tensor of keys (0) or values (1), and the new rows. */
static luattn_status take_side(const args_call *c, const luattn_append_args *a, int side, LuattnAppend *out) {
  const DLTensor *to = side == 0 ? a->k : a->v, *from = side == 0 ? a->new_k : a->new_v;
  const int64_t width = side == 0 ? c->info->head_dim : c->info->head_dim_v, *pages = a->k->shape,
                *rows = a->new_k->shape;
  const bool packed = c->info->packed != 0;
  long long stride[4];
  tensor_rule rule = {.name = side == 0 ? "k" : "v",
                      .axes = "num_pages, heads_kv, page_size, head_dim",
                      .ndim = 4,
                      .shape = {pages[0], pages[1], pages[2], width},
                      .dtype = args_elem(c->info),
                      .is_output = true,
                      .is_row = true};
  TRY(args_tensor(c, &rule, to, stride, &out->to[side].data));
  out->to[side].batch = stride[0], out->to[side].head = stride[1], out->to[side].seq = stride[2];
  rule.name = side == 0 ? "new_k" : "new_v";
  rule.is_output = false;
  rule.shape[0] = rows[0];
  rule.shape[1] = pages[1];
  rule.shape[2] = packed ? width : rows[2];
  rule.ndim = packed ? 3 : 4;
  rule.axes = packed ? "total rows, heads_kv, head_dim" : "batch, heads_kv, rows, head_dim";
  TRY(args_tensor(c, &rule, from, stride, &out->from[side].data));
  out->from[side].batch = packed ? 0 : stride[0];
  out->from[side].head = stride[1], out->from[side].seq = stride[packed ? 0 : 2];
  return LUATTN_OK;
}

static luattn_status take_arrays(const args_call *c, const luattn_append_args *a, LuattnAppend *out) {
  const batch_array *array = a->batch->array, *used = &array[BATCH_SEQUSED_K], *table = &array[BATCH_BLOCK_TABLE],
                    *cu = &array[BATCH_CU_SEQLENS_Q];
  const int64_t entries = used->count;
  if (entries > INT32_MAX)
    return args_fail(c, "luattn_append: seqused_k: has %" PRId64 " elements, expected at most %d", entries, INT32_MAX);
  out->batch = (int)entries;
  TRY(batch_array_take(c, used, "batch", entries, &out->seqused_k));
  if (table->is_given) TRY(batch_array_take(c, table, "batch * max_pages", table->count, &out->paging.block_table));
  if (cu->is_given) TRY(batch_array_take(c, cu, "batch + 1", cu->count, &out->cu_seqlens));
  if (!table->is_given && a->k->shape[0] != entries)
    return args_fail(
        c, "luattn_append: k: has %" PRId64 " entries, and seqused_k %" PRId64 "; give as many, or a block_table",
        a->k->shape[0], entries);
  if (!cu->is_given && a->new_k->shape[0] != entries)
    return args_fail(c,
                     "luattn_append: new_k: has batch %" PRId64 ", and seqused_k has %" PRId64
                     " elements, expected one for each entry",
                     a->new_k->shape[0], entries);
  out->paging.pages = table->is_given ? (int)a->batch->pages : 1;
  out->paging.num_pages = (int)a->k->shape[0];
  return LUATTN_OK;
}

/* The most pieces of a tensor, which a grid has threads for, and 31 bits count. */
static luattn_status count_pieces(const args_call *c, const LuattnAppend *p, int64_t *out) {
  const int64_t widest = c->info->head_dim > c->info->head_dim_v ? c->info->head_dim : c->info->head_dim_v;
  if (!__builtin_mul_overflow((int64_t)p->total * widest, (int64_t)p->heads_kv.d, out) && *out <= INT32_MAX)
    return LUATTN_OK;
  return args_fail(c,
                   "luattn_append: new_k: has %d rows of %u heads, which are more than 2^31 elements; split the call",
                   p->total, p->heads_kv.d);
}

/* Checks that what is written overlaps nothing that is read. */
static luattn_status check_apart(const args_call *c, const luattn_append_args *a, const LuattnAppend *p) {
  enum { GIVEN = 4, ARRAYS = 3 };
  const int *const data[ARRAYS] = {p->seqused_k, p->paging.block_table, p->cu_seqlens};
  const batch_array_name name[ARRAYS] = {BATCH_SEQUSED_K, BATCH_BLOCK_TABLE, BATCH_CU_SEQLENS_Q};
  overlap_item items[GIVEN + ARRAYS + MANIFEST_MAX_INPUTS] = {
      {"k", a->k, true}, {"v", a->v, true}, {"new_k", a->new_k, false}, {"new_v", a->new_v, false}};
  DLTensor array[ARRAYS];
  int64_t count[ARRAYS];
  int n = GIVEN;
  for (int i = 0; i < ARRAYS; ++i) {
    count[i] = a->batch->array[name[i]].count;
    array[i] = (DLTensor){.data = (void *)(uintptr_t)data[i], .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &count[i]};
    if (data[i] != NULL) items[n++] = (overlap_item){a->batch->array[name[i]].name, &array[i], false};
  }
  for (size_t i = 0; has_mods(c->info) && i < a->num_inputs; ++i) /* fill_mods has checked them */
    items[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
  overlap_pair pair;
  char text[400];
  if (!overlap_find_among(items, n, &pair)) return LUATTN_OK;
  overlap_text(&pair, text, sizeof text);
  return args_fail(c, "luattn_append: %s", text);
}

static luattn_status fill(const args_call *c, const luattn_append_args *a, LuattnAppend *out) {
  TRY(check_given(c, a));
  const int64_t heads_kv = a->k->shape[1], page_size = a->k->shape[2],
                rows = c->info->packed ? a->new_k->shape[0] : a->new_k->shape[2];
  if (heads_kv < 1 || page_size < 1)
    return args_fail(c, "luattn_append: k: has %" PRId64 " heads and pages of %" PRId64 " rows, expected at least 1",
                     heads_kv, page_size);
  for (int side = 0; side < 2; ++side) TRY(take_side(c, a, side, out));
  TRY(take_arrays(c, a, out));
  const int64_t total = c->info->packed ? rows : rows * out->batch;
  if (total > INT32_MAX)
    return args_fail(c, "luattn_append: new_k: has %" PRId64 " rows, expected at most %d; split the call", total,
                     INT32_MAX);
  out->total = (int)total;
  out->paging.page_size = order_divisor(page_size);
  out->heads_kv = order_divisor(heads_kv);
  out->rows = order_divisor(rows > 0 ? rows : 1);
  return LUATTN_OK;
}

/* ---- mods ---- */

/* New rows have heads of keys alone, so those of queries have to be in the batch. */
static luattn_status fill_offsets(const args_call *c, LuattnCallParams *out) {
  const luattn_batch *given = c->args->batch;
  luattn_batch batch = *given;
  args_call keys = *c;
  luattn_args args = *c->args;
  batch.head_offset = batch.heads = batch.heads_kv = 0;
  args.batch = &batch, keys.args = &args;
  if (c->info->offsets || given->heads == 0) TRY(offsets_fill(&keys, out));
  if (given->heads == 0) return LUATTN_OK;
  if (!c->info->offsets) return offsets_fill(c, out); /* which refuses it */
  if (given->heads_kv == 0)
    return args_fail(
        c, "luattn_append: batch: heads: is %" PRId64 ", and new rows have heads of keys alone; give heads_kv too",
        given->heads);
  out->offsets.kv_head_offset = (int)(given->head_offset / (given->heads / given->heads_kv));
  out->offsets.heads_kv = (int)given->heads_kv;
  return LUATTN_OK;
}

/* Fills what hooks read: inputs, scalars and offsets. */
static luattn_status fill_mods(const args_call *c, const luattn_append_args *a, LuattnCallParams *out) {
  const luattn_args args = {.struct_size = sizeof args,
                            .k = a->k,
                            .v = a->v,
                            .inputs = a->inputs,
                            .num_inputs = a->num_inputs,
                            .scalars = a->scalars,
                            .num_scalars = a->num_scalars,
                            .batch = a->batch};
  args_call of_hooks = *c;
  LuattnParams *const p = &out->dense;
  const int64_t longest = batch_longest_appended(a->batch, a->k->shape[2], a->new_k->shape);
  of_hooks.args = &args;
  if (longest > c->info->max_len)
    return args_fail(c,
                     "luattn_append: batch: max_seqlen_k: an entry may have %" PRId64
                     " rows with its new ones, but this spec's index arithmetic or "
                     "grid ends at %" PRId64 "; give max_seqlen_k, an upper bound of seqused_k",
                     longest, c->info->max_len);
  if (a->num_inputs > MANIFEST_MAX_INPUTS || a->num_scalars > MANIFEST_MAX_SCALARS)
    return args_fail(c, "luattn_append: %s is %zu, expected at most %d, as no spec has more",
                     a->num_inputs > MANIFEST_MAX_INPUTS ? "num_inputs" : "num_scalars",
                     a->num_inputs > MANIFEST_MAX_INPUTS ? a->num_inputs : a->num_scalars,
                     a->num_inputs > MANIFEST_MAX_INPUTS ? MANIFEST_MAX_INPUTS : MANIFEST_MAX_SCALARS);
  p->shape.batch = out->append.batch;
  p->shape.heads = p->shape.heads_kv = (int)out->append.heads_kv.d; /* no hook reads heads */
  p->shape.group = 1;
  p->shape.kv_len = (int)longest;
  TRY(fill_offsets(&of_hooks, out));
  TRY(args_some_inputs(&of_hooks, c->info->append_mods[0].inputs, p));
  return args_scalars(&of_hooks, p);
}

/* ---- numbers of pages ---- */

/* Checks, by copies of the arrays in host memory, that new_k has the rows that `cu` says, and the cache the pages that
 * they need. */
static luattn_status check_numbers(const args_call *c, const LuattnAppend *p, const luattn_append_args *a,
                                   const int32_t *used, const int32_t *table, const int32_t *cu) {
  const int64_t size = a->k->shape[2], num_pages = a->k->shape[0], capacity = p->paging.pages * size;
  if (cu != NULL && cu[0] != 0)
    return args_fail(c, "luattn_append: batch: cu_seqlens_q: begins with %d, expected 0", cu[0]);
  for (int b = 0; b < p->batch; ++b) {
    const int64_t rows = cu != NULL ? (int64_t)cu[b + 1] - cu[b] : (int64_t)p->rows.d, end = used[b] + rows;
    if (rows < 0)
      return args_fail(
          c, "luattn_append: batch: cu_seqlens_q: falls from %d to %d at sequence %d, expected values that never fall",
          cu[b], cu[b + 1], b);
    if (cu != NULL && cu[b + 1] > p->total)
      return args_fail(c,
                       "luattn_append: batch: cu_seqlens_q: ends sequence %d at %d, and new_k has %d rows; give the "
                       "rows of all sequences, or offsets "
                       "that end with them",
                       b, cu[b + 1], p->total);
    if (used[b] < 0 || (rows > 0 && end > capacity))
      return args_fail(c,
                       "luattn_append: batch: seqused_k: is %d for entry %d, and with %" PRId64
                       " rows more the cache's %" PRId64 " do not suffice",
                       used[b], b, rows, capacity);
    for (int64_t i = used[b] / size; table != NULL && rows > 0 && i * size < end; ++i) {
      const int32_t page = table[(int64_t)b * p->paging.pages + i];
      if (page < 0 || page >= num_pages)
        return args_fail(c,
                         "luattn_append: batch: block_table: is %d for entry %d, page %" PRId64
                         ", which its rows need; k and v have %" PRId64 " pages",
                         page, b, i, num_pages);
    }
  }
  return LUATTN_OK;
}

/* For LUATTN_CHECK, with arrays on the device. */
static luattn_status check_device(const luattn_kernel *kernel, const args_call *c, const LuattnAppend *p,
                                  const luattn_append_args *a, cu_stream stream) {
  const size_t entries = (size_t)p->batch;
  array_copy copies[] = {
      {.from = p->seqused_k, .count = entries},
      {.from = p->paging.block_table, .count = p->paging.block_table != NULL ? entries * (size_t)p->paging.pages : 0},
      {.from = p->cu_seqlens, .count = p->cu_seqlens != NULL ? entries + 1 : 0}};
  void *memory;
  if (!check_asked()) return LUATTN_OK;
  TRY(batch_arrays_fetch(kernel, c, stream, copies, 3, &memory));
  if (memory == NULL) return LUATTN_OK;
  const luattn_status status = check_numbers(c, p, a, copies[0].to, copies[1].from != NULL ? copies[1].to : NULL,
                                             copies[2].from != NULL ? copies[2].to : NULL);
  free(memory);
  return status;
}

/* ---- the CPU ---- */

static void copy_on_host(const LuattnAppend *p, const image_manifest *m, int side, int entry, int row, int first) {
  const size_t elem = args_elem(m).bits / 8u, width = (side == 0 ? m->head_dim : m->head_dim_v) * elem;
  const LuattnTensor *from = &p->from[side], *to = &p->to[side];
  const int64_t position = p->seqused_k[entry] + row, n = position / p->paging.page_size.d;
  const int64_t page =
      p->paging.block_table != NULL ? p->paging.block_table[(int64_t)entry * p->paging.pages + n] : entry;
  for (unsigned h = 0; h < p->heads_kv.d; ++h) {
    const long long source =
                        (p->cu_seqlens != NULL ? 0 : entry * from->batch) + h * from->head + (first + row) * from->seq,
                    target = page * to->batch + h * to->head + (position - n * p->paging.page_size.d) * to->seq;
    memcpy((char *)to->data + target * (long long)elem, (const char *)from->data + source * (long long)elem, width);
  }
}

static luattn_status append_on_host(const luattn_kernel *kernel, const args_call *c, const LuattnAppend *p,
                                    const luattn_append_args *a) {
  TRY(check_numbers(c, p, a, p->seqused_k, p->paging.block_table, p->cu_seqlens));
  if (has_mods(c->info)) return kernel->cpu_append(kernel->cpu_user, a, c->err);
  for (int b = 0; b < p->batch; ++b) {
    const int first = p->cu_seqlens != NULL ? p->cu_seqlens[b] : 0,
              rows = p->cu_seqlens != NULL ? p->cu_seqlens[b + 1] - first : (int)p->rows.d;
    for (int i = 0; i < rows; ++i)
      for (int side = 0; side < 2; ++side) copy_on_host(p, c->info, side, b, i, first);
  }
  return LUATTN_OK;
}

/* ---- the device ---- */

/* Half precision is copied 16 bytes at a time; other tensors may have to be by elements. */
static luattn_status append_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  const LuattnAppend *append = &p->all.append;
  const int64_t widest = c->info->head_dim > c->info->head_dim_v ? c->info->head_dim : c->info->head_dim_v,
                vectors = sizes_elem(c->info) == 2 ? (widest + 7) / 8 : widest;
  size[0] = ceil_div(append->total * (int64_t)append->groups.d * vectors, entry->tile_m);
  size[1] = 2;
  size[2] = 1;
  return LUATTN_OK;
}

/* Writes rows to a cache. The device's context is current. */
static luattn_status append_on_device(const luattn_kernel *kernel, const args_call *c, prepared *p, cu_stream stream) {
  const manifest_entry *e = sizes_entry(c->info, LUATTN_ROLE_APPEND);
  LuattnAppend *const append = &p->all.append;
  const int64_t heads = e != NULL && e->tile_n > 0 && e->tile_n < e->tile_m ? e->tile_n : 1; /* of a thread */
  append->groups = order_divisor(ceil_div(append->heads_kv.d, heads));
  return part_launch(kernel, c, LUATTN_ROLE_APPEND, append_grid, p, has_mods(c->info) ? (void *)&p->all : append,
                     stream);
}

/* Writes the rows of arguments of this version. */
static luattn_status append_given(const luattn_kernel *kernel, const luattn_append_args *given, void *stream,
                                  luattn_error *err) {
  prepared p;
  LuattnAppend *const append = &p.all.append;
  int64_t pieces;
  const args_call c = {
      .info = &kernel->info, .device = kernel->device, .zero = (const void *)(uintptr_t)kernel->zero, .err = err};
  memset(&p, 0, sizeof p);
  TRY(fill(&c, given, append));
  TRY(count_pieces(&c, append, &pieces));
  if (has_mods(c.info)) TRY(fill_mods(&c, given, &p.all));
  TRY(check_apart(&c, given, append));
  if (pieces == 0) return LUATTN_OK;
  if (kernel->cpu_run != NULL) return append_on_host(kernel, &c, append, given);
  TRY(check_device(kernel, &c, append, given, stream));
  TRY(driver_push(kernel->driver, kernel->context, err));
  const luattn_status status = append_on_device(kernel, &c, &p, stream);
  driver_pop(kernel->driver);
  return status;
}

static const struct_rule append_rule = STRUCT_RULE(luattn_append_args, inputs);

luattn_status append_first(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err) {
  luattn_append_args given;
  if (args->append == NULL) return LUATTN_OK;
  TRY(struct_take(&append_rule, "append", args->append, &given, err));
  if (given.k == NULL) given.k = args->k;
  if (given.v == NULL) given.v = args->v;
  if (given.inputs == NULL) given.inputs = args->inputs, given.num_inputs = args->num_inputs;
  if (given.scalars == NULL) given.scalars = args->scalars, given.num_scalars = args->num_scalars;
  return append_given(kernel, &given, stream, err);
}

luattn_status luattn_append(const luattn_kernel *kernel, const luattn_append_args *args, void *stream,
                            luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_append_args given;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(struct_take(&append_rule, "luattn_append", args, &given, err));
  return append_given(kernel, &given, stream, err);
}
