/* call_offsets.c: offsets of a CPU call whose tensors are a part of a whole (luattn/batch.h). Programs see
 * positions, heads and lengths of the whole; tensors and the axes of inputs have their own. */
#include "common/call/batch.h"
#include "gen/cpu/cpu.h"

static luattn_status check_array(const batch_array *array, luattn_error *err) {
  if (!array->is_given || batch_on_host(array)) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_INVALID,
      "cpu: batch: %s: is on DLPack device type %d, expected %d (CPU); luattn_copy_to_host copies from a GPU",
      array->name, (int)array->given.device.device_type, (int)kDLCPU);
}

luattn_status problem_open_batch(const luattn_args *args, cpu_problem *p, luattn_error *err) {
  char wrong[400];
  batch_heads heads;
  p->part = args->batch;
  if (!batch_heads_of(p->part, p->heads, p->heads_kv, &heads, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  const batch_own own = {p->q_len, p->kv_len, false, p->heads, p->heads_kv};
  for (int i = 0; i < p->spec->traced.num_elsewhere; i++) {
    const luattn_input_info *in = &p->spec->traced.input[p->spec->traced.elsewhere[i].input];
    if (!batch_reads_whole(p->part, in->name, in->axis[p->spec->traced.elsewhere[i].axis], &own, &heads, wrong,
                           sizeof wrong))
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  }
  p->head_offset = heads.offset, p->kv_head_offset = heads.offset_kv;
  p->whole_heads = heads.heads, p->whole_heads_kv = heads.heads_kv;
  for (int i = 0; i < 2 && p->part != NULL; i++) {
    if (!batch_offset_ok(p->part, i, p->batch, i == 0 ? p->q_len : p->kv_len, problem_most_len(p), wrong, sizeof wrong))
      return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
    TRY(check_array(&p->part->array[BATCH_Q_OFFSETS + i], err));
    TRY(check_array(&p->part->array[BATCH_Q_CHUNKS + i], err));
  }
  return LUATTN_OK;
}

/* Of the chunk that has row `at`. */
static int64_t chunk_offset(const luattn_batch *batch, int side, int64_t at) {
  const int64_t chunk = at / batch->chunk_rows;
  return batch_at(&batch->array[BATCH_Q_CHUNKS + side], chunk) - chunk * batch->chunk_rows;
}

/* Clamped as in kernels (templates/ops/offsets.cuh). */
static int64_t side_offset(const cpu_problem *p, int side, int b, int64_t at, int64_t length) {
  const luattn_batch *batch = p->part;
  const batch_offset *offset = &batch->offset[side];
  const batch_array *array = &batch->array[BATCH_Q_OFFSETS + side];
  if (batch->array[BATCH_Q_CHUNKS + side].is_given) return length > 0 ? chunk_offset(batch, side, at) : 0;
  if (!array->is_given) return offset->number;
  const int64_t most = (offset->whole != 0 ? offset->whole : problem_most_len(p)) - length, given = batch_at(array, b);
  return given < 0 ? 0 : given > most ? most : given;
}

int64_t problem_offset(const cpu_problem *p, int32_t axis, int b, double at) {
  if (p->part == NULL) return 0;
  switch (axis) {
    case LUATTN_AXIS_Q:
      return side_offset(p, 0, b, (int64_t)at, p->q_len);
    case LUATTN_AXIS_KV:
      return side_offset(p, 1, b, (int64_t)at, p->kv_len);
    case LUATTN_AXIS_H:
      return p->head_offset;
    case LUATTN_AXIS_HKV:
      return p->kv_head_offset;
    default:
      return 0;
  }
}

int64_t problem_length(const cpu_problem *p, int32_t axis, int b) {
  const int64_t own = axis == LUATTN_AXIS_Q ? p->q_len : p->kv_len;
  const int64_t whole = p->part != NULL ? p->part->offset[axis == LUATTN_AXIS_Q ? 0 : 1].whole : 0;
  return whole != 0 ? whole : problem_offset(p, axis, b, 0) + own;
}
