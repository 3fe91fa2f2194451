/* parallel_calls.c: luattn_parallel_forward and luattn_parallel_backward: keys that a rank needs come, its queries are
 * one call over chunks of the whole, and gradients of keys go back to their owners. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/dtype_text.h"
#include "common/call/need_attention.h"
#include "common/struct_size.h"
#include "engine/engine.h"
#include "engine/parallel_rows.h"
#include "luattn/batch.h"

enum { KEYS, VALUES };

/* A call, and where its parts lie in the workspace. */
typedef struct parallel_call {
  luattn_engine *engine;
  const luattn_spec *spec;
  luattn_pass pass;
  luattn_args args; /* of the engine's call: k, v, dk and dv are those of all chunks that the rank takes */
  luattn_parallel_call call;
  luattn_transport transport;
  parallel_chunks chunks;
  int64_t rows;                                                    /* that it takes */
  parallel_rows own[2], all[2], own_grad[2], all_grad[2], come[2]; /* come: gradients of own rows from one rank */
  DLTensor tensor[4];
  int64_t shape[4][4], stride[4][4];
  int32_t *first; /* of the chunks of queries, then of keys */
  luattn_batch *batch;
  char *memory;      /* of the workspace, NULL where its size is asked for */
  int64_t used;      /* of it */
  size_t batch_size; /* of it, for the batch's arrays */
  char *batch_memory;
} parallel_call;

static bool gives(const parallel_call *p, int which) {
  return p->pass == LUATTN_BACKWARD && (which == KEYS ? p->args.dk : p->args.dv) != NULL;
}

/* Memory of the workspace. */
static void *take(parallel_call *p, int64_t bytes) {
  char *at = p->memory != NULL ? p->memory + p->used : NULL;
  p->used += (bytes + 255) / 256 * 256;
  return at;
}

/* Takes the caller's transport, and checks what the call says of chunks. */
static luattn_status check_call(parallel_call *p, luattn_error *err) {
  static const struct_rule of_transport = {"luattn_transport", sizeof(luattn_transport), sizeof(luattn_transport)};
  const luattn_parallel_call *c = &p->call;
  const luattn_transport *t = &p->transport;
  const char *place = "luattn_parallel";
  if (c->transport != NULL) TRY(struct_take(&of_transport, place, c->transport, &p->transport, err));
  if (t->send == NULL || t->receive == NULL || t->finish == NULL || t->add == NULL || t->sum == NULL)
    return luattn_fail(err, LUATTN_INVALID, "%s: transport: is missing, or lacks a function; give all five", place);
  if (t->ranks < 1 || t->rank < 0 || t->rank >= t->ranks)
    return luattn_fail(err, LUATTN_INVALID, "%s: transport: rank is %d of %d", place, t->rank, t->ranks);
  p->call.transport = t;
  if (c->rank_of == NULL || c->chunks < 1 || c->chunks % t->ranks != 0 || c->chunks > LUATTN_PARALLEL_MAX_CHUNKS ||
      c->chunk_rows < 1 || c->chunk_rows % LUATTN_PARALLEL_TILE != 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "%s: chunks: are %d of %d rows on %d ranks, expected a multiple of the ranks, of multiples of %d "
        "rows; pad the sequence",
        place, c->chunks, c->chunk_rows, t->ranks, LUATTN_PARALLEL_TILE);
  if (c->chunk_rows > INT32_MAX / c->chunks)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: chunks: are %d of %d rows, more than the %d of any sequence; give fewer rows", place,
                       c->chunks, c->chunk_rows, INT32_MAX);
  return parallel_chunks_open(c, &p->chunks, err);
}

static bool has_axis(const luattn_input_info *input, int32_t axis) {
  bool has = false;
  for (uint32_t i = 0; i < input->num_axes; ++i) has |= input->axis[i] == axis;
  return has;
}

/* Whether a tensor has the rank's rows, in whole bytes, which workspace is counted by. *like: NULL, or one whose dtype it
 * has. */
static luattn_status check_rows(const parallel_call *p, const char *name, const DLTensor *t, const DLTensor *like,
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

static luattn_status check_args(const parallel_call *p, luattn_error *err) {
  const luattn_args *a = &p->args;
  luattn_spec_info info;
  if (a->batch != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_parallel: batch: is given; packed sequences, pages and offsets have no ranks yet: say "
                       "documents by an input of the spec, and leave it NULL");
  TRY(check_rows(p, "q", a->q, NULL, err));
  TRY(check_rows(p, "k", a->k, a->q, err));
  TRY(check_rows(p, "v", a->v, a->q, err));
  luattn_spec_get_info(p->spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i)
    if (has_axis(&info.inputs[i], LUATTN_AXIS_KV))
      return luattn_fail(
          err, LUATTN_UNSUPPORTED,
          "luattn_parallel: input '%s': has an axis kv, whose rows do not travel yet; give it whole along "
          "a free axis, as axes = {\"n\"}",
          info.inputs[i].name);
  const bool is_half = a->q->dtype.bits == 16;
  if (p->pass == LUATTN_BACKWARD && is_half && a->grad_f32 != 1)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_parallel: grad_f32: is %d; gradients of half-precision keys are added up in float32: give "
        "dq, dk and dv in float32, and 1",
        a->grad_f32);
  return LUATTN_OK;
}

/* Opens the batch of the call: the rank's chunks of queries, and those of keys that it takes. */
static luattn_status open_batch(parallel_call *p, luattn_error *err) {
  const int all = p->call.chunks, taken = p->chunks.taken;
  int64_t count[2] = {p->chunks.own, taken};
  int32_t *first[2] = {p->first, p->first + p->chunks.own};
  int n[2] = {0};
  DLTensor t[2];
  for (int c = 0; c < all; ++c) {
    if (parallel_has(&p->chunks, p->chunks.rank, c)) first[0][n[0]++] = c * p->call.chunk_rows;
    if (parallel_takes(&p->chunks, p->chunks.rank, c)) first[1][n[1]++] = c * p->call.chunk_rows;
  }
  for (int i = 0; i < 2; ++i)
    t[i] = (DLTensor){.data = first[i], .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &count[i]};
  const int64_t whole = (int64_t)all * p->call.chunk_rows;
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .q_len = whole,
                                        .kv_len = whole,
                                        .q_chunks = &t[0],
                                        .kv_chunks = &t[1],
                                        .chunk_rows = p->call.chunk_rows};
  TRY(luattn_batch_open(&options, &p->batch, err));
  TRY(luattn_batch_size(p->batch, &p->batch_size, err));
  p->batch_memory = take(p, (int64_t)p->batch_size);
  p->args.batch = p->batch;
  return LUATTN_OK;
}

/* Places keys, or values, and their gradients. */
static luattn_status place_side(parallel_call *p, int which, luattn_error *err) {
  static const char *const name[] = {"k", "v"}, *const of_grad[] = {"dk", "dv"};
  const DLTensor *t = which == KEYS ? p->args.k : p->args.v, *grad = which == KEYS ? p->args.dk : p->args.dv;
  const int64_t rows = (int64_t)p->chunks.own * p->call.chunk_rows;
  const int bytes = t->dtype.bits / 8;
  TRY(parallel_rows_of(name[which], t, &p->own[which], err));
  p->all[which] = parallel_rows_in(&p->own[which], t, take(p, parallel_bytes(t, p->rows, bytes)), p->rows, bytes);
  p->tensor[which] = parallel_tensor(&p->all[which], t, p->rows, t->dtype, p->shape[which], p->stride[which]);
  if (gives(p, which)) {
    const int n = which + 2, grad_bytes = grad->dtype.bits / 8;
    TRY(check_rows(p, of_grad[which], grad, NULL, err));
    TRY(parallel_rows_of(of_grad[which], grad, &p->own_grad[which], err));
    const parallel_rows *like = &p->own_grad[which];
    p->all_grad[which] =
        parallel_rows_in(like, grad, take(p, parallel_bytes(grad, p->rows, grad_bytes)), p->rows, grad_bytes);
    p->come[which] = parallel_rows_in(like, grad, take(p, parallel_bytes(grad, rows, grad_bytes)), rows, grad_bytes);
    p->tensor[n] = parallel_tensor(&p->all_grad[which], grad, p->rows, grad->dtype, p->shape[n], p->stride[n]);
  }
  return LUATTN_OK;
}

/* Checks the arguments, and places what the call needs in the workspace. */
static luattn_status open_call(parallel_call *p, const luattn_args *args, const luattn_parallel_call *call, bool sizing,
                               luattn_error *err) {
  static const struct_rule of_call = STRUCT_RULE(luattn_parallel_call, workspace),
                           of_args = STRUCT_RULE(luattn_args, o);
  TRY(struct_take(&of_call, "luattn_parallel", call, &p->call, err));
  TRY(struct_take(&of_args, "luattn_parallel", args, &p->args, err));
  if (!sizing) p->memory = p->call.workspace;
  if ((uintptr_t)p->memory % 256 != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_parallel: workspace: address %p is not a multiple of 256 bytes; align it",
                       p->call.workspace);
  TRY(check_call(p, err));
  TRY(check_args(p, err));
  p->rows = (int64_t)p->chunks.taken * p->call.chunk_rows;
  p->first = malloc(((size_t)p->chunks.own + (size_t)p->call.chunks) * sizeof *p->first);
  if (p->first == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_parallel: out of memory");
  TRY(open_batch(p, err));
  for (int i = 0; i < 2; ++i) TRY(place_side(p, i, err));
  p->args.k = &p->tensor[0], p->args.v = &p->tensor[1];
  if (gives(p, KEYS)) p->args.dk = &p->tensor[2];
  if (gives(p, VALUES)) p->args.dv = &p->tensor[3];
  return LUATTN_OK;
}

static void close_call(parallel_call *p) {
  luattn_batch_close(p->batch);
  parallel_chunks_close(&p->chunks);
  free(p->first);
}

static luattn_status engine_bytes(parallel_call *p, size_t *size, luattn_error *err) {
  p->args.workspace = NULL, p->args.workspace_size = 0;
  return luattn_engine_workspace_size(p->engine, p->spec, p->pass, &p->args, size, err);
}

/* ---- exchanges ---- */

/* The chunks that go from one rank to another: of keys those that `to` takes, of gradients the same the other way. */
static luattn_status move_keys(const parallel_call *p, int peer, bool sends, void *stream, luattn_error *err) {
  const parallel_chunks *c = &p->chunks;
  const int64_t size = p->call.chunk_rows;
  for (int chunk = 0; chunk < p->call.chunks; ++chunk) {
    if (!parallel_has(c, sends ? c->rank : peer, chunk) || !parallel_takes(c, sends ? peer : c->rank, chunk)) continue;
    const int64_t row = parallel_place(c, chunk, !sends) * size;
    for (int i = 0; i < 2; ++i)
      TRY(parallel_move(p->call.transport, sends, peer, sends ? &p->own[i] : &p->all[i], row, size, stream, err));
  }
  return LUATTN_OK;
}

static luattn_status gather_keys(const parallel_call *p, void *stream, luattn_error *err) {
  const int ranks = p->chunks.ranks, rank = p->chunks.rank;
  for (int t = 0; t < ranks; ++t) {
    TRY(move_keys(p, (rank + t) % ranks, false, stream, err));
    TRY(move_keys(p, (rank + ranks - t) % ranks, true, stream, err));
  }
  return p->call.transport->finish(p->call.transport->self, stream, err);
}

/* Gradients that this rank made of the keys of `to`, and those that `from` made of its own, which are added to them. */
static luattn_status return_gradients(const parallel_call *p, int to, int from, void *stream, luattn_error *err) {
  const parallel_chunks *c = &p->chunks;
  const luattn_transport *t = p->call.transport;
  const bool is_first = from == c->rank; /* own gradients are stored, others added */
  const int64_t size = p->call.chunk_rows;
  for (int add = 0; add < 2; ++add) {
    for (int chunk = 0; chunk < p->call.chunks; ++chunk)
      for (int i = 0; i < 2; ++i) {
        if (!gives(p, i)) continue;
        const luattn_dtype type = p->tensor[i + 2].dtype.bits == 64 ? LUATTN_F64 : LUATTN_F32;
        if (!add && parallel_has(c, to, chunk) && parallel_takes(c, c->rank, chunk))
          TRY(parallel_move(t, true, to, &p->all_grad[i], parallel_place(c, chunk, true) * size, size, stream, err));
        if (!parallel_has(c, c->rank, chunk) || !parallel_takes(c, from, chunk)) continue;
        const int64_t row = parallel_place(c, chunk, false) * size;
        if (!add)
          TRY(parallel_move(t, false, from, is_first ? &p->own_grad[i] : &p->come[i], row, size, stream, err));
        else if (!is_first)
          TRY(parallel_add(t, &p->own_grad[i], row, &p->come[i], row, size, type, stream, err));
      }
    if (!add) TRY(t->finish(t->self, stream, err));
  }
  return LUATTN_OK;
}

static luattn_status sum_one(const luattn_transport *t, const DLTensor *grad, void *stream, luattn_error *err) {
  size_t count = 1;
  if (grad == NULL) return LUATTN_OK;
  for (int i = 0; i < grad->ndim; ++i) count *= (size_t)grad->shape[i];
  return t->sum(t->self, (char *)grad->data + grad->byte_offset, count,
                grad->dtype.bits == 64 ? LUATTN_F64 : LUATTN_F32, stream, err);
}

/* Gradients of what is whole on all ranks, in the spec's order: ranks may give inputs in different ones. */
static luattn_status sum_whole(const parallel_call *p, void *stream, luattn_error *err) {
  const luattn_args *a = &p->args;
  luattn_spec_info info;
  luattn_spec_get_info(p->spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i)
    for (size_t n = 0; n < a->num_inputs && !has_axis(&info.inputs[i], LUATTN_AXIS_Q); ++n)
      if (strcmp(info.inputs[i].name, a->inputs[n].name) == 0)
        TRY(sum_one(p->call.transport, a->inputs[n].grad, stream, err));
  return sum_one(p->call.transport, a->scalar_grads, stream, err);
}

/* ---- calls ---- */

static luattn_status run(parallel_call *p, void *stream, luattn_error *err) {
  const engine_place at = engine_get_place(p->engine);
  size_t size;
  TRY(engine_bytes(p, &size, err));
  if (p->call.workspace_size < (size_t)p->used + size || p->memory == NULL)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_parallel: workspace: has %zu bytes, expected %zu; luattn_parallel_workspace_size gives the "
        "size",
        p->call.workspace_size, (size_t)p->used + size);
  p->args.workspace = size > 0 ? p->memory + p->used : NULL, p->args.workspace_size = size;
  if (at.driver != NULL)
    TRY(luattn_batch_prepare(p->batch, at.driver, at.device, p->batch_memory, p->batch_size, stream, err));
  TRY(gather_keys(p, stream, err));
  if (p->pass == LUATTN_FORWARD) return luattn_forward(p->engine, p->spec, &p->args, stream, err);
  TRY(luattn_backward(p->engine, p->spec, &p->args, stream, err));
  const int ranks = p->chunks.ranks, rank = p->chunks.rank;
  for (int t = 0; t < ranks; ++t) TRY(return_gradients(p, (rank + t) % ranks, (rank + ranks - t) % ranks, stream, err));
  return sum_whole(p, stream, err);
}

static luattn_status run_call(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                              const luattn_parallel_call *given, size_t *size, void *stream, luattn_error *err) {
  parallel_call p = {.engine = engine, .spec = spec, .pass = pass};
  luattn_status status = open_call(&p, args, given, size != NULL, err);
  if (status == LUATTN_OK && size != NULL) {
    status = engine_bytes(&p, size, err);
    *size += (size_t)p.used;
  } else if (status == LUATTN_OK) {
    status = run(&p, stream, err);
  }
  close_call(&p);
  return status;
}

luattn_status luattn_parallel_workspace_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                             const luattn_args *args, const luattn_parallel_call *call, size_t *size,
                                             luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(call);
  NEED(size);
  return run_call(engine, spec, pass, args, call, size, NULL, err);
}

luattn_status luattn_parallel_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                      const luattn_parallel_call *call, void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(call);
  return run_call(engine, spec, LUATTN_FORWARD, args, call, NULL, stream, err);
}

luattn_status luattn_parallel_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args,
                                       const luattn_parallel_call *call, void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(call);
  return run_call(engine, spec, LUATTN_BACKWARD, args, call, NULL, stream, err);
}
