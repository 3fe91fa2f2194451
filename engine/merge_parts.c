/* merge_parts.c: luattn_merge and luattn_merge_backward: on the CPU, or by a kernel that is compiled on first use. */
#include <stdlib.h>

#include "common/host.h"
#include "common/parallel.h"
#include "common/threads.h"
#include "engine/engine.h"
#include "gen/compile/merge_code.h"
#include "gen/cpu/part_merge.h"
#include "runtime/merge_kernel.h"

enum { ROWS_OF_TASK = 64 };

/* ---- on the CPU ---- */

typedef struct rows_job {
  const merge_call *call;
  part_merge_types types;
  bool backward;
  int64_t rows;
} rows_job;

static luattn_status run_rows(void *user, size_t index, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  const rows_job *job = user;
  const int64_t first = (int64_t)index * ROWS_OF_TASK, end = first + ROWS_OF_TASK;
  (void)err;
  part_merge_rows(&job->call->params, &job->types, job->backward, first, end < job->rows ? end : job->rows);
  return LUATTN_OK;
}

static luattn_status run_on_cpu(const merge_call *call, bool backward, luattn_error *err) {
  const LuattnMergeParams *p = &call->params;
  rows_job job = {call, {call->part, call->elem, call->part == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32}, backward,
                  p->rows};
  int threads;
  char wrong[200];
  if (!threads_count(0, 0, &threads, wrong, sizeof wrong)) return luattn_fail(err, LUATTN_INVALID, "luattn_merge: %s", wrong);
  return parallel_run((size_t)((job.rows - 1) / ROWS_OF_TASK + 1), threads, run_rows, NULL, &job, err);
}

/* ---- on a GPU ---- */

void engine_close_merges(engine_merges *m) {
  for (int i = 0; i < 96; ++i) merge_kernel_unload(m->kernel[i / 48][i / 16 % 3][i / 4 % 4][i % 4]);
  merge_kernel_unload(m->page_table);
}

static luattn_status compile(const engine_place *at, luattn_pass pass, const merge_call *call, merge_kernel **kernel,
                             luattn_error *err) {
  static const int most[] = {2, 4, LUATTN_MERGE_MAX};
  const merge_code_target target = {pass, most[call->size], call->part, call->elem, at->arch, at->driver_version, at->nvrtc};
  void *cubin;
  size_t size;
  if (at->never_compile)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_merge: its kernel is compiled by NVRTC, and the engine's never_compile is set; leave it 0");
  TRY(merge_code(&target, &cubin, &size, err));
  const luattn_status status = merge_kernel_load(at->driver, at->device, cubin, "luattn_merge_parts", kernel, err);
  free(cubin);
  return status;
}

/* The kernel for the call's types and parts. Others wait while one is compiled. */
static luattn_status find_kernel(luattn_engine *engine, const engine_place *at, luattn_pass pass, const merge_call *call,
                                 const merge_kernel **out, luattn_error *err) {
  luattn_status status = LUATTN_OK;
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges;
  merge_kernel **slot = &m->kernel[pass == LUATTN_BACKWARD][call->size][call->part][call->elem];
  if (*slot == NULL) status = compile(at, pass, call, slot, err);
  *out = *slot;
  engine_unlock_merges(engine);
  return status;
}

static luattn_status merge(luattn_engine *engine, luattn_pass pass, const luattn_merge_args *args, void *stream,
                           luattn_error *err) {
  const engine_place at = engine_get_place(engine);
  const bool on_cpu = at.driver == NULL;
  const merge_kernel *kernel;
  merge_call call;
  if (on_cpu && stream != NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_merge: stream: is not NULL, and the CPU has none; give NULL");
  TRY(merge_args_fill(args, pass, on_cpu ? LUATTN_CPU : at.device, &call, err));
  if (call.is_empty) return LUATTN_OK;
  if (on_cpu) return run_on_cpu(&call, pass == LUATTN_BACKWARD, err);
  TRY(find_kernel(engine, &at, pass, &call, &kernel, err));
  return merge_kernel_launch(kernel, &call, stream, err);
}

luattn_status luattn_merge(luattn_engine *engine, const luattn_merge_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return merge(engine, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_merge_backward(luattn_engine *engine, const luattn_merge_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return merge(engine, LUATTN_BACKWARD, args, stream, err);
}
