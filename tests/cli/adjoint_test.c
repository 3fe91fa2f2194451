/* adjoint_test.c: the adjoint identity holds for the CPU path's gradients in each type, and not for wrong
 * ones.
 *
 * usage: adjoint_test EXAMPLES */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "cli/check.h"
#include "luattn/compiler.h"

static const char *folder;

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define OK(call) \
  assert_int_equal((call) == LUATTN_OK ? LUATTN_OK : (print_error("%s\n", err.message), 1), LUATTN_OK)

/* The CPU path's results in p's own type. */
static void run(const cli_problem *p, cli_result *r) {
  luattn_error err;
  cli_binding bind;
  const DLDataType real = dtype_dl(p->dtype == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32);
  OK(result_new(p, dtype_dl(p->dtype), real, true, r, &err));
  const luattn_args args = problem_args(p, r, true, &bind);
  OK(luattn_cpu_forward_in(p->spec, &args, p->dtype, &err));
  OK(luattn_cpu_backward_in(p->spec, &args, p->dtype, &err));
}

/* wrong: which gradients become five times as large; NULL: none. */
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
    for (int64_t j = 0; wrong != NULL && strstr(wrong, names[i]) != NULL && j < array_count(gradients[i]);
         j++)
      array_set(gradients[i], j, 5 * array_get(gradients[i], j));
  OK(check_results_adjoint(&o, &p, &r, &report, &err));
  assert_int_equal(report.count, p.info.num_scalars > 0 || r.input_grad[0].storage != NULL ? 2 : 1);
  if (wrong == NULL && report.failed) check_print(path, &report);
  result_free(&r), problem_free(&p);
  luattn_spec_free(spec);
  return report.failed;
}

static const char *const examples[] = {"full",    "causal",           "alibi", "gemma2",
                                       "sigmoid", "t5_relative_bias", "cosine"};
static const char *const dtypes[] = {"f64", "f32", "bf16", "f16"};

static void test_holds(void **state) {
  (void)state;
  for (size_t i = 0; i < COUNT(examples); i++)
    for (size_t d = 0; d < COUNT(dtypes); d++) assert_int_equal(failures(examples[i], dtypes[d], NULL), 0);
}

/* In a half type, whose errors along a direction may hide one of them, all at once. */
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

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_holds), cmocka_unit_test(test_finds)};
  if (argc != 2) return 2;
  folder = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
