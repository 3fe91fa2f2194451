/* facts_test.c: tests what images of luattn_compile say of their kernels, and how these are compiled. */
#include <stdio.h>
#include <string.h>

#include "compiled.h"

/* The image marks inputs for which each score adds to a single element of the gradient. */
static void test_pairs(void **state) {
  (void)state;
  static const struct {
    const char *axes, *element;
    uint32_t pairs;
  } cases[] = {
      {"'h', 'q', 'kv'", "x[{h, q, kv}]", 0x432},
      {"'b', 'kv', 'n', 'h'", "x[{b, kv, q, h}]", 0x2341},
      {"'h', 'q', 'kv'", "x[{h, q, kv}] + x[{h, kv, q}]", 0},
      {"'h', 'q', 'kv'", "x[{h, q, kv - 1}]", 0},
      {"'h', 'n'", "x[{h, q - kv + 100}]", 0},
      {"'h', 'q', 'kv'", "tanh(x[{h, q, kv}] * score)", 0x432},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int arch = 80; arch <= 90; arch += 10) {
      char source[512];
      snprintf(source, sizeof source,
               "return attention { name = 'pairs', inputs = { x = { axes = {%s}, grad = true } }, "
               "score_mod = function(score, b, h, q, kv) return score + %s end }",
               cases[i].axes, cases[i].element);
      luattn_spec *spec = load(source);
      luattn_target target = target_new();
      target.dtype = LUATTN_BF16, target.arch = arch, target.deterministic = 1;
      luattn_image *image = compile(spec, &target, NULL);
      const uint32_t pairs = image_get_manifest(image)->input[0].pairs;
      if (pairs != cases[i].pairs) fail_msg("%s: %x", cases[i].element, pairs);
      luattn_image_free(image);
      luattn_spec_free(spec);
    }
}

/* The image is marked as masked, unless the mask simplifies to true. */
static void test_mask(void **state) {
  (void)state;
  static const struct {
    const char *mask;
    uint32_t has_mask;
  } cases[] = {{"kv <= q", 1}, {"(kv < q + 3) or (kv >= q)", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char source[256];
    snprintf(source, sizeof source,
             "return attention { name = 'mask', block_mask = function(b, h, q, kv) return %s end }", cases[i].mask);
    luattn_spec *spec = load(source);
    luattn_target target = target_new();
    target.pass = LUATTN_FORWARD, target.dtype = LUATTN_BF16, target.arch = 90;
    luattn_image *image = compile(spec, &target, NULL);
    const image_manifest *info = image_get_manifest(image);
    assert_int_equal(info->family, LUATTN_SM90);
    if (info->has_mask != cases[i].has_mask || info->draws_tiles != cases[i].has_mask)
      fail_msg("%s: %u %u", cases[i].mask, info->has_mask, info->draws_tiles);
    luattn_image_free(image);
    luattn_spec_free(spec);
  }
}

/* The block sizes of statistics match the kernels' lookups: one block per tile. */
static void test_stat_blocks(void **state) {
  (void)state;
  static const struct {
    luattn_pass pass;
    int head_dim;
    unsigned of_q, of_kv; /* two blocks of the d256 backward share 128 keys */
  } cases[] = {{LUATTN_FORWARD, 256, 128, 80}, {LUATTN_BACKWARD, 128, 64, 128}, {LUATTN_BACKWARD, 256, 64, 128}};
  luattn_spec *spec = load(
      "return attention { inputs = { doc = { axes = {'n'}, dtype = 'i32' } },\n"
      "  block_mask = function(b, h, q, kv) return eq(doc[q], doc[kv]) end }");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    luattn_target target = target_new();
    target.pass = cases[i].pass, target.arch = 90, target.dtype = LUATTN_BF16;
    target.head_dim = target.head_dim_v = cases[i].head_dim;
    luattn_image *image = compile(spec, &target, NULL);
    const image_manifest *info = image_get_manifest(image);
    assert_int_equal(info->family, LUATTN_SM90);
    assert_int_equal(info->num_stats, 4); /* minima and maxima, and sets, of q and of kv */
    char *text, want[160];
    luattn_error err;
    if (luattn_emit(spec, &target, "spec", &text, &err) != LUATTN_OK) fail_msg("%s", err.message);
    snprintf(want, sizeof want,
             "block_bounds_size(int i) { return i == 0 ? %u : i == 1 ? %u : i == 2 ? %u : i == 3 ? %u : 1; }",
             info->stat[0].block, info->stat[1].block, info->stat[2].block, info->stat[3].block);
    if (strstr(text, want) == NULL) fail_msg("case %zu: not '%s'", i, want);
    for (int k = 0; k < 4; k++) assert_int_equal(info->stat[k].block, k % 2 == 0 ? cases[i].of_q : cases[i].of_kv);
    luattn_text_free(text), luattn_image_free(image);
  }
  luattn_spec_free(spec);
}

/* Checks which NVVM passes are disabled for each kernel. The option is part of the image's key. */
static void test_passes_left_out(void **state) {
  (void)state;
  static const char causal[] = "return attention { block_mask = causal() }",
                    grid[] = "return attention { block_mask = neighborhood { size = {64, 64}, kernel = {7, 7} } }",
                    dilated[] =
                        "return attention { block_mask = function(b, h, q, kv) return eq((q - kv) % 4, 0) end }",
                    distances[] =
                        "return attention { inputs = { t = { axes = {'h', 'n'} } },\n"
                        "  score_mod = function(s, b, h, q, kv) return s + t[{h, q - kv + 99}] end }";
  static const char *const flags[] = {"lacks -full-inst-combine=0", "lacks -disable-InstructionCombiningPass",
                                      "lacks -disable-LICMPass"};
  enum { LESS = 1, COMBINING = 2, HOISTING = 4 };
  static const struct {
    const char *source;
    luattn_pass pass;
    luattn_dtype dtype;
    int arch, head_dim, head_dim_v, left_out;
  } cases[] = {
      {causal, LUATTN_FORWARD, LUATTN_BF16, 90, 64, 64, LESS},
      {causal, LUATTN_FORWARD, LUATTN_F16, 90, 128, 256, LESS},
      {causal, LUATTN_FORWARD, LUATTN_F16, 90, 192, 192, LESS},
      {causal, LUATTN_FORWARD, LUATTN_BF16, 90, 256, 256, COMBINING | HOISTING},
      {grid, LUATTN_FORWARD, LUATTN_BF16, 90, 256, 256, LESS},
      {causal, LUATTN_FORWARD, LUATTN_BF16, 80, 64, 64, COMBINING},
      {causal, LUATTN_FORWARD, LUATTN_BF16, 80, 256, 256, COMBINING},
      {grid, LUATTN_FORWARD, LUATTN_BF16, 80, 64, 64, LESS},
      {dilated, LUATTN_FORWARD, LUATTN_BF16, 90, 256, 256, COMBINING | HOISTING},
      {causal, LUATTN_FORWARD, LUATTN_F32, 90, 64, 64, LESS},
      {causal, LUATTN_FORWARD, LUATTN_F32, 90, 256, 256, LESS | HOISTING},
      {grid, LUATTN_FORWARD, LUATTN_F32, 90, 256, 256, LESS},
      {causal, LUATTN_FORWARD, LUATTN_F64, 90, 64, 64, 0},
      {causal, LUATTN_BACKWARD, LUATTN_F32, 90, 64, 64, LESS | HOISTING},
      {grid, LUATTN_BACKWARD, LUATTN_F32, 90, 64, 64, LESS | HOISTING},
      {causal, LUATTN_BACKWARD, LUATTN_F64, 90, 64, 64, 0},
      {causal, LUATTN_BACKWARD, LUATTN_BF16, 90, 64, 64, 0},
      {causal, LUATTN_BACKWARD, LUATTN_BF16, 90, 256, 256, 0},
      {causal, LUATTN_BACKWARD, LUATTN_BF16, 80, 64, 64, COMBINING | HOISTING},
      {causal, LUATTN_BACKWARD, LUATTN_BF16, 80, 128, 64, COMBINING | HOISTING},
      {causal, LUATTN_BACKWARD, LUATTN_F16, 80, 64, 136, COMBINING | HOISTING},
      {grid, LUATTN_BACKWARD, LUATTN_BF16, 80, 64, 64, COMBINING | HOISTING},
      {distances, LUATTN_BACKWARD, LUATTN_BF16, 80, 64, 64, COMBINING | HOISTING},
      {distances, LUATTN_BACKWARD, LUATTN_BF16, 80, 96, 64, COMBINING | HOISTING},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    luattn_spec *spec = load(cases[i].source);
    luattn_target target = target_new();
    target.pass = cases[i].pass, target.dtype = cases[i].dtype, target.arch = cases[i].arch;
    target.head_dim = cases[i].head_dim, target.head_dim_v = cases[i].head_dim_v;
    luattn_image *with = compile(spec, &target, NULL);
    for (int j = 0; j < 3; j++) {
      fake_mode(flags[j]);
      luattn_image *without = compile(spec, &target, NULL);
      fake_mode(NULL);
      if (same_image(with, without) == (cases[i].left_out >> j & 1)) fail_msg("case %zu, %s", i, flags[j]);
      luattn_image_free(without);
    }
    luattn_image_free(with), luattn_spec_free(spec);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pairs),
      cmocka_unit_test(test_mask),
      cmocka_unit_test(test_stat_blocks),
      cmocka_unit_test(test_passes_left_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
