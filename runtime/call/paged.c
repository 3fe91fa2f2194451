#include "runtime/call/paged.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/call/batch.h"
#include "runtime/call/batch_arrays.h"
#include "runtime/call/order.h"
#include "runtime/call/sizes.h"
#include "runtime/device/check_mode.h"

static const batch_array *used_keys(const args_call *c) { return &c->args->batch->array[BATCH_SEQUSED_K]; }
static const batch_array *table_of(const args_call *c) { return &c->args->batch->array[BATCH_BLOCK_TABLE]; }

static luattn_status refuse(const args_call *c) {
  if (!batch_is_paged(c->args->batch)) return LUATTN_OK;
  return args_fail(c,
                   "batch: has %s, and this image is for keys that are not in pages; compile with luattn_target.pages",
                   table_of(c)->is_given ? "block_table" : "seqused_k without cu_seqlens_k");
}

/* Checks k's pages: [num_pages, heads_kv, page_size, head_dim]. */
static luattn_status check_pages(const args_call *c, int64_t entries) {
  const int64_t num_pages = c->args->k->shape[0], page_size = c->args->k->shape[2], multiple = c->info->paged_layout[0];
  if (page_size < 1 && !table_of(c)->is_given)
    return args_fail(c, "k: is a cache of %" PRId64 " rows, expected at least 1: [entries, heads_kv, rows, head_dim]",
                     page_size);
  if (page_size < 1)
    return args_fail(
        c, "k: has pages of %" PRId64 " rows, expected at least 1: [num_pages, heads_kv, page_size, head_dim]",
        page_size);
  if (page_size % multiple != 0 && !batch_has_one_page(c->args->batch))
    return args_fail(c,
                     "k: has pages of %" PRId64 " rows, and this image is for multiples of %" PRId64
                     "; compile with luattn_target.pages = 1",
                     page_size, multiple);
  if (table_of(c)->is_given || num_pages == entries) return LUATTN_OK;
  return args_fail(
      c, "k: has %" PRId64 " entries, and seqused_k %" PRId64 "; give as many, or a block_table of those in use",
      num_pages, entries);
}

luattn_status paged_fill(const args_call *c, LuattnParams *params) {
  const luattn_args *a = c->args;
  if (!c->info->paged) return refuse(c);
  if (!batch_is_paged(a->batch))
    return args_fail(c, "batch: %s, and this image is for keys in pages; give seqused_k, and the block_table of pages",
                     a->batch == NULL ? "is missing" : "has no seqused_k without cu_seqlens_k");
  const int64_t entries = used_keys(c)->count, longest = batch_longest_paged(a->batch, a->k->shape[2]);
  TRY(check_pages(c, entries));
  if (longest > c->info->max_len)
    return args_fail(
        c,
        "batch: max_seqlen_k: an entry may have %" PRId64
        " rows, but this spec's index arithmetic or grid ends at %" PRId64
        "; give max_seqlen_k, an upper bound of seqused_k, or use smaller factors or a larger grid in the spec",
        longest, c->info->max_len);
  params->shape.kv_len = (int)longest;
  if (c->info->packed) return LUATTN_OK;
  TRY(sizes_batch(c, "q", a->q->shape[0]));
  if (a->q->shape[0] != entries)
    return args_fail(c, "q: has batch %" PRId64 ", and seqused_k has %" PRId64 " elements, expected one for each entry",
                     a->q->shape[0], entries);
  if (a->q->shape[2] > c->info->max_len)
    return args_fail(c,
                     "q: has length %" PRId64 ", but this spec's index arithmetic or grid ends at %" PRId64
                     "; shorten it, or use smaller factors or a larger grid in the spec",
                     a->q->shape[2], c->info->max_len);
  params->shape.batch = (int)entries;
  params->shape.q_len = (int)a->q->shape[2];
  return LUATTN_OK;
}

static int common_divisor(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b, b = rest;
  }
  return a;
}

/* The sm90 family's descriptors have an axis of rows, on which pages lie at regular places. */
static luattn_status find_rows(const args_call *c, const LuattnTensor *t, const char *name, const DLTensor *of,
                               int *rows) {
  const int64_t num_pages = of->shape[0], page_size = of->shape[2];
  if (num_pages <= 1) {
    *rows = (int)page_size;
    return LUATTN_OK;
  }
  const bool whole = t->seq > 0 && t->batch > 0 && t->batch % t->seq == 0;
  const int64_t each = whole ? t->batch / t->seq : 0;
  if (whole && each <= INT32_MAX / num_pages) {
    *rows = (int)each;
    return LUATTN_OK;
  }
  return args_fail(c,
                   "%s: pages are %lld elements apart and their rows %lld, and kernels of the sm90 family take pages "
                   "that are a whole number of "
                   "rows apart, up to 2^31 rows in all; make it contiguous, or compile with luattn_target.pages = 1 or "
                   "family 1 + LUATTN_SM80",
                   name, t->batch, t->seq);
}

static int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b, b = rest;
  }
  return a;
}

/* Steps along LuattnPagedMaps' last axis. Leaves them 0 where there are too many, or strides that a descriptor does not
 * hold. */
static void find_steps(const LuattnTensor *t, const DLTensor *of, LuattnPageSteps *out) {
  const int64_t pages = of->shape[0], heads = of->shape[1], rows = of->shape[2], unit = paged_unit(t), most = INT32_MAX;
  if (pages < 1 || t->batch < 0 || t->head < 0 || t->seq <= 0) return;
  const int64_t page = t->batch / unit, head = t->head / unit, row = t->seq / unit;
  if (page > most / pages || head > most / heads || row > most / rows) return;
  if ((pages - 1) * page + (heads - 1) * head + (rows - 1) * row < most)
    *out = (LuattnPageSteps){(int)page, (int)head, (int)row};
}

int64_t paged_unit(const LuattnTensor *t) { return greatest_divisor(greatest_divisor(t->batch, t->head), t->seq); }

luattn_status paged_table(const args_call *c, const LuattnParams *params, LuattnPaging *out) {
  const luattn_args *a = c->args;
  *out = (LuattnPaging){.block_table = NULL};
  if (!c->info->paged) return LUATTN_OK;
  const batch_array *table = table_of(c);
  const int page_size = (int)a->k->shape[2];
  if (table->is_given) TRY(batch_array_take(c, table, "batch * max_pages", table->count, &out->block_table));
  out->pages = table->is_given ? (int)a->batch->pages : 1;
  out->num_pages = (int)a->k->shape[0];
  out->page_size = order_divisor((unsigned)page_size);
  if (!manifest_traits(c->info)->takes_descriptors || c->info->on_cpu) return LUATTN_OK;
  const manifest_entry *main = sizes_entry(c->info, LUATTN_ROLE_FORWARD);
  if (main == NULL) return LUATTN_OK;
  out->box_rows = batch_has_one_page(a->batch) ? (int)main->tile_n : common_divisor(page_size, (int)main->tile_n);
  find_steps(&params->tensors.k, a->k, &out->steps_k);
  find_steps(&params->tensors.v, a->v, &out->steps_v);
  TRY(find_rows(c, &params->tensors.k, "k", a->k, &out->page_rows_k));
  return find_rows(c, &params->tensors.v, "v", a->v, &out->page_rows_v);
}

/* ---- LUATTN_CHECK ---- */

static luattn_status check_copies(const args_call *c, const LuattnCallParams *params, const int32_t *used,
                                  const int32_t *table) {
  const LuattnParams *p = &params->dense;
  const batch_pages pages = {.entries = p->shape.batch,
                             .num_pages = c->args->k->shape[0],
                             .page_size = c->args->k->shape[2],
                             .longest = p->shape.kv_len,
                             .used = used,
                             .table = table};
  char text[300];
  return batch_pages_ok(&pages, c->args->batch, text, sizeof text) ? LUATTN_OK : args_fail(c, "%s", text);
}

/* The device's context is current. */
static luattn_status check_device(const luattn_driver *d, const args_call *c, const LuattnCallParams *params,
                                  int32_t *used, int32_t *table, cu_stream stream) {
  const size_t entries = (size_t)params->dense.shape.batch, each = sizeof(int32_t);
  const int *at = params->used.seqused_k;
  bool captured;
  TRY(check_captured(d, stream, &captured, c->err));
  if (captured) return LUATTN_OK;
  cu_result result = d->stream_wait(stream);
  if (result == 0) result = d->copy_to_host(used, (cu_pointer)(uintptr_t)at, entries * each);
  if (result == 0 && table != NULL)
    result = d->copy_to_host(table, (cu_pointer)(uintptr_t)params->paging.block_table,
                             entries * (size_t)params->paging.pages * each);
  if (result != 0)
    return driver_fail(d, c->err, result, "cuMemcpyDtoH", "LUATTN_CHECK: reading pages of '%s'", c->info->spec_name);
  return check_copies(c, params, used, table);
}

luattn_status paged_check(const luattn_kernel *kernel, const args_call *c, const LuattnCallParams *params,
                          cu_stream stream) {
  const size_t entries = (size_t)params->dense.shape.batch;
  if (!c->info->paged || entries == 0 || !check_asked()) return LUATTN_OK;
  const bool has_table = params->paging.block_table != NULL;
  int32_t *used = calloc(entries, (1 + (has_table ? (size_t)params->paging.pages : 0)) * sizeof *used);
  if (used == NULL) return luattn_fail(c->err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  luattn_status status = driver_push(kernel->driver, kernel->context, c->err);
  if (status == LUATTN_OK) {
    status = check_device(kernel->driver, c, params, used, has_table ? used + entries : NULL, stream);
    driver_pop(kernel->driver);
  }
  free(used);
  return status;
}
