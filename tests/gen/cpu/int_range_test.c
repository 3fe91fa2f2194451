/* int_range_test.c: calls whose i32 inputs hold what kernels do not compute with succeed, and carry a warning; calls
 * that only compare such values, subtract them as integers or take their bits carry none. */
#include <stdio.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { LENGTH = 8 };

static luattn_spec *load_score(const char *type, const char *score, const char *keep) {
  char source[512];
  snprintf(source, sizeof source,
           "return attention { inputs = { t = { axes = {'n'}, dtype = '%s' } },\n"
           "  score_mod = function(score, b, h, q_idx, kv_idx) return %s end,\n"
           "  mask_mod = function(b, h, q_idx, kv_idx) return %s end }",
           type, score, keep);
  return load_text(source);
}

typedef struct numbers {
  int32_t of32[LENGTH];
  int64_t of64[LENGTH], shape, stride;
  DLTensor t;
  luattn_input input;
} numbers;

/* base, base + 1, .., and the last one `last` where that is not 0. */
static void numbers_fill(numbers *n, int bits, int32_t base, int32_t last) {
  for (int i = 0; i < LENGTH; i++) n->of64[i] = n->of32[i] = i == LENGTH - 1 && last != 0 ? last : base + i;
  n->shape = LENGTH, n->stride = 1;
  n->t = (DLTensor){.data = bits == 64 ? (void *)n->of64 : n->of32,
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = {kDLInt, (uint8_t)bits, 1},
                    .shape = &n->shape};
  n->input = (luattn_input){"t", &n->t, NULL};
}

static const int size[7] = {1, 1, 1, LENGTH, LENGTH, 4, 4};
static const int32_t far_off = 1 << 25;

static const struct {
  const char *score, *keep;
  int32_t base, last;
  bool warns;
  bool of_mask; /* the mask alone is enough */
} cases[] = {
    {"score - 0.1 * ((t[q_idx] + 0.0) - (t[kv_idx] + 0.0))", "true", 1 << 25, 0, true, false},
    {"score - 0.1 * ((t[q_idx] + 0.0) - (t[kv_idx] + 0.0))", "true", -(1 << 25), 0, true, false},
    {"score - 0.1 * ((t[q_idx] + 0.0) - (t[kv_idx] + 0.0))", "true", (1 << 24) - LENGTH, 0, false, false},
    {"score + max(t[kv_idx], q_idx)", "true", 1 << 25, 0, true, false},
    {"score - max(t[kv_idx], q_idx) + t[q_idx]", "true", 1 << 25, 0, true, false},
    {"score + t[kv_idx] // 3", "true", 1 << 25, 0, true, false},
    {"score", "t[kv_idx] * 3 < t[q_idx]", 1 << 25, 0, true, true},
    {"score", "t[kv_idx] <= q_idx * 0.5", 1 << 25, 0, true, true},
    /* differences are integers of 32 bits, which a score converts once */
    {"score - 0.1 * (t[q_idx] - t[kv_idx])", "true", 1 << 25, 0, false, false},
    {"score - 0.1 * abs(t[q_idx] - t[kv_idx])", "true", 7, 1 << 30, false, false},
    {"score - max(t[q_idx] - t[kv_idx], 0) / 8", "true", 7, 1 << 30, false, false},
    {"score - (t[q_idx] - t[kv_idx]) // 3", "true", 1 << 25, 0, false, false},
    {"score - (t[q_idx] - t[kv_idx]) // 3", "true", 7, 1 << 30, true, false},
    {"score - (t[q_idx] - t[kv_idx]) / 3", "true", -(1 << 30), 1 << 30, true, false},
    {"score - (min(t[q_idx], t[kv_idx]) - t[kv_idx]) * 3", "true", 1 << 25, 0, false, false},
    {"score", "t[q_idx] - t[kv_idx] < 3", 1 << 25, 0, false, false},
    {"score", "t[q_idx] - t[kv_idx] < 40000000", 7, 1 << 30, false, false},
    {"score", "t[q_idx] - t[kv_idx] < 3", -(1 << 30), 1 << 30, true, true},
    /* comparisons, bits and indices are exact */
    {"score", "t[kv_idx] <= t[q_idx] and ne(t[kv_idx], 16777217)", 1 << 25, 0, false, false},
    {"score + (t[kv_idx] & 255) + t[kv_idx] % 8", "true", 1 << 25, 0, false, false},
    {"score + clamp(t[kv_idx], -5, 5)", "true", 1 << 25, 0, false, false},
    {"score", "t[t[kv_idx]] < 7", 1 << 25, 0, false, false},
};

static const char start[] = "cpu: input 't': element ",
                  middle[] = ", and kernels compute with integers less than 2^24 = 16777216 from 0 alone";

static void expect(const char *what, const char *message, bool warns) {
  if (warns ? strncmp(message, start, sizeof start - 1) != 0 || strstr(message, middle) == NULL : message[0] != 0)
    fail_msg("%s: says '%s'", what, message);
}

static void check_case(size_t i) {
  luattn_spec *spec = load_score("i32", cases[i].score, cases[i].keep);
  luattn_error err;
  numbers n;
  call c;
  int64_t kept;
  char what[200];
  snprintf(what, sizeof what, "%s, %s from %d on", cases[i].score, cases[i].keep, (int)cases[i].base);
  call_new(&c, spec, size, DENSE, F32, F32);
  numbers_fill(&n, 32, cases[i].base, cases[i].last);
  c.args.inputs = &n.input, c.args.num_inputs = 1;
  assert_int_equal(luattn_cpu_forward(spec, &c.args, &err), LUATTN_OK);
  expect(what, err.message, cases[i].warns);
  assert_int_equal(luattn_mask_count(spec, &c.args, &kept, &err), LUATTN_OK);
  expect(what, err.message, cases[i].of_mask);
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_hooks(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(i);
}

static void test_64_bits_are_exact(void **state) {
  (void)state;
  luattn_spec *spec = load_score("i64", "score - 0.1 * ((t[q_idx] + 0.0) - (t[kv_idx] + 0.0))", "true");
  luattn_error err;
  numbers n;
  call c;
  call_new(&c, spec, size, DENSE, F32, F32);
  numbers_fill(&n, 64, far_off, 0);
  c.args.inputs = &n.input, c.args.num_inputs = 1;
  assert_int_equal(luattn_cpu_forward(spec, &c.args, &err), LUATTN_OK);
  expect("i64", err.message, false);
  call_free(&c);
  luattn_spec_free(spec);
}

/* The element's number counts as the tensor does, whatever its strides; backward warns, too. */
static void test_element_and_backward(void **state) {
  (void)state;
  luattn_spec *spec = load_score("i32", "score - 0.1 * (t[kv_idx] + 0.0)", "true");
  luattn_error err;
  numbers n;
  call c;
  call_new(&c, spec, size, DENSE, F32, F32);
  numbers_fill(&n, 32, 5, far_off + 1);
  n.shape = LENGTH / 2, n.stride = 2, n.t.strides = &n.stride, n.t.byte_offset = 4;
  c.args.inputs = &n.input, c.args.num_inputs = 1;
  assert_int_equal(luattn_cpu_forward(spec, &c.args, &err), LUATTN_OK);
  assert_non_null(strstr(err.message, "element 3 is 33554433, "));
  assert_non_null(
      strstr(err.message, "; declare the input i64, subtract a base from all of them first, or clamp them"));
  memset(err.message, 0, sizeof err.message);
  assert_int_equal(luattn_cpu_backward(spec, &c.args, &err), LUATTN_OK);
  assert_non_null(strstr(err.message, "element 3 is 33554433, "));
  call_free(&c);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_hooks),
      cmocka_unit_test(test_64_bits_are_exact),
      cmocka_unit_test(test_element_and_backward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
