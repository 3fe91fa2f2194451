/* derive_test.c: compares the derived backward of named online functions with central differences of the same
 * functions, written by hand in C. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/specs/adjoint.h"
#include "rows.h"

/* A probability by hand: `m` and `sum` are the row's, `scale` its scale. */
static double weight_by_hand(online_kind kind, const row_case *c, double s, double m, double sum, double scale) {
  const double relu = s > 0 ? s : 0, tau = kind == TEMPERATURE ? c->env.scalar[0] : 1, beta = c->env.scalar[1];
  switch (kind) {
    case RETENTION:
    case RETENTION_DETACHED:
      return s / scale;
    case SIGMOID:
      return 1 / (1 + exp(-s - beta));
    case RELU:
      return relu;
    case RELU_SQUARED:
      return relu * relu;
    case IDENTITY:
      return s;
    case RELU_L2:
      return relu / sqrt(sum + 1e-3);
    default:
      return exp(tau * s - m) / sum;
  }
}

/* Computes a full row with hand-written formulas. `frozen` is the row scale of a detached normaliser, which
 * stays constant while scores are perturbed; NULL: the row's own scale. */
static void by_hand(online_kind kind, const row_case *c, const double *frozen, row_result *r) {
  const double *s = c->t;
  const double tau = kind == TEMPERATURE ? c->env.scalar[0] : 1;
  const double sink = c->env.slopes[(int)c->env.var[VAR_H]];
  double m = kind == SOFTMAX_ONE ? 0 : kind == SINK ? sink : -INFINITY, sum = 0;
  memset(r, 0, sizeof *r);
  r->lse = NAN;
  for (int i = 0; i < c->n; i++) m = fmax(m, tau * s[i]);
  for (int i = 0; i < c->n; i++) {
    switch (kind) {
      case RETENTION:
      case RETENTION_DETACHED:
        sum += fabs(s[i]);
        break;
      case RELU_L2:
        sum += s[i] > 0 ? s[i] * s[i] : 0;
        break;
      default:
        sum += exp(tau * s[i] - m);
        break;
    }
  }
  if (kind == SOFTMAX_ONE) sum += exp(-m);
  if (kind == SINK) sum += exp(sink - m);
  const double scale = frozen != NULL ? *frozen : fmax(sum, 1);
  for (int i = 0; i < c->n; i++) {
    r->p[i] = weight_by_hand(kind, c, s[i], m, sum, scale);
    r->out += r->p[i] * c->v[i];
  }
  if (kind <= TEMPERATURE) {
    r->state[0] = m;
    r->state[1] = sum;
    r->lse = m + log(sum);
  } else {
    r->state[0] = sum;
    r->state[1] = scale;
  }
}

static double loss(online_kind kind, const row_case *c, const double *frozen) {
  row_result r;
  by_hand(kind, c, frozen, &r);
  return c->g * r.out + (isnan(r.lse) ? 0 : c->dlse * r.lse);
}

/* Returns d loss / d *x, where x points into c. */
static double difference(online_kind kind, row_case *c, double *x, const double *frozen) {
  const double keep = *x, h = 1e-5;
  *x = keep + h;
  const double up = loss(kind, c, frozen);
  *x = keep - h;
  const double down = loss(kind, c, frozen);
  *x = keep;
  return (up - down) / (2 * h);
}

static void expect_near(const char *what, online_kind kind, int n, double x, double y) {
  if (fabs(x - y) <= 1e-7 * (1 + fabs(y))) return;
  fail_msg("online function %d, row of %d: %s is %.12g, should be %.12g", kind, n, what, x, y);
}

static void check_row(fixture *f, const derived_spec *d, online_kind kind, int n) {
  row_case c;
  row_draw(f, &c, n, kind == RETENTION && n < 4 ? 0.3 : 3);
  row_result r;
  by_hand(kind, &c, NULL, &r);
  row_gradient got;
  row_backward(f, d, &c, &r, &got);
  const double *frozen = kind == RETENTION_DETACHED ? &r.state[1] : NULL;
  for (int i = 0; i < n; i++) {
    expect_near("prob", kind, n, got.p[i], r.p[i]);
    expect_near("ds", kind, n, got.dt[i], difference(kind, &c, &c.t[i], frozen));
  }
  for (int i = 0; i < 2; i++)
    expect_near("d scalar", kind, n, got.scalar[i], difference(kind, &c, &c.env.scalar[i], frozen));
  for (int i = 0; i < 4; i++)
    expect_near("d slopes", kind, n, got.slopes[i], difference(kind, &c, &c.env.slopes[i], frozen));
}

static void derive(fixture *f, online_kind kind, derived_spec *d) {
  luattn_error err;
  fixture_online(f, kind);
  if (derive_spec(f->a, &f->t, d, &err) != LUATTN_OK) fail_msg("online function %d: %s", kind, err.message);
  ir_ref roots[2] = {d->prob, d->ds};
  if (ir_check(f->t.g, roots, 2, "derive", &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void test_finite_differences(void **state) {
  (void)state;
  for (online_kind kind = SOFTMAX; kind < NUM_ONLINE; kind++) {
    fixture f;
    derived_spec d;
    fixture_open(&f);
    derive(&f, kind, &d);
    for (int n = 1; n <= 50; n++) check_row(&f, &d, kind, n);
    fixture_close(&f);
  }
}

/* Values that forward saves cost memory traffic, so the common functions must save the minimum. */
static void test_minimal_rows(void **state) {
  (void)state;
  static const struct {
    online_kind kind;
    int saved, rows;
  } want[] = {
      {SOFTMAX, 0, 2},      {SOFTMAX_FORWARD, 0, 2},    {SOFTMAX_GIVEN, 0, 2}, {SOFTMAX_ONE, 0, 2}, {SINK, 0, 2},
      {TEMPERATURE, 0, 2},  {RETENTION_DETACHED, 1, 1}, {RETENTION, 2, 2},     {SIGMOID, 0, 0},     {RELU, 0, 0},
      {RELU_SQUARED, 0, 0}, {IDENTITY, 0, 0},           {RELU_L2, 1, 2},
  };
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    fixture f;
    derived_spec d;
    fixture_open(&f);
    derive(&f, want[i].kind, &d);
    if (d.num_saved > want[i].saved || d.num_rows > want[i].rows) {
      fail_msg("online function %d: forward saves %d (expected %d), %d rows (expected %d): %s", want[i].kind,
               d.num_saved, want[i].saved, d.num_rows, want[i].rows, d.how);
    }
    fixture_close(&f);
  }
}

/* Softmax must be prob = exp(t - row0), ds = prob * (dp - row1), row0 = lse, row1 = delta - dlse, node for
 * node. */
static void test_softmax_form(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    fixture f;
    derived_spec d;
    fixture_open(&f);
    derive(&f, i == 0 ? SOFTMAX : SOFTMAX_FORWARD, &d);
    ir *g = f.t.g;
    const ir_ref row0 = ir_variable(g, VAR_ROW, 0), row1 = ir_variable(g, VAR_ROW, 1);
    const ir_ref prob = ir_op1(g, IR_EXP, ir_op2(g, IR_SUB, ir_variable(g, VAR_SCORE, 0), row0));
    assert_int_equal(d.prob, prob);
    assert_int_equal(d.ds, ir_op2(g, IR_MUL, prob, ir_op2(g, IR_SUB, ir_variable(g, VAR_DP, 0), row1)));
    assert_int_equal(d.row[0], ir_variable(g, VAR_FINAL, 0));
    assert_int_equal(d.row[1], ir_op2(g, IR_SUB, ir_variable(g, VAR_DELTA, 0), ir_variable(g, VAR_DLSE, 0)));
    assert_int_equal(d.row_terms.count + d.element_terms.count, 0);
    assert_non_null(strstr(d.how, "drops out"));
    fixture_close(&f);
  }
}

/* A user's backward is used unchanged, even if it is wrong. The gradient of lse is added, because the hook
 * does not get dlse. */
static void test_given_backward(void **state) {
  (void)state;
  fixture f;
  derived_spec d;
  luattn_error err;
  fixture_open(&f);
  fixture_online(&f, SOFTMAX);
  f.t.online.backward = ir_op2(f.t.g, IR_MUL, ir_variable(f.t.g, VAR_DP, 0), ir_variable(f.t.g, VAR_P, 0));
  assert_int_equal(derive_spec(f.a, &f.t, &d, &err), LUATTN_OK);
  row_case c;
  row_draw(&f, &c, 6, 2);
  row_result r;
  by_hand(SOFTMAX, &c, NULL, &r);
  row_gradient got;
  row_backward(&f, &d, &c, &r, &got);
  for (int i = 0; i < c.n; i++) { expect_near("ds", SOFTMAX, c.n, got.dt[i], r.p[i] * (c.g * c.v[i] + c.dlse)); }
  assert_non_null(strstr(d.how, "given by the spec"));
  assert_null(strstr(d.how, "agrees"));
  fixture_close(&f);
}

/* x' = tanh(beta x) + slopes[h] pos, with slopes read at two indices */
static void test_input_mods(void **state) {
  (void)state;
  fixture f;
  derived_spec d;
  fixture_open(&f);
  ir *g = f.t.g;
  const ir_ref x = ir_variable(g, VAR_X, 0), pos = ir_variable(g, VAR_POS, 0), h = ir_variable(g, VAR_H, 0);
  const ir_ref bent = ir_op1(g, IR_TANH, ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALAR, 1), x));
  const ir_ref two = ir_op2(g, IR_MUL, ir_load(g, 1, IR_REAL, &pos, 1), ir_load(g, 1, IR_REAL, &h, 1));
  f.t.query_mod = ir_op2(g, IR_ADD, bent, two);
  derive(&f, SOFTMAX, &d);
  row_case c;
  row_draw(&f, &c, 1, 1);
  row_env *e = &c.env;
  e->var[VAR_X] = 0.4;
  e->var[VAR_POS] = 9;
  e->var[VAR_GRAD] = 1.7;
  const double th = tanh(e->scalar[1] * 0.4), h_idx = e->var[VAR_H];
  expect_near("input mod", SOFTMAX, 1, row_eval(&f, d.query_mod.dx, e), 1.7 * e->scalar[1] * (1 - th * th));
  assert_int_equal(d.query_mod.terms.count, 3);
  bool seen[3] = {false, false, false};
  for (int i = 0; i < 3; i++) {
    const derived_term *term = &d.query_mod.terms.term[i];
    const double value = row_eval(&f, term->value, e);
    if (term->input < 0) {
      seen[0] = true;
      expect_near("input mod", SOFTMAX, 1, value, 1.7 * 0.4 * (1 - th * th));
    } else if (row_eval(&f, term->index[0], e) == 9) {
      seen[1] = true;
      expect_near("input mod", SOFTMAX, 1, value, 1.7 * e->table[(int)h_idx]);
    } else {
      seen[2] = true;
      expect_near("input mod", SOFTMAX, 1, value, 1.7 * e->table[9]);
    }
  }
  assert_true(seen[0] && seen[1] && seen[2]);
  assert_int_equal(d.key_mod.dx, IR_NONE);
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_finite_differences), cmocka_unit_test(test_minimal_rows),
      cmocka_unit_test(test_softmax_form),       cmocka_unit_test(test_given_backward),
      cmocka_unit_test(test_input_mods),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
