/* interval_test.c: tests that intervals are sound for every op and for random graphs, and exact where masks
 * need it; tests the limit of 32-bit indices. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/limits.h"
#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
#include "tests/gen/ir/expr.h"

typedef struct box {
  point lo, hi;
} box;

static ir_bounds box_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const box *b = user;
  ir_bounds out = {.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
  const double lo = point_get(&b->lo, v, index), hi = point_get(&b->hi, v, index);
  if (type == IR_REAL)
    out.real = iv_make(lo, hi, false);
  else
    out.integer = ivi_make((long long)lo, (long long)hi);
  return out;
}

static bool holds(const ir *g, ir_ref r, const ir_bounds *b, double v) {
  switch (ir_typeof(g, r)) {
    case IR_REAL:
      return v != v ? b->real.nan : b->real.lo <= v && v <= b->real.hi;
    case IR_INT:
      return (b->integer.lo <= -IVI_INF || (double)b->integer.lo <= v) &&
             (b->integer.hi >= IVI_INF || v <= (double)b->integer.hi);
    default:
      return v != 0 ? b->boolean.can_be_true : b->boolean.can_be_false;
  }
}

/* Above 2^53 the evaluation itself is not exact. */
static bool integers_exact(const ir *g, const double *value) {
  for (ir_ref r = 1; r < ir_count(g); ++r)
    if (ir_typeof(g, r) == IR_INT && !(fabs(value[r]) < 0x1p53)) return false;
  return true;
}

static void report(const ir *g, ir_ref r, const ir_bounds *bounds, const double *value, rounding how) {
  const ir_node *n = ir_get(g, r);
  print_error("op %s, rounding %d: value %.17g, bounds [%.17g, %.17g] nan %d, [%lld, %lld], {%d, %d}\n",
              ir_op_name((ir_op)n->op), how, value[r], bounds[r].real.lo, bounds[r].real.hi, bounds[r].real.nan,
              bounds[r].integer.lo, bounds[r].integer.hi, bounds[r].boolean.can_be_false,
              bounds[r].boolean.can_be_true);
  for (int k = 0; k < n->nargs; ++k)
    print_error("  argument %d: %.17g in [%.17g, %.17g] nan %d, [%lld, %lld]\n", k, value[n->arg[k]],
                bounds[n->arg[k]].real.lo, bounds[n->arg[k]].real.hi, bounds[n->arg[k]].real.nan,
                bounds[n->arg[k]].integer.lo, bounds[n->arg[k]].integer.hi);
}

static double float_between(rng *r, double lo, double hi) {
  switch (rng_below(r, 6)) {
    case 0:
      return lo;
    case 1:
      return hi;
    default: {
      const double x = (double)(float)rng_between(r, lo, hi);
      return x < lo ? lo : x > hi ? hi : x;
    }
  }
}

static point sample(rng *r, const box *b) {
  point p;
  for (int i = 0; i < POINT_REALS; ++i) p.real[i] = float_between(r, b->lo.real[i], b->hi.real[i]);
  for (int i = 0; i < POINT_INTS; ++i)
    p.integer[i] = b->lo.integer[i] + rng_below(r, (int)(b->hi.integer[i] - b->lo.integer[i]) + 1);
  return p;
}

static box random_box(rng *r) {
  static const double scales[] = {0.1, 1, 1, 4, 50, 1e4, 1e20, 3e38};
  static const int widths[] = {0, 1, 4, 16, 64, 1000};
  box b;
  for (int i = 0; i < POINT_REALS; ++i) {
    const double scale = scales[rng_below(r, 8)];
    double x = (double)(float)rng_between(r, -scale, scale), y = (double)(float)rng_between(r, -scale, scale);
    if (rng_below(r, 5) == 0) x = 0;
    if (rng_below(r, 5) == 0) y = x;
    b.lo.real[i] = x < y ? x : y;
    b.hi.real[i] = x < y ? y : x;
  }
  for (int i = 0; i < POINT_INTS; ++i) {
    b.lo.integer[i] = rng_below(r, 3) == 0 ? rng_below(r, 5000) : rng_below(r, 64) - 32;
    b.hi.integer[i] = b.lo.integer[i] + widths[rng_below(r, 6)];
  }
  return b;
}

static bool *reachable(const ir *g, const ir_ref *roots, int n) {
  bool *reached = calloc(ir_count(g), sizeof *reached);
  for (int i = 0; i < n; ++i) reached[roots[i]] = true;
  for (ir_ref r = ir_count(g) - 1; r > 0; --r)
    for (int k = 0; reached[r] && k < ir_get(g, r)->nargs; ++k) reached[ir_get(g, r)->arg[k]] = true;
  return reached;
}

/* Checks that the bounds of every node under the roots hold for every sampled evaluation. */
static void check_graph(const ir *g, const ir_ref *roots, int n_roots, rng *r, int samples) {
  box b = random_box(r);
  const ir_bounds_env env = {.user = &b, .variable = box_variable};
  ir_bounds *bounds = malloc(ir_count(g) * sizeof *bounds), out[3];
  double *value = malloc(ir_count(g) * sizeof *value);
  bool *reached = reachable(g, roots, n_roots);
  ir_interval(g, roots, n_roots, &env, bounds, out);
  for (int i = 0; i < n_roots; ++i) assert_memory_equal(&out[i], &bounds[roots[i]], sizeof out[i]);
  for (int s = 0; s < samples; ++s) {
    const point p = sample(r, &b);
    const rounding how = (rounding)(s % 3);
    plain_eval(g, &p, how, r, value);
    if (!integers_exact(g, value)) continue;
    for (ir_ref n = 1; n < ir_count(g); ++n)
      if (reached[n] && !holds(g, n, &bounds[n], value[n])) {
        report(g, n, bounds, value, how);
        fail_msg("bounds do not hold");
      }
  }
  free(reached);
  free(value);
  free(bounds);
}

static ir_ref leaf_of(ir *g, ir_type type, int i) {
  if (type == IR_REAL) return ir_variable(g, VAR_SCALAR, (uint32_t)i);
  if (type == IR_INT) return ir_variable(g, point_int_var[i], 0);
  return ir_op2(g, IR_LT, ir_variable(g, VAR_SCALAR, (uint32_t)i), ir_variable(g, VAR_SCALAR, (uint32_t)(i + 1) % 3));
}

static void test_every_op(void **state) {
  (void)state;
  rng r = {1};
  for (ir_op op = 0; op < IR_OP_COUNT; ++op)
    for (ir_type type = IR_BOOL; type <= IR_REAL; ++type) {
      if (!op_accepts(op, type) || (op == IR_STOP_GRADIENT && type == IR_INT))
        continue; /* stop_gradient of an integer folds away */
      assert_non_null(ir_op_interval(op));
      arena *a = arena_open(NULL);
      ir *g = ir_open(a);
      ir_ref arg[3];
      const int n = ir_op_arity(op);
      for (int k = 0; k < n; ++k) arg[k] = leaf_of(g, ir_op_rule(op) == SELECTS && k == 0 ? IR_BOOL : type, k);
      const ir_ref root = n == 1   ? ir_op1(g, op, arg[0])
                          : n == 2 ? ir_op2(g, op, arg[0], arg[1])
                                   : ir_op3(g, op, arg[0], arg[1], arg[2]);
      assert_int_equal(ir_get(g, root)->op, op);
      for (int i = 0; i < 2000; ++i) check_graph(g, &root, 1, &r, 60);
      arena_close(a);
    }
}

/* Checks every pair of small intervals with every pair of numbers in them. */
static void test_bits_by_brute_force(void **state) {
  (void)state;
  static const ir_op ops[] = {IR_BAND, IR_BOR, IR_BXOR, IR_SHL, IR_SHR};
  enum { LEAST = -9, MOST = 8, STEP = 3 };
  for (size_t k = 0; k < sizeof ops / sizeof *ops; ++k)
    for (int a0 = LEAST; a0 <= MOST; ++a0)
      for (int a1 = a0; a1 <= MOST; a1 += a1 - a0 < 2 ? 1 : STEP)
        for (int b0 = LEAST; b0 <= MOST; ++b0)
          for (int b1 = b0; b1 <= MOST; b1 += b1 - b0 < 2 ? 1 : STEP) {
            const ivi a = ivi_make(a0, a1), b = ivi_make(b0, b1);
            const ivi r = ops[k] == IR_BAND   ? ivi_band(a, b)
                          : ops[k] == IR_BOR  ? ivi_bor(a, b)
                          : ops[k] == IR_BXOR ? ivi_bxor(a, b)
                          : ops[k] == IR_SHL  ? ivi_shl(a, b)
                                              : ivi_shr(a, b);
            for (int x = a0; x <= a1; ++x)
              for (int y = b0; y <= b1; ++y) {
                const double v = ir_value(ops[k], IR_INT, x, y, 0);
                if ((r.lo > -IVI_INF && v < (double)r.lo) || (r.hi < IVI_INF && v > (double)r.hi))
                  fail_msg("%s: %d, %d gives %.17g, outside [%lld, %lld] of [%d, %d], [%d, %d]", ir_op_name(ops[k]), x,
                           y, v, r.lo, r.hi, a0, a1, b0, b1);
              }
          }
}

/* Checks wide intervals: 32-bit numbers, any shift, masks of both signs. */
static void test_bits_of_wide_boxes(void **state) {
  (void)state;
  rng r = {77};
  for (int i = 0; i < 300000; ++i) {
    static const int widths[] = {0, 1, 5, 64, 1000, 1 << 20, INT32_MAX - 1};
    long long end[3][2];
    for (int j = 0; j < 3; ++j) {
      const int bits = j == 1 ? 7 : rng_below(&r, 32);
      end[j][0] = (long long)(rng_next(&r) >> (63 - bits)) - (rng_below(&r, 2) ? 1ll << bits : 0);
      end[j][1] = end[j][0] + rng_below(&r, widths[rng_below(&r, 7)] + 1);
    }
    const ivi a = ivi_make(end[0][0], end[0][1]), n = ivi_make(end[1][0], end[1][1]),
              m = ivi_make(end[2][0], end[2][1]);
    const ivi out[] = {ivi_band(a, m), ivi_bor(a, m),         ivi_bxor(a, m),   ivi_shl(a, n),
                       ivi_shr(a, n),  ivi_shr_band(a, n, m), ivi_wrap(a, n, m)};
    static const ir_op ops[] = {IR_BAND, IR_BOR, IR_BXOR, IR_SHL, IR_SHR, IR_SHR_BAND, IR_WRAP};
    for (int s = 0; s < 8; ++s) {
      long long v[3];
      for (int j = 0; j < 3; ++j)
        v[j] = s < 2 ? end[j][s] : end[j][0] + (long long)(rng_next(&r) % (uint64_t)(end[j][1] - end[j][0] + 1));
      for (size_t k = 0; k < 7; ++k) {
        const double x = (double)v[0], y = (double)v[k < 3 ? 2 : 1], z = (double)v[2],
                     got = ir_value(ops[k], IR_INT, x, y, z);
        if ((out[k].lo > -IVI_INF && got < (double)out[k].lo) || (out[k].hi < IVI_INF && got > (double)out[k].hi))
          fail_msg("%s: %g, %g, %g gives %.17g, outside [%lld, %lld]", ir_op_name(ops[k]), x, y, z, got, out[k].lo,
                   out[k].hi);
      }
    }
  }
}

/* Bounds that bit masks need to be exact. */
static void test_bits_are_decided(void **state) {
  (void)state;
  const ivi tile = ivi_make(192, 255), other = ivi_make(64, 127);
  assert_true(ivi_shr(tile, ivi_point(6)).lo == 3 && ivi_shr(tile, ivi_point(6)).hi == 3);
  assert_true(ivi_band(tile, ivi_point(64)).lo == 64 && ivi_band(tile, ivi_point(64)).hi == 64);
  assert_true(ivi_band(tile, ivi_point(63)).lo == 0 && ivi_band(tile, ivi_point(63)).hi == 63);
  assert_true(ivi_band(tile, ivi_point(-64)).lo == 192 && ivi_band(tile, ivi_point(-64)).hi == 192);
  assert_true(ivi_bxor(tile, other).lo == 128 && ivi_bxor(tile, other).hi == 191);
  assert_true(ivi_bor(tile, ivi_point(256)).lo == 448 && ivi_bor(tile, ivi_point(256)).hi == 511);
  assert_true(ivi_shr_band(ivi_make(-5, 5), ivi_make(-9, 200), ivi_point(1)).hi == 1);
  assert_true(ivi_shr_band(tile, ivi_point(6), ivi_point(1)).lo == 1);
  assert_true(ivi_shl(ivi_make(0, 7), ivi_make(0, 4)).hi == 112);
  const ivi hash = ivi_wrap(ivi_point(3), ivi_point(-1640531535), ivi_point(7));
  assert_true(hash.lo == -626627302 && hash.hi == hash.lo); /* 3 * 2654435761 + 7 modulo 2^32 */
}

static void test_random_graphs(void **state) {
  (void)state;
  rng r = {2};
  for (int i = 0; i < 20000; ++i) {
    arena *a = arena_open(NULL);
    ir *g = ir_open(a);
    const random_expr e = random_build(g, &r, 3 + rng_below(&r, 30), 0);
    const ir_ref roots[3] = {e.real, e.integer, e.boolean};
    assert_false(ir_failed(g));
    for (int k = 0; k < 4; ++k) check_graph(g, roots, 3, &r, 15);
    arena_close(a);
  }
}

/* ---- precision that masks need ---- */

typedef struct fixture {
  arena *a;
  ir *g;
  ir_ref q, kv;
} fixture;

static fixture open_fixture(void) {
  fixture f = {.a = arena_open(NULL)};
  f.g = ir_open(f.a);
  f.q = ir_variable(f.g, VAR_Q, 0);
  f.kv = ir_variable(f.g, VAR_KV, 0);
  return f;
}

static ir_bounds over(fixture *f, ir_ref root, int q0, int q1, int kv0, int kv1) {
  box b = {.lo.integer = {q0, kv0}, .hi.integer = {q1, kv1}};
  const ir_bounds_env env = {.user = &b, .variable = box_variable};
  ir_bounds *scratch = arena_array(f->a, ir_count(f->g), sizeof *scratch), out;
  ir_interval(f->g, &root, 1, &env, scratch, &out);
  return out;
}

static void assert_tri(tri t, bool can_be_false, bool can_be_true) {
  assert_int_equal(t.can_be_false, can_be_false);
  assert_int_equal(t.can_be_true, can_be_true);
}

static void test_masks_are_decided(void **state) {
  (void)state;
  fixture f = open_fixture();
  ir *g = f.g;
  const ir_ref causal = ir_op2(g, IR_LE, f.kv, f.q);
  assert_tri(over(&f, causal, 64, 127, 0, 63).boolean, false, true);
  assert_tri(over(&f, causal, 64, 127, 0, 64).boolean, false, true);
  assert_tri(over(&f, causal, 64, 127, 0, 65).boolean, true, true);
  assert_tri(over(&f, causal, 0, 63, 64, 127).boolean, true, false);
  const ir_ref window = ir_op2(g, IR_LT, ir_op2(g, IR_SUB, f.q, f.kv), ir_int(g, 128));
  assert_tri(over(&f, window, 0, 127, 0, 63).boolean, false, true);
  assert_tri(over(&f, window, 0, 128, 0, 63).boolean, true, true);
  assert_tri(over(&f, window, 256, 319, 0, 128).boolean, true, false);
  assert_tri(over(&f, window, 256, 319, 0, 129).boolean, true, true);
  assert_tri(over(&f, window, 256, 256, 129, 192).boolean, false, true);
  /* blocks by integer division, by modulo within one period, by floor of a real quotient */
  const ir_ref c64 = ir_int(g, 64);
  const ir_ref blocks = ir_op2(g, IR_EQ, ir_op2(g, IR_FLOORDIV, f.q, c64), ir_op2(g, IR_FLOORDIV, f.kv, c64));
  assert_tri(over(&f, blocks, 64, 127, 64, 127).boolean, false, true);
  assert_tri(over(&f, blocks, 64, 127, 0, 63).boolean, true, false);
  assert_tri(over(&f, blocks, 64, 128, 64, 127).boolean, true, true);
  const ir_bounds m = over(&f, ir_op2(g, IR_MOD, f.q, c64), 130, 190, 0, 0);
  assert_true(m.integer.lo == 2 && m.integer.hi == 62);
  const ir_bounds n = over(&f, ir_op2(g, IR_MOD, ir_op2(g, IR_SUB, f.q, ir_int(g, 100)), c64), 10, 20, 0, 0);
  assert_true(n.integer.lo == 38 && n.integer.hi == 48);
  const ir_bounds any = over(&f, ir_op2(g, IR_MOD, f.q, f.kv), 2, 5, 8, 9); /* q is below every divisor */
  assert_true(any.integer.lo == 2 && any.integer.hi == 5);
  const ir_ref half = ir_op1(g, IR_FLOOR_INT, ir_op2(g, IR_MUL, ir_op1(g, IR_TO_REAL, f.q), ir_real(g, 0.015625)));
  assert_true(over(&f, half, 64, 127, 0, 0).integer.lo == 1 && over(&f, half, 64, 127, 0, 0).integer.hi == 1);
  arena_close(f.a);
}

static void test_logic_is_exact(void **state) {
  (void)state;
  for (int x = 1; x < 4; ++x)
    for (int y = 1; y < 4; ++y) {
      const tri a = tri_make((x & 1) != 0, (x & 2) != 0), b = tri_make((y & 1) != 0, (y & 2) != 0);
      bool and[2] = {false, false}, or [2] = {false, false};
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
          if ((i ? !a.can_be_true : !a.can_be_false) || (j ? !b.can_be_true : !b.can_be_false)) continue;
          and[i && j] = or [i || j] = true;
        }
      assert_tri(tri_and(a, b), and[0], and[1]);
      assert_tri(tri_or(a, b), or [0], or [1]);
      assert_tri(tri_not(a), a.can_be_true, a.can_be_false);
      const tri c = tri_select(tri_point(true), a, b), d = tri_select(tri_point(false), a, b);
      assert_tri(c, a.can_be_false, a.can_be_true);
      assert_tri(d, b.can_be_false, b.can_be_true);
    }
}

static void test_not_a_number(void **state) {
  (void)state;
  const iv all = iv_all(), one = iv_point(1);
  assert_tri(iv_lt(iv_tanh(all), iv_point(2)), true, true); /* tanh(NaN) < 2 is false */
  assert_tri(iv_lt(iv_tanh(iv_finite()), iv_point(2)), false, true);
  assert_tri(iv_ne(all, one), true, true);
  assert_true(iv_sub(iv_make(0, IV_INF, false), iv_make(0, IV_INF, false)).nan);
  assert_true(iv_mul(iv_point(0), iv_make(1, IV_INF, false)).nan);
  assert_true(iv_sqrt(iv_make(-1, 4, false)).nan);
  assert_false(iv_sqrt(iv_make(0, 4, false)).nan);
  const iv clamped = iv_min(all, iv_point(50));
  assert_true(clamped.hi == 50 && !clamped.nan);
  assert_true(iv_tanh(all).hi < 1.001 && iv_tanh(all).lo > -1.001 && iv_tanh(all).nan);
  assert_true(iv_to_int(all).lo == -2147483648ll && iv_to_int(iv_make(5, 6, true)).lo == 0);
  assert_true(iv_point(0.1).lo < 0.1 && iv_point(0.1).hi > 0.1 && iv_point(0.5).lo == 0.5 && iv_point(0.5).hi == 0.5);
}

static void test_squares_and_soft_caps(void **state) {
  (void)state;
  fixture f = open_fixture();
  ir *g = f.g;
  const ir_ref x = ir_variable(g, VAR_SCALAR, 0), d = ir_op2(g, IR_SUB, f.q, f.kv);
  const ir_bounds square = over(&f, ir_op2(g, IR_MUL, d, d), 0, 10, 0, 3);
  assert_true(square.integer.lo == 0 && square.integer.hi == 100);
  const ir_ref cap = ir_op2(g, IR_MUL, ir_real(g, 50), ir_op1(g, IR_TANH, ir_op2(g, IR_DIV, x, ir_real(g, 50))));
  box b = {.lo.real = {-3e38}, .hi.real = {3e38}};
  const ir_bounds_env env = {.user = &b, .variable = box_variable};
  ir_bounds *scratch = arena_array(f.a, ir_count(g), sizeof *scratch), out;
  ir_interval(g, &cap, 1, &env, scratch, &out);
  assert_true(out.real.lo > -50.1 && out.real.hi < 50.1 && !out.real.nan);
  arena_close(f.a);
}

static void test_int_limit(void **state) {
  (void)state;
  fixture f = open_fixture();
  ir *g = f.g;
  const ir_ref causal = ir_op2(g, IR_LE, f.kv, f.q);
  assert_int_equal(ir_int_limit(g, &causal, 1), INT32_MAX);
  const ir_ref shifted = ir_op2(g, IR_LE, ir_op2(g, IR_ADD, f.kv, ir_int(g, 4096)), f.q);
  assert_int_equal(ir_int_limit(g, &shifted, 1), INT32_MAX - 4096);
  const ir_ref product = ir_op2(g, IR_LT, ir_op2(g, IR_MUL, f.q, f.kv), ir_int(g, 7));
  assert_int_equal(ir_int_limit(g, &product, 1), 46340);
  const ir_ref both[2] = {shifted, product};
  assert_int_equal(ir_int_limit(g, both, 2), 46340);
  const ir_ref loaded = ir_load(g, 0, IR_INT, &f.kv, 1);
  const ir_ref document = ir_op2(g, IR_EQ, ir_op2(g, IR_ADD, loaded, f.q), ir_int(g, 3));
  assert_int_equal(ir_int_limit(g, &document, 1), INT32_MAX - (1ll << 24) + 1);
  const ir_ref heads = ir_op2(g, IR_MUL, ir_variable(g, VAR_H, 0), ir_int(g, 100000));
  assert_int_equal(ir_int_limit(g, &heads, 1), 0);
  double reach = 0;
  assert_int_equal(ir_int_overflow(g, &heads, 1, 1, &reach), heads);
  assert_true(reach == 100000.0 * LUATTN_MAX_HEADS);
  assert_int_equal(ir_int_overflow(g, &causal, 1, 1, &reach), IR_NONE);
  /* The index of a head over all batch entries, the group of a head, and a page of 128 tokens. */
  const ir_ref h = ir_variable(g, VAR_H, 0), num_heads = ir_variable(g, VAR_HEADS, 0);
  const ir_ref plane = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, ir_variable(g, VAR_B, 0), num_heads), h);
  const ir_ref group = ir_op2(g, IR_MUL, h, ir_variable(g, VAR_HEADS_KV, 0));
  const ir_ref slot = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, loaded, ir_int(g, 128)), ir_int(g, 127));
  assert_true(ir_int_limit(g, &plane, 1) > 0 && ir_int_limit(g, &group, 1) > 0);
  assert_true(ir_int_limit(g, &slot, 1) > 0);
  arena_close(f.a);
}

static void test_saturating_integers(void **state) {
  (void)state;
  const ivi all = ivi_all(), positive = ivi_make(1, IVI_INF);
  assert_true(ivi_add(all, ivi_point(5)).hi == IVI_INF && ivi_sub(all, ivi_point(5)).lo == -IVI_INF);
  assert_true(ivi_add(positive, ivi_point(-5)).hi == IVI_INF && ivi_add(positive, ivi_point(-5)).lo == -4);
  assert_true(ivi_mul(positive, positive).lo == 1 && ivi_mul(positive, positive).hi == IVI_INF);
  assert_true(ivi_mul(all, ivi_point(0)).lo == 0 && ivi_mul(all, ivi_point(0)).hi == 0);
  assert_true(ivi_mul(ivi_point(1ll << 40), ivi_point(1ll << 40)).hi == IVI_INF);
  assert_tri(ivi_lt(positive, positive), true, true);
  assert_tri(ivi_lt(ivi_point(0), positive), false, true);
  assert_tri(ivi_le(ivi_make(5, IVI_INF), ivi_point(4)), true, false);
  assert_tri(ivi_eq(all, all), true, true);
  assert_true(ivi_floordiv(all, ivi_point(4)).hi == IVI_INF && ivi_mod(all, ivi_point(4)).hi == 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_op),
      cmocka_unit_test(test_bits_by_brute_force),
      cmocka_unit_test(test_bits_of_wide_boxes),
      cmocka_unit_test(test_bits_are_decided),
      cmocka_unit_test(test_random_graphs),
      cmocka_unit_test(test_masks_are_decided),
      cmocka_unit_test(test_logic_is_exact),
      cmocka_unit_test(test_not_a_number),
      cmocka_unit_test(test_squares_and_soft_caps),
      cmocka_unit_test(test_int_limit),
      cmocka_unit_test(test_saturating_integers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
