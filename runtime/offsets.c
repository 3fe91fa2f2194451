/* offsets.c: checks the offsets of a call, and passes them to kernels. */
#include "runtime/offsets.h"

#include "common/batch.h"

/* For one side, of queries or of keys. */
static luattn_status take_side(const args_call *c, const batch_offset *side, int entries, int length, const int **array, int *number,
                               int *whole, int *most) {
  char text[400];
  if (!batch_offset_ok(side, entries, length, c->info->max_len, text, sizeof text)) return args_fail(c, "%s", text);
  *number = (int)side->number;
  *whole = (int)side->whole;
  /* Packed entries have lengths of their own, which the device knows. */
  if (side->whole == 0 && !side->is_array && !c->info->packed) *whole = (int)(side->number + length);
  *most = side->whole != 0 ? (int)side->whole : (int)c->info->max_len;
  if (!side->is_array) return LUATTN_OK;
  if (c->info->offsets_layout[0] == 0)
    return args_fail(c, "batch: %s: is given, and this image takes numbers alone; compile with LUATTN_OFFSET_ARRAYS",
                     side->array_name);
  const tensor_rule rule = {.name = side->array_name,
                            .axes = "batch",
                            .ndim = 1,
                            .shape = {side->count},
                            .dtype = {kDLInt, 32, 1},
                            .is_contiguous = true};
  DLTensor t = side->array;
  int64_t count = side->count;
  long long stride[4];
  void *data;
  t.shape = &count;
  TRY(args_tensor(c, &rule, &t, stride, &data));
  *array = data;
  return LUATTN_OK;
}

static luattn_status take_sides(const args_call *c, const batch_offset side[2], LuattnOffsetParams *params) {
  const LuattnShape *shape = &params->dense.shape;
  LuattnOffsets *out = &params->offsets;
  TRY(take_side(c, &side[0], shape->batch, shape->q_len, &out->q_offsets, &out->q_offset, &out->q_len, &out->most_q));
  return take_side(c, &side[1], shape->batch, shape->kv_len, &out->kv_offsets, &out->kv_offset, &out->kv_len, &out->most_kv);
}

luattn_status offsets_fill(const args_call *c, LuattnOffsetParams *params) {
  const luattn_batch *batch = c->args->batch;
  const LuattnShape *shape = &params->dense.shape;
  LuattnOffsets *out = &params->offsets;
  if (!c->info->offsets)
    return batch == NULL ? LUATTN_OK
                         : args_fail(c, "batch: is given, and this image is for tensors that are the whole; compile "
                                        "with luattn_target.offsets");
  char text[400];
  batch_heads heads;
  if (!batch_heads_of(batch, shape->heads, shape->heads_kv, &heads, text, sizeof text)) return args_fail(c, "%s", text);
  out->head_offset = heads.offset;
  out->kv_head_offset = heads.offset_kv;
  out->heads = heads.heads;
  out->heads_kv = heads.heads_kv;
  if (batch == NULL) {
    static const batch_offset none[2] = {{.name = "q_offset"}, {.name = "kv_offset"}};
    return take_sides(c, none, params);
  }
  return take_sides(c, batch->side, params);
}
