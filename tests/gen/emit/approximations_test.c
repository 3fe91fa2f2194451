/* approximations_test.c: tests where kernels in half precision may take coarse sigmoids and hyperbolic tangents: in
 * weights that are used for nothing else, and in bf16's scores of which row sums see exponentials alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "emitted.h"

#define SIGMOID "return attention { name = 'a', online_func = sigmoid_attention }"
#define NORMALISED                                                                                                    \
  "return attention { name = 'a', online_func = { name = 'n', online_rowscales = { c = 0 }, final_rowscales = { 'r' " \
  "},\n"                                                                                                              \
  "  online_fwd = function(s, rows) local p = sigmoid(s) return p, { c = rows.c + reduce_sum(p) } end,\n"             \
  "  online_fwd_epilogue = function(o, rows) local r = max(rows.c, 1) return o / r, { r = r } end } }"
#define CAPPED "return attention { name = 'a', score_mod = softcap(10) }"
#define GATED "return attention { name = 'a', score_mod = function(s) return 3 * sigmoid(s) end }"
#define RETENTION "return attention { name = 'a', score_mod = softcap(10), online_func = online_retention }"
static const char a_sigmoid[] = "op_sigmoid2_alternating(", a_tanh[] = "op_rough_tanh(";

static void test_where(void **state) {
  (void)state;
  static const struct {
    const char *source, *coarse;
    luattn_dtype dtype;
    bool backward, deterministic, is;
  } cases[] = {{SIGMOID, a_sigmoid, LUATTN_F16, false, false, true},
               {SIGMOID, a_sigmoid, LUATTN_BF16, true, false, true},
               {SIGMOID, a_sigmoid, LUATTN_BF16, true, true, false},
               {NORMALISED, a_sigmoid, LUATTN_F16, false, false, false},
               {NORMALISED, a_sigmoid, LUATTN_BF16, false, false, false},
               {CAPPED, a_tanh, LUATTN_BF16, false, false, true},
               {CAPPED, a_tanh, LUATTN_F16, false, false, false},
               {CAPPED, a_tanh, LUATTN_BF16, true, false, false},
               {GATED, a_sigmoid, LUATTN_BF16, false, false, true},
               {GATED, a_sigmoid, LUATTN_F16, false, false, false},
               {GATED, a_sigmoid, LUATTN_F16, true, false, false},
               {RETENTION, a_tanh, LUATTN_BF16, false, false, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int arch = 80; arch <= 90; arch += 10) {
      luattn_target t = hopper;
      t.dtype = cases[i].dtype, t.arch = arch, t.deterministic = cases[i].deterministic;
      t.pass = cases[i].backward ? LUATTN_BACKWARD : LUATTN_FORWARD;
      char *text = emit_text(cases[i].source, &t, "spec");
      if ((strstr(text, cases[i].coarse) != NULL) != cases[i].is) fail_msg("case %d, sm_%d", (int)i, arch);
      luattn_text_free(text);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_where)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
