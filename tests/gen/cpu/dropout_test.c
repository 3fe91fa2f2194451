/* dropout_test.c: dropout on the CPU path, against a dense attention that draws by a Philox of its own, written
 * from the published algorithm; gradients by differences; rate and independence of the draws; errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

/* The draw of a score, 0 to 255, as docs/language.md describes it. */
static int draw(uint64_t seed, uint64_t offset, int heads, int b, int h, int q, int kv) {
  const uint64_t stream = offset + (uint64_t)b * (uint64_t)heads + (uint64_t)h;
  const uint32_t key[] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  const int bit = kv / 2 % 2 * 16 + kv % 2 * 8 + q % 2 * 4 + q / 8 % 2 * 2 + kv / 8 % 2;
  int value = 0;
  for (int half = 0; half < 2; half++) {
    const uint32_t counter[] = {(uint32_t)stream, (uint32_t)(stream >> 32), (uint32_t)(q / 16 * 4 + q % 8 / 2),
                                (uint32_t)(kv / 16 * 4 + kv % 8 / 4 * 2 + half)};
    uint32_t words[4];
    philox(key, counter, words);
    for (int i = 0; i < 4; i++) value = value * 2 + (int)(words[i] >> bit & 1);
  }
  return value;
}

/* ---- a dense reference ---- */

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, Q_LEN = 70, KV_LEN = 83, DIM = 5, DIM_V = 6, KEEP = 192 };
static const int size[7] = {BATCH, HEADS, HEADS_KV, Q_LEN, KV_LEN, DIM, DIM_V};
static const uint64_t seed = UINT64_C(0x123456789abcdef0), offset = UINT64_C(0xfffffffc);

typedef struct dense {
  double o[BATCH * HEADS * Q_LEN * DIM_V], lse[BATCH * HEADS * Q_LEN], dq[BATCH * HEADS * Q_LEN * DIM],
      dk[BATCH * HEADS_KV * KV_LEN * DIM], dv[BATCH * HEADS_KV * KV_LEN * DIM_V];
} dense;

/* P = exp(s - lse); M = 256 / keep where the draw is below keep, else 0; O = (P M) V; dP = M (dO V^T);
 * dS = P (dP - rowsum(dO O) + dlse). */
static void dense_row(const call *c, int b, int h, int q, dense *d) {
  const int64_t row = ((int64_t)b * HEADS + h) * Q_LEN + q,
                first = ((int64_t)b * HEADS_KV + h / (HEADS / HEADS_KV)) * KV_LEN;
  double s[KV_LEN], m[KV_LEN], sum = 0, delta = 0;
  for (int j = 0; j < KV_LEN; j++) {
    s[j] = 0;
    for (int x = 0; x < DIM; x++)
      s[j] += tensor_get(&c->q, row * DIM + x) * tensor_get(&c->k, (first + j) * DIM + x) / sqrt(DIM);
    if (j > q + KV_LEN - Q_LEN) s[j] = -INFINITY;
    sum += exp(s[j]);
    m[j] = draw(seed, offset, HEADS, b, h, q, j) < KEEP ? 256.0 / KEEP : 0;
  }
  d->lse[row] = log(sum);
  for (int x = 0; x < DIM_V; x++) {
    double o = 0;
    for (int j = 0; j < KV_LEN; j++) o += exp(s[j]) / sum * m[j] * tensor_get(&c->v, (first + j) * DIM_V + x);
    d->o[row * DIM_V + x] = o;
    delta += o * tensor_get(&c->dout, row * DIM_V + x);
  }
  for (int j = 0; j < KV_LEN; j++) {
    const double p = exp(s[j]) / sum;
    double dp = 0;
    for (int x = 0; x < DIM_V; x++) {
      dp += m[j] * tensor_get(&c->dout, row * DIM_V + x) * tensor_get(&c->v, (first + j) * DIM_V + x);
      d->dv[(first + j) * DIM_V + x] += p * m[j] * tensor_get(&c->dout, row * DIM_V + x);
    }
    const double ds = p * (dp - delta + tensor_get(&c->dlse, row)) / sqrt(DIM);
    for (int x = 0; x < DIM; x++) {
      d->dq[row * DIM + x] += ds * tensor_get(&c->k, (first + j) * DIM + x);
      d->dk[(first + j) * DIM + x] += ds * tensor_get(&c->q, row * DIM + x);
    }
  }
}

#define DROPPED "return attention { block_mask = causal_bottom_right(), online_func = dropout(0.25) }"

static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = seed, .offset = offset};

static void run(const luattn_spec *spec, const call *c) {
  luattn_error err;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_cpu_backward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void test_dense(void **state) {
  (void)state;
  static dense want;
  luattn_spec *spec = load_text(DROPPED);
  call c;
  assert_int_equal(luattn_spec_draws(spec), 1);
  call_new(&c, spec, size, PADDED, F64, F64);
  c.args.random = &numbers;
  run(spec, &c);
  memset(&want, 0, sizeof want);
  for (int row = 0; row < BATCH * HEADS * Q_LEN; row++)
    dense_row(&c, row / Q_LEN / HEADS, row / Q_LEN % HEADS, row % Q_LEN, &want);
  assert_close("o", &c.o, want.o, 1e-13);
  assert_close("lse", &c.lse, want.lse, 1e-13);
  assert_close("dq", &c.dq, want.dq, 1e-13);
  assert_close("dk", &c.dk, want.dk, 1e-13);
  assert_close("dv", &c.dv, want.dv, 1e-13);
  call_free(&c);
  luattn_spec_free(spec);
}

/* Numbers in memory: *seed_at counts in place of seed, *offset_at beside offset. */
static void test_pointers(void **state) {
  (void)state;
  const uint64_t seed_there = seed, offset_there = offset - 1000;
  const luattn_random there = {
      .struct_size = sizeof there, .seed = 5, .offset = 1000, .seed_at = &seed_there, .offset_at = &offset_there};
  luattn_spec *spec = load_text(DROPPED);
  call a, b;
  call_new(&a, spec, size, DENSE, F64, F64);
  call_new(&b, spec, size, DENSE, F64, F64);
  a.args.random = &numbers, b.args.random = &there;
  run(spec, &a), run(spec, &b);
  for (int64_t i = 0; i < tensor_count(&a.o); i++) assert_true(tensor_get(&a.o, i) == tensor_get(&b.o, i));
  for (int64_t i = 0; i < tensor_count(&a.dv); i++) assert_true(tensor_get(&a.dv, i) == tensor_get(&b.dv, i));
  call_free(&a);
  call_free(&b);
  luattn_spec_free(spec);
}

/* ---- any online function: gradients by differences, with the same draws ---- */

static void test_differences(void **state) {
  (void)state;
  static const char *const specs[] = {
      DROPPED, "return attention { online_func = dropout(0.5, softmax_one), score_mod = softcap(2) }",
      "return attention { online_func = dropout(0.1, sigmoid_attention), block_mask = causal() }",
      "return attention { online_func = dropout(0.3, online_retention) }",
      "return attention { online_func = dropout(0.9, { name = 'own', online_fwd = function(s) return exp(0.1 * s) "
      "end,\n"
      "  backward = function(dp, p) return 0.1 * p * dp end }) }"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    luattn_spec *spec = load_text(specs[i]);
    call c;
    call_new(&c, spec, (int[]){1, 2, 1, 9, 18, 4, 3}, DENSE, F64, F64);
    c.args.random = &numbers;
    run(spec, &c);
    assert_differences(spec, &c, &c.q, &c.dq);
    assert_differences(spec, &c, &c.k, &c.dk);
    assert_differences(spec, &c, &c.v, &c.dv);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* ---- statistics ---- */

/* Of n draws that are kept with probability p, the number kept is off by more than 5 standard deviations once in 1.7
 * million times; seeds are fixed, so this test passes always or never. */
static void expect_rate(double kept, double n, double p) {
  const double off = fabs(kept - n * p), deviation = sqrt(n * p * (1 - p));
  if (off > 5 * deviation) fail_msg("%g of %g are kept, expected %g, deviation %g", kept, n, n * p, deviation);
}

enum { SIDE = 256 };
static void draw_all(uint64_t from_seed, uint64_t from_offset, int h, unsigned char kept[SIDE][SIDE]) {
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) kept[q][kv] = draw(from_seed, from_offset, 8, 0, h, q, kv) < KEEP;
}

/* The rate, and that neighbours at any small distance, also within a patch, and other seeds, offsets and heads are
 * independent: both are kept as often as the product of their rates says. */
static void test_statistics(void **state) {
  (void)state;
  static unsigned char one[SIDE][SIDE], other[4][SIDE][SIDE];
  const double p = KEEP / 256.0;
  double sum = 0;
  draw_all(1, 0, 0, one);
  draw_all(2, 0, 0, other[0]), draw_all(1, 8, 0, other[1]), draw_all(1, 0, 1, other[2]),
      draw_all(UINT64_C(1) << 32 | 1, 0, 0, other[3]);
  for (int q = 0; q < SIDE; q++)
    for (int kv = 0; kv < SIDE; kv++) sum += one[q][kv];
  expect_rate(sum, SIDE * SIDE, p);
  for (int dq = 0; dq <= 17; dq++)
    for (int dkv = 0; dkv <= 17; dkv++) {
      double both = 0;
      if (dq == 0 && dkv == 0) continue;
      for (int q = 0; q < SIDE; q++)
        for (int kv = 0; kv < SIDE; kv++) both += one[q][kv] && one[(q + dq) % SIDE][(kv + dkv) % SIDE];
      expect_rate(both, SIDE * SIDE, p * p);
    }
  for (int i = 0; i < 4; i++) {
    double both = 0;
    for (int q = 0; q < SIDE; q++)
      for (int kv = 0; kv < SIDE; kv++) both += one[q][kv] && other[i][q][kv];
    expect_rate(both, SIDE * SIDE, p * p);
  }
}

/* ---- what is refused ---- */

static void test_without(void **state) {
  (void)state;
  luattn_spec *plain = load_text("return attention {}"),
              *none = load_text("return attention { online_func = dropout(0) }");
  call a, b;
  assert_int_equal(luattn_spec_draws(plain), 0);
  assert_int_equal(luattn_spec_draws(none), 0);
  assert_int_equal(luattn_spec_draws(NULL), 0);
  call_new(&a, plain, size, DENSE, F64, F64);
  call_new(&b, none, size, DENSE, F64, F64);
  run(plain, &a), run(none, &b); /* without luattn_args.random */
  for (int64_t i = 0; i < tensor_count(&a.o); i++) assert_true(tensor_get(&a.o, i) == tensor_get(&b.o, i));
  call_free(&a);
  call_free(&b);
  luattn_spec_free(plain);
  luattn_spec_free(none);
}

static void expect_call(const luattn_random *random, const char *part) {
  luattn_spec *spec = load_text(DROPPED);
  luattn_error err;
  call c;
  call_new(&c, spec, size, DENSE, F64, F64);
  c.args.random = random;
  assert_int_equal(luattn_cpu_forward(spec, &c.args, &err), LUATTN_INVALID);
  if (strstr(err.message, part) == NULL) fail_msg("'%s' is not in '%s'", part, err.message);
  assert_int_equal(luattn_cpu_backward(spec, &c.args, &err), LUATTN_INVALID);
  call_free(&c);
  luattn_spec_free(spec);
}

static void expect_spec(const char *online, const char *part) {
  char given[300];
  luattn_spec *spec;
  luattn_error err;
  snprintf(given, sizeof given, "return attention { online_func = %s }", online);
  assert_int_equal(luattn_spec_load_text("s", given, strlen(given), NULL, &spec, &err), LUATTN_SPEC);
  if (strstr(err.message, part) == NULL) fail_msg("'%s' is not in '%s'", part, err.message);
}

static void test_errors(void **state) {
  (void)state;
  const luattn_random odd = {.struct_size = sizeof odd, .seed_at = (const uint64_t *)(uintptr_t)4},
                      empty = {.struct_size = 3};
  expect_call(NULL, "random: is missing");
  expect_call(&odd, "seed_at: address 0x4 is not a multiple of 8");
  expect_call(&empty, "struct_size");
  expect_spec("dropout(1)", "p is 1; give a number, at least 0 and below 1");
  expect_spec("dropout(-0.1)", "at least 0");
  expect_spec("dropout(0 / 0)", "at least 0");
  expect_spec("dropout('p')", "give a number");
  expect_spec("dropout(0.001)", "which rounds to 0 in steps of 1/256");
  expect_spec("dropout(0.999)", "which rounds to 1 in steps of 1/256");
  expect_spec("dropout(0.1, dropout(0.1))", "already dropped");
  expect_spec("dropout(0.1, causal())", "is a function");
  expect_spec("{ online_fwd = function(s) return s end, keep = 0 }", "keep is 0");
  expect_spec("{ online_fwd = function(s) return s end, keep = 0.9 }", "keep is 0.9; it must be an integer, 1 to 256");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense),       cmocka_unit_test(test_pointers),
                                     cmocka_unit_test(test_differences), cmocka_unit_test(test_statistics),
                                     cmocka_unit_test(test_without),     cmocka_unit_test(test_errors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
