/* merge.h: merges the online states of two parts of a row, each computed from the initial state.
 *
 * Splits of the keys, cascades and ring attention compute parts of a row on their own: unscaled sums of prob * v
 * and the state after the last step. A merge gives the state, and the factor of each part's sum, as one run over
 * all of the keys would have them; the epilogue then applies as usual. Softmax: m = max(m1, m2), l = l1
 * exp(m1 - m) + l2 exp(m2 - m), and a part's factor is exp(m1 - m): equation 3 of FlashAttention (Dao et al.
 * 2022), for whatever the online function keeps.
 */
#ifndef LUATTN_GEN_MERGE_H
#define LUATTN_GEN_MERGE_H

#include "gen/spec.h"

/* Expressions of VAR_STATE, the state of the one part, and VAR_OTHER, that of the other. A part that keeps no
 * score has no share in a merge: the state of the other stands. */
typedef struct online_merge {
  ir_ref state[SPEC_MAX_STATE];
  ir_ref factor, other_factor; /* of the parts' sums of prob * v */
} online_merge;

/* Derives the merge from online_fwd, and tests it on random rows in three parts. Adds nodes to t->g. `scratch`
 * stays valid until the call returns. Errors: LUATTN_SPEC as online_derive, LUATTN_UNSUPPORTED: the function is
 * right, but no merge was found; the message has a row that shows it. */
luattn_status merge_derive(arena *scratch, const traced_spec *t, online_merge *out, luattn_error *err);

/* The factor that makes O of a row's sum, of VAR_STATE, without factors that do not depend on the state: parts have
 * these in common, and where one is 0 the whole row's O is. */
ir_ref merge_scale(ir *g, const traced_online *o);

/* Proves that a finished part still has its sum, and tests it on such rows: that this factor of it is neither 0 nor
 * infinite. Errors: LUATTN_UNSUPPORTED: it has not, or is not shown to; the message has a row that shows it. */
luattn_status merge_test_finished(arena *scratch, const traced_spec *t, luattn_error *err);

/* Tests on such rows that finished parts merge by their lse (luattn/merge.h): that the whole row's prob is a part's
 * times exp(lse of the part - lse), and that lse is the logarithm of the sum of exp of the parts'. Errors:
 * LUATTN_UNSUPPORTED: they do not, or there is no lse; the message has a row that shows it. */
luattn_status merge_test_lse(arena *scratch, const traced_spec *t, luattn_error *err);

#endif
