/* grad_test.c: tests reverse mode on shared subexpressions, several roots and guards, and compares random
 * graphs with central differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "tests/gen/ir/expr.h"

typedef struct fixture {
  arena *a;
  ir *g;
  ir_ref x, y, one;
} fixture;

static int setup(void **state) {
  fixture *f = malloc(sizeof *f);
  f->a = arena_open(NULL);
  f->g = ir_open(f->a);
  f->x = ir_variable(f->g, VAR_SCALAR, 0);
  f->y = ir_variable(f->g, VAR_SCALAR, 1);
  f->one = ir_real(f->g, 1);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  arena_close(((fixture *)*state)->a);
  free(*state);
  return 0;
}

static ir_ref grad_of(fixture *f, ir_ref root, ir_ref wrt) {
  ir_ref out;
  ir_grad(f->g, &root, &f->one, 1, &wrt, &out, 1);
  return out;
}

static double at(fixture *f, ir_ref root, double x, double y) {
  assert_int_not_equal(root, IR_NONE);
  return program_eval(f->a, f->g, root, &(point){.real = {x, y}, .integer = {5, 3, 1, 9}});
}

#define ADD(a, b) ir_op2(g, IR_ADD, a, b)
#define SUB(a, b) ir_op2(g, IR_SUB, a, b)
#define MUL(a, b) ir_op2(g, IR_MUL, a, b)
#define assert_near(a, b) assert_true(fabs((a) - (double)(b)) <= 1e-12 * (1 + fabs((double)(b))))

static void test_shared_subexpressions(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref y = ir_op1(g, IR_EXP, f->x), cube = MUL(MUL(y, y), y);
  assert_near(at(f, grad_of(f, cube, f->x), 0.3, 0), 3 * exp(0.9));
  assert_near(at(f, grad_of(f, cube, y), 0.3, 0), 3 * exp(0.6)); /* with respect to an inner node */
  const ir_ref relu = ir_op1(g, IR_RELU, f->x), tanh1 = ir_op1(g, IR_TANH, f->x);
  assert_near(at(f, grad_of(f, MUL(relu, relu), f->x), 1.5, 0), 3);
  assert_near(at(f, grad_of(f, MUL(relu, relu), f->x), -1.5, 0), 0);
  const double t = tanh(0.7);
  assert_near(at(f, grad_of(f, MUL(tanh1, tanh1), f->x), 0.7, 0), 2 * t * (1 - t * t));
  ir_ref power = f->x; /* x^(2^40): visiting every path would take 2^40 visits */
  for (int i = 0; i < 40; ++i) power = MUL(power, power);
  assert_near(at(f, grad_of(f, power, f->x), 1, 0), 1099511627776.0);
}

/* gelu's derivative in the far left tail, where 1 + erf(x / sqrt 2) loses all digits. */
static void test_gelu_tail(void **state) {
  fixture *f = *state;
  const ir_ref grad = grad_of(f, ir_op1(f->g, IR_GELU, f->x), f->x);
  for (int i = 0; i <= 30; i++) {
    const double x = -i, density = 0.3989422804014327 * exp(-0.5 * x * x);
    const double want = 0.5 * erfc(-x * 0.7071067811865476) + x * density;
    assert_true(fabs(at(f, grad, x, 0) - want) <= 1e-11 * fabs(want));
  }
}

static void test_several_roots(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref e = ir_op1(g, IR_EXP, f->x), roots[3] = {MUL(e, f->y), e, MUL(e, f->y)},
               d[3] = {f->one, f->y, ir_real(g, 2)};
  const ir_ref wrt[2] = {f->x, f->y};
  ir_ref out[2];
  ir_grad(g, roots, d, 3, wrt, out, 2);
  assert_near(at(f, out[0], 0.2, 3), 4 * 3 * exp(0.2));
  assert_near(at(f, out[1], 0.2, 3), 3 * exp(0.2));
}

static void test_zero_is_none(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  assert_int_equal(grad_of(f, ir_op1(g, IR_EXP, f->x), f->y), IR_NONE);
  assert_int_equal(grad_of(f, ir_op1(g, IR_FLOOR, f->x), f->x), IR_NONE);
  assert_int_equal(grad_of(f, ir_op1(g, IR_STOP_GRADIENT, f->x), f->x), IR_NONE);
  assert_int_equal(grad_of(f, SUB(f->x, f->x), f->y), IR_NONE);
  const ir_ref steps = ir_to_real(g, ir_op1(g, IR_FLOOR_INT, f->x));
  assert_int_equal(grad_of(f, steps, f->x), IR_NONE);
  const ir_ref half = MUL(f->x, ir_op1(g, IR_STOP_GRADIENT, f->x));
  assert_near(at(f, grad_of(f, half, f->x), 3, 0), 3);
  assert_int_equal(grad_of(f, f->x, f->x), f->one);
  const ir_ref later = MUL(f->y, f->y);
  assert_int_equal(grad_of(f, f->x, later), IR_NONE); /* the variable was created after the root */
}

static void test_loads(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), h = ir_variable(g, VAR_H, 0);
  const ir_ref slope = ir_load(g, 0, IR_REAL, &h, 1), table = ir_load(g, 0, IR_REAL, &q, 1);
  const ir_ref distance = SUB(q, h), bias = MUL(slope, distance);
  assert_int_equal(grad_of(f, ADD(ADD(f->x, bias), table), slope), ir_to_real(g, distance));
  assert_int_equal(grad_of(f, ADD(ADD(f->x, bias), table), table), f->one);
}

/* The gradient through an arm that is not taken is 0, not 0 * inf. */
static void test_guarded_arms(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref positive = ir_op2(g, IR_LT, ir_real(g, 0), f->x), zero = ir_real(g, 0);
  const ir_ref safe_log = ir_op3(g, IR_SELECT, positive, ir_op1(g, IR_LOG, f->x), zero);
  assert_near(at(f, grad_of(f, safe_log, f->x), 0, 0), 0);
  assert_near(at(f, grad_of(f, safe_log, f->x), 2, 0), 0.5);
  const ir_ref root = ir_op3(g, IR_SELECT, positive, zero, ir_op1(g, IR_SQRT, MUL(f->y, ir_op1(g, IR_SQRT, f->x))));
  assert_near(at(f, grad_of(f, root, f->y), 1, 0), 0);
  assert_near(at(f, grad_of(f, ir_op2(g, IR_POW, f->x, f->y), f->x), 0, 0), 0);
  assert_near(at(f, grad_of(f, ir_op2(g, IR_POW, f->x, f->y), f->y), 0, 2), 0);
}

/* Same as above, with an arm whose parts are used under several conditions, related or not. The adjoint is
 * then a sum of selects. */
static void test_arms_under_several_conditions(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref zero = ir_real(g, 0), positive = ir_op2(g, IR_LT, zero, f->x), root = ir_op1(g, IR_SQRT, f->x);
  const ir_ref above = ir_op2(g, IR_LT, f->y, ir_real(g, 2)), below = ir_op2(g, IR_LT, ir_real(g, -2), f->y);
  const ir_ref both = ir_op3(g, IR_SELECT, positive, ir_op3(g, IR_SELECT, above, ADD(root, f->one), root), zero);
  const ir_ref one_each = ADD(ir_op3(g, IR_SELECT, ir_op2(g, IR_AND, positive, above), root, zero),
                              ir_op3(g, IR_SELECT, ir_op2(g, IR_AND, positive, below), MUL(root, f->y), zero));
  for (int y = -3; y <= 3; y += 3) {
    assert_near(at(f, grad_of(f, both, f->x), -1, y), 0);
    assert_near(at(f, grad_of(f, both, f->x), 0, y), 0);
    assert_near(at(f, grad_of(f, both, f->x), 4, y), 0.25);
    assert_near(at(f, grad_of(f, one_each, f->x), 0, y), 0);
    assert_near(at(f, grad_of(f, one_each, f->x), 4, y), 0.25 * ((y < 2) + (y > -2 ? y : 0)));
  }
  /* An arm that overflows, minus a value that two arms use. */
  const ir_ref steep = ir_op1(g, IR_EXP, MUL(f->x, ir_real(g, 900))), small = ir_op2(g, IR_LT, f->x, f->one);
  const ir_ref cut = SUB(ir_op3(g, IR_SELECT, small, steep, f->x),
                         ir_op3(g, IR_SELECT, ir_op2(g, IR_AND, small, above), MUL(steep, f->y), zero));
  assert_near(at(f, grad_of(f, cut, f->x), 5, 0), 1);
  assert_near(at(f, grad_of(f, cut, f->x), 5, 3), 1);
  assert_near(at(f, grad_of(f, cut, f->x), 0, 0.5), 450);
}

/* The slope of clamp is 1 on its closed interval, and so is that of max and min against a constant. At a tie
 * of two traced values each gets half. relu and abs have slope 0 at 0. */
static void test_ties(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref zero = ir_real(g, 0), two = ir_real(g, 2);
  const ir_ref max = ir_op2(g, IR_MAX, f->x, f->y), min = ir_op2(g, IR_MIN, f->x, f->y);
  const ir_ref above = ir_op2(g, IR_MAX, zero, f->x), under = ir_op2(g, IR_MIN, f->x, two);
  const ir_ref both[] = {max, min};
  for (int i = 0; i < 2; i++) {
    assert_near(at(f, grad_of(f, both[i], f->x), 3, 3), 0.5);
    assert_near(at(f, grad_of(f, both[i], f->y), 3, 3), 0.5);
    assert_near(at(f, grad_of(f, both[i], f->x), 1, 3), i);
    assert_near(at(f, grad_of(f, both[i], f->y), 1, 3), 1 - i);
  }
  assert_near(at(f, grad_of(f, ir_op2(g, IR_MAX, f->x, f->x), f->x), 3, 0), 1);
  assert_near(at(f, grad_of(f, above, f->x), 0, 0), 1);
  assert_near(at(f, grad_of(f, under, f->x), 2, 0), 1);
  assert_near(at(f, grad_of(f, above, f->x), -0.1, 0), 0);
  assert_near(at(f, grad_of(f, under, f->x), 2.1, 0), 0);
  assert_near(at(f, grad_of(f, ir_op1(g, IR_RELU, f->x), f->x), 0, 0), 0);
  assert_near(at(f, grad_of(f, ir_op1(g, IR_ABS, f->x), f->x), 0, 0), 0);
  static const double x[] = {-1, 0, 1, 2, 3}, slope[] = {0, 1, 1, 1, 0};
  const ir_ref clamp = ir_op3(g, IR_CLAMP, f->x, zero, two);
  for (int i = 0; i < 5; i++) assert_near(at(f, grad_of(f, clamp, f->x), x[i], 0), slope[i]);
}

/* A clamp's bounds get the part of the gradient that x does not get. If the bounds cross, the upper one gets
 * all of it. */
static void test_bounds_of_clamp(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref low = ir_op3(g, IR_CLAMP, f->x, f->y, ir_real(g, 2)),
               high = ir_op3(g, IR_CLAMP, f->x, ir_real(g, -2), f->y);
  static const struct {
    double x, y, low_x, low_y, high_x, high_y;
  } cases[] = {{1, 0, 1, 0, 0, 1}, {0, 1, 0, 1, 1, 0}, {1, 1, 1, 0, 1, 0}, {1, 3, 0, 0, 1, 0}, {1, -3, 1, 0, 0, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const double a = cases[i].x, b = cases[i].y;
    assert_near(at(f, grad_of(f, low, f->x), a, b), cases[i].low_x);
    assert_near(at(f, grad_of(f, low, f->y), a, b), cases[i].low_y);
    assert_near(at(f, grad_of(f, high, f->x), a, b), cases[i].high_x);
    assert_near(at(f, grad_of(f, high, f->y), a, b), cases[i].high_y);
  }
}

static void test_lines_follow(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ir_set_line(g, 12);
  const ir_ref t = ir_op1(g, IR_TANH, f->x);
  ir_set_line(g, 30);
  assert_int_equal(ir_get(g, grad_of(f, t, f->x))->line, 12);
  assert_int_equal(ir_get(g, ir_op1(g, IR_COS, f->y))->line, 30); /* the caller's line is restored */
}

static double central(fixture *f, ir_ref root, const point *p, int k, double h) {
  static const double step[4] = {-2, -1, 1, 2};
  double v[4];
  for (int i = 0; i < 4; ++i) {
    point q = *p;
    q.real[k] += step[i] * h;
    v[i] = program_eval(f->a, f->g, root, &q);
  }
  return (8 * (v[2] - v[1]) - (v[3] - v[0])) / (12 * h);
}

static int compare(fixture *f, ir_ref root, const ir_ref *grad, const point *p) {
  int compared = 0;
  for (int k = 0; k < POINT_REALS; ++k) {
    /* Compares three step widths, because the steps of floor(steep) may look like a slope. */
    const double a = central(f, root, p, k, 2e-4), b = central(f, root, p, k, 5e-5), c = central(f, root, p, k, 7e-5),
                 most = 1e-8 * (1 + fabs(b));
    if (!(fabs(b) < 1e4) || !(fabs(a - b) <= most) || !(fabs(c - b) <= 2 * most)) continue;
    const double got = grad[k] == IR_NONE ? 0 : program_eval(f->a, f->g, grad[k], p);
    ++compared;
    if (!(fabs(got - b) <= 1e-5 * (1 + fabs(b))))
      fail_msg("d root / d x%d is %.12g, differences give %.12g", k, got, b);
  }
  return compared;
}

static void test_random_graphs(void **state) {
  (void)state;
  rng r = {21};
  int compared = 0, slopes = 0;
  for (int i = 0; i < 20000; ++i) {
    fixture f = {.a = arena_open(NULL)};
    ir *g = f.g = ir_open(f.a);
    /* Excludes MOD, which jumps between any two points if the divisor is tiny. */
    const op_set jumps = OP_BIT(STOP_GRADIENT) | OP_BIT(MOD) | OP_BIT(ROUND_FLOAT) | OP_BIT(ROUND_COARSE);
    const ir_ref root = random_build(g, &r, 3 + rng_below(&r, 25), jumps).real;
    const ir_ref one = ir_real(g, 1);
    ir_ref wrt[POINT_REALS], grad[POINT_REALS];
    for (uint32_t k = 0; k < POINT_REALS; ++k) wrt[k] = ir_variable(g, VAR_SCALAR, k);
    ir_grad(g, &root, &one, 1, wrt, grad, POINT_REALS);
    assert_int_equal(ir_check(g, grad, POINT_REALS, "grad", NULL), LUATTN_OK);
    ir_ref wanted[1 + POINT_REALS] = {root};
    int n_wanted = 1;
    for (int k = 0; k < POINT_REALS; ++k)
      if (grad[k] != IR_NONE) wanted[n_wanted++] = grad[k];
    double *value = malloc(ir_count(g) * sizeof *value);
    for (int k = 0; k < 4; ++k) {
      point p = {.integer = {rng_below(&r, 50), rng_below(&r, 50), rng_below(&r, 8), 50}};
      for (int j = 0; j < POINT_REALS; ++j) p.real[j] = rng_between(&r, -2, 2);
      /* An infinite intermediate result (sqrt at 0, an overflow) may make a derivative 0 * inf although
       * differences are finite. */
      plain_eval(g, &p, IN_DOUBLE, NULL, value);
      if (largest_value(g, wanted, n_wanted, value) < 1e6) compared += compare(&f, root, grad, &p);
    }
    slopes += n_wanted - 1;
    free(value);
    arena_close(f.a);
  }
  assert_true(compared > 100000 && slopes > 10000);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* An expression shared by both arms of a select has one derivative, without a select. */
static void test_arms_come_together(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref condition = ir_op2(g, IR_LT, f->x, f->y), zero = ir_real(g, 0);
  const ir_ref sum = ir_op2(g, IR_ADD, f->x, f->y);
  const ir_ref root = ir_op3(g, IR_SELECT, condition, sum, f->x);
  assert_int_equal(grad_of(f, root, f->x), f->one);
  assert_int_equal(grad_of(f, root, f->y), ir_op3(g, IR_SELECT, condition, f->one, zero));
  const ir_ref scaled = ir_op3(g, IR_SELECT, condition, ir_op2(g, IR_MUL, f->x, f->y), f->x);
  assert_int_equal(grad_of(f, scaled, f->x), ir_op3(g, IR_SELECT, condition, f->y, f->one));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_shared_subexpressions),
      TEST(test_gelu_tail),
      TEST(test_several_roots),
      TEST(test_zero_is_none),
      TEST(test_loads),
      TEST(test_guarded_arms),
      TEST(test_arms_come_together),
      TEST(test_lines_follow),
      TEST(test_arms_under_several_conditions),
      TEST(test_ties),
      TEST(test_bounds_of_clamp),
      cmocka_unit_test(test_random_graphs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
