/* engine_test.c: the engine with the full compiler: forgetting specs, the engine's NVRTC, drivers that are
 * too old for an NVRTC, warnings, and one luattn_args for both passes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/api/setup.h"
#include "tests/support/fake_cuda.h"

static const luattn_engine_options no_cache = {.struct_size = sizeof no_cache, .cache_dir = ""};

/* luattn_engine_forget frees everything kept for a spec, which may then be freed or used again. */
static void forget(void **state) {
  (void)state;
  api_call a, b;
  luattn_error err;
  const char *plan;
  luattn_engine *engine = api_engine(&no_cache);
  const fake_live_counts none = fake_live();
  api_open(&a, kDLCUDA);
  api_open(&b, kDLCUDA);
  api_ok(luattn_engine_forget(engine, a.spec, &err), &err); /* the engine has no kernel of this spec yet */
  for (int round = 0; round < 3; round++) {
    api_ok(luattn_forward(engine, a.spec, &a.args, NULL, &err), &err);
    api_ok(luattn_backward(engine, a.spec, &a.args, NULL, &err), &err);
    const fake_live_counts with_a = fake_live();
    assert_true(with_a.modules > none.modules);
    api_ok(luattn_forward(engine, b.spec, &b.args, NULL, &err), &err);
    const fake_live_counts with_both = fake_live();
    api_ok(luattn_engine_forget(engine, a.spec, &err), &err);
    const fake_live_counts with_b = fake_live();
    assert_int_equal(with_both.modules - with_b.modules, with_a.modules - none.modules);
    assert_int_equal(with_both.allocations - with_b.allocations, with_a.allocations - none.allocations);
    api_ok(luattn_engine_plan(engine, b.spec, LUATTN_FORWARD, &b.args, &plan, &err),
           &err); /* b's kernel is still loaded */
    assert_int_equal(fake_live().modules, with_b.modules);
    api_ok(luattn_engine_forget(engine, b.spec, &err), &err);
    assert_int_equal(fake_live().modules, none.modules);
    assert_int_equal(fake_live().allocations, none.allocations);
  }
  api_close(&a); /* before the engine */
  api_close(&b);
  luattn_engine_close(engine);
}

static luattn_status forward_with(const char *nvrtc, const char *driver, luattn_error *err) {
  api_call c;
  luattn_engine_options options = no_cache;
  options.nvrtc = nvrtc;
  api_open(&c, kDLCUDA);
  if (driver != NULL) setenv("LUATTN_FAKE_DRIVER", driver, 1);
  luattn_engine *engine = api_engine(&options);
  unsetenv("LUATTN_FAKE_DRIVER");
  const luattn_status status = luattn_forward(engine, c.spec, &c.args, NULL, err);
  luattn_engine_close(engine);
  api_close(&c);
  return status;
}

/* Only the NVRTC named in the engine's options is used. If the driver cannot load its code, the message has
 * both versions. */
static void nvrtc_of_the_engine(void **state) {
  (void)state;
  luattn_error err;
  api_ok(forward_with(NULL, NULL, &err), &err);
  api_ok(forward_with(FAKE_NVRTC, NULL, &err), &err);
  api_refused(forward_with("/nowhere/libnvrtc.so.13", NULL, &err), LUATTN_COMPILE, &err,
              "nvrtc: '/nowhere/libnvrtc.so.13' (from the target): there is no such file");
  api_refused(forward_with(FAKE_NVRTC, "12080", &err), LUATTN_COMPILE, &err,
              "': is NVRTC 13.0, whose code needs a driver of CUDA 13, and this one is of CUDA "
              "12.8; name an "
              "NVRTC 12 with LUATTN_NVRTC, or update NVIDIA's driver");
  api_ok(forward_with(NVRTC_12, "12020", &err), &err); /* newer within the major version is fine */
  api_ok(forward_with(NVRTC_12, "13000", &err), &err);
}

/* The call that compiled returns LUATTN_OK with a warning in err. */
static void warnings(void **state) {
  (void)state;
  static const char says[] = "cache: /proc/nowhere/";
  api_call c;
  luattn_error err;
  luattn_engine_options options = no_cache;
  luattn_target target = api_target();
  luattn_image *image;
  luattn_compile_report report;
  size_t size;
  options.cache_dir = target.cache_dir = "/proc/nowhere";
  api_open(&c, kDLCUDA);
  memset(&err, 'x', sizeof err);
  api_ok(luattn_compile(c.spec, &target, &image, &report, &err), &err);
  assert_int_equal(strncmp(err.message, says, sizeof says - 1), 0);
  assert_non_null(strstr(err.message, "the kernel works but is not kept"));
  assert_int_equal(report.is_kept, 0);
  assert_non_null(strstr(report.plan, err.message));
  luattn_image_free(image);

  luattn_engine *engine = api_engine(&options);
  for (int i = 0; i < 2; i++) { /* the first compiles */
    memset(&err, 'x', sizeof err);
    api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
    if (i == 0) assert_int_equal(strncmp(err.message, says, sizeof says - 1), 0);
    if (i == 1) assert_string_equal(err.message, "");
  }
  api_ok(luattn_engine_workspace_size(engine, c.spec, LUATTN_BACKWARD, &c.args, &size, &err), &err);
  assert_int_equal(strncmp(err.message, says, sizeof says - 1), 0);
  api_ok(luattn_backward(engine, c.spec, &c.args, NULL, &err), &err);
  assert_string_equal(err.message, "");
  luattn_engine_close(engine);

  engine = api_engine(&options);
  const luattn_request request = {.spec = c.spec, .dtype = LUATTN_F32, .head_dim = API_DIM};
  api_ok(luattn_prepare(engine, &request, 1, 1, NULL, NULL, &err), &err);
  assert_int_equal(strncmp(err.message, says, sizeof says - 1), 0);
  api_ok(luattn_prepare(engine, &request, 1, 1, NULL, NULL, &err), &err);
  assert_string_equal(err.message, "");
  luattn_engine_close(engine);
  api_close(&c);
}

/* A recovered failure gives no warning: a damaged cache entry is compiled again. */
static void no_warning(void **state) {
  (void)state;
  char folder[] = "/tmp/luattn-api-XXXXXX", command[160];
  api_call c;
  luattn_error err;
  luattn_target target = api_target();
  luattn_compile_report report;
  assert_non_null(mkdtemp(folder));
  target.cache_dir = folder;
  api_open(&c, kDLCUDA);
  for (int i = 0; i < 3; i++) {
    luattn_image *image;
    api_ok(luattn_compile(c.spec, &target, &image, &report, &err), &err);
    assert_string_equal(err.message, "");
    assert_int_equal(report.cache_hit, i == 1);
    assert_int_equal(report.is_kept, 1);
    luattn_image_free(image);
    if (i == 0) continue;
    snprintf(command, sizeof command, "for f in %s/*/*; do echo damaged >$f; done", folder);
    assert_int_equal(system(command), 0);
  }
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
  api_close(&c);
}

/* num_splits applies only to backward, and `skip` may ask for something that one pass does not support. */
static void both_passes(void **state) {
  (void)state;
  api_call c;
  luattn_error err;
  luattn_engine *engine = api_engine(&no_cache);
  api_open(&c, kDLCUDA);
  c.args.num_splits = 3;
  api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
  api_refused(luattn_backward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
              "num_splits: is 3, and this kernel has one block for a kv tile"); /* refused, not ignored */
  c.args.num_splits = 65;
  api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
  api_refused(luattn_backward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err, "num_splits: is 65");
  c.args.num_splits = 0;
  c.args.skip = LUATTN_SKIP_ALWAYS;
  api_refused(luattn_forward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err, "skip: is LUATTN_SKIP_ALWAYS");
  api_ok(luattn_backward(engine, c.spec, &c.args, NULL, &err), &err);
  c.args.num_inputs = SIZE_MAX; /* not read */
  api_refused(luattn_backward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
              "backward: num_inputs is 18446744073709551615, expected at most 12, as no spec has more");
  c.args.num_inputs = 1, c.args.num_scalars = 33;
  api_refused(luattn_cpu_forward(c.spec, &c.args, &err), LUATTN_INVALID, &err,
              "cpu: num_scalars is 33, expected at most 32, as no spec has more");
  luattn_engine_close(engine);
  api_close(&c);
}

/* Names that a spec gives to its own axes. */
static void axis_names(void **state) {
  (void)state;
  static const char source[] =
      "return attention { inputs = { bias = { axes = {'b', 'bucket'} }, mix = { axes = {3, 'n', 'h'} } },\n"
      "  score_mod = function(score, b, h, q_idx, kv_idx) return score + bias[b][1] + mix[2][0][h] end }";
  static const char *const want[2][4] = {{"b", "bucket", NULL, NULL}, {"3", "n", "h", NULL}};
  luattn_spec *spec;
  luattn_spec_info info;
  luattn_error err;
  api_ok(luattn_spec_load_text("axes", source, sizeof source - 1, NULL, &spec, &err), &err);
  luattn_spec_get_info(spec, &info);
  assert_int_equal(info.num_inputs, 2);
  for (size_t i = 0; i < 2; i++)
    for (size_t j = 0; j < info.inputs[i].num_axes; j++) {
      assert_string_equal(info.axis_names[4 * i + j], want[i][j]);
      assert_int_equal(info.inputs[i].axis[j] == LUATTN_AXIS_FREE, j == 1);
    }
  luattn_spec_free(spec);
}

/* An input of dtype `any` gets a kernel for each float type; other types are refused. */
static void any_types(void **state) {
  (void)state;
  static const char source[] =
      "return attention { inputs = { slopes = { axes = {'h'}, dtype = 'any', grad = true } },\n"
      "  score_mod = function(score, b, h) return score + slopes[h] end }";
  static const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 64, 1}, {kDLFloat, 16, 1}};
  const DLDeviceType devices[] = {kDLCUDA, kDLCPU};
  for (int d = 0; d < 2; d++) {
    luattn_engine_options options = no_cache;
    luattn_error err;
    luattn_spec *spec;
    api_call c;
    api_open(&c, devices[d]);
    if (devices[d] == kDLCPU) options.device = LUATTN_CPU;
    api_ok(luattn_spec_load_text("any", source, sizeof source - 1, NULL, &spec, &err), &err);
    luattn_engine *engine = api_engine(&options);
    for (int round = 0; round < 2; round++)
      for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int before = fake_live().modules;
        c.slopes.t.dtype = types[i];
        api_ok(luattn_forward(engine, spec, &c.args, NULL, &err), &err);
        if (devices[d] == kDLCUDA) assert_int_equal(fake_live().modules > before, round == 0);
      }
    c.slopes.t.dtype = (DLDataType){kDLInt, 32, 1};
    api_refused(luattn_forward(engine, spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
                "input 'slopes': has dtype int32, and dtype any in a spec stands "
                "for float64");
    c.args.num_inputs = 0;
    api_refused(luattn_forward(engine, spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
                "input 'slopes': is missing; give a tensor of float64, float32, bfloat16 or float16 by this name");
    luattn_engine_close(engine);
    luattn_spec_free(spec);
    api_close(&c);
  }
}

/* Without tensors, the target gives the types of inputs of dtype `any`, and of no others. */
static void types_of_target(void **state) {
  (void)state;
  static const char source[] =
      "return attention { inputs = { a = { axes = {'h'} }, w = { axes = {'h'}, dtype = 'any' } },\n"
      "  score_mod = function(score, b, h) return score + a[h] * w[h] end }";
  luattn_spec *spec;
  luattn_image *image;
  luattn_error err;
  luattn_target target = api_target();
  api_ok(luattn_spec_load_text("any", source, sizeof source - 1, NULL, &spec, &err), &err);
  api_refused(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_INVALID, &err,
              "target: input_types: says no type of input 'w', whose dtype is any");
  target.input_types = (1 + LUATTN_INPUT_I32) << 4;
  api_refused(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_INVALID, &err,
              "target: input_types: input 'w': is 5, expected 1 + a luattn_input_dtype up to LUATTN_INPUT_F16");
  target.input_types = (1 + LUATTN_INPUT_BF16) << 4 | 1;
  api_refused(luattn_compile(spec, &target, &image, NULL, &err), LUATTN_INVALID, &err,
              "target: input_types: gives a type to input 'a', whose dtype is not any; leave it 0");
  target.input_types = (1 + LUATTN_INPUT_BF16) << 4;
  api_ok(luattn_compile(spec, &target, &image, NULL, &err), &err);
  luattn_kernel_description d = {.struct_size = sizeof d};
  api_ok(luattn_image_describe(image, &d, &err), &err);
  assert_int_equal(d.inputs[1].dtype, LUATTN_INPUT_BF16);
  luattn_image_free(image);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(forget),      cmocka_unit_test(nvrtc_of_the_engine),
                                     cmocka_unit_test(warnings),    cmocka_unit_test(no_warning),
                                     cmocka_unit_test(both_passes), cmocka_unit_test(axis_names),
                                     cmocka_unit_test(any_types),   cmocka_unit_test(types_of_target)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
