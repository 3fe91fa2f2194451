#include "runtime/parts/page_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/struct_size.h"
#include "runtime/call/order.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/device/check_mode.h"

enum { THREADS = 256 }; /* page_table_threads of templates/around/before/page_table.cuh */

/* ---- arguments ---- */

/* Checks an int32 array with `ndim` axes, the first one of `count` elements. */
static luattn_status take(const args_call *c, const char *name, const char *axes, const DLTensor *t, int ndim,
                          const int64_t *shape, bool is_output, long long *first_stride, void **data) {
  tensor_rule rule = {.name = name,
                      .axes = axes,
                      .ndim = ndim,
                      .dtype = {kDLInt, 32, 1},
                      .is_output = is_output,
                      .is_contiguous = is_output};
  long long stride[4];
  if (t == NULL) return args_fail(c, "%s: is missing", name);
  for (int i = 0; i < ndim; ++i) rule.shape[i] = shape[i];
  TRY(args_tensor(c, &rule, t, stride, data));
  *first_stride = stride[0];
  return LUATTN_OK;
}

/* A size that the array itself says. */
static luattn_status size_of(const args_call *c, const char *name, const char *axes, const DLTensor *t, int ndim,
                             int axis, int64_t least, int64_t *out) {
  if (t == NULL) return args_fail(c, "%s: is missing", name);
  if (t->ndim != ndim || t->shape == NULL)
    return args_fail(c, "%s: has %d axes, expected %d: [%s]", name, t->ndim, ndim, axes);
  *out = t->shape[axis];
  if (*out >= least && *out <= INT32_MAX) return LUATTN_OK;
  return args_fail(c, "%s: axis %d has size %" PRId64 ", expected %" PRId64 " to %d: [%s]", name, axis, *out, least,
                   INT32_MAX, axes);
}

static luattn_status fill(const args_call *c, const luattn_page_lists *a, const DLTensor *table, const DLTensor *used,
                          LuattnPageLists *p) {
  int64_t entries, pages, total;
  long long unused;
  void *data[5];
  TRY(size_of(c, "kv_indptr", "batch + 1", a->kv_indptr, 1, 0, 1, &entries));
  entries -= 1;
  TRY(size_of(c, "kv_indices", "all pages", a->kv_indices, 1, 0, 0, &total));
  TRY(size_of(c, "block_table", "batch, max_pages", table, 2, 1, 0, &pages));
  if (a->page_size < 1 || a->page_size > INT32_MAX)
    return args_fail(c, "page_size: is %" PRId64 ", expected 1 to %d: the rows of a page of k and v", a->page_size,
                     INT32_MAX);
  if (pages > INT32_MAX / a->page_size)
    return args_fail(c,
                     "block_table: has %" PRId64 " pages of %" PRId64
                     " rows for an entry, which are more than 2^31 rows; give it fewer "
                     "columns, as many as the longest entry has pages",
                     pages, a->page_size);
  if (entries > 0 && pages > INT32_MAX / entries)
    return args_fail(c,
                     "block_table: has %" PRId64 " entries of %" PRId64
                     " pages, which are more than 2^31 numbers; give it fewer columns",
                     entries, pages);
  TRY(take(c, "kv_indptr", "batch + 1", a->kv_indptr, 1, (int64_t[]){entries + 1}, false, &p->indptr_stride, &data[0]));
  TRY(take(c, "kv_indices", "all pages", a->kv_indices, 1, &total, false, &p->indices_stride, &data[1]));
  TRY(take(c, "kv_last_page_len", "batch", a->kv_last_page_len, 1, &entries, false, &p->last_len_stride, &data[2]));
  TRY(take(c, "block_table", "batch, max_pages", table, 2, (int64_t[]){entries, pages}, true, &unused, &data[3]));
  TRY(take(c, "seqused_k", "batch", used, 1, &entries, true, &unused, &data[4]));
  p->indptr = data[0], p->indices = data[1], p->last_len = data[2], p->table = data[3], p->used = data[4];
  p->columns = order_divisor(pages > 0 ? pages : 1);
  p->batch = (int)entries, p->pages = (int)pages, p->page_size = (int)a->page_size, p->total = (int)total;
  return LUATTN_OK;
}

luattn_status page_table_fill(const luattn_page_lists *lists, const DLTensor *table, const DLTensor *used, int device,
                              LuattnPageLists *out, luattn_error *err) {
  static const struct_rule rule = {"luattn_page_lists", sizeof(luattn_page_lists), sizeof(luattn_page_lists)};
  const image_manifest info = {.family = LUATTN_SIMT,
                               .on_cpu = device == LUATTN_CPU}; /* of no image: what args_tensor reads */
  const args_call c = {.info = &info, .device = device, .place = "luattn_page_table", .err = err};
  luattn_page_lists given;
  TRY(struct_take(&rule, "luattn_page_table", lists, &given, err));
  memset(out, 0, sizeof *out);
  return fill(&c, &given, table, used, out);
}

/* ---- values ---- */

/* Of an entry, as arrays on the host say it. */
typedef struct entry_pages {
  int64_t first, count;
} entry_pages;

static luattn_status check_entry(const LuattnPageLists *p, int64_t b, entry_pages *out, luattn_error *err) {
  const int first = p->indptr[b * p->indptr_stride], end = p->indptr[(b + 1) * p->indptr_stride];
  *out = (entry_pages){first, (int64_t)end - first};
  if (first < 0 || end < first)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_page_table: kv_indptr: is %d, %d at %" PRId64
                       " and the next; it begins at 0 or more and never decreases",
                       first, end, b);
  if (end > p->total)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_page_table: kv_indptr: is %d at %" PRId64 ", and kv_indices has %d numbers; give it all",
                       end, b + 1, p->total);
  if (out->count > p->pages)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_page_table: block_table: has %d columns, and entry %" PRId64 " has %" PRId64
                       " pages; give it as many",
                       p->pages, b, out->count);
  return LUATTN_OK;
}

static luattn_status check_values(const LuattnPageLists *p, int64_t b, entry_pages e, luattn_error *err) {
  for (int64_t i = e.first; i < e.first + e.count; ++i)
    if (p->indices[i * p->indices_stride] < 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_page_table: kv_indices: is %d at %" PRId64 ", which is no page's number",
                         p->indices[i * p->indices_stride], i);
  if (e.count == 0) return LUATTN_OK;
  const int last = p->last_len[b * p->last_len_stride];
  if (last >= 1 && last <= p->page_size) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "luattn_page_table: kv_last_page_len: is %d for entry %" PRId64
                     ", expected 1 to %d, the page_size",
                     last, b, p->page_size);
}

luattn_status page_table_on_host(const LuattnPageLists *p, luattn_error *err) {
  entry_pages e;
  for (int64_t b = 0; b < p->batch; ++b) {
    TRY(check_entry(p, b, &e, err));
    TRY(check_values(p, b, e, err));
  }
  for (int64_t b = 0; b < p->batch; ++b) {
    TRY(check_entry(p, b, &e, err));
    for (int64_t i = 0; i < p->pages; ++i)
      p->table[b * p->pages + i] = i < e.count ? p->indices[(e.first + i) * p->indices_stride] : -1;
    p->used[b] = e.count == 0 ? 0 : (int)(e.count - 1) * p->page_size + p->last_len[b * p->last_len_stride];
  }
  return LUATTN_OK;
}

/* ---- on a GPU ---- */

/* Copies an array to the host, contiguously. */
static luattn_status bring(const luattn_driver *d, const int **array, long long *stride, int64_t count, int *to,
                           luattn_error *err) {
  for (int64_t i = 0; i < count;
       ++i) { /* a check of a few thousand numbers may take its time, where they are strided */
    const int64_t n = *stride == 1 ? count : 1;
    const cu_result result =
        d->copy_to_host(to + i, (cu_pointer)(uintptr_t)(*array + i * *stride), (size_t)n * sizeof *to);
    if (result != 0) return driver_fail(d, err, result, "cuMemcpyDtoH", "LUATTN_CHECK: reading lists of pages");
    if (n == count) break;
  }
  *array = to, *stride = 1;
  return LUATTN_OK;
}

/* The device's context is current. */
static luattn_status check_device(const luattn_driver *d, const LuattnPageLists *params, void *stream,
                                  luattn_error *err) {
  LuattnPageLists p = *params;
  bool captured;
  entry_pages e;
  TRY(check_captured(d, stream, &captured, err));
  if (captured) return LUATTN_OK;
  int *host = malloc(((size_t)p.batch * 2 + 1 + (size_t)p.total) * sizeof *host);
  if (host == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  const cu_result result = d->stream_wait(stream);
  luattn_status status =
      result == 0 ? LUATTN_OK
                  : driver_fail(d, err, result, "cuStreamSynchronize", "LUATTN_CHECK: waiting for lists of pages");
  if (status == LUATTN_OK) status = bring(d, &p.indptr, &p.indptr_stride, p.batch + (int64_t)1, host, err);
  if (status == LUATTN_OK) status = bring(d, &p.last_len, &p.last_len_stride, p.batch, host + p.batch + 1, err);
  if (status == LUATTN_OK)
    status = bring(d, &p.indices, &p.indices_stride, p.total, host + 2 * (int64_t)p.batch + 1, err);
  for (int64_t b = 0; b < p.batch && status == LUATTN_OK; ++b) {
    status = check_entry(&p, b, &e, err);
    if (status == LUATTN_OK) status = check_values(&p, b, e, err);
  }
  free(host);
  return status;
}

luattn_status page_table_launch(const merge_kernel *kernel, const LuattnPageLists *params, void *stream,
                                luattn_error *err) {
  LuattnPageLists p = *params;
  void *list[] = {&p};
  const int64_t threads = (int64_t)p.batch * p.columns.d;
  TRY(merge_kernel_enter(kernel, err));
  const luattn_driver *d = merge_kernel_driver(kernel);
  luattn_status status = check_asked() ? check_device(d, &p, stream, err) : LUATTN_OK;
  if (status == LUATTN_OK) {
    const int result = merge_kernel_start(kernel, (unsigned)((threads + THREADS - 1) / THREADS), THREADS, list, stream);
    if (result != 0)
      status = driver_fail(d, err, (cu_result)result, "cuLaunchKernel", "launching luattn_page_table for %d entries",
                           p.batch);
  }
  driver_pop(d);
  return status;
}
