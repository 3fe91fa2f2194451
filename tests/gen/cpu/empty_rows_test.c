/* empty_rows_test.c: rows that keep nothing add 0 to every gradient, whatever an epilogue makes of their start:
 * infinities and 0 / 0. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { Q = 12, KV = 9 };

static const char *const epilogues[] = {
    "local x = min(r.l, t * (1 + w[q_idx]) * exp(-r.m)) return o / x, { r = x }",
    "local x = min(r.l, -t * (1 + w[q_idx]) * exp(-r.m)) return o / x, { r = x }",
    "local x = max(r.l, t * (1 + w[q_idx]) * exp(-r.m)) return o / x, { r = x }",
    "local x = r.l + t * (1 + w[q_idx]) * exp(-r.m) return o / x, { r = x }",
    "local x = sqrt(r.l * abs(t) * (1 + w[q_idx])) return o / x, { r = x }",
    "local x = r.l ^ (t * (1 + w[q_idx])) return o / x, { r = x }",
    "local x = log1p(r.l) * t * (1 + w[q_idx]) return o / x, { r = x }",
    "local x = r.l * exp(t + w[q_idx]) return o / x, { r = x }",
    "local x = r.l / (t + w[q_idx]) return o * tanh(x) / r.l, { r = x }",
    "return o / r.l / t / (1 + w[q_idx]), { lse = log(r.l) + r.m + t * w[q_idx] }",
    "local x = min(r.l, t * (1 + w[q_idx]) * exp(-r.m)) return o / x, { lse = log(abs(x)) + r.m }",
};

/* By element: t and w stand where the sum is made, too. */
static const char *const steps[] = {"scores", "scores * (1 + w[q_idx] / 8)"};

/* Tangents of such rows are 0, and of all others finite. */
static void check_tangents(const luattn_spec *spec, const call *c, const luattn_input *inputs, const char *epilogue) {
  luattn_error err;
  call along;
  tensor one;
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  call_new(&along, spec, (int[]){1, 1, 1, Q, KV, 4, 4}, DENSE, F64, F64);
  tensor_new(&one, F64, 0, NULL, DENSE);
  tensor_set(&one, 0, 1);
  const luattn_input given[] = {{"t", &one.t, NULL}, {"w", inputs[1].tensor, NULL}};
  const luattn_tangents t = {.struct_size = sizeof t,
                             .q = along.args.dout,
                             .k = along.args.k,
                             .v = along.args.v,
                             .inputs = given,
                             .num_inputs = 2,
                             .o = along.args.o,
                             .lse = info.has_lse ? along.args.lse : NULL};
  luattn_args args = c->args;
  args.tangents = &t;
  if (luattn_cpu_forward_jvp(spec, &args, &err) != LUATTN_OK) fail_msg("%s: %s", epilogue, err.message);
  for (int i = 0; i < Q; i++)
    for (int d = 0; d < 5; d++) {
      if (d == 4 && !info.has_lse) continue;
      const double x = d < 4 ? tensor_get(&along.o, 4 * i + d) : tensor_get(&along.lse, i);
      if (i < 4 || i == Q - 1 ? x != 0 : !isfinite(x)) fail_msg("%s: the tangent of row %d is %g", epilogue, i, x);
    }
  tensor_free(&one);
  call_free(&along);
}

static void check(const char *epilogue, const char *step, double value) {
  char source[1200];
  luattn_error err;
  call c;
  tensor t, w, dt, dw;
  snprintf(source, sizeof source,
           "return attention { inputs = { t = { axes = {}, dtype = 'f64', grad = true }, w = { axes = {'q'}, dtype = "
           "'f64', grad = true } },\n"
           "  block_mask = function(b, h, q_idx, kv_idx) return kv_idx <= q_idx - 4 and q_idx < q_len - 1 end,\n"
           "  online_func = { online_rowscales = { m = -1e37, l = 0 }, final_rowscales = { '%s' },\n"
           "    online_fwd = function(scores, r, b, h, q_idx)\n"
           "      local s = %s\n"
           "      local m = max(r.m, reduce_max(s))\n"
           "      local f, p = exp(r.m - m), exp(s - m)\n"
           "      return p, { m = m, l = r.l * f + reduce_sum(p) }, f\n"
           "    end,\n"
           "    online_fwd_epilogue = function(o, r, b, h, q_idx) %s end } }",
           strstr(epilogue, "lse") != NULL ? "lse" : "r", step, epilogue);
  luattn_spec *spec = NULL;
  if (luattn_spec_load_text("test.lua", source, strlen(source), NULL, &spec, &err) != LUATTN_OK)
    fail_msg("%s: %s", epilogue, err.message);
  if (luattn_spec_wants(spec) == 0) {
    luattn_spec_free(spec); /* runs forward only, and says so */
    return;
  }
  call_new(&c, spec, (int[]){1, 1, 1, Q, KV, 4, 4}, DENSE, F64, F64);
  tensor_new(&t, F64, 0, NULL, DENSE), tensor_new(&dt, F64, 0, NULL, DENSE);
  tensor_new(&w, F64, 1, (const int64_t[]){Q}, DENSE), tensor_new(&dw, F64, 1, (const int64_t[]){Q}, DENSE);
  w.t.shape = w.shape, dw.t.shape = dw.shape;
  tensor_set(&t, 0, value);
  for (int i = 0; i < Q; i++) tensor_set(&w, i, 0.03 * (i - 5));
  const luattn_input inputs[] = {{"t", &t.t, &dt.t}, {"w", &w.t, &dw.t}};
  c.args.inputs = inputs, c.args.num_inputs = 2;
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s: %s", epilogue, err.message);
  check_tangents(spec, &c, inputs, epilogue);
  for (int i = 0; i < Q; i++) {
    const double x = tensor_get(&dw, i);
    if (i < 4 || i == Q - 1 ? x != 0 : !isfinite(x))
      fail_msg("%s, %s of %g: dw[%d] is %g", epilogue, step, value, i, x);
  }
  if (!isfinite(tensor_get(&dt, 0))) fail_msg("%s, %s of %g: dt is %g", epilogue, step, value, tensor_get(&dt, 0));
  assert_differences(spec, &c, &t, &dt);
  assert_differences(spec, &c, &w, &dw);
  tensor_free(&t), tensor_free(&w), tensor_free(&dt), tensor_free(&dw);
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_empty_rows(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
    for (int k = 0; k < 2; k++) check(epilogues[i], steps[k], 0.7), check(epilogues[i], steps[k], -3);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_empty_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
