/* path_test.c: compares the CPU path with a dense softmax attention from formulas; tests edge cases. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cpu_call.h"
#include "tests/support/worse.h"

/* ---- the reference: every score in memory ---- */

typedef struct dense {
  double *q, *k, *v, *dout, *dlse, *o, *lse, *dq, *dk, *dv, *score, *p;
} dense;

typedef bool (*keep_function)(const call *c, int q, int kv);
typedef double (*round_function)(double x); /* rounding of an intermediate value */

static bool keep_all(const call *c, int q, int kv) { return (void)c, (void)q, (void)kv, true; }
static bool keep_bottom_right(const call *c, int q, int kv) { return kv <= q + c->kv_len - c->q_len; }
static double exactly(double x) { return x; }
static double to_f32(double x) { return (double)(float)x; }

static double *copy_of(const tensor *t) {
  const int64_t n = tensor_count(t);
  double *x = calloc((size_t)n + 1, sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = tensor_get(t, i);
  return x;
}

static double *zeros(const tensor *t) {
  double *x = calloc((size_t)tensor_count(t) + 1, sizeof *x);
  assert_non_null(x);
  return x;
}

static void dense_free(dense *d) {
  double *const all[] = {d->q, d->k, d->v, d->dout, d->dlse, d->o, d->lse, d->dq, d->dk, d->dv, d->score, d->p};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Computes one row: P = exp(S - max) / sum, O = P V, lse = max + log(sum); with dO and dlse, dP = dO V^T,
 * dS = P (dP - rowsum(dO O) + dlse), dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO. Where S and P are rounded, each
 * operation of softmax is, too: to float32. */
static void dense_row(const call *c, dense *d, int b, int h, int i, keep_function keep, round_function rounded) {
  const int64_t qi = ((int64_t)b * c->heads + h) * c->q_len + i;
  const int64_t kv0 = ((int64_t)b * c->heads_kv + h / (c->heads / c->heads_kv)) * c->kv_len;
  const double scale = c->args.scale != 0 ? c->args.scale : 1 / sqrt((double)c->dim);
  const double *q = d->q + qi * c->dim, *dout = d->dout + qi * c->dim_v;
  const round_function real = rounded == exactly ? exactly : to_f32;
  double *o = d->o + qi * c->dim_v, *s = d->score, *p = d->p, max = -INFINITY, sum = 0, delta = 0;
  for (int j = 0; j < c->kv_len; j++) {
    s[j] = 0;
    for (int x = 0; x < c->dim; x++) s[j] += q[x] * d->k[(kv0 + j) * c->dim + x];
    s[j] = keep(c, i, j) ? rounded(scale * s[j]) : -INFINITY;
    max = fmax(max, s[j]);
  }
  d->lse[qi] = -INFINITY;
  if (max == -INFINITY) return;
  for (int j = 0; j < c->kv_len; j++) sum += real(exp(real(s[j] - max)));
  sum = real(sum);
  for (int j = 0; j < c->kv_len; j++) p[j] = rounded(real(exp(real(s[j] - max)))) * real(1 / sum);
  for (int x = 0; x < c->dim_v; x++) {
    for (int j = 0; j < c->kv_len; j++) o[x] += p[j] * d->v[(kv0 + j) * c->dim_v + x];
    delta += dout[x] * o[x];
  }
  d->lse[qi] = max + log(sum);
  for (int j = 0; j < c->kv_len; j++) {
    double dp = 0;
    for (int x = 0; x < c->dim_v; x++) {
      dp += dout[x] * d->v[(kv0 + j) * c->dim_v + x];
      d->dv[(kv0 + j) * c->dim_v + x] += p[j] * dout[x];
    }
    const double ds = scale * p[j] * (dp - delta + d->dlse[qi]);
    for (int x = 0; x < c->dim; x++) {
      d->dq[qi * c->dim + x] += ds * d->k[(kv0 + j) * c->dim + x];
      d->dk[(kv0 + j) * c->dim + x] += ds * q[x];
    }
  }
}

static void dense_run(const call *c, dense *d, keep_function keep, round_function rounded) {
  *d = (dense){.q = copy_of(&c->q),
               .k = copy_of(&c->k),
               .v = copy_of(&c->v),
               .dout = copy_of(&c->dout),
               .dlse = copy_of(&c->dlse),
               .o = zeros(&c->o),
               .lse = zeros(&c->lse),
               .dq = zeros(&c->dq),
               .dk = zeros(&c->dk),
               .dv = zeros(&c->dv)};
  d->score = calloc((size_t)c->kv_len + 1, sizeof *d->score);
  d->p = calloc((size_t)c->kv_len + 1, sizeof *d->p);
  assert_true(d->score != NULL && d->p != NULL);
  for (int b = 0; b < c->batch; b++) {
    for (int h = 0; h < c->heads; h++) {
      for (int i = 0; i < c->q_len; i++) dense_row(c, d, b, h, i, keep, rounded);
    }
  }
}

/* ---- comparisons ---- */

static void run_both(const luattn_spec *spec, const call *c) {
  luattn_error err;
  if (luattn_cpu_forward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  if (luattn_cpu_backward(spec, &c->args, &err) != LUATTN_OK) fail_msg("%s", err.message);
}

static void compare(const call *c, const dense *d, double tolerance) {
  assert_close("o", &c->o, d->o, tolerance);
  assert_close("lse", &c->lse, d->lse, tolerance);
  assert_close("dq", &c->dq, d->dq, tolerance);
  assert_close("dk", &c->dk, d->dk, tolerance);
  assert_close("dv", &c->dv, d->dv, tolerance);
}

#define PLAIN "return attention { name = 'plain' }"
#define BOTTOM_RIGHT "return attention { name = 'causal', block_mask = causal_bottom_right() }"

/* Grouped heads, q shorter and longer than kv, one and several tiles, tile edges, one row, one column. */
static const int sizes[][7] = {
    {2, 4, 2, 7, 9, 5, 3},   {1, 4, 1, 64, 64, 8, 8},  {1, 2, 2, 70, 150, 4, 3},  {2, 2, 1, 140, 66, 3, 4},
    {1, 8, 2, 1, 130, 6, 6}, {1, 2, 1, 65, 1, 70, 66}, {1, 1, 1, 129, 128, 2, 1},
};
#define NUM_SIZES ((int)(sizeof sizes / sizeof *sizes))

static void test_dense(void **state) {
  (void)state;
  const struct {
    const char *text;
    keep_function keep;
  } specs[] = {{PLAIN, keep_all}, {BOTTOM_RIGHT, keep_bottom_right}};
  for (int i = 0; i < 2 * NUM_SIZES; i++) {
    luattn_spec *spec = load_text(specs[i % 2].text);
    call c;
    dense d;
    call_new(&c, spec, sizes[i / 2], (layout)(i % NUM_LAYOUTS), F64, F64);
    c.args.scale = i % 3 == 0 ? 0.7 : 0;
    run_both(spec, &c);
    dense_run(&c, &d, specs[i % 2].keep, exactly);
    compare(&c, &d, 1e-13);
    dense_free(&d);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* For each type and layout, compares results with float64 results on the stored values. Backward uses o, lse
 * and gradients in float64. */
static void test_types(void **state) {
  (void)state;
  const DLDataType types[] = {F64, F32, F16, BF16};
  luattn_spec *spec = load_text(BOTTOM_RIGHT);
  for (int i = 0; i < 4; i++) {
    for (layout l = DENSE_NULL; l < NUM_LAYOUTS; l++) {
      call c;
      dense d;
      call_new(&c, spec, sizes[3], l, types[i], F64);
      run_both(spec, &c);
      dense_run(&c, &d, keep_bottom_right, exactly);
      compare(&c, &d, 1e-13);
      dense_free(&d);
      call_free(&c);
    }
  }
  luattn_spec_free(spec);
}

/* Outputs in a small type are the float64 results, rounded once. */
static void test_output_types(void **state) {
  (void)state;
  const DLDataType types[] = {F32, F16, BF16};
  const luattn_dtype dtypes[] = {LUATTN_F32, LUATTN_F16, LUATTN_BF16};
  luattn_spec *spec = load_text(BOTTOM_RIGHT);
  for (int i = 0; i < 3; i++) {
    call wide, narrow;
    call_new(&wide, spec, sizes[0], DENSE, F64, F64);
    call_new(&narrow, spec, sizes[0], HEADS_LAST, F64, types[i]);
    assert_int_equal(luattn_cpu_forward(spec, &wide.args, NULL), LUATTN_OK);
    assert_int_equal(luattn_cpu_forward(spec, &narrow.args, NULL), LUATTN_OK);
    for (int64_t at = 0; at < tensor_count(&wide.o); at++) {
      double x = tensor_get(&wide.o, at);
      round_all(dtypes[i], &x, 1);
      assert_true(tensor_get(&narrow.o, at) == x);
    }
    call_free(&wide);
    call_free(&narrow);
  }
  luattn_spec_free(spec);
}

/* ---- intermediates in a small type ---- */

static double to_bf16(double x) { return round_all(LUATTN_BF16, &x, 1), x; }
static double to_f16(double x) { return round_all(LUATTN_F16, &x, 1), x; }

static void test_precision(void **state) {
  (void)state;
  const struct {
    luattn_dtype dtype;
    round_function rounded;
  } precision[] = {{LUATTN_F64, exactly}, {LUATTN_F32, to_f32}, {LUATTN_F16, to_f16}, {LUATTN_BF16, to_bf16}};
  const int one_tile[] = {2, 4, 2, 7, 64, 5, 3}; /* several tiles would round against several maxima */
  luattn_spec *spec = load_text(PLAIN);
  double before = 0;
  for (int i = 0; i < 4; i++) {
    call c;
    dense d, exact;
    double error = 0;
    call_new(&c, spec, one_tile, DENSE, BF16, F64);
    assert_int_equal(luattn_cpu_forward_in(spec, &c.args, precision[i].dtype, NULL), LUATTN_OK);
    dense_run(&c, &d, keep_all, precision[i].rounded);
    dense_run(&c, &exact, keep_all, exactly);
    assert_close("o", &c.o, d.o, 1e-14);
    for (int64_t at = 0; at < tensor_count(&c.o); at++) error = worse(error, fabs(tensor_get(&c.o, at) - exact.o[at]));
    if (i > 0) assert_true(error > 2 * before); /* each type is coarser than the one before */
    before = error + 1e-15;
    luattn_error err;
    assert_int_equal(luattn_cpu_forward_in(spec, &c.args, (luattn_dtype)(4 + 90 * i), &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "expected a luattn_dtype"));
    dense_free(&d), dense_free(&exact);
    call_free(&c);
  }
  luattn_spec_free(spec);
}

/* The error of backward in a small type is about that type's unit roundoff, not more and not zero. */
static void test_backward_precision(void **state) {
  (void)state;
  const struct {
    luattn_dtype dtype;
    double unit;
  } precision[] = {{LUATTN_F32, 0x1p-24}, {LUATTN_F16, 0x1p-11}, {LUATTN_BF16, 0x1p-8}};
  luattn_spec *spec = load_text(BOTTOM_RIGHT);
  for (int i = 0; i < 3; i++) {
    call c;
    dense d;
    double error = 0, biggest = 0;
    call_new(&c, spec, sizes[3], DENSE, BF16, F64);
    assert_int_equal(luattn_cpu_forward(spec, &c.args, NULL), LUATTN_OK);
    assert_int_equal(luattn_cpu_backward_in(spec, &c.args, precision[i].dtype, NULL), LUATTN_OK);
    dense_run(&c, &d, keep_bottom_right, exactly);
    for (int64_t at = 0; at < tensor_count(&c.dq); at++) {
      error = worse(error, fabs(tensor_get(&c.dq, at) - d.dq[at])), biggest = fmax(biggest, fabs(d.dq[at]));
    }
    assert_true(error < 16 * precision[i].unit * biggest && error > precision[i].unit * biggest / 16);
    dense_free(&d);
    call_free(&c);
  }
  luattn_spec_free(spec);
}

/* Adds the squares of the terms of row i of head h to dq, dk and dv. The magnitude of dS is computed from the
 * magnitudes of its terms: P (|dP| + |dlse| + sqrt(sum (dO O)^2)). */
static void square_row(const call *c, dense *d, int b, int h, int i) {
  const int64_t qi = ((int64_t)b * c->heads + h) * c->q_len + i;
  const int64_t kv0 = ((int64_t)b * c->heads_kv + h / (c->heads / c->heads_kv)) * c->kv_len;
  const double scale = 1 / sqrt((double)c->dim), *q = d->q + qi * c->dim, *dout = d->dout + qi * c->dim_v;
  double delta = 0;
  for (int x = 0; x < c->dim_v; x++) delta += pow(dout[x] * d->o[qi * c->dim_v + x], 2);
  for (int64_t j = kv0; j < kv0 + c->kv_len; j++) {
    const double *k = d->k + j * c->dim;
    double s = 0, dp = 0;
    for (int x = 0; x < c->dim; x++) s += scale * q[x] * k[x];
    const double p = exp(s - d->lse[qi]);
    for (int x = 0; x < c->dim_v; x++) {
      dp += dout[x] * d->v[j * c->dim_v + x];
      d->dv[j * c->dim_v + x] += pow(p * dout[x], 2);
    }
    const double ds = scale * p * (fabs(dp) + fabs(d->dlse[qi]) + sqrt(delta));
    for (int x = 0; x < c->dim; x++) {
      d->dq[qi * c->dim + x] += pow(ds * k[x], 2);
      d->dk[j * c->dim + x] += pow(ds * q[x], 2);
    }
  }
}

static void roots(double *x, int64_t n, double factor) {
  for (int64_t i = 0; i < n; i++) x[i] = factor * sqrt(x[i]);
}

/* Checks the noise of dq, dk and dv (the effect of independent roundings) by its definition; key_mod doubles
 * keys. */
static void test_noise(void **state) {
  (void)state;
  luattn_spec *spec =
      load_text("return attention { name = 'doubled', key_mod = function(x, b, h, pos, d) return -2 * x end }");
  for (int size = 0; size < 3; size++) {
    call c;
    dense d;
    call_new(&c, spec, sizes[size], DENSE, F64, F64);
    run_both(spec, &c);
    for (int64_t i = 0; i < tensor_count(&c.k); i++) tensor_set(&c.k, i, -2 * tensor_get(&c.k, i));
    dense_run(&c, &d, keep_all, exactly);
    for (int64_t i = 0; i < tensor_count(&c.k); i++) tensor_set(&c.k, i, tensor_get(&c.k, i) / -2);
    memset(d.dq, 0, (size_t)tensor_count(&c.dq) * sizeof *d.dq);
    memset(d.dk, 0, (size_t)tensor_count(&c.dk) * sizeof *d.dk);
    memset(d.dv, 0, (size_t)tensor_count(&c.dv) * sizeof *d.dv);
    for (int row = 0; row < c.batch * c.heads * c.q_len; row++)
      square_row(&c, &d, row / c.q_len / c.heads, row / c.q_len % c.heads, row % c.q_len);
    roots(d.dq, tensor_count(&c.dq), 1);
    roots(d.dk, tensor_count(&c.dk), 2);
    roots(d.dv, tensor_count(&c.dv), 1);
    assert_int_equal(cpu_gradient_noise(spec, &c.args, NULL), LUATTN_OK);
    compare(&c, &d, 1e-13);
    dense_free(&d);
    call_free(&c);
  }
  luattn_spec_free(spec);
}

/* ---- edges ---- */

static void assert_all(const char *what, const tensor *t, double want) {
  for (int64_t i = 0, n = tensor_count(t); i < n; i++) {
    if (tensor_get(t, i) != want) fail_msg("%s[%lld] is %g, expected %g", what, (long long)i, tensor_get(t, i), want);
  }
}

static const char *const online[] = {"online_softmax",   "softmax_one",       "attention_sink(0.5)",
                                     "online_retention", "sigmoid_attention", "relu_attention",
                                     "identity"};
#define NUM_ONLINE ((int)(sizeof online / sizeof *online))

/* Rows without a single kept score: O = 0, lse = -inf, no gradient of q; if all rows are such, no gradient at
 * all. */
static void test_empty_rows(void **state) {
  (void)state;
  const int size[] = {2, 2, 1, 70, 70, 4, 3};
  for (int i = 0; i < 2 * NUM_ONLINE; i++) {
    const bool all = i >= NUM_ONLINE;
    char source[256];
    call c;
    snprintf(source, sizeof source,
             "return attention { online_func = %s, block_mask = function(b, h, q_idx, kv_idx) return kv_idx "
             "< q_idx - %d end }",
             online[i % NUM_ONLINE], all ? 100 : 5);
    luattn_spec *spec = load_text(source);
    call_new(&c, spec, size, PADDED, F64, F64);
    run_both(spec, &c);
    for (int64_t row = 0; row < 4 * 70; row++) {
      const bool empty = all || row % 70 < 6;
      for (int d = 0; d < 3; d++)
        assert_true(empty ? tensor_get(&c.o, 3 * row + d) == 0 : isfinite(tensor_get(&c.o, 3 * row + d)));
      for (int d = 0; d < 4; d++)
        assert_true(empty ? tensor_get(&c.dq, 4 * row + d) == 0 : isfinite(tensor_get(&c.dq, 4 * row + d)));
      if (c.args.lse != NULL)
        assert_true(empty ? tensor_get(&c.lse, row) == -INFINITY : isfinite(tensor_get(&c.lse, row)));
    }
    for (int64_t at = 0; at < tensor_count(&c.dk); at++) assert_true(isfinite(tensor_get(&c.dk, at)));
    for (int64_t at = 0; at < tensor_count(&c.dv); at++) assert_true(isfinite(tensor_get(&c.dv, at)));
    if (all) assert_all("dk", &c.dk, 0), assert_all("dv", &c.dv, 0);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* Without keys, queries or batch entries, the outputs that exist are written, and NULL data is valid for a
 * tensor without elements. */
static void test_no_elements(void **state) {
  (void)state;
  const int none[][7] = {{2, 2, 1, 5, 0, 4, 3}, {2, 2, 1, 0, 5, 4, 3}, {0, 2, 1, 5, 5, 4, 3}, {2, 2, 1, 0, 0, 4, 3}};
  for (int i = 0; i < NUM_ONLINE * 4; i++) {
    char source[128];
    call c;
    snprintf(source, sizeof source, "return attention { online_func = %s, block_mask = causal() }", online[i / 4]);
    luattn_spec *spec = load_text(source);
    call_new(&c, spec, none[i % 4], DENSE_NULL, F32, F64);
    for (int null = 0; null < 2; null++) {
      run_both(spec, &c);
      assert_all("o", &c.o, 0), assert_all("dq", &c.dq, 0), assert_all("dk", &c.dk, 0), assert_all("dv", &c.dv, 0);
      if (c.args.lse != NULL) assert_all("lse", &c.lse, -INFINITY);
      tensor *const all[] = {&c.q, &c.k, &c.v, &c.o, &c.dout, &c.dq, &c.dk, &c.dv};
      for (int t = 0; t < 8; t++) {
        if (tensor_count(all[t]) == 0) all[t]->t.data = NULL;
      }
    }
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* Without keys every gather from an input along kv gives 0, and its gradient has no element to add to. The
 * index on the other axis must not address another input's element. An infinite q would turn a product with a
 * gradient of 0 into NaN. */
static void test_gradient_of_nothing(void **state) {
  (void)state;
  const int64_t wide[] = {3, 2000000};
  for (int i = 0; i < 2; i++) {
    char source[256];
    call c;
    tensor a, b, a_grad, b_grad;
    snprintf(source, sizeof source,
             "return attention { inputs = { a = { axes = {'kv', %d}, grad = true }, b = { axes = {4}, grad = "
             "true } },"
             " query_mod = function(x, b_, h, pos, d) return x * a[{pos, %d}] + b[1] end }",
             (int)wide[i], (int)wide[i] - 1);
    luattn_spec *spec = load_text(source);
    call_new(&c, spec, (const int[]){1, 1, 1, 4, 0, 2, 2}, DENSE, F64, F64);
    tensor_new(&a, F64, 2, (int64_t[]){0, wide[i]}, DENSE), tensor_new(&b, F64, 1, (int64_t[]){4}, DENSE);
    tensor_new(&a_grad, F64, 2, a.shape, DENSE), tensor_new(&b_grad, F64, 1, b.shape, DENSE);
    tensor *const all[] = {&a, &b, &a_grad, &b_grad};
    for (int t = 0; t < 4; t++) all[t]->t.shape = all[t]->shape, all[t]->t.strides = all[t]->stride;
    tensor_fill(&b, 6);
    tensor_set(&c.q, 0, INFINITY);
    const luattn_input inputs[] = {{"a", &a.t, &a_grad.t}, {"b", &b.t, &b_grad.t}};
    c.args.inputs = inputs, c.args.num_inputs = 2;
    run_both(spec, &c);
    assert_all("o", &c.o, 0), assert_all("grad of b", &b_grad, 0);
    for (int t = 0; t < 4; t++) tensor_free(all[t]);
    call_free(&c);
    luattn_spec_free(spec);
  }
}

/* Outputs that are NULL, or whose data pointer is NULL, are not computed. */
static void test_wanted_outputs(void **state) {
  (void)state;
  luattn_spec *spec = load_text(BOTTOM_RIGHT);
  call all, some;
  call_new(&all, spec, sizes[0], DENSE, F64, F64);
  call_new(&some, spec, sizes[0], DENSE, F64, F64);
  run_both(spec, &all);
  assert_int_equal(luattn_cpu_forward(spec, &some.args, NULL), LUATTN_OK);
  some.args.dq = NULL;
  some.dv.t.data = NULL;
  assert_int_equal(luattn_cpu_backward(spec, &some.args, NULL), LUATTN_OK);
  for (int64_t i = 0; i < tensor_count(&all.dk); i++) assert_true(tensor_get(&all.dk, i) == tensor_get(&some.dk, i));
  for (int64_t i = 0; i < tensor_count(&all.dq); i++) assert_true(isnan(tensor_get(&some.dq, i)));
  some.args.lse = NULL;
  assert_int_equal(luattn_cpu_forward(spec, &some.args, NULL), LUATTN_OK);
  call_free(&all);
  call_free(&some);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dense),
      cmocka_unit_test(test_types),
      cmocka_unit_test(test_output_types),
      cmocka_unit_test(test_precision),
      cmocka_unit_test(test_backward_precision),
      cmocka_unit_test(test_noise),
      cmocka_unit_test(test_empty_rows),
      cmocka_unit_test(test_no_elements),
      cmocka_unit_test(test_gradient_of_nothing),
      cmocka_unit_test(test_wanted_outputs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
