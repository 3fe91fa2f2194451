/* steps.h: the steps of a derivation (algebra/derivation.h), in order. Internal to the files of online/. */
#ifndef LUATTN_GEN_STEPS_H
#define LUATTN_GEN_STEPS_H

#include "gen/analysis/algebra/derivation.h"

/* whole_row.c: fills the first part; checks that the epilogue is linear, that splitting a row into two steps
 * changes nothing, and that `forward` agrees. */
luattn_status whole_run(derivation *d);

/* Measures what rounding makes of each row, and leaves out those of which it makes much. */
luattn_status whole_find_slack(derivation *d);

/* leaves.c: the parameters that the function reads, each once, at most so many. Returns how many there are, or -1: out
 * of memory. */
#define ONLINE_MAX_LEAVES 48
int derivation_leaves(const derivation *d, ir_ref leaf[ONLINE_MAX_LEAVES]);

/* What of the reductions' adjoints the element form does not give. */
typedef struct wanted_adjoints {
  struct partials *partials;
  bool of_p[SPEC_MAX_RED], of_lse[SPEC_MAX_RED]; /* it reaches the loss through prob, through lse */
  bool gone[SPEC_MAX_RED];                       /* its adjoint vanishes */
  const char *why[SPEC_MAX_RED];                 /* in words; NULL: the element form gives all of it */
  int first; /* the reduction that says why the element form does not do, a maximum if there is one; -1: it gives all */
} wanted_adjoints;

/* separate.c: the adjoints of the reductions, as far as the element form gives them. `leaf` are the parameters whose
 * derivatives are needed, too. */
luattn_status separate_reductions(derivation *d, bool want_delta, bool want_dlse, const ir_ref *leaf, int num_leaves,
                                  wanted_adjoints **out);
#define SEPARATE_LIVE_MAXIMUM \
  "this maximum does not cancel, or is not shown to, and its derivative lives on one element of the row"

/* x / y as an expression that is free of VAR_SCORE; IR_NONE if the quotient depends on it. x is not zero. */
ir_ref separate_ratio(derivation *d, ir_ref x, ir_ref y);
/* The same for x = dP/dwrt and y = P, where also the slope of the epilogue's factor over that factor may be it. */
ir_ref separate_log_slope(derivation *d, ir_ref x, ir_ref wrt);
/* Whether there is such a slope, but it divides by what may be 0. */
bool separate_log_slope_divides(derivation *d, ir_ref x, ir_ref wrt);
bool separate_equal(derivation *d, ir_ref x, ir_ref y);

void proof_of_factor(derivation *d, int k); /* proof.c: adds to `how` what a_delta[k] is, and on how many arms */

/* remedy.c: "; .. write .., ": names the term that keeps a maximum in, and how to write it, if a way is found; "" if not.
 */
const char *remedy_term(derivation *d);
/* Refuses a backward because of reduction k. */
luattn_status remedy_refuse(derivation *d, int k, const char *why);

/* row_pass.c: finds d->adjoint of all live reductions, and the passes and sums that they read. */
luattn_status row_pass_take(derivation *d, const wanted_adjoints *want);
/* R_k, a sum, as a sum of a pass. IR_NONE: there is no room. */
ir_ref row_pass_sum(derivation *d, int k);

/* recover.c: replaces VAR_RED by values that forward keeps (VAR_STATE, VAR_FINAL). Returns the first reduction that none
 * of these gives; -1: all are replaced, or out of memory. */
#define RECOVER_MAX_ROOTS (2 + 2 * DERIVED_MAX_TERMS + 2 * DERIVED_MAX_PASSES + DERIVED_MAX_SUMS)
int recover_rows(derivation *d, ir_ref *roots, int n);
luattn_status recover_refuse(derivation *d, int k);

#endif
