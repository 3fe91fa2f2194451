/* selects_test.c: tests where() in loops and chains, whose conditions become values once their outcomes
 * branch into too many ways. */
#include "traced.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 8 };

#define MASK                                                                                              \
  "return attention { inputs = { doc = { axes = {'t'}, dtype = 'i32' }, keep = { axes = {'kv'}, dtype = " \
  "'bool' } }, mask_mod = function(b, h, q_idx, kv_idx) "
#define SCORE                                                                                                \
  "return attention { scalars = { cap = 1.5 }, inputs = { bias = { axes = {'h', 'n'}, grad = true }, doc = " \
  "{ axes = "                                                                                                \
  "{'t'}, dtype = 'i32' }, keep = { axes = {'kv'}, dtype = 'bool' } }, score_mod = function(score, b, h, "   \
  "q_idx, "                                                                                                  \
  "kv_idx) "

/* A mask by counting the documents that end before a token. */
static size_t write_documents(char *source, size_t size, int documents) {
  return (size_t)snprintf(source, size,
                          "local DOCS = %d\n"
                          "return attention { inputs = { ends = { axes = {DOCS}, dtype = 'i32' } },\n"
                          "  mask_mod = function(b, h, q_idx, kv_idx)\n"
                          "    local function doc(i) local n = 0 for d = 0, DOCS - 1 do n = n + where(i >= "
                          "ends[d] * (d + 1), 1, 0) end return n end\n"
                          "    return eq(doc(q_idx), doc(kv_idx)) and kv_idx <= q_idx\n"
                          "  end }",
                          documents);
}

static double cpu_seconds(void) {
  struct timespec t;
  assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void test_documents(void **state) {
  (void)state;
  static const int counts[] = {4, 6, 64, 256};
  uint32_t nodes[4];
  for (int i = 0; i < 4; i++) {
    char source[1024];
    traced_file t;
    const size_t size = write_documents(source, sizeof source, counts[i]);
    const double start = cpu_seconds();
    trace_text(&t, source);
    if (cpu_seconds() - start > 5) fail_msg("%d documents took %g s", counts[i], cpu_seconds() - start);
    nodes[i] = ir_count(t.spec.g);
    trace_close(&t);
    compare_with_oracle_any(source, source, size, ROUNDS);
  }
  assert_in_range(nodes[2], 1, 12 * 64 + 100);
  assert_in_range(nodes[3] - nodes[2], 1, 12 * (256 - 64));
}

/* Each of them has more than 4096 ways. */
static void test_chains(void **state) {
  (void)state;
  static const char *const sources[] = {
      SCORE
      "local n = doc[q_idx] local total = 0.0 for i = 0, 39 do total = total + where(n * 7 > i * (h + 1), "
      "bias[{h, i % 5}], "
      "0.0) end return score + total / max(n, 1) end }",
      /* conditions of several comparisons, and conditions in conditions */
      SCORE
      "for i = 1, 20 do score = score + where(kv_idx < q_idx - i and (keep[kv_idx] or eq(h, i)), 0.25, -i) "
      "end return "
      "score end }",
      SCORE
      "for i = 1, 20 do score = score * where(where(kv_idx < i * h, q_idx, kv_idx - 1) > i, 1.25, 0.5) end "
      "return score "
      "end }",
      SCORE
      "for i = 1, 20 do score = where(kv_idx < i * q_idx, where(h > i, score + 1, score), "
      "where(keep[kv_idx], i, h + 0.0)) + 0.5 "
      "end return score end }",
      /* integers stay integers, also as indices and in // */
      SCORE
      "local n = 1 for i = 1, 20 do n = n + where(kv_idx * i < q_idx, i, 2) end return score + n // 3 + "
      "bias[{h, n % 4}] "
      "end }",
      /* joined with comparisons that branch */
      SCORE
      "for i = 1, 14 do score = score + where(kv_idx * i < q_idx, i, 0) end for i = 1, 6 do if h * i > q_idx "
      "then score = "
      "score + bias[{h, i}] end end return score end }",
      SCORE
      "local n = 0 for i = 1, 14 do n = n + where(kv_idx * i < q_idx, i, 0) end for i = 1, 6 do if h * i > "
      "q_idx then n = n "
      "+ 1 end end if n > 8 then return score end return score * n end }",
      /* arms that are no numbers, and of two types */
      SCORE
      "for i = 1, 20 do score = score + where(kv_idx * i < q_idx, i, 0.5) end local t = where(h > 1, {cap}, "
      "{2}) return "
      "score + t[1] + where(h > 2, q_idx, 0.5) end }",
      MASK
      "local n = 0 for i = 1, 20 do n = n + where(q_idx * i < doc[kv_idx] * 100, 1, 0) end return n > 3 and "
      "(kv_idx <= q_idx "
      "or where(keep[kv_idx], true, h < 2)) end }",
      MASK
      "local a, b = q_idx, kv_idx for i = 1, 9 do a = where(a % 2 < 1, a // 2, a + 3) b = where (b % 2 < 1 "
      "-- even\n, b // 2, "
      "b + 3) end return a <= b end }",
  };
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
    compare_with_oracle_any(sources[i], sources[i], strlen(sources[i]), ROUNDS);
}

static void expect_selects(const char *body, const char *expected) {
  char source[2048];
  traced_file t = {.a = arena_open(NULL)};
  luattn_error err;
  const front_options options = {.selects = true};
  const int size = snprintf(source, sizeof source, SCORE "%s end }", body);
  if (front_trace_with(t.a, "test.lua", source, (size_t)size, &options, &t.spec, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  const char *shown = show(&t, t.spec.score_mod);
  if (strcmp(shown, expected) != 0) fail_msg("%s\n  gives %s\n  not   %s", body, shown, expected);
  trace_close(&t);
}

static void test_forms(void **state) {
  (void)state;
  expect_selects("return score + where(h > 2, 1, 0) + where(h > 5, 1, 0)",
                 "(add (add score (to_real (select (lt 2 h) 1 0))) (to_real (select (lt 5 h) 1 0)))");
  expect_selects("return where(h > 2 and keep[kv_idx], score, 1)", "(select (and (lt 2 h) (keep kv_idx)) score 1)");
  expect_selects("return where(2 > 1, score, 1)", "score");
  expect_selects("return where(h > 2, score + 1, score + cap)", "(add score (select (lt 2 h) 1 scalar))");
  /* what was answered before is known */
  expect_selects("if h > 3 then return where(h > 2, score, 1) end return 2", "(select (lt 3 h) score 2)");
  /* x + -0.0 is x, where x + 0.0 is not for x = -0.0 */
  expect_selects("if h > 2 then score = score + cap end return score", "(add score (select (lt 2 h) scalar -0))");
  expect_selects("if h > 2 then score = score - cap end return score", "(sub score (select (lt 2 h) scalar 0))");
  expect_selects("if h > 2 then score = score * cap end return score", "(mul score (select (lt 2 h) scalar 1))");
  expect_selects("if h > 2 then return score end return cap + score", "(add score (select (lt 2 h) -0 scalar))");
  expect_selects("local n = q_idx if h > 2 then n = n + 1 end if b > 5 then n = n + 1 end return score + n",
                 "(add score (to_real (add (select (lt 5 b) 1 0) (add q_idx (select (lt 2 h) 1 0)))))");
}

/* Where the name may mean something else, comparisons branch as they always did. */
static void test_other_where(void **state) {
  (void)state;
#define LOOP "for i = 1, 13 do score = score + where(kv_idx * i < q_idx, i, 0) end return score end }"
  static const char refusal[] =
      "test.lua:2: score_mod: its comparisons branch into more than 4096 ways; let one comparison stand for "
      "several, "
      "as min(x, y) >= 0 for x >= 0 and y >= 0, and max(x, y) >= 0 for `or`, use abs, relu or clamp, or "
      "bound its "
      "loops";
  static const char *const before[] = {
      "local where = where\n",
      "local function where(c, x, y) return c and x or y end\n",
      "local t = {} t['where'] = where t.attention = attention local _ENV = t\n",
      "local __condition = 1\n",
  };
  for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
    char source[1024];
    snprintf(source, sizeof source, "%sreturn attention { score_mod = function(score, b, h, q_idx, kv_idx) " LOOP,
             before[i]);
    expect_error(source, refusal);
  }
  expect_error(
      "\nreturn attention { score_mod = function(score, b, h, q_idx, kv_idx) for i = 1, 13 do local c = "
      "kv_idx * i < "
      "q_idx score = score + where(c, i, 0) end return score end }",
      refusal);
  /* fields and strings of that name are something else */
  static const char source[] = "local t = { f = function(x) return x end } t.where = t.f -- where\n" SCORE
                               "for i = 1, 13 do score = score + "
                               "where(kv_idx * i < q_idx, t.where(i), #'where(') end return score end }";
  compare_with_oracle_any(source, source, sizeof source - 1, ROUNDS);
}

/* Only the hook that branches too often changes: ranges of a mask know what its own conditions say. */
static void test_other_hooks(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { mask_mod = function(b, h, q_idx, kv_idx) return kv_idx <= where(q_idx < 9, h, "
             "q_idx) end, "
             "score_mod = function(score, b, h, q_idx, kv_idx) for i = 1, 13 do score = score + where(kv_idx * i < "
             "q_idx, i, 0) end return score end }");
  assert_string_equal(show(&t, t.spec.block_mask),
                      "(or (and (le kv_idx q_idx) (le 9 q_idx)) (and (lt q_idx 9) (le kv_idx h)))");
  assert_true(ir_uses_op(t.spec.g, t.spec.score_mod, IR_SELECT));
  trace_close(&t);
}

/* Errors are those of the spec's own text. */
static void test_errors(void **state) {
  (void)state;
#define MANY "local n = 0 for i = 1, 13 do n = n + where(kv_idx * i < q_idx, i, 0) end "
  expect_error(SCORE MANY "\nreturn score + n + where(h, 1, 0) end }",
               "test.lua:2: where: the condition is a traced number; write a comparison such as where(x > 0, a, b)");
  expect_error(SCORE MANY "\nreturn score + n + where(h > 2 and\nbias[{h, 1}], 1, 0) end }",
               "test.lua:2: where: the condition is a traced number; write a comparison such as where(x > 0, a, b)");
  expect_error(SCORE
               "for i = 1, 13 do if kv_idx * i < q_idx then score = score + where(h > i, 1, 0) end end return score "
               "end }",
               "test.lua:1: score_mod: its comparisons branch into more than 4096 ways; let one comparison stand for "
               "several, "
               "as min(x, y) >= 0 for x >= 0 and y >= 0, and max(x, y) >= 0 for `or`, use abs, relu or clamp, or "
               "bound its "
               "loops");
  expect_error(SCORE
               "local function f(i) local r = false for j = 1, 17 do r = r or kv_idx * i * j < q_idx end "
               "return r end\n" MANY "return score + where(f(2), 1, 0) + n end }",
               "test.lua:1: score_mod: more than 16 undecided comparisons in one condition (the last in line "
               "1); bound the loop "
               "that makes them, or join them by min, max and clamp, which ask nothing");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_documents),   cmocka_unit_test(test_chains),      cmocka_unit_test(test_forms),
      cmocka_unit_test(test_other_where), cmocka_unit_test(test_other_hooks), cmocka_unit_test(test_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
