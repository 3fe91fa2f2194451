/* naive_dual.h: a forward pass and its tangents by dual numbers, one node of the traced hooks at a time over whole rows:
 * without tiles, without reductions taken apart, and with every derivative written once more by hand. */
#ifndef LUATTN_TESTS_NAIVE_DUAL_H
#define LUATTN_TESTS_NAIVE_DUAL_H

#include "cli/cli.h"

/* What has tangents: arrays like those of the problem, or with storage NULL. */
typedef struct dual_tangents {
  array q, k, v, input[12];
  double scalar[32]; /* in the spec's order */
} dual_tangents;

/* Writes [batch, heads, q_len, dim_v] and [batch, heads, q_len] in double: o, its tangent, lse, its tangent. `dropped`:
 * a byte for each weight that dropout drops; NULL: none. The problem has entries of equal lengths. */
void naive_dual(const cli_problem *p, const dual_tangents *t, const unsigned char *dropped, double *o, double *o_t,
                double *lse, double *lse_t);

#endif
