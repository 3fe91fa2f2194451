/* decide_test.c: what comparisons, floor and the like give once ir_decide has rounded what they read. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "gen/ir/passes.h"
#include "tests/gen/ir/expr.h"

static const ir_decisions in_float = {0}, in_double = {.doubles = true};

static ir_ref decided(ir *g, ir_ref r, const ir_decisions *rule) {
  ir_decide(g, &r, 1, rule);
  assert_int_equal(ir_check(g, &r, 1, "decide", NULL), LUATTN_OK);
  return r;
}

/* Whether every kept place of a comparison is that of float arithmetic, and of a value that of double arithmetic. */
static void test_random_graphs(void **state) {
  (void)state;
  rng r = {77};
  int compared = 0, differ = 0;
  for (int i = 0; i < 20000; ++i) {
    arena *a = arena_open(NULL);
    ir *g = ir_open(a);
    const op_set arithmetic = OP_BIT(ADD) | OP_BIT(SUB) | OP_BIT(MUL) | OP_BIT(DIV) | OP_BIT(LT) | OP_BIT(LE) |
                              OP_BIT(EQ) | OP_BIT(NE) | OP_BIT(SELECT) | OP_BIT(MIN) | OP_BIT(FLOORDIV) |
                              OP_BIT(FLOOR_INT) | OP_BIT(TO_REAL) | OP_BIT(SIGN);
    const random_expr e =
        random_build(g, &r, 3 + rng_below(&r, 12),
                     i % 4 == 0 ? OP_BIT(MOD) | OP_BIT(ROUND_FLOAT) | OP_BIT(ROUND_COARSE) : ~arithmetic);
    const ir_ref before[2] = {e.boolean, e.integer};
    point p = {.integer = {rng_below(&r, 80), rng_below(&r, 80), rng_below(&r, 8), 50}};
    for (int j = 0; j < POINT_REALS; ++j)
      p.real[j] = (float)((rng_below(&r, 41) - 20) * 0.1); /* sums and products meet often */
    double *as_float = malloc(ir_count(g) * sizeof *as_float), *as_double = malloc(ir_count(g) * sizeof *as_double);
    plain_eval(g, &p, IN_FLOAT, NULL, as_float);
    plain_eval(g, &p, IN_DOUBLE, NULL, as_double);
    /* Beyond float32's range a constant is infinite in one and not in the other. */
    const bool in_range = largest_value(g, before, 2, as_double) < FLT_MAX;
    for (int k = 0; in_range && k < 2; ++k) {
      const double want = as_float[before[k]], got = program_eval(a, g, decided(g, before[k], &in_float), &p);
      if (got != want)
        fail_msg("graph %d, root %d: is %.17g, in float %.17g, in double %.17g", i, k, got, want, as_double[before[k]]);
      compared++, differ += want != as_double[before[k]];
    }
    free(as_float), free(as_double);
    arena_close(a);
  }
  if (!(compared > 20000 && differ >= 10)) fail_msg("%d compared, %d differ from double", compared, differ);
}

typedef struct fixture {
  arena *a;
  ir *g;
  ir_ref x, y, q;
} fixture;

static fixture fixture_open(void) {
  fixture f = {.a = arena_open(NULL)};
  f.g = ir_open(f.a);
  f.x = ir_variable(f.g, VAR_SCALAR, 0), f.y = ir_variable(f.g, VAR_SCALAR, 1), f.q = ir_variable(f.g, VAR_Q, 0);
  return f;
}

static double value_of(fixture *f, ir_ref r, const ir_decisions *rule, double x, double y, int q) {
  return program_eval(f->a, f->g, decided(f->g, r, rule), &(point){.real = {x, y}, .integer = {q}});
}

static void test_values_stay_double(void **state) {
  (void)state;
  fixture f = fixture_open();
  const ir_ref product = ir_op2(f.g, IR_MUL, f.x, ir_real(f.g, 0.7));
  const ir_ref arm = ir_op3(f.g, IR_SELECT, ir_op2(f.g, IR_LE, ir_real(f.g, 7), product), product, ir_real(f.g, 0));
  assert_true(value_of(&f, arm, &in_float, 10, 0, 0) == 10 * 0.7); /* 7 is 10 * 0.7 in float32 too */
  assert_true(value_of(&f, product, &in_float, 3, 0, 0) == 3 * 0.7);
  arena_close(f.a);
}

/* A product that is added at once is not rounded, but for comparisons: 0.1f * 3 - 0.3f is 0 once it is. */
static void test_products_are_fused(void **state) {
  (void)state;
  fixture f = fixture_open();
  const double third = (double)0.1f * 3 - (double)0.3f;
  const ir_decisions plain = {.values = true}, fused = {.values = true, .contracts = true},
                     coarse = {.coarse = true, .contracts = true};
  const ir_ref product = ir_op2(f.g, IR_MUL, f.x, f.y), rest = ir_op2(f.g, IR_SUB, product, ir_real(f.g, 0.3));
  const ir_ref is_least = ir_op2(f.g, IR_LE, ir_real(f.g, 0), rest),
               arm = ir_op3(f.g, IR_SELECT, is_least, rest, ir_real(f.g, 1));
  assert_true(value_of(&f, rest, &plain, 0.1f, 3, 0) == 0);
  assert_true(value_of(&f, rest, &fused, 0.1f, 3, 0) == third && third < 0);
  assert_true(value_of(&f, arm, &fused, 0.1f, 3, 0) == third); /* which the comparison takes for 0 */
  assert_true(value_of(&f, product, &fused, 0.1f, 3, 0) == (double)(0.1f * 3));
  assert_true(value_of(&f, rest, &coarse, 0.1, 3, 0) != 0.1 * 3 - 0.3);
  arena_close(f.a);
}

static void test_constants_take_the_type(void **state) {
  (void)state;
  fixture f = fixture_open();
  const ir_ref at = f.q, load = ir_load(f.g, 0, IR_REAL, &at, 1);
  const ir_ref of_scalar = ir_op2(f.g, IR_LE, ir_real(f.g, 0.7), f.x),
               of_load = ir_op2(f.g, IR_LE, ir_real(f.g, 0.7), load);
  const ir_decisions float64_call_of_double = {.doubles = true, .double_inputs = 1},
                     float32_call_of_double = {.double_inputs = 1};
  assert_true(value_of(&f, of_scalar, &in_float, 0.7f, 0, 0) == 1);
  assert_true(value_of(&f, of_scalar, &in_double, 0.7f, 0, 0) == 0);
  assert_true(ir_uses_op(f.g, decided(f.g, of_load, &in_float), IR_ROUND_FLOAT));
  assert_true(ir_uses_op(f.g, decided(f.g, of_load, &in_double), IR_ROUND_FLOAT)); /* float data in a float64 call */
  assert_true(decided(f.g, of_load, &float64_call_of_double) == of_load);
  assert_true(decided(f.g, of_load, &float32_call_of_double) == of_load);
  arena_close(f.a);
}

/* A remainder stays one of double, of as many periods as float32 counts. */
static void test_remainder(void **state) {
  (void)state;
  fixture f = fixture_open();
  const ir_ref r = ir_op2(f.g, IR_MOD, ir_op2(f.g, IR_MUL, f.x, f.y), ir_real(f.g, 1));
  const double below = 0.7f; /* ten of them are 7 once rounded */
  assert_true((float)(below * 10) == 7 && below * 10 < 7);
  assert_true(value_of(&f, r, &in_double, below, 10, 0) == below * 10 - 6);
  assert_true(value_of(&f, r, &in_float, below, 10, 0) == below * 10 - 7);
  assert_true(value_of(&f, r, &in_float, 0.25, 5, 0) == 0.25);
  arena_close(f.a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_values_stay_double),
                                     cmocka_unit_test(test_products_are_fused),
                                     cmocka_unit_test(test_constants_take_the_type), cmocka_unit_test(test_remainder)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
