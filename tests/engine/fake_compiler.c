#include "tests/engine/fake_compiler.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/fail.h"
#include "gen/analysis/specs/int_range.h"
#include "gen/compile/box_choice.h"
#include "gen/compile/cpu_facts.h"
#include "gen/cpu/append_call.h"
#include "gen/cpu/packed_call.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

luattn_target last_target;
static pthread_mutex_t target_lock = PTHREAD_MUTEX_INITIALIZER;

luattn_status box_call_check(const luattn_spec *spec, const char *place, bool of_keys, const int64_t *extent,
                             luattn_error *err) {
  (void)spec, (void)place, (void)of_keys, (void)extent, (void)err;
  return LUATTN_OK;
}

luattn_status box_choice_find(const luattn_spec *spec, const luattn_target *target, const box_call *of, box_choice *out,
                              luattn_error *err) {
  (void)spec, (void)target, (void)of, (void)err;
  *out = (box_choice){.count = 0};
  return LUATTN_OK;
}

void box_choice_take(const box_choice *choice, luattn_target *target) { (void)choice, (void)target; }

void box_choice_explain(const luattn_spec *spec, const box_choice *choice, char *text, size_t size) {
  (void)spec, (void)choice, (void)size;
  text[0] = 0;
}

luattn_status luattn_compile(const luattn_spec *spec, const luattn_target *target, luattn_image **image,
                             luattn_compile_report *report, luattn_error *err) {
  luattn_spec *s = (luattn_spec *)(uintptr_t)spec;
  assert_non_null(report);
  pthread_mutex_lock(&target_lock);
  last_target = *target;
  pthread_mutex_unlock(&target_lock);
  const struct timespec pause = {.tv_nsec = 20000000}; /* long enough for every thread to arrive */
  nanosleep(&pause, NULL);
  const int number = atomic_fetch_add(&s->compilations, 1);
  if (atomic_fetch_sub(&s->failures_left, 1) > 0) return luattn_fail(err, LUATTN_COMPILE, "attempt %d failed", number);
  report->every_length = !s->by_length;
  snprintf(report->plan, sizeof report->plan, "planned for %s lengths\n",
           target->lengths == LUATTN_SHORT ? "short" : "long");
  problem p;
  problem_open(&p, target->pass);
  p.info.dtype = target->dtype;
  p.info.head_dim = (uint32_t)target->head_dim;
  p.info.wants = target->wants;
  if (target->decode == 1 || (target->decode == 2 && s->has_decode)) p.info.decode = 1, p.info.num_state[0] = 2;
  if (target->packed) { /* not supported for packed sequences */
    p.info.packed = 1;
    p.info.num_inputs = p.info.num_stats = p.info.has_key_mod = 0;
  }
  *image = problem_image(&p);
  problem_close(&p);
  return LUATTN_OK;
}

luattn_status luattn_cpu_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  (void)spec, (void)args;
  return luattn_fail(err, LUATTN_INTERNAL, "the CPU path is not played");
}

luattn_status luattn_cpu_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return luattn_cpu_forward(spec, args, err);
}

luattn_status luattn_cpu_forward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return luattn_cpu_forward(spec, args, err);
}
luattn_status luattn_cpu_backward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return luattn_cpu_forward(spec, args, err);
}
luattn_status cpu_packed_forward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                     luattn_error *err) {
  (void)tangents;
  return luattn_cpu_forward(spec, args, err);
}
luattn_status cpu_packed_backward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                      luattn_error *err) {
  (void)tangents;
  return luattn_cpu_forward(spec, args, err);
}
luattn_status luattn_cpu_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                 luattn_error *err) {
  (void)weights;
  return luattn_cpu_forward(spec, args, err);
}
luattn_status cpu_packed_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                 luattn_error *err) {
  (void)weights;
  return luattn_cpu_forward(spec, args, err);
}
luattn_status cpu_packed_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return luattn_cpu_forward(spec, args, err);
}

luattn_status cpu_packed_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return luattn_cpu_forward(spec, args, err);
}

/* Specs here have no hooks. */
unsigned int_range_inputs(const luattn_spec *spec, int_range_hooks hooks) {
  (void)spec, (void)hooks;
  return 0;
}

bool int_range_warning(const luattn_spec *spec, int input, int_range_hooks hooks, const DLTensor *values,
                       char text[INT_RANGE_TEXT]) {
  (void)spec, (void)input, (void)hooks, (void)values, (void)text;
  return false;
}

luattn_status cpu_append(const luattn_spec *spec, const luattn_append_args *args, luattn_error *err) {
  (void)spec, (void)args;
  return luattn_fail(err, LUATTN_INTERNAL, "not of this test");
}
luattn_status cpu_facts(const luattn_spec *spec, const luattn_target *target, bool relaxed, image_manifest *out,
                        char *why, size_t size, luattn_error *err) {
  (void)target, (void)relaxed, (void)out, (void)why, (void)size;
  return luattn_cpu_forward(spec, NULL, err);
}

void luattn_spec_get_info(const luattn_spec *spec, luattn_spec_info *info) {
  static const luattn_input_info inputs[1] = {{.grad = 1}};
  *info = (luattn_spec_info){.name = "demo",
                             .num_inputs = 1,
                             .inputs = inputs,
                             .num_scalars = 2,
                             .hash = {spec->hash != 0 ? spec->hash : 7, 8}};
}

luattn_form luattn_spec_form(const luattn_spec *spec) {
  (void)spec;
  return LUATTN_FORM_ATTENTION;
}

int luattn_spec_modifies_keys(const luattn_spec *spec) {
  (void)spec;
  return 0;
}

int luattn_spec_grid(const luattn_spec *spec, const char *const **names) {
  (void)spec, (void)names;
  return 0;
}
unsigned luattn_spec_wants(const luattn_spec *spec) {
  (void)spec;
  return LUATTN_WANT_ALL; /* gradients of the inputs and scalars above */
}

luattn_engine *open_engine(void) {
  luattn_engine *engine = NULL;
  luattn_error err;
  const luattn_engine_options options = {.struct_size = sizeof options, .device = 0, .cache_dir = "/cache"};
  if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
  fake_reset();
  return engine;
}

int everything_given_back(void **state) {
  (void)state;
  const fake_live_counts live = fake_live();
  return live.contexts + live.modules + live.allocations + live.events;
}
