/* The CPU path on random functions of nested branches (branches.h), against attention that is computed here
 * from their values and derivatives: no result may know of an arm that is not taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/branches/branches.h"
#include "tests/gen/cpu/support.h"

enum { BATCH = 2, HEADS = 2, Q_LEN = 9, KV_LEN = 11, DIM = 3, SPECS = 100 };

typedef struct reference {
  branches program;
  branches_kind kind;
  double q[BATCH * HEADS * Q_LEN * DIM], k[BATCH * HEADS * KV_LEN * DIM], v[BATCH * HEADS * KV_LEN * DIM];
  double dout[BATCH * HEADS * Q_LEN * DIM], dlse[BATCH * HEADS * Q_LEN], w[HEADS], c;
  double o[BATCH * HEADS * Q_LEN * DIM], dq[BATCH * HEADS * Q_LEN * DIM], dk[BATCH * HEADS * KV_LEN * DIM];
  double dv[BATCH * HEADS * KV_LEN * DIM], dw[HEADS], dc;
} reference;

static void add_parameters(reference *r, int h, branches_dual f, double adjoint) {
  if (adjoint == 0) return;
  r->dw[h] += adjoint * f.by_w;
  r->dc += adjoint * f.by_c;
}

/* ---- elements of q, k and v ---- */

static branches_dual mod_of(const reference *r, double x, int h, int pos, int d) {
  const branches_point at = {.x = x, .w = r->w[h], .c = r->c, .i = pos % 3, .position = d};
  return r->kind == BRANCHES_MODS ? branches_value(&r->program, &at) : (branches_dual){x, 1, 0, 0};
}

static void apply_mods(const reference *r, const double *x, int length, branches_dual *out) {
  for (int i = 0; i < BATCH * HEADS * length * DIM; i++)
    out[i] = mod_of(r, x[i], i / (length * DIM) % HEADS, i / DIM % length, i % DIM);
}

static void pull_mods(reference *r, const branches_dual *f, int length, double *grad) {
  for (int i = 0; i < BATCH * HEADS * length * DIM; i++) {
    add_parameters(r, i / (length * DIM) % HEADS, f[i], grad[i]);
    grad[i] *= f[i].by_x;
  }
}

/* ---- one row ---- */

static branches_dual score_of(const reference *r, double s, int h, int i, int j) {
  branches_point at = {.x = s, .w = r->w[h], .c = r->c, .i = abs(i - j), .position = j};
  if (r->kind == BRANCHES_MODS) return (branches_dual){s, 1, 0, 0};
  if (r->kind == BRANCHES_ONLINE) at.i = s > 0.5, at.position = 3 * s;
  return branches_value(&r->program, &at);
}

/* Weights of a row of scores, and what gives their adjoints: ds[j] of dp[j], of the row's sums. */
static void softmax(const branches_dual *f, double *p) {
  double m = -INFINITY, l = 0;
  for (int j = 0; j < KV_LEN; j++) m = fmax(m, f[j].value);
  for (int j = 0; j < KV_LEN; j++) l += p[j] = exp(f[j].value - m);
  for (int j = 0; j < KV_LEN; j++) p[j] /= l;
}

static void row_weights(const reference *r, const branches_dual *f, double *p, double *norm, double *by_rho) {
  double rho = 0;
  *norm = 1, *by_rho = 0;
  if (r->kind != BRANCHES_ONLINE) {
    softmax(f, p);
    return;
  }
  for (int j = 0; j < KV_LEN; j++) rho += f[j].value * f[j].value;
  branches_norm(rho, norm, by_rho);
  for (int j = 0; j < KV_LEN; j++) p[j] = f[j].value * *norm;
}

static void row(reference *r, const branches_dual *q, const branches_dual *k, const branches_dual *v, int b,
                int h, int i, double *dk, double *dv) {
  const double scale = 1 / sqrt((double)DIM);
  const int n = (b * HEADS + h) * Q_LEN + i, keys = (b * HEADS + h) * KV_LEN;
  branches_dual f[KV_LEN];
  double p[KV_LEN], dp[KV_LEN], norm, by_rho, delta = 0;
  for (int j = 0; j < KV_LEN; j++) {
    double s = 0;
    for (int d = 0; d < DIM; d++) s += q[n * DIM + d].value * k[(keys + j) * DIM + d].value;
    f[j] = score_of(r, scale * s, h, i, j);
  }
  row_weights(r, f, p, &norm, &by_rho);
  for (int d = 0; d < DIM; d++) r->o[n * DIM + d] = 0;
  for (int j = 0; j < KV_LEN; j++) {
    dp[j] = 0;
    for (int d = 0; d < DIM; d++) {
      r->o[n * DIM + d] += p[j] * v[(keys + j) * DIM + d].value;
      dv[(keys + j) * DIM + d] += p[j] * r->dout[n * DIM + d];
      dp[j] += r->dout[n * DIM + d] * v[(keys + j) * DIM + d].value;
    }
    delta += dp[j] * p[j];
  }
  for (int j = 0; j < KV_LEN; j++) {
    const double ds = r->kind == BRANCHES_ONLINE ? dp[j] * norm + 2 * f[j].value * by_rho * delta / norm
                                                 : p[j] * (dp[j] - delta + r->dlse[n]);
    if (r->kind != BRANCHES_MODS) add_parameters(r, h, f[j], ds);
    for (int d = 0; d < DIM; d++) {
      r->dq[n * DIM + d] += scale * ds * f[j].by_x * k[(keys + j) * DIM + d].value;
      dk[(keys + j) * DIM + d] += scale * ds * f[j].by_x * q[n * DIM + d].value;
    }
  }
}

static void compute(reference *r) {
  static branches_dual q[BATCH * HEADS * Q_LEN * DIM], k[BATCH * HEADS * KV_LEN * DIM],
      v[BATCH * HEADS * KV_LEN * DIM];
  apply_mods(r, r->q, Q_LEN, q), apply_mods(r, r->k, KV_LEN, k), apply_mods(r, r->v, KV_LEN, v);
  for (int n = 0; n < BATCH * HEADS * Q_LEN; n++)
    row(r, q, k, v, n / (HEADS * Q_LEN), n / Q_LEN % HEADS, n % Q_LEN, r->dk, r->dv);
  pull_mods(r, q, Q_LEN, r->dq), pull_mods(r, k, KV_LEN, r->dk), pull_mods(r, v, KV_LEN, r->dv);
}

/* ---- the library beside it ---- */

static void take(const tensor *t, double *to) {
  for (int64_t i = 0; i < tensor_count(t); i++) to[i] = tensor_get(t, i);
}

static void assert_all(const char *spec, const char *what, const tensor *got, const double *want) {
  double largest = 1;
  for (int64_t i = 0; i < tensor_count(got); i++) largest = fmax(largest, fabs(want[i]));
  for (int64_t i = 0; i < tensor_count(got); i++)
    if (!(fabs(tensor_get(got, i) - want[i]) <= 1e-9 * largest))
      fail_msg("%s[%d] is %.17g, the reference says %.17g, in\n%s", what, (int)i, tensor_get(got, i), want[i],
               spec);
}

/* False: the row's conditions (of w and c) cut its sum into more reductions than a spec may have, or come
 * late. */
static bool compare(const char *lua, reference *r) {
  luattn_spec *spec;
  luattn_error err;
  if (luattn_spec_load_text("branches.lua", lua, strlen(lua), NULL, &spec, &err) != LUATTN_OK) {
    if (strstr(err.message, "more than 8 reductions") != NULL) return false;
    if (strstr(err.message, "a reduction is reached only by the elements") != NULL) return false;
    if (strstr(err.message, "more than 16 numbers per row") != NULL) return false;
    fail_msg("%s in\n%s", err.message, lua);
  }
  call c;
  tensor w, dw, dc;
  call_new(&c, spec, (int[]){BATCH, HEADS, HEADS, Q_LEN, KV_LEN, DIM, DIM}, DENSE, F64, F64);
  tensor_new(&w, F64, 1, (int64_t[]){HEADS}, DENSE), tensor_new(&dw, F64, 1, (int64_t[]){HEADS}, DENSE);
  tensor_new(&dc, F64, 1, (int64_t[]){1}, DENSE);
  for (int h = 0; h < HEADS; h++) tensor_set(&w, h, r->w[h]);
  w.t.shape = w.shape, dw.t.shape = dw.shape, dc.t.shape = dc.shape;
  const luattn_input input = {"w", &w.t, &dw.t};
  const luattn_scalar scalar = {"c", r->c};
  c.args.inputs = &input, c.args.num_inputs = 1;
  c.args.scalars = &scalar, c.args.num_scalars = 1;
  c.args.scalar_grads = &dc.t;
  take(&c.q, r->q), take(&c.k, r->k), take(&c.v, r->v), take(&c.dout, r->dout), take(&c.dlse, r->dlse);
  compute(r);
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK ||
      luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s in\n%s", err.message, lua);
  assert_all(lua, "o", &c.o, r->o);
  assert_all(lua, "dq", &c.dq, r->dq), assert_all(lua, "dk", &c.dk, r->dk),
      assert_all(lua, "dv", &c.dv, r->dv);
  assert_all(lua, "dw", &dw, r->dw), assert_all(lua, "dc", &dc, &r->dc);
  call_free(&c);
  tensor_free(&w), tensor_free(&dw), tensor_free(&dc);
  luattn_spec_free(spec);
  return true;
}

static void run_kind(branches_kind kind) {
  int compared = 0;
  static char lua[1 << 16];
  for (uint64_t seed = 1; seed <= SPECS; seed++) {
    reference *r = calloc(1, sizeof *r);
    assert_non_null(r);
    branches_random(&r->program, seed, seed % 4 == 0);
    r->kind = kind;
    r->c = 0.75;
    for (int h = 0; h < HEADS; h++) r->w[h] = (h == 0 ? 0.4 : -1.1) * (seed % 3 == 0 ? 6 : 1);
    const size_t used = branches_lua(&r->program, kind, lua, sizeof lua);
    assert_true(used < sizeof lua);
    compared += compare(lua, r);
    free(r);
  }
  assert_true(compared >= (kind == BRANCHES_ONLINE ? SPECS / 3 : SPECS));
}

static void test_score_mod(void **state) {
  (void)state;
  run_kind(BRANCHES_SCORE);
}

static void test_input_mods(void **state) {
  (void)state;
  run_kind(BRANCHES_MODS);
}

static void test_online_func(void **state) {
  (void)state;
  run_kind(BRANCHES_ONLINE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_score_mod),
      cmocka_unit_test(test_input_mods),
      cmocka_unit_test(test_online_func),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
