/* weights_test.c: luattn_cpu_weights against softmax by its definition, and against O of V that is the identity, for
 * every kind of online function, with dropout and without; errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { BATCH = 2, HEADS = 4, Q_LEN = 67, KV_LEN = 150, DIM = 5 };
static const int size[7] = {BATCH, HEADS, 2, Q_LEN, KV_LEN, DIM, KV_LEN};
static const luattn_random numbers = {.struct_size = sizeof numbers, .seed = 3, .offset = 8};

static void open_weights(tensor *t, DLDataType type) {
  tensor_new(t, type, 4, (int64_t[]){BATCH, HEADS, Q_LEN, KV_LEN}, PADDED);
  t->t.shape = t->shape, t->t.strides = t->stride;
}

static void weigh(const luattn_spec *spec, call *c, tensor *weights) {
  luattn_error err;
  c->args.random = &numbers;
  if (luattn_cpu_weights(spec, &c->args, &weights->t, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void test_softmax(void **state) {
  (void)state;
  luattn_spec *spec = load_text("return attention { block_mask = causal_bottom_right() }");
  tensor got;
  call c;
  call_new(&c, spec, size, DENSE, F64, F64);
  open_weights(&got, F64);
  weigh(spec, &c, &got);
  for (int row = 0; row < BATCH * HEADS * Q_LEN; row++) {
    const int q = row % Q_LEN, head = row / Q_LEN / 2 * KV_LEN; /* two query heads each */
    double p[KV_LEN], sum = 0;
    for (int kv = 0; kv < KV_LEN; kv++) {
      double s = 0;
      for (int d = 0; d < DIM; d++)
        s += tensor_get(&c.q, (int64_t)row * DIM + d) * tensor_get(&c.k, (int64_t)(head + kv) * DIM + d);
      sum += p[kv] = kv <= q + KV_LEN - Q_LEN ? exp(s / sqrt(DIM)) : 0;
    }
    for (int kv = 0; kv < KV_LEN; kv++)
      if (!(fabs(tensor_get(&got, (int64_t)row * KV_LEN + kv) - p[kv] / sum) <= 1e-14))
        fail_msg("row %d, key %d", row, kv);
  }
  tensor_free(&got);
  call_free(&c);
  luattn_spec_free(spec);
}

/* O of such V is a row's weights, scaled and dropped. */
static void expect_as_forward(const char *fields, double scale) {
  char source[400];
  tensor got;
  call c;
  int negative = 0, none = 0;
  snprintf(source, sizeof source, "return attention { %s }", fields);
  luattn_spec *spec = load_text(source);
  call_new(&c, spec, size, DENSE, F64, F64);
  open_weights(&got, F64);
  for (int64_t i = 0; i < tensor_count(&c.v); i++) tensor_set(&c.v, i, i % KV_LEN == i / KV_LEN % KV_LEN);
  weigh(spec, &c, &got);
  for (int64_t i = 0; i < tensor_count(&got); i++) {
    const double w = tensor_get(&got, i), o = tensor_get(&c.o, i);
    negative += w < 0, none += w == 0;
    if (!(fabs(o - (w < 0 ? 0 : w * scale)) <= 1e-13))
      fail_msg("%s: element %lld: weight %.17g, O %.17g", fields, (long long)i, w, o);
  }
  assert_true(scale == 1 ? negative == 0 : negative > 0);
  assert_true(none < tensor_count(&got));
  tensor_free(&got);
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_every_function(void **state) {
  (void)state;
  expect_as_forward("block_mask = sliding_window(20, 3)", 1);
  expect_as_forward("online_func = softmax_one, score_mod = softcap(5)", 1);
  expect_as_forward(
      "online_func = attention_sink(function(b, h) return 0.5 end), block_mask = function(b, h, q, kv) return q % 5 > "
      "1 and kv < q end",
      1);
  expect_as_forward("online_func = sigmoid_attention", 1);
  expect_as_forward("online_func = dropout(0.25), block_mask = causal()", 256.0 / 192);
  expect_as_forward(
      "online_func = dropout(0.5, sigmoid_attention), query_mod = function(x, b, h, pos, d) return x * d end", 2);
  expect_as_forward(
      "online_func = { online_fwd = function(s) return exp(0.1 * s) end, online_fwd_epilogue = function(o) return o * "
      "3 end }",
      1);
}

static void expect_refused(const luattn_spec *spec, const call *c, const DLTensor *weights, const char *part) {
  luattn_error err;
  assert_int_equal(luattn_cpu_weights(spec, &c->args, weights, &err), LUATTN_INVALID);
  if (strstr(err.message, part) == NULL) fail_msg("'%s' is not in '%s'", part, err.message);
}

static void test_errors(void **state) {
  (void)state;
  luattn_spec *spec = load_text("return attention {}");
  tensor got, small;
  call c;
  call_new(&c, spec, size, DENSE, F64, F64);
  open_weights(&got, F32);
  tensor_new(&small, F64, 4, (int64_t[]){BATCH, HEADS, Q_LEN, KV_LEN - 1}, DENSE);
  small.t.shape = small.shape, small.t.strides = small.stride;
  expect_refused(spec, &c, NULL, "weights");
  expect_refused(spec, &c, &small.t, "weights");
  DLTensor shared = got.t; /* of O's memory, whose shape is the same */
  shared = *c.args.o;
  expect_refused(spec, &c, &shared, "weights: its memory");
  c.args.struct_size = 3;
  expect_refused(spec, &c, &got.t, "struct_size");
  c.args.struct_size = sizeof c.args;
  weigh(spec, &c, &got); /* any type */
  tensor_free(&got);
  tensor_free(&small);
  call_free(&c);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_softmax), cmocka_unit_test(test_every_function),
                                     cmocka_unit_test(test_errors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
