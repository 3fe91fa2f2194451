#include "gen/cpu/packed_call.h"

#include "common/batch.h"
#include "gen/analysis/large_scores.h"
#include "gen/cpu/cpu.h"

/* ---- one sequence's tensors ---- */

typedef struct part {
  DLTensor t;
  int64_t shape[4], strides[4];
} part;

/* Axis 0 becomes the batch's, of one entry; `position` and `head` are the axes of the packed tensor. */
static void take_part(const DLTensor *whole, int position, int head, int first, int rows, part *out) {
  int64_t strides[4], next = 1;
  for (int i = whole->ndim - 1; i >= 0; i--) {
    strides[i] = whole->strides != NULL ? whole->strides[i] : next;
    next *= whole->shape[i];
  }
  const int last = whole->ndim - 1;
  const bool has_width = position != last && head != last;
  *out = (part){.t = *whole};
  out->shape[0] = 1, out->strides[0] = 0;
  out->shape[1] = whole->shape[head], out->strides[1] = strides[head];
  out->shape[2] = rows, out->strides[2] = strides[position];
  if (has_width) out->shape[3] = whole->shape[last], out->strides[3] = strides[last];
  out->t.ndim = has_width ? 4 : 3;
  out->t.byte_offset += (uint64_t)((int64_t)first * strides[position] * (whole->dtype.bits / 8));
}

static const DLTensor *take_rows(const DLTensor *whole, int first, int rows, part *out) {
  if (whole == NULL) return NULL;
  take_part(whole, 0, 1, first, rows, out);
  out->t.shape = out->shape, out->t.strides = out->strides;
  return &out->t;
}

/* lse [heads, total], saved [num_saved, heads, total]. */
static const DLTensor *take_numbers(const DLTensor *whole, int first, int rows, part *out) {
  if (whole == NULL) return NULL;
  if (whole->ndim == 2) {
    take_part(whole, 1, 0, first, rows, out);
  } else {
    const int64_t heads = whole->shape[1], total = whole->shape[2];
    *out = (part){
        .t = *whole, .shape = {whole->shape[0], 1, heads, rows}, .strides = {heads * total, 0, total, 1}};
    out->t.ndim = 4;
    out->t.byte_offset += (uint64_t)first * (whole->dtype.bits / 8u);
  }
  out->t.shape = out->shape, out->t.strides = out->strides;
  return &out->t;
}

/* Leaves one sequence's offsets in a copy of the batch. */
static void take_entry(luattn_batch *batch, int entry) {
  for (int i = 0; i < BATCH_ARRAYS; i++) {
    batch_array *array = &batch->array[i];
    if (!array->is_given) continue;
    array->is_given = i < BATCH_CU_SEQLENS_Q;
    array->given.byte_offset += (uint64_t)entry * sizeof(int32_t);
    array->count = 1;
  }
}

static luattn_status check_lengths(luattn_batch *batch, const luattn_args *args, luattn_error *err) {
  const int64_t total[] = {args->q->shape[0], args->k->shape[0]};
  TRY(batch_read_lengths(batch, "cpu", err));
  for (int i = 0; i < 2; i++)
    if (batch->lengths[i].total != total[i])
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: %s: ends with %lld, and there are %lld rows; give the end of the last sequence",
                         batch->array[BATCH_CU_SEQLENS_Q + i].name, (long long)batch->lengths[i].total, (long long)total[i]);
  return LUATTN_OK;
}

luattn_status cpu_packed_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  luattn_batch now = *args->batch; /* its arrays may have changed since it was opened */
  TRY(check_lengths(&now, args, err));
  const batch_array *cu = &now.array[BATCH_CU_SEQLENS_Q];
  const int entries = (int)cu->count - 1;
  for (int i = 0; i < entries; i++) {
    const int q = batch_at(&cu[0], i), k = batch_at(&cu[1], i);
    const int q_len = batch_at(&cu[0], i + 1) - q, kv_len = batch_at(&cu[1], i + 1) - k;
    luattn_batch entry = now;
    luattn_args one = *args;
    part parts[6];
    take_entry(&entry, i);
    one.batch = batch_offsets(&entry) != LUATTN_OFFSET_NONE ? &entry : NULL;
    one.q = take_rows(args->q, q, q_len, &parts[0]);
    one.k = take_rows(args->k, k, kv_len, &parts[1]);
    one.v = take_rows(args->v, k, kv_len, &parts[2]);
    one.o = take_rows(args->o, q, q_len, &parts[3]);
    one.lse = take_numbers(args->lse, q, q_len, &parts[4]);
    const bool saves = spec->derived.num_saved > 0 || (args->large_scores != 0 && large_scores_count(spec) > 0);
    one.saved = saves ? take_numbers(args->saved, q, q_len, &parts[5]) : NULL;
    if (q_len > 0) TRY(cpu_forward_entry(spec, &one, i, entries, err));
  }
  return LUATTN_OK;
}
