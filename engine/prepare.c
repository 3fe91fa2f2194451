/* prepare.c: compiles kernels before they are needed. */
#include "common/parallel.h"
#include "common/struct_size.h"
#include "engine/engine.h"

typedef struct preparation {
  luattn_engine *engine;
  const luattn_request *request; /* or NULL: */
  const luattn_call *const *call;
  luattn_progress *progress;
  void *user;
} preparation;

static luattn_status prepare_one(void *user, size_t index, luattn_error *err) {
  const preparation *p = user;
  const luattn_request *r = &p->request[index];
  const luattn_kernel *kernel;
  if (r->spec == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_prepare: request %zu: spec is NULL; give one", index);
  if (r->head_dim < 1 || r->head_dim_v < 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_prepare: request %zu: head_dim is %d, head_dim_v %d; give those of q and v", index,
                       r->head_dim, r->head_dim_v);
  luattn_spec_info info;
  luattn_spec_get_info(r->spec, &info);
  const kernel_key key = {.spec = r->spec,
                          .spec_hash = {info.hash[0], info.hash[1]},
                          .pass = r->pass,
                          .dtype = r->dtype,
                          .head_dim = r->head_dim,
                          .head_dim_v = r->head_dim_v != 0 ? r->head_dim_v : r->head_dim,
                          .wants = r->pass == LUATTN_FORWARD ? 0
                                   : r->wants != 0           ? r->wants
                                                             : luattn_spec_wants(r->spec)};
  /* Prepares both classes of lengths, unless one kernel serves both, which the engine knows. */
  kernel_key other = key;
  other.lengths = LUATTN_SHORT;
  luattn_error said = {.status = LUATTN_OK};
  TRY(engine_kernel(p->engine, &key, &kernel, err));
  const luattn_status status = engine_kernel(p->engine, &other, &kernel, &said);
  if (status != LUATTN_OK || err->message[0] == 0) *err = said; /* keeps the first warning */
  return status;
}

static luattn_status prepare_call(void *user, size_t index, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_call, args);
  const preparation *p = user;
  const luattn_kernel *kernel;
  luattn_call call;
  if (p->call[index] == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_prepare_calls: call %zu is NULL; give one", index);
  TRY(struct_take(&rule, "luattn_prepare_calls", p->call[index], &call, err));
  if (call.spec == NULL || call.args == NULL)
    return luattn_fail(err, LUATTN_INVALID, "luattn_prepare_calls: call %zu: %s is NULL; give one", index,
                       call.spec == NULL ? "spec" : "args");
  return luattn_engine_kernel(p->engine, call.spec, call.pass, call.args, &kernel, err);
}

static void tell(void *user, size_t done, size_t count) {
  const preparation *p = user;
  if (p->progress != NULL) p->progress(p->user, done, count);
}

luattn_status luattn_prepare(luattn_engine *engine, const luattn_request *requests, size_t num_requests, int threads,
                             luattn_progress *progress, void *user, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  if (requests == NULL && num_requests > 0) return fail_null(err, __func__, "requests");
  preparation p = {.engine = engine, .request = requests, .progress = progress, .user = user};
  return parallel_run(num_requests, threads, prepare_one, tell, &p, err);
}

luattn_status luattn_prepare_calls(luattn_engine *engine, const luattn_call *const *calls, size_t num_calls,
                                   int threads, luattn_progress *progress, void *user, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  if (calls == NULL && num_calls > 0) return fail_null(err, __func__, "calls");
  preparation p = {.engine = engine, .call = calls, .progress = progress, .user = user};
  return parallel_run(num_calls, threads, prepare_call, tell, &p, err);
}
