/* online.h: the derivative of an online function, as a function of one element and of row numbers.
 *
 * The function is run once over a whole row. With reductions R_k = sum or max over i of f_k(s_i, R_0 ..
 * R_{k-1}), it gives P_i = prob(s_i, R) * N(R)   and   lse(R), and the loss gradient is ds_i = dP_i dP_i/ds_i
 * + sum over k of A_k df_k/ds_i,     A_k = a_k(R) delta + b_k(R) dlse, where a_k = (dP/dR_k) / P is
 * free of s: then sum over j of dP_j dP_j/dR_k is a_k delta, delta = sum over j of dP_j P_j = rowsum(dO * O).
 * A reduction whose total adjoint vanishes (softmax's maximum) drops out. An adjoint that is not shown to have this
 * form takes a row pass (row_pass.c).
 */
#ifndef LUATTN_GEN_ONLINE_H
#define LUATTN_GEN_ONLINE_H

#include "gen/analysis/algebra/sample.h"
#include "gen/base/text.h"

/* Row numbers are VAR_FINAL[i] (numbered as in traced_online) and VAR_STATE[i] (after the last step). */
typedef struct online_grad {
  ir_ref prob;                  /* P, of VAR_SCORE */
  ir_ref ds;                    /* of VAR_SCORE, VAR_DP, VAR_DELTA, VAR_DLSE */
  derived_terms rows, elements; /* gradients of the parameters inside the online function */
  int num_passes, num_sums;     /* row passes, as in derived_spec */
  uint32_t stabilisers;         /* likewise */
  derived_pass pass[DERIVED_MAX_PASSES];
  derived_sum sum[DERIVED_MAX_SUMS];
} online_grad;

/* `scratch` stays valid until the call returns. `how` receives what was found, in words. Errors: LUATTN_SPEC
 * (the function contradicts itself), LUATTN_UNSUPPORTED (it is right, but its backward cannot be derived). */
luattn_status online_derive(arena *scratch, const traced_spec *t, online_grad *out, text *how, luattn_error *err);

/* Adds a term for leaf (a LOAD or a scalar), merging it with one of the same leaf and index. False: too
 * many. */
bool online_add_term(ir *g, derived_terms *terms, ir_ref leaf, ir_ref value);

/* Differentiable leaves under roots[0 .. n): LOADs of inputs marked grad and scalars, each once. At most
 * `max`; returns how many there are, or -1: out of memory. */
int online_leaves(const traced_spec *t, const ir_ref *roots, int n, ir_ref *leaf, int max);

#endif
