/* maximum_test.c: which elements take the derivative of a maximum that does not cancel: of scores that the test gives,
 * the gradient of each beside the formula's. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <string.h>

enum { MOST = 6 };

/* o = sum of s_j v_j / m, with m = max(1, max s_j): ds_j = dp_j / m - share_j * sum of dp_i s_i / m^2. */
static const char source[] =
    "return attention { score_mod = function(s, b, h, q_idx, kv_idx) return where(eq(kv_idx % 7, 5), -1 / 0, s) end,\n"
    "  online_func = { online_rowscales = { m = 1 }, final_rowscales = { 'm' },\n"
    "    online_fwd = function(scores, r)\n"
    "      return where(scores > -1e30, scores, 0), { m = max(r.m, reduce_max(scores)) }, 1\n"
    "    end,\n"
    "    online_fwd_epilogue = function(o, r) return o / r.m, { m = r.m } end } }";

typedef struct scores {
  luattn_spec *spec;
  call c;
} scores;

/* One query of 1, so that keys are scores and dk is ds. */
static void open_scores(scores *s, const double *score, int count) {
  s->spec = load_text(source);
  call_new(&s->c, s->spec, (int[]){1, 1, 1, 1, count, 1, 2}, DENSE, F64, F64);
  s->c.args.scale = 1;
  tensor_set(&s->c.q, 0, 1);
  for (int j = 0; j < count; j++) tensor_set(&s->c.k, j, score[j]);
  luattn_error err;
  if (luattn_cpu_forward(s->spec, &s->c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void close_scores(scores *s) {
  call_free(&s->c);
  luattn_spec_free(s->spec);
}

static void expect_shares(const double *score, const double *share, int count) {
  scores s;
  double dp[MOST], m = 1, sum = 0, want[MOST];
  luattn_error err;
  open_scores(&s, score, count);
  if (luattn_cpu_backward(s.spec, &s.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int j = 0; j < count; j++) {
    dp[j] = 0;
    for (int d = 0; d < 2; d++) dp[j] += tensor_get(&s.c.dout, d) * tensor_get(&s.c.v, j * 2 + d);
    if (j == 5) continue; /* its score is -inf */
    sum += dp[j] * score[j];
    m = fmax(m, score[j]);
  }
  for (int j = 0; j < count; j++) want[j] = j == 5 ? 0 : dp[j] / m - share[j] * sum / (m * m);
  assert_close("ds", &s.c.dk, want, 1e-13);
  close_scores(&s);
}

static void test_shares(void **state) {
  (void)state;
  const double one[] = {2, 5, 3}, one_takes[] = {0, 1, 0};
  expect_shares(one, one_takes, 3);
  const double near[] = {2, 5 - 1e-9, 5}, near_takes[] = {0, 0, 1};
  expect_shares(near, near_takes, 3);
  const double equal[] = {5, 2, 5, 5}, equal_take[] = {1. / 3, 0, 1. / 3, 1. / 3}; /* as amax of PyTorch and JAX */
  expect_shares(equal, equal_take, 4);
  const double crowded[] = {2, 5, 5 - 0.05, 5}, first_takes[] = {0, 1, 0, 0}; /* less than 6 / 64 below */
  expect_shares(crowded, first_takes, 4);
  const double spaced[] = {2, 5, 5 - 0.15, 5}, two_take[] = {0, 0.5, 0, 0.5};
  expect_shares(spaced, two_take, 4);
  const double beside[] = {2, 5, 3, 4, 1, 9}, not_lowest[] = {0, 1, 0, 0, 0, 0}; /* the 9 becomes -inf */
  expect_shares(beside, not_lowest, 6);
}

/* m starts at 1, which takes no derivative, and at a tie leaves all of it to the scores. */
static void test_start(void **state) {
  (void)state;
  const double below[] = {0.5, -2, 0.75}, none_takes[] = {0, 0, 0};
  expect_shares(below, none_takes, 3);
  const double at_start[] = {0.5, 1, 0.25}, one_takes[] = {0, 1, 0};
  expect_shares(at_start, one_takes, 3);
  const double both[] = {1, 0.5, 1}, two_take[] = {0.5, 0, 0.5};
  expect_shares(both, two_take, 3);
}

/* Where rounding of scores chooses another element, the elements that it may choose have a kink. */
static void expect_kinks(const double *score, const bool *kink, int count) {
  scores s;
  luattn_error err;
  bool some;
  open_scores(&s, score, count);
  assert_int_equal(cpu_gradient_kinks(s.spec, &s.c.args, 0x1p-20, &some, &err), LUATTN_OK);
  assert_true(some);
  for (int j = 0; j < count; j++)
    if ((tensor_get(&s.c.dk, j) > 1e-3) != kink[j]) fail_msg("kink of element %d: %g", j, tensor_get(&s.c.dk, j));
  close_scores(&s);
}

static void test_kinks(void **state) {
  (void)state;
  expect_kinks((const double[]){2, 5, 5 - 1e-7}, (const bool[]){false, true, true}, 3);
  expect_kinks((const double[]){2, 5, 4.9}, (const bool[]){false, false, false}, 3);
  expect_kinks((const double[]){0.5, 1 + 1e-8, 0.25}, (const bool[]){false, true, false}, 3);
  expect_kinks((const double[]){0.5, 0.9, 0.25}, (const bool[]){false, false, false}, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_start),
                                     cmocka_unit_test(test_kinks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
