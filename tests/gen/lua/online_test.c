/* online_test.c: tests online_func: states, reductions under branches, and omitted fields. */
#include "traced.h"

#include <stdio.h>
#include <string.h>

static void trace_fwd(traced_file *t, const char *states, const char *body) {
  char source[1024];
  snprintf(source, sizeof source,
           "return attention { scalars = { c = 1 }, online_func = { online_rowscales = { %s },\n"
           "online_fwd = function(scores, rowscales, b, h, q_idx) %s end } }",
           states, body);
  trace_text(t, source);
}

static void expect_fwd(const char *body, const char *prob, const char *l, const char *rescale) {
  traced_file t;
  trace_fwd(&t, "l = 0", body);
  assert_string_equal(show(&t, t.spec.online.prob), prob);
  assert_string_equal(show(&t, t.spec.online.next[0]), l);
  assert_string_equal(show(&t, t.spec.online.rescale), rescale);
  trace_close(&t);
}

static void test_steps(void **state) {
  (void)state;
  expect_fwd("return exp(scores), {}", "(exp score)", "state", "1");
  expect_fwd("return exp(scores), { l = rowscales.l + 1 }, 0.5", "(exp score)", "(add state 1)", "0.5");
  expect_fwd("rowscales.l = 2 return exp(scores), rowscales", "(exp score)", "2", "1");
  expect_fwd("local p = exp(scores) return p, { l = reduce_sum(p) }", "(exp score)", "(reduce_sum (exp score))", "1");
  expect_fwd("return scores, { l = reduce_max(reduce_sum(scores) * scores) }", "score",
             "(reduce_max (mul score (reduce_sum score)))", "1");
  expect_fwd("return scores, { l = reduce_sum(1) }", "score", "(reduce_sum 1)", "1");
}

/* A reduction covers all elements, including those that take another branch of a per-element condition. */
static void test_element_branches(void **state) {
  (void)state;
  expect_fwd("local x = where(scores > 0, scores, c) return x, { l = reduce_sum(x) }",
             "(select (lt 0 score) score scalar)", "(reduce_sum (select (lt 0 score) score scalar))", "1");
  expect_fwd(
      "local x if scores > 0 then x = scores else x = -2 * scores end\n"
      "local s = reduce_sum(x) return x / s, { l = reduce_max(x / s) }",
      "(div (select (lt 0 score) score (mul score -2)) (reduce_sum (select (lt 0 score) score (mul score "
      "-2))))",
      "(reduce_max (div (select (lt 0 score) score (mul score -2)) "
      "(reduce_sum (select (lt 0 score) score (mul score -2)))))",
      "1");
  /* A condition after the reduction does not affect it. */
  expect_fwd("local s = reduce_sum(scores) if scores > s then return scores, { l = s } end return s, { l = s }",
             "(select (lt (reduce_sum score) score) score (reduce_sum score))", "(reduce_sum score)", "1");
}

static void test_row_branches(void **state) {
  (void)state;
  expect_fwd("if rowscales.l < 1 then return scores, { l = reduce_sum(scores) } end return scores, {}", "score",
             "(select (lt state 1) (reduce_sum score) state)", "1");
  expect_fwd(
      "local m = reduce_max(scores) if m < 0 then m = 0 end return exp(scores - m), { l = "
      "reduce_sum(exp(scores - m)) }",
      "(exp (select (lt (reduce_max score) 0) score (sub score (reduce_max score))))",
      "(select (lt (reduce_max score) 0) (reduce_sum (exp score)) (reduce_sum (exp (sub score (reduce_max "
      "score)))))",
      "1");
}

static void test_softmax(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t, "return attention { online_func = online_softmax }");
  const traced_online *o = &t.spec.online;
  assert_int_equal(o->num_state, 2);
  assert_string_equal(o->state_name[0], "l");
  assert_string_equal(o->state_name[1], "m");
  assert_string_equal(show(&t, o->prob), "(exp (sub score (max state1 (reduce_max score))))");
  assert_string_equal(show(&t, o->rescale), "(exp (sub state1 (max state1 (reduce_max score))))");
  assert_int_equal(o->num_final, 1);
  assert_int_equal(o->lse, 0);
  assert_string_equal(show(&t, o->final[0]), "(add state1 (log state))");
  assert_string_equal(show(&t, o->forward), "(exp (sub score final))");
  assert_true(o->backward == IR_NONE);
  trace_close(&t);
}

static void test_declarations(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { inputs = { sinks = { axes = {'h'} } }, online_func = {\n"
             "  name = 'mine',\n"
             "  online_rowscales = { m = function(b, h) return where(h < 2, sinks[h], 0) end, a = -math.huge },\n"
             "  final_rowscales = { r = 0, lse = 0, a = 0 },\n"
             "  online_fwd = function(scores, rowscales, b, h, q_idx) return scores, {} end,\n"
             "  online_fwd_epilogue = function(o, rowscales, b, h, q_idx)\n"
             "    return where(rowscales.a > 0, o / rowscales.a, 0), { r = rowscales.m, lse = 1, a = q_idx } end,\n"
             "  forward = function(scores, final_rowscales, b, h, q_idx, kv_idx) return scores * final_rowscales.r "
             "end,\n"
             "  backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores)\n"
             "    return (dp - doosum) * p * scores + final_rowscales.lse + kv_idx end,\n"
             "} }");
  const traced_online *o = &t.spec.online;
  assert_string_equal(o->name, "mine");
  assert_string_equal(show(&t, o->init[0]), "-inf");
  assert_string_equal(show(&t, o->init[1]), "(select (lt h 2) (sinks h) 0)");
  assert_int_equal(o->num_final, 3);
  assert_string_equal(o->final_name[0], "lse"); /* lse first, the others by name */
  assert_string_equal(o->final_name[1], "a");
  assert_string_equal(o->final_name[2], "r");
  assert_string_equal(show(&t, o->out), "(select (lt 0 state) (div out state) 0)");
  assert_string_equal(show(&t, o->final[1]), "(to_real q_idx)");
  assert_string_equal(show(&t, o->forward), "(mul score final2)");
  assert_string_equal(show(&t, o->backward), "(add (add final (mul score (mul p (sub dp delta)))) (to_real kv_idx))");
  trace_close(&t);

  trace_text(&t, "return attention { online_func = identity }");
  assert_int_equal(t.spec.online.num_state, 0);
  assert_int_equal(t.spec.online.lse, -1);
  assert_string_equal(show(&t, t.spec.online.out), "out");
  assert_string_equal(show(&t, t.spec.online.rescale), "1");
  trace_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps),   cmocka_unit_test(test_element_branches), cmocka_unit_test(test_row_branches),
      cmocka_unit_test(test_softmax), cmocka_unit_test(test_declarations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
