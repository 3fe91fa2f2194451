/* linear_recurrence.h: linear attention token by token, in double precision: the definition that kernels are compared with.
 *
 * The state S [k_dim, v_dim] of a value head becomes, for each token t,
 *
 *     S <- Diag(exp(g_t)) S;   S <- S - e_t (r_t' S)';   S <- S + k_t b_t';   o_t = scale * q_t' S
 *
 * g is the logarithm of a decay; what lies below LINEAR_LEAST_LOG counts as that, whose exponential is 0. r reads the state
 * and e removes what it read, before the decay if `before`. b is what is written: v times its strength. */
#ifndef LUATTN_GEN_LINEAR_RECURRENCE_H
#define LUATTN_GEN_LINEAR_RECURRENCE_H

#include <stdbool.h>
#include <stddef.h>

#include "luattn/status.h"

#define LINEAR_LEAST_LOG -1000.0

/* The rows of one value head of a sequence, contiguous. */
typedef struct linear_rows {
  int tokens, k_dim, v_dim;
  int g_width; /* 0: no decay; 1: one a token; k_dim: one a channel */
  bool before;
  double scale;
  const double *q, *k; /* [tokens][k_dim] */
  const double *b;     /* [tokens][v_dim] */
  const double *g;     /* [tokens][g_width] */
  const double *r, *e; /* [tokens][k_dim]; r NULL: nothing is erased. e NULL: k */
  const double *state; /* [k_dim][v_dim]; NULL: 0 */
} linear_rows;

/* Gradients of linear_rows' members, of the same shapes. Each is stored, not added to; NULL: not wanted. */
typedef struct linear_gradients {
  double *q, *k, *b, *g, *r, *e, *state;
} linear_gradients;

/* Computes o [tokens][v_dim] and the state after the last token [k_dim][v_dim]; either may be NULL. Errors:
 * LUATTN_NO_MEMORY. */
luattn_status linear_forward(const linear_rows *rows, double *o, double *state, luattn_error *err);

/* Computes gradients from those of o, and of the state after the last token (NULL: 0). Keeps some 2 sqrt(tokens) states.
 * Errors: LUATTN_NO_MEMORY. */
luattn_status linear_backward(const linear_rows *rows, const double *grad_o, const double *grad_state,
                              const linear_gradients *out, luattn_error *err);

/* The same in room of the caller's, of linear_room() numbers for as many tokens or more. */
size_t linear_room(const linear_rows *rows, bool backward);
void linear_forward_in(const linear_rows *rows, double *o, double *state, double *room);
void linear_backward_in(const linear_rows *rows, const double *grad_o, const double *grad_state,
                        const linear_gradients *out, double *room);

#endif
