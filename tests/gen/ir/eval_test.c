/* eval_test.c: tests programs that evaluate IR over lanes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "tests/gen/ir/expr.h"

/* Random points, one per lane, and a table for gathers. */
typedef struct world {
  point p[IR_LANES];
  int lanes, variables, loads;
} world;

static void read_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  world *w = user;
  assert_int_equal(lanes, w->lanes);
  ++w->variables;
  for (int i = 0; i < lanes; ++i) out[i] = point_get(&w->p[i], v, index);
}

static void read_input(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  world *w = user;
  assert_int_equal(lanes, w->lanes);
  ++w->loads;
  for (int i = 0; i < lanes; ++i) {
    out[i] = 1000.0 * input;
    for (int k = 0; k < n_index; ++k) out[i] = 10 * out[i] + index[k][i];
  }
}

static void randomise(world *w, rng *r, int lanes) {
  *w = (world){.lanes = lanes};
  for (int i = 0; i < lanes; ++i) {
    for (int k = 0; k < POINT_REALS; ++k) w->p[i].real[k] = rng_between(r, -2, 2);
    for (int k = 0; k < POINT_INTS; ++k) w->p[i].integer[k] = rng_below(r, 100) - 20;
  }
}

static bool same(double a, double b) { return a == b || (a != a && b != b); }

/* Sharing of slots and padding of lanes must not affect results, for any number of lanes. */
static void test_random_programs(void **state) {
  (void)state;
  rng r = {41};
  for (int i = 0; i < 3000; ++i) {
    arena *a = arena_open(NULL);
    ir *g = ir_open(a);
    const random_expr e = random_build(g, &r, 2 + rng_below(&r, 40), 0);
    const ir_ref roots[4] = {e.real, e.integer, e.boolean, e.real};
    const ir_program *p = ir_program_new(a, g, roots, 4);
    assert_non_null(p);
    const int lanes = 1 + rng_below(&r, IR_LANES);
    world w;
    randomise(&w, &r, lanes);
    double *scratch = malloc(ir_program_scratch(p)), block[4][IR_LANES + 1], *out[4];
    memset(scratch, 0xff, ir_program_scratch(p)); /* NaN, to reveal reads before writes */
    for (int k = 0; k < 4; ++k) {
      out[k] = block[k];
      block[k][lanes] = -12345;
    }
    const ir_env env = {.user = &w, .variable = read_variable, .load = read_input};
    ir_program_run(p, &env, lanes, scratch, out);
    double *value = malloc(ir_count(g) * sizeof *value);
    for (int l = 0; l < lanes; ++l) {
      plain_eval(g, &w.p[l], IN_DOUBLE, NULL, value);
      for (int k = 0; k < 4; ++k)
        if (!same(block[k][l], value[roots[k]])) fail_msg("lane %d of %d, root %d", l, lanes, k);
    }
    for (int k = 0; k < 4; ++k) assert_true(block[k][lanes] == -12345); /* no write past the lanes */
    free(value);
    free(scratch);
    arena_close(a);
  }
}

static void test_loads(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  ir *g = ir_open(a);
  const ir_ref index[2] = {ir_variable(g, VAR_Q, 0), ir_variable(g, VAR_KV, 0)};
  const ir_ref once = ir_load(g, 3, IR_REAL, index, 2), again = ir_load(g, 1, IR_INT, index, 1);
  const ir_ref root = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, once, once), again);
  const ir_program *p = ir_program_new(a, g, &root, 1);
  rng r = {42};
  world w;
  randomise(&w, &r, 13);
  double block[IR_LANES], *out = block;
  void *scratch = malloc(ir_program_scratch(p));
  const ir_env env = {.user = &w, .variable = read_variable, .load = read_input};
  ir_program_run(p, &env, 13, scratch, &out);
  for (int i = 0; i < 13; ++i) {
    const double q = w.p[i].integer[0], kv = w.p[i].integer[1], t = (3000 * 10 + q) * 10 + kv;
    assert_true(block[i] == t * t + 10000 + q);
  }
  assert_int_equal(w.variables, 2); /* once per variable and run */
  assert_int_equal(w.loads, 2);
  free(scratch);
  arena_close(a);
}

/* A long chain needs few slots. */
static void test_slots_are_reused(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  ir *g = ir_open(a);
  ir_ref x = ir_variable(g, VAR_SCALAR, 0);
  for (int i = 0; i < 300; ++i) x = ir_op1(g, i % 2 == 0 ? IR_TANH : IR_SIN, x);
  assert_true(ir_program_scratch(ir_program_new(a, g, &x, 1)) <= 3 * sizeof(ir_lane_block));
  arena_close(a);
}

static void test_constants_and_failure(void **state) {
  (void)state;
  arena *a = arena_open(NULL);
  ir *g = ir_open(a);
  const ir_ref roots[3] = {ir_real(g, 0.1), ir_int(g, -7), ir_bool(g, true)};
  const ir_program *p = ir_program_new(a, g, roots, 3);
  double block[3][IR_LANES], *out[3] = {block[0], block[1], block[2]};
  void *scratch = malloc(ir_program_scratch(p));
  world w = {.lanes = 64};
  const ir_env env = {.user = &w, .variable = read_variable, .load = read_input};
  ir_program_run(p, &env, IR_LANES, scratch, out);
  assert_true(block[0][63] == 0.1 && block[1][63] == -7 && block[2][63] == 1);
  free(scratch);
  assert_non_null(ir_program_new(a, g, NULL, 0));
  assert_null(ir_program_new(a, g, &(ir_ref){IR_NONE}, 1));
  arena_close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_programs),
      cmocka_unit_test(test_loads),
      cmocka_unit_test(test_slots_are_reused),
      cmocka_unit_test(test_constants_and_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
