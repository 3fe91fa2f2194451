/* ties_test.c: a parameter's gradient at a kink of a function: full on a clamp's closed interval, half at a
 * tie of two traced values, zero at the kink of relu and abs. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdio.h>

enum { HEADS = 2 };

/* Computes the gradient of w in a spec whose score is `score`; all elements of w equal `at`. */
static void gradient_of(const char *score, DLDataType type, double at, double *dw) {
  char source[512];
  luattn_error err;
  snprintf(source, sizeof source,
           "return attention { inputs = { w = { axes = {'h'}, grad = true } }, scalars = { c = 0.5 },\n"
           "  score_mod = function(score, b, h, q_idx, kv_idx) return score + kv_idx * (%s) end }",
           score);
  luattn_spec *spec = load_text(source);
  call c;
  tensor w, grad;
  call_new(&c, spec, (int[]){1, HEADS, HEADS, 5, 6, 4, 4}, DENSE, type, F64);
  tensor_new(&w, type, 1, (int64_t[]){HEADS}, DENSE), tensor_new(&grad, F64, 1, (int64_t[]){HEADS}, DENSE);
  w.t.shape = w.shape, grad.t.shape = grad.shape;
  for (int h = 0; h < HEADS; h++) tensor_set(&w, h, at);
  const luattn_input input = {"w", &w.t, &grad.t};
  c.args.inputs = &input, c.args.num_inputs = 1;
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s: %s", score, err.message);
  for (int h = 0; h < HEADS; h++) dw[h] = tensor_get(&grad, h);
  call_free(&c), tensor_free(&w), tensor_free(&grad);
  luattn_spec_free(spec);
}

static void gradient_at(const char *score, double at, double *dw) { gradient_of(score, F64, at, dw); }

/* Expects the gradient of w to be `share` times the gradient without the kink. */
static void expect_share(const char *score, double at, double share) {
  double got[HEADS], whole[HEADS];
  gradient_at(score, at, got);
  gradient_at("w[h]", at, whole);
  for (int h = 0; h < HEADS; h++) {
    assert_true(fabs(whole[h]) > 1e-3);
    if (!(fabs(got[h] - share * whole[h]) <= 1e-12 * fabs(whole[h])))
      fail_msg("%s at %g: the gradient is %.17g, expected %g of %.17g", score, at, got[h], share, whole[h]);
  }
}

static void test_ties(void **state) {
  (void)state;
  expect_share("clamp(w[h], 0, 1)", 0, 1);
  expect_share("clamp(w[h], 0, 1)", 1, 1);
  expect_share("clamp(w[h], 0, 1)", 0.25, 1);
  expect_share("max(w[h], 0)", 0, 1);
  expect_share("max(0, w[h])", 0, 1);
  expect_share("min(w[h], 1)", 1, 1);
  expect_share("max(w[h], c)", 0.5, 0.5);
  expect_share("min(c, w[h])", 0.5, 0.5);
}

static void test_corners(void **state) {
  (void)state;
  double dw[HEADS];
  static const char *const flat[] = {"relu(w[h])", "abs(w[h])", "clamp(w[h] - 0.5, 0, 1)"};
  for (int i = 0; i < 3; i++) {
    gradient_at(flat[i], 0, dw);
    assert_true(dw[0] == 0 && dw[1] == 0);
  }
}

/* A parameter in float32 that starts at its bound is at it: the bound is a float32 there, too. log(100), which rounds
 * up, and -0.7, which rounds up as well, are Swin V2's largest logit scale and a lower bound. */
static void test_bounds_in_float(void **state) {
  (void)state;
  static const struct {
    const char *score;
    double at;
  } cases[] = {{"min(w[h], math.log(100))", 4.60517018598809},
               {"clamp(w[h], -9, math.log(100))", 4.60517018598809},
               {"max(w[h], 0.7)", 0.7},
               {"clamp(w[h], 0.7, 9)", 0.7}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double got[HEADS], whole[HEADS];
    gradient_of(cases[i].score, F32, cases[i].at, got);
    gradient_of("w[h]", F32, cases[i].at, whole);
    for (int h = 0; h < HEADS; h++)
      if (whole[h] == 0 || !(fabs(got[h] - whole[h]) <= 1e-6 * fabs(whole[h])))
        fail_msg("%s: the gradient is %.9g, expected %.9g", cases[i].score, got[h], whole[h]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ties), cmocka_unit_test(test_bounds_in_float),
                                     cmocka_unit_test(test_corners)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
