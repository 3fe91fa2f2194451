/* spec_tangents.h: forward mode of a spec: the tangents of its hooks, by ir_tangent.
 *
 * Every variable that has a tangent has a twin: VAR_SCORE_TANGENT, VAR_STATE_TANGENT, .. A read of input i has the read
 * of input SPEC_INPUT_TANGENT + i at the same index. What has no tangent has none in any expression: a tangent that is
 * not given costs nothing. */
#ifndef LUATTN_GEN_SPEC_TANGENTS_H
#define LUATTN_GEN_SPEC_TANGENTS_H

#include "gen/analysis/algebra/split.h"

#define SPEC_INPUT_TANGENT 12 /* number of input i's tangent in a LOAD: that + i */

/* What has a tangent. */
typedef struct tangent_sources {
  bool q, k, v;
  uint32_t inputs, scalars; /* a bit each */
  uint32_t stabilisers;     /* a bit for each state that counts as a constant (derived_spec); 0: none does */
} tangent_sources;

/* Expressions are IR_NONE where a tangent is 0. */
typedef struct spec_tangents {
  tangent_sources of;
  ir_ref query_mod, key_mod, value_mod; /* of an element after the mod, or as it is given if there is none */
  ir_ref score_mod;
  online_split split; /* the step whose tangents these are */
  ir_ref init[SPEC_MAX_STATE], term[SPEC_MAX_RED], prob, rescale, next[SPEC_MAX_STATE];
  ir_ref out; /* of the epilogue, VAR_OUT held: what its own tangent adds is `traced_online.out` of that */
  ir_ref lse;
} spec_tangents;

/* Fills *out with expressions in t->g, which must be the caller's own clone. A maximum's tangent is that of the element
 * that it is, of several their mean. Errors: those of split_online. */
luattn_status spec_tangents_of(arena *a, const traced_spec *t, const tangent_sources *of, spec_tangents *out,
                               luattn_error *err);

/* Of backward: tangents of what derived_spec and derived_mod have, along those of VAR_FINAL, VAR_DELTA, VAR_DLSE, VAR_PASS,
 * VAR_ROW, VAR_DP and VAR_GRAD too. Of terms, their values. */
typedef struct backward_tangents {
  ir_ref saved[DERIVED_MAX_ROWS], row[DERIVED_MAX_ROWS], prob, ds, dx[3];
  ir_ref weight[DERIVED_MAX_PASSES], factor[DERIVED_MAX_PASSES]; /* of row passes */
  ir_ref sum[DERIVED_MAX_SUMS]; /* of a sum; of what a maximum is of none: which element it is stays */
  const ir_ref *row_terms, *element_terms, *mod_terms[3]; /* of query_mod, key_mod, value_mod; NULL: there is no mod */
} backward_tangents;
/* `forward`: of the same spec. Errors: LUATTN_NO_MEMORY. */
luattn_status backward_tangents_of(arena *a, const traced_spec *t, const derived_spec *d, const spec_tangents *forward,
                                   backward_tangents *out, luattn_error *err);

#endif
