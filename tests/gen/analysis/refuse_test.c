/* refuse_test.c: tests that online functions whose backward cannot be derived, or that contradict themselves,
 * are refused with a message that names the cause. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/masks/mask.h"
#include "gen/analysis/online/describe.h"
#include "gen/analysis/specs/adjoint.h"
#include "rows.h"

#define VAR(v) ir_variable(g, v, 0)
#define OP2(op, x, y) ir_op2(g, IR_##op, x, y)
#define OP1(op, x) ir_op1(g, IR_##op, x)

static void expect_refusal(fixture *f, const char *const *words) {
  derived_spec d;
  luattn_error err;
  if (derive_spec(f->a, &f->t, &d, &err) != LUATTN_SPEC) fail_msg("expected LUATTN_SPEC and '%s'", words[0]);
  for (int i = 0; words[i] != NULL; i++) {
    if (strstr(err.message, words[i]) == NULL) fail_msg("'%s' is not in the message: %s", words[i], err.message);
  }
  assert_non_null(strstr(err.message, "test.lua: online_func 'online':"));
  assert_non_null(strchr(err.message, ';')); /* the message suggests a remedy */
}

/* Expects a function with forward only, and a message that says why no backward can be derived. */
static void expect_forward_only(fixture *f, const char *const *words) {
  derived_spec d;
  luattn_error err;
  if (derive_spec(f->a, &f->t, &d, &err) != LUATTN_OK) fail_msg("refused: %s", err.message);
  if (d.missing == NULL) fail_msg("has a backward: %s", d.how);
  for (int i = 0; words[i] != NULL; i++) {
    if (strstr(d.missing, words[i]) == NULL) fail_msg("'%s' is not in the message: %s", words[i], d.missing);
  }
  assert_non_null(strstr(d.missing, "test.lua: online_func 'online': runs forward only"));
  assert_non_null(strchr(d.missing, ';')); /* the message suggests a remedy */
  assert_int_equal(d.num_saved, 0);
}

/* Expects a row pass that finds the element of a maximum, and words that say how to do without. */
static void expect_place(fixture *f, const char *name, const char *const *words) {
  derived_spec d;
  luattn_error err;
  if (derive_spec(f->a, &f->t, &d, &err) != LUATTN_OK) fail_msg("refused: %s", err.message);
  assert_null(d.missing);
  assert_int_equal(d.num_passes, 1);
  assert_int_equal(d.sum[d.num_sums - 2].kind, PASS_PLACE), assert_int_equal(d.sum[d.num_sums - 1].kind, PASS_LEAST);
  assert_non_null(strstr(d.how, name));
  assert_non_null(
      strstr(d.how, "does not cancel, or is not shown to: a row pass finds which element takes its derivative"));
  text described;
  text_init(&described, f->a);
  assert_int_equal(derive_describe(f->a, &f->t, &d, &described, &err), LUATTN_OK);
  for (int i = 0; words[i] != NULL; i++)
    if (strstr(text_get(&described), words[i]) == NULL)
      fail_msg("'%s' is not in the words: %s", words[i], text_get(&described));
}

static void test_wrong_forward(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, SOFTMAX);
  f.t.online.forward = OP1(EXP, OP2(SUB, VAR(VAR_SCORE), OP2(MUL, VAR(VAR_FINAL), ir_real(g, 2))));
  expect_refusal(&f,
                 (const char *[]){"forward disagrees with online_fwd", "for score", "give prob", "leave it out", NULL});
  fixture_close(&f);
}

static void test_wrong_rescale(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  fixture_online(&f, SOFTMAX);
  f.t.online.rescale = ir_real(f.t.g, 1);
  expect_refusal(&f, (const char *[]){"tiles change the result", "o_scale", NULL});
  fixture_close(&f);
}

static void test_wrong_next(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, SIGMOID);
  traced_online *o = &f.t.online;
  o->num_state = o->num_final = 1;
  o->state_name[0] = o->final_name[0] = "last";
  o->init[0] = ir_real(g, 0);
  o->next[0] = OP1(REDUCE_SUM, VAR(VAR_SCORE)); /* forgets the old value */
  o->final[0] = VAR(VAR_STATE);
  expect_refusal(&f, (const char *[]){"tiles change the result", "last =", NULL});
  fixture_close(&f);
}

static void test_epilogue(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    fixture f;
    fixture_open(&f);
    ir *g = f.t.g;
    fixture_online(&f, SOFTMAX);
    const ir_ref out = VAR(VAR_OUT);
    f.t.online.out = i == 0 ? OP2(ADD, out, ir_real(g, 1)) : i == 1 ? OP2(MUL, out, out) : ir_real(g, 3);
    expect_refusal(&f, (const char *[]){"online_fwd_epilogue is not linear in o", NULL});
    fixture_close(&f);
  }
}

/* A prob that does not depend on tiles is the product of a factor of the element and a factor of the row. So
 * the derivative of log prob with respect to the row's sum can depend on the score only through
 * stop_gradient, which here holds the normaliser of the negative scores. That takes a row pass. */
static void test_takes_a_pass(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, RETENTION);
  traced_online *o = &f.t.online;
  const ir_ref s = VAR(VAR_SCORE), r = o->next[1];
  const ir_ref below = OP2(DIV, OP1(RELU, OP1(NEG, s)), OP1(STOP_GRADIENT, r));
  o->prob = OP2(SUB, OP2(DIV, OP1(RELU, s), r), below);
  derived_spec d;
  luattn_error err;
  assert_int_equal(derive_spec(f.a, &f.t, &d, &err), LUATTN_OK);
  assert_null(d.missing);
  assert_int_equal(d.num_passes, 1);
  assert_int_equal(d.num_sums, 1); /* of the weights' sizes, which no sum that is kept bounds */
  assert_non_null(strstr(
      d.how,
      "; reduce_sum kept in 'c' takes a row pass: the derivative of log prob by this reduction depends on the score"));
  fixture_close(&f);
}

/* A row scalar from which no rule recovers a sum: a pass sums it again, but for a backward that the spec gives. */
static void test_lost_reduction(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  traced_online *o = &f.t.online;
  fixture_online(&f, IDENTITY);
  const ir_ref r = VAR(VAR_STATE), a = OP1(ABS, VAR(VAR_SCORE));
  o->num_state = 1;
  o->state_name[0] = "r";
  o->init[0] = ir_real(g, 0);
  o->next[0] = OP2(ADD, r, OP1(REDUCE_SUM, a));
  o->out = OP2(DIV, VAR(VAR_OUT), r);
  derived_spec d;
  luattn_error err;
  assert_int_equal(derive_spec(f.a, &f.t, &d, &err), LUATTN_OK);
  assert_int_equal(d.num_sums, 0);
  o->next[0] = OP1(LOG, OP2(ADD, OP1(EXP, r), OP1(REDUCE_SUM, a))); /* log(1 + c) in place of c */
  assert_int_equal(derive_spec(f.a, &f.t, &d, &err), LUATTN_OK);
  assert_int_equal(d.num_passes, 1);
  assert_int_equal(d.num_sums, 1);
  o->final[0] = r;
  o->final_name[0] = "lse";
  o->num_final = 1;
  o->lse = 0;
  o->backward = OP2(MUL, VAR(VAR_DP), VAR(VAR_P));
  expect_forward_only(&f,
                      (const char *[]){"that no row scalar holds", "reduce_sum in 'r'", "row scalar of its own", NULL});
  fixture_close(&f);
}

/* max |s| is the normaliser, whose derivative is nonzero for a single element. */
static void test_live_maximum(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  traced_online *o = &f.t.online;
  fixture_online(&f, IDENTITY);
  o->num_state = 1;
  o->state_name[0] = "top";
  o->init[0] = ir_real(g, 0);
  o->next[0] = OP2(MAX, VAR(VAR_STATE), OP1(REDUCE_MAX, OP1(ABS, VAR(VAR_SCORE))));
  o->out = OP2(DIV, VAR(VAR_OUT), VAR(VAR_STATE));
  expect_place(&f, "reduce_max kept in 'top'", (const char *[]){NULL});
  /* A user's own backward is used unchanged. */
  o->backward = OP2(DIV, VAR(VAR_DP), VAR(VAR_FINAL));
  o->num_final = 1;
  o->final_name[0] = "top";
  o->final[0] = VAR(VAR_STATE);
  derived_spec d;
  luattn_error err;
  assert_int_equal(derive_spec(f.a, &f.t, &d, &err), LUATTN_OK);
  assert_int_equal(d.num_saved, 1);
  assert_non_null(strstr(d.how, "given by the spec"));
  fixture_close(&f);
}

/* Softmax with an eps that is not scaled by exp(-m). The message names the unscaled term. */
static void test_unscaled_term(void **state) {
  (void)state;
  static const char *const terms[] = {"# without a row pass: + 1e-06 is not scaled with exp(-m) as",
                                      ": + tau is not scaled with", ": 2 is not scaled with"};
  static const char *const ways[] = {"write 1e-06 * exp(-rowscales.m)\n", "write tau * exp(-rowscales.m)",
                                     "write 2 * exp(-rowscales.m)"};
  for (int i = 0; i < 3; i++) {
    fixture f;
    fixture_open(&f);
    ir *g = f.t.g;
    fixture_online(&f, SOFTMAX);
    traced_online *o = &f.t.online;
    const ir_ref l = ir_variable(g, VAR_STATE, 1), out = VAR(VAR_OUT);
    o->forward = IR_NONE;
    if (i == 0) o->out = OP2(DIV, out, OP2(ADD, l, ir_real(g, 1e-6)));
    if (i == 1) o->out = OP2(DIV, out, OP2(ADD, l, ir_variable(g, VAR_SCALAR, 0)));
    if (i == 2) o->out = OP2(DIV, out, OP2(MAX, l, ir_real(g, 2)));
    expect_place(&f, "reduce_max kept in 'm'", (const char *[]){terms[i], ways[i], NULL});
    fixture_close(&f);
  }
}

/* A later step's prob ignores the other scores, which no o_scale can correct. */
static void test_wrong_later_step(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, SIGMOID);
  traced_online *o = &f.t.online;
  const ir_ref total = OP1(REDUCE_SUM, OP1(NEG, OP1(SOFTPLUS, VAR(VAR_SCORE))));
  o->prob = OP2(MUL, o->prob, OP1(EXP, total));
  o->rescale = OP1(EXP, total);
  expect_refusal(&f, (const char *[]){"tiles change the result", "count in prob what rowscales holds",
                                      "as stick-breaking's, has no online function", NULL});
  fixture_close(&f);
}

/* A sum of which each step adds 100 at most: samples have rows of 4096 scores. */
static void test_long_rows(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, RETENTION);
  traced_online *o = &f.t.online;
  const ir_ref p = OP1(SIGMOID, VAR(VAR_SCORE));
  o->prob = p;
  o->next[0] = OP2(ADD, VAR(VAR_STATE), OP2(MIN, OP1(REDUCE_SUM, p), ir_real(g, 100)));
  expect_refusal(&f, (const char *[]){"tiles change the result", "o_scale", NULL});
  fixture_close(&f);
}

/* A sum of which each step adds 1e15 at most: no sample says so, and longer rows have another weight in
 * another tile. */
static void test_not_shown_of_long_rows(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, RETENTION);
  traced_online *o = &f.t.online;
  o->next[0] = OP2(ADD, VAR(VAR_STATE), OP2(MIN, OP1(REDUCE_SUM, OP1(ABS, VAR(VAR_SCORE))), ir_real(g, 1e15)));
  expect_refusal(&f, (const char *[]){"tiles may change the result: c of two steps is not shown", "any length", NULL});
  fixture_close(&f);
}

static void test_not_finite(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, IDENTITY);
  const ir_ref s = VAR(VAR_SCORE);
  f.t.online.prob = OP1(LOG, OP2(SUB, ir_real(g, -1), OP2(MUL, s, s)));
  expect_refusal(&f, (const char *[]){"no finite prob", NULL});
  fixture_close(&f);
}

static void test_too_many_reductions(void **state) {
  (void)state;
  fixture f;
  fixture_open(&f);
  ir *g = f.t.g;
  fixture_online(&f, IDENTITY);
  for (int i = 0; i <= SPEC_MAX_RED; i++) {
    const ir_ref term = OP2(MUL, VAR(VAR_SCORE), ir_real(g, 2 + i));
    f.t.online.prob = OP2(ADD, f.t.online.prob, OP1(REDUCE_SUM, term));
  }
  expect_refusal(&f, (const char *[]){"more than 8 reductions", NULL});
  fixture_close(&f);
}

/* ---- out of memory ---- */

typedef struct failing {
  long left;
} failing;

static void *failing_realloc(void *user, void *ptr, size_t old_size, size_t new_size) {
  failing *x = user;
  (void)old_size;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  return x->left-- > 0 ? realloc(ptr, new_size) : NULL;
}

static void test_no_memory(void **state) {
  const bool eps = *state != NULL; /* includes a row pass and the search for a remedy */
  int refused = 0;
  for (long allowed = 0;; allowed++) {
    failing budget = {.left = 1000000};
    const luattn_allocator allocator = {failing_realloc, &budget};
    fixture f;
    fixture_open(&f);
    fixture_online(&f, SINK);
    if (eps) {
      f.t.online.forward = IR_NONE;
      f.t.online.out = ir_op2(f.t.g, IR_DIV, ir_variable(f.t.g, VAR_OUT, 0),
                              ir_op2(f.t.g, IR_ADD, ir_variable(f.t.g, VAR_STATE, 1), ir_real(f.t.g, 1e-6)));
    }
    f.t.block_mask = ir_op2(f.t.g, IR_LE, ir_variable(f.t.g, VAR_KV, 0), ir_variable(f.t.g, VAR_Q, 0));
    arena *a = arena_open(&allocator);
    assert_non_null(a);
    ir *g = ir_clone(a, f.t.g);
    assert_non_null(g);
    f.t.g = g;
    f.t.a = a;
    budget.left = allowed;
    derived_spec d;
    luattn_error err;
    mask_info mask;
    luattn_status status = derive_spec(a, &f.t, &d, &err);
    if (status == LUATTN_OK) status = mask_analyse(a, &f.t, &mask, &err);
    if (status == LUATTN_OK) assert_null(d.missing);
    if (status == LUATTN_OK && eps) {
      text described;
      text_init(&described, a);
      status = derive_describe(a, &f.t, &d, &described, &err);
      const char *words = status == LUATTN_OK ? text_get(&described) : NULL;
      if (words != NULL && strstr(words, "# without a row pass: + 1e-06") == NULL) fail_msg("%ld: %s", allowed, words);
      if (status == LUATTN_OK && words == NULL) status = LUATTN_NO_MEMORY; /* as callers report it */
    }
    if (status != LUATTN_OK) {
      assert_int_equal(status, LUATTN_NO_MEMORY);
      refused++;
    }
    arena_close(a);
    fixture_close(&f);
    if (status == LUATTN_OK) break;
    assert_true(allowed < 1000);
  }
  assert_true(refused > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_wrong_forward),
      cmocka_unit_test(test_wrong_rescale),
      cmocka_unit_test(test_wrong_next),
      cmocka_unit_test(test_epilogue),
      cmocka_unit_test(test_takes_a_pass),
      cmocka_unit_test(test_lost_reduction),
      cmocka_unit_test(test_unscaled_term),
      cmocka_unit_test(test_wrong_later_step),
      cmocka_unit_test(test_long_rows),
      cmocka_unit_test(test_not_shown_of_long_rows),
      cmocka_unit_test(test_live_maximum),
      cmocka_unit_test(test_not_finite),
      cmocka_unit_test(test_too_many_reductions),
      cmocka_unit_test(test_no_memory),
      {"test_no_memory_for_a_remedy", test_no_memory, NULL, NULL, (void *)(uintptr_t)1},
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
