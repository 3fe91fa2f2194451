/* predicate_test.c: compares random predicates with brute force: no empty tile keeps a pair, no full tile
 * drops
 * a pair, and ranges contain every kept pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "masks.h"
#include "tests/support/drawn.h"

#define NUM_PREDICATES 16000

static uint32_t next(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33);
}

static int pick(uint64_t *seed, int n) { return (int)(next(seed) % (uint32_t)n); }

typedef struct source {
  ir *g;
  uint64_t seed;
} source;

static ir_ref integer(source *s, int depth);
static ir_ref boolean(source *s, int depth);

static ir_ref integer_leaf(source *s) {
  ir *g = s->g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0), b = ir_variable(g, VAR_B, 0);
  switch (pick(&s->seed, 14)) {
    case 0:
      return ir_variable(g, VAR_Q_LEN, 0);
    case 1:
      return ir_variable(g, VAR_KV_LEN, 0);
    case 2:
      return ir_load(g, 0, IR_INT, &q, 1);
    case 3:
      return ir_load(g, 0, IR_INT, &kv, 1);
    case 4:
      return ir_load(g, 1, IR_INT, &b, 1);
    case 5:
    case 6:
      return ir_int(g, pick(&s->seed, 24) - 4);
    case 7:
    case 8:
    case 9:
      return q;
    default:
      return kv;
  }
}

static ir_ref nonzero(source *s) {
  const int c = 1 + pick(&s->seed, 9);
  return ir_int(s->g, pick(&s->seed, 6) == 0 ? -c : c);
}

static ir_ref integer(source *s, int depth) {
  ir *g = s->g;
  if (depth == 0) return integer_leaf(s);
  const ir_ref x = integer(s, depth - 1);
  switch (pick(&s->seed, 15)) {
    case 0:
      return ir_op2(g, IR_MUL, x, nonzero(s));
    case 1:
    case 2:
      return ir_op2(g, IR_FLOORDIV, x, nonzero(s));
    case 3:
      return ir_op2(g, IR_MOD, x, nonzero(s));
    case 4:
      return ir_op1(g, IR_ABS, x);
    case 5:
      return ir_op1(g, IR_NEG, x);
    case 6:
      return ir_op2(g, IR_MIN, x, integer(s, depth - 1));
    case 7:
      return ir_op2(g, IR_MAX, x, integer(s, depth - 1));
    case 8:
      return ir_op3(g, IR_SELECT, boolean(s, depth - 1), x, integer(s, depth - 1));
    case 9:
      return ir_op2(g, IR_MUL, x, integer(s, 0));
    case 10:
    case 11:
      return ir_op2(g, IR_ADD, x, integer(s, depth - 1));
    case 12:
      return x;
    default:
      return ir_op2(g, IR_SUB, x, integer(s, depth - 1));
  }
}

static ir_ref real(source *s, int depth) {
  ir *g = s->g;
  if (depth == 0) {
    if (pick(&s->seed, 4) == 0) return ir_variable(g, VAR_SCALAR, 0);
    return ir_to_real(g, integer(s, pick(&s->seed, 2)));
  }
  const ir_ref x = real(s, depth - 1), c = ir_real(g, 0.5 * (pick(&s->seed, 12) - 5) + 0.25);
  switch (pick(&s->seed, 11)) {
    case 0:
      return ir_op2(g, IR_MUL, x, c);
    case 1:
      return ir_op2(g, IR_DIV, x, c);
    case 2:
      return ir_op1(g, IR_FLOOR, x);
    case 3:
      return ir_op1(g, IR_ABS, x);
    case 4:
      return ir_op1(g, IR_NEG, x);
    case 5:
      return ir_op2(g, IR_MIN, x, real(s, depth - 1));
    case 6:
      return ir_op2(g, IR_MAX, x, real(s, depth - 1));
    case 7:
      return ir_op3(g, IR_SELECT, boolean(s, depth - 1), x, real(s, depth - 1));
    case 8:
      return ir_to_real(g, ir_op1(g, pick(&s->seed, 2) ? IR_FLOOR_INT : IR_TO_INT, x));
    case 9:
      return ir_op2(g, IR_ADD, x, real(s, depth - 1));
    default:
      return ir_op2(g, IR_SUB, x, real(s, depth - 1));
  }
}

static ir_ref comparison(source *s, int depth) {
  static const ir_op ops[] = {IR_LT, IR_LE, IR_LE, IR_LT, IR_EQ, IR_NE};
  const ir_op op = ops[pick(&s->seed, 6)];
  if (pick(&s->seed, 5) == 0) return ir_op2(s->g, op, real(s, pick(&s->seed, 3)), real(s, pick(&s->seed, 3)));
  const int left = pick(&s->seed, depth + 2), right = pick(&s->seed, depth + 1);
  return ir_op2(s->g, op, integer(s, left), integer(s, right));
}

static ir_ref boolean(source *s, int depth) {
  ir *g = s->g;
  if (depth == 0) return comparison(s, 1);
  switch (pick(&s->seed, 9)) {
    case 0:
    case 1:
      return ir_op2(g, IR_OR, boolean(s, depth - 1), boolean(s, depth - 1));
    case 2:
      return ir_op1(g, IR_NOT, boolean(s, depth - 1));
    case 3:
      return ir_op3(g, IR_SELECT, boolean(s, depth - 1), boolean(s, depth - 1), boolean(s, depth - 1));
    case 4:
      return comparison(s, 2);
    default:
      return ir_op2(g, IR_AND, boolean(s, depth - 1), boolean(s, depth - 1));
  }
}

static void test_random(void **state) {
  (void)state;
  int bounded = 0, checked = 0, tried = 0;
  for (int i = 0; i < NUM_PREDICATES; i++) {
    if (!drawn("predicates", i / 4, 3)) continue; /* depths are i % 4 */
    mask_case c;
    char name[32];
    tried++;
    snprintf(name, sizeof name, "predicate %d", i);
    mask_open(&c);
    source s = {.g = c.t.g, .seed = (uint64_t)i * 2654435761u + 17};
    mask_analyse_case(&c, boolean(&s, i % 4));
    if (c.m.max_len < MAX_LEN) { /* products of loaded integers may overflow at any length */
      mask_close(&c);
      continue;
    }
    checked++;
    bounded += c.m.kv_lo != IR_NONE || c.m.kv_hi != IR_NONE;
    for (int run = 0; run < 2; run++) {
      c.q_len = 1 + pick(&s.seed, MAX_LEN - 1);
      c.kv_len = 1 + pick(&s.seed, MAX_LEN - 1);
      c.b = run;
      c.window = 0.5 * (pick(&s.seed, 40) - 4);
      for (int k = 0; k < MAX_LEN; k++) c.ids[k] = pick(&s.seed, 12) - 2;
      c.prefix[0] = pick(&s.seed, 20);
      c.prefix[1] = pick(&s.seed, 60) - 6;
      mask_check(&c, name, 1 + pick(&s.seed, 16), 1 + pick(&s.seed, 16), false, false);
    }
    mask_close(&c);
  }
  /* An analysis that finds nothing would also be sound. */
  assert_true(8 * checked >= 5 * tried);
  assert_true(bounded > tried / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
