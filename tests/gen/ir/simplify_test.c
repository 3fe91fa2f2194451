/* simplify_test.c: tests expected results of simplification, and that the values of random graphs stay the
 * same. */
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
  ir_ref q, kv, h, x, y, z;
} fixture;

static int setup(void **state) {
  fixture *f = malloc(sizeof *f);
  f->a = arena_open(NULL);
  f->g = ir_open(f->a);
  f->q = ir_variable(f->g, VAR_Q, 0);
  f->kv = ir_variable(f->g, VAR_KV, 0);
  f->h = ir_variable(f->g, VAR_H, 0);
  f->x = ir_variable(f->g, VAR_SCALAR, 0);
  f->y = ir_variable(f->g, VAR_SCALAR, 1);
  f->z = ir_variable(f->g, VAR_SCALAR, 2);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  arena_close(((fixture *)*state)->a);
  free(*state);
  return 0;
}

static ir_ref simple(ir *g, ir_ref r) {
  ir_simplify(g, &r, 1);
  return r;
}

#define ADD(a, b) ir_op2(g, IR_ADD, a, b)
#define SUB(a, b) ir_op2(g, IR_SUB, a, b)
#define MUL(a, b) ir_op2(g, IR_MUL, a, b)
#define DIV(a, b) ir_op2(g, IR_DIV, a, b)
#define NEG(a) ir_op1(g, IR_NEG, a)
#define EXP(a) ir_op1(g, IR_EXP, a)
#define AND(a, b) ir_op2(g, IR_AND, a, b)
#define OR(a, b) ir_op2(g, IR_OR, a, b)
#define NOT(a) ir_op1(g, IR_NOT, a)
#define LT(a, b) ir_op2(g, IR_LT, a, b)
#define LE(a, b) ir_op2(g, IR_LE, a, b)
#define REAL(c) ir_real(g, c)
#define INT(c) ir_int(g, c)

static void test_sums_cancel(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref x = f->x, y = f->y, p = EXP(x), l = ADD(EXP(y), REAL(1));
  assert_int_equal(simple(g, SUB(x, x)), REAL(0));
  assert_int_equal(simple(g, SUB(ADD(x, y), x)), y);
  assert_int_equal(simple(g, ADD(NEG(x), ADD(y, x))), y);
  assert_int_equal(simple(g, ADD(MUL(x, REAL(2)), MUL(x, REAL(3)))), MUL(x, REAL(5)));
  assert_int_equal(simple(g, SUB(MUL(REAL(0.5), ADD(x, y)), MUL(y, REAL(0.5)))), MUL(x, REAL(0.5)));
  assert_int_equal(simple(g, ADD(ADD(x, REAL(1)), REAL(2))), ADD(x, REAL(3)));
  assert_int_equal(simple(g, SUB(MUL(MUL(x, y), p), MUL(x, MUL(p, y)))), REAL(0));
  assert_int_equal(simple(g, ADD(NEG(p), MUL(p, DIV(l, l)))), REAL(0)); /* l = 1 + exp(y) cannot be 0 */
  assert_int_equal(simple(g, MUL(MUL(x, REAL(2)), MUL(y, REAL(4)))), MUL(MUL(x, y), REAL(8)));
  const ir_ref sum = ADD(ADD(x, y), p); /* no rule applies: unchanged */
  assert_int_equal(simple(g, sum), sum);
}

static void test_divisions_stay(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref one_plus = ADD(REAL(1), EXP(f->x));
  assert_int_equal(simple(g, DIV(f->x, f->x)), DIV(f->x, f->x)); /* 0 / 0 */
  assert_int_equal(simple(g, MUL(DIV(f->y, f->x), f->x)), MUL(DIV(f->y, f->x), f->x));
  assert_int_equal(simple(g, DIV(EXP(f->x), EXP(f->x))), DIV(EXP(f->x), EXP(f->x))); /* may underflow */
  assert_int_equal(simple(g, DIV(one_plus, one_plus)), REAL(1));
  assert_int_equal(simple(g, DIV(MUL(f->y, one_plus), one_plus)), f->y);
  assert_int_equal(simple(g, MUL(DIV(f->y, one_plus), one_plus)), f->y);
  const ir_ref two_exps = MUL(EXP(f->x), EXP(f->y));
  assert_int_equal(simple(g, two_exps), two_exps);
}

static void test_integer_comparisons(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref q = f->q, kv = f->kv, causal = LE(kv, q);
  assert_int_equal(simple(g, LE(SUB(kv, q), INT(0))), causal);
  assert_int_equal(simple(g, LT(kv, ADD(q, INT(1)))), causal);
  assert_int_equal(simple(g, LT(INT(-1), SUB(q, kv))), causal);
  assert_int_equal(simple(g, LE(MUL(kv, INT(3)), MUL(q, INT(3)))), causal);
  assert_int_equal(simple(g, NOT(LT(q, kv))), causal);
  const ir_ref window = LE(q, ADD(kv, INT(4095)));
  assert_int_equal(simple(g, LT(SUB(q, kv), INT(4096))), window);
  assert_int_equal(simple(g, NOT(LE(INT(4096), SUB(q, kv)))), window);
  assert_int_equal(simple(g, LE(INT(5), SUB(q, kv))), LE(ADD(kv, INT(5)), q));
  assert_int_equal(simple(g, LT(ADD(q, q), INT(7))), LE(q, INT(3)));
  assert_int_equal(simple(g, LE(INT(7), MUL(q, INT(2)))), LE(INT(4), q));
  assert_int_equal(simple(g, LT(ADD(q, kv), ADD(kv, INT(3)))), LE(q, INT(2)));
  assert_int_equal(simple(g, LE(ADD(q, INT(1)), q)), ir_bool(g, false));
  assert_int_equal(simple(g, ir_op2(g, IR_EQ, MUL(q, INT(2)), INT(5))), ir_bool(g, false));
  assert_int_equal(simple(g, ir_op2(g, IR_NE, SUB(q, kv), INT(0))), ir_op2(g, IR_NE, q, kv));
  assert_int_equal(simple(g, ir_op2(g, IR_EQ, SUB(kv, INT(2)), q)), simple(g, ir_op2(g, IR_EQ, ADD(q, INT(2)), kv)));
}

static void test_logic(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref a = LT(f->x, f->y), b = LT(f->y, f->z), c = LE(f->kv, f->q), yes = ir_bool(g, true),
               no = ir_bool(g, false);
  assert_int_equal(simple(g, AND(a, OR(a, b))), a);
  assert_int_equal(simple(g, OR(a, AND(a, b))), a);
  assert_int_equal(simple(g, AND(a, OR(NOT(a), b))), AND(a, b));
  assert_int_equal(simple(g, OR(c, AND(NOT(c), b))), simple(g, OR(c, b)));
  assert_int_equal(simple(g, AND(AND(a, b), NOT(a))), no);
  assert_int_equal(simple(g, OR(OR(b, a), NOT(b))), yes);
  assert_int_equal(simple(g, AND(AND(a, b), AND(b, a))), AND(a, b));
  assert_int_equal(simple(g, NOT(AND(a, NOT(b)))), OR(NOT(a), b));
  assert_int_equal(simple(g, NOT(OR(c, a))), simple(g, AND(LT(f->q, f->kv), NOT(a))));
  assert_int_equal(simple(g, ir_op3(g, IR_SELECT, a, ir_op3(g, IR_SELECT, b, yes, no), no)), AND(a, b));
}

static void test_ranges_meet(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref q = f->q, kv = f->kv, yes = ir_bool(g, true), no = ir_bool(g, false);
  assert_int_equal(simple(g, AND(LE(q, INT(5)), LE(q, INT(3)))), LE(q, INT(3)));
  assert_int_equal(simple(g, OR(LE(q, INT(5)), LE(q, INT(3)))), LE(q, INT(5)));
  assert_int_equal(simple(g, AND(LE(q, INT(5)), LE(INT(6), q))), no);
  assert_int_equal(simple(g, OR(LE(q, INT(5)), LE(INT(6), q))), yes);
  const ir_ref both = AND(LE(q, INT(5)), LE(INT(5), q));
  assert_int_equal(simple(g, both), both);
  assert_int_equal(simple(g, AND(LE(kv, q), LT(kv, q))), LT(kv, q));
  assert_int_equal(simple(g, AND(LE(kv, q), LT(SUB(q, kv), INT(0)))), no);
}

/* One comparison in two forms. Only one form is normal; the other is the negation of a normal one. */
static void test_equal_comparisons(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref sharp = LT(MUL(f->x, REAL(64)), f->x), seven = INT(7), six = INT(6);
  const ir_ref from_seven = LE(seven, f->q), beyond_six = LT(six, f->q);
  const ir_ref either = simple(g, OR(from_seven, NOT(AND(sharp, LT(f->q, seven)))));
  assert_int_equal(either, simple(g, OR(from_seven, NOT(sharp))));
  assert_true(ir_uses(g, either, VAR_Q));
  assert_int_equal(simple(g, AND(from_seven, beyond_six)), from_seven);
  assert_int_equal(simple(g, OR(beyond_six, from_seven)), from_seven);
}

static void test_comparisons_keep_bits(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref sum = SUB(ADD(f->x, f->y), f->x), sharp = LT(sum, f->z);
  assert_int_equal(simple(g, sharp), sharp);
  const ir_ref floored = ir_op1(g, IR_FLOOR, sum);
  assert_int_equal(simple(g, floored), floored);
  const ir_ref chosen = ir_op3(g, IR_SELECT, sharp, sum, f->z); /* both forms of one comparison */
  assert_int_equal(simple(g, chosen), ir_op3(g, IR_SELECT, sharp, f->y, f->z));
}

static void test_several_roots_and_none(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ir_ref roots[3] = {SUB(f->x, f->x), IR_NONE, f->q};
  ir_simplify(g, roots, 3);
  assert_int_equal(roots[0], REAL(0));
  assert_int_equal(roots[1], IR_NONE);
  assert_int_equal(roots[2], f->q);
}

static void test_long_sums_and_sharing(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ir_ref doubled = f->x, sum = f->x; /* 2^60 leaves if expanded */
  for (int i = 0; i < 60; ++i) doubled = ADD(doubled, EXP(doubled));
  for (int i = 0; i < 100; ++i) sum = ADD(sum, EXP(MUL(f->x, REAL(i + 2))));
  ir_ref roots[2] = {doubled, sum};
  ir_simplify(g, roots, 2);
  assert_int_equal(ir_check(g, roots, 2, "simplify", NULL), LUATTN_OK);
  ir_ref twice = f->x;
  for (int i = 0; i < 40; ++i) twice = ADD(twice, twice);
  assert_int_equal(simple(g, twice), MUL(f->x, REAL(1099511627776.0)));
}

/* ---- random graphs ---- */

static int compare(arena *a, ir *g, const ir_ref *before, const ir_ref *after, const point *p) {
  for (int i = 0; i < 3; ++i) {
    const double x = program_eval(a, g, before[i], p), y = program_eval(a, g, after[i], p);
    const double tolerance = ir_typeof(g, before[i]) == IR_REAL ? 1e-7 * (1 + fabs(x)) : 0;
    if (!(fabs(x - y) <= tolerance))
      fail_msg("root %d of type %d was %.17g, is %.17g", i, ir_typeof(g, before[i]), x, y);
  }
  return 1;
}

static void test_random_graphs_keep_values(void **state) {
  (void)state;
  rng r = {31};
  int compared = 0, changed = 0;
  for (int i = 0; i < 40000; ++i) {
    arena *a = arena_open(NULL);
    ir *g = ir_open(a);
    /* Every second graph uses only ops that the rules mention, so that more rules apply. */
    const op_set algebra = OP_BIT(ADD) | OP_BIT(SUB) | OP_BIT(MUL) | OP_BIT(NEG) | OP_BIT(DIV) | OP_BIT(LT) |
                           OP_BIT(LE) | OP_BIT(EQ) | OP_BIT(NE) | OP_BIT(AND) | OP_BIT(OR) | OP_BIT(NOT) |
                           OP_BIT(SELECT);
    const random_expr e = random_build(g, &r, 3 + rng_below(&r, 30), i % 2 == 0 ? 0 : ~algebra);
    const ir_ref before[3] = {e.real, e.integer, e.boolean};
    ir_ref after[3] = {e.real, e.integer, e.boolean};
    const uint32_t count = ir_count(g);
    ir_simplify(g, after, 3);
    assert_int_equal(ir_check(g, after, 3, "simplify", NULL), LUATTN_OK);
    for (int k = 0; k < 3; ++k) {
      changed += after[k] != before[k];
      if (ir_uses_op(g, after[k], IR_DIV)) assert_true(ir_uses_op(g, before[k], IR_DIV));
      if (ir_uses_op(g, after[k], IR_LOG)) assert_true(ir_uses_op(g, before[k], IR_LOG));
    }
    double *value = malloc(ir_count(g) * sizeof *value);
    for (int k = 0; k < 6; ++k) {
      point p = {.integer = {rng_below(&r, 80) - 10, rng_below(&r, 80), rng_below(&r, 8), 50}};
      for (int j = 0; j < POINT_REALS; ++j) p.real[j] = rng_between(&r, -2, 2);
      /* For larger numbers, rounding alone may cause visible differences. */
      plain_eval(g, &p, IN_DOUBLE, NULL, value);
      if (largest_value(g, before, 3, value) < 1e4) compared += compare(a, g, before, after, &p);
    }
    assert_true(ir_count(g) >= count);
    free(value);
    arena_close(a);
  }
  assert_true(compared > 100000 && changed > 8000);
}

/* An expression simplifies to the same text regardless of the graph's other nodes. */
static void test_deterministic(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const char *printed[2];
    arena *a = arena_open(NULL);
    for (int k = 0; k < 2; ++k) {
      ir *g = ir_open(a);
      rng r = {seed};
      const random_expr e = random_build(g, &r, 30, 0);
      ir_ref roots[3] = {e.real, e.integer, e.boolean};
      ir_simplify(g, roots, 3);
      static const char *const names[] = {"real", "integer", "boolean"};
      text t;
      text_init(&t, a);
      ir_print(g, &t, roots, names, 3, NULL);
      printed[k] = text_get(&t);
    }
    assert_string_equal(printed[0], printed[1]);
    arena_close(a);
  }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_sums_cancel),
      TEST(test_divisions_stay),
      TEST(test_integer_comparisons),
      TEST(test_logic),
      TEST(test_ranges_meet),
      TEST(test_equal_comparisons),
      TEST(test_comparisons_keep_bits),
      TEST(test_several_roots_and_none),
      TEST(test_long_sums_and_sharing),
      cmocka_unit_test(test_random_graphs_keep_values),
      cmocka_unit_test(test_deterministic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
