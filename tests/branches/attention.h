/* attention.h: attention with a function of the scores, or of the elements of q, k and v: forward and
 * backward in plain loops, compared with luattn's CPU path. */
#ifndef LUATTN_TESTS_BRANCHES_ATTENTION_H
#define LUATTN_TESTS_BRANCHES_ATTENTION_H

#include "tests/branches/branches.h"
#include "tests/support/cpu_call.h"

enum { BATCH = 2, HEADS = 2, Q_LEN = 9, KV_LEN = 11, DIM = 3 };

typedef struct attention attention;

/* The function at one point: of a score x at (b, h, i, j), or of an element x of q, k or v at (b, h, pos,
 * d). */
typedef branches_dual (*attention_function)(const attention *r, double x, int b, int h, int i, int j);

struct attention {
  branches_kind kind; /* the argument and the use of the function */
  attention_function f;
  const branches *program; /* the function, and with BRANCHES_ONLINE also N */
  double w[HEADS], c[HEADS]; /* two parameters of each head */
  int32_t group[BATCH * KV_LEN];
  double q[BATCH * HEADS * Q_LEN * DIM], k[BATCH * HEADS * KV_LEN * DIM], v[BATCH * HEADS * KV_LEN * DIM];
  double dout[BATCH * HEADS * Q_LEN * DIM], dlse[BATCH * HEADS * Q_LEN];
  double o[BATCH * HEADS * Q_LEN * DIM], dq[BATCH * HEADS * Q_LEN * DIM], dk[BATCH * HEADS * KV_LEN * DIM];
  double dv[BATCH * HEADS * KV_LEN * DIM], dw[HEADS], dc[HEADS];
};

/* Runs `spec`, of source text `lua`, with random q, k, v, dout and dlse, and compares all results within 1e-9
 * of their largest. Inputs `w`, `u` (axes h, the parameters w and c) and `group` (axes b, n) are given where
 * the spec has them, a scalar `c`, the same for all heads, likewise. */
void attention_compare(attention *r, const luattn_spec *spec, const char *lua);

#endif
