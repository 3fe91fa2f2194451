/* trace_test.c: tests how plain Lua becomes expressions: values, comparisons by replay, joins, gathers,
 * declarations. */
#include "traced.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <string.h>

static const char declarations[] =
    "scalars = { cap = 50.0, bound = 3 }, inputs = { slopes = { axes = {'h'}, grad = true }, bias = { axes = "
    "{'h', 32} }, "
    "doc = { axes = {'q'}, dtype = 'i32' }, keep = { axes = {'kv'}, dtype = 'bool' } }";

static void expect_hook(const char *field, const char *params, const char *body, const char *expected) {
  char source[2048];
  traced_file t;
  snprintf(source, sizeof source, "return attention { %s, %s = function(%s) %s end }", declarations, field, params,
           body);
  trace_text(&t, source);
  const ir_ref r = strcmp(field, "block_mask") == 0 ? t.spec.block_mask : t.spec.score_mod;
  const char *shown = show(&t, r);
  if (strcmp(shown, expected) != 0) fail_msg("%s\n  gives %s\n  not   %s", body, shown, expected);
  trace_close(&t);
}

static void expect_score(const char *body, const char *expected) {
  expect_hook("score_mod", "score, b, h, q_idx, kv_idx", body, expected);
}

static void expect_mask(const char *body, const char *expected) {
  expect_hook("block_mask", "b, h, q_idx, kv_idx", body, expected);
}

static void test_numbers(void **state) {
  (void)state;
  expect_score("return score + 1", "(add score 1)");
  expect_score("return 2 - score", "(sub 2 score)");
  expect_score("return -score", "(neg score)");
  expect_score("return score * kv_idx", "(mul score (to_real kv_idx))");
  expect_score("return score / h", "(div score (to_real h))");
  expect_score("return score + q_idx // 4", "(add score (to_real (floordiv q_idx 4)))");
  expect_score("return score + q_idx % 4", "(add score (to_real (mod q_idx 4)))");
  expect_score("return score + q_idx // 4.0", "(add score (floordiv (to_real q_idx) 4))");
  expect_score("return score + q_idx / 4", "(add score (mul (to_real q_idx) 0.25))");
  expect_score("return score ^ 2", "(mul score score)");
  expect_score("return score ^ 3", "(mul score (mul score score))");
  expect_score("return score + q_len - kv_len + heads // heads_kv",
               "(add (sub (add score (to_real q_len)) (to_real kv_len)) (to_real (floordiv heads heads_kv)))");
  expect_score("return cap * tanh(score / cap)", "(mul scalar1 (tanh (div score scalar1)))");
  expect_score("return 0.5", "0.5");
}

static void test_functions(void **state) {
  (void)state;
  expect_score("return exp(score)", "(exp score)");
  expect_score("return math.exp(score)", "(exp score)");
  expect_score("return log(score, 2)", "(log2 score)");
  expect_score("return score + log(8, 2)", "(add score 3)");
  expect_score("return max(score, 0)", "(max score 0)");
  expect_score("return max(score, 0, cap)", "(max scalar1 (max score 0))");
  expect_score("return score + max(1, 2, 0.5)", "(add score 2)");
  expect_score("return score * abs(q_idx - kv_idx)", "(mul score (to_real (abs (sub q_idx kv_idx))))");
  expect_score("return clamp(score, -1, 1)", "(clamp score -1 1)");
  expect_score("return score + clamp(q_idx, 0, 5)", "(add score (to_real (min (max q_idx 0) 5)))");
  expect_score("return score + floor(score)", "(add score (to_real (floor_int score)))");
  expect_score("return score + floor(q_idx)", "(add score (to_real q_idx))");
  expect_score("return score + math.floor(2.5)", "(add score 2)");
  expect_score("return score + math.ceil(2.5)", "(add score 3)");
  expect_score("return score + tonumber(q_idx) + tonumber('0x10')", "(add (add score (to_real q_idx)) 16)");
  expect_score("return stop_gradient(score)", "(stop_gradient score)");
  expect_score("return pow(score, cap)", "(pow score scalar1)");
  expect_score(
      "if type(score) == 'number' and math.type(h) == 'integer' and math.type(score) == 'float' then return "
      "score end",
      "score");
}

/* Those that ops.def says that specs call: on a traced number the op, and on a number its value. */
static void test_called_ops(void **state) {
  (void)state;
  int called = 0;
  for (ir_op op = 0; op < IR_OP_COUNT; op++) {
    char body[200], expected[100];
    if (!ir_op_called(op)) continue;
    snprintf(body, sizeof body, "assert(eq(math.%s(0.5), %s(0.5))) return %s(%s(0.5) + score)", ir_op_name(op),
             ir_op_name(op), ir_op_name(op), ir_op_name(op));
    snprintf(expected, sizeof expected, "(%s (add score %.17g))", ir_op_name(op), ir_value(op, IR_REAL, 0.5, 0, 0));
    expect_score(body, expected);
    called++;
  }
  assert_true(called > 15);
}

/* What an op is called replaces the member of Lua's own math, and takes one number. A function of Lua's that does
 * something else with two has one of its own in gen/lua/functions.c. */
static void test_lua_forms_stay(void **state) {
  (void)state;
  lua_State *L = luaL_newstate();
  assert_non_null(L);
  luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 0);
  for (ir_op op = 0; op < IR_OP_COUNT; op++) {
    double of[2] = {0};
    if (!ir_op_called(op)) continue;
    lua_getfield(L, 1, ir_op_name(op));
    for (int more = 0; more < 2 && lua_isfunction(L, 2); more++) {
      lua_pushvalue(L, 2);
      lua_pushnumber(L, 0.5), lua_pushnumber(L, 3);
      lua_settop(L, 4 + more);
      of[more] = lua_pcall(L, 1 + more, 1, 0) == LUA_OK ? lua_tonumber(L, 3) : of[0];
      lua_settop(L, 2);
    }
    if (of[0] != of[1])
      fail_msg(
          "CALLED(\"%s\"): Lua's math.%s(x, y) is another function than math.%s(x), which the row leaves alone; name "
          "the op without CALLED, and call it from a function in gen/lua/functions.c, as call_log does",
          ir_op_name(op), ir_op_name(op), ir_op_name(op));
    lua_settop(L, 1);
  }
  lua_close(L);
}

static void test_gathers(void **state) {
  (void)state;
  expect_score("return score + slopes[h]", "(add score (slopes h))");
  expect_score("return score + bias[{h, kv_idx % 32}]", "(add score (bias h (mod kv_idx 32)))");
  expect_score("return score + bias[h][kv_idx % 32]", "(add score (bias h (mod kv_idx 32)))");
  expect_score("local row = bias[h] return row[0] + row[31]", "(add (bias h 0) (bias h 31))");
  expect_score("return score + doc[q_idx]", "(add score (to_real (doc q_idx)))");
  expect_mask("return keep[kv_idx]", "(keep kv_idx)");
  expect_mask("return not keep[kv_idx] or kv_idx <= q_idx", "(or (le kv_idx q_idx) (not (keep kv_idx)))");
  expect_score("if keep[kv_idx] then return score end return 0", "(select (keep kv_idx) score 0)");
}

/* Every hook may omit trailing parameters that it does not use. */
static void test_fewer_parameters(void **state) {
  (void)state;
  static const char *const sources[] = {
      "return attention { score_mod = function(score) return 30 * tanh(score / 30) end }",
      "return attention { mask_mod = function(b, h, q, kv) return kv <= q end,\n"
      "  score_mod = function(score, b, h) return score * (h + 1) end }",
      "return attention { mask_mod = function(b, h, q) return q > 3 end }",
      "return attention { block_mask = function() return true end, score_mod = function() return 2 end }",
      "return attention { query_mod = function(x) return x * 2 end, key_mod = function(x, b, h) return x * "
      "(h + 1) end,\n  value_mod = function(x, b, h, pos) return x + pos end }",
      "return attention { online_func = { online_fwd = function(scores) return sigmoid(scores) end } }",
      "return attention { online_func = { online_rowscales = { m = function(b) return -1e37 - b end, l = 0 "
      "},\n  final_rowscales = { 'lse' },\n"
      "  online_fwd = function(scores, row)\n"
      "    local m = max(row.m, reduce_max(scores))\n"
      "    local p, shift = exp(scores - m), exp(row.m - m)\n"
      "    return p, { m = m, l = row.l * shift + reduce_sum(p) }, shift end,\n"
      "  online_fwd_epilogue = function(o, row) return o / row.l, { lse = log(row.l) + row.m } end,\n"
      "  forward = function(scores, final) return exp(scores - final.lse) end,\n"
      "  backward = function(dp, p, final, doosum) return p * (dp - doosum) end } }",
  };
  expect_hook("score_mod", "score", "return 30 * tanh(score / 30)", "(mul (tanh (div score 30)) 30)");
  expect_hook("score_mod", "", "return 2", "2");
  expect_hook("block_mask", "b, h, q", "return q > 3", "(lt 3 q_idx)");
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
    compare_with_oracle_any("fewer.lua", sources[i], strlen(sources[i]), 4);
}

static void expect_of_file(const char *source, const char *expected) {
  traced_file t;
  trace_text(&t, source);
  const char *shown = show(&t, t.spec.score_mod);
  if (strcmp(shown, expected) != 0) fail_msg("%s\n  gives %s\n  not   %s", source, shown, expected);
  trace_close(&t);
}

/* The body of a file may assign globals, like any Lua file. */
static void test_globals(void **state) {
  (void)state;
  expect_of_file("W = 4 function f(x) return x + W end W = 5 return attention { score_mod = f }", "(add score 5)");
  expect_of_file("t = { 1, 2 } t[3] = 3 return attention { score_mod = function(s) return s + t[3] end }",
                 "(add score 3)");
  expect_of_file("spec = attention { score_mod = function(s) return s + W end } W = 7 return spec", "(add score 7)");
  expect_of_file(
      "exp = math.exp max = math.max\n"
      "return attention { score_mod = function(s) return max(exp(s), 1) end }",
      "(max (exp score) 1)");
  expect_of_file(
      "debug = false load = 3 score = 1\n"
      "return attention { score_mod = function(s) return debug and s or s + load + score end }",
      "(add (add score 3) 1)");
}

static void test_dtype_names(void **state) {
  (void)state;
  static const char *const names[][2] = {{"float64", "f64"}, {"float32", "f32"}, {"bfloat16", "bf16"},
                                         {"float16", "f16"}, {"int32", "i32"},   {"bool", "bool"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    uint32_t dtype[2];
    for (int j = 0; j < 2; j++) {
      char source[128];
      traced_file t;
      snprintf(source, sizeof source, "return attention { inputs = { x = { axes = {'h'}, dtype = '%s' } } }",
               names[i][j]);
      trace_text(&t, source);
      dtype[j] = t.spec.input[0].dtype;
      trace_close(&t);
    }
    assert_int_equal(dtype[0], i); /* luattn_input_dtype */
    assert_int_equal(dtype[1], i);
  }
}

static void test_masks(void **state) {
  (void)state;
  expect_mask("return kv_idx <= q_idx", "(le kv_idx q_idx)");
  expect_mask("return kv_idx > q_idx", "(lt q_idx kv_idx)");
  expect_mask("return not (kv_idx <= q_idx)", "(lt q_idx kv_idx)");
  expect_mask("return kv_idx <= q_idx and q_idx - kv_idx < 8", "(and (le kv_idx q_idx) (lt (sub q_idx kv_idx) 8))");
  expect_mask("return kv_idx < 4 or kv_idx <= q_idx", "(or (lt kv_idx 4) (le kv_idx q_idx))");
  expect_mask("return eq(doc[q_idx], 2)", "(eq (doc q_idx) 2)");
  expect_mask("return ne(doc[q_idx], 2)", "(ne (doc q_idx) 2)");
  expect_mask("return not eq(doc[q_idx], 2)", "(ne (doc q_idx) 2)");
  expect_mask("return true", "none");
  expect_mask("return false", "false");
  expect_mask("return (kv_idx < 4 and h < 2) or q_idx < 3 ", "(or (lt q_idx 3) (and (lt kv_idx 4) (lt h 2)))");
  expect_mask("return (kv_idx < 4 or h < 2) and q_idx < 3 ", "(and (lt q_idx 3) (or (lt kv_idx 4) (lt h 2)))");
  expect_mask("return (kv_idx < 4 and h < 2) or q_idx < 3 or b < 1",
              "(or (or (lt q_idx 3) (lt b 1)) (and (lt kv_idx 4) (lt h 2)))");
  expect_mask("if h < 2 then return kv_idx <= q_idx else return kv_idx < 4 end",
              "(or (and (lt kv_idx 4) (le 2 h)) (and (lt h 2) (le kv_idx q_idx)))");
  expect_mask("for i = 0, 2 do if eq(q_idx % 3, i) then return eq(kv_idx % 3, i) end end return false",
              "(or (and (or (and (and (eq (mod q_idx 3) 2) (eq (mod kv_idx 3) 2)) (ne (mod q_idx 3) 1)) "
              "(and (eq (mod q_idx 3) 1) (eq (mod kv_idx 3) 1))) (ne (mod q_idx 3) 0)) "
              "(and (eq (mod q_idx 3) 0) (eq (mod kv_idx 3) 0)))");
}

/* A comparison of an index with a float constant stays a comparison of integers. */
static void test_rounding(void **state) {
  (void)state;
  expect_mask("return kv_idx < 4.0", "(lt kv_idx 4)");
  expect_mask("return kv_idx < 2.5", "(lt kv_idx 3)");
  expect_mask("return kv_idx <= 2.5", "(le kv_idx 2)");
  expect_mask("return kv_idx > 2.5", "(lt 2 kv_idx)");
  expect_mask("return kv_idx >= 2.5", "(le 3 kv_idx)");
  expect_mask("return kv_idx < -2.5", "(lt kv_idx -2)");
  expect_mask("return kv_idx < 9 / 2", "(lt kv_idx 5)");
  expect_mask("return kv_idx < math.huge", "none");
  expect_mask("return kv_idx > math.huge", "false");
  expect_mask("return kv_idx > -math.huge", "none");
  expect_mask("return eq(kv_idx, 2.5)", "false");
  expect_mask("return eq(kv_idx, 3.0)", "(eq kv_idx 3)");
  expect_mask("return kv_idx < bound", "(lt (to_real kv_idx) scalar)");
}

/* A condition is replayed once, even if it is written in different forms. */
static void test_questions(void **state) {
  (void)state;
  expect_score("if kv_idx < q_idx then return 1 end if kv_idx < q_idx then return 2 end return 3",
               "(select (lt kv_idx q_idx) 1 3)");
  expect_score("if kv_idx < q_idx then return 1 end if q_idx > kv_idx then return 2 end return 3",
               "(select (lt kv_idx q_idx) 1 3)");
  expect_score("if kv_idx < q_idx then return 1 end if q_idx <= kv_idx then return 2 end return 3",
               "(select (lt kv_idx q_idx) 1 2)");
  expect_score("if kv_idx < q_idx then return 1 end if not (kv_idx >= q_idx) then return 2 end return 3",
               "(select (lt kv_idx q_idx) 1 3)");
  expect_score(
      "if kv_idx <= q_idx then if kv_idx >= q_idx then if eq(kv_idx, q_idx) then return 1 end return 2 end "
      "return 3 end "
      "return 4",
      "(select (le kv_idx q_idx) (select (le q_idx kv_idx) 1 3) 4)");
  expect_score("if eq(kv_idx, q_idx) then if kv_idx < q_idx then return 1 end return 2 end return 3",
               "(select (eq q_idx kv_idx) 2 3)");
  expect_score("if keep[kv_idx] and keep[kv_idx] then return 1 end return 2", "(select (keep kv_idx) 1 2)");
  expect_score("if score < 0 then return 1 elseif score >= 0 then return 2 end", "(select (lt score 0) 1 2)");
}

/* What comparisons with constants say of each other. */
static void test_implied_questions(void **state) {
  (void)state;
  expect_score("if h > 3 and h > 2 then return 1 end return 2", "(select (lt 3 h) 1 2)");
  expect_score("if h > 3 or h < 4 then return 1 end return 2", "1");
  expect_score("if h > 3 and h <= 4 and ne(h, 4) then return 1 end return 2", "2");
  expect_score("if h > 3 then if h < 5 then if eq(h, 4) then return 1 end return 2 end return 3 end return 4",
               "(select (lt 3 h) (select (lt h 5) 1 3) 4)");
  expect_score("if eq(h, 4) and h > 2 and h < 5 and ne(h, 3) then return 1 end return 2", "(select (eq h 4) 1 2)");
  expect_score("if h < 2 then return 1 end if h < 1 then return 2 end if h >= 1 then return 3 end return 4",
               "(select (lt h 2) 1 3)");
  /* Between floats is another float. */
  expect_score("if score > 3 and score < 4 then return 1 end return 2",
               "(select (lt 3 score) (select (lt score 4) 1 2) 2)");
  expect_score("if score > 3 and score > 2.5 then return 1 end return 2", "(select (lt 3 score) 1 2)");
  expect_score("if score >= 3 and score <= 3 and eq(score, 3) then return 1 end return 2",
               "(select (le 3 score) (select (le score 3) 1 2) 2)");
  /* Two ways for each of five would be 32 sums. */
  traced_file t;
  trace_text(&t,
             "return attention { score_mod = function(score, b, h, q_idx, kv_idx) local n = 0.0\n"
             "  for i = 0, 4 do n = n + where(h > i, sin(score + i), 0.0) end return n end }");
  int selects = 0;
  for (ir_ref r = 1; r < ir_count(t.spec.g); r++) selects += ir_get(t.spec.g, r)->op == IR_SELECT;
  assert_int_equal(selects, 5 + 1); /* and one of the softmax */
  trace_close(&t);
}

static void test_joins(void **state) {
  (void)state;
  expect_score("if kv_idx < q_idx then return score end return score", "score");
  expect_score("return exp(where(kv_idx < q_idx, score, cap))", "(exp (select (lt kv_idx q_idx) score scalar1))");
  expect_score("if kv_idx < q_idx then return exp(score) * 2 end return exp(score) * 3",
               "(mul (exp score) (select (lt kv_idx q_idx) 2 3))");
  expect_score("return slopes[where(h < 4, h, h - 4)]", "(slopes (select (lt h 4) h (sub h 4)))");
  expect_score("return where(kv_idx < q_idx, 1, score)", "(select (lt kv_idx q_idx) 1 score)");
  expect_score("return score + where(kv_idx < q_idx, 1, 0) + where(h < 2, 1, 0)",
               "(select (lt kv_idx q_idx) (add (select (lt h 2) (add score 1) score) 1) (select (lt h 2) "
               "(add score 1) "
               "score))");
  /* 4096 calls are enough for twelve independent branches. */
  traced_file t;
  trace_text(&t,
             "return attention { score_mod = function(score, b, h, q_idx, kv_idx)\n"
             "  for i = 1, 12 do if kv_idx * i < q_idx then score = score * 2 else score = score * 3 end end\n"
             "  return score end }");
  trace_close(&t);
}

static void test_declarations(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { scalars = { z = 1, a = 2.5 }, inputs = { "
             "w = { axes = {'b', 'h', 'q', 'kv'}, dtype = 'bf16', grad = true }, e = { axes = {'hkv', 7, "
             "'channel'}, dtype = 'f64' } } }");
  assert_string_equal(t.spec.name, "test");
  assert_string_equal(t.spec.file, "test.lua");
  assert_int_equal(t.spec.num_scalars, 2);
  assert_string_equal(t.spec.scalar_name[0], "a");
  assert_string_equal(t.spec.scalar_name[1], "z");
  assert_true(t.spec.scalar_default[0] == 2.5 && t.spec.scalar_default[1] == 1);
  assert_int_equal(t.spec.num_inputs, 2);
  const luattn_input_info *e = &t.spec.input[0], *w = &t.spec.input[1];
  assert_string_equal(e->name, "e");
  assert_int_equal(e->dtype, LUATTN_INPUT_F64);
  assert_int_equal(e->num_axes, 3);
  assert_int_equal(e->axis[0], LUATTN_AXIS_HKV);
  assert_int_equal(e->axis[1], 7);
  assert_int_equal(e->axis[2], LUATTN_AXIS_FREE);
  const char *const names[] = {"hkv", "7", "channel", NULL, "b", "h", "q", "kv"};
  for (int i = 0; i < 8; i++)
    if (names[i] != NULL) assert_string_equal(t.spec.axis_name[i], names[i]);
  assert_int_equal(e->grad, 0);
  assert_int_equal(w->dtype, LUATTN_INPUT_BF16);
  assert_int_equal(w->grad, 1);
  for (int i = 0; i < 4; i++) assert_int_equal(w->axis[i], ((const int[]){-1, -2, -4, -5})[i]);
  assert_true(ir_is_var(t.spec.g, t.spec.score_mod, VAR_SCORE));
  assert_true(t.spec.block_mask == IR_NONE && t.spec.query_mod == IR_NONE);
  assert_string_equal(t.spec.online.name, "online_softmax");
  trace_close(&t);

  trace_text(&t, "return attention { name = 'a.b-c_1', mask_mod = causal() }");
  assert_string_equal(t.spec.name, "a.b-c_1");
  assert_string_equal(show(&t, t.spec.block_mask), "(le kv_idx q_idx)");
  trace_close(&t);
}

/* An input of no axes is read by its name, at index 0. */
static void test_numbers_on_device(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { inputs = { s = { axes = {}, grad = true }, n = { axes = {}, dtype = 'i32' }, "
             "f = { axes = {}, dtype = 'bool' } }, score_mod = function(score) return s * score end, "
             "mask_mod = function(b, h, q, kv) return f and q - kv < n end }");
  assert_int_equal(t.spec.input[2].num_axes, 0);
  assert_string_equal(show(&t, t.spec.score_mod), "(mul score (s 0))");
  assert_string_equal(show(&t, t.spec.block_mask), "(and (f 0) (lt (sub q_idx kv_idx) (n 0)))");
  trace_close(&t);
}

/* Bit operations that equal a product, quotient or remainder are traced as such, because mask analysis uses
 * these. */
static void test_bits(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"q & 63", "(mod q_idx 64)"},
      {"63.0 & q", "(mod q_idx 64)"},
      {"q & 62", "(band q_idx 62)"},
      {"q & -64", "(band q_idx -64)"},
      {"q & 0", "0"},
      {"q & 0x7fffffff", "(band q_idx 2147483647)"},
      {"q >> 3", "(floordiv q_idx 8)"},
      {"(q + kv // 2) >> 3", "(floordiv (add q_idx (floordiv kv_idx 2)) 8)"},
      {"(q - kv) >> 3", "(shr (sub q_idx kv_idx) 3)"},
      {"(q - kv) >> 3 & 1", "(shr_band (sub q_idx kv_idx) 3 1)"},
      {"6 & (q - kv) >> q", "(shr_band (sub q_idx kv_idx) q_idx 6)"},
      {"q << 3", "(mul q_idx 8)"},
      {"q << -3", "(floordiv q_idx 8)"},
      {"q >> -3", "(mul q_idx 8)"},
      {"q << 64", "0"},
      {"q >> 64", "0"},
      {"q << 40", "(shl q_idx 40)"},
      {"q >> 0", "q_idx"},
      {"1 << kv", "(shl 1 kv_idx)"},
      {"q >> kv", "(shr q_idx kv_idx)"},
      {"q ~ kv", "(bxor q_idx kv_idx)"},
      {"q ~ q", "0"},
      {"q | 4", "(bor q_idx 4)"},
      {"~q", "(sub -1 q_idx)"},
      {"~~q", "(sub -1 (sub -1 q_idx))"},
      {"3 << 1", "6"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char source[200];
    traced_file t;
    snprintf(source, sizeof source,
             "return attention { score_mod = function(s, b, h, q, kv) return s + t[%s] end, "
             "inputs = { t = { axes = {9} } } }",
             cases[i][0]);
    trace_text(&t, source);
    const char *got = show(&t, t.spec.score_mod);
    char want[200];
    snprintf(want, sizeof want, "(add score (t %s))", cases[i][1]);
    assert_string_equal(got, want);
    trace_close(&t);
  }
}

/* Inputs of every integer type are integers. A right shift of a non-negative one is a quotient. */
static void test_integer_inputs(void **state) {
  (void)state;
  static const char *const types[] = {"i32", "int64", "int16", "uint8"};
  for (int i = 0; i < 4; i++) {
    char source[200];
    traced_file t;
    snprintf(source, sizeof source,
             "return attention { inputs = { t = { axes = {'kv'}, dtype = '%s' } }, "
             "mask_mod = function(b, h, q, kv) return t[kv] >> 4 <= q end }",
             types[i]);
    trace_text(&t, source);
    assert_string_equal(show(&t, t.spec.block_mask),
                        i == 3 ? "(le (floordiv (t kv_idx) 16) q_idx)" : "(le (shr (t kv_idx) 4) q_idx)");
    trace_close(&t);
  }
}

static void test_input_mods(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { inputs = { gate = { axes = {'hkv', 'channel'} } },\n"
             "  query_mod = function(x, b, h, pos, d) return x * pos end,\n"
             "  key_mod = function(x, b, h, pos, d) return where(d < 2, x, -x) end,\n"
             "  value_mod = function(x, b, h, pos, d) return x * gate[{h, d}] end }");
  assert_string_equal(show(&t, t.spec.query_mod), "(mul x (to_real pos))");
  assert_string_equal(show(&t, t.spec.key_mod), "(select (lt d 2) x (neg x))");
  assert_string_equal(show(&t, t.spec.value_mod), "(mul x (gate h d))");
  trace_close(&t);
}

/* Every node records its line of the spec. */
static void test_lines(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "local function helper(x)\n"
             "  return exp(x)\n"
             "end\n"
             "return attention {\n"
             "  score_mod = function(score, b, h, q_idx, kv_idx)\n"
             "    local bias = helper(score)\n"
             "\n"
             "    return bias *\n"
             "      cos(score)\n"
             "  end,\n"
             "}\n");
  const ir_node *mul = ir_get(t.spec.g, t.spec.score_mod);
  assert_int_equal(mul->op, IR_MUL);
  assert_int_equal(mul->line, 8);
  for (int i = 0; i < 2; i++) {
    const ir_node *n = ir_get(t.spec.g, mul->arg[i]);
    assert_int_equal(n->line, n->op == IR_EXP ? 2 : 9);
  }
  trace_close(&t);
}

/* Text that resembles == or a table but is neither. */
static void test_source_is_read_by_tokens(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "-- a == b\n--[[ c ~= d ]]\n--[==[ e == f\n ]] ]==]\n"
             "local s = 'x == y' .. \"{\" .. [[ z ~= w { ]] .. '\\'=='\n"
             "if s == 'a' or nil == s or s ~= nil or (s == true) then s = 'b' end\n"
             "local t = { { 1, { 2 } }, ['a'] = 3, f = function(x) return { x } end }\n"
             "local n = #t + t[1][2][1] + t.f{5}[1][1] + #t.f(7) + 0x1p4 + 1e-2 + select('#', table.unpack{1, 2})\n"
             "return attention{ name = (\"n%d\"):format(n // 1), scalars={c=1} }");
  assert_string_equal(t.spec.name, "n27"); /* 1 + 2 + 5 + 1 + 16 + 0.01 + 2 */
  trace_close(&t);
  trace_text(&t,
             "\xef\xbb\xbf"
             "return attention {}");
  trace_close(&t);
  expect_error("local a = 1\nlocal b = a == 2",
               "test.lua:2: == cannot be traced (beside a number it is always false); write eq(a, 2)");
  expect_error("local a = --[[\n\n]] 1 == 2",
               "test.lua:3: == cannot be traced (beside a number it is always false); write eq(1, 2)");
}

/* Follows the advice of the message about too many branches. */
static void test_many_spans(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { block_mask = function(b, h, q_idx, kv_idx)\n"
             "  local keep = kv_idx <= q_idx\n"
             "  for i = 1, 20 do keep = keep or min(q_idx - 100 * i, 100 * i + 9 - kv_idx) >= 0 end\n"
             "  return keep\n"
             "end }");
  assert_true(ir_uses(t.spec.g, t.spec.block_mask, VAR_KV));
  trace_close(&t);
}

/* The file runs inside a function next to one of luattn's helpers, and can access neither. */
static void test_file_is_alone(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "local n, attention = select('#', ...), attention\n"
             "local _ENV = { tables = { n, { 5 } } }\n"
             "local function last(t) return t[#t] end\n"
             "do return attention { name = 'n' .. n .. last(last{tables})[1] } end -- the end");
  assert_string_equal(t.spec.name, "n05");
  trace_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_functions),
      cmocka_unit_test(test_called_ops),
      cmocka_unit_test(test_lua_forms_stay),
      cmocka_unit_test(test_gathers),
      cmocka_unit_test(test_fewer_parameters),
      cmocka_unit_test(test_globals),
      cmocka_unit_test(test_dtype_names),
      cmocka_unit_test(test_masks),
      cmocka_unit_test(test_rounding),
      cmocka_unit_test(test_questions),
      cmocka_unit_test(test_implied_questions),
      cmocka_unit_test(test_joins),
      cmocka_unit_test(test_declarations),
      cmocka_unit_test(test_numbers_on_device),
      cmocka_unit_test(test_bits),
      cmocka_unit_test(test_integer_inputs),
      cmocka_unit_test(test_input_mods),
      cmocka_unit_test(test_lines),
      cmocka_unit_test(test_source_is_read_by_tokens),
      cmocka_unit_test(test_file_is_alone),
      cmocka_unit_test(test_many_spans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
