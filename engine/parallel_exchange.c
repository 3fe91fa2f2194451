/* parallel_exchange.c: what travels between ranks: keys, their gradients, sums. */
#include <string.h>

#include "engine/parallel_call.h"

/* The chunks of a stage that go from one rank to another: of keys those that `to` takes. */
static luattn_status move_keys(const parallel_call *p, int s, int peer, bool sends, void *stream, luattn_error *err) {
  const parallel_chunks *c = &p->chunks;
  const int64_t size = p->call.chunk_rows;
  for (int chunk = 0; chunk < p->call.chunks; ++chunk) {
    if (!parallel_has(c, sends ? c->rank : peer, chunk) || !parallel_takes(c, sends ? peer : c->rank, chunk)) continue;
    const int64_t row = parallel_place(c, chunk, !sends) * size;
    for (int i = 0; i < PARALLEL_SIDES; ++i)
      TRY(parallel_move(&p->transport, sends, peer, sends ? &p->own[i] : &p->stage[s].rows[i], row, size, stream, err));
  }
  return LUATTN_OK;
}

luattn_status parallel_gather(const parallel_call *p, int s, void *stream, luattn_error *err) {
  const int ranks = p->chunks.ranks, rank = p->chunks.rank;
  if (p->stage[s].in_place) return LUATTN_OK;
  for (int t = p->chunks.stage[s].first; t < p->chunks.stage[s].end; ++t) {
    TRY(move_keys(p, s, (rank + t) % ranks, false, stream, err));
    TRY(move_keys(p, s, (rank + ranks - t) % ranks, true, stream, err));
  }
  return p->transport.finish(p->transport.self, stream, err);
}

/* Begins what goes to `to`, whose keys these are, and what `from` made of this rank's. */
static luattn_status move_gradients(const parallel_call *p, int s, int side, int chunk, int to, int from, void *stream,
                                    luattn_error *err) {
  const parallel_chunks *c = &p->chunks;
  const luattn_transport *t = &p->transport;
  const int64_t size = p->call.chunk_rows;
  const parallel_rows *made = &p->stage[s].rows[PARALLEL_SIDES + side], *own = &p->own[PARALLEL_SIDES + side];
  if (parallel_has(c, to, chunk) && parallel_takes(c, c->rank, chunk))
    TRY(parallel_move(t, true, to, made, parallel_place(c, chunk, true) * size, size, stream, err));
  if (!parallel_has(c, c->rank, chunk) || !parallel_takes(c, from, chunk)) return LUATTN_OK;
  return parallel_move(t, false, from, from == c->rank ? own : &p->come[side], parallel_place(c, chunk, false) * size,
                       size, stream, err);
}

/* Those that are the rank's own are the first, and stored where they come. */
static luattn_status add_gradients(const parallel_call *p, int side, int chunk, int from, void *stream,
                                   luattn_error *err) {
  const parallel_chunks *c = &p->chunks;
  const parallel_rows *own = &p->own[PARALLEL_SIDES + side];
  const luattn_dtype type = p->stage[0].tensor[PARALLEL_SIDES + side].dtype.bits == 64 ? LUATTN_F64 : LUATTN_F32;
  if (from == c->rank || !parallel_has(c, c->rank, chunk) || !parallel_takes(c, from, chunk)) return LUATTN_OK;
  const int64_t size = p->call.chunk_rows, row = parallel_place(c, chunk, false) * size;
  return parallel_add(&p->transport, own, row, &p->come[side], row, size, type, stream, err);
}

luattn_status parallel_return(const parallel_call *p, int s, void *stream, luattn_error *err) {
  const int ranks = p->chunks.ranks, rank = p->chunks.rank;
  if (p->stage[s].in_place) return LUATTN_OK;
  for (int t = p->chunks.stage[s].first; t < p->chunks.stage[s].end; ++t) {
    const int to = (rank + t) % ranks, from = (rank + ranks - t) % ranks;
    for (int add = 0; add < 2; ++add) {
      for (int chunk = 0; chunk < p->call.chunks; ++chunk)
        for (int i = 0; i < PARALLEL_SIDES; ++i)
          if (parallel_gives(p, i))
            TRY(add ? add_gradients(p, i, chunk, from, stream, err)
                    : move_gradients(p, s, i, chunk, to, from, stream, err));
      if (!add) TRY(p->transport.finish(p->transport.self, stream, err));
    }
  }
  return LUATTN_OK;
}

static luattn_status sum_one(const luattn_transport *t, const DLTensor *grad, void *stream, luattn_error *err) {
  size_t count = 1;
  if (grad == NULL || grad->data == NULL) return LUATTN_OK;
  for (int i = 0; i < grad->ndim; ++i) count *= (size_t)grad->shape[i];
  return t->sum(t->self, (char *)grad->data + grad->byte_offset, count,
                grad->dtype.bits == 64 ? LUATTN_F64 : LUATTN_F32, stream, err);
}

static bool has_axis_q(const luattn_input_info *input) {
  bool has = false;
  for (uint32_t i = 0; i < input->num_axes; ++i) has |= input->axis[i] == LUATTN_AXIS_Q;
  return has;
}

/* In the spec's order: ranks may give inputs in different ones. */
luattn_status parallel_sum_whole(const parallel_call *p, void *stream, luattn_error *err) {
  const luattn_args *a = &p->args;
  for (size_t i = 0; i < p->info.num_inputs; ++i)
    for (size_t n = 0; n < a->num_inputs && !has_axis_q(&p->info.inputs[i]); ++n)
      if (a->inputs[n].name != NULL && strcmp(p->info.inputs[i].name, a->inputs[n].name) == 0)
        TRY(sum_one(&p->transport, a->inputs[n].grad, stream, err));
  return sum_one(&p->transport, a->scalar_grads, stream, err);
}
