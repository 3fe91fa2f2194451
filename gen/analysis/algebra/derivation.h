/* derivation.h: state shared by the steps that derive one online function (online/steps.h) and by what they have
 * proved. Internal to analysis/. */
#ifndef LUATTN_GEN_DERIVATION_H
#define LUATTN_GEN_DERIVATION_H

#include "gen/analysis/algebra/sample.h"
#include "gen/base/text.h"

#define LOWEST -1e30 /* scores below count as -inf */
/* A maximum is near the low number that it starts at where it is not so many times closer to 0. */
#define NEAR_START 16

typedef struct derivation {
  arena *a; /* scratch */
  const traced_spec *t;
  const traced_online *o;
  ir *g;
  text *how;
  luattn_error *err;
  sample *s;
  bool no_memory; /* sticky: an evaluation or a simplification ran out of memory, so later findings cannot be
                   * trusted */

  /* whole_row.c: the function over a whole row, in terms of VAR_SCORE and VAR_RED; after separate.c also of
   * the VAR_STATE of stabilisers, which count as constants. */
  online_split step; /* one online step; also reads VAR_STATE */
  int num_red;
  ir_ref score, red[SPEC_MAX_RED];
  ir_ref term[SPEC_MAX_RED], prob, next[SPEC_MAX_STATE], final[SPEC_MAX_FINAL];
  ir_ref norm; /* N = d out / d VAR_OUT */
  ir_ref p;    /* prob * norm */
  sample_lanes p_value, norm_value;
  bool forward_is_prob; /* the user's `forward` is shown to be p */

  /* separate.c */
  int num_arms;                                            /* of the last proof */
  bool too_long;                                           /* the last proof was given up */
  bool dropped[SPEC_MAX_STATE];                            /* stabilisers */
  double low_state[SPEC_MAX_STATE], low_red[SPEC_MAX_RED]; /* maxima of rows that have scores lie above; 0: none does */
  double low_score;                                        /* scores do: 0: nothing is known */
  bool from_one[SPEC_MAX_RED];                             /* R_k is a sum of exp(x - max x): at least 1 */
  bool live[SPEC_MAX_RED];                                 /* R_k carries gradient */
  ir_ref a_delta[SPEC_MAX_RED], b_dlse[SPEC_MAX_RED];      /* A_k = a delta + b dlse; IR_NONE: zero */
  ir_ref term_s[SPEC_MAX_RED];                             /* df_k/ds; IR_NONE: zero */
  bool elements_only;                                      /* a row pass is no way */
  bool by_passes;                                          /* a row pass wherever one is possible */

  /* row_pass.c: of a function that takes passes, in place of a_delta and b_dlse. */
  bool has_passes;
  ir_ref adjoint[SPEC_MAX_RED];  /* A_k, of VAR_PASS too; IR_NONE: zero. Of a maximum: over the number of elements that
                                   share it */
  ir_ref takes[SPEC_MAX_RED];    /* BOOL: whether an element has a share of a maximum's adjoint; IR_NONE: no maximum */
  ir_ref start[SPEC_MAX_RED];    /* what a maximum starts at, of leaves of the row */
  ir_ref at_start[SPEC_MAX_RED]; /* its adjoint where it is that; IR_NONE: zero */
  int num_passes, num_sums;
  derived_pass pass[DERIVED_MAX_PASSES];
  derived_sum sum[DERIVED_MAX_SUMS];
  ir_ref p_s;          /* dP/ds at fixed R, */
  ir_ref p_s_factored; /* and as N * dprob/ds, of which more is proved: backward computes the other */
} derivation;

/* Relative: the most by which two correct forms of one function differ on the sampled rows. */
#define DERIVATION_CLOSE 1e-8

/* Whether two correct forms of one function may differ so on a row with this slack. */
bool derivation_close(double x, double y, double slack);

const char *reduction_name(derivation *d, int k); /* for messages: "reduce_max kept in 'm'" */

/* Roots may be IR_NONE. */
void derivation_simplify(derivation *d, ir_ref *roots, int n);
sample_lanes *derivation_eval(derivation *d, const ir_ref *roots, int n); /* NULL: out of memory */
bool derivation_failed(const derivation *d);                              /* out of memory */
luattn_status derivation_no_memory(derivation *d);

#endif
