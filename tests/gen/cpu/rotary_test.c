/* rotary_test.c: x[..] in input mods on the CPU path. Compares rotary embedding, forward and backward, with
 * complex products; tests which channels are refused, and the value of head_dim. */
#include "tests/support/cpu_call.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, Q_LEN = 5, KV_LEN = 7, POSITIONS = 11 };

/* ---- rotary embedding ---- */

typedef struct rotation {
  const char *function, *options;
  bool is_interleaved, has_ids;
  int dim, channels;
} rotation;

typedef struct tables {
  tensor cosine, sine, ids, d_cosine, d_sine;
  luattn_input input[3];
} tables;

static void tables_new(tables *t, const rotation *r) {
  const int64_t size[2] = {POSITIONS, r->channels / 2}, places[2] = {BATCH, KV_LEN};
  tensor *const all[] = {&t->cosine, &t->sine, &t->d_cosine, &t->d_sine, &t->ids};
  for (int i = 0; i < 5; i++) {
    tensor_new(all[i], i < 4 ? F64 : I32, 2, i < 4 ? size : places, DENSE);
    all[i]->t.shape = all[i]->shape;
  }
  uint64_t seed = 5;
  for (int64_t i = 0; i < tensor_count(&t->cosine); i++) {
    const double angle = 6.3 * uniform(&seed), size_of = 0.5 + uniform(&seed); /* any complex factor */
    tensor_set(&t->cosine, i, size_of * cos(angle)), tensor_set(&t->sine, i, size_of * sin(angle));
  }
  for (int i = 0; i < BATCH * KV_LEN; i++) tensor_set(&t->ids, i, (3 * i + 1) % POSITIONS);
  t->input[0] = (luattn_input){"cosine", &t->cosine.t, &t->d_cosine.t};
  t->input[1] = (luattn_input){"sine", &t->sine.t, &t->d_sine.t};
  t->input[2] = (luattn_input){"ids", &t->ids.t, NULL};
}

static void tables_free(tables *t) {
  tensor_free(&t->cosine), tensor_free(&t->sine), tensor_free(&t->ids);
  tensor_free(&t->d_cosine), tensor_free(&t->d_sine);
}

/* Returns the channels of a pair, and the index of its angle in the tables. */
static void place_of(const rotation *r, const tables *t, int b, int pos, int pair, int *first, int *second,
                     int64_t *angle) {
  *first = r->is_interleaved ? 2 * pair : pair;
  *second = r->is_interleaved ? 2 * pair + 1 : pair + r->channels / 2;
  const int64_t row = r->has_ids ? (int64_t)tensor_get(&t->ids, b * KV_LEN + pos) : pos;
  *angle = row * (r->channels / 2) + pair;
}

/* Multiplies x, [BATCH, heads, len, dim], by the tables' complex numbers, or by their conjugates if `back`,
 * in place. */
static void turn(const rotation *r, const tables *t, tensor *x, int heads, int len, bool back) {
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < heads; h++)
      for (int pos = 0; pos < len; pos++)
        for (int pair = 0; pair < r->channels / 2; pair++) {
          int first, second;
          int64_t angle;
          place_of(r, t, b, pos, pair, &first, &second, &angle);
          const int64_t row = (((int64_t)b * heads + h) * len + pos) * r->dim;
          const double complex by = tensor_get(&t->cosine, angle) + I * tensor_get(&t->sine, angle);
          double complex z = tensor_get(x, row + first) + I * tensor_get(x, row + second);
          z *= back ? conj(by) : by;
          tensor_set(x, row + first, creal(z)), tensor_set(x, row + second, cimag(z));
        }
}

/* Adds the tables' gradients for x, whose rotated version has gradient g. */
static void add_angles(const rotation *r, const tables *t, const tensor *x, const tensor *g, int heads, int len,
                       double *d_cosine, double *d_sine) {
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < heads; h++)
      for (int pos = 0; pos < len; pos++)
        for (int pair = 0; pair < r->channels / 2; pair++) {
          int first, second;
          int64_t angle;
          place_of(r, t, b, pos, pair, &first, &second, &angle);
          const int64_t row = (((int64_t)b * heads + h) * len + pos) * r->dim;
          const double complex z = tensor_get(x, row + first) + I * tensor_get(x, row + second);
          const double complex dz = tensor_get(g, row + first) + I * tensor_get(g, row + second);
          d_cosine[angle] += creal(dz * conj(z)), d_sine[angle] += cimag(dz * conj(z));
        }
}

static void compare(const char *what, const tensor *got, const tensor *want) {
  double *values = test_malloc(sizeof *values * (size_t)tensor_count(want));
  for (int64_t i = 0; i < tensor_count(want); i++) values[i] = tensor_get(want, i);
  assert_close(what, got, values, 1e-12);
  test_free(values);
}

static void run(const luattn_spec *spec, luattn_args *args) {
  luattn_error err;
  if (luattn_cpu_forward(spec, args, &err) != LUATTN_OK || luattn_cpu_backward(spec, args, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
}

static void copy(tensor *to, const tensor *from) {
  for (int64_t i = 0; i < tensor_count(from); i++) tensor_set(to, i, tensor_get(from, i));
}

static void check_rotation(const rotation *r) {
  char source[1024];
  const char *ids = r->has_ids ? ", ids = { axes = {'b', 'kv'}, dtype = 'i32' }" : "";
  snprintf(source, sizeof source,
           "local rotate = %s('cosine', 'sine'%s)\n"
           "return attention { query_mod = rotate, key_mod = rotate, block_mask = causal(), inputs = {\n"
           "  cosine = { axes = {'position', 'pair'}, grad = true },\n"
           "  sine = { axes = {'position', 'pair'}, grad = true }%s } }",
           r->function, r->options, ids);
  luattn_spec *mods = load_text(source), *plain = load_text("return attention { block_mask = causal() }");
  const int size[7] = {BATCH, HEADS, HEADS_KV, Q_LEN, KV_LEN, r->dim, 6};
  call a, b;
  tables t;
  tables_new(&t, r);
  call_new(&a, mods, size, DENSE, F64, F64), call_new(&b, plain, size, DENSE, F64, F64);
  a.args.inputs = t.input, a.args.num_inputs = r->has_ids ? 3 : 2;
  copy(&b.q, &a.q), copy(&b.k, &a.k), copy(&b.v, &a.v), copy(&b.dout, &a.dout), copy(&b.dlse, &a.dlse);
  turn(r, &t, &b.q, HEADS, Q_LEN, false), turn(r, &t, &b.k, HEADS_KV, KV_LEN, false);
  run(mods, &a.args), run(plain, &b.args);
  compare("o", &a.o, &b.o), compare("lse", &a.lse, &b.lse), compare("dv", &a.dv, &b.dv);
  double d_cosine[POSITIONS * 64] = {0}, d_sine[POSITIONS * 64] = {0};
  add_angles(r, &t, &a.q, &b.dq, HEADS, Q_LEN, d_cosine, d_sine);
  add_angles(r, &t, &a.k, &b.dk, HEADS_KV, KV_LEN, d_cosine, d_sine);
  assert_close("d_cosine", &t.d_cosine, d_cosine, 1e-12), assert_close("d_sine", &t.d_sine, d_sine, 1e-12);
  turn(r, &t, &b.dq, HEADS, Q_LEN, true), turn(r, &t, &b.dk, HEADS_KV, KV_LEN, true);
  compare("dq", &a.dq, &b.dq), compare("dk", &a.dk, &b.dk);
  call_free(&a), call_free(&b), tables_free(&t);
  luattn_spec_free(mods), luattn_spec_free(plain);
}

static void test_rotary(void **state) {
  (void)state;
  static const rotation all[] = {
      {"rotary", "", false, false, 8, 8},
      {"rotary", ", { positions = 'ids' }", false, true, 70, 70}, /* longer than a block of lanes */
      {"rotary", ", { channels = 6 }", false, false, 11, 6},      /* an odd head dim */
      {"rotary_interleaved", "", true, false, 10, 10},
      {"rotary_interleaved", ", { channels = 4, positions = 'ids' }", true, true, 9, 4},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_rotation(&all[i]);
}

/* ---- what is refused ---- */

static luattn_status emit_stage(const luattn_spec *spec, int dim, luattn_error *err) {
  const luattn_target target = {
      .struct_size = sizeof target, .arch = 90, .dtype = LUATTN_F32, .head_dim = dim, .head_dim_v = 6};
  char *printed = NULL;
  const luattn_status status = luattn_emit(spec, &target, "spec", &printed, err);
  luattn_text_free(printed);
  return status;
}

/* Expects the same message from the CPU path and from emit. NULL: no error. */
static void expect_channels(const char *mod, int dim, const char *message) {
  char source[512], want[512];
  snprintf(source, sizeof source, "return attention { %s }", mod);
  snprintf(want, sizeof want, "%s", message != NULL ? message : "");
  luattn_spec *spec = load_text(source);
  luattn_error err[2] = {{.message = ""}, {.message = ""}};
  call c;
  call_new(&c, spec, (int[]){1, 1, 1, 2, 2, dim, 6}, DENSE, F64, F64);
  const bool with_inputs = strstr(mod, "inputs") != NULL; /* the call has no inputs */
  const luattn_status status[2] = {luattn_cpu_forward(spec, &c.args, &err[0]), emit_stage(spec, dim, &err[1])};
  for (int i = with_inputs; i < 2; i++) {
    if (status[i] != (message == NULL ? LUATTN_OK : LUATTN_SPEC))
      fail_msg("%s at %d: status %d: %s", mod, dim, (int)status[i], err[i].message);
    if (message != NULL && strstr(err[i].message, want) == NULL)
      fail_msg("%s at %d: '%s' is not in: %s", mod, dim, want, err[i].message);
  }
  call_free(&c);
  luattn_spec_free(spec);
}

#define MOD(which, body) which "_mod = function(x, b, h, pos, d) " body " end"

static void test_channels(void **state) {
  (void)state;
  const char *next = MOD("query", "return x[(d + 1) % head_dim]"), *pair = MOD("key", "return x[d + 1 - 2 * (d % 2)]");
  expect_channels(next, 1, NULL), expect_channels(next, 7, NULL);
  expect_channels(pair, 8, NULL);
  expect_channels(pair, 7,
                  ":1: key_mod: x[..] at d = 6 is channel 7, outside of 0 .. 6, head_dim being 7; it must be a "
                  "permutation of the channels; head_dim is odd here");
  expect_channels(MOD("query", "return x[d // 2]"), 8,
                  ":1: query_mod: x[..] is channel 0 both at d = 0 and at d = 1, head_dim being 8; it must be a "
                  "permutation of the channels");
  expect_channels(MOD("query", "return x[d - 1]"), 8, "at d = 0 is channel -1, outside of 0 .. 7");
  expect_channels(MOD("query", "return x[3]"), 8, "is channel 3 both at d = 0 and at d = 1");
  expect_channels(MOD("query", "return x[3]"), 4, "is channel 3 both at d = 0 and at d = 1");
  /* The index may have any value where x[..] is not read. */
  expect_channels(MOD("query", "return where(d < 4, x[(d + 2) % 4], x)"), 9, NULL);
  expect_channels(MOD("query", "return where(d < 5, x[(d + 2) % 4], x)"), 9, "is channel 2 both at d = 0 and at d = 4");
  /* A row of v has 6 channels. */
  expect_channels(MOD("value", "return x[head_dim - 1 - d]"), 9, NULL);
  expect_channels(MOD("value", "return x[8 - d]"), 9, "value_mod: x[..] at d = 0 is channel 8, outside of 0 .. 5");
  expect_channels(
      "query_mod = rotary('a', 'c'), inputs = { a = { axes = {1, 1} }, c = { axes = {1, 1} } }", 65,
      "query_mod: x[..] is channel 33 both at d = 0 and at d = 64, head_dim being 65; it must be a "
      "permutation of the channels; head_dim is odd here, and halves and pairs of channels take an even one");
  expect_channels(
      "query_mod = rotary('a', 'c', { channels = 16 }), inputs = { a = { axes = {1, 1} }, "
      "c = { axes = {1, 1} } }",
      12, "at d = 4 is channel 12, outside of 0 .. 11");
}

/* ---- head_dim ---- */

static double first_output(const char *fields, int dim) {
  char source[512];
  luattn_error err;
  snprintf(source, sizeof source, "%s", fields);
  luattn_spec *spec = load_text(source);
  call c;
  call_new(&c, spec, (int[]){1, 1, 1, 1, 1, dim, 6}, DENSE, F64, F64);
  for (int d = 0; d < 6; d++) tensor_set(&c.v, d, 1);
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK) fail_msg("%s: %s", fields, err.message);
  const double o = tensor_get(&c.o, 0);
  call_free(&c);
  luattn_spec_free(spec);
  return o;
}

static void test_head_dim(void **state) {
  (void)state;
  static const char *const own[] = {
      "head_dim = 3 return attention { online_func = identity, score_mod = function() return head_dim end }",
      "return attention { scalars = { head_dim = 3 }, online_func = identity, score_mod = function() return head_dim "
      "end }"};
  assert_true(
      first_output("return attention { online_func = identity, score_mod = function() return head_dim end }", 9) == 9);
  assert_true(first_output("return attention { value_mod = function(x) return x * head_dim end }", 9) == 6);
  assert_true(first_output("return attention { block_mask = function() return head_dim < 9 end }", 9) == 0);
  for (int i = 0; i < 2; i++) assert_true(first_output(own[i], 9) == 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotary), cmocka_unit_test(test_channels),
                                     cmocka_unit_test(test_head_dim)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
