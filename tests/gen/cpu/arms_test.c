/* arms_test.c: a backward that holds on every arm of an online function: of rows that are long, and for
 * scalars that are nothing like their defaults. Where a maximum is not proved to drop out, however little it moves near
 * the defaults, kernels refuse its backward with the term that keeps it. */
#include "tests/support/cpu_call.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KV = 300 };

typedef struct function {
  const char *scalars, *epilogue;
  int passes;   /* the row passes of its backward */
  double value; /* of its scalar x in calls */
} function;

static luattn_spec *load_function(const function *f) {
  char source[1024];
  snprintf(source, sizeof source,
           "return attention { scalars = { %s }, online_func = {\n"
           "  online_rowscales = { m = -1e37, l = 0 }, final_rowscales = { 'lse' },\n"
           "  online_fwd = function(scores, r)\n"
           "    local m = max(r.m, reduce_max(scores))\n"
           "    local f, p = exp(r.m - m), exp(scores - m)\n"
           "    return p, { m = m, l = r.l * f + reduce_sum(p) }, f\n"
           "  end,\n"
           "  online_fwd_epilogue = function(o, r) %s end } }",
           f->scalars, f->epilogue);
  return load_text(source);
}

static void check_function(const function *f) {
  luattn_spec *spec = load_function(f);
  luattn_spec_info info;
  luattn_error err;
  luattn_spec_get_info(spec, &info);
  if (!info.has_backward) fail_msg("%s", info.why_no_backward);
  if (luattn_spec_row_passes(spec) != f->passes)
    fail_msg("%s: %d row passes, expected %d", f->epilogue, luattn_spec_row_passes(spec), f->passes);
  call c;
  call_new(&c, spec, (int[]){1, 1, 1, 3, KV, 4, 4}, DENSE, F64, F64);
  const luattn_scalar x = {"x", f->value};
  c.args.scalars = &x, c.args.num_scalars = info.num_scalars;
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s: %s", f->epilogue, err.message);
  assert_differences(spec, &c, &c.q, &c.dq);
  assert_differences(spec, &c, &c.k, &c.dk);
  assert_differences(spec, &c, &c.v, &c.dv);
  call_free(&c);
  luattn_spec_free(spec);
}

/* Conditions that only a row of many keys meets. */
static void test_long_rows(void **state) {
  (void)state;
  static const function functions[] = {
      {"", "return o * where(r.l > 20, 0.5, 1) / r.l, { lse = log(r.l) + r.m }", 0, 0},
      {"", "return o / min(r.l * exp(r.m), 100) * exp(r.m), { lse = log(r.l) + r.m }", 0, 0},
      {"", "return o / max(r.l, 1e-25), { lse = log(r.l) + r.m }", 0, 0},
      {"", "return o / r.l, { lse = log(max(r.l, 0.5)) + r.m }", 0, 0},
      {"", "return o / min(r.l, 20), { lse = log(r.l) + r.m }", 1, 0},
      {"", "return o / (r.l + 1e-30), { lse = log(r.l) + r.m }", 0, 0},
      {"", "return o / (r.l + 1e-10), { lse = log(r.l) + r.m }", 1, 0}};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) check_function(&functions[i]);
}

/* Terms that vanish for the default of x, and not for what a call gives. */
static void test_scalars(void **state) {
  (void)state;
  static const function functions[] = {
      {"x = 1e-30", "return o / r.l, { lse = log(r.l + x * exp(-r.m)) + r.m }", 0, 0.5},
      {"x = 1e-3", "return o / (r.l + exp(-1 / x) * exp(-r.m)), { lse = log(r.l) + r.m }", 0, 1},
      {"x = 2", "return o / r.l ^ x * exp(r.m * (1 - x)), { lse = log(r.l) + r.m }", 0, 0.5},
      {"x = 1e-30", "return o / (r.l + x), { lse = log(r.l) + r.m }", 1, 0.5},
      {"x = 60", "return o * (1 + sigmoid(-x) / (1 + r.l)) / r.l, { lse = log(r.l) + r.m }", 1, 0.5},
      {"x = 1e3", "return o / r.l / (1 + max(r.m - x, 0)), { lse = log(r.l) + r.m }", 1, 0.25}};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) check_function(&functions[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_rows), cmocka_unit_test(test_scalars)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
