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
  bool stops_gradient;     /* somewhere, so that differences are not its measure */
  bool backward_disagrees; /* the spec's own, with differences */
  double loss_noise;       /* by slopes.c: what rounding does to the loss */
  check_line line[CHECK_MAX_LINES];
  double slope[32]; /* by differences, along each scalar */
  uint32_t jumps;   /* a bit for each scalar at whose value the result has no derivative: not compared */
  const char *const *scalar_names;
} check_report;

/* Kernels against the CPU path in double precision, forward and backward (the gradients in `wants`,
 * luattn_wants), on the same stored values. f64: 1e-12, f32: 1e-5, of the largest value. f16, bf16: twice
 * (gradients: three times) the error of the same computation with its intermediates rounded to that type,
 * plus 1e-5 of the largest value (what is left of f32), and for o two roundings of the type. The error of
 * that computation is a maximum, of few elements at times, and may be small by luck: for dq, dk and dv it
 * counts as two standard deviations of its roundings at least, half a unit roundoff times the root of the sum
 * of squares of what is summed each (cpu_gradient_noise). Gradients of inputs and scalars are sums that may
 * cancel to nearly nothing: their tolerance grows by twice the unit roundoff (f64: 1e-12, f32: 1e-5) times
 * that root. That of dq, dk and dv grows by what rounded scores can change near a jump of a derivative, as
 * relu's, or near a steep slope (cpu_gradient_kinks). Every tolerance grows with the magnitude of scores:
 * check.c, score_tolerance. */
luattn_status check_kernels(cli_gpu *gpu, const cli_problem *p, unsigned wants, check_report *out,
                            luattn_error *err);

/* The same for results that are at hand: of the forward pass alone, or of both. What `got` does not hold is
 * not compared. */
luattn_status check_results(const cli_problem *p, const cli_result *got, bool backward, check_report *out,
                            luattn_error *err);

/* The CPU path against plain Lua, one score at a time: forward to 1e-12, gradients to 1e-6 and what rounding
 * does to a difference quotient, by check_slopes. p is float64. */
luattn_status check_plain(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err);

/* slopes.c: gradients of `got` against central differences of the plain forward: a sample of the entries of
 * each tensor, or, where there are so many scores that this would take long, all gradients at once along one
 * random direction. o_noise: of o, by cpu_forward_score_noise. */
luattn_status check_slopes(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                           cli_result *scratch, check_report *out, luattn_error *err);

/* Is the online function's backward written by hand? */
bool spec_gives_backward(const luattn_spec *spec);

/* The adjoint identity: the gradients of `got` along a random direction are what the loss rises along it, by
 * central differences of the plain forward; once for q, k and v, once for inputs and scalars. Off by
 * `allowed` at most, and by what check_slopes allows. p's arrays hold float64. */
luattn_status check_adjoint(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                            const double allowed[2], cli_result *scratch, check_report *out,
                            luattn_error *err);

/* The adjoint identity for kernels, at the values that they read. A random direction knows nothing of the
 * errors of single gradients, so that along it they are together as large as the root of the sum of their
 * squares. Allowed are four times that, of errors that are, as in check_kernels, three times those of plain
 * half precision. Makes p's arrays float64. */
luattn_status check_kernels_adjoint(cli_gpu *gpu, const cli_options *o, cli_problem *p, check_report *out,
                                    luattn_error *err);
/* The same for results of both passes that are at hand. */
luattn_status check_results_adjoint(const cli_options *o, cli_problem *p, const cli_result *got,
                                    check_report *out, luattn_error *err);

void check_add(check_report *r, const char *name, double error, double tolerance); /* one line */
void check_print(const char *title, const check_report *r);

#endif
