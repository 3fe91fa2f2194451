/* parallel_calls.c: luattn_parallel_forward and luattn_parallel_backward: keys that a rank needs come, all before its call over
 * chunks of the whole, or in stages, each with a call of its own; and gradients of keys go back to their owners. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/need_attention.h"
#include "common/struct_size.h"
#include "engine/parallel_call.h"
#include "gen/compile/merge_code.h"
#include "runtime/call/stream_order.h"

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
  return LUATTN_OK;
}

static bool has_axis(const luattn_input_info *input, int32_t axis) {
  bool has = false;
  for (uint32_t i = 0; i < input->num_axes; ++i) has |= input->axis[i] == axis;
  return has;
}

static luattn_status check_args(const parallel_call *p, luattn_error *err) {
  const luattn_args *a = &p->args;
  if (a->batch != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_parallel: batch: is given; packed sequences, pages and offsets have no ranks yet: say "
                       "documents by an input of the spec, and leave it NULL");
  TRY(parallel_check_rows(p, "q", a->q, NULL, err));
  TRY(parallel_check_rows(p, "k", a->k, a->q, err));
  TRY(parallel_check_rows(p, "v", a->v, a->q, err));
  if (a->num_inputs > PARALLEL_MOST_INPUTS)
    return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: inputs: are %zu, and specs have at most %d",
                       a->num_inputs, PARALLEL_MOST_INPUTS);
  for (size_t i = 0; i < p->info.num_inputs; ++i)
    if (has_axis(&p->info.inputs[i], LUATTN_AXIS_KV))
      return luattn_fail(
          err, LUATTN_UNSUPPORTED,
          "luattn_parallel: input '%s': has an axis kv, whose rows do not travel yet; give it whole along "
          "a free axis, as axes = {\"n\"}",
          p->info.inputs[i].name);
  const bool is_half = a->q->dtype.bits == 16;
  if (p->pass == LUATTN_BACKWARD && is_half && a->grad_f32 != 1)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_parallel: grad_f32: is %d; gradients of half-precision keys are added up in float32: give "
        "dq, dk and dv in float32, and 1",
        a->grad_f32);
  return LUATTN_OK;
}

/* ---- the order of keys ---- */

/* Why forward's parts of rows do not merge; NULL: they do. */
static luattn_status ask_forward(const parallel_call *p, const char **why, luattn_error *err) {
  bool by_lse;
  merge_code_rows rows;
  *why = NULL;
  if (p->args.large_scores != 0) {
    *why = "large_scores saves numbers of whole rows";
  } else if (p->call.parts != NULL) {
    TRY(merge_code_get_rows(p->call.parts, &rows, err));
    if (memcmp(rows.whole_hash, p->info.hash, sizeof rows.whole_hash) != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "luattn_parallel: parts: is made of another spec than '%s'; give what luattn_spec_parts makes "
                         "of this one",
                         p->info.name);
    if (rows.whole_rows && p->args.saved != NULL) *why = "its backward takes a row pass, which needs all keys of a row";
  } else {
    TRY(engine_merges_by_lse(p->engine, p->spec, &by_lse, err));
    if (!by_lse) *why = "parts of its rows do not merge by lse: give `parts` (luattn_spec_parts)";
  }
  return LUATTN_OK;
}

/* Why backward's stages do not add up; NULL: they do. */
static const char *ask_backward(const parallel_call *p) {
  const unsigned both = LUATTN_PARAMETER_OF_SCORES | LUATTN_PARAMETER_OF_ROWS;
  if (luattn_spec_row_passes(p->spec) > 0) return "its backward takes a row pass, which needs all keys of a row";
  for (size_t i = 0; i < p->info.num_inputs + p->info.num_scalars; ++i)
    if ((luattn_spec_parameter(p->spec, i) & both) == both)
      return "a gradient of its parameters has terms of scores and of rows, which parts do not tell apart";
  return NULL;
}

/* A function of what all ranks give alike, as they exchange keys in the order that it says. */
static luattn_status choose_order(parallel_call *p, luattn_error *err) {
  const int schedule = p->call.schedule;
  const char *why;
  if (schedule < LUATTN_SCHEDULE_AUTO || schedule > LUATTN_SCHEDULE_GATHERED)
    return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: schedule: is %d, expected a luattn_schedule, 0 to %d",
                       schedule, LUATTN_SCHEDULE_GATHERED);
  p->gathered = schedule != LUATTN_SCHEDULE_STAGES;
  if (p->gathered) return LUATTN_OK;
  if (p->pass == LUATTN_FORWARD)
    TRY(ask_forward(p, &why, err));
  else
    why = ask_backward(p);
  if (why == NULL) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "luattn_parallel: schedule: is LUATTN_SCHEDULE_STAGES, and of '%s' %s; give "
                     "LUATTN_SCHEDULE_GATHERED",
                     p->info.name, why);
}

/* ---- calls ---- */

/* Checks the arguments, and places what the call needs in the workspace. */
static luattn_status open_call(parallel_call *p, const luattn_args *args, const luattn_parallel_call *call, bool sizing,
                               luattn_error *err) {
  static const struct_rule of_call = STRUCT_RULE(luattn_parallel_call, workspace),
                           of_args = STRUCT_RULE(luattn_args, o);
  TRY(struct_take(&of_call, "luattn_parallel", call, &p->call, err));
  TRY(struct_take(&of_args, "luattn_parallel", args, &p->args, err));
  luattn_spec_get_info(p->spec, &p->info);
  if (!sizing) p->memory = p->call.workspace;
  if ((uintptr_t)p->memory % 256 != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_parallel: workspace: address %p is not a multiple of 256 bytes; align it",
                       p->call.workspace);
  TRY(check_call(p, err));
  TRY(choose_order(p, err));
  TRY(parallel_chunks_open(&p->call, p->gathered, &p->chunks, err));
  TRY(check_args(p, err));
  p->first = malloc(((size_t)p->chunks.own + (size_t)p->call.chunks) * sizeof *p->first);
  if (p->first == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_parallel: out of memory");
  return parallel_place_stages(p, err);
}

static void close_call(parallel_call *p) {
  parallel_close_stages(p);
  parallel_chunks_close(&p->chunks);
  free(p->first);
}

/* The most that a stage's call needs. */
static luattn_status engine_bytes(parallel_call *p, size_t *size, luattn_error *err) {
  size_t of_stage;
  *size = 0;
  p->args.workspace = NULL, p->args.workspace_size = 0;
  for (int s = 0; s < p->chunks.num_stages; ++s) {
    const luattn_args args = parallel_stage_args(p, s);
    if (p->chunks.stage[s].taken == 0) continue;
    TRY(luattn_engine_workspace_size(p->engine, parallel_stage_spec(p), p->pass, &args, &of_stage, err));
    if (of_stage > *size) *size = of_stage;
  }
  return LUATTN_OK;
}

/* Where the engine computes, and the stream that rows travel on. */
typedef struct parallel_streams {
  engine_place at;
  void *calls, *copies;
} parallel_streams;

static luattn_status refuse_capture(const parallel_streams *on, luattn_error *err) {
  void *const stream[] = {on->calls, on->copies};
  for (int i = 0; i < 2; ++i) {
    bool captured;
    TRY(stream_is_captured(on->at.driver, on->at.device, stream[i], &captured, err));
    if (captured)
      return luattn_fail(
          err, LUATTN_UNSUPPORTED,
          "luattn_parallel: %s: is being captured into a CUDA graph, whose replays would read host memory "
          "that the call frees; call it outside of the capture",
          i == 0 ? "stream" : "copies");
  }
  return LUATTN_OK;
}

static luattn_status follow(const parallel_streams *on, void *later, void *earlier, luattn_error *err) {
  return on->at.driver == NULL ? LUATTN_OK : stream_follow(on->at.driver, on->at.device, later, earlier, err);
}

/* A stage's call. Where one fails, this rank goes on with what travels, as others wait for it, and what it returns to them
 * is NaN. */
static luattn_status compute(parallel_call *p, int s, void *stream, luattn_error *err) {
  luattn_error said = {.status = LUATTN_OK};
  if (p->failed == LUATTN_OK) p->failed = parallel_compute(p, s, stream, &said);
  if (p->failed == LUATTN_OK) {
    if (err != NULL && said.message[0] != 0) *err = said;
    return LUATTN_OK;
  }
  if (p->said.message[0] == 0) p->said = said;
  return parallel_spoil(p, s, stream, err);
}

/* While a stage computes, keys of the next one come, and gradients of the one before go back. */
static luattn_status run_stages(parallel_call *p, const parallel_streams *on, luattn_error *err) {
  const int stages = p->chunks.num_stages;
  TRY(follow(on, on->copies, on->calls, err));
  TRY(parallel_gather(p, 0, on->copies, err));
  for (int s = 0; s <= stages; ++s) {
    TRY(follow(on, on->calls, on->copies, err));
    TRY(follow(on, on->copies, on->calls, err));
    if (s + 1 < stages) TRY(parallel_gather(p, s + 1, on->copies, err));
    if (s > 0 && p->pass == LUATTN_BACKWARD) TRY(parallel_return(p, s - 1, on->copies, err));
    if (s < stages) TRY(compute(p, s, on->calls, err));
  }
  TRY(follow(on, on->calls, on->copies, err));
  return p->pass == LUATTN_BACKWARD ? parallel_sum_whole(p, on->calls, err) : LUATTN_OK;
}

static luattn_status run(parallel_call *p, void *stream, luattn_error *err) {
  const parallel_streams on = {engine_get_place(p->engine), stream, p->call.copies != NULL ? p->call.copies : stream};
  size_t size;
  if (on.at.driver == NULL && p->call.copies != NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_parallel: copies: is not NULL, and the CPU has no streams");
  if (on.at.driver != NULL) TRY(refuse_capture(&on, err));
  TRY(engine_bytes(p, &size, err));
  if (p->call.workspace_size < (size_t)p->used + size || p->memory == NULL)
    return luattn_fail(
        err, LUATTN_INVALID,
        "luattn_parallel: workspace: has %zu bytes, expected %zu; luattn_parallel_workspace_size gives the "
        "size",
        p->call.workspace_size, (size_t)p->used + size);
  p->args.workspace = size > 0 ? p->memory + p->used : NULL, p->args.workspace_size = size;
  for (int s = 0; s < p->chunks.num_stages && on.at.driver != NULL; ++s) {
    const parallel_stage *stage = &p->stage[s];
    if (stage->batch != NULL)
      TRY(luattn_batch_prepare(stage->batch, on.at.driver, on.at.device, stage->batch_memory, stage->batch_size, stream,
                               err));
  }
  TRY(run_stages(p, &on, err));
  if (p->failed != LUATTN_OK && err != NULL) *err = p->said;
  return p->failed;
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
