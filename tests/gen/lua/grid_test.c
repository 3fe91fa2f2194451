/* grid_test.c: tests positions of a spec with a grid: their axes in hooks and inputs. What is refused: tests/golden/spec/grid_*.lua. */
#include "traced.h"

#include <string.h>

#define Y_X "return attention { grid = {'y', 'x'}, "

static void expect(const char *source, ir_ref (*of)(const traced_spec *), const char *expected) {
  traced_file t;
  trace_text(&t, source);
  const char *shown = show(&t, of(&t.spec));
  if (strcmp(shown, expected) != 0) fail_msg("%s\n  gives %s\n  not   %s", source, shown, expected);
  trace_close(&t);
}

static ir_ref mask_of(const traced_spec *t) { return t->block_mask; }
static ir_ref score_of(const traced_spec *t) { return t->score_mod; }
static ir_ref query_of(const traced_spec *t) { return t->query_mod; }

static void test_axes(void **state) {
  (void)state;
  expect(Y_X "block_mask = function(b, h, q_idx, kv_idx) return kv_idx.y <= q_idx.y end }", mask_of,
         "(le kv_idx q_idx)");
  expect(Y_X "block_mask = function(b, h, q, k) return k.x - q.x < 3 and k.y < q_len.y + kv_len.x end }", mask_of,
         "(and (lt (sub kv_idx1 q_idx1) 3) (lt kv_idx (add q_len kv_len1)))");
  expect(Y_X
         "inputs = { t = { axes = {'h', 'q.y'} }, u = { axes = {'kv.x'} } }, "
         "score_mod = function(score, b, h, q, k) return score + t[{h, q.y}] * u[k.x] end }",
         score_of, "(add score (mul (t h q_idx) (u kv_idx1)))");
  expect(Y_X "query_mod = function(x, b, h, pos, d) return x * (pos.y + 2 * pos.x) end }", query_of,
         "(mul x (to_real (add pos (mul pos1 2))))");
  expect(
      "return attention { grid = {'a', 'b', 'c'}, score_mod = function(score, b, h, q, k) "
      "return score + random(b, h, q, k) end }",
      score_of,
      "(add score (random b h (add (mul (add (mul q_idx q_len1) q_idx1) q_len2) q_idx2) "
      "(add (mul (add (mul kv_idx kv_len1) kv_idx1) kv_len2) kv_idx2)))");
}

/* Positions along one axis are a line, whatever its name. */
static void test_one_axis(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { grid = {'x'}, inputs = { u = { axes = {'kv.x'} } }, "
             "score_mod = function(score, b, h, q, k) return score + u[k.x] * (q.x - k.x) / q_len.x end }");
  assert_string_equal(show(&t, t.spec.score_mod),
                      "(add score (div (mul (u kv_idx) (to_real (sub q_idx kv_idx))) (to_real q_len)))");
  assert_int_equal(t.spec.input[0].axis[0], LUATTN_AXIS_KV);
  assert_true(ir_is_line(t.spec.g));
  trace_close(&t);
  trace_text(&t, Y_X "inputs = { u = { axes = {'kv.x', 'q.x', 'b'} } } }");
  assert_int_equal(t.spec.input[0].axis[0], LUATTN_AXIS_KV_GRID - 1);
  assert_int_equal(t.spec.input[0].axis[1], LUATTN_AXIS_Q_GRID - 1);
  assert_false(ir_is_line(t.spec.g));
  trace_close(&t);
}

/* Of several axes distances along each are known, and no slopes. */
static void test_distances(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool linear, distance;
  } specs[] = {{"return attention { score_mod = function(score, b, h, q, k) return 0.5 * (q - k) end }", true, true},
               {Y_X "score_mod = function(score, b, h, q, k) return 0.5 * (q.x - k.x) end }", false, true},
               {Y_X "score_mod = function(score, b, h, q, k) return 0.5 * (q.y - k.x) end }", false, false}};
  double q, kv;
  traced_file t;
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    trace_text(&t, specs[i].text);
    assert_int_equal(analyse_linear(t.a, t.spec.g, t.spec.score_mod, &q, &kv), specs[i].linear);
    assert_int_equal(analyse_distance(t.a, t.spec.g, &t.spec.score_mod, 1), specs[i].distance);
    trace_close(&t);
  }
}

static void test_oracle(void **state) {
  (void)state;
  static const char *const specs[] = {
      Y_X "block_mask = function(b, h, q, k) return abs(q.y - k.y) <= 2 and abs(q.x - k.x) <= 3 end }",
      Y_X
      "inputs = { t = { axes = {'h', 'q.y'} } }, score_mod = function(score, b, h, q, k) "
      "local dy, dx = q.y - k.y, q.x - k.x; if dy * dy + dx * dx > 9 then return score - t[{h, q.y}] end "
      "return score * kv_len.x / q_len.y end }",
      "return attention { grid = {'t', 'y', 'x'}, query_mod = function(x, b, h, pos, d) "
      "return where(eq(d % 2, 0), x * pos.t, x + pos.x - pos.y) end }",
      Y_X
      "block_mask = mask_and(neighborhood { kernel_size = {7, 6}, stride = {2, 1}, dilation = {1, 2}, is_causal = "
      "{true, false} }, swin({8, 9}, {0, 4})) }",
      "return attention { grid = {'t', 'y', 'x'}, block_mask = mask_or(sliding_tile { tile = {2, 3, 1}, window = {2, "
      "9, "
      "3} }, mask_and(axial('x', 'y'), causal_along('x'))) }",
  };
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) compare_with_oracle("grid", specs[i], strlen(specs[i]), 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_axes),
      cmocka_unit_test(test_one_axis),
      cmocka_unit_test(test_distances),
      cmocka_unit_test(test_oracle),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
