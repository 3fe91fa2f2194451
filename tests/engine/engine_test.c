/* engine_test.c: tests the engine with a fake compiler: one compilation per key for any number of threads,
 * and the handling of failures. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/engine/fake_compiler.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"

static void forward_and_backward(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  size_t size = 0;
  assert_int_equal(luattn_engine_workspace_size(engine, &spec, LUATTN_FORWARD, &p.args, &size, &err), LUATTN_OK);
  assert_int_equal(last_target.struct_size, sizeof last_target);
  assert_int_equal(last_target.pass, LUATTN_FORWARD);
  assert_int_equal(last_target.dtype, LUATTN_BF16);
  assert_int_equal(last_target.head_dim, HEAD_DIM);
  assert_int_equal(last_target.head_dim_v, HEAD_DIM_V);
  assert_int_equal(last_target.arch, 90);
  assert_string_equal(last_target.cache_dir, "/cache");
  assert_true(size > 0);
  fake_reset(); /* loading the module zeroed memory, which made events */
  if (luattn_forward(engine, &spec, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_string_equal(fake_get_event(2)->name, "luattn_fwd");
  if (luattn_backward(engine, &spec, &p.args, NULL, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(last_target.pass, LUATTN_BACKWARD);
  assert_int_equal(last_target.wants, LUATTN_WANT_ALL);
  assert_int_equal(spec.compilations, 2);
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_OK);
  assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_OK);
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  luattn_engine_close(NULL);
  problem_close(&p);
}

static void wants_are_what_is_given(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_BACKWARD);
  p.args.dq = NULL;
  p.args.scalar_grads = NULL;
  assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_OK);
  assert_int_equal(last_target.wants, LUATTN_WANT_DK | LUATTN_WANT_DV | LUATTN_WANT_INPUTS);
  p.slopes_grad.t.data = NULL;
  assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_OK);
  assert_int_equal(last_target.wants, LUATTN_WANT_DK | LUATTN_WANT_DV);
  p.args.dk = p.args.dv = NULL;
  assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "there is nothing to compute"));
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  problem_close(&p);
}

static void keys(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec[2] = {{.compilations = 0}, {.compilations = 0}};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  const luattn_kernel *a, *b, *c, *d;
  assert_int_equal(luattn_engine_kernel(engine, &spec[0], LUATTN_FORWARD, &p.args, &a, &err), LUATTN_OK);
  assert_int_equal(luattn_engine_kernel(engine, &spec[1], LUATTN_FORWARD, &p.args, &b, &err), LUATTN_OK);
  p.q.t.dtype.code = kDLFloat;
  assert_int_equal(luattn_engine_kernel(engine, &spec[0], LUATTN_FORWARD, &p.args, &c, &err), LUATTN_OK);
  p.q.shape[3] = 128;
  assert_int_equal(luattn_engine_kernel(engine, &spec[0], LUATTN_FORWARD, &p.args, &d, &err), LUATTN_OK);
  assert_true(a != b && a != c && b != c && d != c);
  luattn_kernel_description of_c = {.struct_size = sizeof of_c}, of_d = of_c;
  assert_int_equal(luattn_kernel_describe(c, &of_c, &err), LUATTN_OK);
  assert_int_equal(luattn_kernel_describe(d, &of_d, &err), LUATTN_OK);
  assert_int_equal(of_c.dtype, LUATTN_F16);
  assert_int_equal(of_d.head_dim, 128);
  p.q.t.dtype.code = kDLBfloat;
  p.q.shape[3] = HEAD_DIM;
  p.q.shape[2] = 7; /* lengths are not part of the key */
  assert_int_equal(luattn_engine_kernel(engine, &spec[0], LUATTN_FORWARD, &p.args, &b, &err), LUATTN_OK);
  assert_ptr_equal(a, b);
  p.q.shape[2] = LUATTN_SHORT_MAX + 1; /* not even the class, if the tiles are the same */
  assert_int_equal(luattn_engine_kernel(engine, &spec[0], LUATTN_FORWARD, &p.args, &b, &err), LUATTN_OK);
  assert_ptr_equal(a, b);
  assert_int_equal(spec[0].compilations, 3);
  luattn_engine_close(engine);
  problem_close(&p);
}

static luattn_batch *packed_batch(problem *p, tensor *cu, int longest) {
  luattn_batch *batch;
  luattn_error err;
  tensor_set(p, cu, kDLInt, 32, 1, 2, 1, 1, 1);
  const luattn_batch_options options = {.struct_size = sizeof options,
                                        .cu_seqlens_q = &cu->t,
                                        .cu_seqlens_k = &cu->t,
                                        .max_seqlen_q = longest,
                                        .max_seqlen_k = longest};
  if (luattn_batch_open(&options, &batch, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return batch;
}

/* For one spec, calls with and without cu_seqlens use different kernels. */
static void packed_and_dense(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  tensor cu;
  problem_open(&p, LUATTN_FORWARD);
  const luattn_kernel *dense, *packed, *again;
  const int64_t as_it_was[] = {p.q.shape[2], p.v.shape[2]};
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &dense, &err), LUATTN_OK);
  assert_int_equal(last_target.packed, 0);
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &again, &err), LUATTN_OK);
  assert_ptr_equal(dense, again);
  luattn_batch *batch = packed_batch(&p, &cu, 70);
  p.args.batch = batch;
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &packed, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message, "forward: q: expected a tensor of 3 axes beside cu_seqlens, which gives the head dim"));
  p.q.t.ndim = p.v.t.ndim = 3;
  p.q.shape[2] = HEAD_DIM, p.v.shape[2] = HEAD_DIM_V;
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &packed, &err), LUATTN_OK);
  assert_int_equal(last_target.packed, 1);
  assert_int_equal(last_target.head_dim, HEAD_DIM);
  assert_int_equal(last_target.head_dim_v, HEAD_DIM_V);
  assert_ptr_not_equal(packed, dense);
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &again, &err), LUATTN_OK);
  assert_ptr_equal(packed, again);
  p.args.batch = NULL;
  luattn_batch_close(batch);
  p.q.t.ndim = p.v.t.ndim = 4;
  p.q.shape[2] = as_it_was[0], p.v.shape[2] = as_it_was[1];
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &again, &err), LUATTN_OK);
  assert_ptr_equal(dense, again);
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  problem_close(&p);
}

/* The class of lengths depends on the longest sequence, which max_seqlen gives before cu_seqlens is read. */
static void packed_lengths(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.by_length = 1};
  luattn_error err;
  problem p;
  tensor cu;
  problem_open(&p, LUATTN_FORWARD);
  p.q.t.ndim = p.v.t.ndim = 3;
  p.q.shape[0] = 1 << 20, p.q.shape[2] = HEAD_DIM, p.v.shape[2] = HEAD_DIM_V;
  const luattn_kernel *kernel;
  for (int longest = LUATTN_SHORT_MAX; longest <= LUATTN_SHORT_MAX + 1; ++longest) {
    luattn_batch *batch = packed_batch(&p, &cu, longest);
    p.args.batch = batch;
    assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel, &err), LUATTN_OK);
    assert_int_equal(last_target.lengths, luattn_lengths_of(LUATTN_FORWARD, longest, longest));
    luattn_batch_close(batch);
  }
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  problem_close(&p);
}

/* If the plan has different tiles for short lengths, there are exactly two kernels. */
static void two_classes_of_lengths(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.by_length = 1};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  static const int64_t lengths[] = {5, LUATTN_SHORT_MAX, LUATTN_SHORT_MAX + 1, 100000, 1};
  const luattn_kernel *kernel[5];
  const char *plan;
  for (int i = 0; i < 5; ++i) {
    p.q.shape[2] = lengths[i];
    assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel[i], &err), LUATTN_OK);
    assert_int_equal(luattn_engine_plan(engine, &spec, LUATTN_FORWARD, &p.args, &plan, &err), LUATTN_OK);
    assert_string_equal(plan, i == 2 || i == 3 ? "planned for long lengths\n" : "planned for short lengths\n");
  }
  assert_true(kernel[0] != kernel[2]);
  assert_ptr_equal(kernel[1], kernel[0]);
  assert_ptr_equal(kernel[3], kernel[2]);
  assert_ptr_equal(kernel[4], kernel[0]);
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  problem_close(&p);
  assert_int_equal(luattn_lengths_of(LUATTN_FORWARD, 1, 1 << 20), LUATTN_SHORT);
  assert_int_equal(luattn_lengths_of(LUATTN_BACKWARD, 1, 1 << 20), LUATTN_LONG);
}

static void one_class_for_all_calls(void **state) {
  (void)state;
  for (int class = 0; class < 2; ++class) {
    luattn_engine *engine = NULL;
    luattn_error err;
    const luattn_engine_options options = {.struct_size = sizeof options, .lengths = 1 + class};
    if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
    luattn_spec spec = {.by_length = 1};
    problem p;
    problem_open(&p, LUATTN_FORWARD);
    const luattn_kernel *kernel;
    for (int i = 0; i < 2; ++i) {
      p.q.shape[2] = i == 0 ? 1 : 1 << 20;
      assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel, &err), LUATTN_OK);
      assert_int_equal(last_target.lengths, class);
    }
    assert_int_equal(spec.compilations, 1);
    luattn_engine_close(engine);
    problem_close(&p);
  }
}

static void tuned_tiles_may_be_left_out(void **state) {
  (void)state;
  for (int no_tuned = 0; no_tuned < 2; ++no_tuned) {
    luattn_engine *engine = NULL;
    luattn_error err;
    const luattn_engine_options options = {.struct_size = sizeof options, .no_tuned = no_tuned};
    if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
    luattn_spec spec = {.compilations = 0};
    problem p;
    problem_open(&p, LUATTN_FORWARD);
    const luattn_kernel *kernel;
    assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel, &err), LUATTN_OK);
    if (no_tuned)
      assert_null(last_target.device);
    else
      assert_string_equal(last_target.device, "Fake 0");
    luattn_engine_close(engine);
    problem_close(&p);
  }
}

static void keep_line(void *user, const char *line) { strcat(strcat(user, line), "\n"); }

static void one_log_line_for_each_kernel(void **state) {
  (void)state;
  char lines[1000] = "";
  luattn_engine *engine = NULL;
  luattn_error err;
  const luattn_engine_options options = {.struct_size = sizeof options, .log = keep_line, .log_user = lines};
  if (luattn_engine_open(&options, &engine, &err) != LUATTN_OK) fail_msg("%s", err.message);
  luattn_spec spec = {.by_length = 1, .failures_left = 1}, other = {.by_length = 0};
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  for (int i = 0; i < 3; ++i) luattn_forward(engine, &spec, &p.args, NULL, NULL); /* the first fails */
  luattn_forward(engine, &other, &p.args, NULL, NULL);
  int used[2] = {0, 0};
  sscanf(lines,
         "demo: forward, bf16, head dim 64 and 32, short lengths: compiled in %*d ms\n%n"
         "demo: forward, bf16, head dim 64 and 32, every length: compiled in %*d ms\n%n",
         &used[0], &used[1]);
  if (used[1] == 0 || lines[used[1]] != 0) fail_msg("%s", lines);
  luattn_engine_close(engine);
  problem_close(&p);
}

static void deterministic_if_asked_for(void **state) {
  (void)state;
  for (int asked = 0; asked < 2; ++asked) {
    luattn_engine *engine = NULL;
    luattn_spec spec = {.compilations = 0};
    luattn_error err;
    problem p;
    const luattn_engine_options options = {.struct_size = sizeof options, .deterministic = asked};
    assert_int_equal(luattn_engine_open(&options, &engine, &err), LUATTN_OK);
    problem_open(&p, LUATTN_BACKWARD);
    assert_int_equal(luattn_backward(engine, &spec, &p.args, NULL, &err), LUATTN_OK);
    assert_int_equal(last_target.deterministic, asked);
    luattn_engine_close(engine);
    problem_close(&p);
  }
}

static void bad_arguments(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.args.struct_size = 4;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "struct_size is 4"));
  p.args.struct_size = sizeof p.args;
  p.args.v = NULL;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "forward: v: expected a tensor of 4 axes"));
  p.args.v = &p.v.t;
  p.v.shape[3] = 257;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "v: has head dim 257, expected 1 to 256"));
  p.v.shape[3] = HEAD_DIM_V;
  p.q.t.dtype.bits = 8;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "q: has dtype bfloat8"));
  assert_int_equal(spec.compilations, 0);
  const luattn_engine_options small = {.struct_size = 4}, far = {.struct_size = sizeof far, .device = 9},
                              odd = {.struct_size = sizeof odd, .lengths = 3};
  luattn_engine *none = NULL;
  assert_int_equal(luattn_engine_open(&small, &none, &err), LUATTN_INVALID);
  assert_int_equal(luattn_engine_open(&far, &none, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "device 9"));
  assert_int_equal(luattn_engine_open(&odd, &none, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "luattn_engine_options: lengths: is 3, expected 0, or 1 + a luattn_lengths");
  assert_null(none);
  luattn_engine_close(engine);
  problem_close(&p);
}

static void options_out_of_range(void **state) {
  (void)state;
  static const struct {
    luattn_engine_options options;
    const char *message;
  } bad[] = {{{.family = 9}, "family: is 9, expected 0, or 1 + a luattn_family"},
             {{.family = -1}, "family: is -1, expected 0, or 1 + a luattn_family"},
             {{.deterministic = 2}, "deterministic: is 2, expected 0 or 1"},
             {{.never_compile = -1}, "never_compile: is -1, expected 0 or 1"},
             {{.no_tuned = 3}, "no_tuned: is 3, expected 0 or 1"},
             {{.lengths = -1}, "lengths: is -1, expected 0, or 1 + a luattn_lengths"},
             {{.device = -2}, "device: is -2, expected the number of a GPU, or LUATTN_CPU"},
             {{.device = LUATTN_CPU, .cpu_relaxed = 2}, "cpu_relaxed: is 2, expected 0 or 1"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    luattn_engine_options options = bad[i].options;
    luattn_engine *none = NULL;
    luattn_error err;
    options.struct_size = sizeof options;
    assert_int_equal(luattn_engine_open(&options, &none, &err), LUATTN_INVALID);
    if (strncmp(err.message, "luattn_engine_options: ", 23) != 0 || strcmp(err.message + 23, bad[i].message) != 0)
      fail_msg("'%s' is not '%s'", err.message, bad[i].message);
  }
}

/* What decides about a kernel is checked before one is compiled, and sizes before they are multiplied. */
static void choices_come_first(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  p.args.decode = 7;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "forward of 'demo': decode: is 7, expected a luattn_decode, 0 to 2");
  p.args.decode = LUATTN_DECODE_AUTO, p.args.keys_modified = 2;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "forward of 'demo': keys_modified: is 2, expected 0 or 1");
  assert_int_equal(spec.compilations, 0);
  p.args.keys_modified = 0;
  p.q.shape[1] = p.q.shape[2] = p.k.shape[1] = INT64_C(1) << 62;
  p.v.shape[2] = p.k.shape[2] = 8192;
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "q: axis 1 has size 4611686018427387904"));
  luattn_engine_close(engine);
  problem_close(&p);
}

/* A spec at the place of one that was freed is not taken for it. */
static void another_spec_at_its_place(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.hash = 1};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  const luattn_kernel *first, *second, *again;
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &first, &err), LUATTN_OK);
  spec.hash = 2;
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &second, &err), LUATTN_OK);
  assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &again, &err), LUATTN_OK);
  assert_ptr_not_equal(first, second);
  assert_ptr_equal(second, again);
  assert_int_equal(spec.compilations, 2);
  const luattn_request request = {.spec = &spec, .dtype = LUATTN_BF16, .head_dim = HEAD_DIM, .head_dim_v = HEAD_DIM_V};
  assert_int_equal(luattn_prepare(engine, &request, 1, 1, NULL, NULL, &err), LUATTN_OK);
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
  problem_close(&p);
}

/* A spec without the decode kernel has one kernel for all rows; one that has it, one for each class of them. */
static void classes_of_rows(void **state) {
  (void)state;
  for (int has = 0; has <= 1; ++has) {
    luattn_engine *engine = open_engine();
    luattn_spec spec = {.by_length = 1, .has_decode = has};
    luattn_error err;
    problem p;
    problem_open(&p, LUATTN_FORWARD);
    p.k.shape[2] = p.v.shape[2] = 8192, p.args.decode = LUATTN_DECODE_AUTO;
    const luattn_kernel *kernel[3];
    for (int round = 0; round < 2; ++round)
      for (int i = 0; i < 3; ++i) {
        p.q.shape[2] = (int64_t[]){1, LUATTN_DECODE_MANY, 64}[i] * HEADS_KV / HEADS;
        if (p.q.shape[2] == 0) p.q.shape[2] = 1;
        assert_int_equal(luattn_engine_kernel(engine, &spec, LUATTN_FORWARD, &p.args, &kernel[i], &err), LUATTN_OK);
      }
    assert_int_equal(spec.compilations, has ? 3 : 1);
    assert_int_equal(kernel[0] == kernel[1] && kernel[1] == kernel[2], !has);
    luattn_engine_close(engine);
    problem_close(&p);
  }
}

enum { THREADS = 8 };

typedef struct worker {
  luattn_engine *engine;
  luattn_spec *spec;
  int which, length; /* which: index of the key; length 0: the problem's own */
  luattn_status status;
  luattn_error err;
  const luattn_kernel *kernel;
} worker;

static void *work(void *arg) {
  worker *w = arg;
  problem p;
  problem_open(&p, w->which ? LUATTN_BACKWARD : LUATTN_FORWARD);
  if (w->length > 0) p.q.shape[2] = w->length;
  const luattn_pass pass = w->which ? LUATTN_BACKWARD : LUATTN_FORWARD;
  w->status = luattn_engine_kernel(w->engine, w->spec, pass, &p.args, &w->kernel, &w->err);
  if (w->status == LUATTN_OK && w->length == 0) w->status = luattn_launch(w->kernel, &p.args, NULL, &w->err);
  problem_close(&p);
  return NULL;
}

static void start_all(luattn_engine *engine, luattn_spec *spec, int keys, worker workers[THREADS]) {
  pthread_t thread[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.engine = engine, .spec = spec, .which = i % keys};
    assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(thread[i], NULL);
}

static void one_compilation_whoever_asks(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  worker workers[THREADS];
  start_all(engine, &spec, 2, workers);
  for (int i = 0; i < THREADS; ++i) {
    if (workers[i].status != LUATTN_OK) fail_msg("%s", workers[i].err.message);
    assert_ptr_equal(workers[i].kernel, workers[i % 2].kernel);
  }
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
}

/* Threads request both classes at once. One compilation serves both classes if possible, otherwise each has
 * its own. */
static void one_compilation_for_each_class(void **state) {
  (void)state;
  for (int by_length = 0; by_length < 2; ++by_length) {
    luattn_engine *engine = open_engine();
    luattn_spec spec = {.by_length = by_length};
    worker workers[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; ++i) {
      workers[i] = (worker){.engine = engine, .spec = &spec, .length = i % 2 == 0 ? 64 : 1 << 16};
      assert_int_equal(pthread_create(&thread[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; ++i) {
      if (workers[i].status != LUATTN_OK) fail_msg("%s", workers[i].err.message);
      assert_ptr_equal(workers[i].kernel, workers[by_length ? i % 2 : 0].kernel);
    }
    assert_int_equal(spec.compilations, 1 + by_length);
    luattn_engine_close(engine);
  }
}

typedef struct launcher {
  luattn_engine *engine;
  luattn_spec *spec;
  problem p;
  int number;
  luattn_status status;
} launcher;

static void *launch_many(void *arg) {
  launcher *l = arg;
  luattn_error err;
  void *stream = (void *)(uintptr_t)(1 + l->number);
  for (int i = 0; i < 2 && l->status == LUATTN_OK; ++i) {
    l->status = luattn_forward(l->engine, l->spec, &l->p.args, stream, &err);
    if (l->status == LUATTN_OK) l->status = luattn_backward(l->engine, l->spec, &l->p.args, stream, &err);
  }
  return NULL;
}

/* One engine and a stream per thread: all events on a stream come from its thread. */
static void eight_threads_on_eight_streams(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  launcher *l = calloc(THREADS, sizeof *l);
  pthread_t thread[THREADS];
  int seen[THREADS] = {0};
  for (int i = 0; i < THREADS; ++i) {
    l[i] = (launcher){.engine = engine, .spec = &spec, .number = i};
    problem_open(&l[i].p, LUATTN_BACKWARD);
    l[i].p.args.scale = 1 + i;
    assert_int_equal(pthread_create(&thread[i], NULL, launch_many, &l[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) pthread_join(thread[i], NULL);
  assert_int_equal(spec.compilations, 2);
  const size_t events = fake_num_events();
  assert_in_range(events, 1, 256); /* the fake records at most 256 events */
  for (size_t i = 0; i < events; ++i) {
    const fake_event *e = fake_get_event(i);
    const uintptr_t owner = (uintptr_t)e->stream - 1;
    if (e->kind != FAKE_LAUNCH) continue;
    assert_in_range(owner, 0, THREADS - 1);
    assert_ptr_equal(e->params.tensors.src_q.data, l[owner].p.q.t.data);
    assert_true(e->params.scale == 1 + (double)owner);
    ++seen[owner];
  }
  for (int i = 0; i < THREADS; ++i) {
    assert_int_equal(l[i].status, LUATTN_OK);
    assert_true(seen[i] > 0);
    problem_close(&l[i].p);
  }
  free(l);
  luattn_engine_close(engine);
}

static void who_waits_for_a_failure_hears_of_it(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0, .failures_left = 1};
  worker workers[THREADS];
  start_all(engine, &spec, 1, workers);
  int failed = 0;
  for (int i = 0; i < THREADS; ++i) {
    if (workers[i].status == LUATTN_OK) continue;
    ++failed;
    assert_int_equal(workers[i].status, LUATTN_COMPILE);
    assert_string_equal(workers[i].err.message, "attempt 0 failed");
  }
  assert_in_range(failed, 1, THREADS); /* a late thread compiled again */
  start_all(engine, &spec, 1, workers);
  for (int i = 0; i < THREADS; ++i) assert_int_equal(workers[i].status, LUATTN_OK);
  assert_int_equal(spec.compilations, 2);
  luattn_engine_close(engine);
}

static void loading_may_fail(void **state) {
  (void)state;
  luattn_engine *engine = open_engine();
  luattn_spec spec = {.compilations = 0};
  luattn_error err;
  problem p;
  problem_open(&p, LUATTN_FORWARD);
  fake_fail("cuModuleLoadData", 1, 1);
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, &err), LUATTN_CUDA);
  assert_int_equal(luattn_forward(engine, &spec, &p.args, NULL, NULL), LUATTN_OK);
  assert_ptr_equal(fake_get_event(0)->context, fake_primary_context(0));
  luattn_engine_close(engine);
  problem_close(&p);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, everything_given_back)
  const struct CMUnitTest tests[] = {
      TEST(forward_and_backward),
      TEST(wants_are_what_is_given),
      TEST(keys),
      TEST(packed_and_dense),
      TEST(packed_lengths),
      TEST(two_classes_of_lengths),
      TEST(one_class_for_all_calls),
      TEST(tuned_tiles_may_be_left_out),
      TEST(one_log_line_for_each_kernel),
      TEST(deterministic_if_asked_for),
      TEST(bad_arguments),
      TEST(options_out_of_range),
      TEST(choices_come_first),
      TEST(another_spec_at_its_place),
      TEST(classes_of_rows),
      TEST(one_compilation_whoever_asks),
      TEST(one_compilation_for_each_class),
      TEST(eight_threads_on_eight_streams),
      TEST(who_waits_for_a_failure_hears_of_it),
      TEST(loading_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
