/* linear_class_test.c: the class that is found of each spec of linear attention, and what its hooks depend on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/linear/linear_adjoint.h"
#include "gen/lua/front.h"

static void load(arena *a, const char *name, const char *text, traced_spec *t, const derived_linear **d) {
  luattn_error err;
  if (front_trace(a, name, text, strlen(text), t, &err) != LUATTN_OK || derive_linear(t, d, &err) != LUATTN_OK)
    fail_msg("%s: %s", name, err.message);
  assert_int_equal(t->form, LUATTN_FORM_LINEAR);
}

static void load_file(arena *a, const char *name, traced_spec *t, const derived_linear **d) {
  char path[512];
  static char text[1 << 14];
  snprintf(path, sizeof path, LUATTN_LINEAR_SPECS "/%s.lua", name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  fclose(f);
  load(a, name, text, t, d);
}

static void test_specs(void **state) {
  (void)state;
  static const struct {
    const char *name;
    linear_number number;
    linear_decay decay;
    bool before, reads_keys;
  } specs[] = {{"linear", LINEAR_L0, LINEAR_DECAY_NONE, false, false},
               {"retention", LINEAR_L0, LINEAR_DECAY_HEAD, false, false},
               {"retention_ae", LINEAR_L0, LINEAR_DECAY_TOKEN, false, false},
               {"simple_gla", LINEAR_L0, LINEAR_DECAY_TOKEN, false, false},
               {"mamba2", LINEAR_L0, LINEAR_DECAY_TOKEN, false, false},
               {"mamba2_ae", LINEAR_L0, LINEAR_DECAY_TOKEN, false, false},
               {"gla", LINEAR_L1, LINEAR_DECAY_CHANNEL, false, false},
               {"delta", LINEAR_L2, LINEAR_DECAY_NONE, false, true},
               {"gated_delta", LINEAR_L2, LINEAR_DECAY_TOKEN, false, true},
               {"comba", LINEAR_L2, LINEAR_DECAY_TOKEN, true, false},
               {"kda", LINEAR_L3, LINEAR_DECAY_CHANNEL, false, true},
               {"rwkv7", LINEAR_L4, LINEAR_DECAY_CHANNEL, true, false}};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    traced_spec t;
    const derived_linear *d;
    arena *a = arena_open(NULL);
    load_file(a, specs[i].name, &t, &d);
    if (d->class.number != specs[i].number || d->class.decay != specs[i].decay || d->class.before != specs[i].before ||
        d->class.reads_keys != specs[i].reads_keys)
      fail_msg("%s: is L%d, decay %d, before %d, reads keys %d", specs[i].name, (int)d->class.number,
               (int)d->class.decay, d->class.before, d->class.reads_keys);
    arena_close(a);
  }
}

/* A hook may branch, sum once per branch, and use the sum in several places. */
static void test_hooks(void **state) {
  (void)state;
  traced_spec t;
  const derived_linear *d;
  arena *a = arena_open(NULL);
  load(a, "mixed",
       "return linear_attention { name = 'mixed', scalars = { c = 2 }, inputs = { w = { axes = {'dv'}, grad = true } "
       "},\n"
       "  query_mod = function(x) local n = reduce_sum(abs(x)) return where(n > c, x / n, x * n) end,\n"
       "  update = { write = function(b, h, t, d) return w[d] end, read = function(k) return 0.5 * k end },\n"
       "  decay = function() return 0 end, scale = -0.5 }",
       &t, &d);
  assert_int_equal(d->class.number, LINEAR_L2);
  assert_int_equal(d->class.decay, LINEAR_DECAY_NONE);
  assert_true(d->class.writes_channels);
  assert_true(d->hook[LINEAR_QUERY].sums.count == 1 && d->hook[LINEAR_QUERY].by_channel);
  assert_true(d->hook[LINEAR_QUERY].grad.by_value.count == 0); /* a condition alone reads c */
  assert_true(d->hook[LINEAR_WRITE].grad.by_value.count == 1);
  assert_true(t.linear.scale == -0.5);
  arena_close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_specs), cmocka_unit_test(test_hooks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
