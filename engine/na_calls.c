/* na_calls.c: luattn_na_qk, luattn_na_av and their gradients: on the CPU, or by a kernel that is compiled on first use. */
#include <stdlib.h>

#include "common/host.h"
#include "common/parallel.h"
#include "common/threads.h"
#include "engine/engine.h"
#include "gen/compile/merge_code.h"
#include "gen/cpu/na_rows.h"
#include "runtime/call/na_args.h"
#include "runtime/parts/merge_kernel.h"

enum { ROWS_OF_TASK = 16, THREADS = 128 /* na_taps_threads of templates/around/after/na_taps.cuh */, LANES = 32 };

typedef struct rows_job {
  const LuattnNaParams *step;
  const na_call *call;
} rows_job;

static luattn_status run_rows(void *user, size_t index, luattn_error *err) {
  HOST_FLOATS_SCOPE;
  (void)err;
  const rows_job *job = user;
  const int64_t first = (int64_t)index * ROWS_OF_TASK, end = first + ROWS_OF_TASK, rows = job->step->rows;
  na_taps_rows(job->step, job->call->type, job->call->real, first, end < rows ? end : rows);
  return LUATTN_OK;
}

static luattn_status run_on_cpu(const char *name, const na_call *call, luattn_error *err) {
  int threads;
  char wrong[200];
  if (!threads_count(0, 0, &threads, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "%s: %s", name, wrong);
  for (int i = 0; i < call->count; i++) {
    rows_job job = {&call->step[i], call};
    TRY(parallel_run((size_t)((job.step->rows - 1) / ROWS_OF_TASK + 1), threads, run_rows, NULL, &job, err));
  }
  return LUATTN_OK;
}

static luattn_status compile(const char *name, const engine_place *at, luattn_dtype type, merge_kernel **kernel,
                             luattn_error *err) {
  void *cubin;
  size_t size;
  if (at->never_compile)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: its kernel is compiled by NVRTC, and the engine's never_compile is set; leave it 0", name);
  TRY(na_taps_code(type, at->arch, at->driver_version, at->nvrtc, &cubin, &size, err));
  const luattn_status status = merge_kernel_load(at->driver, at->device, cubin, "luattn_na_taps", kernel, err);
  free(cubin);
  return status;
}

/* Others wait while it is compiled. */
static luattn_status find_kernel(const char *name, luattn_engine *engine, const engine_place *at, luattn_dtype type,
                                 const merge_kernel **out, luattn_error *err) {
  luattn_status status = LUATTN_OK;
  engine_merges *m = engine_lock_merges(engine);
  m->close = engine_close_merges;
  if (m->na_taps[type] == NULL) status = compile(name, at, type, &m->na_taps[type], err);
  *out = m->na_taps[type];
  engine_unlock_merges(engine);
  return status;
}

static luattn_status launch(const char *name, const merge_kernel *kernel, const na_call *call, void *stream,
                            luattn_error *err) {
  luattn_status status = LUATTN_OK;
  TRY(merge_kernel_enter(kernel, err));
  for (int i = 0; i < call->count && status == LUATTN_OK; i++) {
    LuattnNaParams p = call->step[i];
    void *params[] = {&p};
    const int each = THREADS / LANES,
              result = merge_kernel_start(kernel, (unsigned)((p.rows - 1) / each + 1), THREADS, params, stream);
    if (result != 0) status = merge_kernel_fail(kernel, result, name, p.rows, err);
  }
  merge_kernel_leave(kernel);
  return status;
}

static luattn_status run(const char *name, luattn_engine *engine, const engine_place *at, const na_call *call,
                         void *stream, luattn_error *err) {
  const merge_kernel *kernel;
  if (at->driver == NULL && stream != NULL)
    return luattn_fail(err, LUATTN_INVALID, "%s: stream: is not NULL, and the CPU has none; give NULL", name);
  if (call->count == 0) return LUATTN_OK;
  if (at->driver == NULL) return run_on_cpu(name, call, err);
  TRY(find_kernel(name, engine, at, call->type, &kernel, err));
  return launch(name, kernel, call, stream, err);
}

static luattn_status qk(luattn_engine *engine, luattn_pass pass, const luattn_na_qk_args *args, void *stream,
                        luattn_error *err) {
  const engine_place at = engine_get_place(engine);
  na_call call;
  TRY(na_qk_fill(args, pass, at.driver == NULL ? LUATTN_CPU : at.device, &call, err));
  return run(pass == LUATTN_FORWARD ? "luattn_na_qk" : "luattn_na_qk_backward", engine, &at, &call, stream, err);
}

static luattn_status av(luattn_engine *engine, luattn_pass pass, const luattn_na_av_args *args, void *stream,
                        luattn_error *err) {
  const engine_place at = engine_get_place(engine);
  na_call call;
  TRY(na_av_fill(args, pass, at.driver == NULL ? LUATTN_CPU : at.device, &call, err));
  return run(pass == LUATTN_FORWARD ? "luattn_na_av" : "luattn_na_av_backward", engine, &at, &call, stream, err);
}

luattn_status luattn_na_qk(luattn_engine *engine, const luattn_na_qk_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return qk(engine, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_na_qk_backward(luattn_engine *engine, const luattn_na_qk_args *args, void *stream,
                                    luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return qk(engine, LUATTN_BACKWARD, args, stream, err);
}

luattn_status luattn_na_av(luattn_engine *engine, const luattn_na_av_args *args, void *stream, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return av(engine, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_na_av_backward(luattn_engine *engine, const luattn_na_av_args *args, void *stream,
                                    luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(engine);
  NEED(args);
  return av(engine, LUATTN_BACKWARD, args, stream, err);
}
