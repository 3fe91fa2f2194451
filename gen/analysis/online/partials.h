/* partials.h: the partial derivatives of an online function over a whole row. Internal to separate.c and row_pass.c. */
#ifndef LUATTN_GEN_PARTIALS_H
#define LUATTN_GEN_PARTIALS_H

#include "gen/analysis/algebra/derivation.h"

/* One array, so that one program evaluates them all. */
enum {
  P_RED = 0,
  LSE_RED = P_RED + SPEC_MAX_RED,
  TERM_S = LSE_RED + SPEC_MAX_RED,
  TERM_RED = TERM_S + SPEC_MAX_RED,
  TERM = TERM_RED + SPEC_MAX_RED * SPEC_MAX_RED,
  NUM_PARTIALS = TERM + SPEC_MAX_RED
};

typedef struct partials {
  ir_ref ref[NUM_PARTIALS];
  sample_lanes *value;
  double total[SPEC_MAX_RED][SPEC_MAX_RED][SAMPLE_ROWS]; /* [k'][k]: dR_k'/dR_k through all reductions in
                                                          * between */
} partials;

/* What of a reduction's adjoint the element form does not give. */
typedef struct wanted_adjoints {
  bool of_p[SPEC_MAX_RED], of_lse[SPEC_MAX_RED]; /* it reaches the loss through prob, through lse */
  bool gone[SPEC_MAX_RED];                       /* its adjoint vanishes */
  const char *why[SPEC_MAX_RED];                 /* in words; NULL: the element form gives all of it */
} wanted_adjoints;

/* S_jk as an expression: df_j/dR_k reduced over the row; IR_NONE: zero. False: it is not known. */
bool separate_reduced_partial(derivation *d, const partials *p, int j, int k, ir_ref *out);
/* Refuses a backward because of reduction k. */
luattn_status separate_refuse(derivation *d, int k, const char *why);

/* row_pass.c: finds d->adjoint of all live reductions, and the passes and sums that they read. */
luattn_status row_pass_take(derivation *d, const partials *p, const wanted_adjoints *want);

#endif
