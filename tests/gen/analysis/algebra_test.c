/* algebra_test.c: what algebra and limits prove of random expressions is true of random numbers, and algebra proves
 * what a rewriting of an expression cannot change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/algebra/limits_at.h"
#include "gen/analysis/online/steps.h"
#include "rows.h"

enum { EXPRESSIONS = 3000, POINTS = 60 };

typedef struct grower {
  fixture *f;
  int left; /* nodes until the one that is made another; below 0: none is */
} grower;

static ir_ref leaf(grower *w) {
  ir *g = w->f->t.g;
  const ir_ref h = ir_variable(g, VAR_H, 0);
  switch (fixture_int(w->f, 8)) {
    case 0:
      return ir_variable(g, VAR_RED, 0);
    case 1:
    case 2:
      return ir_variable(g, VAR_RED, 1);
    case 3:
      return ir_variable(g, VAR_SCALAR, 0);
    case 4:
      return ir_load(g, 0, IR_REAL, &h, 1);
    case 5:
      return ir_real(g, fixture_int(w->f, 5) - 2);
    default:
      return ir_variable(g, VAR_SCORE, 0);
  }
}

static ir_ref grow(grower *w, int depth) {
  static const ir_op unary[] = {IR_TANH, IR_SIGMOID, IR_SOFTPLUS, IR_EXP, IR_RELU,
                                IR_SILU, IR_GELU,    IR_ABS,      IR_LOG, IR_SQRT};
  ir *g = w->f->t.g;
  if (depth == 0) return leaf(w);
  const bool other = w->left-- == 0;
  const int pick = fixture_int(w->f, 23) - 1;
  const ir_ref x = grow(w, depth - 1);
  if (pick < 0) return ir_op1(g, other ? IR_EXP : IR_EXPM1, x);
  if (pick < 10) return ir_op1(g, unary[other ? (pick + 1) % 10 : pick], x);
  const ir_ref y = grow(w, depth - 1);
  if (pick < 13) return ir_op2(g, other ? IR_SUB : IR_ADD, x, y);
  if (pick < 16) return other ? ir_op2(g, IR_MUL, x, x) : ir_op2(g, IR_MUL, x, y);
  if (pick < 18) return other ? ir_op2(g, IR_DIV, y, x) : ir_op2(g, IR_DIV, x, y);
  if (pick == 18) return ir_op2(g, other ? IR_MIN : IR_MAX, x, y);
  if (pick == 19) return ir_op2(g, other ? IR_MAX : IR_MIN, x, y);
  const ir_ref c = ir_op2(g, other ? IR_LE : IR_LT, x, y), z = ir_op1(g, IR_NEG, x);
  return pick == 20 ? ir_op3(g, IR_SELECT, c, x, y)
         : other    ? ir_op3(g, IR_SELECT, c, y, z)
                    : ir_op3(g, IR_SELECT, c, z, y);
}

static void open_derivation(fixture *f, derivation *d, text *how) {
  static luattn_error err;
  sample *s = arena_new(f->a, sizeof *s);
  fixture_online(f, SOFTMAX);
  text_init(how, f->a);
  *d = (derivation){.a = f->a, .t = &f->t, .o = &f->t.online, .g = f->t.g, .how = how, .err = &err, .s = s};
  assert_true(sample_init(s, f->a, &f->t));
  assert_int_equal(whole_run(d), LUATTN_OK);
}

/* Fails where two expressions that were proved equal differ. Where one has no value the other need not. */
static void expect_equal(fixture *f, const derivation *d, ir_ref x, ir_ref y) {
  for (int i = 0; i < POINTS; i++) {
    row_env e;
    memset(&e, 0, sizeof e);
    const double size = i % 3 == 0 ? 0.1 : i % 3 == 1 ? 1 : 8;
    e.var[VAR_SCORE] = size * fixture_uniform(f, -1, 1);
    e.red[0] = size * fixture_uniform(f, -1, 1);
    e.red[1] = size * fixture_uniform(f, 1e-3, 3); /* a sum of exponentials */
    e.scalar[0] = size * fixture_uniform(f, -1, 1);
    for (int k = 0; k < 4; k++) e.slopes[k] = size * fixture_uniform(f, -1, 1);
    const double a = row_eval(f, x, &e), b = row_eval(f, y, &e);
    if (!isfinite(a) || !isfinite(b) || fabs(a - b) <= 1e-6 * (1 + fabs(a) + fabs(b)) || fabs(a) > 1e8) continue;
    text t;
    text_init(&t, f->a);
    ir_print(d->g, &t, (ir_ref[]){x, y}, (const char *[]){"x", "y"}, 2, NULL);
    fail_msg("proved equal, but %.12g and %.12g at score %g, red %g %g, scalar %g, slope %g:\n%s", a, b,
             e.var[VAR_SCORE], e.red[0], e.red[1], e.scalar[0], e.slopes[0], text_get(&t));
  }
}

/* An expression with one node made another is seldom the same function; where algebra says so, it is. */
static void test_nothing_false_is_proved(void **state) {
  (void)state;
  int proved = 0;
  for (int i = 0; i < EXPRESSIONS; i++) {
    fixture f;
    derivation d;
    text how;
    fixture_open(&f);
    open_derivation(&f, &d, &how);
    f.seed = (uint64_t)i * 77 + 5;
    const int depth = 1 + i % 4;
    const uint64_t seed = f.seed;
    const ir_ref x = grow(&(grower){&f, -1}, depth);
    f.seed = seed;
    const ir_ref y = grow(&(grower){&f, i / 4 % 7}, depth);
    if (x != y && algebra_equal(&d, x, y)) {
      proved++;
      expect_equal(&f, &d, x, y);
    }
    fixture_close(&f);
  }
  assert_in_range(proved, 10, EXPRESSIONS);
}

/* What simplification makes of an expression, and of its slope, is the same function. */
static void test_rewritten_expressions(void **state) {
  (void)state;
  int proved = 0, tried = 0;
  for (int i = 0; i < EXPRESSIONS; i++) {
    fixture f;
    derivation d;
    text how;
    fixture_open(&f);
    open_derivation(&f, &d, &how);
    f.seed = (uint64_t)i * 77 + 5;
    const ir_ref x = grow(&(grower){&f, -1}, 1 + i % 3), one = ir_real(f.t.g, 1);
    ir_ref pair[2] = {x, IR_NONE};
    ir_grad(f.t.g, &x, &one, 1, &d.score, &pair[1], 1);
    for (int k = 0; k < 2 && pair[k] != IR_NONE; k++) {
      ir_ref y = pair[k];
      ir_simplify(f.t.g, &y, 1);
      if (y == pair[k]) continue;
      tried++;
      if (!algebra_equal(&d, pair[k], y)) continue;
      proved++;
      expect_equal(&f, &d, pair[k], y);
    }
    fixture_close(&f);
  }
  if (proved < tried * 9 / 10)
    fail_msg("%d of %d simplified expressions are proved to be what they were", proved, tried);
}

/* A square is not above 0 where its root is 0. */
static void test_squares(void **state) {
  (void)state;
  fixture f;
  derivation d;
  text how;
  fixture_open(&f);
  open_derivation(&f, &d, &how);
  ir *g = f.t.g;
  const ir_ref x = ir_variable(g, VAR_SCALAR, 0), one = ir_real(g, 1), zero = ir_real(g, 0),
               square = ir_op2(g, IR_MUL, x, x);
  const ir_ref above = ir_op3(g, IR_SELECT, ir_op2(g, IR_LT, zero, square), one, zero);
  const ir_ref more = ir_op3(g, IR_SELECT, ir_op2(g, IR_LT, zero, ir_op2(g, IR_ADD, one, square)), one, zero);
  assert_false(algebra_equal(&d, above, one));
  assert_true(algebra_equal(&d, more, one));
  fixture_close(&f);
}

/* What is shown of an expression for a score of -inf is so for random scalars, inputs and numbers of the row. */
static void test_limits(void **state) {
  (void)state;
  int numbers = 0, finite = 0;
  for (int i = 0; i < EXPRESSIONS; i++) {
    fixture f;
    limits l;
    double c;
    fixture_open(&f);
    f.seed = (uint64_t)i * 77 + 5;
    const ir_ref x = grow(&(grower){&f, -1}, 1 + i % 3);
    assert_true(limits_open(&l, f.a, f.t.g, -INFINITY));
    const bool is_number = limits_is_number(&l, x, &c), is_finite = limits_is_finite(&l, x);
    numbers += is_number && ir_uses(f.t.g, x, VAR_SCORE), finite += is_finite;
    for (int k = 0; k < POINTS && (is_number || is_finite); k++) {
      row_env e;
      memset(&e, 0, sizeof e);
      e.var[VAR_SCORE] = -INFINITY;
      e.red[0] = fixture_uniform(&f, -1, 1);
      e.red[1] = fixture_uniform(&f, -1, 1);
      e.scalar[0] = k == 0 ? 0 : fixture_uniform(&f, -1, 1);
      for (int j = 0; j < 4; j++) e.slopes[j] = k == 1 ? 0 : fixture_uniform(&f, -1, 1);
      const double got = row_eval(&f, x, &e);
      assert_false(isnan(got) || (is_finite && !isfinite(got)));
      if (is_number) assert_true(got == c || fabs(got - c) < 1e-12 * fabs(c));
    }
    fixture_close(&f);
  }
  assert_in_range(numbers, 300, EXPRESSIONS);
  assert_in_range(finite, 300, EXPRESSIONS);
}

/* Whether a score of -inf leaves a product without a value is for the scalar to say, whatever its default. */
static void test_limits_for_all_scalars(void **state) {
  (void)state;
  fixture f;
  limits l;
  double c;
  fixture_open(&f);
  ir *g = f.t.g;
  const ir_ref s = ir_variable(g, VAR_SCORE, 0), t = ir_variable(g, VAR_SCALAR, 0), weight = ir_op1(g, IR_EXP, s);
  const ir_ref gated = ir_op3(g, IR_SELECT, ir_op2(g, IR_EQ, t, ir_real(g, 7)), ir_op2(g, IR_MUL, s, weight), weight);
  const ir_ref scaled = ir_op1(g, IR_SIGMOID, ir_op2(g, IR_MUL, s, t));
  assert_true(limits_open(&l, f.a, g, -INFINITY));
  assert_true(limits_is_number(&l, weight, &c) && c == 0);
  assert_false(limits_is_number(&l, gated, &c) || limits_is_finite(&l, gated));
  assert_false(limits_is_number(&l, scaled, &c) || limits_is_finite(&l, scaled));
  fixture_close(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_false_is_proved), cmocka_unit_test(test_squares),
                                     cmocka_unit_test(test_rewritten_expressions), cmocka_unit_test(test_limits),
                                     cmocka_unit_test(test_limits_for_all_scalars)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
