/* merge_parts.c: luattn_merge and luattn_merge_backward, by lse or by state: on the CPU, or by a kernel that is
 * compiled on first use. */
#include <stdlib.h>
#include <string.h>

#include "common/host.h"
#include "common/parallel.h"
#include "common/threads.h"
#include "engine/engine.h"
#include "gen/compile/merge_code.h"
#include "gen/cpu/part_merge.h"
#include "runtime/parts/merge_kernel.h"

enum { ROWS_OF_TASK = 64 };

/* ---- on the CPU ---- */

typedef struct rows_job {
  const merge_call *call;
  const state_merge *by_state; /* NULL: by lse */
  part_merge_types types;
  bool backward;
  int64_t rows;
} rows_job;

static luattn_status run_rows(void *user, size_t index, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  const rows_job *job = user;
  const int64_t first = (int64_t)index * ROWS_OF_TASK, end = first + ROWS_OF_TASK;
  const int64_t last = end < job->rows ? end : job->rows;
  if (job->by_state != NULL) return state_merge_rows(job->by_state, &job->call->params, &job->types, first, last, err);
  part_merge_rows(&job->call->params, &job->types, job->backward, first, last);
  return LUATTN_OK;
}

static luattn_status run_on_cpu(const merge_call *call, const luattn_spec *spec, bool backward, luattn_error *err) {
  const LuattnMergeParams *p = &call->params;
  state_merge *by_state = NULL;
  rows_job job = {
      call, NULL, {call->part, call->elem, call->part == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32}, backward, p->rows};
  int threads;
  char wrong[200];
  if (!threads_count(0, 0, &threads, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "luattn_merge: %s", wrong);
  if (spec != NULL) TRY(state_merge_open(spec, &by_state, err));
  job.by_state = by_state;
  const luattn_status status =
      parallel_run((size_t)((job.rows - 1) / ROWS_OF_TASK + 1), threads, run_rows, NULL, &job, err);
  state_merge_close(by_state);
  return status;
}

/* ---- on a GPU ---- */

/* Of one spec of parts, by its hash: the spec may be freed before. */
typedef struct state_kernel {
  struct state_kernel *next;
  uint64_t hash[2];
  merge_kernel *kernel[3][4][4]; /* as engine_merges.kernel */
} state_kernel;

static void close_by_state(state_kernel *s) {
  while (s != NULL) {
    state_kernel *next = s->next;
    for (int i = 0; i < 48; ++i) merge_kernel_unload(s->kernel[i / 16][i / 4 % 4][i % 4]);
    free(s);
    s = next;
  }
}

/* What luattn_spec_merges said of a spec, which may be freed before. */
typedef struct lse_verdict {
  struct lse_verdict *next;
  uint64_t hash[2];
  bool merges;
} lse_verdict;

static void close_by_lse(lse_verdict *v) {
  while (v != NULL) {
    lse_verdict *next = v->next;
    free(v);
    v = next;
  }
}

void engine_close_merges(engine_merges *m) {
  close_by_state(m->by_state);
  close_by_lse(m->by_lse);
  for (int i = 0; i < 96; ++i) merge_kernel_unload(m->kernel[i / 48][i / 16 % 3][i / 4 % 4][i % 4]);
  merge_kernel_unload(m->page_table);
  for (int i = 0; i < 4; ++i) merge_kernel_unload(m->na_taps[i]);
  if (m->na_specs != NULL) m->close_na_specs(m->na_specs);
}

static luattn_status compile(const engine_place *at, luattn_pass pass, const merge_call *call, const luattn_spec *spec,
                             merge_kernel **kernel, luattn_error *err) {
  static const int most[] = {2, 4, LUATTN_MERGE_MAX};
  const merge_code_target target = {pass,     most[call->size],   call->part, call->elem,
                                    at->arch, at->driver_version, at->nvrtc,  spec};
  void *cubin;
  size_t size;
  if (at->never_compile)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "luattn_merge: its kernel is compiled by NVRTC, and the engine's never_compile is set; leave it 0");
  TRY(merge_code(&target, &cubin, &size, err));
  const luattn_status status = merge_kernel_load(at->driver, at->device, cubin, "luattn_merge_parts", kernel, err);
  free(cubin);
  return status;
}

luattn_status engine_merges_by_lse(luattn_engine *engine, const luattn_spec *spec, bool *out, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  *out = false;
  if (!info.has_lse || info.num_saved > 0) return LUATTN_OK;
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges;
  lse_verdict *v = m->by_lse;
  while (v != NULL && (v->hash[0] != info.hash[0] || v->hash[1] != info.hash[1])) v = v->next;
  if (v == NULL) {
    luattn_error said;
    const luattn_status found = luattn_spec_merges(spec, &said);
    v = calloc(1, sizeof *v);
    if (v == NULL || found == LUATTN_NO_MEMORY) {
      free(v);
      engine_unlock_merges(engine);
      return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_parallel: out of memory");
    }
    *v = (lse_verdict){m->by_lse, {info.hash[0], info.hash[1]}, found == LUATTN_OK};
    m->by_lse = v;
  }
  *out = v->merges;
  engine_unlock_merges(engine);
  return LUATTN_OK;
}

/* Where the kernel is kept; NULL: out of memory. */
static merge_kernel **slot_of(engine_merges *m, luattn_pass pass, const merge_call *call, const uint64_t *hash) {
  if (hash == NULL) return &m->kernel[pass == LUATTN_BACKWARD][call->size][call->part][call->elem];
  state_kernel *s = m->by_state;
  while (s != NULL && (s->hash[0] != hash[0] || s->hash[1] != hash[1])) s = s->next;
  if (s == NULL) {
    s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->hash[0] = hash[0], s->hash[1] = hash[1];
    s->next = m->by_state;
    m->by_state = s;
  }
  return &s->kernel[call->size][call->part][call->elem];
}

/* The kernel for the call's types and parts. Others wait while one is compiled. */
static luattn_status find_kernel(luattn_engine *engine, const engine_place *at, luattn_pass pass,
                                 const merge_call *call, const luattn_spec *spec, const uint64_t *hash,
                                 const merge_kernel **out, luattn_error *err) {
  luattn_status status = LUATTN_OK;
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges;
  merge_kernel **slot = slot_of(m, pass, call, spec == NULL ? NULL : hash);
  if (slot == NULL) status = luattn_fail(err, LUATTN_NO_MEMORY, "luattn_merge: out of memory");
  if (slot != NULL && *slot == NULL) status = compile(at, pass, call, spec, slot, err);
  *out = slot == NULL ? NULL : *slot;
  engine_unlock_merges(engine);
  return status;
}

/* What the spec of a merge by state says. */
static luattn_status find_rows(const luattn_merge_args *args, luattn_pass pass, merge_code_rows *out,
                               luattn_error *err) {
  memset(out, 0, sizeof *out);
  if (args->spec == NULL) return LUATTN_OK;
  TRY(merge_code_get_rows(args->spec, out, err));
  if (pass == LUATTN_FORWARD && args->saved != NULL && out->whole_rows)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_merge: saved: is given, and backward of %s takes a row pass, which needs all keys of a "
                       "row in one call; give NULL, and call "
                       "luattn_backward with all keys",
                       out->name);
  if (pass == LUATTN_FORWARD) return LUATTN_OK;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "luattn_merge_backward: spec: is %s, and a merge by state has no gradient of its own; call "
                     "luattn_backward of the spec that its parts "
                     "were made of, for each part's keys, with o, lse and saved of the merge",
                     out->name);
}

static luattn_status merge(luattn_engine *engine, luattn_pass pass, const luattn_merge_args *given, void *stream,
                           luattn_error *err) {
  const engine_place at = engine_get_place(engine);
  const bool on_cpu = at.driver == NULL;
  const merge_kernel *kernel;
  luattn_merge_args args;
  merge_code_rows rows;
  merge_call call;
  if (on_cpu && stream != NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_merge: stream: is not NULL, and the CPU has none; give NULL");
  TRY(merge_args_take(given, pass, &args, err));
  TRY(find_rows(&args, pass, &rows, err));
  TRY(merge_args_fill(&args, pass, on_cpu ? LUATTN_CPU : at.device, &(merge_rows){rows.num_rows, rows.num_saved}, &call,
                      err));
  if (call.is_empty) return LUATTN_OK;
  if (on_cpu) return run_on_cpu(&call, args.spec, pass == LUATTN_BACKWARD, err);
  TRY(find_kernel(engine, &at, pass, &call, args.spec, rows.hash, &kernel, err));
  return merge_kernel_launch(kernel, &call, stream, err);
}

luattn_status luattn_merge(luattn_engine *engine, const luattn_merge_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return merge(engine, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_merge_backward(luattn_engine *engine, const luattn_merge_args *args, void *stream,
                                    luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return merge(engine, LUATTN_BACKWARD, args, stream, err);
}
