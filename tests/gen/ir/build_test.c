/* build_test.c: tests builders, folding, hash-consing, printing, the verifier, substitution, and running out
 * of memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
#include "tests/gen/ir/expr.h"

typedef struct fixture {
  arena *a;
  ir *g;
  ir_ref q, kv, h, x, y;
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
  *state = f;
  return 0;
}

static int teardown(void **state) {
  arena_close(((fixture *)*state)->a);
  free(*state);
  return 0;
}

static const char *printed(fixture *f, ir_ref root) {
  static const char *const names[] = {"root"}, *const inputs[] = {"slopes", "ids"};
  text t;
  text_init(&t, f->a);
  ir_print(f->g, &t, &root, names, 1, inputs);
  return text_get(&t);
}

#define ADD(a, b) ir_op2(g, IR_ADD, a, b)
#define SUB(a, b) ir_op2(g, IR_SUB, a, b)
#define MUL(a, b) ir_op2(g, IR_MUL, a, b)
#define DIV(a, b) ir_op2(g, IR_DIV, a, b)
#define NEG(a) ir_op1(g, IR_NEG, a)
#define REAL(c) ir_real(g, c)
#define INT(c) ir_int(g, c)

static void test_equal_nodes_are_one(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  assert_int_equal(ADD(f->x, f->y), ADD(f->y, f->x));
  assert_int_not_equal(SUB(f->x, f->y), SUB(f->y, f->x));
  assert_int_equal(REAL(0.1), REAL(0.1));
  assert_int_not_equal(REAL(0.0), REAL(-0.0));
  assert_int_not_equal(REAL(1), INT(1));
  assert_int_not_equal(ir_load(g, 0, IR_REAL, &f->h, 1), ir_load(g, 1, IR_REAL, &f->h, 1));
  assert_int_equal(ir_load(g, 0, IR_REAL, &f->h, 1), ir_load(g, 0, IR_REAL, &f->h, 1));
  assert_int_not_equal(ir_variable(g, VAR_STATE, 0), ir_variable(g, VAR_STATE, 1));
  ir_set_line(g, 7);
  const uint32_t count = ir_count(g);
  ADD(f->x, f->y);
  assert_int_equal(ir_count(g), count); /* the line is not part of a node's identity */
  assert_int_equal(ir_get(g, MUL(f->x, f->y))->line, 7);
}

static void test_many_nodes(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ir_ref first[2000];
  for (int i = 0; i < 2000; ++i) first[i] = ADD(MUL(f->x, REAL(i + 0.5)), f->y);
  for (int i = 0; i < 2000; ++i) assert_int_equal(ADD(f->y, MUL(REAL(i + 0.5), f->x)), first[i]);
  assert_int_equal(ir_check(g, first, 2000, "test", NULL), LUATTN_OK);
}

static void test_conversion(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  assert_int_equal(ir_typeof(g, ADD(f->q, f->kv)), IR_INT);
  assert_int_equal(ir_typeof(g, ADD(f->q, f->x)), IR_REAL);
  assert_int_equal(ir_typeof(g, DIV(f->q, f->kv)), IR_REAL);
  assert_int_equal(ir_typeof(g, ir_op2(g, IR_FLOORDIV, f->q, f->kv)), IR_INT);
  assert_int_equal(ir_typeof(g, ir_op2(g, IR_MOD, f->q, f->x)), IR_REAL);
  assert_int_equal(ir_typeof(g, ir_op1(g, IR_EXP, f->q)), IR_REAL);
  assert_int_equal(ir_typeof(g, ir_op1(g, IR_ABS, f->q)), IR_INT);
  const ir_ref c = ir_op2(g, IR_LT, f->q, f->x);
  assert_int_equal(ir_typeof(g, c), IR_BOOL);
  assert_int_equal(ir_typeof(g, ir_op3(g, IR_SELECT, c, f->q, f->x)), IR_REAL);
  assert_int_equal(ir_typeof(g, ir_op3(g, IR_SELECT, c, f->q, f->kv)), IR_INT);
  assert_int_equal(ir_op1(g, IR_FLOOR_INT, f->q), f->q);
  assert_int_equal(ir_to_real(g, f->x), f->x);
  assert_int_equal(ir_op1(g, IR_TO_INT, ir_to_real(g, f->q)), f->q);
}

static void test_identities(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref x = f->x, y = f->y, q = f->q;
  assert_int_equal(ADD(x, REAL(0)), x);
  assert_int_equal(ADD(q, INT(0)), q);
  assert_int_equal(MUL(INT(1), x), x);
  assert_int_equal(MUL(x, REAL(0)), REAL(0));
  assert_int_equal(NEG(NEG(x)), x);
  assert_int_equal(MUL(x, REAL(-1)), NEG(x));
  assert_int_equal(SUB(x, NEG(y)), ADD(x, y));
  assert_int_equal(ADD(x, NEG(y)), SUB(x, y));
  assert_int_equal(SUB(q, q), INT(0));
  assert_int_equal(DIV(x, REAL(4)), MUL(x, REAL(0.25)));
  assert_int_equal(ir_get(g, DIV(x, REAL(3)))->op, IR_DIV);
  assert_int_equal(ir_get(g, DIV(REAL(0), x))->op, IR_DIV);
  assert_int_equal(ir_op2(g, IR_POW, x, INT(2)), MUL(x, x));
  assert_int_equal(ir_op2(g, IR_MAX, x, REAL(-INFINITY)), x);
  assert_int_equal(ir_op1(g, IR_FLOOR_INT, DIV(q, INT(7))), ir_op2(g, IR_FLOORDIV, q, INT(7)));
  assert_int_equal(ir_op1(g, IR_FLOOR_INT, DIV(q, INT(64))), ir_op2(g, IR_FLOORDIV, q, INT(64)));
  assert_int_equal(ir_get(g, ir_op1(g, IR_FLOOR_INT, MUL(q, REAL(0.1))))->op, IR_FLOOR_INT);
  assert_int_equal(ADD(REAL(2), INT(3)), REAL(5));
  assert_int_equal(ir_get(g, DIV(REAL(0), REAL(0)))->op, IR_DIV); /* not folded into a NaN */
}

static void test_boolean_identities(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref c = ir_op2(g, IR_LT, f->x, f->y), d = ir_op2(g, IR_LE, f->kv, f->q), yes = ir_bool(g, true);
  const ir_ref no = ir_bool(g, false);
  assert_int_equal(ir_op1(g, IR_NOT, d), ir_op2(g, IR_LT, f->q, f->kv));
  assert_int_equal(ir_get(g, ir_op1(g, IR_NOT, c))->op, IR_NOT); /* NaN: not x < y is not y <= x */
  assert_int_equal(ir_op2(g, IR_AND, c, ir_op1(g, IR_NOT, c)), no);
  assert_int_equal(ir_op2(g, IR_OR, d, ir_op2(g, IR_LT, f->q, f->kv)), yes);
  assert_int_equal(ir_op3(g, IR_SELECT, c, yes, d), ir_op2(g, IR_OR, c, d));
  assert_int_equal(ir_op3(g, IR_SELECT, c, d, no), ir_op2(g, IR_AND, c, d));
  assert_int_equal(ir_op3(g, IR_SELECT, ir_op1(g, IR_NOT, c), f->x, f->y), ir_op3(g, IR_SELECT, c, f->y, f->x));
  assert_int_equal(ir_op3(g, IR_SELECT, c, f->x, f->x), f->x);
  assert_int_equal(ir_op2(g, IR_LT, f->x, f->x), no);
  assert_int_equal(ir_get(g, ir_op2(g, IR_LE, f->x, f->x))->op, IR_LE);
  assert_int_equal(ir_op2(g, IR_LE, f->q, f->q), yes);
  assert_int_equal(ir_op2(g, IR_LT, f->q, REAL(2.5)), ir_op2(g, IR_LT, f->q, INT(3)));
  assert_int_equal(ir_op2(g, IR_LE, f->q, REAL(2.5)), ir_op2(g, IR_LE, f->q, INT(2)));
  assert_int_equal(ir_op2(g, IR_LT, REAL(2.5), f->q), ir_op2(g, IR_LT, INT(2), f->q));
  assert_int_equal(ir_op2(g, IR_LE, REAL(2.5), f->q), ir_op2(g, IR_LE, INT(3), f->q));
  assert_int_equal(ir_op2(g, IR_EQ, f->q, REAL(2.5)), no);
  assert_int_equal(ir_op2(g, IR_LT, ir_to_real(g, f->q), ir_to_real(g, f->kv)), ir_op2(g, IR_LT, f->q, f->kv));
}

static void test_questions(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref e = ADD(ir_op1(g, IR_EXP, f->x), ir_to_real(g, f->q));
  assert_true(ir_uses(g, e, VAR_Q) && ir_uses(g, e, VAR_SCALAR) && !ir_uses(g, e, VAR_KV) &&
              !ir_uses(g, IR_NONE, VAR_Q));
  assert_true(ir_uses_op(g, e, IR_EXP) && ir_uses_op(g, e, IR_ADD) && !ir_uses_op(g, e, IR_LOG));
  double v;
  assert_true(ir_is_const(g, INT(-3), &v) && v == -3);
  assert_false(ir_is_const(g, ir_bool(g, true), &v) || ir_is_const(g, IR_NONE, &v) || ir_is_const(g, f->x, &v));
  assert_true(ir_is_var(g, f->y, VAR_SCALAR) && !ir_is_var(g, f->y, VAR_Q));
  assert_int_equal(ir_index_of(ir_get(g, f->y)), 1);
}

static void test_print(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  ADD(f->x, REAL(99)); /* not part of the result */
  const ir_ref distance = SUB(f->kv, f->q), slope = ir_load(g, 0, IR_REAL, &f->h, 1);
  const ir_ref capped = MUL(ir_op1(g, IR_TANH, DIV(f->x, REAL(50))), REAL(50)), bias = MUL(slope, distance);
  assert_string_equal(printed(f, ADD(capped, bias)),
                      "%1 = var q_idx : int\n"
                      "%2 = var kv_idx : int\n"
                      "%3 = var h : int\n"
                      "%4 = var scalar[0] : real\n"
                      "%5 = sub %2, %1 : int\n"
                      "%6 = load slopes[%3] : real\n"
                      "%7 = const 50 : real\n"
                      "%8 = div %4, %7 : real\n"
                      "%9 = tanh %8 : real\n"
                      "%10 = mul %9, %7 : real\n"
                      "%11 = to_real %5 : real\n"
                      "%12 = mul %6, %11 : real\n"
                      "%13 = add %10, %12 : real\n"
                      "root = %13\n");
  const ir_ref index[2] = {f->q, f->kv};
  const ir_ref id = ir_load(g, 1, IR_INT, index, 2);
  const ir_ref equal = ir_op2(g, IR_EQ, id, INT(-4)), tenth = REAL(0.1);
  const ir_ref mask = ir_op3(g, IR_SELECT, equal, tenth, REAL(-INFINITY));
  assert_string_equal(printed(f, mask),
                      "%1 = var q_idx : int\n"
                      "%2 = var kv_idx : int\n"
                      "%3 = load ids[%1, %2] : int\n"
                      "%4 = const -4 : int\n"
                      "%5 = eq %3, %4 : bool\n"
                      "%6 = const 0.1 : real\n"
                      "%7 = const -inf : real\n"
                      "%8 = select %5, %6, %7 : real\n"
                      "root = %8\n");
  assert_string_equal(printed(f, ir_bool(g, true)), "%1 = const true : bool\nroot = %1\n");
  assert_string_equal(printed(f, IR_NONE), "root = none\n");
}

/* The verifier finds each kind of damage to a valid graph and names the node. */
static void test_check_finds_damage(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref sum = ADD(f->x, f->y), c = ir_op2(g, IR_LT, f->q, f->kv);
  const ir_ref chosen = ir_op3(g, IR_SELECT, c, sum, f->x), load = ir_load(g, 0, IR_REAL, &f->q, 1),
               flag = ir_bool(g, true);
  luattn_error err;
  assert_int_equal(ir_check(g, &chosen, 1, "test", &err), LUATTN_OK);
  const struct {
    ir_ref node;
    ir_node bad;
    const char *says;
  } damage[] = {
      {sum, {.op = IR_ADD, .type = IR_INT, .nargs = 2, .arg = {f->x, f->y}}, "result type"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 1, .arg = {f->x}}, "number of arguments"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 2, .arg = {f->x, IR_NONE}}, "missing"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 2, .arg = {f->x, chosen}}, "does not precede"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 2, .arg = {f->x, sum}}, "does not precede"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 2, .arg = {f->x, f->q}}, "wrong type"},
      {sum, {.op = IR_ADD, .type = IR_REAL, .nargs = 2, .arg = {f->x, f->y, f->y}}, "beyond the arity"},
      {sum, {.op = IR_OP_COUNT, .type = IR_REAL, .nargs = 2, .arg = {f->x, f->y}}, "no such op"},
      {sum, {.op = IR_ADD, .type = 9, .nargs = 2, .arg = {f->x, f->y}}, "no such type"},
      {chosen, {.op = IR_SELECT, .type = IR_REAL, .nargs = 3, .arg = {f->q, sum, f->x}}, "wrong type"},
      {chosen, {.op = IR_SELECT, .type = IR_REAL, .nargs = 3, .arg = {c, sum, f->q}}, "wrong type"},
      {c, {.op = IR_AND, .type = IR_BOOL, .nargs = 2, .arg = {f->q, f->kv}}, "wrong type"},
      {c, {.op = IR_LT, .type = IR_INT, .nargs = 2, .arg = {f->q, f->kv}}, "result type"},
      {load, {.op = IR_LOAD, .type = IR_REAL, .nargs = 1, .arg = {f->x}}, "index"},
      {load, {.op = IR_LOAD, .type = IR_REAL, .nargs = 0}, "number of arguments"},
      {flag, {.op = IR_CONST_BOOL, .type = IR_BOOL, .imm.integer = 2}, "0 or 1"},
      {flag, {.op = IR_CONST_INT, .type = IR_INT, .imm.integer = INT64_MAX}, "2^53"},
      {flag, {.op = IR_CONST_REAL, .type = IR_INT}, "type real"},
      {flag, {.op = IR_VAR, .type = IR_REAL, .imm.integer = (int64_t)VAR_Q << 32}, "not the variable's"},
      {flag, {.op = IR_VAR, .type = IR_INT, .imm.integer = ((int64_t)VAR_Q << 32) + 1}, "no index"},
      {flag, {.op = IR_VAR, .type = IR_INT, .imm.integer = (int64_t)VAR_COUNT << 32}, "no such variable"},
  };
  for (size_t i = 0; i < sizeof damage / sizeof damage[0]; ++i) {
    const ir_node good = g->node[damage[i].node];
    g->node[damage[i].node] = damage[i].bad;
    assert_int_equal(ir_check(g, &chosen, 1, "simplify", &err), LUATTN_INTERNAL);
    if (strstr(err.message, damage[i].says) == NULL || strncmp(err.message, "simplify: node ", 15) != 0)
      fail_msg("damage %zu: '%s' does not say '%s'", i, err.message, damage[i].says);
    g->node[damage[i].node] = good;
  }
  const ir_ref beyond = ir_count(g);
  assert_int_equal(ir_check(g, &beyond, 1, "test", &err), LUATTN_INTERNAL);
  assert_int_equal(ir_check(g, &chosen, 1, "test", &err), LUATTN_OK);
}

static void test_substitute(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref e = ir_op1(g, IR_EXP, f->x), shared = MUL(e, e), root = ADD(shared, MUL(shared, f->y));
  const ir_ref e2 = ir_op1(g, IR_EXP, f->y), shared2 = MUL(e2, e2);
  assert_int_equal(ir_substitute(g, root, &f->x, &f->y, 1), ADD(shared2, MUL(shared2, f->y)));
  const ir_ref from[2] = {f->x, f->y}, to[2] = {f->y, f->x}; /* substitutes both at once */
  assert_int_equal(ir_substitute(g, SUB(f->x, f->y), from, to, 2), SUB(f->y, f->x));
  assert_int_equal(ir_substitute(g, root, &shared, &f->x, 1), ADD(f->x, MUL(f->x, f->y)));
  assert_int_equal(ir_substitute(g, root, &f->kv, &f->q, 1), root);
  const ir_ref one = REAL(1);
  assert_int_equal(ir_substitute(g, MUL(f->x, f->y), &f->x, &one, 1), f->y); /* substitution folds */
  const ir_ref load = ir_load(g, 0, IR_REAL, &f->kv, 1);
  assert_int_equal(ir_substitute(g, load, &f->kv, &f->q, 1), ir_load(g, 0, IR_REAL, &f->q, 1));
  assert_int_equal(ir_substitute(g, root, &root, &f->x, 1), f->x);
}

static void test_clone(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  const ir_ref root = ADD(f->x, MUL(f->y, REAL(3)));
  arena *a = arena_open(NULL);
  ir *c = ir_clone(a, g);
  const uint32_t count = ir_count(g);
  assert_int_equal(ir_op2(c, IR_ADD, f->x, ir_op2(c, IR_MUL, f->y, ir_real(c, 3))), root);
  for (int i = 0; i < 1000; ++i) ir_op2(c, IR_MUL, root, ir_real(c, i + 0.25));
  assert_int_equal(ir_count(g), count);
  assert_int_equal(ir_check(c, &root, 1, "clone", NULL), LUATTN_OK);
  arena_close(a);
}

static void test_none_spreads(void **state) {
  fixture *f = *state;
  ir *g = f->g;
  assert_int_equal(ADD(f->x, IR_NONE), IR_NONE);
  assert_true(ir_failed(g));
  assert_int_equal(ir_op3(g, IR_SELECT, IR_NONE, f->x, f->y), IR_NONE);
  assert_int_equal(ir_load(g, 0, IR_REAL, &(ir_ref){IR_NONE}, 1), IR_NONE);
  luattn_error err;
  assert_int_equal(ir_check(g, NULL, 0, "trace", &err), LUATTN_NO_MEMORY);
  assert_string_equal(err.message, "trace: out of memory");
}

/* ---- failing allocations ---- */

typedef struct failing {
  long calls, fail_at, live;
} failing;

static void *failing_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  failing *c = user;
  if (new_size == 0) {
    if (ptr != NULL) c->live -= (long)old_size;
    free(ptr);
    return NULL;
  }
  if (c->calls++ == c->fail_at) return NULL;
  c->live += (long)new_size - (long)old_size;
  return realloc(ptr, new_size);
}

/* Does all that the compiler does with IR. Returns whether everything succeeded. */
static bool whole_path(arena *a) {
  ir *g = ir_open(a);
  if (g == NULL) return false;
  rng r = {9};
  ir_ref roots[40], one = ir_real(g, 1), wrt[2] = {ir_variable(g, VAR_SCALAR, 0), ir_variable(g, VAR_SCALAR, 1)},
                    grad[2];
  ir_ref x = wrt[0];
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 12; ++k) x = ADD(MUL(x, ir_real(g, rng_between(&r, 0, 1))), ir_op1(g, IR_TANH, wrt[1]));
    roots[i] = x;
  }
  ir_grad(g, roots, &one, 1, wrt, grad, 2);
  ir_simplify(g, roots, 40);
  if (ir_failed(g)) return false;
  assert_true(grad[0] != IR_NONE);
  if (ir_substitute(g, roots[39], &wrt[1], &wrt[0], 1) == IR_NONE) return false;
  const ir *clone = ir_clone(a, g);
  if (clone == NULL || ir_int_limit(clone, roots, 40) < 0 || ir_program_new(a, clone, roots, 40) == NULL) return false;
  text t;
  text_init(&t, a);
  static const char *const names[] = {"root"};
  ir_print(clone, &t, roots, names, 1, NULL);
  return text_get(&t) != NULL && ir_check(clone, roots, 40, "test", NULL) == LUATTN_OK;
}

static void test_out_of_memory(void **state) {
  (void)state;
  long n = 0;
  for (bool done = false; !done; ++n) {
    failing c = {.fail_at = n};
    const luattn_allocator allocator = {failing_realloc, &c};
    arena *a = arena_open(&allocator);
    if (a != NULL) done = whole_path(a);
    assert_true(done == (c.calls <= n)); /* a failed allocation is never ignored */
    arena_close(a);
    assert_int_equal(c.live, 0);
  }
  assert_true(n > 8);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_equal_nodes_are_one),
      TEST(test_many_nodes),
      TEST(test_conversion),
      TEST(test_identities),
      TEST(test_boolean_identities),
      TEST(test_questions),
      TEST(test_print),
      TEST(test_check_finds_damage),
      TEST(test_substitute),
      TEST(test_clone),
      TEST(test_none_spreads),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
