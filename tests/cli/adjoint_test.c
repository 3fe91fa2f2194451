/* adjoint_test.c: tests that the adjoint identity accepts the CPU path's gradients in each type, and rejects
 * wrong gradients. Where a derivative jumps, a score that is off by a rounding must not be a failure.
 *
 * usage: adjoint_test EXAMPLES */
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

static const char *folder;

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define OK(call) assert_int_equal((call) == LUATTN_OK ? LUATTN_OK : (print_error("%s\n", err.message), 1), LUATTN_OK)

/* Computes the CPU path's results in p's type. */
static void run(const cli_problem *p, cli_result *r) {
  luattn_error err;
  cli_binding bind;
  const DLDataType real = dtype_dl(p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
  OK(result_new(p, dtype_dl(p->dtype), real, true, r, &err));
  const luattn_args args = problem_args(p, r, true, &bind);
  OK(luattn_cpu_forward_in(p->spec, &args, p->dtype, &err));
  OK(luattn_cpu_backward_in(p->spec, &args, p->dtype, &err));
}

/* Counts failures of the check. Gradients named `wrong` are multiplied by five; NULL: none. */
static int failures(const char *name, const char *dtype, const char *wrong) {
  char path[4096];
  luattn_error err;
  luattn_spec *spec;
  cli_problem p;
  cli_result r;
  check_report report;
  snprintf(path, sizeof path, "%s/%s.lua", folder, name);
  const cli_options o = {.spec = path, .dtype = dtype, .shape = "1,4,2,50,70,16,24", .seed = 3};
  OK(luattn_spec_load(path, NULL, &spec, &err));
  OK(problem_read(spec, &o, true, &p, &err));
  run(&p, &r);
  array *const gradients[] = {&r.dq, &r.dk, &r.dv, &r.input_grad[0]};
  static const char *const names[] = {"dq", "dk", "dv", "input"};
  for (size_t i = 0; i < COUNT(names); i++)
    for (int64_t j = 0; wrong != NULL && strstr(wrong, names[i]) != NULL && j < array_count(gradients[i]); j++)
      array_set(gradients[i], j, 5 * array_get(gradients[i], j));
  OK(check_results_adjoint(&o, &p, &r, &report, &err));
  assert_int_equal(report.count, p.info.num_scalars > 0 || r.input_grad[0].storage != NULL ? 2 : 1);
  if (wrong == NULL && report.failed) check_print(path, &report);
  result_free(&r), problem_free(&p);
  luattn_spec_free(spec);
  return report.failed;
}

static const char *const examples[] = {"full", "causal", "alibi", "gemma2", "sigmoid", "t5_relative_bias", "cosine"};
static const char *const dtypes[] = {"f64", "f32", "bf16", "f16"};

static void test_holds(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(examples); i++)
    for (size_t d = 0; d < COUNT(dtypes); d++) assert_int_equal(failures(examples[i], dtypes[d], NULL), 0);
}

/* Makes all gradients wrong in a half type, where rounding along a direction may hide a single wrong
 * gradient. */
static void test_finds(void **state) {
  static const char *const wrong[] = {"dq", "dk", "dv"};
  (void)state;
  for (size_t i = 0; i < COUNT(examples); i += 2) {
    for (size_t w = 0; w < COUNT(wrong); w++)
      if (failures(examples[i], "f32", wrong[w]) != 1)
        fail_msg("%s: %s, five times as large, is not found", examples[i], wrong[w]);
    assert_int_equal(failures(examples[i], "bf16", "dq dk dv"), 1);
  }
  assert_int_equal(failures("sigmoid", "f32", "input"), 1);
  assert_int_equal(failures("t5_relative_bias", "bf16", "input"), 1);
}

/* Changes each element of q by up to two units in the last place of float, less than the error of a kernel's
 * QK^T. */
static void nudge(array *q) {
  uint32_t x = 12345;
  for (int64_t i = 0, n = array_count(q); i < n; i++) {
    x = x * 1664525 + 1013904223;
    array_set(q, i, array_get(q, i) * (x >> 31 ? 1 + 0x1p-22 : 1 - 0x1p-22));
  }
}

/* For relu attention with q nudged, returns the error of dq relative to its tolerance. *passes and *finds
 * tell whether the check accepts these results, and rejects them with one wrong element. */
static double dq_off(long seed, bool *passes, bool *finds) {
  char path[4096];
  luattn_error err;
  luattn_spec *spec;
  cli_problem p, nudged;
  cli_result exact, r;
  check_report report;
  double error = 0, biggest = 0;
  snprintf(path, sizeof path, "%s/relu.lua", folder);
  const cli_options o = {.spec = path, .dtype = "f32", .shape = "1,8,4,250,250,16", .seed = seed};
  OK(luattn_spec_load(path, NULL, &spec, &err));
  OK(problem_read(spec, &o, true, &p, &err));
  OK(problem_read(spec, &o, true, &nudged, &err));
  nudge(&nudged.q);
  run(&p, &exact), run(&nudged, &r);
  for (int64_t i = 0, n = array_count(&r.dq); i < n; i++) {
    error = worse(error, fabs(array_get(&r.dq, i) - array_get(&exact.dq, i)));
    biggest = fmax(biggest, fabs(array_get(&exact.dq, i)));
  }
  OK(check_results(&p, &r, true, &report, &err));
  *passes = report.failed == 0;
  if (!*passes) check_print(path, &report);
  array_set(&r.dq, 7, array_get(&r.dq, 7) + 3e-5 * biggest);
  OK(check_results(&p, &r, true, &report, &err));
  *finds = report.failed == 1;
  result_free(&exact), result_free(&r), problem_free(&p), problem_free(&nudged);
  luattn_spec_free(spec);
  return error / (1e-5 * biggest);
}

static void test_kinks(void **state) {
  (void)state;
  double most = 0;
  for (long seed = 5; seed <= 8; seed++) {
    bool passes, finds;
    most = worse(most, dq_off(seed, &passes, &finds));
    assert_true(passes);
    assert_true(finds);
  }
  assert_true(most > 2); /* otherwise no score was close enough to 0 */
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_holds), cmocka_unit_test(test_finds),
                                     cmocka_unit_test(test_kinks)};
  if (argc != 2) return 2;
  folder = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
