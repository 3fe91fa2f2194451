/* far_test.c: tests gradients of online functions with large numbers in them, for scores near these: by
 * central differences of the forward pass. For ordinary scores all of their weights are 0 or 1. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { B = 1, H = 2, Q = 5, KV = 7, D = 4 };

#define SINK(logit) "attention_sink(" logit ")"
/* o / (1 + sum of p), as `p` says. */
#define SUM(p, total)                                                                    \
  "{ name = 'f', online_rowscales = { c = 0 }, online_fwd = function(s, r) local p = " p \
  " return p, { c = r.c + reduce_sum(" total                                             \
  ") } end,"                                                                             \
  " online_fwd_epilogue = function(o, r) return o / (1 + r.c) end }"

typedef struct far_case {
  const char *online, *score; /* the score: an expression of s, of ordinary size */
  double scalar, value;       /* the default of `sink`, and the call's */
  double step;                /* of differences, in q, k, v */
  double tolerance;           /* relative to the largest gradient, or 0.5: scores near 1e9 are known to 1e-7 */
} far_case;

static const far_case cases[] = {
    {SINK("1e9"), "s + 1e9", 0, 0, 0.05, 2e-5},
    {SINK("1e9"), "s + 1e9 - 3", 0, 0, 0.05, 2e-5},
    {SINK("1e5"), "s + 1e5", 0, 0, 1e-2, 1e-7},
    {SINK("1e5"), "s + 1e5 + 2", 0, 0, 1e-2, 1e-7},
    {SINK("1e3"), "s + 1e3", 0, 0, 1e-2, 1e-7},
    {SINK("-1e3"), "s - 1e3", 0, 0, 1e-2, 1e-7},
    {SINK("'sink'"), "s + 1e9", 1e9, 1e9, 0.05, 2e-5},
    {SINK("'sink'"), "s + 1e5", 1e5, 1e5 + 1, 1e-2, 1e-7},
    {SINK("'sink'"), "s + 1e3", 1e3, 1e3, 1e-2, 1e-7},
    {SINK("'sink'"), "s + 700", 700, 700, 1e-2, 1e-7},
    {SINK("'sink'"), "s", 700, 0.5, 1e-2, 1e-7},
    {SINK("'sink'"), "s", 1e9, -0.5, 1e-2, 1e-7},
    {SINK("'sink'"), "s", 1e30, 1, 1e-2, 1e-7},
    {SINK("'sink'"), "s", -1e3, 1, 1e-2, 1e-7},
    {SINK("'sink'"), "s", -1e30, 0.5, 1e-2, 1e-7},
    {SUM("relu(s - 1e3)", "p"), "s + 1e3 + 4", 0, 0, 1e-3, 1e-5},
    {SUM("relu(s - 1e6)", "p"), "s + 1e6 + 4", 0, 0, 1e-3, 1e-5},
    {SUM("sigmoid(1e-12 * s)", "p * p"), "s * 1e12", 0, 0, 1e-2, 1e-7},
    {SUM("sigmoid(1e6 * s)", "p * p"), "s * 1e-6", 0, 0, 1e-2, 1e-7},
    {SUM("abs(s - 1e3)", "where(s > 1002, p, 0)"), "s + 1e3 + 8", 0, 0, 1e-3, 1e-7},
};

typedef struct fixture {
  luattn_spec *spec;
  call c;
  tensor scalar_grads;
  luattn_scalar scalar;
  double lse[B * H * Q]; /* at the point itself: differences of numbers near 1e9 lose less */
} fixture;

static double forward_loss(fixture *f) {
  luattn_error err;
  double sum = 0;
  if (luattn_cpu_forward(f->spec, &f->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int64_t i = 0; i < tensor_count(&f->c.o); i++) sum += tensor_get(&f->c.o, i) * tensor_get(&f->c.dout, i);
  for (int64_t i = 0; f->c.args.dlse != NULL && i < tensor_count(&f->c.lse); i++)
    sum += (tensor_get(&f->c.lse, i) - f->lse[i]) * tensor_get(&f->c.dlse, i);
  return sum;
}

/* An element of a tensor, or the scalar where x is NULL. */
static void put(fixture *f, tensor *x, int64_t i, double value) {
  if (x == NULL)
    f->scalar.value = value;
  else
    tensor_set(x, i, value);
}

/* Returns the derivative of the loss, from four points. */
static double difference(fixture *f, tensor *x, int64_t i, double h) {
  const double at = x == NULL ? f->scalar.value : tensor_get(x, i);
  double loss[4];
  for (int k = 0; k < 4; k++) {
    put(f, x, i, at + (k - 1.5 + (k < 2 ? -0.5 : 0.5)) * h);
    loss[k] = forward_loss(f);
  }
  put(f, x, i, at);
  return (8 * (loss[2] - loss[1]) - (loss[3] - loss[0])) / (12 * h);
}

static void expect_gradient(fixture *f, const far_case *t, const char *what, tensor *x, const tensor *dx) {
  double got[64], want[64], most = 0;
  const int n = x == NULL ? 1 : (int)tensor_count(x);
  assert_true(n <= 64);
  for (int i = 0; i < n; i++) {
    got[i] = tensor_get(dx, i);
    want[i] = difference(f, x, i, t->step);
    most = fmax(most, fabs(want[i]));
  }
  if (!(most > 1e-3)) fail_msg("%s, score %s: no %s to lose", t->online, t->score, what);
  for (int i = 0; i < n; i++)
    if (!(fabs(got[i] - want[i]) <= t->tolerance * fmax(most, 0.5)))
      fail_msg("%s, score %s, sink %g at %g: %s[%d] is %.12g, should be %.12g", t->online, t->score, t->scalar,
               t->value, what, i, got[i], want[i]);
}

static void check_case(const far_case *t) {
  char source[1024];
  fixture f;
  luattn_error err;
  const bool has_scalar = strstr(t->online, "'sink'") != NULL;
  snprintf(source, sizeof source,
           "return attention { scalars = { %s }, online_func = %s,\n"
           "  score_mod = function(s, b, h, q_idx, kv_idx) return %s end }",
           has_scalar ? "sink = SINK" : "", t->online, t->score);
  char *place = strstr(source, "SINK"), with[1200];
  if (place != NULL) snprintf(with, sizeof with, "%.*s%.17g%s", (int)(place - source), source, t->scalar, place + 4);
  f.spec = load_text(place != NULL ? with : source);
  call_new(&f.c, f.spec, (int[]){B, H, H, Q, KV, D, D}, DENSE, F64, F64);
  tensor_new(&f.scalar_grads, F64, 1, (int64_t[]){1}, DENSE);
  f.scalar_grads.t.shape = f.scalar_grads.shape;
  f.scalar = (luattn_scalar){"sink", t->value};
  f.c.args.scalars = &f.scalar, f.c.args.num_scalars = has_scalar;
  f.c.args.scalar_grads = has_scalar ? &f.scalar_grads.t : NULL;
  memset(f.lse, 0, sizeof f.lse);
  (void)forward_loss(&f);
  for (int i = 0; f.c.args.dlse != NULL && i < B * H * Q; i++) f.lse[i] = tensor_get(&f.c.lse, i);
  if (luattn_cpu_backward(f.spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s: %s", source, err.message);
  expect_gradient(&f, t, "dq", &f.c.q, &f.c.dq);
  expect_gradient(&f, t, "dk", &f.c.k, &f.c.dk);
  expect_gradient(&f, t, "dv", &f.c.v, &f.c.dv);
  if (has_scalar) expect_gradient(&f, t, "d sink", NULL, &f.scalar_grads);
  call_free(&f.c), tensor_free(&f.scalar_grads);
  luattn_spec_free(f.spec);
}

static void test_differences(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_case(&cases[i]);
}

/* A softmax step from `start`, whose sum and epilogue have `each` and `last`. */
static void softmax_of(char *source, size_t size, const char *start, const char *each, const char *last) {
  snprintf(source, size,
           "return attention { scalars = { sink = -1e3 }, online_func = { name = 'f',\n"
           "  online_rowscales = { m = %s, l = 0 }, final_rowscales = { 'lse' },\n"
           "  online_fwd = function(s, r)\n"
           "    local m = max(r.m, reduce_max(s))\n"
           "    local k, p = exp(r.m - m), exp(s - m)\n"
           "    return p, { m = m, l = r.l * k + reduce_sum(p)%s }, k end,\n"
           "  online_fwd_epilogue = function(o, r) return o / (%s), { lse = log(r.l) + r.m } end } }",
           start, each, last);
}

/* What no row of ordinary scores refutes. */
static void test_refused(void **state) {
  (void)state;
  char source[1024];
  luattn_error err;
  luattn_spec *spec;
  softmax_of(source, sizeof source, "-math.huge", " + exp(sink - m)", "r.l"); /* once for each tile */
  assert_int_equal(luattn_spec_load_text("f.lua", source, strlen(source), NULL, &spec, &err), LUATTN_SPEC);
  assert_non_null(strstr(err.message, "f.lua: online_func 'f': tiles change the result"));
}

/* Functions whose weights are 0 for all scores and scalars near their defaults: what is proved of them needs no
 * sample. */
static void test_without_weight(void **state) {
  (void)state;
  static const char *const online[] = {
      "attention_sink(1e30)",
      "{ name = 'f', online_rowscales = { c = 0 }, online_fwd = function(s, r) return s, { c = r.c + reduce_sum(s * s) "
      "} end,\n"
      "  online_fwd_epilogue = function(o, r) return o * relu(gate) / (1 + r.c) end }",
      /* of which rounding leaves nothing where one weight is nearly 1 */
      "{ name = 'f', online_rowscales = { m = -1e37, l = 0, k = 0 }, final_rowscales = { 'lse' }, online_fwd = "
      "function(s, r)\n"
      "  local m = max(r.m, reduce_max(s)) local f, p = exp(r.m - m), exp(s - m)\n"
      "  return p, { m = m, l = r.l * f + reduce_sum(p), k = r.k * f * f + reduce_sum(p * p) }, f end,\n"
      "  online_fwd_epilogue = function(o, r) return o * (r.k / r.l - sigmoid(log(r.l) + r.m)) / r.l, { lse = log(r.l) "
      "+ r.m } end }"};
  for (int i = 0; i < 3; i++) {
    char source[1024];
    snprintf(source, sizeof source, "return attention { scalars = { gate = -2 }, online_func = %s }", online[i]);
    luattn_spec *spec = load_text(source);
    luattn_spec_info info;
    luattn_spec_get_info(spec, &info);
    if (!info.has_backward) fail_msg("%s: %s", online[i], info.why_no_backward);
    luattn_spec_free(spec);
  }
}

/* Rows without any score, for which such conditions are written, are no reason to refuse. */
static void test_guards(void **state) {
  (void)state;
  static const char *const guard[][2] = {{"-1e9", "where(r.m < -5e8, 1, r.l)"},
                                         {"-1e4", "where(eq(r.m, -1e4), 1, r.l)"},
                                         {"-1e30", "where(r.m < -1e29, 1, r.l)"},
                                         {"-1e9", "r.l"}};
  for (int i = 0; i < 4; i++) {
    char source[1024];
    softmax_of(source, sizeof source, guard[i][0], "", guard[i][1]);
    luattn_spec *spec = load_text(source);
    luattn_spec_info info;
    luattn_spec_get_info(spec, &info);
    if (!info.has_backward) fail_msg("%s: %s", guard[i][1], info.why_no_backward);
    luattn_spec_free(spec);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_without_weight), cmocka_unit_test(test_guards)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
