/* cpu_device_test.c: an engine on the CPU takes the same calls as on a GPU, gives errors with the same
 * messages, and needs neither libcuda nor NVRTC. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/api/setup.h"

static const luattn_engine_options strict = {.struct_size = sizeof strict, .device = LUATTN_CPU};
static const luattn_engine_options relaxed = {.struct_size = sizeof relaxed, .device = LUATTN_CPU, .cpu_relaxed = 1};

static float *floats(api_tensor *t) { return t->t.data; }

static void fill(api_call *c) {
  api_tensor *const all[] = {&c->q, &c->k, &c->v, &c->dout};
  unsigned state = 1;
  for (int i = 0; i < 4; i++)
    for (int at = 0; at < API_BATCH * API_HEADS * API_LEN * API_DIM; at++) {
      state = state * 1664525u + 1013904223u;
      floats(all[i])[at] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }
  for (int h = 0; h < API_HEADS; h++) floats(&c->slopes)[h] = 0.125f * (float)(h + 1);
}

/* ---- the same computation in double, from the formulas: a tanh cap, ALiBi, causal ---- */

typedef struct plain {
  double o[API_LEN][API_DIM], lse[API_LEN], dq[API_LEN][API_DIM], dk[API_LEN][API_DIM], dv[API_LEN][API_DIM];
  double slope, cap;
} plain;

static void plain_head(api_call *c, int head, plain *out) {
  const float *q = floats(&c->q) + head * API_LEN * API_DIM, *k = floats(&c->k) + head * API_LEN * API_DIM,
              *v = floats(&c->v) + head * API_LEN * API_DIM, *dout = floats(&c->dout) + head * API_LEN * API_DIM;
  const double slope = (double)floats(&c->slopes)[head % API_HEADS], cap = 30;
  memset(out, 0, sizeof *out);
  for (int i = 0; i < API_LEN; i++) {
    double dot[API_LEN], p[API_LEN], dp[API_LEN], sum = 0, delta = 0;
    for (int j = 0; j <= i; j++) {
      dot[j] = 0;
      for (int d = 0; d < API_DIM; d++) dot[j] += (double)q[i * API_DIM + d] * (double)k[j * API_DIM + d];
      dot[j] /= 4; /* sqrt(API_DIM) */
      p[j] = exp(cap * tanh(dot[j] / cap) + slope * (j - i));
      sum += p[j];
    }
    out->lse[i] = log(sum);
    for (int j = 0; j <= i; j++) {
      p[j] /= sum, dp[j] = 0;
      for (int d = 0; d < API_DIM; d++) {
        out->o[i][d] += p[j] * (double)v[j * API_DIM + d];
        dp[j] += (double)dout[i * API_DIM + d] * (double)v[j * API_DIM + d];
        out->dv[j][d] += p[j] * (double)dout[i * API_DIM + d];
      }
      delta += p[j] * dp[j];
    }
    for (int j = 0; j <= i; j++) {
      const double t = tanh(dot[j] / cap), dmod = p[j] * (dp[j] - delta), ds = dmod * (1 - t * t) / 4;
      out->slope += dmod * (j - i);
      out->cap += dmod * (t - dot[j] / cap * (1 - t * t));
      for (int d = 0; d < API_DIM; d++) {
        out->dq[i][d] += ds * (double)k[j * API_DIM + d];
        out->dk[j][d] += ds * (double)q[i * API_DIM + d];
      }
    }
  }
}

static void near(const char *what, double got, double want) {
  if (fabs(got - want) > 1e-6 * (1 + fabs(want))) fail_msg("%s: %.9g, expected %.9g", what, got, want);
}

static void compare(api_call *c) {
  double slope[API_HEADS] = {0}, cap = 0;
  plain want;
  for (int head = 0; head < API_BATCH * API_HEADS; head++) {
    plain_head(c, head, &want);
    const int first = head * API_LEN * API_DIM;
    for (int i = 0; i < API_LEN; i++) {
      near("lse", (double)floats(&c->lse)[head * API_LEN + i], want.lse[i]);
      for (int d = 0; d < API_DIM; d++) {
        const int at = first + i * API_DIM + d;
        near("o", (double)floats(&c->o)[at], want.o[i][d]);
        near("dq", (double)floats(&c->dq)[at], want.dq[i][d]);
        near("dk", (double)floats(&c->dk)[at], want.dk[i][d]);
        near("dv", (double)floats(&c->dv)[at], want.dv[i][d]);
      }
    }
    slope[head % API_HEADS] += want.slope;
    cap += want.cap;
  }
  for (int h = 0; h < API_HEADS; h++) near("slopes", (double)floats(&c->slopes_grad)[h], slope[h]);
  near("cap", (double)floats(&c->scalar_grads)[0], cap);
}

static void both_passes(void **state) {
  (void)state;
  const luattn_engine_options *const options[] = {&strict, &relaxed};
  for (int i = 0; i < 2; i++) {
    api_call c;
    luattn_error err;
    const luattn_kernel *kernel;
    size_t size = 77;
    api_open(&c, kDLCPU);
    fill(&c);
    c.args.workspace = NULL, c.args.workspace_size = 0;
    luattn_engine *engine = api_engine(options[i]);
    assert_null(luattn_engine_driver(engine));
    api_ok(luattn_engine_workspace_size(engine, c.spec, LUATTN_BACKWARD, &c.args, &size, &err), &err);
    assert_int_equal(size, 0);
    c.args.num_threads = i;
    api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
    api_ok(luattn_backward(engine, c.spec, &c.args, NULL, &err), &err);
    compare(&c);
    memset(c.o.t.data, 0xff, API_BATCH * API_HEADS * API_LEN * API_DIM * sizeof(float));
    api_ok(luattn_engine_kernel(engine, c.spec, LUATTN_FORWARD, &c.args, &kernel, &err), &err);
    api_ok(luattn_launch(kernel, &c.args, NULL, &err), &err);
    compare(&c);
    luattn_engine_close(engine);
    api_close(&c);
  }
}

/* The engine opens no CUDA library: both environment variables name files that are not libraries. */
static void without_cuda(void **state) {
  (void)state;
  api_call c;
  luattn_error err;
  luattn_engine *engine = NULL;
  char *const cuda = strdup(getenv("LUATTN_LIBCUDA")), *const nvrtc = strdup(getenv("LUATTN_NVRTC"));
  setenv("LUATTN_LIBCUDA", "/nowhere/libcuda.so.1", 1);
  setenv("LUATTN_NVRTC", "/nowhere/libnvrtc.so", 1);
  assert_int_equal(luattn_engine_open(NULL, &engine, &err), LUATTN_CUDA);
  engine = api_engine(&strict);
  api_open(&c, kDLCPU);
  fill(&c);
  const luattn_request request[] = {{c.spec, LUATTN_FORWARD, LUATTN_F32, API_DIM, API_DIM, 0},
                                    {c.spec, LUATTN_BACKWARD, LUATTN_BF16, 64, 128, LUATTN_WANT_DQ}};
  api_ok(luattn_prepare(engine, request, 2, 1, NULL, NULL, &err), &err);
  api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
  api_ok(luattn_backward(engine, c.spec, &c.args, NULL, &err), &err);
  compare(&c);
  api_ok(luattn_engine_forget(engine, c.spec, &err), &err);
  api_ok(luattn_forward(engine, c.spec, &c.args, NULL, &err), &err);
  luattn_engine_close(engine);
  api_close(&c);
  setenv("LUATTN_LIBCUDA", cuda, 1);
  setenv("LUATTN_NVRTC", nvrtc, 1);
  free(cuda);
  free(nvrtc);
}

static void describe(void **state) {
  (void)state;
  api_call c;
  luattn_error err;
  const luattn_kernel *kernel;
  const char *plan;
  luattn_kernel_description d = {.struct_size = sizeof d};
  api_open(&c, kDLCPU);
  luattn_engine *engine = api_engine(&strict);
  api_ok(luattn_engine_kernel(engine, c.spec, LUATTN_BACKWARD, &c.args, &kernel, &err), &err);
  api_ok(luattn_kernel_describe(kernel, &d, &err), &err);
  assert_int_equal(d.on_cpu, 1);
  assert_string_equal(d.spec_name, "api");
  assert_int_equal(d.pass, LUATTN_BACKWARD);
  assert_int_equal(d.dtype, LUATTN_F32);
  assert_int_equal(d.head_dim, API_DIM);
  assert_int_equal(d.head_dim_v, API_DIM);
  assert_int_equal(d.wants, LUATTN_WANT_ALL);
  assert_int_equal(d.arch, 0);
  assert_int_equal(d.num_functions, 0);
  assert_int_equal(d.deterministic, 1);
  assert_int_equal(d.has_lse, 1);
  assert_int_equal(d.has_mask, 1);
  assert_int_equal(d.num_inputs, 1);
  assert_string_equal(d.inputs[0].name, "slopes");
  assert_int_equal(d.num_scalars, 1);
  assert_int_equal(d.max_len, 1 << 24); /* float32 is exact for integers up to this */
  api_ok(luattn_engine_plan(engine, c.spec, LUATTN_BACKWARD, &c.args, &plan, &err), &err);
  assert_non_null(strstr(plan, "cpu: tiles of 64 x 64 in double precision; nothing is compiled\n"));
  luattn_engine_close(engine);
  engine = api_engine(&relaxed);
  api_ok(luattn_engine_kernel(engine, c.spec, LUATTN_FORWARD, &c.args, &kernel, &err), &err);
  api_ok(luattn_kernel_describe(kernel, &d, &err), &err);
  assert_int_equal(d.on_cpu, 1);
  assert_int_equal(d.wants, 0);
  assert_string_equal(d.spec_name, "api");
  assert_int_equal(d.num_scalars, 1);
  luattn_engine_close(engine);
  api_close(&c);
}

/* ---- errors of a GPU ---- */

typedef struct spoiled {
  api_call c;
  DLTensor other;
  int64_t strides[4], shape[4];
  luattn_scalar scalars[2];
} spoiled;

static void mixed_types(spoiled *s) { s->c.k.t.dtype.bits = 64, s->c.k.shape[0] = s->c.q.shape[0] = 1; }
static void lse_of_doubles(spoiled *s) { s->c.lse.t.dtype.bits = 64, s->c.lse.shape[2] = 2; }
static void last_stride(spoiled *s) {
  static int64_t strides[] = {API_HEADS * API_LEN * API_DIM, API_LEN * API_DIM, 1, API_LEN};
  s->c.q.t.strides = strides;
}
static void misplaced(spoiled *s) { s->c.q.t.byte_offset = 2; }
static void other_shape(spoiled *s) { s->c.v.shape[2] = 3; }
static void no_o(spoiled *s) { s->c.args.o = NULL; }
static void on_gpu(spoiled *s) { s->c.k.t.device = (DLDevice){kDLCUDA, 1}; }
static void of_rocm(spoiled *s) { s->c.k.t.device = (DLDevice){kDLROCM, 0}; }
static void no_data(spoiled *s) { s->c.k.t.data = NULL; }
static void o_is_q(spoiled *s) { s->c.o.t.data = s->c.q.t.data; }
static void other_input(spoiled *s) { s->c.input.name = "slope"; }
static void nan_scalar(spoiled *s) {
  s->scalars[0] = (luattn_scalar){"cap", (double)NAN};
  s->c.args.scalars = s->scalars, s->c.args.num_scalars = 1;
}
static void scale(spoiled *s) { s->c.args.scale = 1e39; }
static void threads(spoiled *s) { s->c.args.num_threads = -1; }
static void wide(spoiled *s) { s->c.q.shape[3] = s->c.k.shape[3] = 512; }
static void batches(spoiled *s) { s->c.q.shape[0] = 70000; }

/* Mistakes that a GPU engine refuses. Run in float32 or, if `half`, in bfloat16, for the sm80 family's
 * limits. */
static const struct refusal {
  void (*spoil)(spoiled *s);
  bool half;
  const char *words;
  luattn_status status;
} refusals[] = {
    {mixed_types, false, "forward of 'api': k: has dtype float64, expected float32; convert it", LUATTN_INVALID},
    {lse_of_doubles, false, "forward of 'api': lse: has dtype float64, expected float32", LUATTN_INVALID},
    {last_stride, false, "forward of 'api': q: the last axis has stride 8, expected 1; make that axis contiguous",
     LUATTN_INVALID},
    {misplaced, false, "(data + byte_offset) is not a multiple of 4 bytes; its data is misplaced", LUATTN_INVALID},
    {misplaced, true, "(data + byte_offset) is not a multiple of 16 bytes; copy it, or convert q, k, v to float32",
     LUATTN_INVALID},
    {other_shape, false, "forward of 'api': v: has shape [2, 4, 3, 16], expected [2, 4, 8, 16]", LUATTN_INVALID},
    {no_o, false, "forward of 'api': o: is missing; give a tensor [batch, heads, q_len, head_dim_v]", LUATTN_INVALID},
    {on_gpu, false,
     "forward of 'api': k: is on CUDA device 1, and the engine is on the CPU; luattn_copy_to_host copies it, "
     "an "
     "engine on that device computes there",
     LUATTN_INVALID},
    {of_rocm, false, "forward of 'api': k: has DLPack device type 10, expected 1 (CPU)", LUATTN_INVALID},
    {no_data, false, "forward of 'api': k: its data pointer is NULL; give it memory", LUATTN_INVALID},
    {o_is_q, false, "forward of 'api': o: its memory, ", LUATTN_INVALID},
    {other_input, false, "input 'slope': the spec has no such input; did you mean 'slopes'?", LUATTN_INVALID},
    {nan_scalar, false, "forward of 'api': scalar 'cap': is nan, expected a number", LUATTN_INVALID},
    {scale, false, "forward of 'api': scale: is 1e+39, expected", LUATTN_INVALID},
    {threads, false, "forward: num_threads: is -1, expected 1 to 1024, or 0", LUATTN_INVALID},
    {wide, false, "forward: q: has head dim 512, expected 1 to 256", LUATTN_INVALID},
    {batches, false, "forward of 'api': q: has batch 70000, expected at most 65535; split the call", LUATTN_INVALID},
};

static void make_half(api_call *c) {
  api_tensor *const all[] = {&c->q, &c->k, &c->v, &c->o};
  for (int i = 0; i < 4; i++) all[i]->t.dtype = (DLDataType){kDLBfloat, 16, 1};
}

static void refuses_what_a_gpu_does(void **state) {
  (void)state;
  luattn_engine *engine = api_engine(&strict);
  luattn_error err;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    spoiled s;
    memset(&s, 0, sizeof s);
    api_open(&s.c, kDLCPU);
    s.c.args.inputs = &s.c.input;
    if (refusals[i].half) make_half(&s.c);
    api_ok(luattn_forward(engine, s.c.spec, &s.c.args, NULL, &err), &err);
    refusals[i].spoil(&s);
    api_refused(luattn_forward(engine, s.c.spec, &s.c.args, NULL, &err), refusals[i].status, &err, refusals[i].words);
    luattn_engine_forget(engine, s.c.spec, NULL);
    api_close(&s.c);
  }
  luattn_engine_close(engine);
}

static void streams_and_options(void **state) {
  (void)state;
  api_call c;
  luattn_error err;
  luattn_engine *engine = api_engine(&strict);
  api_open(&c, kDLCPU);
  api_refused(luattn_forward(engine, c.spec, &c.args, (void *)(uintptr_t)0x10, &err), LUATTN_INVALID, &err,
              "forward of 'api': stream: is 0x10, and the CPU has none; give NULL");
  c.args.dq = c.args.dk = c.args.dv = c.args.scalar_grads = NULL;
  c.input.grad = NULL;
  api_refused(luattn_backward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
              "backward: dq, dk, dv, grads: none is given");
  setenv("LUATTN_NUM_THREADS", "many", 1);
  api_refused(luattn_forward(engine, c.spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
              "forward: LUATTN_NUM_THREADS: is 'many', expected a number from 1 to 1024");
  unsetenv("LUATTN_NUM_THREADS");
  luattn_engine_close(engine);
  luattn_engine_options gpu = {.struct_size = sizeof gpu, .device = 0, .cpu_relaxed = 1};
  api_refused(luattn_engine_open(&gpu, &engine, &err), LUATTN_INVALID, &err,
              "luattn_engine_options: cpu_relaxed: is set, and device is 0; a GPU takes no other arguments, leave it "
              "0, or set device to LUATTN_CPU");
  api_close(&c);
}

/* Specs without a GPU kernel. */
static void specs_of_no_kernel(void **state) {
  (void)state;
  static const char source[] =
      "return attention { name = 'far', score_mod = function(score, b, h, q_idx, kv_idx)\n"
      "  return score + (q_idx * kv_idx * b) % 1000 end }";
  luattn_spec *spec;
  luattn_error err, of_gpu;
  api_call c;
  api_open(&c, kDLCPU);
  c.args.num_inputs = 0;
  api_ok(luattn_spec_load_text("far.lua", source, sizeof source - 1, NULL, &spec, &err), &err);
  luattn_target target = api_target();
  luattn_image *image = NULL;
  luattn_engine *engine = api_engine(&strict);
  const luattn_status status = luattn_compile(spec, &target, &image, NULL, &of_gpu);
  if (status == LUATTN_OK) { /* the image limits the lengths */
    c.q.shape[2] = c.o.shape[2] = c.lse.shape[2] = 1 << 20;
    luattn_image_free(image);
    api_refused(luattn_forward(engine, spec, &c.args, NULL, &err), LUATTN_INVALID, &err,
                "but this spec's index arithmetic or grid ends at");
  } else {
    api_refused(luattn_forward(engine, spec, &c.args, NULL, &err), status, &err, of_gpu.message);
  }
  luattn_engine_close(engine);
  luattn_spec_free(spec);
  api_close(&c);
}

/* Accepts mixed types, any strides, and head dims that no kernel supports. */
static void takes_more_when_relaxed(void **state) {
  (void)state;
  luattn_engine *engine = api_engine(&relaxed);
  luattn_error err;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    if (refusals[i].spoil != lse_of_doubles && refusals[i].spoil != misplaced) continue;
    spoiled s;
    memset(&s, 0, sizeof s);
    api_open(&s.c, kDLCPU);
    s.c.args.inputs = &s.c.input;
    if (refusals[i].half) make_half(&s.c);
    refusals[i].spoil(&s);
    if (refusals[i].spoil == lse_of_doubles) s.c.args.lse = NULL, s.c.q.t.dtype = (DLDataType){kDLBfloat, 16, 1};
    api_ok(luattn_forward(engine, s.c.spec, &s.c.args, NULL, &err), &err);
    luattn_engine_forget(engine, s.c.spec, NULL);
    api_close(&s.c);
  }
  spoiled s;
  memset(&s, 0, sizeof s);
  api_open(&s.c, kDLCPU);
  s.c.args.inputs = &s.c.input;
  other_shape(&s);
  api_refused(luattn_forward(engine, s.c.spec, &s.c.args, NULL, &err), LUATTN_INVALID, &err,
              "cpu: v: axis 2 of [batch, heads_kv, kv_len, head_dim_v] has size 3, expected 8");
  api_close(&s.c);
  api_open(&s.c, kDLCPU); /* head dim 512, one batch entry, one row */
  s.c.args.inputs = &s.c.input;
  api_tensor *const all[] = {&s.c.q, &s.c.k};
  for (int i = 0; i < 2; i++) all[i]->shape[0] = all[i]->shape[2] = 1;
  s.c.q.shape[3] = s.c.k.shape[3] = API_BATCH * API_LEN * API_DIM;
  s.c.v.shape[0] = s.c.o.shape[0] = s.c.lse.shape[0] = s.c.v.shape[2] = s.c.o.shape[2] = s.c.lse.shape[2] = 1;
  api_ok(luattn_forward(engine, s.c.spec, &s.c.args, NULL, &err), &err);
  luattn_engine_close(engine);
  api_close(&s.c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(both_passes),
      cmocka_unit_test(without_cuda),
      cmocka_unit_test(describe),
      cmocka_unit_test(refuses_what_a_gpu_does),
      cmocka_unit_test(streams_and_options),
      cmocka_unit_test(specs_of_no_kernel),
      cmocka_unit_test(takes_more_when_relaxed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
