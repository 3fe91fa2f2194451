/* check.h: comparisons, each an error and its tolerance. Used by `luattn check` and by the GPU test sweep. */
#ifndef LUATTN_CLI_CHECK_H
#define LUATTN_CLI_CHECK_H

#include "cli/cli.h"

typedef struct check_line {
  char name[80];
  double error, tolerance;
  bool ok, is_accepted; /* accepted: not ok, and --own-backward says that it is meant so */
} check_line;

#define CHECK_MAX_LINES 64
typedef struct check_report {
  int count, failed;
  bool stops_gradient;     /* the spec has a stop_gradient, so finite differences are not its gradients */
  bool backward_disagrees; /* the spec's own backward, from differences */
  bool accepts_backward;   /* and all that disagrees is accepted */
  double loss_noise;       /* rounding error of the loss (slopes.c) */
  const char *lost;        /* a result that float32 itself does not have (check_lost), or NULL */
  double lost_error, lost_biggest;
  check_line line[CHECK_MAX_LINES];
  double slope[32]; /* by differences, along each scalar */
  uint32_t jumps;   /* a bit for each scalar at whose value the result has no derivative: not compared */
  const char *const *scalar_names;
} check_report;

/* Checks kernels against the CPU path in double precision, forward and backward (the gradients in `wants`,
 * luattn_wants), on the same stored values. Tolerances:
 * - f64: 1e-12, f32: 1e-5, of the largest value, plus twice (gradients: three times) the error of plain arithmetic in
 *   that type, which ill-conditioned hooks magnify: the larger one of hooks as they are written and as they are
 *   simplified, since kernels merge constants. In f64, that error is 2^-14 of the one of arithmetic with 16 bits
 *   less.
 * - f16, bf16: twice (gradients: three times) the error of the same computation with its intermediates
 *   rounded to that type, plus 1e-5 of the largest value (for the part in f32), and for o two roundings of
 *   the type.
 * - dq, dk and dv: the error of that computation is a maximum, at times over few elements, and may be small
 *   by luck. It counts at least as two standard deviations of its roundings: half a unit roundoff times the
 *   root of the sum of squares of the terms of each sum (cpu_gradient_noise). The tolerance also covers what
 *   rounded scores can change near a jump of a derivative, as relu's, or near a steep slope
 *   (cpu_gradient_kinks).
 * - gradients of inputs and scalars: sums that may cancel to nearly nothing, so the tolerance grows by twice
 *   the unit roundoff (f64: 1e-12, f32: 1e-5) times that root.
 * - all: the tolerance grows with the magnitude of scores (check.c, score_tolerance). */
luattn_status check_kernels(cli_gpu *gpu, const cli_problem *p, unsigned wants, check_report *out, luattn_error *err);

/* The same for given results, of the forward pass or of both. What `got` lacks is not compared. */
luattn_status check_results(const cli_problem *p, const cli_result *got, bool backward, check_report *out,
                            luattn_error *err);

/* After a comparison that failed, enters a result that plain arithmetic in float32 does not have either: not finite, or off
 * by a part in 128 of the largest. Not of packed sequences. */
luattn_status check_lost(const cli_problem *p, const cli_result *want, bool backward, check_report *out,
                         luattn_error *err);

/* Checks the CPU path against plain Lua, one score at a time: forward to 1e-12, gradients to 1e-6 and the
 * rounding error of a difference quotient, by check_slopes. p is float64. */
luattn_status check_plain(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err);

/* Checks the CPU path over packed sequences against itself over each alone, in double precision. */
luattn_status check_sequences(const cli_problem *p, check_report *out, luattn_error *err);

/* slopes.c: checks gradients of `got` against central differences of the plain forward: a sample of the
 * entries of each tensor, or, where so many scores would take long, all gradients at once along one random
 * direction. o_noise: of o, by cpu_forward_score_noise. */
luattn_status check_slopes(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                           cli_result *scratch, check_report *out, luattn_error *err);

/* Whether a hook calls stop_gradient: then derivatives are not those of differences. slopes.c */
bool spec_stops_gradient(const luattn_spec *spec);

/* Whether the online function's backward is written by hand. */
bool spec_gives_backward(const luattn_spec *spec);

/* Checks the adjoint identity: along a random direction, the gradients of `got` predict the change of the
 * loss, which central differences of the plain forward measure; once for q, k and v, once for inputs and
 * scalars. The difference is at most `allowed` plus the tolerance of check_slopes. p's arrays hold
 * float64. */
luattn_status check_adjoint(const cli_options *o, cli_problem *p, const cli_result *got, const array *o_noise,
                            const double allowed[2], cli_result *scratch, check_report *out, luattn_error *err);

/* Checks the adjoint identity for kernels, at the values that they read. A random direction is independent of
 * the errors of single gradients, so along it they add up to about the root of the sum of their squares. The
 * tolerance is four times that, for errors of three times plain half precision, as in check_kernels. Converts
 * p's arrays to float64. */
luattn_status check_kernels_adjoint(cli_gpu *gpu, const cli_options *o, cli_problem *p, check_report *out,
                                    luattn_error *err);
/* The same for given results of both passes. */
luattn_status check_results_adjoint(const cli_options *o, cli_problem *p, const cli_result *got, check_report *out,
                                    luattn_error *err);

/* The larger of two errors; NaN if one is, so that no later error replaces it. */
double check_worse(double a, double b);
void check_add(check_report *r, const char *name, double error, double tolerance); /* prints one line */
void check_print(const char *title, const check_report *r);

#endif
