/* row_sums.h: sums over a row, or over a part of one, in terms of what its reductions are. Internal to
 * algebra.c and merge_proof.c. */
#ifndef LUATTN_GEN_ROW_SUMS_H
#define LUATTN_GEN_ROW_SUMS_H

#include "gen/analysis/algebra/arms.h"

/* `value`, of each element of `part`, where reductions are those of `role`. */
typedef struct row_sum_of {
  ir_ref value;
  arms_role role, part;
} row_sum_of;

/* Its sum over the part, where the sums of terms are known; what is left of it is a new symbol, `serial`,
 * which a claim gives to one sum alone. */
const form *row_sum(arms *A, row_sum_of x, int serial);
const form *row_sum_unknown(arms *A, int serial);

/* Whether x is 0 or above, as far as this arm knows. */
bool algebra_is_not_below(arms *A, const form *x);

/* Whether the claim holds on all arms, shown with so many terms of forms: algebra.c. */
bool algebra_proves(derivation *d, arms_claim *claim, void *what, long work);

#endif
