/* merge_proof.h: proves that two parts of a row merge as one row, by algebra (algebra.h): of n parts by
 * merging one after the other. */
#ifndef LUATTN_GEN_PARTS_H
#define LUATTN_GEN_PARTS_H

#include "gen/analysis/algebra/derivation.h"
#include "gen/analysis/online/merge.h"

/* Whether a step over one part, from the state of the other, gives what one step over both gives: tiles do
 * not matter. *what: what is not shown to be the row's. */
bool parts_step_as_row(derivation *d, const char **what);
/* Whether the rule gives the states of both parts' scores, and prob of each part's. */
bool parts_merge_by_state(derivation *d, const online_merge *merge);
/* Whether `scale`, an expression of the state after a row of scores, is neither 0 nor divides by 0. */
bool parts_keep_sums(derivation *d, ir_ref scale);
/* Whether the parts' P and lse give the row's, each part weighed by exp(its lse - the row's). */
bool parts_merge_by_lse(derivation *d);

#endif
