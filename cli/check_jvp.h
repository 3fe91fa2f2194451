/* check_jvp.h: tangents of a problem's tensors, for run --tangents and check --jvp: those of the CPU path (check_jvp.c),
 * and of kernels (check_jvp_kernels.c). */
#ifndef LUATTN_CLI_CHECK_JVP_H
#define LUATTN_CLI_CHECK_JVP_H

#include "cli/check.h"

/* Random tangents of q, k, v, real inputs and scalars, and of dout and dlse where the problem has them, and room for those
 * of o and lse. It points into itself. */
typedef struct cli_tangents {
  array q, k, v, input[12], o, lse, dout, dlse;
  luattn_input inputs[12];
  luattn_scalar scalar[CLI_MAX_PAIRS];
  luattn_tangents given; /* of forward: without those of dout and dlse */
} cli_tangents;

luattn_status tangents_new(const cli_problem *p, uint64_t seed, cli_tangents *out, luattn_error *err);
void tangents_free(cli_tangents *t);

/* Checks the tangents of the CPU path along a random direction: beside central differences of the plain forward, and, for
 * a spec whose backward is derived, by <J t, u> = <t, J' u>. p is float64. */
luattn_status check_jvp(const cli_options *o, cli_problem *p, check_report *out, luattn_error *err);

/* Along what kernels are checked. */
enum { CHECK_ALONG_Q = 1, CHECK_ALONG_KV = 2, CHECK_ALONG_OTHERS = 4 /* inputs and scalars */, CHECK_ALONG_ALL = 7 };

/* Checks kernels' tangents of forward, and of backward where the spec has one, along random directions, against the CPU
 * path's: relative to the largest number of each result, and absolutely where that is below 1. Where
 * kernels of backward are refused, returns LUATTN_UNSUPPORTED, and `out` has the lines of forward; else it has none then. */
luattn_status check_jvp_kernels(cli_gpu *gpu, const cli_options *o, const cli_problem *p, unsigned along,
                                check_report *out, luattn_error *err);

#endif
