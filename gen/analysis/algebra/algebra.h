/* algebra.h: proves what a derivation claims, on every arm of every condition, with row reductions and
 * scalars as symbols.
 *
 * An expression becomes a form (normal_form.h). Where a condition is not decided, the claim is taken to each of its
 * sides, as a comparison to below, at and above (arms.h). So a claim that holds is true of all rows, scalars
 * and inputs for which prob has a value; what is not proved may be true all the same. No node is added to the
 * graph.
 */
#ifndef LUATTN_GEN_ALGEBRA_H
#define LUATTN_GEN_ALGEBRA_H

#include "gen/analysis/algebra/derivation.h"

/* Whether x = y for all scores, states, which count as any numbers, scalars and inputs. Scores below -1e30 are none.
 * For expressions without reductions. */
bool algebra_same(arena *a, const traced_spec *t, ir_ref x, ir_ref y);
bool algebra_not_below(arena *a, const traced_spec *t, ir_ref x); /* 0, likewise */

/* Whether x = c * r * y; where x and y are both 0, r may be anything. */
bool algebra_proportional(derivation *d, ir_ref x, double c, ir_ref r, ir_ref y);
bool algebra_equal(derivation *d, ir_ref x, ir_ref y);
bool algebra_is_zero(derivation *d, ir_ref x);

/* The derivative by a number of the row of what depends on it directly and through reductions. */
typedef struct algebra_chain {
  ir_ref direct;         /* by the number itself */
  const ir_ref *by_red;  /* [num_red]: by reductions */
  const ir_ref *between; /* [j * SPEC_MAX_RED + k]: df_j/dR_k, of an element */
  const ir_ref *of_term; /* [num_red]: df_j by the number, of an element; NULL: the number is R_k */
  int k;
} algebra_chain;

/* Whether that is 0. A sum over the row of what is a multiple of a term is that multiple of its reduction;
 * other sums are symbols. */
bool algebra_vanishes(derivation *d, const algebra_chain *c);

#endif
