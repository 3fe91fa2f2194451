/* check_ints_test.c: what an engine says of i32 inputs beyond what kernels compute with: on the CPU in every call, on a
 * GPU with LUATTN_CHECK=1. */
#include <stdlib.h>
#include <string.h>

#include "tests/api/setup.h"

static const char source[] =
    "return attention { inputs = { t = { axes = {'b', 'n'}, dtype = 'i32' } },\n"
    "  score_mod = function(score, b, h, q_idx, kv_idx) return score - 0.1 * (t[{b, kv_idx}] + 0.0) end }";

typedef struct times {
  int32_t value[API_BATCH * 2 * API_LEN];
  int64_t shape[2], strides[2];
  DLTensor t;
  luattn_input input;
} times;

/* Every second element counts, and one of these is large. */
static void take_times(api_call *c, times *n) {
  memset(n->value, 0, sizeof n->value);
  n->value[1] = 1 << 30, n->value[2 * API_LEN + 6] = 1 << 25;
  n->shape[0] = API_BATCH, n->shape[1] = API_LEN, n->strides[0] = 2 * API_LEN, n->strides[1] = 2;
  n->t = (DLTensor){.data = n->value,
                    .device = c->q.t.device,
                    .ndim = 2,
                    .dtype = {kDLInt, 32, 1},
                    .shape = n->shape,
                    .strides = n->strides};
  n->input = (luattn_input){"t", &n->t, NULL};
  c->args.inputs = &n->input, c->args.num_inputs = 1;
  c->args.num_scalars = 0, c->args.scalar_grads = NULL;
}

static void expect(const char *place, luattn_status status, const luattn_error *err) {
  char text[64] = "";
  api_ok(status, err);
  if (place == NULL) {
    assert_string_equal(err->message, "");
    return;
  }
  strcat(strcat(text, place), ": input 't': element 11 is 33554432, ");
  if (strncmp(err->message, text, strlen(text)) != 0) fail_msg("says '%s', not '%s'", err->message, text);
}

static void both_passes(DLDeviceType device, const luattn_engine_options *options, const char *place) {
  api_call c;
  times n;
  luattn_error err;
  luattn_spec *spec;
  luattn_engine *engine = api_engine(options);
  api_ok(luattn_spec_load_text("t.lua", source, sizeof source - 1, NULL, &spec, &err), &err);
  api_open(&c, device);
  take_times(&c, &n);
  expect(place, luattn_forward(engine, spec, &c.args, NULL, &err), &err);
  expect(place, luattn_backward(engine, spec, &c.args, NULL, &err), &err);
  assert_int_equal(luattn_forward(engine, spec, &c.args, NULL, NULL), LUATTN_OK);
  n.value[2 * API_LEN + 6] = (1 << 24) - 1;
  expect(NULL, luattn_forward(engine, spec, &c.args, NULL, &err), &err);
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  api_close(&c);
}

static void on_the_cpu(void **state) {
  (void)state;
  both_passes(kDLCPU, &(luattn_engine_options){.struct_size = sizeof(luattn_engine_options), .device = LUATTN_CPU},
              "cpu");
  both_passes(
      kDLCPU,
      &(luattn_engine_options){.struct_size = sizeof(luattn_engine_options), .device = LUATTN_CPU, .cpu_relaxed = 1},
      "cpu");
}

static void on_a_gpu(void **state) {
  (void)state;
  const luattn_engine_options no_cache = {.struct_size = sizeof no_cache, .cache_dir = ""};
  both_passes(kDLCUDA, &no_cache, NULL);
  setenv("LUATTN_CHECK", "1", 1);
  both_passes(kDLCUDA, &no_cache, "LUATTN_CHECK");
  unsetenv("LUATTN_CHECK");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_a_gpu)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
