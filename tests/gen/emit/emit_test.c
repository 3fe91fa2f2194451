/* emit_test.c: compares the generated spec.cuh with golden files, for three examples and for a spec whose hooks
 * are emitted as function calls; tests choices that the contract leaves to the generator.
 * LUATTN_UPDATE_GOLDEN=1 rewrites the golden files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/compiler.h"
#include "tests/gen/emit/emitted.h"
#include "tests/support/drawn.h"

static char *read_file(const char *path) {
  FILE *f = fopen(path, "rb");
  if (f == NULL) return NULL;
  char *text = calloc(1, 1 << 20);
  assert_non_null(text);
  assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
  fclose(f);
  return text;
}

static void golden(const char *folder, const char *name, const char *stage, const luattn_target *t,
                   const char *suffix) {
  char example[512], path[512];
  const bool is_spec = strcmp(stage, "spec") == 0;
  snprintf(example, sizeof example, "%s/%s.lua", folder, name);
  snprintf(path, sizeof path, "%s/%s%s.%s", GOLDEN, name, suffix, is_spec ? "cuh" : stage);
  char *text = emit_file(example, t, stage);
  const char *update = getenv("LUATTN_UPDATE_GOLDEN");
  if (update != NULL && strcmp(update, "1") == 0) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
  }
  char *expected = read_file(path);
  if (expected == NULL) fail_msg("%s is missing; run with LUATTN_UPDATE_GOLDEN=1", path);
  assert_string_equal(text, expected);
  free(expected);
  luattn_text_free(text);
}

static void test_golden(void **state) {
  (void)state;
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  golden(EXAMPLES, "causal", "spec", &forward, "_fwd");
  golden(EXAMPLES, "causal", "spec", &target, "_bwd");
  golden(EXAMPLES, "alibi", "spec", &target, "_bwd");
  luattn_target large[] = {forward, target};
  large[0].large_scores = large[1].large_scores = 1;
  golden(EXAMPLES, "attention_sink", "spec", &large[0], "_large_fwd");
  golden(EXAMPLES, "attention_sink", "spec", &large[1], "_large_bwd");
  golden(EXAMPLES, "alibi", "spec", &hopper, "_fwd_sm90");
  golden(EXAMPLES, "gemma2", "spec", &forward, "_fwd");
  golden(EXAMPLES, "gemma2", "spec", &target, "_bwd");
  golden(HERE "/specs", "called", "spec", &target, "");
  golden(HERE "/specs", "called", "plan", &target, "");
}

/* For a feature that the pass or the spec lacks, the generator prints only a base class of Spec. */
static void test_absence(void **state) {
  (void)state;
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  static const char *const plain = "return attention { name = 'a' }";
  static const char *const mod =
      "return attention { name = 'a', block_mask = causal(),\n"
      "  key_mod = function(k, b, h, i, d) return 2 * k end }";
  check_pass(&forward, plain, LIST("struct Spec : EveryKv, Score, Online, NoGrad, NoMods {};"),
             LIST("keep(", "_class(", "_range(", "add_", "prepare(", "flush(", "_mod("));
  check_pass(&target, plain, LIST("struct Spec : EveryKv, Score, Online, Grad, NoMods {};", "NoOnline", "ScoreInGrad"),
             LIST("Real score(", "State init(", "Real lse(", "_mod("));
  check_pass(&forward, mod, LIST("struct Spec : Mask, Score, Online, NoGrad, Mods {};", "NoQueryMod", "Real key_mod("),
             LIST("key_mod_grad(", "query_mod(", "value_mod(", "Range q_range(", "Range column_"));
  check_pass(&target, mod, LIST("Real key_mod(", "Real key_mod_grad(", "Range q_range("),
             LIST("query_mod_grad(", "Range row_"));
}

/* Evaluated masks: flags that are read by lines, and masks that are the same for runs of positions. */
static void test_partial_tiles(void **state) {
  (void)state;
  luattn_target forward = target, backward = target;
  forward.pass = LUATTN_FORWARD;
  forward.arch = backward.arch = 90, forward.dtype = backward.dtype = LUATTN_BF16;
#define INPUTS                                                                                             \
  "return attention { name = 'a', inputs = { on = { axes = {'h', 'q', 'kv'}, dtype = 'bool' }, real = { "  \
  "axes = {'b', "                                                                                          \
  "'kv'}, dtype = 'bool' }, adj = { axes = {'n', 'm'}, dtype = 'bool' }, cell = { axes = {'n2'}, dtype = " \
  "'i32' } },\n"                                                                                           \
  "  mask_mod = function(b, h, q, kv) return "
  static const char *const flags = INPUTS "on[{h, q, kv}] end }",
                           *const both = INPUTS "kv <= q + 40 and q % 3 < 2 and on[{h, q, kv}] end }",
                           *const causal = INPUTS "kv <= q and on[{h, q, kv}] end }",
                           *const twice = INPUTS "kv <= q and real[{b, kv}] and on[{h, q, kv}] end }",
                           *const keys = INPUTS "real[{b, kv}] end }",
                           *const cells = INPUTS "adj[{cell[q], cell[kv]}] end }",
                           *const shifted = INPUTS "on[{h, q, kv - 1}] or on[{h, q, kv}] end }",
                           *const mixed = INPUTS "adj[{cell[q], cell[kv]}] or kv <= q end }";
  check_pass(&forward, flags,
             LIST("has_flag_line = true", "has_keep_beside = false", "flag_input = 2", "flag_axes = 3",
                  "return flags_at(p.inputs.input[2], s.h, q);", "NoRuns"),
             LIST("bool keep_beside("));
  check_pass(&backward, flags, LIST("has_flag_line = true"), LIST("bool keep_beside("));
  check_pass(&forward, both, LIST("has_flag_line = true", "has_keep_beside = true", "bool keep_beside("),
             LIST("NoFlagLine"));
  check_pass(&forward, causal, LIST("flag_is_data_part = true"), LIST("NoFlagLine"));
  check_pass(&forward, twice, LIST("flag_is_data_part = false"), LIST("NoFlagLine"));
  /* Backward has the flags of its keys in Col. */
  check_pass(&forward, keys, LIST("return flags_at(p.inputs.input[3], s.b);"), LIST("NoFlagLine"));
  check_pass(&backward, keys, LIST("NoFlagLine"), LIST("u64 flag_line("));
  check_pass(&forward, cells,
             LIST("NoFlagLine", "keep_by_column = true", "keep_by_row = false", "return a.cell_0 == b.cell_0;"),
             LIST("same_row("));
  check_pass(&backward, cells, LIST("keep_by_column = false", "keep_by_row = true", "bool same_row("),
             LIST("same_column("));
  check_pass(&forward, shifted, LIST("NoFlagLine", "NoRuns"), LIST("u64 flag_line("));
  check_pass(&forward, mixed, LIST("NoFlagLine", "NoRuns"), LIST("same_column("));
  char *why = emit_text(flags, &forward, "plan");
  assert_non_null(strstr(why, "flags of 'on' are read 16 at a time"));
  luattn_text_free(why);
  why = emit_text(cells, &backward, "plan");
  assert_non_null(strstr(why, "asked once for each run of queries that are the same to it"));
  luattn_text_free(why);
  why = emit_text(mixed, &forward, "plan");
  assert_null(strstr(why, "kept in part"));
  luattn_text_free(why);
  forward.dtype = LUATTN_F64; /* simt */
  check_pass(&forward, flags, LIST("NoFlagLine", "NoRuns"), LIST("u64 flag_line("));
#undef INPUTS
}

/* Bounds of large scores are too coarse to skip a tile by. */
static void test_large_scores_skip_nothing(void **state) {
  (void)state;
  luattn_target t = target;
  t.pass = LUATTN_FORWARD, t.arch = 90, t.dtype = LUATTN_BF16;
  static const char *const alibi = "return attention { name = 'a', score_mod = alibi(), block_mask = causal() }";
  check_pass(&t, alibi, LIST("score_bounds("), LIST("NoScoreBounds"));
  t.large_scores = 1;
  check_pass(&t, alibi, LIST("NoScoreBounds", "op_difference("), LIST("score_bounds("));
}

/* An lse that is no maximum plus a number, or that backward reads otherwise than in exp(score - lse). */
static void test_large_scores_refused(void **state) {
  (void)state;
  static const char own[] =
      "return attention { name = 'a', online_func = { name = 'own', online_rowscales = { m = -1e37, l = 0 },\n"
      "  final_rowscales = { 'lse' }, online_fwd = function(s, r)\n"
      "    local m = max(r.m, reduce_max(s)); local o, p = exp(r.m - m), exp(s - m)\n"
      "    return p, { m = m, l = r.l * o + reduce_sum(p) }, o end,\n"
      "  online_fwd_epilogue = function(o, r) return o / r.l, { lse = %s } end,\n"
      "  forward = function(s, r) return %s end } }";
  static const struct {
    const char *lse, *forward, *message;
  } rows[] = {
      {"log(r.l * exp(r.m))", "exp(s - r.lse)",
       "a: online_func 'own': large_scores: lse is no sum of a running maximum and another number, as in log(l) + m; "
       "leave large_scores 0, or write it so"},
      {"log(r.l) + r.m", "(function(e) return e * e end)(exp(0.5 * s - 0.5 * r.lse))",
       "a: online_func 'own': large_scores: backward reads lse otherwise than in exp(score - lse); leave large_scores "
       "0, or write it so"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char spec_text[1024];
    luattn_spec *spec;
    luattn_error err;
    char *text = NULL;
    luattn_target t = target;
    t.large_scores = 1;
    snprintf(spec_text, sizeof spec_text, own, rows[i].lse, rows[i].forward);
    if (luattn_spec_load_text("a", spec_text, strlen(spec_text), NULL, &spec, &err) != LUATTN_OK)
      fail_msg("%s", err.message);
    assert_int_equal(luattn_emit(spec, &t, "spec", &text, &err), LUATTN_UNSUPPORTED);
    assert_string_equal(err.message, rows[i].message);
    luattn_spec_free(spec);
  }
  luattn_spec *spec;
  luattn_error err;
  char *text = NULL;
  luattn_target t = target;
  t.large_scores = 2;
  assert_int_equal(luattn_spec_load(EXAMPLES "/causal.lua", NULL, &spec, &err), LUATTN_OK);
  assert_int_equal(luattn_emit(spec, &t, "plan", &text, &err), LUATTN_INVALID);
  assert_string_equal(err.message, "target: large_scores: is 2, expected 0 or 1");
  luattn_spec_free(spec);
}

/* The folder of a spec must not affect the cache key. */
static void test_path_does_not_matter(void **state) {
  (void)state;
  char *a = emit_file(EXAMPLES "/causal.lua", &target, "spec"),
       *b = emit_file(EXAMPLES "/../examples/causal.lua", &target, "spec");
  assert_string_equal(a, b);
  luattn_text_free(a);
  luattn_text_free(b);
}

/* Plain softmax uses the unscaled QK^T as the score, also with a score_mod that only adds; with others it
 * does not. */
static void test_unit_of_the_score(void **state) {
  (void)state;
  const char *divided = "A score is handed on divided by the scale";
  check("return attention { name = 'a' }", LIST(divided, "return dot;"), NULL);
  check("return attention { name = 'a', score_mod = function(s, b, h, q, kv) return s + 0.5 * (kv - q) end }",
        LIST(divided), NULL);
  check("return attention { name = 'a', score_mod = function(s, b, h, q, kv) return 2 * s end }", NULL, LIST(divided));
  check("return attention { name = 'a', score_mod = function(s, b, h, q, kv) return s + floor(s) end }", NULL,
        LIST(divided));
}

/* A softmax computes P before dP, from the row's lse, unless ds needs the score's derivative as
 * well. */
static void test_rows_of_prob(void **state) {
  (void)state;
  check("return attention { name = 'a' }", LIST("prob_rows = 2;", "bwd.x[1] + t1"), NULL);
  check("return attention { name = 'a', score_mod = function(s, b, h, q, kv) return 8 * tanh(s / 8) end }",
        LIST("prob_rows = -1;"), NULL);
}

/* A function of the score alone absorbs the factors of its argument. */
static void test_factors_of_the_score(void **state) {
  (void)state;
  const char *text = "A score is handed on with the factors of the online function";
  check(
      "return attention { name = 'a', inputs = { x = { axes = {'h'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + x[h] end, online_func = sigmoid_attention }",
      LIST(text, "dot * head.", "op_sigmoid2_alternating(score, element)", "mask_by_inf = true;"), NULL);
  check("return attention { name = 'a' }", NULL, LIST(text));
}

/* A gather by distance adds a constant to a shared base. Only a bf16 forward uses the rough tanh. */
static void test_spellings_for_elements(void **state) {
  (void)state;
  const char *table =
      "return attention { name = 'a', inputs = { x = { axes = {'h', 'n'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + x[{h, q - kv + 7}] end }";
  const char *cap = "return attention { name = 'a', score_mod = softcap(50) }";
  luattn_target forward = target, half = target;
  forward.pass = half.pass = LUATTN_FORWARD;
  half.dtype = LUATTN_F16;
  check(table, LIST("q.base - kv.base", "q.offset - kv.offset", "op_sum_apart("), NULL);
  check_for(&forward, cap, LIST("op_rough_tanh("), NULL);
  check_pass(&target, cap, LIST("op_sigmoid2("), LIST("op_rough_tanh("));
  check_for(&half, cap, LIST("op_sigmoid2("), LIST("op_rough_tanh("));
}

/* Expressions that are constant per head, row or column are not computed per element. */
static void test_hoisting(void **state) {
  (void)state;
  const char *source =
      "return attention { name = 'a', inputs = { u = { axes = {'q'} }, w = { axes = {'kv'} }, z = { axes = "
      "{'h'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s * tanh(z[h]) + exp(u[q]) * s + sin(w[kv]) * s end }";
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  char *text = emit_text(source, &forward, "spec");
  const char *score = strstr(text, "Real score("), *end = strstr(text, "struct Online");
  assert_true(score != NULL && end != NULL);
  const char *const moved[] = {"op_tanh", "op_exp", "op_sin", "load_input"};
  for (int i = 0; i < 4; i++) {
    const char *at = strstr(text, moved[i]);
    assert_true(at != NULL && at < score); /* in head, row or col */
    at = strstr(score, moved[i]);
    assert_true(at == NULL || at > end);
  }
  luattn_text_free(text);
}

/* Factors and conditions of an element's gradient that are constant per head move to flush. */
static void test_uniform_factors(void **state) {
  (void)state;
  luattn_target sm80 = hopper;
  sm80.arch = 80, sm80.pass = LUATTN_BACKWARD;
  check_for(
      &sm80,
      "return attention { name = 'a', inputs = { t = { axes = {'h'}, grad = true } },\n"
      "  score_mod = function(s, b, h, q, kv) return s * min(exp(t[h]), 100) end }",
      LIST("= dot * t5;", "acc.x[0] += t7;", "* g;", "? t5 : Real(0);", "add_input_grad(p.inputs.input[0], t6, s.h)"),
      LIST("acc.x[1]", "grad_adds_to_memory = true"));
  /* the two terms nearly cancel, and separate sums would lose their difference */
  check_for(&sm80,
            "return attention { name = 'a', scalars = { cap = 20 },\n"
            "  score_mod = function(s, b, h, q, kv) return cap * tanh(s / cap) end }",
            LIST("= t14 - t16;", "acc.x[0] += t17;", "add_scalar_grad(p, 0, g)"), LIST("acc.x[1]"));
  /* one element per pair, so a block sums nothing */
  check_for(&sm80,
            "return attention { name = 'a', inputs = { w = { axes = {'q', 'kv'}, grad = true } },\n"
            "  score_mod = function(s, b, h, q, kv) return s + tanh(s * w[{q, kv}]) end }",
            LIST("head.scale_0 * t19;", "grad_adds_to_memory = true"), LIST("acc.x[0] +="));
}

static bool calls_hooks(const char *path, luattn_pass pass, luattn_dtype dtype) {
  luattn_target t = target;
  t.pass = pass;
  t.dtype = dtype;
  char *text = emit_file(path, &t, "spec"), *why = emit_file(path, &t, "plan");
  const bool calls = strstr(text, "LUATTN_OUTLINED") != NULL;
  assert_int_equal(strstr(why, "out of line") != NULL, calls); /* the plan reports calls */
  luattn_text_free(text);
  luattn_text_free(why);
  return calls;
}

/* Small hooks stay inlined in every type. */
static void test_small_hooks_are_inlined(void **state) {
  (void)state;
  static const char *const small[] = {"causal", "alibi", "gemma2", "sigmoid", "t5_relative_bias", "cosine"};
  for (int i = 0; i < 6; i++)
    for (int dtype = 0; dtype < 4; dtype++)
      for (int pass = 0; pass < 2; pass++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.lua", EXAMPLES, small[i]);
        assert_false(calls_hooks(path, (luattn_pass)pass, (luattn_dtype)dtype));
      }
  for (int dtype = 0; dtype < 4; dtype++)
    for (int pass = 0; pass < 2; pass++)
      assert_true(calls_hooks(HERE "/specs/called.lua", (luattn_pass)pass, (luattn_dtype)dtype));
}

/* A product of a distance is computed after the subtraction (gen/lower/multiply_add.c). */
static void test_distance_is_not_distributed(void **state) {
  (void)state;
  check(
      "return attention { name = 'a', inputs = { z = { axes = {'h'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + z[h] * (kv - q) end }",
      LIST("kv.base - q.base;", "kv.offset - q.offset;", "Real(t1) + Real(t2);", "t3 * head.mul_1;"), NULL);
  check(
      "return attention { name = 'a', inputs = { z = { axes = {'h'} } },\n"
      "  score_mod = function(s, b, h, q, kv) return s + z[h] * (1.0 * kv - 1.0 * q) end }",
      LIST("Real(kv.base) + Real(kv.offset);", "t1 - row.q_idx_0;", "t2 * head.mul_1;"), NULL);
}

/* A term that is linear in the key position needs no number per column; other functions of it do. */
static void test_linear_in_the_position(void **state) {
  (void)state;
  static const char *const linear[] = {"0.5 * kv",
                                       "kv / kv_len",
                                       "z[h] * (3 - 2 * kv) / 7",
                                       "0.5 * kv - 0.25 * (kv + q)",
                                       "abs(q + kv_len - q_len - kv)",
                                       "max(kv - q, q - 3 * kv)"};
  for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
    char source[512];
    snprintf(source, sizeof source,
             "return attention { name = 'a', inputs = { z = { axes = {'h'} } },\n"
             "  score_mod = function(s, b, h, q, kv) return s + %s end }",
             linear[i]);
    check(source, LIST("kv.base", "kv.offset", "struct Col {};"), LIST("Real(kv)", "Real(t1);"));
  }
  check("return attention { name = 'a', score_mod = function(s, b, h, q, kv) return s + exp(-0.1 * kv) end }",
        LIST("Real(kv)", "+ col."), LIST("kv.base"));
}

/* A term that is constant per row and tile is removed from the sm90 forward's score. This includes abs of a
 * distance if the mask implies that the distance is not negative. */
static void test_shift(void **state) {
  (void)state;
  static const struct {
    const char *mods;
    bool shifted;
  } cases[] = {{"score_mod = function(s, b, h, q, kv) return s + 0.5 * (kv - q) end", true},
               {"score_mod = function(s, b, h, q, kv) return 8 * tanh(s / 8) - 0.5 * (q + kv) end", true},
               {"score_mod = function(s, b, h, q, kv) return s - abs(kv - q) end", false},
               {"score_mod = function(s, b, h, q, kv) return s - abs(kv - q) end, block_mask = causal()", true},
               {"score_mod = function(s, b, h, q, kv) return s - abs(q - kv + 1) end, block_mask = causal()", true},
               {"score_mod = function(s, b, h, q, kv) return s - abs(q - kv - 1) end, block_mask = causal()", false},
               {"score_mod = function(s, b, h, q, kv) return s - abs(q - kv - 1) end,\n"
                "block_mask = function(b, h, q, kv) return b >= 0 and kv < q end",
                true},
               {"inputs = { w = { axes = {'kv'} } },\n"
                "score_mod = function(s, b, h, q, kv) return s + w[kv] * (kv - q) end",
                false},
               {"score_mod = function(s, b, h, q, kv) return s * (kv - q) end", false}};
  const char *const score = "Real(kv.offset)", *const yes = "has_row_shift = true;",
                    *const no = "has_row_shift = false;";
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char source[512];
    luattn_target sm80 = hopper, backward = hopper;
    sm80.arch = 80;
    backward.pass = LUATTN_BACKWARD;
    snprintf(source, sizeof source, "return attention { name = 'a', %s }", cases[i].mods);
    if (cases[i].shifted)
      check_for(&hopper, source, LIST(yes, "i == 0 ? true : i == 1 ? false", "row.shift"), LIST(no));
    else
      check_for(&hopper, source, LIST(no), LIST("row.shift", score));
    check_for(&sm80, source, LIST(no), LIST("row.shift", score));
    check_pass(&backward, source, LIST(no), LIST("row.shift", score));
  }
}

/* The sm90 family defines the widths of its products: in forward 128 columns of S, 64 or 40 of O; in backward
 * 128 queries and 64 channels, or 64 for all above head dim 128. */
static void test_widths(void **state) {
  (void)state;
  static const char *const source = "return attention { name = 'a' }";
  luattn_target narrow = hopper, backward = hopper, wide = hopper;
  narrow.head_dim_v = 40;
  backward.pass = wide.pass = LUATTN_BACKWARD;
  wide.head_dim = wide.head_dim_v = 256;
  char *text[] = {emit_text(source, &hopper, "config"), emit_text(source, &narrow, "config"),
                  emit_text(source, &backward, "config"), emit_text(source, &wide, "config")};
  assert_non_null(strstr(text[0], "#define LUATTN_WGMMA_WIDTHS 0x80\n#define LUATTN_OUT_WIDTHS 0x8\n"));
  assert_non_null(strstr(text[1], "#define LUATTN_WGMMA_WIDTHS 0x80\n#define LUATTN_OUT_WIDTHS 0x4\n"));
  assert_non_null(strstr(text[2], "#define LUATTN_WGMMA_WIDTHS 0x88\n"));
  assert_non_null(strstr(text[3], "#define LUATTN_WGMMA_WIDTHS 0x8\n"));
  for (int i = 0; i < 4; i++) luattn_text_free(text[i]);
}

static void test_stages(void **state) {
  (void)state;
  const char *const stages[] = {"ir", "grad", "mask", "plan", "spec", "config"};
  for (int i = 0; i < 6; i++) {
    char *text = emit_file(EXAMPLES "/gemma2.lua", &target, stages[i]);
    assert_true(strlen(text) > 20);
    luattn_text_free(text);
  }
  luattn_spec *spec;
  luattn_error err;
  char *text;
  assert_int_equal(luattn_spec_load(EXAMPLES "/gemma2.lua", NULL, &spec, &err), LUATTN_OK);
  assert_int_equal(luattn_emit(spec, &target, "sass", &text, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "'sass'"));
  luattn_spec_free(spec);
}

/* ---- out of memory: loading, then emitting, has room for n allocations and for no more ---- */

typedef struct budget {
  long left;
} budget;

static void *limited(void *user, void *ptr, size_t old_size, size_t new_size) {
  budget *b = user;
  (void)old_size;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  return b->left-- > 0 ? realloc(ptr, new_size) : NULL;
}

enum { PLENTY = 1 << 30, MOST = 400 /* allocations of loading that a tree draws */ };

static luattn_status load_within(const char *source, budget *b, luattn_spec **spec) {
  const luattn_allocator allocator = {limited, b};
  luattn_error err;
  *spec = NULL;
  const luattn_status status = luattn_spec_load_text("spec.lua", source, strlen(source), &allocator, spec, &err);
  if (status != LUATTN_OK && status != LUATTN_NO_MEMORY) fail_msg("loading: %s", err.message);
  return status;
}

static void load_without_memory(const char *name, const char *source) {
  luattn_spec *spec;
  budget all = {PLENTY};
  assert_int_equal(load_within(source, &all, &spec), LUATTN_OK);
  luattn_spec_free(spec);
  const long total = PLENTY - all.left;
  assert_true(total > 1000);
  const int parts = drawn_parts(total, MOST, 1);
  for (long n = 0; n < total; n++) {
    if (!drawn(name, (int)(n % parts), parts)) continue;
    budget b = {n};
    const luattn_status status = load_within(source, &b, &spec);
    if (n < total - 16)
      assert_int_equal(status, LUATTN_NO_MEMORY); /* the number varies slightly with Lua's hash seed */
    assert_true((spec == NULL) == (status == LUATTN_NO_MEMORY));
    luattn_spec_free(spec);
  }
}

/* Each number of allocations up to what is enough. The spec stays as it was where emitting fails. */
static void emit_without_memory(const char *source, const char *stage) {
  luattn_spec *spec;
  budget b = {PLENTY};
  assert_int_equal(load_within(source, &b, &spec), LUATTN_OK);
  long n = 0;
  for (luattn_status status = LUATTN_NO_MEMORY; status != LUATTN_OK; n++) {
    luattn_error err;
    char *text = NULL;
    b.left = n;
    status = luattn_emit(spec, &target, stage, &text, &err);
    if (status != LUATTN_OK && status != LUATTN_NO_MEMORY) fail_msg("%s, allocation %ld: %s", stage, n, err.message);
    luattn_text_free(text);
    assert_true(n < 100000);
  }
  print_message("%s: %ld allocations\n", stage, n);
  assert_true(n > 3);
  luattn_spec_free(spec);
}

static void out_of_memory(const char *path) {
  char *source = read_file(path);
  load_without_memory(strrchr(path, '/'), source);
  emit_without_memory(source, "spec");
  emit_without_memory(source, "plan");
  emit_without_memory(source, "grad");
  free(source);
}

static void test_out_of_memory(void **state) {
  (void)state;
  out_of_memory(EXAMPLES "/gemma2.lua");
  out_of_memory(HERE "/specs/positions.lua");
}

/* A hook with many long functions calls one copy of each. A few long functions, and short ones, stay
 * inlined. */
static void test_long_functions(void **state) {
  (void)state;
  static const char chain[] =
      "return attention { score_mod = function(x, b, h, q, kv) for i = 1, %d do x = %s(x * 1.25) end return "
      "x end }";
  char source[256];
  snprintf(source, sizeof source, chain, 64, "sin");
  char *text = emit_text(source, &hopper, "spec");
  const char *made = strstr(text, "LUATTN_OUTLINED Real op_sin_called(Real x) { return op_sin(x); }");
  assert_non_null(made);
  assert_null(strstr(made + 70, "= op_sin("));
  assert_non_null(strstr(made + 70, "= op_sin_called("));
  luattn_text_free(text);
  snprintf(source, sizeof source, chain, 12, "sin");
  text = emit_text(source, &hopper, "spec");
  assert_null(strstr(text, "_called("));
  luattn_text_free(text);
  snprintf(source, sizeof source, chain, 1000, "tanh");
  text = emit_text(source, &hopper, "spec");
  assert_null(strstr(text, "_called("));
  luattn_text_free(text);
}

/* Long chains of conditions are assigned instead of initialised, so that NVRTC's front end does not evaluate
 * them. */
static void test_long_initializers(void **state) {
  (void)state;
  static const char chain[] =
      "return attention { score_mod = function(x, b, h, q, kv) for i = 1, %d do x = x - floor(x * 1.25) end "
      "return x end }";
  char source[256];
  snprintf(source, sizeof source, chain, 24);
  char *text = emit_text(source, &target, "spec");
  assert_non_null(strstr(text, "    int t"));
  assert_non_null(strstr(text, " = op_floor_int("));
  luattn_text_free(text);
  snprintf(source, sizeof source, chain, 4);
  text = emit_text(source, &target, "spec");
  assert_null(strstr(text, "    int t"));
  luattn_text_free(text);
}

/* Merges of parts of a row: the spec's text without them is the same; a softmax without a running maximum has no
 * factors; a function that does not merge says so. */
static void test_merges(void **state) {
  (void)state;
  luattn_target forward = target;
  forward.pass = LUATTN_FORWARD;
  const char *root = /* of a sum of squares: no merge is known */
      "return attention { name = 'a', online_func = { name = 'root', online_rowscales = { n = 0 }, online_fwd = "
      "function(scores, rowscales) local n = sqrt(rowscales.n * rowscales.n + reduce_sum(scores * scores)) return "
      "scores, "
      "{ n = n }, 1 end, online_fwd_epilogue = function(o, rowscales) return o / rowscales.n, {} end } }";
  const struct {
    const char *source, *has, *has_not;
  } cases[] = {{"return attention { name = 'a' }", "const Real t5 = op_exp2(t4);", "NoMerge"},
               {"return attention { name = 'a', score_mod = softcap(10) }",
                "static constexpr bool has_merge = true, merge_weighs = false;\n", "op_max("},
               {root, "struct Spec : EveryKv, Score, Online, NoGrad, NoMods, NoMerge {};\n", "struct Merge"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *with = emit_text(cases[i].source, &forward, "merge_spec"),
         *without = emit_text(cases[i].source, &forward, "spec");
    char *merge = strstr(with, "\nstruct Merge"), *spec = strstr(with, "\nstruct Spec");
    assert_non_null(strstr(merge != NULL ? merge : spec, cases[i].has));
    assert_null(strstr(merge != NULL ? merge : spec, cases[i].has_not));
    assert_null(strstr(without, "Merge"));
    assert_memory_equal(with, without, (size_t)((merge != NULL ? merge : spec) - with));
    luattn_text_free(with);
    luattn_text_free(without);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_merges),
      cmocka_unit_test(test_golden),
      cmocka_unit_test(test_absence),
      cmocka_unit_test(test_large_scores_refused),
      cmocka_unit_test(test_partial_tiles),
      cmocka_unit_test(test_large_scores_skip_nothing),
      cmocka_unit_test(test_path_does_not_matter),
      cmocka_unit_test(test_unit_of_the_score),
      cmocka_unit_test(test_rows_of_prob),
      cmocka_unit_test(test_factors_of_the_score),
      cmocka_unit_test(test_spellings_for_elements),
      cmocka_unit_test(test_hoisting),
      cmocka_unit_test(test_uniform_factors),
      cmocka_unit_test(test_small_hooks_are_inlined),
      cmocka_unit_test(test_distance_is_not_distributed),
      cmocka_unit_test(test_linear_in_the_position),
      cmocka_unit_test(test_shift),
      cmocka_unit_test(test_widths),
      cmocka_unit_test(test_stages),
      cmocka_unit_test(test_long_functions),
      cmocka_unit_test(test_long_initializers),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
