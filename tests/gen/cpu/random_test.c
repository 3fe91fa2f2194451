/* random_test.c: random() of hooks on the CPU path, against a Philox of its own, written from the published algorithm:
 * values at every score, seeds in memory, gradients by differences, bounds; how the numbers are distributed; errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

/* As docs/language.md describes it. */
static double value_of(uint64_t seed, uint64_t offset, int heads, int b, int h, int64_t q, int64_t kv) {
  const uint64_t stream = offset + (uint64_t)((int64_t)b * heads + h);
  const uint32_t key[] = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                 counter[] = {(uint32_t)stream, (uint32_t)(stream >> 32), (uint32_t)q | 0x80000000u, (uint32_t)kv};
  uint32_t words[4];
  philox(key, counter, words);
  return (words[0] >> 8) / 16777216.0;
}

enum { BATCH = 2, HEADS = 4, Q_LEN = 70, KV_LEN = 66 };
static const uint64_t seed = UINT64_C(0xfedcba9876543210), offset = UINT64_C(0xfffffffd);
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = seed, .offset = offset};

static void forward(const luattn_spec *spec, const call *c) {
  luattn_error err;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

/* Weights are what score_mod returns, and V is the identity, so O has a row's numbers. */
static void expect_values(const char *score, int64_t (*at)(int, int, int), const luattn_random *random) {
  char source[400];
  call c;
  snprintf(source, sizeof source,
           "return attention { online_func = identity, score_mod = function(s, b, h, q, kv) return %s end }", score);
  luattn_spec *spec = load_text(source);
  assert_int_equal(luattn_spec_draws(spec), 1);
  call_new(&c, spec, (int[]){BATCH, HEADS, 2, Q_LEN, KV_LEN, 3, KV_LEN}, DENSE, F64, F64);
  c.args.random = random;
  for (int64_t i = 0; i < tensor_count(&c.v); i++) tensor_set(&c.v, i, i % KV_LEN == i / KV_LEN % KV_LEN);
  forward(spec, &c);
  for (int64_t i = 0; i < tensor_count(&c.o); i++) {
    const int kv = (int)(i % KV_LEN), q = (int)(i / KV_LEN % Q_LEN), h = (int)(i / KV_LEN / Q_LEN % HEADS),
              b = (int)(i / KV_LEN / Q_LEN / HEADS);
    const double want = value_of(seed, offset, HEADS, b, h, at(0, q, kv), at(1, q, kv));
    if (tensor_get(&c.o, i) != want)
      fail_msg("%s: b %d h %d q %d kv %d: %.9g, expected %.9g", score, b, h, q, kv, tensor_get(&c.o, i), want);
  }
  call_free(&c);
  luattn_spec_free(spec);
}

static int64_t of_score(int i, int q, int kv) { return i == 0 ? q : kv; }
static int64_t of_block(int i, int q, int kv) { return i == 0 ? q / 16 : kv / 16; }
static int64_t of_distance(int i, int q, int kv) { return i == 0 ? q - kv : -7; }

static void test_values(void **state) {
  (void)state;
  const uint64_t seed_there = seed, offset_there = offset - 9;
  const luattn_random there = {
      .struct_size = sizeof there, .seed = 1, .offset = 9, .seed_at = &seed_there, .offset_at = &offset_there};
  expect_values("random(b, h, q, kv)", of_score, &numbers);
  expect_values("random(b, h, q, kv)", of_score, &there);
  expect_values("random(b, h, q // 16, kv // 16)", of_block, &numbers);
  expect_values("random(b, h, q - kv, -7)", of_distance, &numbers); /* negative numbers have counters of their own */
}

/* The same number in backward, where no gradient goes through it. */
static void test_differences(void **state) {
  (void)state;
  static const char *const specs[] = {
      "return attention { score_mod = function(s, b, h, q, kv) return s - log(-log1p(-max(random(b, h, q, kv), 2.0 ^ "
      "-25))) end }",
      "return attention { score_mod = function(s, b, h, q, kv) return s * random(b, h, q, kv) end, online_func = "
      "dropout(0.25),\n"
      "  block_mask = function(b, h, q, kv) return random(b, h, q, kv + kv_len) < 0.7 end }",
      "return attention { query_mod = function(x, b, h, pos, d) return x * random(b, h, pos, d) end,\n"
      "  key_mod = function(x, b, h, pos, d) return x * random(b, h, pos, d) ^ 2 end,\n"
      "  value_mod = function(x, b, h, pos, d) return x * where(random(b, h, pos, 0) < 0.5, 0, 2) end }"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    luattn_spec *spec = load_text(specs[i]);
    luattn_error err;
    call c;
    call_new(&c, spec, (int[]){1, 2, 1, 9, 18, 4, 3}, DENSE, F64, F64);
    c.args.random = &numbers;
    forward(spec, &c);
    if (luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_differences(spec, &c, &c.q, &c.dq);
    assert_differences(spec, &c, &c.k, &c.dk);
    assert_differences(spec, &c, &c.v, &c.dv);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* ---- statistics ---- */

enum { SIDE = 512, BUCKETS = 64 };
static double drawn[SIDE][SIDE], others[SIDE][SIDE];

static void draw_all(uint64_t from, uint64_t first, int h, double out[SIDE][SIDE]) {
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) out[q][kv] = value_of(from, first, 8, 0, h, q, kv);
}

/* Products of two independent numbers less their means have the variance 1 / 144. Six deviations: seeds are fixed, so
 * this passes always or never. */
static void expect_independent(double (*x)[SIDE], double (*y)[SIDE], int dq, int dkv) {
  double sum = 0;
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) sum += (x[q][kv] - 0.5) * (y[(q + dq) % SIDE][(kv + dkv) % SIDE] - 0.5);
  if (fabs(sum) > 6 * SIDE / 12.0) fail_msg("correlation at %d, %d: %g deviations", dq, dkv, sum * 12 / SIDE);
}

static void test_statistics(void **state) {
  (void)state;
  double count[BUCKETS] = {0}, chi = 0, low[2] = {0};
  const double each = SIDE * SIDE / (double)BUCKETS;
  draw_all(1, 0, 0, drawn);
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) {
      count[(int)(drawn[q][kv] * BUCKETS)]++;
      low[(int)(drawn[q][kv] * 16777216) & 1]++; /* the last of the 24 bits is one, too */
    }
  for (int i = 0; i < BUCKETS; i++) chi += (count[i] - each) * (count[i] - each) / each;
  if (fabs(chi - (BUCKETS - 1)) > 5 * sqrt(2.0 * (BUCKETS - 1))) fail_msg("chi^2 of %d buckets is %g", BUCKETS, chi);
  assert_true(fabs(low[0] - low[1]) < 6 * SIDE);
  for (int dq = 0; dq <= 9; dq++)
    for (int dkv = 0; dkv <= 9; dkv++)
      if (dq + dkv > 0) expect_independent(drawn, drawn, dq, dkv);
  draw_all(2, 0, 0, others), expect_independent(drawn, others, 0, 0);
  draw_all(1, 8, 0, others), expect_independent(drawn, others, 0, 0);
  draw_all(1, 0, 1, others), expect_independent(drawn, others, 0, 0);
}

/* Dropout of the same scores: of what is kept, as much is below a half as of all. */
static void test_beside_dropout(void **state) {
  (void)state;
  double kept[2] = {0};
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) {
      const unsigned bits = dropout_draw(1, dropout_counter(0, 0, 8, 0), dropout_q_patch(q), dropout_kv_patch(kv), 128);
      if (bits >> dropout_bit(q, kv) & 1) kept[random_bits(1, dropout_counter(0, 0, 8, 0), q, kv) >> 23]++;
    }
  assert_true(fabs(kept[0] - kept[1]) < 6 * sqrt(kept[0] + kept[1]));
  assert_true(kept[0] + kept[1] > SIDE * SIDE * 0.49);
}

/* A name of the spec's own goes before the function. */
static void test_names(void **state) {
  (void)state;
  static const char *const specs[] = {
      "return attention { scalars = { random = 2.0 }, score_mod = function(s) return s * random end }",
      "return attention { inputs = { random = { axes = {'h'} } }, score_mod = function(s, b, h) return s * random[h] "
      "end }",
      "function random(x) return 2 * x end return attention { score_mod = function(s) return random(s) end }"};
  for (int i = 0; i < 3; i++) {
    luattn_spec *spec = load_text(specs[i]);
    assert_int_equal(luattn_spec_draws(spec), 0);
    luattn_spec_free(spec);
  }
}

/* ---- what is known, and what is refused ---- */

static void expect_kept(const char *mask, double least, double most) {
  char source[300];
  call c;
  luattn_error err;
  luattn_mask_counts counts = {.struct_size = sizeof counts};
  snprintf(source, sizeof source, "return attention { block_mask = function(b, h, q, kv) return %s end }", mask);
  luattn_spec *spec = load_text(source);
  call_new(&c, spec, (int[]){1, 1, 1, 256, 256, 4, 4}, DENSE, F64, F64);
  c.args.random = &numbers;
  if (luattn_mask_survey(spec, NULL, &c.args, 64, 64, &counts, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (!(counts.kept >= least * 65536 && counts.kept <= most * 65536)) fail_msg("%s: keeps %g", mask, counts.kept);
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_bounds(void **state) {
  (void)state;
  expect_kept("random(b, h, q, kv) < 0.25", 0.24, 0.26);
  expect_kept("random(b, h, q, kv) < 1", 1, 1);
  expect_kept("random(b, h, q, kv) >= 0", 1, 1);
  expect_kept("random(b, h, q, kv) >= 1", 0, 0);
  expect_kept("random(b, h, q // 64, kv // 64) < 0.5 and kv <= q", 0.1, 0.45);
  expect_kept("kv <= q + floor(40 * random(b, h, 0, 0))", 0.5, 0.65);
}

static void expect_spec(const char *source, const char *part) {
  luattn_spec *spec;
  luattn_error err;
  assert_int_equal(luattn_spec_load_text("s", source, strlen(source), NULL, &spec, &err), LUATTN_SPEC);
  if (strstr(err.message, part) == NULL) fail_msg("'%s' is not in '%s'", part, err.message);
}

static void test_errors(void **state) {
  (void)state;
  luattn_spec *spec = load_text(
                  "return attention { score_mod = function(s, b, h, q, kv) return s + random(b, h, q, kv) end }"),
              *unused = load_text(
                  "return attention { score_mod = function(s, b, h, q, kv) return s + 0 * random(b, h, q, kv) end }");
  luattn_error err;
  call c;
  assert_int_equal(luattn_spec_draws(unused), 0);
  call_new(&c, spec, (int[]){1, 1, 1, 4, 4, 2, 2}, DENSE, F64, F64);
  assert_int_equal(luattn_cpu_forward(spec, &c.args, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "random: is missing"));
  call_free(&c);
  luattn_spec_free(spec);
  luattn_spec_free(unused);
  expect_spec("return attention { score_mod = function(s, b, h, q, kv) return s + random(b, h, q) end }",
              "random: takes 4 arguments, got 3");
  expect_spec("return attention { score_mod = function(s, b, h, q, kv) return s + random(b, h, q, s) end }",
              "random: kv_idx is a float; give an integer");
  expect_spec("return attention { score_mod = function(s, b, h, q, kv) return s + random(b, 0.5, q, kv) end }",
              "random: h is a float");
  expect_spec("local x = random(0, 0, 0, 0) return attention { score_mod = function(s) return s + x end }",
              "undefined name 'random'");
  expect_spec(
      "return attention { online_func = { online_fwd = function(s, r, b, h, q) return s * random(b, h, q, 0) end } }",
      "random: is called in online_fwd; draw in score_mod");
  expect_spec("return attention { query_mod = function(x, b, h, pos, d) return x[floor(4 * random(0, 0, 0, d))] end }",
              "random()");
  expect_spec("return attention { score_mod = function(s) return s + math.random() end }",
              "write random(b, h, q_idx, kv_idx)");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),     cmocka_unit_test(test_differences),
                                     cmocka_unit_test(test_statistics), cmocka_unit_test(test_beside_dropout),
                                     cmocka_unit_test(test_bounds),     cmocka_unit_test(test_errors),
                                     cmocka_unit_test(test_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
