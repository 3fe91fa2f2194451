/* packed.c: checks the arguments of packed sequences. */
#include "runtime/packed.h"

#include <inttypes.h>

#include "common/choices.h"

static luattn_status refuse(const args_call *c) {
  const char *given = choices_packed(c->args);
  if (given == NULL) return LUATTN_OK;
  return args_fail(
      c, "%s: is given, and this image is for a batch of equal lengths; compile with luattn_target.packed",
      given);
}

static luattn_status take_offsets(const args_call *c, const char *name, const DLTensor *t, int64_t count,
                                  const int **out) {
  const tensor_rule rule = {.name = name,
                            .axes = "batch + 1",
                            .ndim = 1,
                            .shape = {count},
                            .dtype = {kDLInt, 32, 1},
                            .is_contiguous = true};
  long long stride[4];
  void *data;
  TRY(args_tensor(c, &rule, t, stride, &data));
  *out = data;
  return LUATTN_OK;
}

/* Checks the longest sequence's length against the `total` rows. A caller may give an upper bound. */
static luattn_status take_longest(const args_call *c, const char *name, int given, int64_t total, int *out) {
  if (given < 0) return args_fail(c, "%s: is %d, expected 0 or more", name, given);
  if (given == 0 && total > 0)
    return args_fail(c, "%s: is 0, and there are %" PRId64 " rows; give the longest sequence's length", name,
                     total);
  if (given > c->info->max_len)
    return args_fail(c,
                     "%s: is %d, but this spec's index arithmetic is exact up to %" PRId64
                     " alone; shorten the sequences, or use smaller factors in the spec",
                     name, given, c->info->max_len);
  *out = given < total ? given : (int)total;
  return LUATTN_OK;
}

luattn_status packed_fill(const args_call *c, LuattnOffsetParams *params) {
  const luattn_args *a = c->args;
  LuattnParams *p = &params->dense;
  if (!c->info->packed) return refuse(c);
  if (a->cu_seqlens_q == NULL || a->cu_seqlens_k == NULL)
    return args_fail(
        c, "%s: is missing, and this image is for packed sequences; give an int32 tensor [batch + 1]",
        a->cu_seqlens_q == NULL ? "cu_seqlens_q" : "cu_seqlens_k");
  if (a->cu_seqlens_q->ndim != 1 || a->cu_seqlens_q->shape == NULL || a->cu_seqlens_q->shape[0] < 1)
    return args_fail(c, "cu_seqlens_q: expected one axis of at least 1 element: [batch + 1]");
  const int64_t count = a->cu_seqlens_q->shape[0];
  TRY(args_batch(c, "cu_seqlens_q", count - 1));
  p->shape.batch = (int)(count - 1);
  TRY(take_offsets(c, "cu_seqlens_q", a->cu_seqlens_q, count, &params->packed.cu_seqlens_q));
  TRY(take_offsets(c, "cu_seqlens_k", a->cu_seqlens_k, count, &params->packed.cu_seqlens_k));
  params->packed.total_q = (int)a->q->shape[0];
  params->packed.total_k = (int)a->k->shape[0];
  TRY(take_longest(c, "max_seqlen_q", a->max_seqlen_q, a->q->shape[0], &p->shape.q_len));
  return take_longest(c, "max_seqlen_k", a->max_seqlen_k, a->k->shape[0], &p->shape.kv_len);
}

bool packed_view_fits(const LuattnTensor *t, int longest, int elem_size) {
  uintptr_t row, before;
  return t->seq < 0 ||
         (!__builtin_mul_overflow((uintptr_t)t->seq, (uintptr_t)elem_size, &row) &&
          !__builtin_mul_overflow(row, (uintptr_t)longest, &before) && before <= (uintptr_t)t->data);
}

LuattnTensor packed_view(const LuattnTensor *t, int longest, int total, int elem_size, int *entries) {
  LuattnTensor view = *t;
  view.data = (void *)((uintptr_t)t->data - (uintptr_t)longest * (uintptr_t)t->seq * (uintptr_t)elem_size);
  view.batch = t->seq;
  *entries = total + 1;
  return view;
}
