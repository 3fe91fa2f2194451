#include "gen/cpu/packed_call.h"

#include <string.h>

#include "gen/cpu/cpu.h"

/* ---- offsets ---- */

static int offset_at(const DLTensor *t, int64_t i) {
  int32_t x;
  memcpy(&x, (const char *)t->data + t->byte_offset + (size_t)i * sizeof x, sizeof x);
  return x;
}

static luattn_status check_offsets(const char *name, const DLTensor *t, int64_t total, int longest,
                                   luattn_error *err) {
  const int64_t entries = t->shape[0] - 1;
  if (offset_at(t, 0) != 0)
    return luattn_fail(err, LUATTN_INVALID, "cpu: cu_seqlens_%s: begins with %d, expected 0", name,
                       offset_at(t, 0));
  for (int64_t i = 0; i < entries; i++) {
    const int64_t length = (int64_t)offset_at(t, i + 1) - offset_at(t, i);
    if (length < 0)
      return luattn_fail(
          err, LUATTN_INVALID,
          "cpu: cu_seqlens_%s: falls from %d to %d at sequence %lld, expected offsets that never fall", name,
          offset_at(t, i), offset_at(t, i + 1), (long long)i);
    if (length > longest)
      return luattn_fail(
          err, LUATTN_INVALID,
          "cpu: max_seqlen_%s: is %d, and sequence %lld has %lld rows; give the longest sequence's length",
          name, longest, (long long)i, (long long)length);
  }
  if (offset_at(t, entries) != total)
    return luattn_fail(
        err, LUATTN_INVALID,
        "cpu: cu_seqlens_%s: ends with %d, and there are %lld rows; give the end of the last sequence", name,
        offset_at(t, entries), (long long)total);
  return LUATTN_OK;
}

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

luattn_status cpu_packed_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  const int entries = (int)args->cu_seqlens_q->shape[0] - 1;
  if (args->batch != NULL)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "cpu: batch: is given beside cu_seqlens_q, and packed sequences on the CPU take none yet; leave "
        "it NULL");
  TRY(check_offsets("q", args->cu_seqlens_q, args->q->shape[0], args->max_seqlen_q, err));
  TRY(check_offsets("k", args->cu_seqlens_k, args->k->shape[0], args->max_seqlen_k, err));
  for (int i = 0; i < entries; i++) {
    const int q = offset_at(args->cu_seqlens_q, i), k = offset_at(args->cu_seqlens_k, i);
    const int q_len = offset_at(args->cu_seqlens_q, i + 1) - q,
              kv_len = offset_at(args->cu_seqlens_k, i + 1) - k;
    luattn_args one = *args;
    part parts[6];
    one.cu_seqlens_q = one.cu_seqlens_k = NULL;
    one.max_seqlen_q = one.max_seqlen_k = 0;
    one.q = take_rows(args->q, q, q_len, &parts[0]);
    one.k = take_rows(args->k, k, kv_len, &parts[1]);
    one.v = take_rows(args->v, k, kv_len, &parts[2]);
    one.o = take_rows(args->o, q, q_len, &parts[3]);
    one.lse = take_numbers(args->lse, q, q_len, &parts[4]);
    one.saved = spec->derived.num_saved > 0 ? take_numbers(args->saved, q, q_len, &parts[5]) : NULL;
    if (q_len > 0) TRY(cpu_forward_entry(spec, &one, i, entries, err));
  }
  return LUATTN_OK;
}
