/* mask_test.c: compares common masks with brute force at many lengths and tile sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "masks.h"

#define I(x) ir_int(g, x)
#define ADD(x, y) ir_op2(g, IR_ADD, x, y)
#define SUB(x, y) ir_op2(g, IR_SUB, x, y)
#define MUL(x, y) ir_op2(g, IR_MUL, x, y)
#define FLOORDIV(x, y) ir_op2(g, IR_FLOORDIV, x, I(y))
#define MOD(x, y) ir_op2(g, IR_MOD, x, I(y))
#define MIN(x, y) ir_op2(g, IR_MIN, x, y)
#define MAX(x, y) ir_op2(g, IR_MAX, x, y)
#define ABS(x) ir_op1(g, IR_ABS, x)
#define LT(x, y) ir_op2(g, IR_LT, x, y)
#define LE(x, y) ir_op2(g, IR_LE, x, y)
#define EQ(x, y) ir_op2(g, IR_EQ, x, y)
#define AND(x, y) ir_op2(g, IR_AND, x, y)
#define OR(x, y) ir_op2(g, IR_OR, x, y)
#define NOT(x) ir_op1(g, IR_NOT, x)

typedef ir_ref mask_builder(ir *g, ir_ref q, ir_ref kv);

static ir_ref ids_at(ir *g, ir_ref i) { return ir_load(g, 0, IR_INT, &i, 1); }
static ir_ref q_length(ir *g) { return ir_variable(g, VAR_Q_LEN, 0); }
static ir_ref kv_length(ir *g) { return ir_variable(g, VAR_KV_LEN, 0); }

static ir_ref causal(ir *g, ir_ref q, ir_ref kv) { return LE(kv, q); }
static ir_ref causal_bottom_right(ir *g, ir_ref q, ir_ref kv) { return LE(kv, SUB(ADD(q, kv_length(g)), q_length(g))); }
static ir_ref window(ir *g, ir_ref q, ir_ref kv) { return AND(LE(kv, q), LT(SUB(q, kv), I(5))); }
static ir_ref two_sided(ir *g, ir_ref q, ir_ref kv) { return LE(ABS(SUB(q, kv)), I(4)); }
static ir_ref scalar_window(ir *g, ir_ref q, ir_ref kv) { /* window is a run-time REAL */
  return AND(LE(kv, q), LT(SUB(q, kv), ir_variable(g, VAR_SCALAR, 0)));
}
static ir_ref prefix(ir *g, ir_ref q, ir_ref kv) { return OR(LT(kv, I(7)), LE(kv, q)); }
static ir_ref prefix_of_batch(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref b = ir_variable(g, VAR_B, 0);
  return OR(LT(kv, ir_load(g, 1, IR_INT, &b, 1)), NOT(LT(q, kv)));
}
static ir_ref block_causal(ir *g, ir_ref q, ir_ref kv) { return LE(FLOORDIV(kv, 4), FLOORDIV(q, 4)); }
static ir_ref document(ir *g, ir_ref q, ir_ref kv) { return EQ(ids_at(g, q), ids_at(g, kv)); }
static ir_ref causal_document(ir *g, ir_ref q, ir_ref kv) { return AND(causal(g, q, kv), document(g, q, kv)); }
static ir_ref dilated(ir *g, ir_ref q, ir_ref kv) {
  return AND(LE(ABS(SUB(q, kv)), I(9)), EQ(MOD(SUB(q, kv), 3), I(0)));
}
static ir_ref longformer(ir *g, ir_ref q, ir_ref kv) {
  return OR(OR(LE(ABS(SUB(q, kv)), I(3)), LT(q, I(2))), LT(kv, I(2)));
}
static ir_ref block_diffusion(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref half = FLOORDIV(q_length(g), 2);
  const ir_ref qn = LT(q, half), kn = LT(kv, half);
  const ir_ref qb = FLOORDIV(ir_op3(g, IR_SELECT, qn, q, SUB(q, half)), 4);
  const ir_ref kb = FLOORDIV(ir_op3(g, IR_SELECT, kn, kv, SUB(kv, half)), 4);
  const ir_ref diagonal = AND(EQ(qb, kb), OR(AND(qn, kn), AND(NOT(qn), NOT(kn))));
  const ir_ref offset = AND(LT(kb, qb), AND(qn, NOT(kn)));
  return OR(OR(diagonal, offset), AND(LE(kb, qb), AND(NOT(qn), NOT(kn))));
}
/* Rows of 6 positions; a 3 x 3 window that stays inside the grid. */
static ir_ref neighborhood(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref high = SUB(FLOORDIV(q_length(g), 6), I(2));
  const ir_ref y = MIN(MAX(FLOORDIV(q, 6), I(1)), high), x = MIN(MAX(MOD(q, 6), I(1)), I(4));
  return AND(LE(ABS(SUB(y, FLOORDIV(kv, 6))), I(1)), LE(ABS(SUB(x, MOD(kv, 6))), I(1)));
}

/* Rows of 17 positions. 3 x 5 windows that stay inside the grid; the last mask is also causal along the
 * rows. */
static ir_ref near(ir *g, ir_ref i, ir_ref j, int window, int length) {
  const ir_ref first = MIN(MAX(SUB(i, I(window / 2)), I(0)), I(length - window));
  return AND(LE(first, j), LT(j, ADD(first, I(window))));
}
static ir_ref grid(ir *g, ir_ref q, ir_ref kv) {
  return AND(near(g, FLOORDIV(q, 17), FLOORDIV(kv, 17), 3, 5), near(g, MOD(q, 17), MOD(kv, 17), 5, 17));
}
static ir_ref causal_grid(ir *g, ir_ref q, ir_ref kv) {
  return AND(AND(LE(kv, q), LT(MOD(kv, 17), ADD(MOD(q, 17), I(2)))), LE(SUB(FLOORDIV(q, 17), I(1)), FLOORDIV(kv, 17)));
}
/* Rows of 4 positions; each position sees at most its column in the rows of its window. */
static ir_ref narrow_grid(ir *g, ir_ref q, ir_ref kv) {
  return AND(near(g, FLOORDIV(q, 4), FLOORDIV(kv, 4), 3, 5), LE(MOD(kv, 4), MOD(q, 4)));
}
/* Sink keys and a window; all keys outside a window; all keys except the query's own. */
static ir_ref sinks(ir *g, ir_ref q, ir_ref kv) { return AND(LE(kv, q), OR(LT(kv, I(3)), LT(SUB(q, kv), I(6)))); }
static ir_ref not_near(ir *g, ir_ref q, ir_ref kv) { return LE(I(4), ABS(SUB(q, kv))); }
static ir_ref not_itself(ir *g, ir_ref q, ir_ref kv) { return ir_op2(g, IR_NE, q, kv); }
/* The mask of examples/block_diffusion.lua: several cases, each with one interval. */
static ir_ref noised(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref half = FLOORDIV(q_length(g), 2);
  const ir_ref qn = LT(q, half), kn = LT(kv, half);
  const ir_ref qb = FLOORDIV(ir_op3(g, IR_SELECT, qn, q, SUB(q, half)), 4);
  const ir_ref kb = FLOORDIV(ir_op3(g, IR_SELECT, kn, kv, SUB(kv, half)), 4);
  const ir_ref of_noised = AND(qn, EQ(qb, kb)), of_clean = ir_op3(g, IR_SELECT, qn, LT(kb, qb), LE(kb, qb));
  return ir_op3(g, IR_SELECT, kn, of_noised, of_clean);
}
/* Every third key, with a remainder that depends on q; the same within documents. */
static ir_ref residues(ir *g, ir_ref q, ir_ref kv) { return EQ(I(2), MOD(ADD(ADD(q, kv), I(5)), 3)); }
static ir_ref dilated_document(ir *g, ir_ref q, ir_ref kv) {
  return AND(AND(document(g, q, kv), EQ(MOD(SUB(kv, q), 2), I(0))), longformer(g, q, kv));
}
/* Masks that resemble grids but have no intervals with a single period: a remainder compared with kv // c (a
 * column does have a period), two periods, an expression that is not a remainder, twice the position, three
 * intervals, two pairs of intervals. */
static ir_ref no_grid(ir *g, ir_ref q, ir_ref kv) {
  return AND(LE(MOD(q, 17), FLOORDIV(kv, 17)), LE(MOD(q, 17), MOD(kv, 17)));
}
static ir_ref two_periods(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref first = LE(MOD(q, 17), MOD(kv, 17));
  return AND(first, LE(MOD(kv, 19), MOD(q, 19)));
}
static ir_ref short_period(ir *g, ir_ref q, ir_ref kv) { return AND(LE(kv, q), LE(MOD(kv, 6), MOD(q, 6))); }
static ir_ref no_residue(ir *g, ir_ref q, ir_ref kv) { return EQ(MOD(SUB(q, kv), 3), I(3)); }
static ir_ref twice(ir *g, ir_ref q, ir_ref kv) { return EQ(MOD(ADD(ADD(kv, kv), q), 4), I(0)); }
static ir_ref kv_twice(ir *g, ir_ref q, ir_ref kv) { return EQ(MOD(ADD(ADD(kv, q), kv), 4), I(0)); }
static ir_ref two_and_two_or(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref first = longformer(g, q, kv);
  return OR(AND(first, not_itself(g, q, kv)), LT(q, I(1)));
}
/* Both cases hold in one row. */
static ir_ref meeting(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref before = AND(LE(q, I(9)), LT(kv, I(5)));
  return OR(before, AND(LE(I(9), q), LT(I(10), kv)));
}
/* The end of a row's interval would overflow at usable lengths. Without that interval nothing needs
 * `rest`. */
static ir_ref coarse_document(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref same = document(g, q, kv);
  return AND(same, LE(FLOORDIV(kv, 200), q));
}
static ir_ref three(ir *g, ir_ref q, ir_ref kv) { return OR(longformer(g, q, kv), LT(I(40), kv)); }
static ir_ref two_and_two(ir *g, ir_ref q, ir_ref kv) {
  const ir_ref first = longformer(g, q, kv);
  return AND(first, not_itself(g, q, kv));
}

/* RANGES: both ranges are bounded. TIGHT: ranges are the best possible. EXACT: tile classes are. line_claim:
 * the number of intervals of a row or a column, their period, and whether `rest` must hold. */
enum { RANGES = 1, TIGHT = 2, EXACT = 4 };
typedef struct line_claim {
  int count, period;
  bool apart;
} line_claim;

static const struct {
  const char *name;
  mask_builder *build;
  int claims;
  line_claim rows, columns;
} masks[] = {
    {"causal", causal, TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"causal_bottom_right", causal_bottom_right, TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"window", window, RANGES | TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"two_sided", two_sided, RANGES | TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"scalar_window", scalar_window, RANGES | TIGHT | EXACT, {1, 0, true}, {1, 0, true}},
    {"prefix", prefix, TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"prefix_of_batch", prefix_of_batch, TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"block_causal", block_causal, TIGHT | EXACT, {1, 0, false}, {1, 0, false}},
    {"document", document, EXACT, {0, 0, false}, {0, 0, false}},
    {"causal_document", causal_document, 0, {1, 0, true}, {1, 0, true}},
    {"dilated", dilated, RANGES, {1, 3, false}, {1, 3, false}},
    {"longformer", longformer, 0, {2, 0, false}, {2, 0, false}},
    {"block_diffusion", block_diffusion, 0, {0, 0, false}, {0, 0, false}},
    {"noised", noised, 0, {2, 0, false}, {2, 0, false}},
    {"neighborhood", neighborhood, RANGES, {1, 6, false}, {1, 6, false}},
    {"grid", grid, RANGES, {1, 17, false}, {1, 17, false}},
    {"causal_grid", causal_grid, 0, {1, 17, false}, {1, 17, false}},
    {"narrow_grid", narrow_grid, RANGES, {1, 4, false}, {1, 4, false}},
    {"sinks", sinks, 0, {2, 0, false}, {1, 0, false}},
    {"not_near", not_near, 0, {2, 0, false}, {2, 0, false}},
    {"not_itself", not_itself, 0, {2, 0, false}, {2, 0, false}},
    {"residues", residues, 0, {1, 3, false}, {1, 3, false}},
    {"dilated_document", dilated_document, 0, {2, 2, true}, {2, 2, true}},
    {"no_grid", no_grid, 0, {1, 17, false}, {1, 17, false}},
    {"two_periods", two_periods, 0, {1, 17, true}, {1, 17, true}},
    {"short_period", short_period, 0, {1, 6, false}, {1, 6, false}},
    {"no_residue", no_residue, 0, {0, 0, false}, {0, 0, false}},
    {"twice", twice, 0, {0, 0, false}, {1, 4, false}},
    {"kv_twice", kv_twice, 0, {0, 0, false}, {1, 4, false}},
    {"two_and_two_or", two_and_two_or, 0, {0, 0, false}, {0, 0, false}},
    {"meeting", meeting, 0, {2, 0, false}, {1, 0, false}},
    {"coarse_document", coarse_document, 0, {0, 0, false}, {0, 0, false}},
    {"three", three, 0, {0, 0, false}, {2, 0, false}},
    {"two_and_two", two_and_two, 0, {2, 0, true}, {2, 0, true}},
};

static void fill_inputs(mask_case *c, int run) {
  int id = 0;
  for (int i = 0; i < MAX_LEN; i++) {
    c->ids[i] = id;
    if ((i * 7 + run * 5) % 11 < 2) id += 1 + run % 3;
  }
  c->prefix[0] = run % 9;
  c->prefix[1] = 12;
  c->window = 1 + run % 6;
}

static void check_claim(const char *name, const line_claim *want, const mask_intervals *got) {
  if (got->count == want->count && got->period == want->period && got->apart == want->apart) return;
  fail_msg("%s: %d intervals, period %d, apart %d, but %d, %d, %d were found", name, want->count, want->period,
           want->apart, got->count, got->period, got->apart);
}

static void test_named(void **state) {
  (void)state;
  static const int lengths[][2] = {{1, 1},   {17, 17}, {48, 48}, {13, 40}, {40, 13},
                                   {31, 29}, {36, 36}, {1, 48},  {48, 1}};
  static const int tiles[][2] = {{1, 1}, {4, 4}, {8, 16}, {16, 8}, {5, 7}, {64, 64}};
  for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
    mask_case c;
    mask_open(&c);
    ir *g = c.t.g;
    mask_analyse_case(&c, masks[i].build(g, ir_variable(g, VAR_Q, 0), ir_variable(g, VAR_KV, 0)));
    assert_true(c.m.max_len >= 1 << 24);
    for (int run = 0; run < (int)(sizeof lengths / sizeof lengths[0]); run++) {
      c.q_len = lengths[run][0];
      c.kv_len = lengths[run][1];
      c.b = run % 2;
      fill_inputs(&c, run);
      for (size_t k = 0; k < sizeof tiles / sizeof tiles[0]; k++) {
        mask_check(&c, masks[i].name, tiles[k][0], tiles[k][1], masks[i].claims & EXACT, masks[i].claims & TIGHT);
      }
    }
    if (masks[i].claims & RANGES) {
      assert_true(c.m.kv_lo != IR_NONE && c.m.kv_hi != IR_NONE && c.m.q_lo != IR_NONE && c.m.q_hi != IR_NONE);
    }
    check_claim(masks[i].name, &masks[i].rows, &c.m.rows);
    check_claim(masks[i].name, &masks[i].columns, &c.m.columns);
    mask_close(&c);
  }
}

/* A kernel adds the bound of a remainder to a position. If the sum could overflow at lengths that the mask
 * itself allows, row intervals are unknown. */
static void test_remainders_beyond(void **state) {
  (void)state;
  static const int factor[] = {32768, 100};
  for (int i = 0; i < 2; i++) {
    mask_case c;
    mask_open(&c);
    ir *g = c.t.g;
    const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0);
    mask_analyse_case(&c, LE(ir_op2(g, IR_MUL, q, I(factor[i])), MOD(kv, 32)));
    assert_int_equal(c.m.rows.count, i);
    assert_int_equal(c.m.columns.count, 1);
    if (i == 0) assert_true(c.m.max_len >= 65535 && c.m.max_len <= 65536);
    c.q_len = 11, c.kv_len = 47;
    mask_check(&c, "beyond", 4, 8, false, false);
    mask_close(&c);
  }
}

/* Each shared condition doubles the number of paths through the graph, so a walk must not follow every
 * path. */
static void test_shared_conditions(void **state) {
  (void)state;
  for (int either = 0; either < 2; either++) {
    mask_case c;
    mask_open(&c);
    ir *g = c.t.g;
    const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0);
    const ir_op join = either ? IR_OR : IR_AND;
    ir_ref p = LE(kv, q);
    for (int i = 0; i < 60; i++) {
      const ir_ref square = MOD(ir_op2(g, IR_MUL, q, q), i + 3), above = LT(square, MOD(kv, i + 7));
      const ir_ref x = ir_op2(g, join, p, above);
      p = ir_op2(g, join, x, ir_op2(g, join, p, LT(MOD(kv, i + 5), square)));
    }
    mask_analyse_case(&c, p);
    c.q_len = 31, c.kv_len = 29;
    mask_check(&c, either ? "or" : "and", 8, 8, false, false);
    mask_close(&c);
  }
}

static void test_forms(void **state) {
  (void)state;
  mask_case c;
  mask_open(&c);
  ir *g = c.t.g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0);
  mask_analyse_case(&c, causal(g, q, kv));
  assert_int_equal(c.m.kv_lo, IR_NONE);
  assert_int_equal(c.m.kv_hi, ADD(ir_variable(g, VAR_TILE, VAR_Q1), I(1)));
  assert_int_equal(c.m.q_lo, ir_variable(g, VAR_TILE, VAR_KV0));
  assert_int_equal(c.m.q_hi, IR_NONE);
  assert_int_equal(c.m.num_stats, 0);
  assert_non_null(strstr(c.m.how, "kv of a q tile: bounded above"));

  mask_analyse_case(&c, ir_bool(g, true));
  assert_int_equal(c.m.keep, IR_NONE);
  mask_analyse_case(&c, ir_bool(g, false));
  assert_int_equal(c.m.kv_hi, I(0));
  c.t.block_mask = IR_NONE;
  luattn_error err;
  assert_int_equal(mask_analyse(c.a, &c.t, &c.m, &err), LUATTN_OK);
  assert_int_equal(c.m.keep, IR_NONE);
  assert_int_equal(mask_tile_class(g, &c.m, NULL, NULL), 2);
  mask_close(&c);
}

/* What data decides, and on which blocks; masks that ranges or minima decide are not evaluated. */
static void test_evaluated(void **state) {
  (void)state;
  mask_case c;
  mask_open(&c);
  ir *g = c.t.g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0), b = ir_variable(g, VAR_B, 0),
               h = ir_variable(g, VAR_H, 0);
  const ir_ref blocks[] = {FLOORDIV(q, 128), FLOORDIV(kv, 48)},
               of_batch[] = {b, FLOORDIV(q, 64), ir_op2(g, IR_SHR, kv, I(5))},
               whole[] = {FLOORDIV(q, 128), FLOORDIV(kv, 64)}, chosen[] = {h, q}, padding[] = {b, kv},
               odd[] = {FLOORDIV(q, 9)}, twice[] = {ids_at(g, q), ids_at(g, kv)}, of_64[] = {FLOORDIV(kv, 64)};
  const ir_ref on = ir_load(g, 0, IR_BOOL, blocks, 2), group_q = ids_at(g, q), group_kv = ids_at(g, kv),
               scaled = ir_variable(g, VAR_SCALAR, 2), code = ir_load(g, 1, IR_INT, whole, 2),
               image = AND(LE(I(0), group_q), EQ(group_q, group_kv)), start_q = ir_load(g, 1, IR_INT, &q, 1),
               start_kv = ir_load(g, 1, IR_INT, &kv, 1);
  const ir_ref at[4][2] = {{I(0), q}, {I(0), kv}, {I(1), q}, {I(1), kv}};
  const ir_ref row_0[] = {ir_load(g, 0, IR_INT, at[0], 2), ir_load(g, 0, IR_INT, at[1], 2)},
               row_1[] = {ir_load(g, 0, IR_INT, at[2], 2), ir_load(g, 0, IR_INT, at[3], 2)};
  const struct {
    const char *name;
    ir_ref mask;
    mask_evaluated want; /* without why; cell 1: there is one */
  } cases[] = {
      {"causal", causal(g, q, kv), {0}},
      {"documents", causal_document(g, q, kv), {0}},
      {"prefix of a batch", prefix_of_batch(g, q, kv), {0}},
      {"a number for each key", LT(ids_at(g, kv), q), {0}},
      {"block table", on, {true, false, false, 64, 16, true, 0, 1, 0, false, false, 0, false}},
      {"block table, causal",
       AND(causal(g, q, kv), on),
       {true, false, false, 64, 16, true, 0, 1, 0, false, false, 0, false}},
      {"block table, or causal",
       OR(causal(g, q, kv), on),
       {true, false, false, 1, 1, true, 0, 1, 0, false, false, 0, false}},
      {"block table of a batch",
       ir_load(g, 0, IR_BOOL, of_batch, 3),
       {true, true, false, 64, 32, true, 0, 1, 0, false, false, 0, false}},
      {"chosen blocks",
       EQ(ir_load(g, 0, IR_INT, chosen, 2), FLOORDIV(kv, 64)),
       {true, false, true, 1, 64, true, 0, 1, 0, false, false, 0, true}},
      {"chosen blocks, or their own",
       OR(EQ(ir_load(g, 0, IR_INT, chosen, 2), FLOORDIV(kv, 32)), ir_load(g, 1, IR_BOOL, odd, 1)),
       {true, false, true, 1, 32, true, 0, 3, 0, false, false, 0, false}},
      {"padding",
       ir_load(g, 0, IR_BOOL, padding, 2),
       {true, true, false, 64, 1, false, 0, 1, 0, false, false, 0, false}},
      {"cells of positions",
       ir_load(g, 1, IR_INT, odd, 1),
       {true, false, false, 1, 64, true, 0, 2, 0, false, false, 0, false}},
      {"adjacency",
       ir_load(g, 1, IR_BOOL, twice, 2),
       {true, false, false, 1, 1, true, 0, 3, 0, false, false, 0, false}},
      {"block table, of a scalar and heads",
       AND(LT(scaled, ir_real(g, 3)), AND(on, LT(q, ir_variable(g, VAR_HEADS, 0)))),
       {true, false, false, 64, 16, true, 0, 1, 4, true, true, 0, false}},
      {"blocks whole, or in part",
       OR(EQ(code, I(2)), AND(EQ(code, I(1)), causal(g, q, kv))),
       {true, false, false, 1, 1, true, 0, 2, 0, false, false, 1, false}},
      {"groups with -1",
       OR(causal(g, q, kv), image),
       {true, false, false, 1, 1, true, 0, 1, 0, false, false, 0, false}},
      {"groups with -1, of two inputs",
       AND(LE(I(0), group_q), EQ(group_q, ir_load(g, 1, IR_INT, &kv, 1))),
       {true, false, false, 1, 1, true, 0, 3, 0, false, false, 0, false}},
      {"groups, a number more", EQ(ADD(group_q, I(1)), ADD(group_kv, I(1))), {0}},
      {"bits of ancestors",
       LT(I(0), ir_op2(g, IR_BAND, group_q, ir_op2(g, IR_SHL, I(1), kv))),
       {true, false, false, 1, 1, true, 0, 1, 0, false, false, 0, false}},
      {"windows in documents",
       AND(EQ(group_q, group_kv), LT(SUB(SUB(q, start_q), SUB(kv, start_kv)), I(5))),
       {true, false, false, 1, 1, true, 0, 3, 0, false, false, 0, false}},
      {"windows by rows of an input",
       AND(EQ(row_0[0], row_0[1]), LT(SUB(row_1[0], row_1[1]), I(5))),
       {true, false, false, 1, 1, true, 0, 1, 0, false, false, 0, false}},
      {"the same row twice", AND(EQ(row_0[0], row_0[1]), LT(SUB(row_0[0], row_0[1]), I(5))), {0}},
      {"starts of documents", AND(EQ(group_q, group_kv), LT(SUB(kv, start_kv), I(5))), {0}},
      {"later", LE(start_kv, start_q), {0}},
      {"later, near", AND(LE(start_kv, start_q), LT(SUB(group_q, group_kv), I(5))), {0}},
      {"an interval for each query", AND(LE(start_q, kv), LT(kv, group_q)), {0}},
      {"flags of 64 keys",
       ir_load(g, 1, IR_BOOL, of_64, 1),
       {true, false, false, 64, 64, false, 0, 2, 0, false, false, 0, true}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const bool is_number = ir_typeof(g, cases[i].mask) == IR_INT;
    c.t.block_mask = is_number ? LE(I(3), cases[i].mask) : cases[i].mask;
    luattn_error err;
    assert_int_equal(mask_analyse(c.a, &c.t, &c.m, &err), LUATTN_OK);
    const mask_evaluated *x = &c.m.evaluated, *want = &cases[i].want;
    if (x->is != want->is ||
        (x->is &&
         (x->by_batch != want->by_batch || x->by_head != want->by_head || x->rows != want->rows ||
          x->columns != want->columns || x->by_query != want->by_query || x->inputs != want->inputs ||
          x->scalars != want->scalars || x->reads_heads != want->reads_heads || x->has_reals != want->has_reals ||
          (x->cell != IR_NONE) != want->cell || x->has_narrow_blocks != want->has_narrow_blocks)))
      fail_msg(
          "%s: is %d, by batch %d, by head %d, on %d x %d, by query %d, inputs %x, scalars %x, heads %d, reals %d, "
          "cell %d, narrow %d",
          cases[i].name, x->is, x->by_batch, x->by_head, x->rows, x->columns, x->by_query, x->inputs, x->scalars,
          x->reads_heads, x->has_reals, x->cell != IR_NONE, x->has_narrow_blocks);
    assert_int_equal(strstr(c.m.how, "evaluated") != NULL, want->is);
  }
  mask_close(&c);
}

static void test_stats(void **state) {
  (void)state;
  mask_case c;
  mask_open(&c);
  ir *g = c.t.g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0);
  mask_analyse_case(&c, causal_document(g, q, kv));
  assert_int_equal(c.m.num_stats, 4); /* minima and maxima, and sets, as ids are compared for equality */
  for (int i = 0; i < 4; i++) {
    assert_int_equal(c.m.stat[i].input, 0);
    assert_int_equal(c.m.stat[i].axis, 0);
    assert_int_equal(c.m.stat[i].is_set, i >= 2);
  }
  assert_true(c.m.stat[0].along_q != c.m.stat[1].along_q && c.m.stat[2].along_q != c.m.stat[3].along_q);
  assert_non_null(strstr(c.m.how, "sets of 'ids' along q"));
  assert_non_null(strstr(c.m.how, "'ids' along q"));
  /* No statistics if the index is not exactly a position, or the input has several numbers per position. */
  const ir_ref shifted = ids_at(g, ADD(kv, I(1))), b = ir_variable(g, VAR_B, 0);
  mask_analyse_case(&c, AND(EQ(shifted, I(3)), LT(kv, ir_load(g, 1, IR_INT, &b, 1))));
  assert_int_equal(c.m.num_stats, 0);
  const ir_ref by_batch[2] = {b, q}, by_column[2] = {kv, q};
  const ir_ref good = ir_load(g, 0, IR_INT, by_batch, 2), bad = ir_load(g, 0, IR_INT, by_column, 2);
  c.t.block_mask = AND(LT(good, I(4)), LT(bad, I(5)));
  luattn_error err;
  assert_int_equal(mask_analyse(c.a, &c.t, &c.m, &err), LUATTN_OK);
  assert_int_equal(c.m.num_stats, 1);
  assert_int_equal(c.m.stat[0].axis, 1);
  assert_true(c.m.stat[0].along_q);
  mask_close(&c);
}

/* A range whose arithmetic would overflow at usable lengths is dropped, and does not limit lengths. */
static void test_overflowing_range(void **state) {
  (void)state;
  mask_case c;
  mask_open(&c);
  ir *g = c.t.g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0), b = ir_variable(g, VAR_B, 0);
  const ir_ref blocks = ir_load(g, 1, IR_INT, &b, 1);
  mask_analyse_case(&c, AND(LT(FLOORDIV(kv, 64), blocks), LE(kv, q)));
  assert_true(c.m.max_len >= 1 << 24);
  mask_close(&c);
}

static void test_levels(void **state) {
  (void)state;
  mask_case c;
  mask_open(&c);
  ir *g = c.t.g;
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0), h = ir_variable(g, VAR_H, 0);
  const ir_ref slope = ir_load(g, 0, IR_REAL, &h, 1), at_q = ir_load(g, 0, IR_REAL, &q, 1), both = SUB(kv, q);
  const ir_ref at_both = ir_load(g, 0, IR_REAL, &both, 1), length = MUL(kv_length(g), I(2));
  const ir_ref state0 = ADD(ir_variable(g, VAR_STATE, 0), slope), red = ADD(ir_variable(g, VAR_RED, 0), state0);
  const ir_ref column = MUL(slope, kv), score = ADD(ir_variable(g, VAR_SCORE, 0), slope);
  const ir_ref dp = ir_variable(g, VAR_DP, 0), sum = ir_op1(g, IR_REDUCE_SUM, score);
  const struct {
    ir_ref r;
    ir_level level;
  } want[] = {
      {slope, LEVEL_HEAD},
      {length, LEVEL_HEAD},
      {at_q, LEVEL_ROW},
      {state0, LEVEL_ROW},
      {red, LEVEL_ROW},
      {sum, LEVEL_ROW},
      {column, LEVEL_COL},
      {at_both, LEVEL_ELEMENT},
      {score, LEVEL_ELEMENT},
      {dp, LEVEL_ELEMENT},
      {ADD(column, at_q), LEVEL_ELEMENT},
      {ir_variable(g, VAR_DELTA, 0), LEVEL_ROW},
      {ADD(ir_variable(g, VAR_ROW, 3), ir_variable(g, VAR_DLSE, 0)), LEVEL_ROW},
  };
  uint8_t *level = arena_array(c.a, ir_count(g), 1);
  analyse_levels(g, level);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) assert_int_equal(level[want[i].r], want[i].level);
  mask_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_named),
      cmocka_unit_test(test_shared_conditions),
      cmocka_unit_test(test_remainders_beyond),
      cmocka_unit_test(test_forms),
      cmocka_unit_test(test_stats),
      cmocka_unit_test(test_evaluated),
      cmocka_unit_test(test_overflowing_range),
      cmocka_unit_test(test_levels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
