/* oracle_test.c: compares plain Lua on numbers with the trace, for every hook of every example. */
#include "traced.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 64, ROUNDS = 64 }; /* 64 x 64 tuples per hook */

static void test_examples(void **state) {
  (void)state;
  char *path[FILES_MAX];
  const int n = list_lua(LUATTN_EXAMPLES_DIR, path, FILES_MAX);
  assert_true(n >= 22);
  for (int i = 0; i < n; i++) {
    size_t size;
    char *source = read_file(path[i], &size);
    compare_with_oracle(strrchr(path[i], '/') + 1, source, size, ROUNDS);
    free(source);
    free(path[i]);
  }
}

/* Branches with partly overlapping results, which join_masks must not treat as equal. */
static void test_overlapping_branches(void **state) {
  (void)state;
  static const char *const bodies[] = {
      "if h < 2 then return kv_idx < 4 or q_idx < 3 or b < 1 end return q_idx < 3 or kv_idx < 7",
      "if h < 2 then return q_idx < 3 or kv_idx < 7 end return kv_idx < 4 or q_idx < 3 or b < 1",
      "if h < 2 then return kv_idx < 400 and q_idx > 3 and b < 2 end return q_idx > 3 and kv_idx > 7",
      "if h < 2 then return q_idx > 3 and kv_idx > 7 end return kv_idx < 400 and q_idx > 3 and b < 2",
      "if h < 2 then return kv_idx < 4 or q_idx < 3 end return kv_idx < 4 and q_idx < 3 and b < 1",
  };
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    char source[512];
    const int n = snprintf(source, sizeof source,
                           "return attention { block_mask = function(b, h, q_idx, kv_idx) %s end }", bodies[i]);
    compare_with_oracle(bodies[i], source, (size_t)n, ROUNDS);
  }
}

/* Checks that the comparison can fail, with a spec that behaves differently on numbers and on traced
 * values. */
static double no_input(void *user, const char *input, int n, const long long *index) {
  (void)user, (void)input, (void)n, (void)index;
  return 0;
}

static void test_errors_of_the_oracle(void **state) {
  (void)state;
  static const char source[] =
      "return attention { scalars = { c = 2 }, score_mod = function(score, b, h, q_idx, kv_idx) return c * "
      "score end }";
  front_oracle *o;
  luattn_error err;
  double args[5] = {1.5, 0, 0, 0, 0}, x;
  assert_int_equal(front_oracle_open("a.lua", source, sizeof source - 1, no_input, NULL, &o, &err), LUATTN_OK);
  assert_int_equal(front_oracle_call(o, "score_mod", args, 5, &x, &err), LUATTN_OK);
  assert_true(x == 3);
  assert_int_equal(front_oracle_set(o, "c", -1, &err), LUATTN_OK);
  assert_int_equal(front_oracle_call(o, "score_mod", args, 5, &x, &err), LUATTN_OK);
  assert_true(x == -1.5);
  assert_int_equal(front_oracle_set(o, "d", -1, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "a.lua: 'd' is neither a scalar of the spec nor a length");
  assert_int_equal(front_oracle_call(o, "block_mask", args + 1, 4, &x, &err), LUATTN_SPEC);
  assert_string_equal(err.message, "a.lua: oracle: the spec has no 'block_mask'");
  assert_int_equal(front_oracle_call(o, "score_mod", args, 4, &x, &err), LUATTN_SPEC);
  assert_string_equal(err.message, "a.lua: oracle: 'score_mod' was given 4 numbers");
  assert_int_equal(front_oracle_call(o, "nothing", args, 4, &x, &err), LUATTN_SPEC);
  assert_string_equal(err.message, "a.lua: oracle: there is no hook 'nothing'");
  front_oracle_close(o);
  assert_int_equal(front_oracle_open("a.lua", "x", 1, no_input, NULL, &o, &err), LUATTN_SPEC);
}

/* A hook whose trace is the identity, or no mask, still counts as declared, and the oracle calls it each
 * time. */
static double count_load(void *user, const char *input, int n, const long long *index) {
  (void)input, (void)n, (void)index;
  ++*(int *)user;
  return 1;
}

static void test_hooks_without_a_trace(void **state) {
  (void)state;
  static const char source[] =
      "return attention { inputs = { w = { axes = {'h'} } },\n"
      "score_mod = function(score, b, h, q_idx, kv_idx) local unused = w[h] < 0 return score * 1 end,\n"
      "mask_mod = function(b, h, q_idx, kv_idx) local unused = w[h] < 0 return true end }";
  traced_file t;
  trace_text(&t, source);
  assert_true(ir_is_var(t.spec.g, t.spec.score_mod, VAR_SCORE));
  assert_int_equal(t.spec.block_mask, IR_NONE);
  trace_close(&t);
  front_oracle *o;
  luattn_error err;
  int calls = 0;
  double args[5] = {1.5, 0, 0, 0, 0}, x;
  assert_int_equal(front_oracle_open("a.lua", source, sizeof source - 1, count_load, &calls, &o, &err), LUATTN_OK);
  assert_true(front_oracle_has(o, "score_mod") && front_oracle_has(o, "block_mask"));
  assert_false(front_oracle_has(o, "query_mod") || front_oracle_has(o, "online.prob"));
  assert_int_equal(front_oracle_call(o, "score_mod", args, 5, &x, &err), LUATTN_OK);
  assert_true(x == 1.5);
  assert_int_equal(front_oracle_call(o, "block_mask", args + 1, 4, &x, &err), LUATTN_OK);
  assert_true(x == 1);
  assert_int_equal(calls, 2);
  front_oracle_close(o);
}

/* All results of a hook at once equal those of single calls. */
static void test_all_results_at_once(void **state) {
  (void)state;
  static const char source[] =
      "return attention { online_func = {\n"
      "online_rowscales = { m = 1, l = function(b, h) return b + 10 * h end }, final_rowscales = { 'lse' },\n"
      "online_fwd = function(scores, rowscales, b, h, q_idx)\n"
      "  local m = max(rowscales.m, reduce_max(scores))\n"
      "  local p, r = exp(scores - m), exp(rowscales.m - m)\n"
      "  return p, { m = m, l = rowscales.l * r + reduce_sum(p) }, r end,\n"
      "online_fwd_epilogue = function(o, rowscales, b, h, q_idx)\n"
      "  return o / rowscales.l, { lse = rowscales.m + log(rowscales.l) } end } }";
  static const char *const fwd[] = {"online.prob", "online.rescale", "online.next.l", "online.next.m"};
  const double place[] = {2, 3}, args[] = {0.5, 2.5, 0.25, 2, 3, 7};
  double all[4], one;
  front_oracle *o;
  luattn_error err;
  if (front_oracle_open("a.lua", source, sizeof source - 1, no_input, NULL, &o, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  assert_int_equal(front_oracle_call_all(o, "online.init.m", place, 2, all, 2, &err), LUATTN_OK);
  assert_true(all[0] + all[1] == 33);
  assert_int_equal(front_oracle_call_all(o, fwd[0], args, 6, all, 4, &err), LUATTN_OK);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(front_oracle_call(o, fwd[i], args, 6, &one, &err), LUATTN_OK);
    assert_true(one == all[i]);
  }
  assert_true(all[0] != all[1] && all[2] != all[3]);
  assert_int_equal(front_oracle_call_all(o, fwd[0], args, 6, all, 3, &err), LUATTN_INTERNAL);
  assert_string_equal(err.message, "a.lua: oracle: 'online.prob' gives 4 numbers, and 3 were asked for");
  front_oracle_close(o);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_results_at_once), cmocka_unit_test(test_examples),
                                     cmocka_unit_test(test_overlapping_branches),
                                     cmocka_unit_test(test_errors_of_the_oracle),
                                     cmocka_unit_test(test_hooks_without_a_trace)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
