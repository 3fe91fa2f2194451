/* attention.h: computes attention with a function of the scores, or of the elements of q, k and v. Forward
 * and backward are plain loops, which are compared with luattn's CPU path. */
#ifndef LUATTN_TESTS_BRANCHES_ATTENTION_H
#define LUATTN_TESTS_BRANCHES_ATTENTION_H

#include "tests/branches/branches.h"
#include "tests/support/cpu_call.h"

enum { BATCH = 2, HEADS = 2, Q_LEN = 9, KV_LEN = 11, DIM = 3 };

typedef struct attention attention;

/* Evaluates the function for a score x at (b, h, i, j), or for an element x of q, k or v at (b, h, pos,
 * d). */
typedef branches_dual (*attention_function)(const attention *r, double x, int b, int h, int i, int j);

struct attention {
  branches_kind kind; /* which hook the function is in */
  attention_function f;
  const branches *program;   /* the function, and with BRANCHES_ONLINE also N */
  double w[HEADS], c[HEADS]; /* two parameters of each head */
  int32_t group[BATCH * KV_LEN];
  double q[BATCH * HEADS * Q_LEN * DIM], k[BATCH * HEADS * KV_LEN * DIM], v[BATCH * HEADS * KV_LEN * DIM];
  double dout[BATCH * HEADS * Q_LEN * DIM], dlse[BATCH * HEADS * Q_LEN];
  double o[BATCH * HEADS * Q_LEN * DIM], dq[BATCH * HEADS * Q_LEN * DIM], dk[BATCH * HEADS * KV_LEN * DIM];
  double dv[BATCH * HEADS * KV_LEN * DIM], dw[HEADS], dc[HEADS];
};

/* Runs `spec`, whose source text is `lua`, with random q, k, v, dout and dlse, and compares all results; the
 * tolerance is 1e-9 of the largest value. If the spec has them, sets inputs `w` and `u` (axis h, the
 * parameters w and c), `group` (axes b, n), and a scalar `c`, which is the same for all heads. */
void attention_compare(attention *r, const luattn_spec *spec, const char *lua);

#endif
