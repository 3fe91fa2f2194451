/* threads_test.c: the CPU path with several threads gives the same bits for every number of threads. Also
 * tests the number of threads. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "tests/support/cpu_call.h"

/* ---- a pthread_create that counts calls, and fails after the first `allowed` ---- */

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static int created, allowed = 1000;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *data) {
  if (created >= allowed) return EAGAIN;
  const int error = __real_pthread_create(thread, how, start, data);
  created += error == 0;
  return error;
}

/* ---- a call that computes every kind of sum ---- */

#define EVERY_SUM                                                                                            \
  "return attention {\n"                                                                                     \
  "  name = 'sums', scalars = { cap = 9.0, sink = 0.5, gain = 1.25 },\n"                                     \
  "  inputs = { slopes = { axes = {'h'}, grad = true }, bias = { axes = {'h', 'q', 'kv'}, grad = true },\n"  \
  "             by_distance = { axes = {'h', 'bucket'}, grad = true },\n"                                    \
  "             gate = { axes = {'hkv', 'channel'}, grad = true }, unused = { axes = {'kv'}, grad = true } " \
  "},"                                                                                                       \
  "  key_mod = function(x, b, h, pos, d) return gain * x + gate[{h, d}] end,\n"                              \
  "  score_mod = function(score, b, h, q_idx, kv_idx)\n"                                                     \
  "    local far = abs(q_idx - kv_idx)\n"                                                                    \
  "    return cap * tanh(score / cap) - slopes[h] * far + bias[{h, q_idx, kv_idx}]\n"                        \
  "      + by_distance[{h, far % 7}] * by_distance[{0, far % 3}] + unused[kv_idx] end,\n"                    \
  "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx + kv_len - q_len end,\n"              \
  "  online_func = attention_sink(function(b, h) return sink * slopes[h] end) }\n"
#define PLAIN "return attention { name = 'plain' }"
#define KEEPS_NOTHING                                                                                      \
  "return attention { name = 'window', online_func = online_retention, score_mod = function(score, b, h, " \
  "q_idx, "                                                                                                \
  "kv_idx) return score * exp2(-abs(q_idx - kv_idx) / 64) end,\n"                                          \
  "  block_mask = function(b, h, q_idx, kv_idx) return q_idx % 70 > 3 and abs(q_idx - kv_idx) < 40 end }"

#define TAKES_A_PASS                                                                                  \
  "return attention { name = 'pass', scalars = { x = 0.7 }, block_mask = causal(), online_func = {\n" \
  "  online_rowscales = { m = 0, l = 0 }, online_fwd = function(s, r)\n"                              \
  "    local m, p = max(r.m, reduce_max(s)), sigmoid(s)\n"                                            \
  "    return p, { m = m, l = r.l + reduce_sum(p) }, 1 end,\n"                                        \
  "  online_fwd_epilogue = function(o, r) return o * log(1 + x * r.l) / (1 + r.l + r.m) end } }"

enum { MOST_INPUTS = 5 };
static int only_threads; /* of the command line; 0: several numbers of threads */

typedef struct whole_call {
  call c;
  luattn_spec *spec;
  luattn_spec_info info;
  tensor input[MOST_INPUTS], grad[MOST_INPUTS], scalar_grads;
  luattn_input given[MOST_INPUTS];
} whole_call;

static DLTensor *view(tensor *t) {
  t->t.shape = t->shape, t->t.strides = t->stride;
  return &t->t;
}

static int64_t size_of_axis(const call *c, int axis) {
  return axis == LUATTN_AXIS_H     ? c->heads
         : axis == LUATTN_AXIS_HKV ? c->heads_kv
         : axis == LUATTN_AXIS_Q   ? c->q_len
         : axis == LUATTN_AXIS_KV  ? c->kv_len
                                   : 64; /* free: channels, distances */
}

static void open_call(whole_call *w, const char *source, const int size[7], DLDataType out) {
  memset(w, 0, sizeof *w);
  w->spec = load_text(source);
  luattn_spec_get_info(w->spec, &w->info);
  call_new(&w->c, w->spec, size, HEADS_LAST, F32, out);
  for (size_t i = 0; i < w->info.num_inputs; i++) {
    const luattn_input_info *in = &w->info.inputs[i];
    int64_t shape[4];
    for (uint32_t a = 0; a < in->num_axes; a++) shape[a] = size_of_axis(&w->c, in->axis[a]);
    tensor_new(&w->input[i], F32, (int)in->num_axes, shape, DENSE);
    tensor_new(&w->grad[i], out, (int)in->num_axes, shape, DENSE);
    tensor_fill(&w->input[i], 10 + i);
    w->given[i] = (luattn_input){in->name, view(&w->input[i]), view(&w->grad[i])};
  }
  tensor_new(&w->scalar_grads, out, 1, (int64_t[]){(int64_t)w->info.num_scalars}, DENSE);
  w->c.args.inputs = w->given, w->c.args.num_inputs = w->info.num_inputs;
  if (w->info.num_scalars > 0) w->c.args.scalar_grads = view(&w->scalar_grads);
}

static void close_call(whole_call *w) {
  for (size_t i = 0; i < w->info.num_inputs; i++) tensor_free(&w->input[i]), tensor_free(&w->grad[i]);
  tensor_free(&w->scalar_grads);
  call_free(&w->c);
  luattn_spec_free(w->spec);
}

enum { OUTPUTS = 6 + MOST_INPUTS + 1 };

static void list_outputs(whole_call *w, tensor *out[OUTPUTS]) {
  tensor *const all[] = {&w->c.o, &w->c.lse, &w->c.saved, &w->c.dq, &w->c.dk, &w->c.dv};
  memcpy(out, all, sizeof all);
  for (int i = 0; i < MOST_INPUTS; i++) out[6 + i] = &w->grad[i];
  out[6 + MOST_INPUTS] = &w->scalar_grads;
}

static size_t bytes_of(const tensor *t) {
  return t->memory == NULL ? 0 : (size_t)tensor_count(t) * (t->t.dtype.bits / 8u);
}

static void run(whole_call *w, int threads) {
  luattn_error err;
  w->c.args.num_threads = threads;
  if (luattn_cpu_forward(w->spec, &w->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_cpu_backward(w->spec, &w->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

/* Compares with one thread. Outputs are NaN before each run, to reveal unwritten elements. */
static void same_as_one_thread(whole_call *w, const char *what, const int *threads, int count) {
  tensor *out[OUTPUTS];
  void *first[OUTPUTS];
  list_outputs(w, out);
  run(w, 1);
  for (int i = 0; i < OUTPUTS; i++) {
    const size_t bytes = bytes_of(out[i]);
    first[i] = malloc(bytes + 1);
    assert_non_null(first[i]);
    if (bytes > 0) memcpy(first[i], out[i]->memory, bytes);
  }
  for (int n = 0; n < count; n++) {
    for (int i = 0; i < OUTPUTS; i++)
      if (bytes_of(out[i]) > 0) memset(out[i]->memory, 0xff, bytes_of(out[i]));
    run(w, threads[n]);
    for (int i = 0; i < OUTPUTS; i++)
      if (bytes_of(out[i]) > 0 && memcmp(first[i], out[i]->memory, bytes_of(out[i])) != 0)
        fail_msg("%s: output %d differs on %d threads", what, i, threads[n]);
  }
  for (int i = 0; i < OUTPUTS; i++) free(first[i]);
}

/* Sizes with one head and several, runs of many blocks, runs of many kv tiles (65 and more), rows and columns
 * that end within a tile, and rows that keep nothing. */
static void same_bits(void **state) {
  (void)state;
  static const struct {
    const char *source;
    int size[7];
  } cases[] = {
      {EVERY_SUM, {2, 4, 2, 150, 170, 6, 3}},     {EVERY_SUM, {1, 1, 1, 300, 330, 5, 4}},
      {TAKES_A_PASS, {1, 4, 2, 150, 170, 6, 3}},  {EVERY_SUM, {1, 2, 1, 70, 4200, 2, 2}},
      {PLAIN, {1, 1, 1, 200, 131, 8, 8}},         {PLAIN, {3, 6, 3, 20, 40, 16, 8}},
      {KEEPS_NOTHING, {1, 2, 1, 260, 250, 7, 9}}, {EVERY_SUM, {2, 6, 3, 129, 65, 4, 4}},
  };
  static const int all[] = {2, 3, 7};
  const int *threads = only_threads > 0 ? &only_threads : all, count = only_threads > 0 ? 1 : 3;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    whole_call w;
    open_call(&w, cases[i].source, cases[i].size, i % 2 == 0 ? F64 : F32);
    same_as_one_thread(&w, w.info.name, threads, count);
    close_call(&w);
  }
}

/* ---- number of threads ---- */

static int threads_of(whole_call *w, int asked) {
  luattn_error err;
  created = 0;
  w->c.args.num_threads = asked;
  if (luattn_cpu_forward(w->spec, &w->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  const int forward = created;
  created = 0;
  if (luattn_cpu_backward(w->spec, &w->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(forward, created);
  return 1 + created;
}

static void how_many(void **state) {
  (void)state;
  static const int large[7] = {1, 1, 1, 400, 400, 16, 16}, small[7] = {1, 1, 1, 20, 20, 4, 4};
  whole_call w;
  unsetenv("LUATTN_NUM_THREADS");
  open_call(&w, PLAIN, large, F32);
  assert_int_equal(threads_of(&w, 0), 1);
  assert_int_equal(threads_of(&w, 1), 1);
  assert_int_equal(threads_of(&w, 3), 3);
  setenv("LUATTN_NUM_THREADS", "2", 1);
  assert_int_equal(threads_of(&w, 0), 2);
  assert_int_equal(threads_of(&w, 3), 3);
  setenv("LUATTN_NUM_THREADS", "", 1);
  assert_int_equal(threads_of(&w, 0), 1);
  assert_true(threads_of(&w, THREADS_MOST) < 51); /* at most one thread per unit of eight rows, of 400 */
  close_call(&w);
  open_call(&w, PLAIN, small, F32);
  assert_int_equal(threads_of(&w, 3), 1);
  close_call(&w);
  unsetenv("LUATTN_NUM_THREADS");
}

/* If the system cannot start more threads, the existing ones do the work. */
static void fewer_than_asked(void **state) {
  (void)state;
  static const int size[7] = {1, 2, 1, 200, 200, 8, 8}, threads[] = {4};
  whole_call w;
  for (int most = 0; most < 3; most++) {
    created = 0;
    open_call(&w, EVERY_SUM, size, F64);
    allowed = most;
    same_as_one_thread(&w, "fewer", threads, 1);
    allowed = 1000;
    assert_int_equal(created, most);
    close_call(&w);
  }
}

static void refused(void **state) {
  (void)state;
  static const int size[7] = {1, 1, 1, 8, 8, 4, 4};
  static const char *const wrong[] = {"0", "-1", "two", "2 ", "1025", "99999999999999999999", "0x2"};
  luattn_error err;
  char said[200];
  whole_call w;
  open_call(&w, PLAIN, size, F32);
  w.c.args.num_threads = -3;
  assert_int_equal(luattn_cpu_forward(w.spec, &w.c.args, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "cpu: num_threads: is -3, expected 1 to 1024, or 0 to leave it to LUATTN_NUM_THREADS");
  w.c.args.num_threads = 1025;
  assert_int_equal(luattn_cpu_backward(w.spec, &w.c.args, &err), LUATTN_INVALID);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    setenv("LUATTN_NUM_THREADS", wrong[i], 1);
    w.c.args.num_threads = 0;
    assert_int_equal(luattn_cpu_forward(w.spec, &w.c.args, &err), LUATTN_INVALID);
    snprintf(said, sizeof said,
             "cpu: LUATTN_NUM_THREADS: is '%s', expected a number from 1 to 1024; set it, or unset it", wrong[i]);
    assert_string_equal(err.message, said);
    w.c.args.num_threads = 1; /* overrides LUATTN_NUM_THREADS */
    assert_int_equal(luattn_cpu_forward(w.spec, &w.c.args, &err), LUATTN_OK);
  }
  unsetenv("LUATTN_NUM_THREADS");
  close_call(&w);
}

/* usage: cpu_threads_test [THREADS] */
int main(int argc, char **argv) {
  if (argc > 1) only_threads = atoi(argv[1]);
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(how_many),
                                     cmocka_unit_test(fewer_than_asked), cmocka_unit_test(refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
