/* emit_sums_test.c: tests which gradients of inputs kernels sum before they add them to memory, which reads of inputs
 * are bias rows, and what the emitted text says of the places of sums. */
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

/* Checks which gradients of t, read in score_mod's `score`, are sums of dS (ParameterSum in
 * contract/contract.cuh), and whether grad adds any to memory. */
static void check_sums(int arch, const char *axes, const char *score, int sums, bool adds) {
  luattn_target t = target;
  t.arch = arch;
  char source[512], want[2][40];
  snprintf(source, sizeof source,
           "return attention { name = 'a', inputs = { t = { axes = {%s}, grad = true } },\n"
           "  score_mod = function(s, b, h, q, kv) return %s end }",
           axes, score);
  snprintf(want[0], sizeof want[0], " parameter_sums = %d;", sums);
  snprintf(want[1], sizeof want[1], "grad_adds = %s;", adds ? "true" : "false");
  char *text = emit_facts(source, &t, false);
  for (int i = 0; i < 2; i++)
    if (strstr(text, want[i]) == NULL) fail_msg("%s: '%s' is not in\n%s", score, want[i], text);
  free(text);
}

static void test_sums(void **state) {
  (void)state;
  enum { DISTANCE = 1, ROW = 2, COL = 4, EACH = 8, LINEAR = 16 };
  check_sums(90, "'h'", "s + t[h] * (kv - q)", LINEAR, false);
  check_sums(90, "'h'", "s + t[h] * (q_len - 2 * q)", LINEAR, false);
  check_sums(90, "'h'", "s + t[h] * abs(kv - q)", EACH, false);
  check_sums(90, "'h'", "s - exp(-t[h] * abs(q - kv))", DISTANCE, false);
  check_sums(90, "'h'", "s + where(q < kv + 3, t[h], 0)", DISTANCE, false);
  check_sums(90, "'h', 'n'", "s + t[{h, abs(kv - q)}]", DISTANCE, false);
  check_sums(90, "'h', 'n'", "s + t[{h, min((2 * q - 2 * kv) // 3, 7) + kv_len}]", DISTANCE, false);
  check_sums(90, "'h', 'q'", "s + t[{h, q}]", ROW, false);
  check_sums(90, "'h', 'q'", "s + q * t[{h, q}]", ROW, false);
  check_sums(90, "'h', 'kv'", "s + t[{h, kv}]", COL, false);
  check_sums(90, "'h'", "s + t[h]", COL, false);
  check_sums(90, "'h'", "2 * s + t[h]", COL, false);
  check_sums(90, "'h'", "8 * tanh((s + t[h]) / 8)", COL, false);
  check_sums(90, "'h', 'q', 'kv'", "s + t[{h, q, kv}]", EACH, false);
  check_sums(90, "'h', 'n'", "s + t[{h, q - 2 * kv}]", EACH, false);
  check_sums(90, "'h', 'n'", "s + t[{h, min(q, kv)}]", EACH, false);
  check_sums(90, "'n'", "s + t[q] + t[kv] + t[q - kv]", DISTANCE | ROW | COL, false);
  check_sums(90, "'n'", "s + t[q] * t[kv]", EACH, false);
  /* A factor of many instructions, for a single element; and gradients that are not a multiple of dS. */
  check_sums(90, "'h'", "s + t[h] * q * kv / (1 + kv)", 0, true);
  check_sums(90, "'h'", "8 * tanh(s / 8) + t[h]", 0, true);
  check_sums(90, "'h', 'n'", "s * t[{h, q - kv}]", 0, true);
  check_sums(90, "'n'", "s * t[0] + t[q - kv]", 0, true); /* not a multiple of dS where t[0] is 0 */
  check_sums(90, "'n'", "s + t[0] * q * kv + t[q - kv]", DISTANCE | EACH, false);
  check_sums(90, "'n'", "s + t[0] * sin(q * kv) + t[q - kv]", DISTANCE, true);
  /* In the sm80 and simt families gradients that take a multiply-add per element, and pair biases, are left
   * to `grad`. */
  check_sums(80, "'h'", "s + t[h] * (kv - q)", 0, true);
  check_sums(80, "'h'", "s + t[h] * abs(kv - q)", 0, true);
  check_sums(80, "'h', 'q', 'kv'", "s + t[{h, q, kv}]", 0, true);
  check_sums(80, "'h'", "s - exp(-t[h] * abs(q - kv))", DISTANCE, false);
  check_sums(80, "'h', 'n'", "s + t[{h, abs(kv - q)}]", DISTANCE, false);
  check_sums(80, "'h', 'q'", "s + t[{h, q}]", ROW, false);
  check_sums(80, "'h', 'kv'", "s + t[{h, kv}]", COL, false);
  check_sums(80, "'n'", "s + t[q] + t[kv] + t[q - kv] + t[q + kv]", DISTANCE | ROW | COL, true);
  luattn_target simt = target;
  simt.dtype = LUATTN_F32;
  check_for(&simt,
            "return attention { name = 'a', inputs = { t = { axes = {'n'}, grad = true } },\n"
            "  score_mod = function(s, b, h, q, kv) return s + t[q] + t[kv] + t[q - kv] end }",
            LIST(" parameter_sums = 7;", "grad_adds = false;"), NULL);
  check_for(&simt,
            "return attention { name = 'a', inputs = { t = { axes = {'h'}, grad = true } },\n"
            "  score_mod = function(s, b, h, q, kv) return s + t[h] * (kv - q) end }",
            LIST(" parameter_sums = 0;", "grad_adds = true;"), NULL);
}

/* In the simt family, distance terms are in shared memory. Of the tiles that can be forced on sm_90, these
 * leave no room for distance terms. */
static void test_terms_take_room(void **state) {
  (void)state;
  luattn_target t = target;
  t.arch = 90, t.dtype = LUATTN_F32, t.pass = LUATTN_BACKWARD, t.tile_m = 256, t.tile_n = 64;
  static const char *const scores[] = {"s + q - kv", "s + t[q - kv]"};
  for (int i = 0; i < 2; i++) {
    char source[256], *text = NULL;
    snprintf(source, sizeof source,
             "return attention { name = 'a', inputs = { t = { axes = {'n'} } },\n"
             "  score_mod = function(s, b, h, q, kv) return %s end }",
             scores[i]);
    luattn_spec *spec;
    luattn_error err;
    if (luattn_spec_load_text("spec.lua", source, strlen(source), NULL, &spec, &err) != LUATTN_OK)
      fail_msg("%s", err.message);
    const luattn_status status = luattn_emit(spec, &t, "spec", &text, &err);
    assert_int_equal(status, i == 0 ? LUATTN_OK : LUATTN_INVALID);
    if (i == 1 && strstr(err.message, "need 232704 bytes of shared memory; sm_90 has 232448") == NULL)
      fail_msg("%s", err.message);
    if (i == 0) luattn_text_free(text);
    luattn_spec_free(spec);
  }
}

/* Checks whether a score_mod that adds `read` has a bias row (contract/contract.cuh), and one shared by all
 * batches. */
static void check_line(luattn_pass pass, int arch, const char *axes, const char *type, const char *read, bool line,
                       bool shared) {
  luattn_target t = target;
  t.arch = arch, t.pass = pass;
  char source[512], want[3][64];
  snprintf(source, sizeof source,
           "return attention { name = 'a', inputs = { t = { axes = {%s}, dtype = '%s' } },\n"
           "  score_mod = function(s, b, h, q, kv) return s + %s end }",
           axes, type, read);
  snprintf(want[0], sizeof want[0], "has_bias_row = %s;", line ? "true" : "false");
  snprintf(want[1], sizeof want[1], "bias_row_shared = %s;", shared ? "true" : "false");
  snprintf(want[2], sizeof want[2], "using BiasElem = %s;", line && strcmp(type, "bf16") == 0 ? "bf16_t" : "float");
  check_for(&t, source, LIST(want[0], want[1], want[2]), NULL);
}

static void test_lines(void **state) {
  (void)state;
  const luattn_pass forward = LUATTN_FORWARD, backward = LUATTN_BACKWARD;
  check_line(forward, 90, "'h', 'q', 'kv'", "f32", "t[{h, q, kv}]", true, true);
  check_line(forward, 90, "'b', 'h', 'q', 'kv'", "f32", "t[{b, h, q, kv}]", true, false);
  check_line(forward, 90, "'h', 'q', 'kv'", "bf16", "4 * t[{h, q // 2, kv - 3}]", true, true);
  check_line(forward, 90, "'q', 'n'", "f32", "t[{q, kv + q}]", true, true);
  check_line(forward, 90, "'h', 'kv'", "f32", "t[{h, kv}]", false, false); /* constant per column */
  check_line(forward, 90, "'h', 'q', 'n'", "f32", "t[{h, q, 2 * kv}]", false, false);
  check_line(forward, 90, "'h', 'kv', 'q'", "f32", "t[{h, kv, q}]", false, false);
  check_line(forward, 90, "'h', 'n'", "f32", "t[{h, q - kv}]", false, false); /* a distance term */
  check_line(forward, 90, "'h', 'n'", "f32", "t[{h, kv - q}]", false, false);
  check_line(forward, 90, "'h', 'q', 'kv'", "i32", "1 * t[{h, q, kv}]", false, false);
  check_line(forward, 90, "'h', 'q', 'kv'", "f64", "t[{h, q, kv}]", false, false);
  check_line(forward, 90, "'h', 'q', 'kv'", "f32", "t[{h, q, kv}] * t[{h, q, kv + 1}]", true,
             true); /* one of two reads */
  check_line(forward, 90, "'n', 'kv'", "f32", "t[{t[{q, 0}] > 0 and 1 or 0, kv}]", true, true);
  check_line(forward, 80, "'h', 'q', 'kv'", "f32", "t[{h, q, kv}]", false, false);
  check_line(backward, 90, "'h', 'q', 'kv'", "f32", "t[{h, q, kv}]", true, true);
  check_line(backward, 90, "'b', 'q', 'kv'", "bf16", "2 * t[{b, q, kv + 3}]", true, false);
  /* Bias rows without a constant pitch. */
  check_line(backward, 90, "'h', 'q', 'kv'", "f32", "t[{h, q + 1, kv}]", false, false);
  check_line(backward, 90, "'h', 'n', 'kv'", "f32", "t[{h, q, kv}]", false, false);
  check_line(backward, 90, "'q', 'n'", "f32", "t[{q, kv + q}]", false, false);
  check_line(backward, 90, "'q', 'q', 'kv'", "f32", "t[{q, q, kv}]", false, false);
  check_line(backward, 90, "'n', 'kv'", "f32", "t[{t[{q, 0}] > 0 and 1 or 0, kv}]", false, false);
  check_line(backward, 80, "'h', 'q', 'kv'", "f32", "t[{h, q, kv}]", false, false);
}

/* Checks Spec's facts on gradient elements: same for many distances, adjacent for adjacent q or kv, or
 * neither. */
static void check_places(const char *axes, const char *score, const char *alike, const char *step, const char *pairs) {
  luattn_target t = target;
  t.arch = 90;
  char source[512];
  snprintf(source, sizeof source,
           "return attention { name = 'a', inputs = { t = { axes = {%s}, grad = true }, w = { axes = {'h'} } },\n"
           "  score_mod = function(s, b, h, q, kv) return s + %s end }",
           axes, score);
  char *text = emit_facts(source, &t, false);
  const char *const want[] = {alike, step, pairs}, *const name[] = {"may_be_same_bucket", "distance_step",
                                                                    "pair_grads_in_rows"};
  for (int i = 0; i < 3; i++) {
    char line[64];
    snprintf(line, sizeof line, " %s = %s;", name[i], want[i]);
    if (strstr(text, line) == NULL) fail_msg("%s: '%s' is not in\n%s", score, line, text);
  }
  free(text);
}

static void test_places_of_sums(void **state) {
  (void)state;
  check_places("'h', 'n'", "t[{h, q - kv + kv_len}]", "false", "1", "false");
  check_places("'h', 'n'", "w[h] * t[{h, kv - q}]", "false", "-1", "false");
  check_places("'h', 'n'", "t[{h, 2 * (kv - q)}]", "true", "0", "false");
  check_places("'h', 'n'", "t[{h, min(abs(kv - q), 9)}]", "true", "0", "false");
  check_places("'h', 'n'", "(q - kv) * t[{h, min(abs(kv - q), 9)}]", "false", "0", "false");
  check_places("'h', 'n'", "t[{h, q - kv}] + t[{h, kv - q}]", "true", "0", "false");
  check_places("'n', 'h'", "t[{q - kv, h}]", "true", "0", "false");
  check_places("'h', 'q', 'kv'", "t[{h, q, kv}]", "false", "0", "true");
  check_places("'q', 'kv'", "w[h] * t[{q // 2, kv + 4}]", "false", "0", "true");
  check_places("'h', 'kv', 'q'", "t[{h, kv, q}]", "false", "0", "false");
  check_places("'h', 'kv'", "t[{h, kv}]", "false", "0", "false");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums),
      cmocka_unit_test(test_terms_take_room),
      cmocka_unit_test(test_lines),
      cmocka_unit_test(test_places_of_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
