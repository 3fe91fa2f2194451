/* parallel_places.c: where keys, gradients and parts of rows lie in a parallel call's workspace. */
#include <inttypes.h>
#include <string.h>

#include "common/call/dtype_text.h"
#include "engine/parallel_call.h"

/* Memory of the workspace. */
static void *take(parallel_call *p, int64_t bytes) {
  char *at = p->memory != NULL ? p->memory + p->used : NULL;
  p->used += (bytes + 255) / 256 * 256;
  return at;
}

luattn_status parallel_check_rows(const parallel_call *p, const char *name, const DLTensor *t, const DLTensor *like,
                                  luattn_error *err) {
  const int64_t rows = (int64_t)p->chunks.own * p->call.chunk_rows;
  char text[DTYPE_TEXT_SIZE], of_like[DTYPE_TEXT_SIZE];
  if (t == NULL) return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: %s: is NULL; give the rank's rows", name);
  if (t->ndim != 4)
    return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: %s: has %d axes, expected 4: [batch, heads, rows, dim]",
                       name, t->ndim);
  if (t->shape[2] != rows)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_parallel: %s: has %" PRId64 " rows, expected the %" PRId64 " of the rank's chunks", name,
                       t->shape[2], rows);
  dtype_text(t->dtype, text, sizeof text);
  if (t->dtype.bits < 8 || t->dtype.bits % 8 != 0 || t->dtype.lanes != 1)
    return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: %s: has dtype %s, expected whole bytes; convert it", name,
                       text);
  if (like == NULL || memcmp(&t->dtype, &like->dtype, sizeof t->dtype) == 0) return LUATTN_OK;
  dtype_text(like->dtype, of_like, sizeof of_like);
  return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: %s: has dtype %s, expected q's, %s; convert it", name, text,
                     of_like);
}

static int64_t rows_of_rank(const parallel_call *p) { return (int64_t)p->chunks.own * p->call.chunk_rows; }

static const DLTensor *given(const parallel_call *p, int i) {
  const DLTensor *const of[] = {p->args.k, p->args.v, p->args.dk, p->args.dv};
  return of[i];
}

static bool has(const parallel_call *p, int i) { return i < PARALLEL_SIDES || parallel_gives(p, i - PARALLEL_SIDES); }

/* The most rows of a stage whose keys travel, and that lies at memory number `half`: a stage's keys arrive while those of the
 * one before are in use. */
static int64_t most_rows(const parallel_call *p, int half) {
  int most = 0;
  for (int s = 0; s < p->chunks.num_stages; ++s)
    if (!p->stage[s].in_place && s % 2 == half && p->chunks.stage[s].taken > most) most = p->chunks.stage[s].taken;
  return (int64_t)most * p->call.chunk_rows;
}

/* Rows of k, v, dk or dv. */
static luattn_status place_rows(parallel_call *p, int i, luattn_error *err) {
  static const char *const name[] = {"k", "v", "dk", "dv"};
  const DLTensor *t = given(p, i);
  const int bytes = t->dtype.bits / 8;
  void *half[2];
  if (i >= PARALLEL_SIDES) TRY(parallel_check_rows(p, name[i], t, NULL, err));
  TRY(parallel_rows_of(name[i], t, &p->own[i], err));
  for (int h = 0; h < 2; ++h) half[h] = take(p, parallel_bytes(t, most_rows(p, h), bytes));
  for (int s = 0; s < p->chunks.num_stages; ++s) {
    parallel_stage *to = &p->stage[s];
    const int64_t rows = (int64_t)p->chunks.stage[s].taken * p->call.chunk_rows;
    to->rows[i] = to->in_place ? p->own[i] : parallel_rows_in(&p->own[i], t, half[s % 2], rows, bytes);
    to->tensor[i] = parallel_tensor(&to->rows[i], t, rows, t->dtype, to->shape[i], to->stride[i]);
  }
  if (i >= PARALLEL_SIDES)
    p->come[i - PARALLEL_SIDES] =
        parallel_rows_in(&p->own[i], t, take(p, parallel_bytes(t, rows_of_rank(p), bytes)), rows_of_rank(p), bytes);
  return LUATTN_OK;
}

static DLTensor numbers_in(parallel_call *p, int ndim, int64_t *shape, int bits) {
  DLTensor t = {.device = p->args.q->device, .ndim = ndim, .dtype = {kDLFloat, (uint8_t)bits, 1}, .shape = shape};
  int64_t bytes = bits / 8;
  for (int i = 0; i < ndim; ++i) bytes *= shape[i];
  t.data = take(p, bytes);
  return t;
}

/* Parts of rows, in float32 where q has fewer bits, so that they are rounded once. */
static luattn_status place_parts(parallel_call *p, luattn_error *err) {
  const DLTensor *q = p->args.q, *v = p->args.v;
  const int bits = q->dtype.bits == 64 ? 64 : 32;
  luattn_spec_info of_parts = {0};
  for (int s = 0; s < p->chunks.num_stages; ++s) p->num_parts += p->chunks.stage[s].taken > 0;
  p->merged = -1;
  if (p->pass != LUATTN_FORWARD || p->gathered) return LUATTN_OK;
  TRY(parallel_check_rows(p, "o", p->args.o, NULL, err));
  if (p->info.num_saved > 0 && p->args.saved == NULL)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_parallel: saved: is NULL, and backward of this spec reads %zu numbers of a row; give them "
        "memory",
        p->info.num_saved);
  if (p->num_parts < 2) return LUATTN_OK; /* which differs between ranks: what is refused is so on all of them */
  if (p->call.parts != NULL) luattn_spec_get_info(p->call.parts, &of_parts);
  const int64_t shape[3][4] = {{q->shape[0], q->shape[1], q->shape[2], v->shape[3]},
                               {q->shape[0], q->shape[1], q->shape[2]},
                               {(int64_t)of_parts.num_saved, q->shape[0], q->shape[1], q->shape[2]}};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) p->part_shape[i][j] = shape[i][j];
  for (int i = 0; i < PARALLEL_PARTS && i < p->num_parts; ++i) {
    p->part[i].o = numbers_in(p, 4, p->part_shape[0], bits);
    p->part[i].lse = numbers_in(p, 3, p->part_shape[1], bits);
    if (of_parts.num_saved > 0) p->part[i].state = numbers_in(p, 4, p->part_shape[2], bits);
  }
  return LUATTN_OK;
}

/* What later stages add to dq and to gradients of inputs and scalars. */
static luattn_status place_later(parallel_call *p, luattn_error *err) {
  luattn_args *a = &p->args;
  parallel_rows own = {0};
  if (p->pass != LUATTN_BACKWARD || p->gathered) return LUATTN_OK;
  if (a->dq != NULL) {
    TRY(parallel_check_rows(p, "dq", a->dq, NULL, err));
    TRY(parallel_rows_of("dq", a->dq, &own, err));
  }
  if (p->num_parts < 2) return LUATTN_OK;
  if (a->dq != NULL) {
    const int bytes = a->dq->dtype.bits / 8;
    p->later_dq =
        parallel_rows_in(&own, a->dq, take(p, parallel_bytes(a->dq, rows_of_rank(p), bytes)), rows_of_rank(p), bytes);
    p->later_dq_tensor = parallel_tensor(&p->later_dq, a->dq, rows_of_rank(p), a->dq->dtype, p->dq_shape, p->dq_stride);
  }
  for (size_t i = 0; i < a->num_inputs; ++i) {
    const DLTensor *grad = a->inputs[i].grad;
    p->later_input[i] = a->inputs[i];
    if (grad == NULL || grad->data == NULL) continue;
    p->later_grad[i] = numbers_in(p, grad->ndim, grad->shape, grad->dtype.bits);
    p->later_input[i].grad = &p->later_grad[i];
  }
  if (a->scalar_grads != NULL)
    p->later_scalars = numbers_in(p, a->scalar_grads->ndim, a->scalar_grads->shape, a->scalar_grads->dtype.bits);
  return LUATTN_OK;
}

/* Opens the batch of a stage's call: the rank's chunks of queries, and the stage's of keys. */
static luattn_status open_batch(parallel_call *p, int s, int32_t *first, luattn_error *err) {
  parallel_stage *stage = &p->stage[s];
  int64_t count[2] = {p->chunks.own, p->chunks.stage[s].taken};
  int n = 0;
  DLTensor t[2];
  for (int c = 0; c < p->call.chunks; ++c)
    if (parallel_in_stage(&p->chunks, &p->chunks.stage[s], c)) first[n++] = c * p->call.chunk_rows;
  for (int i = 0; i < 2; ++i)
    t[i] = (DLTensor){.data = i == 0 ? p->first : first,
                      .device = {kDLCPU, 0},
                      .ndim = 1,
                      .dtype = {kDLInt, 32, 1},
                      .shape = &count[i]};
  const int64_t whole = (int64_t)p->call.chunks * p->call.chunk_rows;
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .q_len = whole,
                                        .kv_len = whole,
                                        .q_chunks = &t[0],
                                        .kv_chunks = &t[1],
                                        .chunk_rows = p->call.chunk_rows};
  TRY(luattn_batch_open(&options, &stage->batch, err));
  TRY(luattn_batch_size(stage->batch, &stage->batch_size, err));
  stage->batch_memory = take(p, (int64_t)stage->batch_size);
  return LUATTN_OK;
}

luattn_status parallel_place_stages(parallel_call *p, luattn_error *err) {
  int n = 0;
  for (int c = 0; c < p->call.chunks; ++c)
    if (parallel_has(&p->chunks, p->chunks.rank, c)) p->first[n++] = c * p->call.chunk_rows;
  p->stage[0].in_place = p->chunks.stage[0].end == 1;
  for (int i = 0; i < 2 * PARALLEL_SIDES; ++i)
    if (has(p, i)) TRY(place_rows(p, i, err));
  for (int s = 0; s < p->chunks.num_stages; ++s) {
    if (p->chunks.stage[s].taken == 0) continue;
    TRY(open_batch(p, s, p->first + n, err));
    n += p->chunks.stage[s].taken;
  }
  TRY(place_parts(p, err));
  return place_later(p, err);
}

void parallel_close_stages(parallel_call *p) {
  for (int s = 0; s < p->chunks.num_stages; ++s) luattn_batch_close(p->stage[s].batch);
}
