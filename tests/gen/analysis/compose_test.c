/* compose_test.c: random score_mods over several online functions. The forward pass runs online_fwd over
 * random tiles of the row. The derived gradients of scores, scalars and inputs are compared with central
 * differences of that forward pass. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/specs/adjoint.h"
#include "gen/analysis/algebra/split.h"
#include "rows.h"

#define NUM_MODS 200

/* ---- random score_mods ---- */

static ir_ref leaf(fixture *f) {
  ir *g = f->t.g;
  const ir_ref kv = ir_variable(g, VAR_KV, 0), q = ir_variable(g, VAR_Q, 0), h = ir_variable(g, VAR_H, 0);
  const ir_ref offset = ir_op2(g, IR_SUB, kv, q);
  switch (fixture_int(f, 9)) {
    case 0:
      return ir_variable(g, VAR_SCALAR, 0);
    case 1:
      return ir_variable(g, VAR_SCALAR, 1);
    case 2:
      return ir_load(g, 0, IR_REAL, &h, 1);
    case 3:
      return ir_load(g, 1, IR_REAL, &kv, 1);
    case 4: {
      const ir_ref at = ir_op2(g, IR_ADD, offset, ir_int(g, MAX_ROW));
      return ir_load(g, 1, IR_REAL, &at, 1);
    }
    case 5:
      return ir_op2(g, IR_MUL, ir_to_real(g, offset), ir_real(g, 0.05));
    case 6:
      return ir_real(g, fixture_uniform(f, -1, 1));
    default:
      return ir_variable(g, VAR_SCORE, 0);
  }
}

static ir_ref tree(fixture *f, int depth) {
  static const ir_op unary[] = {IR_TANH, IR_SIGMOID, IR_SOFTPLUS, IR_SIN, IR_COS,
                                IR_RELU, IR_SILU,    IR_GELU,     IR_ERF, IR_ABS};
  ir *g = f->t.g;
  if (depth == 0) return leaf(f);
  const ir_ref x = tree(f, depth - 1);
  const int pick = fixture_int(f, 16);
  if (pick < 10) return ir_op1(g, unary[pick], x);
  const ir_ref y = tree(f, depth - 1);
  switch (pick) {
    case 10:
      return ir_op2(g, IR_MUL, ir_op1(g, IR_TANH, x), y);
    case 11:
      return ir_op2(g, IR_SUB, x, y);
    case 12:
      return ir_op2(g, IR_MAX, x, y);
    case 13:
      return ir_op2(g, IR_DIV, x, ir_op2(g, IR_ADD, ir_real(g, 1), ir_op2(g, IR_MUL, y, y)));
    case 14:
      return ir_op3(g, IR_SELECT, ir_op2(g, IR_LT, x, y), ir_op2(g, IR_MUL, x, x),
                    ir_op1(g, IR_EXP, ir_op1(g, IR_TANH, y)));
    default:
      return ir_op2(g, IR_ADD, x, y);
  }
}

/* ---- the forward pass, tile by tile ---- */

typedef struct forward {
  const fixture *f;
  online_split split;
} forward;

static void run_step(const forward *w, row_env *e, const double *s, int lo, int hi, double *p) {
  const traced_online *o = &w->f->t.online;
  for (int k = 0; k < w->split.num_red; k++) {
    double sum = w->split.kind[k] == IR_REDUCE_MAX ? -INFINITY : 0;
    for (int j = lo; j < hi; j++) {
      e->var[VAR_SCORE] = s[j];
      const double x = row_eval(w->f, w->split.term[k], e);
      sum = w->split.kind[k] == IR_REDUCE_MAX ? fmax(sum, x) : sum + x;
    }
    e->red[k] = sum;
  }
  const double rescale = row_eval(w->f, w->split.rescale, e);
  for (int j = 0; j < lo; j++) p[j] *= rescale;
  for (int j = lo; j < hi; j++) {
    e->var[VAR_SCORE] = s[j];
    p[j] = row_eval(w->f, w->split.prob, e);
  }
  double next[SPEC_MAX_STATE];
  for (int i = 0; i < o->num_state; i++) next[i] = row_eval(w->f, w->split.next[i], e);
  memcpy(e->state, next, sizeof next);
}

static double run_row(const forward *w, const row_case *c, int tile, row_result *r) {
  const traced_online *o = &w->f->t.online;
  row_env e = c->env;
  double s[MAX_ROW];
  memset(r, 0, sizeof *r);
  for (int j = 0; j < c->n; j++) {
    e.var[VAR_SCORE] = c->t[j];
    e.var[VAR_KV] = j;
    s[j] = row_eval(w->f, w->f->t.score_mod, &e);
  }
  for (int i = 0; i < o->num_state; i++) e.state[i] = row_eval(w->f, o->init[i], &c->env);
  for (int lo = 0; lo < c->n; lo += tile) run_step(w, &e, s, lo, lo + tile < c->n ? lo + tile : c->n, r->p);
  e.var[VAR_OUT] = 1;
  const double norm = row_eval(w->f, o->out, &e);
  for (int j = 0; j < c->n; j++) {
    r->p[j] *= norm;
    r->out += r->p[j] * c->v[j];
  }
  memcpy(r->state, e.state, sizeof r->state);
  if (o->lse >= 0) r->lse = row_eval(w->f, o->final[o->lse], &e);
  return c->g * r->out + (o->lse >= 0 ? c->dlse * r->lse : 0);
}

static double difference(const forward *w, row_case *c, double *x, int tile) {
  const double keep = *x, h = 2e-6;
  row_result unused;
  *x = keep + h;
  const double up = run_row(w, c, tile, &unused);
  *x = keep - h;
  const double down = run_row(w, c, tile, &unused);
  *x = keep;
  return (up - down) / (2 * h);
}

static void expect_near(const char *what, int mod, online_kind kind, double x, double y) {
  if (fabs(x - y) > 2e-6 * (1 + fabs(y)))
    fail_msg("mod %d, online function %d: %s is %.12g, should be %.12g", mod, kind, what, x, y);
}

static void check_row(fixture *f, const forward *w, const derived_spec *d, int mod, online_kind kind) {
  row_case c;
  row_draw(f, &c, 1 + fixture_int(f, 9), 2);
  const int tile = 1 + fixture_int(f, 5);
  row_result r;
  row_gradient got;
  run_row(w, &c, tile, &r);
  row_backward(f, d, &c, &r, &got);
  for (int j = 0; j < c.n; j++) {
    expect_near("prob", mod, kind, got.p[j], r.p[j]);
    expect_near("ds", mod, kind, got.dt[j], difference(w, &c, &c.t[j], tile));
  }
  for (int i = 0; i < 2; i++)
    expect_near("d scalar", mod, kind, got.scalar[i], difference(w, &c, &c.env.scalar[i], tile));
  for (int i = 0; i < 4; i++)
    expect_near("d slopes", mod, kind, got.slopes[i], difference(w, &c, &c.env.slopes[i], tile));
  for (int i = 0; i < 2 * MAX_ROW; i++) {
    const int from_q = i - MAX_ROW + (int)c.env.var[VAR_Q];
    const bool read = i < c.n || (from_q >= 0 && from_q < c.n);
    if (read)
      expect_near("d table", mod, kind, got.table[i], difference(w, &c, &c.env.table[i], tile));
    else
      assert_true(got.table[i] == 0);
  }
}

static void test_random_mods(void **state) {
  (void)state;
  static const online_kind kinds[] = {SOFTMAX,     SINK,        RETENTION, SIGMOID,
                                      TEMPERATURE, SOFTMAX_ONE, RELU_L2,   RELU_SQUARED};
  for (int mod = 0; mod < NUM_MODS; mod++) {
    fixture f;
    derived_spec d;
    luattn_error err;
    const online_kind kind = kinds[mod % (int)(sizeof kinds / sizeof kinds[0])];
    fixture_open(&f);
    f.seed += (uint64_t)mod * 7919;
    fixture_online(&f, kind);
    const ir_ref half = ir_op2(f.t.g, IR_MUL, ir_variable(f.t.g, VAR_SCORE, 0), ir_real(f.t.g, 0.5));
    f.t.score_mod = ir_op2(f.t.g, IR_ADD, half, tree(&f, 1 + mod % 4));
    forward w = {.f = &f};
    assert_int_equal(split_online(f.t.g, &f.t.online, "test.lua", &w.split, &err), LUATTN_OK);
    if (derive_spec(f.a, &f.t, &d, &err) != LUATTN_OK) fail_msg("mod %d: %s", mod, err.message);
    for (int i = 0; i < 3; i++) check_row(&f, &w, &d, mod, kind);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_mods)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
