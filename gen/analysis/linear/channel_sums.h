/* channel_sums.h: cuts an expression of a row's elements at its sums over the row's channels, and differentiates it.
 *
 * y_d = f(x_d, R), R_i = sum over the channels d of h_i(x_d). With the gradient dy of y:
 *
 *     G_i = sum over d of dy_d df/dR_i        dx_d = dy_d df/dx_d + sum over i of G_i dh_i/dx_d
 *
 * and likewise for what else f and h read. A pass over the row makes R, one G, and a third dx; without sums the last is all.
 */
#ifndef LUATTN_GEN_ANALYSIS_LINEAR_CHANNEL_SUMS_H
#define LUATTN_GEN_ANALYSIS_LINEAR_CHANNEL_SUMS_H

#include "gen/spec.h"

enum { CHANNEL_SUMS_MAX = 8 };

typedef struct channel_sums {
  int count;
  ir_ref of[CHANNEL_SUMS_MAX]; /* h_i: of VAR_X, VAR_D and what does not differ in the row */
  ir_ref value;                /* f: of the same, and VAR_RED i, which is R_i */
} channel_sums;

typedef struct channel_sums_grad {
  ir_ref weight[CHANNEL_SUMS_MAX]; /* dy df/dR_i: of VAR_GRAD, and what value reads; IR_NONE: 0 */
  ir_ref dx;                       /* of VAR_X: of VAR_GRAD, VAR_RED, and VAR_ROW i, which is G_i; IR_NONE: 0 */
  /* What parameters get of each channel: by f, of VAR_GRAD, and by the sums, of VAR_ROW. */
  derived_terms by_value, by_sums;
} channel_sums_grad;

/* Cuts r, which is not IR_NONE. hook: for messages. Errors: LUATTN_SPEC (more than CHANNEL_SUMS_MAX sums),
 * LUATTN_NO_MEMORY. */
luattn_status channel_sums_cut(const traced_spec *t, const char *hook, ir_ref r, channel_sums *out, luattn_error *err);

/* Errors: LUATTN_SPEC (too many parameters), LUATTN_NO_MEMORY. */
luattn_status channel_sums_derive(const traced_spec *t, const char *hook, const channel_sums *sums,
                                  channel_sums_grad *out, luattn_error *err);

/* Whether the value differs between channels of a row. */
bool channel_sums_by_channel(const ir *g, const channel_sums *sums);

#endif
