/* row_pass_test.c: every example's gradients by row passes (LUATTN_ROW_PASSES=1) beside those of the element form, on
 * the CPU in float64. Both are the same sums, so that they differ by rounding: 1e-12 of a gradient's largest element.
 *
 * usage: cli_row_pass_test SPEC.lua.. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "cli/cli.h"
#include "common/fail.h"
#include "tests/support/worse.h"

/* Heads in groups, keys of two tiles and part of a third, and rows that keep nothing where q is longer. */
static const char *const shapes[] = {"2,4,2,37,140,6,4", "1,2,2,70,5,8,4"};

typedef struct both {
  luattn_spec *spec[2]; /* by elements, by passes */
  cli_problem p[2];
  cli_result r[2];
} both;

static luattn_status run_one(both *x, int i, const char *path, const char *shape, luattn_error *err) {
  const cli_options o = {.spec = path, .dtype = "f64", .shape = shape, .layout = "bhsd", .seed = 3};
  const DLDataType f64 = {kDLFloat, 64, 1};
  setenv("LUATTN_ROW_PASSES", i == 0 ? "0" : "1", 1);
  luattn_status status = luattn_spec_load(path, NULL, &x->spec[i], err);
  if (status == LUATTN_OK) status = problem_read(x->spec[i], &o, true, &x->p[i], err);
  if (status == LUATTN_OK) status = result_new(&x->p[i], f64, f64, true, &x->r[i], err);
  if (status != LUATTN_OK) return status;
  cli_binding bind;
  const luattn_args args = problem_args(&x->p[i], &x->r[i], true, &bind);
  TRY(luattn_cpu_forward(x->spec[i], &args, err));
  return luattn_cpu_backward(x->spec[i], &args, err);
}

/* How far two arrays are apart, as a part of the largest element. */
static double apart(const array *a, const array *b) {
  double most = 0, error = 0;
  if (a->storage == NULL || b->storage == NULL) return a->storage == b->storage ? 0 : INFINITY;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double x = array_get(a, i), y = array_get(b, i);
    most = fmax(most, fabs(x));
    error = worse(error, fabs(x - y));
  }
  return error == 0 ? 0 : error / most;
}

static int compare(const both *x, const char *path, const char *shape) {
  const cli_result *a = &x->r[0], *b = &x->r[1];
  double worst =
      worse(worse(apart(&a->o, &b->o), apart(&a->dq, &b->dq)), worse(apart(&a->dk, &b->dk), apart(&a->dv, &b->dv)));
  worst = worse(worst, apart(&a->scalar_grads, &b->scalar_grads));
  for (int i = 0; i < 12; i++) worst = worse(worst, apart(&a->input_grad[i], &b->input_grad[i]));
  if (worst <= 1e-12) return 0;
  printf("%s --shape %s: differs by %.1e\n", path, shape, worst);
  return 1;
}

int main(int argc, char **argv) {
  int failed = 0, by_passes = 0;
  for (int i = 1; i < argc; i++) {
    for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
      both *x = calloc(1, sizeof *x);
      luattn_error err;
      if (x == NULL) return 1;
      if (run_one(x, 0, argv[i], shapes[j], &err) != LUATTN_OK ||
          run_one(x, 1, argv[i], shapes[j], &err) != LUATTN_OK) {
        printf("%s: %s\n", argv[i], err.message);
        failed++;
      } else {
        by_passes += j == 0 && luattn_spec_row_passes(x->spec[1]) > 0;
        failed += luattn_spec_row_passes(x->spec[0]) != 0 || compare(x, argv[i], shapes[j]);
      }
      for (int k = 0; k < 2; k++) result_free(&x->r[k]), problem_free(&x->p[k]), luattn_spec_free(x->spec[k]);
      free(x);
    }
  }
  printf("%d specs, %d by passes, %d failed\n", argc - 1, by_passes, failed);
  return failed > 0 || by_passes == 0;
}
