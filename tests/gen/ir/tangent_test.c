/* tangent_test.c: tests forward mode beside reverse mode: the sum of tangents times adjoints is that of directions times
 * gradients, for random graphs and at ties and guards. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "tests/gen/ir/expr.h"

enum { ROOTS = 3 };

typedef struct fixture {
  arena *a;
  ir *g;
  ir_ref x, y, dx, dy;
} fixture;

static int setup(void **state) {
  fixture *f = malloc(sizeof *f);
  f->a = arena_open(NULL);
  f->g = ir_open(f->a);
  f->x = ir_variable(f->g, VAR_SCALAR, 0);
  f->y = ir_variable(f->g, VAR_SCALAR, 1);
  f->dx = ir_real(f->g, 1), f->dy = ir_real(f->g, 1);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  arena_close(((fixture *)*state)->a);
  free(*state);
  return 0;
}

/* The tangent of root where x, y, or both move. */
static ir_ref along(fixture *f, ir_ref root, bool x, bool y) {
  const ir_ref wrt[] = {f->x, f->y}, d[] = {x ? f->dx : IR_NONE, y ? f->dy : IR_NONE};
  ir_ref out;
  ir_tangent(f->g, &root, 1, wrt, d, 2, &out);
  return out;
}

static double at(fixture *f, ir_ref root, double x, double y) {
  return root == IR_NONE ? 0 : program_eval(f->a, f->g, root, &(point){.real = {x, y}, .integer = {5, 3, 1, 9}});
}

#define ADD(a, b) ir_op2(g, IR_ADD, a, b)
#define MUL(a, b) ir_op2(g, IR_MUL, a, b)
#define SELECT(c, a, b) ir_op3(g, IR_SELECT, c, a, b)
#define assert_near(a, b) assert_true(fabs((a) - (double)(b)) <= 1e-12 * (1 + fabs((double)(b))))

static void test_shared_subexpressions(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref e = ir_op1(g, IR_EXP, f->x), cube = MUL(MUL(e, e), e);
  assert_near(at(f, along(f, cube, true, false), 0.3, 0), 3 * exp(0.9));
  ir_ref power = f->x; /* x^(2^40) */
  for (int i = 0; i < 40; ++i) power = MUL(power, power);
  assert_near(at(f, along(f, power, true, false), 1, 0), 1099511627776.0);
  /* A direction of an inner node is added to its own tangent. */
  const ir_ref wrt[] = {e, f->x}, d[] = {ir_real(g, 2), f->dx};
  ir_ref out;
  ir_tangent(g, &cube, 1, wrt, d, 2, &out);
  assert_near(at(f, out, 0.3, 0), 3 * exp(0.6) * (2 + exp(0.3)));
}

static void test_what_does_not_move(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  assert_int_equal(along(f, ir_op1(g, IR_EXP, f->x), false, true), IR_NONE);
  assert_int_equal(along(f, ir_op1(g, IR_FLOOR, f->x), true, true), IR_NONE);
  assert_int_equal(along(f, ir_op1(g, IR_STOP_GRADIENT, f->x), true, true), IR_NONE);
  const ir_ref half = MUL(f->x, ir_op1(g, IR_STOP_GRADIENT, f->x));
  assert_int_equal(along(f, half, true, false), ir_op1(g, IR_STOP_GRADIENT, f->x));
  assert_int_equal(along(f, f->x, true, false), f->dx);
}

/* What an arm that is not taken holds is no part of a tangent, not as 0 times infinity either. */
static void test_guards(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref zero = ir_real(g, 0), positive = ir_op2(g, IR_LT, zero, f->x);
  const ir_ref outside = SELECT(positive, ir_op1(g, IR_SQRT, f->x), zero);
  const ir_ref inside = ir_op1(g, IR_SQRT, SELECT(positive, f->x, zero));
  const ir_ref summed = ir_op1(g, IR_SQRT, ADD(SELECT(positive, f->x, zero), SELECT(positive, f->y, zero)));
  const ir_ref roots[] = {outside, inside, summed};
  for (int i = 0; i < 3; ++i) {
    const ir_ref t = along(f, roots[i], true, true);
    assert_near(at(f, t, 0, 0), 0);
    assert_near(at(f, t, -1, 3), 0);
    if (i < 2) assert_near(at(f, t, 4, 3), 0.25);
  }
  /* The arms of one select come together. */
  const ir_ref both = SELECT(positive, MUL(f->x, f->x), MUL(f->x, f->y));
  assert_int_equal(along(f, both, true, false), SELECT(positive, ADD(f->x, f->x), f->y));
}

static void test_ties(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref max = ir_op2(g, IR_MAX, f->x, f->y), above = ir_op2(g, IR_MAX, f->x, ir_real(g, 0));
  assert_near(at(f, along(f, max, true, false), 3, 3), 0.5);
  assert_near(at(f, along(f, max, true, true), 3, 3), 1);
  assert_near(at(f, along(f, above, true, false), 0, 0), 1);
  assert_near(at(f, along(f, ir_op1(g, IR_RELU, f->x), true, false), 0, 0), 0);
}

static void test_lines_follow(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ir_set_line(g, 12);
  const ir_ref t = ir_op1(g, IR_TANH, f->x);
  ir_set_line(g, 30);
  assert_int_equal(ir_get(g, along(f, t, true, false))->line, 12);
  assert_int_equal(ir_get(g, ir_op1(g, IR_COS, f->y))->line, 30);
}

/* Both sides of <Jt, u> = <t, J'u> at a point; false: one of them is not finite or too large to tell. */
static bool compare(fixture *f, const ir_ref *tangent, const ir_ref *grad, const double *t, const double *u,
                    const point *p) {
  double forward = 0, backward = 0, size = 0;
  for (int i = 0; i < ROOTS; ++i) {
    const double term = tangent[i] == IR_NONE ? 0 : u[i] * program_eval(f->a, f->g, tangent[i], p);
    forward += term, size += fabs(term);
  }
  for (int k = 0; k < POINT_REALS; ++k) {
    const double term = grad[k] == IR_NONE ? 0 : t[k] * program_eval(f->a, f->g, grad[k], p);
    backward += term, size += fabs(term);
  }
  if (!(fabs(forward - backward) <= 1e-9 * (1 + size)))
    fail_msg("<Jt, u> = %.15g, <t, J'u> = %.15g", forward, backward);
  return size > 0;
}

static void test_random_graphs(void **state) {
  (void)state;
  rng r = {43};
  int compared = 0;
  for (int i = 0; i < 8000; ++i) {
    fixture f = {.a = arena_open(NULL)};
    ir *g = f.g = ir_open(f.a);
    ir_ref root[ROOTS], tangent[ROOTS], adjoint[ROOTS], wrt[POINT_REALS], d[POINT_REALS], grad[POINT_REALS];
    double t[POINT_REALS], u[ROOTS];
    for (int k = 0; k < ROOTS; ++k) {
      root[k] = random_build(g, &r, 3 + rng_below(&r, 20), OP_BIT(ROUND_FLOAT) | OP_BIT(ROUND_COARSE)).real;
      adjoint[k] = ir_real(g, u[k] = rng_between(&r, -1, 1));
    }
    for (uint32_t k = 0; k < POINT_REALS; ++k) {
      wrt[k] = ir_variable(g, VAR_SCALAR, k);
      d[k] = ir_real(g, t[k] = k == 2 && i % 3 == 0 ? 0 : rng_between(&r, -1, 1));
    }
    ir_grad(g, root, adjoint, ROOTS, wrt, grad, POINT_REALS);
    ir_tangent(g, root, ROOTS, wrt, d, POINT_REALS, tangent);
    assert_int_equal(ir_check(g, tangent, ROOTS, "tangent", NULL), LUATTN_OK);
    double *value = malloc(ir_count(g) * sizeof *value);
    for (int k = 0; k < 4; ++k) {
      point p = {.integer = {rng_below(&r, 50), rng_below(&r, 50), rng_below(&r, 8), 50}};
      for (int j = 0; j < POINT_REALS; ++j) p.real[j] = k == 0 ? rng_below(&r, 3) - 1 : rng_between(&r, -2, 2);
      plain_eval(g, &p, IN_DOUBLE, NULL, value);
      ir_ref read[ROOTS + POINT_REALS + ROOTS];
      int n = 0;
      for (int j = 0; j < ROOTS; ++j) {
        read[n++] = root[j];
        if (tangent[j] != IR_NONE) read[n++] = tangent[j];
      }
      for (int j = 0; j < POINT_REALS; ++j)
        if (grad[j] != IR_NONE) read[n++] = grad[j];
      if (largest_value(g, read, n, value) < 1e6) compared += compare(&f, tangent, grad, t, u, &p);
    }
    free(value);
    arena_close(f.a);
  }
  assert_true(compared > 10000);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_shared_subexpressions), TEST(test_what_does_not_move),        TEST(test_guards), TEST(test_ties),
      TEST(test_lines_follow),          cmocka_unit_test(test_random_graphs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
