/* check_test.c: in f64, a comparison with the CPU path accepts an ill-conditioned spec whose terms are added in another
 * order, and refuses results that are off by a part in 1e9, or NaN. In f32 it says whether float32 has what the hooks ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "cli/check.h"
#include "luattn/compiler.h"
#include "tests/support/worse.h"

#define OK(call) assert_int_equal((call) == LUATTN_OK ? LUATTN_OK : (print_error("%s\n", err.message), 1), LUATTN_OK)

#define SCORE(text)                                                                                 \
  "return attention { scalars = { c = 100 }, score_mod = function(score, b, h, q, kv) return " text \
  " end,\n"                                                                                         \
  "  block_mask = causal() }"

/* Differences of numbers of 6e4, and a bias of the row that changes nothing. */
static const char one_order[] = SCORE("sqrt(score * score + 4e6) * 30 - 60000 + 0.1 * kv - q * c"),
                  other_order[] = SCORE("(sqrt(score * score + 4e6) - 2000) * 30 - q * c + kv / 10"),
                  /* hooks that lose nothing */
    plain[] = SCORE("score * (c / 50)");

typedef struct checked {
  luattn_spec *spec;
  cli_problem p;
  cli_result r;
} checked;

/* Computes both passes of `source` in double, for inputs of a type. */
static void run_of(checked *c, const char *source, const char *dtype, long seed) {
  luattn_error err;
  cli_binding bind;
  const DLDataType f64 = dtype_dl(LUATTN_F64);
  const cli_options o = {.spec = "s.lua", .dtype = dtype, .shape = "1,2,1,60,60,16", .seed = seed};
  OK(luattn_spec_load_text("s.lua", source, strlen(source), NULL, &c->spec, &err));
  OK(problem_read(c->spec, &o, true, &c->p, &err));
  OK(result_new(&c->p, f64, f64, true, &c->r, &err));
  const luattn_args args = problem_args(&c->p, &c->r, true, &bind);
  OK(luattn_cpu_forward(c->spec, &args, &err));
  OK(luattn_cpu_backward(c->spec, &args, &err));
}

static void run(checked *c, const char *source, long seed) { run_of(c, source, "f64", seed); }

static void end(checked *c) {
  result_free(&c->r), problem_free(&c->p);
  luattn_spec_free(c->spec);
}

static double biggest(const array *a) {
  double most = 0;
  for (int64_t i = 0; i < array_count(a); i++) most = fmax(most, fabs(array_get(a, i)));
  return most;
}

/* dv, in which an error shows best, is off by more than a well-conditioned spec's may be. */
static void test_another_order_passes(void **state) {
  (void)state;
  int beyond = 0;
  for (long seed = 0; seed < 12; seed++) {
    luattn_error err;
    checked want, got;
    check_report report;
    run(&want, one_order, seed), run(&got, other_order, seed);
    OK(check_results(&want.p, &got.r, true, &report, &err));
    if (report.failed) check_print("another order", &report);
    assert_int_equal(report.failed, 0);
    for (int i = 0; i < report.count; i++)
      beyond += strcmp(report.line[i].name, "dv") == 0 && report.line[i].error > 1e-12 * biggest(&want.r.dv);
    end(&want), end(&got);
  }
  assert_true(beyond > 3);
}

static void refuses(const char *source) {
  static const char *const names[] = {"out", "dq", "dk", "dv"};
  for (int w = 0; w < 4; w++) {
    luattn_error err;
    checked c;
    check_report report;
    run(&c, source, 3);
    array *const wrong[] = {&c.r.o, &c.r.dq, &c.r.dk, &c.r.dv};
    OK(check_results(&c.p, &c.r, true, &report, &err));
    assert_int_equal(report.failed, 0);
    for (int64_t i = 0; i < array_count(wrong[w]); i++) array_set(wrong[w], i, array_get(wrong[w], i) * (1 + 1e-9));
    OK(check_results(&c.p, &c.r, true, &report, &err));
    if (report.failed != 1) fail_msg("%s, off by 1e-9, is accepted", names[w]);
    end(&c);
  }
}

static void test_faults_fail(void **state) {
  (void)state;
  refuses(one_order);
  refuses(plain);
}

/* Right results, then a wrong lse, of a spec of whose numbers the type keeps no digit, or all. Right ones fail too if they
 * are lost, as no tolerance is known. */
static void says_lost(const char *source, const char *dtype, bool lost) {
  luattn_error err;
  checked c;
  check_report report;
  run_of(&c, source, dtype, 3);
  OK(check_results(&c.p, &c.r, true, &report, &err));
  assert_int_equal(report.failed > 0, lost);
  assert_int_equal(report.lost != NULL, lost);
  for (int64_t i = 0; i < array_count(&c.r.lse); i++) array_set(&c.r.lse, i, array_get(&c.r.lse, i) * 1.5 + 1);
  OK(check_results(&c.p, &c.r, true, &report, &err));
  assert_true(report.failed > 0);
  assert_int_equal(report.lost != NULL, lost);
  end(&c);
}

static void test_lost_numbers(void **state) {
  (void)state;
  static const char lost[] = SCORE("score + 0.01 / (0.1 * kv - 0.5 + 1e-7)");
  static const char exact[] = SCORE("score + 0.01 / (0.1 * (kv - 5) + 1e-3)");
  static const char *const types[] = {"f32", "bf16"};
  for (int i = 0; i < 2; i++) says_lost(lost, types[i], true), says_lost(exact, types[i], false);
  says_lost(lost, "f64", false);
}

/* A NaN among results fails their comparison, also where a later element is right, or wrong by a number. */
static void test_nan_stays(void **state) {
  (void)state;
  const double error[] = {1e-14, NAN, 1e-15, 0};
  double worst = 0, most = 0;
  check_report r = {0};
  for (size_t i = 0; i < 4; i++) worst = check_worse(worst, error[i]);
  assert_true(isnan(worst) && isnan(check_worse(NAN, INFINITY)));
  for (size_t i = 2; i < 4; i++) most = check_worse(most, error[i]);
  assert_true(most == 1e-15);
  for (size_t i = 0; i < 4; i++) { /* and in comparisons of tests */
    assert_true(isnan(worse(error[i], NAN)) && isnan(worse(NAN, error[i])));
    assert_true(isnan(error[i]) || worse(error[i], INFINITY) == INFINITY);
    assert_true(isnan(error[i]) || worse(error[i], 0) == error[i]);
  }
  check_add(&r, "nan", worst, 1e-12), check_add(&r, "numbers", most, 1e-12);
  assert_int_equal(r.failed, 1);
  assert_false(r.line[0].ok);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_another_order_passes), cmocka_unit_test(test_faults_fail),
                                     cmocka_unit_test(test_lost_numbers), cmocka_unit_test(test_nan_stays)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
