/* batch.c: opens a luattn_batch, and checks it against a call's tensors. */
#include "common/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/limits.h"
#include "common/struct_size.h"

static luattn_status take_number(const char *name, int64_t value, int64_t most, luattn_error *err) {
  if (value >= 0 && value <= most) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: is %" PRId64 ", expected 0 to %" PRId64, name, value,
                     most);
}

static luattn_status take_array(batch_offset *side, const DLTensor *t, luattn_error *err) {
  if (t == NULL) return LUATTN_OK;
  if (side->number != 0)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: is %" PRId64 ", and %s is given; leave the number 0",
                       side->name, side->number, side->array_name);
  if (t->ndim != 1 || t->shape == NULL || t->shape[0] < 0)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: expected one axis: [batch]", side->array_name);
  if (t->dtype.code != kDLInt || t->dtype.bits != 32 || t->dtype.lanes != 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: %s: has DLPack dtype (code %d, %d bits, %d lanes), expected int32; convert it",
                       side->array_name, t->dtype.code, t->dtype.bits, t->dtype.lanes);
  if (t->strides != NULL && t->shape[0] > 1 && t->strides[0] != 1)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: has stride %" PRId64 ", expected 1; copy it",
                       side->array_name, t->strides[0]);
  if (t->shape[0] > 0 && t->data == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_batch_open: %s: its data pointer is NULL; give it memory",
                       side->array_name);
  side->is_array = true;
  side->count = t->shape[0];
  side->array = *t;
  side->array.strides = NULL;
  return LUATTN_OK;
}

static luattn_status take_heads(const luattn_batch_options *o, luattn_error *err) {
  TRY(take_number("head_offset", o->head_offset, LUATTN_MAX_HEADS, err));
  TRY(take_number("heads", o->heads, LUATTN_MAX_HEADS, err));
  TRY(take_number("heads_kv", o->heads_kv, LUATTN_MAX_HEADS, err));
  if (o->heads == 0 && (o->head_offset != 0 || o->heads_kv != 0))
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_open: heads: is 0, and %s is %" PRId64 "; give the heads of the whole",
                       o->head_offset != 0 ? "head_offset" : "heads_kv",
                       o->head_offset != 0 ? o->head_offset : o->heads_kv);
  return LUATTN_OK;
}

static luattn_status fill(const luattn_batch_options *o, luattn_batch *batch, luattn_error *err) {
  batch->side[0] = (batch_offset){.name = "q_offset", .array_name = "q_offsets", .number = o->q_offset, .whole = o->q_len};
  batch->side[1] =
      (batch_offset){.name = "kv_offset", .array_name = "kv_offsets", .number = o->kv_offset, .whole = o->kv_len};
  batch->head_offset = o->head_offset;
  batch->heads = o->heads;
  batch->heads_kv = o->heads_kv;
  static const char *const length[] = {"q_len", "kv_len"};
  for (int i = 0; i < 2; ++i) {
    TRY(take_number(batch->side[i].name, batch->side[i].number, INT32_MAX, err));
    TRY(take_number(length[i], batch->side[i].whole, INT32_MAX, err));
  }
  TRY(take_array(&batch->side[0], o->q_offsets, err));
  TRY(take_array(&batch->side[1], o->kv_offsets, err));
  return take_heads(o, err);
}

luattn_status luattn_batch_open(const luattn_batch_options *options, luattn_batch **batch, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_batch_options, q_offsets);
  luattn_batch_options taken;
  fail_clear(err);
  NEED(options);
  NEED(batch);
  *batch = NULL;
  TRY(struct_take(&rule, "luattn_batch_open", options, &taken, err));
  luattn_batch *made = calloc(1, sizeof *made);
  if (made == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_batch_open: out of memory");
  const luattn_status status = fill(&taken, made, err);
  if (status == LUATTN_OK)
    *batch = made;
  else
    free(made);
  return status;
}

void luattn_batch_close(luattn_batch *batch) { free(batch); }

bool batch_heads_of(const luattn_batch *batch, int heads, int heads_kv, batch_heads *out, char *text, size_t size) {
  *out = (batch_heads){.heads = heads, .heads_kv = heads_kv};
  if (batch == NULL || batch->heads == 0) return true;
  const int64_t whole = batch->heads, first = batch->head_offset, group = heads / heads_kv;
  if (first + heads > whole) {
    snprintf(text, size,
             "batch: head_offset: is %" PRId64 ", and q has %d heads, which are more than the whole's %" PRId64, first,
             heads, whole);
    return false;
  }
  const int64_t whole_kv = batch->heads_kv != 0 ? batch->heads_kv : whole / group;
  bool agrees = whole_kv > 0 && whole % whole_kv == 0;
  const int64_t whole_group = agrees ? whole / whole_kv : 1, first_kv = first / whole_group;
  for (int64_t h = 0; agrees && h < heads; ++h) agrees = (first + h) / whole_group - first_kv == h / group;
  if (!agrees) {
    snprintf(text, size,
             "batch: heads_kv: %" PRId64 " heads and %" PRId64 " of keys, of which the call has %d and %d from head %" PRId64
             " on, do not agree: query heads would read other heads of keys than in the whole",
             whole, whole_kv, heads, heads_kv, first);
    return false;
  }
  *out = (batch_heads){(int)first, (int)first_kv, (int)whole, (int)whole_kv};
  return true;
}

bool batch_offset_ok(const batch_offset *side, int64_t batch, int64_t length, int64_t most, char *text, size_t size) {
  const bool of_q = side->name[0] == 'q';
  if (side->is_array && side->count != batch) {
    snprintf(text, size, "batch: %s: has %" PRId64 " elements, expected %" PRId64 ", one for each batch entry",
             side->array_name, side->count, batch);
    return false;
  }
  if (side->whole > most) {
    snprintf(text, size,
             "batch: %s: is %" PRId64 ", but this spec's index arithmetic is exact up to %" PRId64
             " alone; shorten it, or use smaller factors in the spec",
             of_q ? "q_len" : "kv_len", side->whole, most);
    return false;
  }
  const int64_t limit = side->whole != 0 ? side->whole : most;
  if (side->number + length <= limit) return true;
  snprintf(text, size,
           "batch: %s: is %" PRId64 ", and with %s's length of %" PRId64 " exceeds %s of %" PRId64 "; give a smaller offset%s",
           side->name, side->number, of_q ? "q" : "k", length,
           side->whole != 0 ? "the whole's length" : "the length up to which this spec's index arithmetic is exact", limit,
           side->whole != 0 ? ", or a longer whole" : "");
  return false;
}
