/* hints_test.c: Python or C syntax in a spec gives Lua's message, followed by the correct spelling. */
#include "traced.h"

#include <stdio.h>
#include <string.h>

typedef struct hint_case {
  const char *source, *hint;
} hint_case;

#define HOOK(body) "return attention { score_mod = function(s, b, h, q, kv)\n" body "\nend }"
#define COLON "; write `then` for the colon of if, `do` for that of a loop, none after else, and an `end`"
#define CONDITIONAL "; write where(condition, a, b) for `a if condition else b`"
#define COMMENT "; a comment starts with --"
#define FIELD "; a field is written name = value"
#define LOCAL "; a variable is declared by local x = .."
#define FUNCTION "; a function is written function(a, b) return .. end"

static const hint_case syntax[] = {
    {HOOK("if q < kv then return s\nelif q > kv then return -s end return 0"), "; write elseif"},
    {HOOK("return where(q < kv AND h < 2, s, 0)"), "; write `and`"},
    {HOOK("if q < kv Or h < 2 then return s end return 0"), "; write `or`"},
    {HOOK("if NOT q < kv then return s end return 0"), "; write `not`"},
    {HOOK("return s if q < kv else 0"), CONDITIONAL},
    {HOOK("return exp(s if q < kv else 0)"), CONDITIONAL},
    {HOOK("local t = s if q < kv else 0 return t"), CONDITIONAL},
    {HOOK("if q < kv: return s\nelse: return 0"), COLON},
    {HOOK("if (q < kv):\n\n return s\nelse:\n return 0"), COLON},
    {HOOK("if q < kv then return s else: return 0 end"), COLON},
    {HOOK("for i in range(3):\n s = s + 1\nreturn s"), COLON},
    {HOOK("# a comment\nreturn s"), COMMENT},
    {HOOK("return s # a comment"), COMMENT},
    {HOOK("// a comment\nreturn s"), COMMENT},
    {HOOK("/* a comment */\nreturn s"), COMMENT},
    {HOOK("return s // a comment"), "; // divides and rounds down, and a comment starts with --"},
    {"return attention {} # the end", COMMENT},
    {"return attention { name: 'x' }", FIELD},
    {"-- if or else\nreturn attention { score_mod: function(s, b, h, q, kv) return s end }", FIELD},
    {"return attention { 'name': 'x' }", FIELD},
    {"return attention { inputs = { t = { axes = ['h'] } } }", "; a list is written {a, b}"},
    {"return attention { score_mod = (s, b, h, q, kv) => s }", FUNCTION},
    {"return attention { name = 'x' scalars = {} }", "; is a comma missing before it?"},
    {"import torch", "; a spec imports nothing; its functions are predefined"},
    {HOOK("let x = s\nreturn x"), LOCAL},
    {HOOK("float x = s; return x"), LOCAL},
    {HOOK("local x := s return x"), "; write x = y for x := y"},
    {HOOK("if (q < kv) { return s } return 0"), "; blocks are `then .. end` and `do .. end`, without braces"},
    {HOOK("if q < kv then return s return 0"), "; a return is the last of its block, so an `end` is missing after it"},
    {HOOK("if q = kv then return s end return 0"), "; write eq(a, b) for a == b"},
    {HOOK("if q is None then return s end return 0"), "; write x == nil for x is None, eq(a, b) for numbers"},
    {HOOK("if q return s end return 0"), "; write if condition then .. end"},
    {HOOK("for i = 1, 3 do if i > 2 then continue end s = s + 1 end return s"),
     "; Lua has no continue; put the rest into an if"},
    {HOOK("return s +"), "near 'end'"}, /* no hint */
};

static const hint_case names[] = {
    {"detach(s)", "write stop_gradient(x)"},
    {"clip(s, 0, 1)", "write clamp(x, low, high)"},
    {"square(s)", "write x * x"},
    {"leaky_relu(s)", "write where(x > 0, x, a * x)"},
    {"trunc(s)", "write floor(x), or ceil(x) where x is negative"},
    {"int(s)", "write floor(x), or ceil(x) where x is negative"},
    {"float(q)", "numbers need no conversion, and infinity is math.huge"},
    {"s / num_heads", "write heads"},
    {"s / num_kv_heads", "write heads_kv"},
    {"logsigmoid(s)", "write log_sigmoid(x)"},
    {"swish(s)", "write silu(x)"},
    {"NOT(s)", "write not a"},
    {"range(3)", "a loop is written for i = 0, n - 1 do .. end"},
};

static void expect_end(const char *source, const char *end) {
  luattn_error err;
  traced_spec spec;
  arena *a = arena_open(NULL);
  if (front_trace(a, "test.lua", source, strlen(source), &spec, &err) != LUATTN_SPEC)
    fail_msg("no error in: %s", source);
  const size_t n = strlen(end), size = strlen(err.message);
  if (strncmp(err.message, "test.lua:", 9) != 0 || size < n || strcmp(err.message + size - n, end) != 0)
    fail_msg("%s\n  says    %s\n  without %s", source, err.message, end);
  arena_close(a);
}

static void test_syntax(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof syntax / sizeof *syntax; i++) expect_end(syntax[i].source, syntax[i].hint);
}

static void test_names(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char source[256], end[256];
    snprintf(source, sizeof source, HOOK("return s + %s"), names[i].source);
    snprintf(end, sizeof end, "'; %s", names[i].hint);
    expect_end(source, end);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_syntax), cmocka_unit_test(test_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
