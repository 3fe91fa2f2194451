/* softpick_test.c: compares two variants of an online function with its formula. In one, eps is scaled like
 * the row, and its maximum drops out; in the other it is not, and a row pass finds whose derivative it is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { B = 2, H = 4, HKV = 2, Q = 33, KV = 45, D = 8, DV = 5 };

/* One row of the formula: e = exp(s) - 1, p = relu(e) / z, ds = exp(s) ([e > 0] dp - sign(e) delta) / z. */
typedef struct row {
  int kept;
  double score[KV], prob[KV], ds[KV];
} row;

static double at(const tensor *t, int b, int h, int i, int d) {
  return tensor_get(t, ((b * t->shape[1] + h) * t->shape[2] + i) * t->shape[3] + d);
}

static void run_row(const call *c, int b, int h, int q, bool scaled, row *r) {
  const int hkv = h / (H / HKV);
  double m = 0, sum = 0, delta = 0, dp[KV];
  int top = -1;
  r->kept = q + 1 < KV ? q + 1 : KV;
  for (int j = 0; j < r->kept; j++) {
    double s = 0;
    for (int d = 0; d < D; d++) s += at(&c->q, b, h, q, d) * at(&c->k, b, hkv, j, d);
    r->score[j] = s / sqrt(D);
    if (r->score[j] > m) m = r->score[j], top = j;
    sum += fabs(expm1(r->score[j]));
  }
  const double z = sum + 1e-6 * (scaled ? 1 : exp(m));
  for (int j = 0; j < r->kept; j++) {
    r->prob[j] = fmax(expm1(r->score[j]), 0) / z;
    dp[j] = 0;
    for (int d = 0; d < DV; d++) dp[j] += at(&c->dout, b, h, q, d) * at(&c->v, b, hkv, j, d);
    delta += dp[j] * r->prob[j];
  }
  for (int j = 0; j < r->kept; j++) r->ds[j] = exp(r->score[j]) * (r->score[j] > 0 ? dp[j] - delta : delta) / z;
  if (top >= 0 && !scaled) r->ds[top] -= 1e-6 * exp(m) * delta / z; /* z moves with the maximum */
}

typedef struct expected {
  double o[B * H * Q * DV], dq[B * H * Q * D], dk[B * HKV * KV * D], dv[B * HKV * KV * DV];
} expected;

static void run_formula(const call *c, bool scaled, expected *e) {
  row r;
  memset(e, 0, sizeof *e);
  for (int i = 0; i < B * H * Q; i++) {
    const int b = i / (H * Q), h = i / Q % H, q = i % Q, hkv = h / (H / HKV);
    run_row(c, b, h, q, scaled, &r);
    for (int j = 0; j < r.kept; j++) {
      const int kv = (b * HKV + hkv) * KV + j;
      for (int d = 0; d < DV; d++) {
        e->o[i * DV + d] += r.prob[j] * at(&c->v, b, hkv, j, d);
        e->dv[kv * DV + d] += r.prob[j] * at(&c->dout, b, h, q, d);
      }
      for (int d = 0; d < D; d++) {
        e->dq[i * D + d] += r.ds[j] * at(&c->k, b, hkv, j, d) / sqrt(D);
        e->dk[kv * D + d] += r.ds[j] * at(&c->q, b, h, q, d) / sqrt(D);
      }
    }
  }
}

static void open_call(call *c, const char *path, luattn_spec **spec) {
  luattn_error err;
  if (luattn_spec_load(path, NULL, spec, &err) != LUATTN_OK) fail_msg("%s", err.message);
  call_new(c, *spec, (int[]){B, H, HKV, Q, KV, D, DV}, DENSE, F64, F64);
}

/* Both passes on the CPU, against the formula. */
static void expect_formula(luattn_spec *spec, call *c, bool scaled) {
  static expected e;
  luattn_error err;
  assert_int_equal(luattn_cpu_forward(spec, &c->args, &err), LUATTN_OK);
  assert_int_equal(luattn_cpu_backward(spec, &c->args, &err), LUATTN_OK);
  run_formula(c, scaled, &e);
  assert_close("o", &c->o, e.o, 1e-12);
  assert_close("dq", &c->dq, e.dq, 1e-12);
  assert_close("dk", &c->dk, e.dk, 1e-12);
  assert_close("dv", &c->dv, e.dv, 1e-12);
}

static void expect_gradients(const char *path, bool scaled, int row_passes) {
  luattn_spec *spec;
  luattn_spec_info info;
  call c;
  open_call(&c, path, &spec);
  luattn_spec_get_info(spec, &info);
  assert_true(info.has_backward);
  assert_null(info.why_no_backward);
  assert_int_equal(luattn_spec_row_passes(spec), row_passes);
  expect_formula(spec, &c, scaled);
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_scaled_eps(void **state) {
  (void)state;
  expect_gradients(SPECS "/softpick.lua", true, 0);
}

static void test_eps_by_itself(void **state) {
  (void)state;
  expect_gradients(SPECS "/softpick_eps.lua", false, 1);
}

/* The term that keeps the maximum in is named beside the proof. */
static void test_says_how_to_do_without(void **state) {
  (void)state;
  luattn_spec *spec;
  luattn_error err;
  char *shown;
  call c;
  open_call(&c, SPECS "/softpick_eps.lua", &spec);
  luattn_target target = {.struct_size = sizeof target, .pass = LUATTN_BACKWARD, .head_dim = 64, .arch = 90};
  if (luattn_emit(spec, &target, "grad", &shown, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_non_null(strstr(shown, "reduce_max kept in 'm' does not cancel, or is not shown to: a row pass finds which"));
  assert_non_null(strstr(shown,
                         "\n# without a row pass: + 1e-06 in line 16 is not scaled with exp(-m) as the rest of "
                         "the row is: write 1e-06 * exp(-rowscales.m)\n"));
  luattn_text_free(shown);
  call_free(&c);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_scaled_eps), cmocka_unit_test(test_eps_by_itself),
                                     cmocka_unit_test(test_says_how_to_do_without)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
