/* packed.c: checks the arguments of packed sequences. */
#include "runtime/call/packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/call/batch_arrays.h"
#include "runtime/call/sizes.h"
#include "runtime/device/check_mode.h"

static luattn_status refuse(const args_call *c) {
  if (!batch_is_packed(c->args->batch)) return LUATTN_OK;
  return args_fail(c,
                   "batch: has cu_seqlens_q, and this image is for entries of equal lengths; compile with "
                   "luattn_target.packed");
}

/* Takes the lengths of the queries (side 0) or keys (1), which have `total` rows. */
static luattn_status take_lengths(const args_call *c, int side, int64_t total, const int **cu_seqlens, int *longest) {
  const luattn_batch *batch = c->args->batch;
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q + side];
  const batch_lengths *lengths = &batch->lengths[side];
  TRY(batch_array_take(c, cu, "batch + 1", cu->count, cu_seqlens));
  if (lengths->total > total)
    return args_fail(c,
                     "batch: %s: ends with %" PRId64 ", and there are %" PRId64
                     " rows; give the rows of all sequences, or offsets that end with them",
                     cu->name, lengths->total, total);
  if (lengths->total >= 0 && lengths->total < total && !c->info->writes_padding && !c->info->weights)
    return args_fail(c,
                     "batch: %s: ends with %" PRId64 ", there are %" PRId64
                     " rows, and this image, of an earlier luattn, does not write the rows of no "
                     "sequence; compile it again, or give rows up to the end of the last sequence",
                     cu->name, lengths->total, total);
  if (lengths->longest == 0 && lengths->total < 0 && total > 0)
    return args_fail(c, "batch: %s: is 0, and there are %" PRId64 " rows; give the longest sequence's length",
                     lengths->name, total);
  if (lengths->longest > c->info->max_len)
    return args_fail(c,
                     "batch: %s: is %" PRId64 ", but this spec's index arithmetic or grid ends at %" PRId64
                     "; shorten the sequences, or use smaller factors or a larger grid in the spec",
                     lengths->name, lengths->longest, c->info->max_len);
  *longest = (int)(lengths->longest < total ? lengths->longest : total);
  return LUATTN_OK;
}

luattn_status packed_used(const args_call *c, LuattnUsed *out) {
  const luattn_batch *batch = c->args->batch;
  const int **const to[] = {&out->seqused_q, &out->seqused_k};
  *out = (LuattnUsed){NULL, NULL};
  for (int side = 0; side < 2; ++side) {
    if (!c->info->packed && !(side == 1 && c->info->paged)) continue;
    const batch_array *used = &batch->array[BATCH_SEQUSED_Q + side];
    if (used->is_given) TRY(batch_array_take(c, used, "batch", used->count, to[side]));
  }
  return LUATTN_OK;
}

luattn_status packed_fill(const args_call *c, LuattnCallParams *params) {
  const luattn_args *a = c->args;
  LuattnParams *p = &params->dense;
  if (!c->info->packed) return refuse(c);
  if (!batch_is_packed(a->batch))
    return args_fail(c, "batch: %s, and this image is for packed sequences; give cu_seqlens_q%s",
                     a->batch == NULL ? "is missing" : "has no cu_seqlens_q",
                     c->info->paged ? "" : " and cu_seqlens_k");
  const int64_t entries = a->batch->array[BATCH_CU_SEQLENS_Q].count - 1;
  TRY(sizes_batch(c, "cu_seqlens_q", entries));
  p->shape.batch = (int)entries;
  params->packed.total_q = (int)a->q->shape[0];
  TRY(take_lengths(c, 0, a->q->shape[0], &params->packed.cu_seqlens_q, &p->shape.q_len));
  if (c->info->paged) return LUATTN_OK;
  params->packed.total_k = (int)a->k->shape[0];
  return take_lengths(c, 1, a->k->shape[0], &params->packed.cu_seqlens_k, &p->shape.kv_len);
}

/* ---- LUATTN_CHECK ---- */

/* Checks a copy of the batch, whose arrays are in host memory. */
static luattn_status check_copy(const args_call *c, luattn_batch *copy) {
  char place[LUATTN_NAME_SIZE + 40];
  snprintf(place, sizeof place, "%s of '%s': batch", kernel_pass_name(c->info->pass), c->info->spec_name);
  TRY(batch_read_lengths(copy, place, c->err));
  for (int side = 0; side < (c->info->paged ? 1 : 2); ++side) {
    const int64_t total = (side == 0 ? c->args->q : c->args->k)->shape[0];
    if (copy->lengths[side].total > total)
      return args_fail(c,
                       "batch: %s: ends with %" PRId64 ", and there are %" PRId64
                       " rows; give the rows of all sequences, or offsets that end with them",
                       copy->array[BATCH_CU_SEQLENS_Q + side].name, copy->lengths[side].total, total);
  }
  return LUATTN_OK;
}

luattn_status packed_check(const luattn_kernel *kernel, const args_call *c, const LuattnPacked *packed,
                           const LuattnUsed *used, cu_stream stream) {
  enum { COUNT = 4 };
  if (!c->info->packed || !check_asked()) return LUATTN_OK;
  luattn_batch copy = *c->args->batch;
  batch_array *const arrays =
      &copy.array[BATCH_CU_SEQLENS_Q]; /* those of queries and keys, then what is used of them */
  array_copy copies[COUNT] = {{.from = packed->cu_seqlens_q},
                              {.from = packed->cu_seqlens_k},
                              {.from = used->seqused_q},
                              {.from = c->info->paged ? NULL : used->seqused_k}}; /* paged_check has those of pages */
  void *memory;
  for (int i = 0; i < COUNT; ++i) copies[i].count = copies[i].from != NULL ? (size_t)arrays[i].count : 0;
  TRY(batch_arrays_fetch(kernel, c, stream, copies, COUNT, &memory));
  if (memory == NULL) return LUATTN_OK;
  for (int i = 0; i < COUNT; ++i)
    if (copies[i].from != NULL)
      arrays[i].given = (DLTensor){.data = copies[i].to, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}};
  const luattn_status status = check_copy(c, &copy);
  free(memory);
  return status;
}
