/* lines_test.c: staged bias rows of a backward kernel. Tests when a compilation drops them, and that reports
 * of the image say so. */
#include <string.h>

#include "compiled.h"

/* Expects bias rows to be staged or not. A cached image's report and source must agree with its
 * compilation. */
static void expect_lines(const luattn_spec *spec, const luattn_target *target, bool has) {
  luattn_compile_report report;
  luattn_error err;
  char *source = NULL;
  for (int i = 0; i < 2; i++) {
    luattn_image *image = compile(spec, target, &report);
    assert_int_equal(report.cache_hit, i);
    assert_int_equal(image_get_manifest(image)->family, LUATTN_SM90);
    assert_int_equal(image_get_manifest(image)->reads_ahead, has);
    assert_int_equal(report.tiles.tile_m, 64);
    assert_int_equal(strstr(report.plan, "scores read every input themselves") == NULL, has);
    if (luattn_emit_source(spec, target, image, &source, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(strstr(source, "has_bias_row = true") != NULL, has);
    luattn_text_free(source);
    luattn_image_free(image);
  }
}

/* Staged bias rows are dropped before tiles change. */
static void test_lines(void **state) {
  (void)state;
  luattn_spec *spec = load(
      "return attention { inputs = { x = { axes = {'h', 'q', 'kv'}, grad = true } }, "
      "score_mod = function(score, b, h, q, kv) return score + x[{h, q, kv}] end }");
  luattn_target target = target_new();
  luattn_compile_report report;
  target.pass = LUATTN_BACKWARD, target.dtype = LUATTN_BF16, target.arch = 90, target.head_dim = 128;
  luattn_image *image = compile(spec, &target, &report);
  assert_null(strstr(report.plan, "scores read every input themselves"));
  luattn_image_free(image);
  static const struct {
    const char *mode;
    bool keeps_lines;
  } cases[] = {
      {"exhaust has_bias_row = true", false},
      {"spill 420 100 has_bias_row = true", false}, /* spills too much */
      {"spill 300 100 has_bias_row = true", false}, /* acceptable, but costs more than staging saves */
      {"spill 300 280 has_bias_row = true", false},
      {"spill 300 600 has_bias_row = true", true}, /* without staging, spills too much */
      {"spill 300 -1 has_bias_row = true", true},  /* without staging, does not compile */
      {"spill 230 0 has_bias_row = true", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    folder dir = folder_new();
    target.cache_dir = dir.path;
    fake_mode(cases[i].mode);
    expect_lines(spec, &target, cases[i].keeps_lines);
    folder_remove(&dir);
  }
  fake_mode(NULL);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
