/* merge_test.c: cuts rows into parts, merges them in a random order, and compares with the row in one step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/online/merge.h"
#include "gen/analysis/algebra/split.h"
#include "rows.h"

enum { MAX_PARTS = 5, LENGTH = 24, ROWS = 40 };

/* A part of a row: its scores have prob p[i], and 0 elsewhere. */
typedef struct part {
  double p[LENGTH], state[SPEC_MAX_STATE];
  bool has_scores;
} part;

typedef struct world {
  fixture f;
  online_split step;
  online_merge merge;
  row_case row;
} world;

static void run_part(const world *w, const int *owner, int which, part *out) {
  const traced_online *o = &w->f.t.online;
  row_env e = w->row.env;
  *out = (part){.has_scores = false};
  for (int i = 0; i < o->num_state; i++) e.state[i] = row_eval(&w->f, o->init[i], &e);
  for (int k = 0; k < w->step.num_red; k++) {
    const bool is_max = w->step.kind[k] == IR_REDUCE_MAX;
    double sum = is_max ? -INFINITY : 0;
    for (int j = 0; j < LENGTH; j++) {
      if (owner[j] != which) continue;
      e.var[VAR_SCORE] = w->row.t[j];
      const double x = row_eval(&w->f, w->step.term[k], &e);
      sum = is_max ? fmax(sum, x) : sum + x;
    }
    e.red[k] = sum;
  }
  for (int j = 0; j < LENGTH; j++) {
    if (owner[j] != which) continue;
    out->has_scores = true;
    e.var[VAR_SCORE] = w->row.t[j];
    out->p[j] = row_eval(&w->f, w->step.prob, &e);
  }
  for (int i = 0; i < o->num_state; i++)
    out->state[i] = out->has_scores ? row_eval(&w->f, w->step.next[i], &e) : e.state[i];
}

/* a = the merge of a and b. */
static void merge_parts(const world *w, part *a, const part *b) {
  row_env e = w->row.env;
  if (!b->has_scores) return;
  if (!a->has_scores) {
    *a = *b;
    return;
  }
  memcpy(e.state, a->state, sizeof e.state);
  memcpy(e.other, b->state, sizeof e.other);
  const double factor = row_eval(&w->f, w->merge.factor, &e), other = row_eval(&w->f, w->merge.other_factor, &e);
  for (int j = 0; j < LENGTH; j++) a->p[j] = factor * a->p[j] + other * b->p[j];
  for (int i = 0; i < w->f.t.online.num_state; i++) a->state[i] = row_eval(&w->f, w->merge.state[i], &e);
}

static void expect_near(double x, double y, const char *what) {
  if (!(fabs(x - y) <= 1e-11 * (1 + fabs(y)))) fail_msg("%s: merged %.17g, the whole row %.17g", what, x, y);
}

static void check_row(world *w) {
  const traced_online *o = &w->f.t.online;
  const int parts = 2 + fixture_int(&w->f, MAX_PARTS - 1);
  int owner[LENGTH], none[LENGTH] = {0};
  part piece[MAX_PARTS], whole;
  for (int j = 0; j < LENGTH; j++) owner[j] = fixture_int(&w->f, parts);
  run_part(w, none, 0, &whole);
  for (int i = 0; i < parts; i++) run_part(w, owner, i, &piece[i]);
  for (int left = parts; left > 1; left--) { /* any two of those that are left */
    const int a = fixture_int(&w->f, left), b = (a + 1 + fixture_int(&w->f, left - 1)) % left;
    merge_parts(w, &piece[a], &piece[b]);
    if (b != left - 1) piece[b] = piece[left - 1];
  }
  row_env e = w->row.env, f = e;
  memcpy(e.state, piece[0].state, sizeof e.state);
  memcpy(f.state, whole.state, sizeof f.state);
  for (int j = 0; j < LENGTH; j++) {
    e.var[VAR_OUT] = piece[0].p[j];
    f.var[VAR_OUT] = whole.p[j];
    expect_near(row_eval(&w->f, o->out, &e), row_eval(&w->f, o->out, &f), "prob");
  }
  for (int i = 0; i < o->num_final; i++)
    expect_near(row_eval(&w->f, o->final[i], &e), row_eval(&w->f, o->final[i], &f), o->final_name[i]);
}

static void expect_merges(world *w, const char *what) {
  luattn_error err;
  arena *scratch = arena_open(NULL);
  if (merge_derive(scratch, &w->f.t, &w->merge, &err) != LUATTN_OK) fail_msg("%s: %s", what, err.message);
  assert_int_equal(split_online(w->f.t.g, &w->f.t.online, "test.lua", &w->step, &err), LUATTN_OK);
  for (int i = 0; i < ROWS; i++) {
    row_draw(&w->f, &w->row, LENGTH, i % 3 == 0 ? 20 : 2);
    check_row(w);
  }
  arena_close(scratch);
}

static void test_known(void **state) {
  (void)state;
  static const char *const name[NUM_ONLINE] = {
      "softmax",  "with forward", "with backward", "softmax one", "sink",     "temperature", "retention",
      "detached", "sigmoid",      "relu",          "squared",     "identity", "l2"};
  for (int kind = 0; kind < NUM_ONLINE; kind++) {
    world w = {.merge.factor = IR_NONE};
    fixture_open(&w.f);
    fixture_online(&w.f, (online_kind)kind);
    expect_merges(&w, name[kind]);
    fixture_close(&w.f);
  }
}

/* A softmax that keeps the logarithm of its sum: state L, prob exp(s - L). */
static void build_log_sum(ir *g, traced_online *o, ir_op power, ir_op logarithm) {
  const ir_ref s = ir_variable(g, VAR_SCORE, 0), old = ir_variable(g, VAR_STATE, 0);
  const ir_ref sum = ir_op2(g, IR_ADD, ir_op1(g, power, old), ir_op1(g, IR_REDUCE_SUM, ir_op1(g, power, s)));
  const ir_ref next = ir_op1(g, logarithm, sum);
  *o = (traced_online){.name = "online", .lse = -1, .num_state = 1, .num_final = 1};
  o->state_name[0] = o->final_name[0] = "L";
  o->init[0] = ir_real(g, -INFINITY);
  o->prob = ir_op1(g, power, ir_op2(g, IR_SUB, s, next));
  o->rescale = ir_op1(g, power, ir_op2(g, IR_SUB, old, next));
  o->next[0] = next;
  o->out = ir_variable(g, VAR_OUT, 0);
  o->final[0] = old;
}

static void test_logarithms(void **state) {
  (void)state;
  static const ir_op power[2] = {IR_EXP, IR_EXP2}, logarithm[2] = {IR_LOG, IR_LOG2};
  for (int i = 0; i < 2; i++) {
    world w = {.merge.factor = IR_NONE};
    fixture_open(&w.f);
    build_log_sum(w.f.t.g, &w.f.t.online, power[i], logarithm[i]);
    expect_merges(&w, "log of the sum");
    fixture_close(&w.f);
  }
}

/* A normaliser kept as the root of a sum of squares: tiles may be joined, but no way here knows the sum. */
static void test_refused(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  const ir_ref s = ir_variable(g, VAR_SCORE, 0), old = ir_variable(g, VAR_STATE, 0);
  const ir_ref squares = ir_op1(g, IR_REDUCE_SUM, ir_op2(g, IR_MUL, s, s));
  traced_online *o = &f.t.online;
  *o = (traced_online){.name = "online", .lse = -1, .num_state = 1, .prob = s, .rescale = ir_real(g, 1)};
  o->state_name[0] = "n";
  o->init[0] = ir_real(g, 0);
  o->next[0] = ir_op1(g, IR_SQRT, ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, old, old), squares));
  o->out = ir_op2(g, IR_DIV, ir_variable(g, VAR_OUT, 0), old);
  online_merge merge;
  luattn_error err;
  arena *scratch = arena_open(NULL);
  assert_int_equal(merge_derive(scratch, &f.t, &merge, &err), LUATTN_UNSUPPORTED);
  static const char *const words[] = {"test.lua: online_func 'online':", "cannot be merged", "in a row of",
                                      "the whole row gives prob", "; update each row scalar by"};
  for (int i = 0; i < 5; i++)
    if (strstr(err.message, words[i]) == NULL) fail_msg("'%s' is not in the message: %s", words[i], err.message);
  arena_close(scratch);
  fixture_close(&f);
}

static luattn_status test_finished(fixture *f, luattn_error *err) {
  arena *scratch = arena_open(NULL);
  const luattn_status status = merge_test_finished(scratch, &f->t, err);
  arena_close(scratch);
  return status;
}

/* A factor that all parts have does not count, be it 0; one of sums that may be 0 does, though no sample says so. */
static void test_finished_factors(void **state) {
  (void)state;
  fixture f;
  luattn_error err;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, SOFTMAX);
  const ir_ref gate = ir_op1(g, IR_TANH, ir_variable(g, VAR_SCALAR, 0));
  f.t.online.out = ir_op2(g, IR_MUL, f.t.online.out, gate);
  if (test_finished(&f, &err) != LUATTN_OK) fail_msg("%s", err.message);
  fixture_close(&f);
  fixture_open(&f);
  g = f.t.g;
  fixture_online(&f, RETENTION);
  const ir_ref c = ir_variable(g, VAR_STATE, 0), far = ir_op2(g, IR_SUB, c, ir_real(g, 1e14));
  f.t.online.out = ir_op2(g, IR_DIV, ir_variable(g, VAR_OUT, 0), far);
  assert_int_equal(test_finished(&f, &err), LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "is not shown to be neither 0 nor infinite"));
  fixture_close(&f);
}

/* A sum that stays at 100: rows of samples do not reach that, and parts of longer ones do not add up. */
static void test_refused_beyond_samples(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  traced_online *o = &f.t.online;
  const ir_ref s = ir_variable(g, VAR_SCORE, 0), old = ir_variable(g, VAR_STATE, 0), p = ir_op1(g, IR_SIGMOID, s);
  *o = (traced_online){.name = "online", .lse = -1, .num_state = 1, .prob = p, .rescale = ir_real(g, 1)};
  o->state_name[0] = "l";
  o->init[0] = ir_real(g, 0);
  o->next[0] = ir_op2(g, IR_MIN, ir_op2(g, IR_ADD, old, ir_op1(g, IR_REDUCE_SUM, p)), ir_real(g, 100));
  o->out = ir_op2(g, IR_DIV, ir_variable(g, VAR_OUT, 0), old);
  online_merge merge;
  luattn_error err;
  arena *scratch = arena_open(NULL);
  const luattn_status status = merge_derive(scratch, &f.t, &merge, &err);
  if (status == LUATTN_OK) fail_msg("it merges");
  assert_int_equal(status, LUATTN_UNSUPPORTED);
  assert_non_null(strstr(err.message, "parts of a row cannot be merged: "));
  arena_close(scratch);
  fixture_close(&f);
}

/* A softmax merges by its lse, and not with a term of its own in the denominator, however small, nor if it keeps no
 * lse. */
static void test_by_lse(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    fixture f;
    luattn_error err;
    fixture_open(&f);
    ir *g = f.t.g;
    const ir_ref s = ir_variable(g, VAR_SCORE, 0), old = ir_variable(g, VAR_STATE, 0), p = ir_op1(g, IR_EXP, s);
    traced_online *o = &f.t.online;
    *o = (traced_online){
        .name = "online", .lse = i != 2 ? 0 : -1, .num_state = 1, .num_final = 1, .prob = p, .rescale = ir_real(g, 1)};
    o->state_name[0] = "l";
    o->final_name[0] = "lse";
    o->init[0] = ir_real(g, i == 1 ? 1 : i == 3 ? 1e-30 : 0);
    o->next[0] = ir_op2(g, IR_ADD, old, ir_op1(g, IR_REDUCE_SUM, p));
    o->out = ir_op2(g, IR_DIV, ir_variable(g, VAR_OUT, 0), old);
    o->final[0] = ir_op1(g, IR_LOG, old);
    arena *scratch = arena_open(NULL);
    const luattn_status status = merge_test_lse(scratch, &f.t, &err);
    static const char *const words[] = {"", "parts of a row do not merge by their lse: in a row of",
                                        "has no lse, by which", "parts of a row do not merge by their lse"};
    assert_int_equal(status, i == 0 ? LUATTN_OK : LUATTN_UNSUPPORTED);
    if (i > 0 && strstr(err.message, words[i]) == NULL)
      fail_msg("'%s' is not in the message: %s", words[i], err.message);
    arena_close(scratch);
    fixture_close(&f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_known),
                                     cmocka_unit_test(test_logarithms),
                                     cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_finished_factors),
                                     cmocka_unit_test(test_refused_beyond_samples),
                                     cmocka_unit_test(test_by_lse)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
