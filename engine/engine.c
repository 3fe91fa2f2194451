/* engine.c: opens engines, and launches their kernels. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/fail.h"
#include "engine/box_memory.h"
#include "engine/kernel_slots.h"
#include "gen/compile/box_choice.h"

struct luattn_engine {
  engine_setup how;
  kernel_slots kernels;
  box_memory *boxes;
  pthread_mutex_t merges_lock; /* guards `merges` */
  engine_merges merges;
};

luattn_status luattn_engine_open(const luattn_engine_options *options, luattn_engine **engine, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  luattn_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: out of memory");
  e->boxes = box_memory_open();
  if (e->boxes == NULL) goto fail_boxes;
  if (!kernel_slots_open(&e->kernels, &e->how)) goto fail_slots;
  if (pthread_mutex_init(&e->merges_lock, NULL) != 0) goto fail_merges;
  const luattn_status status = engine_setup_open(&e->how, options, err);
  if (status != LUATTN_OK) {
    luattn_engine_close(e);
    return status;
  }
  *engine = e;
  return LUATTN_OK;

fail_merges:
  kernel_slots_close(&e->kernels);
fail_slots:
  box_memory_close(e->boxes);
fail_boxes:
  free(e);
  return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_engine_open: cannot create a lock");
}

void luattn_engine_close(luattn_engine *engine) {
  if (engine == NULL) return;
  kernel_slots_close(&engine->kernels);
  if (engine->merges.close != NULL) engine->merges.close(&engine->merges);
  engine_setup_close(&engine->how);
  box_memory_close(engine->boxes);
  pthread_mutex_destroy(&engine->merges_lock);
  free(engine);
}

luattn_status luattn_engine_forget(luattn_engine *engine, const luattn_spec *spec, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  box_memory_forget(engine->boxes, spec);
  return kernel_slots_forget(&engine->kernels, spec, err);
}

engine_place engine_get_place(const luattn_engine *engine) {
  const engine_setup *e = &engine->how;
  return (engine_place){.driver = e->driver,
                        .device = e->device,
                        .arch = e->arch,
                        .driver_version = e->driver_version,
                        .nvrtc = e->nvrtc,
                        .never_compile = e->never_compile,
                        .cpu_relaxed = e->cpu_relaxed,
                        .names_family = e->family != 0,
                        .deterministic = e->deterministic,
                        .multiprocessors = e->multiprocessors,
                        .family = e->family,
                        .boxes = engine->boxes,
                        .cache_dir = e->cache_dir,
                        .tuned_for = e->no_tuned || e->num_packs > 0 ? NULL : e->device_name};
}

engine_merges *engine_lock_merges(luattn_engine *engine) {
  pthread_mutex_lock(&engine->merges_lock);
  return &engine->merges;
}

void engine_unlock_merges(luattn_engine *engine) { pthread_mutex_unlock(&engine->merges_lock); }

luattn_driver *luattn_engine_driver(luattn_engine *engine) { return engine != NULL ? engine->how.driver : NULL; }

luattn_status engine_kernel(luattn_engine *engine, const kernel_key *key, const luattn_kernel **kernel,
                            luattn_error *err) {
  const slot *s;
  TRY(kernel_slots_ready(&engine->kernels, key, &s, err));
  *kernel = s->kernel; /* a ready slot never changes */
  return LUATTN_OK;
}

/* Over a grid: refuses extents that no kernel of the spec takes before one is compiled. A launch checks them again, and what
 * else there is; calls that are prepared may have none yet. */
static luattn_status check_extents(const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                                   luattn_error *err) {
  const int axes = luattn_spec_grid(spec, NULL);
  for (int of_keys = 0; axes > 1 && of_keys < 2; ++of_keys) {
    const DLTensor *t = of_keys ? args->k : args->q;
    if (t != NULL && t->shape != NULL && t->ndim == 3 + axes)
      TRY(box_call_check(spec, kernel_pass_name(pass), of_keys, t->shape + 2, err));
  }
  return LUATTN_OK;
}

/* Returns the kernel of a launch. */
static luattn_status kernel_of(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                               const luattn_args *args, const luattn_kernel **kernel, luattn_error *err) {
  kernel_key key;
  const engine_place at = engine_get_place(engine);
  TRY(engine_key(&at, spec, pass, args, false, &key, err));
  TRY(check_extents(spec, pass, args, err));
  return engine_kernel(engine, &key, kernel, err);
}

luattn_status luattn_engine_kernel(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                   const luattn_args *args, const luattn_kernel **kernel, luattn_error *err) {
  kernel_key key;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(kernel);
  const engine_place at = engine_get_place(engine);
  TRY(engine_key(&at, spec, pass, args, true, &key, err));
  return engine_kernel(engine, &key, kernel, err);
}

luattn_status luattn_engine_plan(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                 const luattn_args *args, const char **plan, luattn_error *err) {
  kernel_key key;
  const slot *s;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(plan);
  const engine_place at = engine_get_place(engine);
  TRY(engine_key(&at, spec, pass, args, false, &key, err));
  TRY(kernel_slots_ready(&engine->kernels, &key, &s, err));
  *plan = s->plan;
  return LUATTN_OK;
}

luattn_status luattn_engine_choice(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                   const luattn_args *args, char *text, size_t size, luattn_error *err) {
  kernel_key key;
  const slot *s;
  luattn_args taken;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(text);
  if (size == 0) return luattn_fail(err, LUATTN_INVALID, "luattn_engine_choice: size: is 0, expected room for a text");
  const engine_place at = engine_get_place(engine);
  TRY(engine_key(&at, spec, pass, args, false, &key, err));
  TRY(kernel_slots_ready(&engine->kernels, &key, &s, err));
  TRY(choices_take(args, kernel_pass_name(pass), &taken, err));
  if (luattn_spec_grid(spec, NULL) <= 1)
    choice_explain(&at, pass, &taken, key.decode != 0 && !s->is_fallback, text, size);
  else if (taken.query_tile_size == 0 && taken.key_tile_size == 0)
    box_memory_explain(&at, taken.q, taken.k, &key, text, size);
  else
    text[0] = 0;
  return LUATTN_OK;
}

luattn_status engine_tell(luattn_status status, const luattn_error *said, luattn_error *err) {
  if (err == NULL) return status;
  if (status != LUATTN_OK || err->message[0] == 0) *err = *said;
  return status;
}

luattn_status luattn_engine_workspace_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass,
                                           const luattn_args *args, size_t *size, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(size);
  TRY(kernel_of(engine, spec, pass, args, &kernel, err));
  return engine_tell(luattn_workspace_size(kernel, args, size, &said), &said, err);
}

static luattn_status run_pass(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, const luattn_args *args,
                              void *stream, luattn_error *err) {
  const luattn_kernel *kernel;
  luattn_error said;
  TRY(kernel_of(engine, spec, pass, args, &kernel, err));
  const engine_place at = engine_get_place(engine);
  luattn_status status = luattn_launch(kernel, args, stream, &said);
  if (status == LUATTN_OK) status = engine_check_ints(&at, spec, args, stream, &said);
  return engine_tell(status, &said, err);
}

luattn_status luattn_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                             luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  return run_pass(engine, spec, LUATTN_FORWARD, args, stream, err);
}

luattn_status luattn_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_args *args, void *stream,
                              luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED_ATTENTION(spec);
  NEED(args);
  return run_pass(engine, spec, LUATTN_BACKWARD, args, stream, err);
}
