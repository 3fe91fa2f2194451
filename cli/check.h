/* check.h: comparisons, each an error beside its tolerance. Used by `luattn check` and by the GPU test sweep.
 */
#ifndef LUATTN_CLI_CHECK_H
#define LUATTN_CLI_CHECK_H

#include "cli/cli.h"

typedef struct check_line {
  char name[80];
  double error, tolerance;
  bool ok;
} check_line;

#define CHECK_MAX_LINES 64
typedef struct check_report {
  int count, failed;
  check_line line[CHECK_MAX_LINES];
} check_report;

/* Kernels against the CPU path in double precision, forward and backward, on the same stored values.
 * f64: 1e-12, f32: 1e-5, of the largest value. f16, bf16: twice (gradients: three times) the error of the
 * same computation with its intermediates rounded to that type, plus 1e-5 of the largest value (what is left
 * of f32), and for o two roundings of the type. Gradients of inputs and scalars are sums that may cancel to
 * nearly nothing: to their tolerance comes four times the unit roundoff times the root of the sum of squares
 * of what is summed (cpu_gradient_noise). */
luattn_status check_kernels(cli_gpu *gpu, const cli_problem *p, check_report *out, luattn_error *err);

/* The CPU path against plain Lua, one score at a time: forward to 1e-12; gradients of a random sample of
 * entries against central differences of the plain forward (step 1e-5, so to 1e-6). p is float64. */
luattn_status check_plain(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err);

void check_print(const char *title, const check_report *r);

#endif
