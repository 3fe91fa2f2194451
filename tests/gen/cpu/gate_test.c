/* gate_test.c: a factor of a row that is exactly 0 has a gradient, and so have the scores behind it: none of
 * them is divided by that factor. Compared with softmax's formula, of which the gate is a multiple. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdio.h>

enum { B = 2, H = 4, HKV = 2, Q = 9, KV = 11, D = 4, DV = 5 };

typedef struct gate {
  const char *lua; /* of g */
  double g[H], value[H], slope[H];
} gate;

static double at(const tensor *t, int b, int h, int i, int d) {
  return tensor_get(t, ((b * t->shape[1] + h) * t->shape[2] + i) * t->shape[3] + d);
}

typedef struct expected {
  double dq[B * H * Q * D], dg[H], dgq[H * Q];
} expected;

/* Adds a row that keeps `kept` keys. */
static void add_row(const call *c, const gate *x, int b, int h, int q, int kept, expected *e) {
  double p[KV], dp[KV], m = -INFINITY, sum = 0, delta = 0;
  for (int j = 0; j < kept; j++) {
    p[j] = dp[j] = 0;
    for (int d = 0; d < D; d++) p[j] += at(&c->q, b, h, q, d) * at(&c->k, b, h / 2, j, d) / sqrt(D);
    for (int d = 0; d < DV; d++) dp[j] += at(&c->dout, b, h, q, d) * at(&c->v, b, h / 2, j, d);
    m = fmax(m, p[j]);
  }
  for (int j = 0; j < kept; j++) sum += p[j] = exp(p[j] - m);
  for (int j = 0; j < kept; j++) delta += (p[j] /= sum) * dp[j];
  e->dg[h] += x->slope[h] * delta;
  e->dgq[h * Q + q] += x->slope[h] * delta;
  for (int j = 0; j < kept; j++) {
    const double ds = p[j] * (x->value[h] * (dp[j] - delta) + tensor_get(&c->dlse, (b * H + h) * Q + q));
    for (int d = 0; d < D; d++) e->dq[((b * H + h) * Q + q) * D + d] += ds * at(&c->k, b, h / 2, j, d) / sqrt(D);
  }
}

/* The gate reads g[h], or by query g[{h, q_idx}]; the last two rows keep nothing. */
static void check_gate(const gate *x, bool by_query) {
  static expected e;
  char source[1024];
  luattn_error err;
  snprintf(source, sizeof source,
           "return attention { inputs = { g = { axes = %s, dtype = 'f64', grad = true } },\n"
           "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx and q_idx < q_len - 2 end,\n"
           "  online_func = { online_rowscales = { m = -1e37, l = 0 }, final_rowscales = { 'lse' },\n"
           "    online_fwd = function(scores, r)\n"
           "      local m = max(r.m, reduce_max(scores))\n"
           "      local f, p = exp(r.m - m), exp(scores - m)\n"
           "      return p, { m = m, l = r.l * f + reduce_sum(p) }, f\n"
           "    end,\n"
           "    online_fwd_epilogue = function(o, r, b, h, q_idx)\n"
           "      local x = g[%s]\n"
           "      return o * (%s) / r.l, { lse = log(r.l) + r.m }\n"
           "    end } }",
           by_query ? "{'h', 'q'}" : "{'h'}", by_query ? "{h, q_idx}" : "h", x->lua);
  luattn_spec *spec = load_text(source);
  call c;
  tensor g, dg;
  call_new(&c, spec, (int[]){B, H, HKV, Q, KV, D, DV}, DENSE, F64, F64);
  const int64_t shape[] = {H, Q};
  tensor_new(&g, F64, by_query ? 2 : 1, shape, DENSE), tensor_new(&dg, F64, by_query ? 2 : 1, shape, DENSE);
  g.t.shape = g.shape, dg.t.shape = dg.shape;
  for (int i = 0; i < tensor_count(&g); i++) tensor_set(&g, i, x->g[by_query ? i / Q : i]);
  const luattn_input input = {"g", &g.t, &dg.t};
  c.args.inputs = &input, c.args.num_inputs = 1;
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s: %s", x->lua, err.message);
  e = (expected){.dq = {0}};
  for (int i = 0; i < B * H * (Q - 2); i++)
    add_row(&c, x, i / (Q - 2) / H, i / (Q - 2) % H, i % (Q - 2), i % (Q - 2) + 1, &e);
  assert_close(x->lua, &c.dq, e.dq, 1e-12);
  assert_close(x->lua, &dg, by_query ? e.dgq : e.dg, 1e-12);
  call_free(&c), tensor_free(&g), tensor_free(&dg);
  luattn_spec_free(spec);
}

static double slope_of_tanh(double x) { return 1 - tanh(x) * tanh(x); }

static void test_zero_gates(void **state) {
  (void)state;
  const gate gates[] = {
      {"tanh(x)", {0, 0.5, 0, -2}, {0, tanh(0.5), 0, tanh(-2)}, {1, slope_of_tanh(0.5), 1, slope_of_tanh(2)}},
      {"x", {0, 1, 1, 0}, {0, 1, 1, 0}, {1, 1, 1, 1}}, /* DropPath's */
      {"1 - x", {1, 1, 0.25, 0}, {0, 0, 0.75, 1}, {-1, -1, -1, -1}},
      {"sigmoid(x)", {-1000, 0, -1000, 0}, {0, 0.5, 0, 0.5}, {0, 0.25, 0, 0.25}}, /* it underflows */
      {"exp(x)", {-1000, 0, -1000, 0}, {0, 1, 0, 1}, {0, 1, 0, 1}},
      {"where(x > 0, x, 0) * x", {-1, 0, 1, 2}, {0, 0, 1, 4}, {0, 0, 2, 4}},
      {"sin(x)", {0, 1, 0, 1}, {0, sin(1), 0, sin(1)}, {1, cos(1), 1, cos(1)}}};
  for (size_t i = 0; i < sizeof gates / sizeof gates[0]; i++) {
    check_gate(&gates[i], false);
    check_gate(&gates[i], true);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_zero_gates)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
