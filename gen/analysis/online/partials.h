/* partials.h: the partial derivatives of an online function over a whole row. Internal to separate.c and row_pass.c. */
#ifndef LUATTN_GEN_PARTIALS_H
#define LUATTN_GEN_PARTIALS_H

#include "gen/analysis/online/steps.h"

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

/* S_jk as an expression: df_j/dR_k reduced over the row; IR_NONE: zero. False: it is not known. */
bool separate_reduced_partial(derivation *d, const partials *p, int j, int k, ir_ref *out);

#endif
