/* ops_test.c: compares the value of every op in ops.def with C, and its derivative with central
 * differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "tests/gen/ir/expr.h"

/* ---- references, written independently of ops.def ---- */

static long long lua_floordiv(long long x, long long y) {
  const long long q = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}

static double ref_comparison(ir_op op, double x, double y, double z) {
  switch (op) {
    case IR_LT:
      return y > x;
    case IR_LE:
      return y >= x;
    case IR_EQ:
      return x == y;
    case IR_NE:
      return x != y;
    case IR_AND:
      return x * y;
    case IR_OR:
      return fmax(x, y);
    case IR_NOT:
      return 1 - x;
    case IR_SELECT:
      return x == 1 ? y : z;
    default:
      return NAN;
  }
}

static double ref_arithmetic(ir_op op, double x, double y, double z) {
  switch (op) {
    case IR_ADD:
    case IR_SUM_APART:
    case IR_REAL_SUM:
      return x + y;
    case IR_SUB:
      return x - y;
    case IR_MUL:
      return x * y;
    case IR_DIV:
      return x / y;
    case IR_NEG:
      return 0 - x;
    case IR_FMA:
      return x * y + z;
    case IR_MIN:
      return fmin(x, y);
    case IR_MAX:
      return fmax(x, y);
    case IR_CLAMP:
      return fmin(fmax(x, y), z);
    case IR_ABS:
      return fabs(x);
    case IR_SIGN:
      return x == 0 ? 0 : copysign(1, x);
    case IR_FLOOR:
      return floor(x);
    case IR_FLOORDIV:
      return floor(x / y);
    case IR_MOD:
      return x - floor(x / y) * y;
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
      return x;
    case IR_TO_INT:
      return (double)(long long)x;
    case IR_FLOOR_INT:
      return (double)(long long)floor(x);
    case IR_DIFFERENCE:
      return x + -y;
    case IR_SUM:
      return x - -y;
    case IR_PRODUCT:
      return -x * -y;
    case IR_QUOTIENT:
      return -x / -y;
    case IR_ROUND_FLOAT:
      return (float)x;
    case IR_ROUND_COARSE:
      return x == 0 ? x : ldexp(nearbyint(ldexp(x, 36 - ilogb(x))), ilogb(x) - 36);
    default:
      return ref_comparison(op, x, y, z);
  }
}

static double ref_function(ir_op op, double x, double y) {
  switch (op) {
    case IR_EXP:
      return (double)expl(x);
    case IR_EXP2:
      return (double)powl(2, x);
    case IR_EXPM1:
      return (double)(expl(x) - 1);
    case IR_LOG:
      return (double)logl(x);
    case IR_LOG2:
      return (double)(logl(x) / logl(2));
    case IR_LOG1P:
      return (double)logl(1 + (long double)x);
    case IR_SQRT:
      return (double)sqrtl(x);
    case IR_RSQRT:
      return (double)(1 / sqrtl(x));
    case IR_TANH:
      return (double)((1 - expl(-2 * (long double)x)) / (1 + expl(-2 * (long double)x)));
    case IR_SIGMOID:
      return (double)(1 / (1 + expl(-(long double)x)));
    case IR_SOFTPLUS:
      return (double)logl(1 + expl(x));
    case IR_ROUGH_TANH:
      return (double)((expl(2 * (long double)x) - 1) / (expl(2 * (long double)x) + 1));
    case IR_SIGMOID2:
    case IR_SIGMOID2_ALTERNATING:
      return (double)(powl(2, x) / (1 + powl(2, x)));
    case IR_RELU:
      return fmax(x, 0);
    case IR_GELU:
      return (double)(x * (1 + erfl(x / sqrtl(2))) / 2);
    case IR_SILU:
      return (double)(x / (1 + expl(-(long double)x)));
    case IR_ERF:
      return (double)(1 - erfcl(x));
    case IR_SIN:
      return (double)sinl(x);
    case IR_COS:
      return (double)cosl(x);
    case IR_POW:
      return x > 0 ? (double)expl(y * logl(x)) : pow(x, y);
    default:
      return NAN;
  }
}

/* Returns bit k of an integer in 64-bit two's complement. */
static bool bit(double x, int k) { return k >= 0 && k < 64 && fmod(floor(ldexp(x, -k)), 2) != 0; }

static bool ref_bit(ir_op op, double x, double y, double z, int k) {
  switch (op) {
    case IR_BAND:
      return bit(x, k) && bit(y, k);
    case IR_BOR:
      return bit(x, k) || bit(y, k);
    case IR_BXOR:
      return bit(x, k) != bit(y, k);
    case IR_SHL:
      return bit(x, k - (int)y);
    case IR_SHR:
      return bit(x, k + (int)y);
    default:
      return bit(x, k + (int)y) && bit(z, k);
  }
}

static double ref_bits(ir_op op, double x, double y, double z) {
  if (op == IR_WRAP) { /* the number from -2^31 to 2^31 - 1 that differs from the sum by a multiple of 2^32 */
    const long double exact = (long double)x * y + z;
    return (double)(exact - ldexpl(floorl(ldexpl(exact, -32) + 0.5L), 32));
  }
  long double sum = 0;
  for (int k = 0; k < 64; ++k)
    if (ref_bit(op, x, y, z, k)) sum += k < 63 ? ldexpl(1, k) : -ldexpl(1, k);
  return (double)sum;
}

static double reference(ir_op op, ir_type type, double x, double y, double z) {
  if (type == IR_INT && op == IR_FLOORDIV) return y == 0 ? 0 : (double)lua_floordiv((long long)x, (long long)y);
  if (type == IR_INT && op == IR_MOD) return y == 0 ? x : x - (double)lua_floordiv((long long)x, (long long)y) * y;
  if (ir_op_rule(op) == INTS) return ref_bits(op, x, y, z);
  const double v = ref_arithmetic(op, x, y, z);
  return v == v ? v : ref_function(op, x, y);
}

/* ---- arguments ---- */

static double random_value(rng *r, ir_type type) {
  if (type == IR_BOOL) return rng_below(r, 2);
  if (type == IR_INT) return rng_below(r, 41) - 20;
  return rng_below(r, 3) == 0 ? rng_between(r, 0.05, 6) : rng_between(r, -3, 3);
}

static ir_ref build(ir *g, ir_op op, const ir_ref *arg) {
  const int n = ir_op_arity(op);
  return n == 1   ? ir_op1(g, op, arg[0])
         : n == 2 ? ir_op2(g, op, arg[0], arg[1])
                  : ir_op3(g, op, arg[0], arg[1], arg[2]);
}

static bool is_operation(ir_op op) {
  const ir_rule rule = ir_op_rule(op);
  return rule != LEAF && rule != GATHERS && rule != REDUCES;
}

static bool close_to(double a, double b, double tolerance) {
  if (a != a || b != b) return a != a && b != b;
  return a == b || fabs(a - b) <= tolerance * (1 + fabs(b));
}

static void test_values(void **state) {
  (void)state;
  rng r = {3};
  for (ir_op op = 0; op < IR_OP_COUNT; ++op)
    for (ir_type type = IR_BOOL; type <= IR_REAL; ++type) {
      if (!is_operation(op) || !op_accepts(op, type)) continue;
      int numbers = 0;
      for (int i = 0; i < 2000; ++i) {
        const double x = random_value(&r, ir_op_rule(op) == SELECTS ? IR_BOOL : type);
        const double y = random_value(&r, type), z = random_value(&r, type);
        const double want = reference(op, type, x, y, z), got = ir_value(op, type, x, y, z);
        if (!close_to(got, want, 1e-13))
          fail_msg("%s(%g, %g, %g) is %.17g, not %.17g", ir_op_name(op), x, y, z, got, want);
        numbers += got == got;
      }
      assert_true(numbers > 500); /* an op without a reference would be all NaN */
    }
}

/* A constant's folded value, the result of a program, and the value column agree. */
static void test_folding_agrees_with_programs(void **state) {
  (void)state;
  rng r = {4};
  for (ir_op op = 0; op < IR_OP_COUNT; ++op)
    for (ir_type type = IR_INT; type <= IR_REAL; ++type) {
      if (!is_operation(op) || !op_accepts(op, type) || ir_op_rule(op) == SELECTS) continue;
      for (int i = 0; i < 50; ++i) {
        arena *a = arena_open(NULL);
        ir *g = ir_open(a);
        ir_ref constant[3], variable[3];
        point p = {.real = {0}};
        for (int k = 0; k < 3; ++k) {
          const double v = random_value(&r, type);
          constant[k] = ir_const_of(g, type, v);
          variable[k] = type == IR_REAL ? ir_variable(g, VAR_SCALAR, (uint32_t)k) : ir_variable(g, point_int_var[k], 0);
          if (type == IR_REAL)
            p.real[k] = v;
          else
            p.integer[k] = v;
        }
        const double folded = program_eval(a, g, build(g, op, constant), &p);
        const double computed = program_eval(a, g, build(g, op, variable), &p);
        if (!close_to(folded, computed, 0))
          fail_msg("%s folds to %.17g, runs to %.17g", ir_op_name(op), folded, computed);
        arena_close(a);
      }
    }
}

/* ---- derivatives ---- */

typedef struct derivative {
  arena *a;
  ir *g;
  ir_ref root;
  int n;
  ir_ref var[3], grad[3];
  ir_ref flag;
} derivative;

static derivative differentiate(ir_op op) {
  derivative d = {.a = arena_open(NULL)};
  d.g = ir_open(d.a);
  ir_ref arg[3];
  const bool select = ir_op_rule(op) == SELECTS;
  d.n = ir_op_arity(op);
  for (int k = 0; k < d.n; ++k) arg[k] = d.var[k] = ir_variable(d.g, VAR_SCALAR, (uint32_t)k);
  if (select) arg[0] = ir_op2(d.g, IR_LT, d.var[0], ir_real(d.g, 1));
  d.root = build(d.g, op, arg);
  const ir_ref one = ir_real(d.g, 1);
  ir_grad(d.g, &d.root, &one, 1, d.var, d.grad, d.n);
  assert_false(ir_failed(d.g));
  return d;
}

static double central(derivative *d, const point *p, int k, double h) {
  double f[4];
  for (int i = 0; i < 4; ++i) {
    static const double step[4] = {-2, -1, 1, 2};
    point q = *p;
    q.real[k] += step[i] * h;
    f[i] = program_eval(d->a, d->g, d->root, &q);
  }
  return (8 * (f[2] - f[1]) - (f[3] - f[0])) / (12 * h);
}

static int compare_derivative(derivative *d, ir_op op, const point *p) {
  int compared = 0;
  for (int k = 0; k < d->n; ++k) {
    /* If two step widths disagree, there is a kink or a pole, and nothing to compare with. */
    const double a = central(d, p, k, 1e-3), b = central(d, p, k, 2.5e-4);
    if (a != a || !close_to(a, b, 1e-8)) continue;
    const double got = d->grad[k] == IR_NONE ? 0 : program_eval(d->a, d->g, d->grad[k], p);
    ++compared;
    if (!close_to(got, b, 1e-7))
      fail_msg("d %s / d argument %d at (%g, %g, %g) is %.12g, differences give %.12g", ir_op_name(op), k, p->real[0],
               p->real[1], p->real[2], got, b);
  }
  return compared;
}

static void test_derivatives(void **state) {
  (void)state;
  rng r = {5};
  for (ir_op op = 0; op < IR_OP_COUNT; ++op) {
    if (!is_operation(op) || op == IR_STOP_GRADIENT || op == IR_ROUND_FLOAT || op == IR_ROUND_COARSE ||
        !op_accepts(op, IR_REAL))
      continue;
    derivative d = differentiate(op);
    if (ir_typeof(d.g, d.root) != IR_REAL) {
      for (int k = 0; k < d.n; ++k) assert_int_equal(d.grad[k], IR_NONE);
    } else {
      int compared = 0;
      for (int i = 0; i < 200; ++i) {
        point p = {.real = {random_value(&r, IR_REAL), random_value(&r, IR_REAL), random_value(&r, IR_REAL)}};
        compared += compare_derivative(&d, op, &p);
      }
      assert_true(compared > 60);
    }
    arena_close(d.a);
  }
}

static void test_names_are_unique(void **state) {
  (void)state;
  for (ir_op op = IR_CONST_BOOL; op < IR_OP_COUNT; ++op)
    for (ir_op other = op + 1; other < IR_OP_COUNT; ++other) assert_string_not_equal(ir_op_name(op), ir_op_name(other));
  for (ir_var v = 0; v < VAR_COUNT; ++v) assert_true(strlen(ir_var_name(v)) > 0);
}

/* A CUDA spelling names each argument and no other. */
static void test_spellings(void **state) {
  (void)state;
  for (ir_op op = 0; op < IR_OP_COUNT; ++op) {
    assert_int_equal(ir_op_cuda(op) != NULL, is_operation(op));
    if (!is_operation(op)) continue;
    for (int k = 0; k < 4; ++k) {
      const char hole[] = {'%', (char)('0' + k), 0};
      assert_int_equal(strstr(ir_op_cuda(op), hole) != NULL, k < ir_op_arity(op));
    }
  }
}

/* Lua 5.4: -7 // 2 == -4, -7 % 2 == 1, 7 // -2 == -4, 7 % -2 == -1, -7 // -2 == 3, -7 % -2 == -1; 5.5 % -2 ==
 * -0.5 */
static void test_lua_division(void **state) {
  (void)state;
  static const struct {
    double x, y, quotient, rest;
  } rows[] = {
      {7, 2, 3, 1},   {-7, 2, -4, 1}, {7, -2, -4, -1},     {-7, -2, 3, -1},    {-8, 2, -4, 0},
      {8, -2, -4, 0}, {0, -3, 0, 0},  {5.5, -2, -3, -0.5}, {-5.5, 2, -3, 0.5}, {-1, 64, -1, 63},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
    for (ir_type type = IR_INT; type <= IR_REAL; ++type) {
      if (type == IR_INT && rows[i].x != floor(rows[i].x)) continue;
      assert_true(ir_value(IR_FLOORDIV, type, rows[i].x, rows[i].y, 0) == rows[i].quotient);
      assert_true(ir_value(IR_MOD, type, rows[i].x, rows[i].y, 0) == rows[i].rest);
    }
  assert_true(ir_value(IR_FLOORDIV, IR_INT, 5, 0, 0) == 0 && ir_value(IR_MOD, IR_INT, 5, 0, 0) == 5);
  assert_true(isinf(ir_value(IR_FLOORDIV, IR_REAL, 5, 0, 0)) && isnan(ir_value(IR_MOD, IR_REAL, 5, 0, 0)));
  /* near the largest integer that doubles represent exactly */
  const double big = 0x1p52 - 1;
  assert_true(ir_value(IR_FLOORDIV, IR_INT, big, 3, 0) == (double)lua_floordiv((long long)big, 3));
  assert_true(ir_value(IR_FLOORDIV, IR_INT, -big, 3, 0) == (double)lua_floordiv(-(long long)big, 3));
}

static void test_conversions_saturate(void **state) {
  (void)state;
  assert_true(ir_value(IR_TO_INT, IR_REAL, 1e20, 0, 0) == 2147483647.0);
  assert_true(ir_value(IR_FLOOR_INT, IR_REAL, -1e20, 0, 0) == -2147483648.0);
  assert_true(ir_value(IR_FLOOR_INT, IR_REAL, NAN, 0, 0) == 0);
  assert_true(ir_value(IR_TO_INT, IR_REAL, -1.5, 0, 0) == -1 && ir_value(IR_FLOOR_INT, IR_REAL, -1.5, 0, 0) == -2);
}

static void test_extremes(void **state) {
  (void)state;
  assert_true(ir_value(IR_SIGMOID, IR_REAL, -800, 0, 0) == 0 && ir_value(IR_SIGMOID, IR_REAL, 800, 0, 0) == 1);
  assert_true(ir_value(IR_SOFTPLUS, IR_REAL, 800, 0, 0) == 800 && ir_value(IR_SOFTPLUS, IR_REAL, -800, 0, 0) == 0);
  assert_true(ir_value(IR_GELU, IR_REAL, -10, 0, 0) < 0 && ir_value(IR_GELU, IR_REAL, -10, 0, 0) > -1e-22);
  assert_true(ir_value(IR_MIN, IR_REAL, NAN, 2, 0) == 2 && ir_value(IR_MAX, IR_REAL, 2, NAN, 0) == 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_folding_agrees_with_programs),
      cmocka_unit_test(test_derivatives),
      cmocka_unit_test(test_names_are_unique),
      cmocka_unit_test(test_spellings),
      cmocka_unit_test(test_lua_division),
      cmocka_unit_test(test_conversions_saturate),
      cmocka_unit_test(test_extremes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
