/* limits_test.c: specs that would run long inside C functions, where Lua counts no instructions, end at a
 * limit. */
#include "traced.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LIMIT 0.2   /* CPU seconds for each spec */
#define MARGIN 10.0 /* the longest time between two checks of the clock, with sanitizers */

static double cpu_seconds(void) {
  struct timespec t;
  assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

typedef struct limit_case {
  const char *source, *part; /* what the message must contain */
} limit_case;

#define MANY "local t = {} for i = 1, 1000000 do t[i] = 1 end\n"

/* No line number, because a slow machine may reach the limit before the loop. */
static const char in_time[] = ": time budget: the spec ran for more than 0.2 s; bound its loops";

static const limit_case cases[] = {
    {"\nlocal s = string.rep('', 1e18 // 1 | 0)", "test.lua:2: string.rep: an empty string is repeated"},
    {"\nlocal s = ('x'):rep(1 << 62)", "test.lua:2: string.rep: the result would be larger"},
    {MANY "for i = 1, 100000 do table.insert(t, 1, i) table.remove(t) end", in_time},
    {MANY "for i = 1, 100000 do table.remove(t, 1) t[#t + 1] = 1 end", in_time},
    {"local t = {} for i = 1, 1000000 do t[i] = '' end\n"
     "for i = 1, 100000 do local s = table.concat(t) end",
     in_time},
    {MANY "for i = 1, 100000 do table.sort(t, function(x, y) return x > y end) end", in_time},
    {MANY "for i = 1, 100000 do table.sort(t) end", in_time},
    {"local s = string.rep('x', 1000000) local t = {} for i = 1, 100000 do t[i] = s end\n"
     "table.sort(t)",
     in_time},
    {"local s = string.rep('x', 1000000) local t = {} for i = 1, 100000 do t[i] = s end\n"
     "table.sort(t, eq)",
     "test.lua:2: table.sort: the order is a predefined function"},
    {"local s = string.rep(' ', 1000000)\nfor i = 1, 100000 do local n = tonumber(s) end", in_time},
    {"local t = {} for i = 1, 900000 do t[i] = 1 end\n"
     "for i = 1, 100000 do local n = select('#', table.unpack(t)) end",
     in_time},
    {"local t = {} for i = 1, 1000000 do t[i] = 1 end for i = 1, 1000000 do t[i] = nil end\n"
     "for i = 1, 10000000 do local k = next(t) end",
     in_time},
    {"\nfor i = 1, 10000000 do local s = string.format('%99.99f', 1e308) end", in_time},
    {"local a = string.rep('\\0', 1000000) local b = a .. 'x'\n"
     "for i = 1, 10000000 do local less = a < b end",
     in_time},
    {"local t = {} for i = 0, 62 do t[1 << i] = 1 t[(1 << i) + 1] = 1 end\ntable.insert(t, 1, 1)",
     "test.lua:2: table.insert: the table has 46116860184273879"},
    {"local t = {} for i = 0, 62 do t[1 << i] = 1 t[(1 << i) + 1] = 1 end\ntable.remove(t, 1)",
     "test.lua:2: table.remove: the table has 46116860184273879"},
};

static void expect_end(const limit_case *c, size_t size) {
  luattn_error err = {.message = ""};
  traced_spec spec;
  arena *a = arena_open(NULL);
  const double start = cpu_seconds();
  const luattn_status status = front_trace_within(a, "test.lua", c->source, size, LIMIT, &spec, &err);
  const double took = cpu_seconds() - start;
  if (status != LUATTN_SPEC || strstr(err.message, c->part) == NULL)
    fail_msg("%.120s\n  says   %s\n  not    %s", c->source, err.message, c->part);
  if (took > LIMIT + MARGIN) fail_msg("%.120s\n  took %g s", c->source, took);
  arena_close(a);
}

static void test_each(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_end(&cases[i], strlen(cases[i].source));
}

/* For each goto, Lua's parser searches all labels of the function without calling a hook. */
static void test_parser(void **state) {
  (void)state;
  enum { LABELS = 30000 }; /* Lua's limit is 32767 */
  static char source[1 << 20];
  size_t used = 0;
  for (int i = 0; i < LABELS; i++) used += (size_t)snprintf(source + used, sizeof source - used, "::l%d:: do end\n", i);
  while (used + 32 < sizeof source)
    used += (size_t)snprintf(source + used, sizeof source - used, "goto l%d\n", LABELS - 1);
  const limit_case c = {source, ": time budget: the spec ran for more than 0.2 s"};
  expect_end(&c, used);
}

/* Without a limit, the bounded functions work as in plain Lua. */
static void test_unbounded(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "local t = { 3, 1, 2 }\n"
             "table.sort(t) assert(eq(table.concat(t, ','), '1,2,3'))\n"
             "table.sort(t, function(x, y) return x > y end) assert(eq(table.concat(t, ','), '3,2,1'))\n"
             "table.insert(t, 7) table.insert(t, 1, 8) assert(eq(table.remove(t), 7))\n"
             "assert(eq(table.remove(t, 1), 8) and eq(select('#', table.unpack(t)), 3))\n"
             "assert(string.rep('ab', 2, '-') == 'ab-ab' and ('x'):rep(0) == '' and (''):rep(9) == '')\n"
             "return attention {}");
  trace_close(&t);
  expect_error("table.insert(1, 2)", "test.lua:1: bad argument #1 to 'insert' (table expected, got number)");
  expect_error("local t = { 1, 'x' }\ntable.sort(t)", "test.lua:2: attempt to compare string with number");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each), cmocka_unit_test(test_parser),
                                     cmocka_unit_test(test_unbounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
