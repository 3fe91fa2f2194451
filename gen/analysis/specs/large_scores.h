/* large_scores.h: luattn_target.large_scores: subtracts a row's maximum from its scores exactly, and has
 * backward read the maximum and log l in place of their rounded sum lse. */
#ifndef LUATTN_GEN_LARGE_SCORES_H
#define LUATTN_GEN_LARGE_SCORES_H

#include "gen/spec.h"

/* How many numbers a row forward saves beyond derived.num_saved: 2, the maximum and log l, or 0 where backward
 * reads no lse. */
int large_scores_count(const struct luattn_spec *spec);

/* Rewrites the online function of `spec` and its derivative, whose graph must be the caller's own clone. Errors:
 * LUATTN_UNSUPPORTED (the online function's lse is not a maximum plus a number, or backward reads it otherwise
 * than in score - lse), LUATTN_NO_MEMORY. */
luattn_status large_scores_apply(arena *a, struct luattn_spec *spec, luattn_error *err);

#endif
