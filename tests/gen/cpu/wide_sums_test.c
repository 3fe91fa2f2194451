/* wide_sums_test.c: sums of i64 inputs wrap around at the ends of 64 bits, in masks, tile classes, counts and scores
 * alike. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { LENGTH = 80, TILE = 16, TILES = LENGTH / TILE };

static int64_t plus(int64_t x, int64_t y) { return (int64_t)((uint64_t)x + (uint64_t)y); }
static int64_t minus(int64_t x, int64_t y) { return (int64_t)((uint64_t)x - (uint64_t)y); }
static int64_t times(int64_t x, int64_t y) { return (int64_t)((uint64_t)x * (uint64_t)y); }
static int64_t size_of(int64_t x) { return x < 0 ? minus(0, x) : x; }
static int64_t rest(int64_t x, int64_t y) { return (x % y + y) % y; }
static int64_t half(int64_t x) { return (x - rest(x, 2)) / 2; }
static int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }
static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* name, the mask in Lua, the mask in C. */
#define MASKS(X)                                                                                        \
  X(shifted, "q + w >= kv", plus(q, w) >= kv)                                                           \
  X(window, "q - w <= kv", minus(q, w) <= kv)                                                           \
  X(window_of_two, "q - w <= kv and kv <= q + w", minus(q, w) <= kv && kv <= plus(q, w))                \
  X(distance, "kv - q < w", kv - q < w)                                                                 \
  X(below, "kv < w", kv < w)                                                                            \
  X(up_to, "kv <= w", kv <= w)                                                                          \
  X(from, "w <= kv", w <= kv)                                                                           \
  X(above, "w < kv", w < kv)                                                                            \
  X(next, "kv < w + 1", kv < plus(w, 1))                                                                \
  X(before, "w - 2 < kv", minus(w, 2) < kv)                                                             \
  X(wraps, "w < w - 2", w < minus(w, 2))                                                                \
  X(twice, "2 * w + kv < q", plus(times(2, w), kv) < q)                                                 \
  X(times_kv, "kv * w <= q", times(kv, w) <= q)                                                         \
  X(square, "w * w <= kv", times(w, w) <= kv)                                                           \
  X(magnitude, "abs(w) >= kv", size_of(w) >= kv)                                                        \
  X(magnitude_of_sum, "abs(q - w) <= kv", size_of(minus(q, w)) <= kv)                                   \
  X(negated, "-w <= kv", minus(0, w) <= kv)                                                             \
  X(by_three, "eq((q + w) % 3, kv % 3)", rest(plus(q, w), 3) == kv % 3)                                 \
  X(of_three, "eq((kv + w) % 3, 1)", rest(plus(kv, w), 3) == 1)                                         \
  X(of_four, "eq((kv - w) % 4, 1)", rest(minus(kv, w), 4) == 1)                                         \
  X(halved, "(w + kv) // 2 <= q", half(plus(w, kv)) <= q)                                               \
  X(at_most, "max(w, kv) <= q + 3", larger(w, kv) <= q + 3)                                             \
  X(at_least, "min(w, kv) + 1 <= q", plus(smaller(w, kv), 1) <= q)                                      \
  X(chosen, "where(q < w, w - 1, kv + w) > kv", (q < w ? minus(w, 1) : plus(kv, w)) > kv)               \
  X(equal, "eq(kv + w, q + 2)", plus(kv, w) == q + 2)                                                   \
  X(twice_equal, "eq(2 * (kv + w), 2 * q)", times(2, plus(kv, w)) == 2 * q)                             \
  X(unequal, "ne(kv - w, q)", minus(kv, w) != q)                                                        \
  X(both, "q < w - 5 and w < q", q < minus(w, 5) && w < q)                                              \
  X(either, "q < w - 5 or w < q + 9", q < minus(w, 5) || w < plus(q, 9))                                \
  X(nested, "kv <= q and (kv + w > 7 or q - w > 60)", kv <= q && (plus(kv, w) > 7 || minus(q, w) > 60)) \
  X(shift, "((w + q) >> 62) & 3 >= 1 and kv <= q", ((uint64_t)plus(w, q) >> 62) >= 1 && kv <= q)        \
  X(shift_of_magnitude, "(abs(w) >> 1) + 0 >= kv", (int64_t)((uint64_t)size_of(w) >> 1) >= kv)          \
  X(real, "(kv + w) * 0.5 <= q", (double)plus(kv, w) * 0.5 <= (double)q)                                \
  X(real_window, "q - w <= kv + 0.5", (double)minus(q, w) <= (double)kv + 0.5)

#define FUNCTION(name, lua, c) \
  static bool name(int64_t w, int64_t q, int64_t kv) { return (void)w, (void)q, (void)kv, c; }
MASKS(FUNCTION)

static const struct mask {
  const char *text;
  bool (*keep)(int64_t w, int64_t q, int64_t kv);
} masks[] = {
#define ROW(name, lua, c) {lua, name},
    MASKS(ROW)};

static const int64_t values[] = {0,
                                 1,
                                 -1,
                                 5,
                                 -7,
                                 20,
                                 100,
                                 1 << 20,
                                 -(1 << 20),
                                 INT32_MAX,
                                 INT32_MIN,
                                 INT64_C(1) << 32,
                                 -(INT64_C(1) << 33),
                                 INT64_C(1) << 40,
                                 -(INT64_C(1) << 45),
                                 INT64_C(1) << 59,
                                 INT64_C(1) << 60,
                                 -(INT64_C(1) << 60),
                                 INT64_C(1) << 61,
                                 INT64_C(1) << 62,
                                 -(INT64_C(1) << 62),
                                 -(INT64_C(1) << 62) - 1,
                                 INT64_MAX,
                                 INT64_MAX - 1,
                                 INT64_MAX - 3,
                                 INT64_MAX - 70,
                                 INT64_MIN,
                                 INT64_MIN + 1,
                                 INT64_MIN + 3,
                                 INT64_MIN + 30,
                                 INT64_MIN + 79};

static luattn_spec *load_mask(const char *score, const char *keep) {
  char source[512];
  snprintf(source, sizeof source,
           "return attention { inputs = { w = { axes = {}, dtype = 'i64' } },\n"
           "  score_mod = function(score, b, h, q, kv) return %s end,\n"
           "  mask_mod = function(b, h, q, kv) return %s end }",
           score, keep);
  return load_text(source);
}

/* Scores that compare: gradients go by the arm that forward takes. */
static void check_score(const luattn_spec *spec, call *c, const struct mask *m, int64_t w) {
  luattn_error err;
  DLTensor number = {.data = &w, .device = {kDLCPU, 0}, .dtype = {kDLInt, 64, 1}};
  const luattn_input input = {"w", &number, NULL};
  c->args.inputs = &input, c->args.num_inputs = 1;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c->args, &err) != LUATTN_OK)
    fail_msg("%s: %s", m->text, err.message);
  for (int q = 0; q < c->q_len; q++) {
    double sum = 0;
    for (int kv = 0; kv < c->kv_len; kv++) {
      double s = 0;
      for (int d = 0; d < 4; d++) s += tensor_get(&c->q, q * 4 + d) * tensor_get(&c->k, kv * 4 + d) / 2;
      sum += exp(m->keep(w, q, kv) ? s : s / 4);
    }
    if (!(fabs(tensor_get(&c->lse, q) - log(sum)) <= 1e-9))
      fail_msg("score of %s of %lld: row %d differs", m->text, (long long)w, q);
  }
  assert_differences(spec, c, &c->q, &c->dq);
}

static void check(const luattn_spec *spec, call *c, const struct mask *m, int64_t w) {
  luattn_error err;
  int64_t kept = 0, want = 0;
  unsigned char class[TILES * TILES];
  DLTensor number = {.data = &w, .device = {kDLCPU, 0}, .dtype = {kDLInt, 64, 1}};
  const luattn_input input = {"w", &number, NULL};
  c->args.inputs = &input, c->args.num_inputs = 1;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK ||
      luattn_mask_count(spec, &c->args, &kept, &err) != LUATTN_OK ||
      luattn_mask_tiles(spec, &c->args, 0, 0, TILE, TILE, class, &err) != LUATTN_OK)
    fail_msg("%s: %s", m->text, err.message);
  for (int q = 0; q < LENGTH; q++) {
    double sum = 0;
    for (int kv = 0; kv < LENGTH; kv++) {
      const bool keeps = m->keep(w, q, kv);
      const int of = class[q / TILE * TILES + kv / TILE];
      double s = 0;
      if (of == (keeps ? 0 : 2))
        fail_msg("%s of %lld: score %d, %d lies in a tile of class %d", m->text, (long long)w, q, kv, of);
      for (int d = 0; d < 4; d++) s += tensor_get(&c->q, q * 4 + d) * tensor_get(&c->k, kv * 4 + d) / 2;
      if (keeps) sum += exp(s);
      want += keeps;
    }
    const double got = tensor_get(&c->lse, q);
    if (!(fabs(got - log(sum)) <= 1e-9 * (1 + fabs(log(sum)))) && got != log(sum))
      fail_msg("%s of %lld: row %d: lse %.17g, expected %.17g", m->text, (long long)w, q, got, log(sum));
  }
  if (kept != want) fail_msg("%s of %lld: keeps %d, expected %d", m->text, (long long)w, (int)kept, (int)want);
}

static void test_masks(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
    luattn_spec *spec = load_mask("score", masks[i].text);
    call c;
    call_new(&c, spec, (int[]){1, 1, 1, LENGTH, LENGTH, 4, 4}, DENSE, F64, F64);
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) check(spec, &c, &masks[i], values[k]);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

static void test_scores(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
    char score[256];
    snprintf(score, sizeof score, "where(%s, score, score / 4)", masks[i].text);
    luattn_spec *spec = load_mask(score, "true");
    call c;
    call_new(&c, spec, (int[]){1, 1, 1, 20, 20, 4, 4}, DENSE, F64, F64);
    for (size_t k = 0; k < sizeof values / sizeof *values; k++) check_score(spec, &c, &masks[i], values[k]);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks), cmocka_unit_test(test_scores)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
