/* parallel_compute.c: a stage's call, and what is done with its results: merges of parts of rows, sums of gradients. */
#include <string.h>

#include "engine/parallel_call.h"

static char *data_of(const DLTensor *t) { return (char *)t->data + t->byte_offset; }

static size_t count_of(const DLTensor *t) {
  size_t count = 1;
  for (int i = 0; i < t->ndim; ++i) count *= (size_t)t->shape[i];
  return count;
}

static luattn_dtype type_of(const DLTensor *t) { return t->dtype.bits == 64 ? LUATTN_F64 : LUATTN_F32; }

/* Whether forward has parts to merge. */
static bool has_parts(const parallel_call *p) { return p->num_parts > 1; }

const luattn_spec *parallel_stage_spec(const parallel_call *p) {
  return p->pass == LUATTN_FORWARD && has_parts(p) && p->call.parts != NULL ? p->call.parts : p->spec;
}

/* The first part, or one beside the merged one. */
static int next_part(const parallel_call *p) { return p->merged < 0 ? 0 : (p->merged + 1) % PARALLEL_PARTS; }

luattn_args parallel_stage_args(const parallel_call *p, int s) {
  const parallel_stage *stage = &p->stage[s];
  luattn_args a = p->args;
  a.k = &stage->tensor[PARALLEL_KEYS], a.v = &stage->tensor[PARALLEL_VALUES];
  a.batch = stage->batch;
  if (p->pass == LUATTN_FORWARD && has_parts(p)) {
    const parallel_part *to = &p->part[next_part(p)];
    a.o = &to->o, a.lse = &to->lse, a.saved = to->state.shape != NULL ? &to->state : NULL;
    a.out_f32 = a.q->dtype.bits == 16 ? 1 : a.out_f32;
  }
  if (p->pass == LUATTN_FORWARD) return a;
  if (parallel_gives(p, PARALLEL_KEYS)) a.dk = &stage->tensor[PARALLEL_SIDES + PARALLEL_KEYS];
  if (parallel_gives(p, PARALLEL_VALUES)) a.dv = &stage->tensor[PARALLEL_SIDES + PARALLEL_VALUES];
  if (s == 0) return a;
  if (a.dq != NULL) a.dq = &p->later_dq_tensor;
  a.inputs = p->later_input;
  if (a.scalar_grads != NULL) a.scalar_grads = &p->later_scalars;
  return a;
}

/* ---- forward ---- */

static bool is_last(const parallel_call *p, int s) {
  bool last = true;
  for (int t = s + 1; t < p->chunks.num_stages; ++t) last &= p->chunks.stage[t].taken == 0;
  return last;
}

/* Of what has been merged and the new part, in this order, into the third one, or into the results. */
static luattn_status merge(parallel_call *p, int made, bool last, void *stream, luattn_error *err) {
  const int to = 3 - p->merged - made; /* of 0, 1, 2 */
  parallel_part *of[] = {&p->part[p->merged], &p->part[made]}, *into = &p->part[to];
  const luattn_part parts[] = {{.o = &of[0]->o, .lse = &of[0]->lse}, {.o = &of[1]->o, .lse = &of[1]->lse}};
  const bool has_state = into->state.shape != NULL || of[0]->state.shape != NULL;
  const DLTensor *const states[] = {&of[0]->state, &of[1]->state};
  const luattn_merge_args merge = {.struct_size = sizeof merge,
                                   .parts = parts,
                                   .num_parts = 2,
                                   .o = last ? p->args.o : &into->o,
                                   .lse = last ? p->args.lse : &into->lse,
                                   .spec = p->call.parts,
                                   .states = has_state ? states : NULL,
                                   .state = has_state && !last ? &into->state : NULL,
                                   .saved = last && p->info.num_saved > 0 ? p->args.saved : NULL};
  p->merged = to;
  return luattn_merge(p->engine, &merge, stream, err);
}

static luattn_status compute_forward(parallel_call *p, int s, void *stream, luattn_error *err) {
  const luattn_args args = parallel_stage_args(p, s);
  const int made = next_part(p);
  TRY(luattn_forward(p->engine, parallel_stage_spec(p), &args, stream, err));
  if (!has_parts(p)) return LUATTN_OK;
  if (p->merged >= 0) return merge(p, made, is_last(p, s), stream, err);
  p->merged = made;
  return LUATTN_OK;
}

/* ---- backward ---- */

static luattn_status add(const parallel_call *p, const DLTensor *to, const DLTensor *from, size_t first, size_t count,
                         void *stream, luattn_error *err) {
  const size_t at = first * (to->dtype.bits / 8u);
  return p->transport.add(p->transport.self, data_of(to) + at, data_of(from) + at, count, type_of(to), stream, err);
}

/* Gradients that are sums over scores. What arises once a row is whole in the first stage's. */
static luattn_status add_parameters(const parallel_call *p, void *stream, luattn_error *err) {
  const luattn_args *a = &p->args;
  for (size_t i = 0; i < p->info.num_inputs; ++i)
    for (size_t n = 0; n < a->num_inputs; ++n)
      if (p->later_grad[n].shape != NULL && strcmp(p->info.inputs[i].name, a->inputs[n].name) == 0 &&
          (luattn_spec_parameter(p->spec, i) & LUATTN_PARAMETER_OF_SCORES))
        TRY(add(p, a->inputs[n].grad, &p->later_grad[n], 0, count_of(&p->later_grad[n]), stream, err));
  for (size_t i = 0; i < p->info.num_scalars && a->scalar_grads != NULL; ++i)
    if (luattn_spec_parameter(p->spec, p->info.num_inputs + i) & LUATTN_PARAMETER_OF_SCORES)
      TRY(add(p, a->scalar_grads, &p->later_scalars, i, 1, stream, err));
  return LUATTN_OK;
}

static luattn_status compute_backward(const parallel_call *p, int s, void *stream, luattn_error *err) {
  const luattn_args args = parallel_stage_args(p, s);
  parallel_rows own;
  TRY(luattn_backward(p->engine, p->spec, &args, stream, err));
  if (s == 0) return LUATTN_OK;
  if (p->args.dq != NULL) {
    TRY(parallel_rows_of("dq", p->args.dq, &own, err));
    TRY(parallel_add(&p->transport, &own, 0, &p->later_dq, 0, p->args.dq->shape[2], type_of(p->args.dq), stream, err));
  }
  return add_parameters(p, stream, err);
}

luattn_status parallel_compute(parallel_call *p, int s, void *stream, luattn_error *err) {
  if (p->chunks.stage[s].taken == 0) return LUATTN_OK;
  return p->pass == LUATTN_FORWARD ? compute_forward(p, s, stream, err) : compute_backward(p, s, stream, err);
}

/* ---- where a call has failed ---- */

static luattn_status fill(const parallel_call *p, void *at, size_t bytes, void *stream, luattn_error *err) {
  const engine_place place = engine_get_place(p->engine);
  if (at == NULL || bytes == 0) return LUATTN_OK;
  if (place.driver != NULL) return luattn_device_fill(place.driver, place.device, at, 0xff, bytes, stream, err);
  memset(at, 0xff, bytes);
  return LUATTN_OK;
}

static luattn_status spoil_one(const parallel_call *p, const DLTensor *grad, void *stream, luattn_error *err) {
  if (grad == NULL || grad->data == NULL) return LUATTN_OK;
  return fill(p, data_of(grad), count_of(grad) * (grad->dtype.bits / 8u), stream, err);
}

luattn_status parallel_spoil(const parallel_call *p, int s, void *stream, luattn_error *err) {
  const int64_t count = (int64_t)p->chunks.stage[s].taken * p->call.chunk_rows;
  if (p->pass == LUATTN_FORWARD) return LUATTN_OK;
  for (int side = 0; side < PARALLEL_SIDES; ++side) {
    const parallel_rows *rows = &p->stage[s].rows[PARALLEL_SIDES + side];
    if (!parallel_gives(p, side) || rows->data == NULL) continue;
    for (int64_t i = 0; i < rows->runs[0]; ++i)
      for (int64_t j = 0; j < rows->runs[1]; ++j)
        TRY(fill(p, rows->data + i * rows->step[0] + j * rows->step[1], (size_t)(count * rows->row), stream, err));
  }
  for (size_t i = 0; i < p->args.num_inputs; ++i) TRY(spoil_one(p, p->args.inputs[i].grad, stream, err));
  return spoil_one(p, p->args.scalar_grads, stream, err);
}
