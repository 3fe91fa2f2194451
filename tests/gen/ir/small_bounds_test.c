/* small_bounds_test.c: 32-bit bounds without saturation equal the general bounds if those fit 32 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gen/ir/ir.h"
#include "tests/gen/ir/expr.h"

void int_bounds_small(ir_op op, const long long end[4], long long out[2]);
void int_bounds_wide(ir_op op, const long long end[4], long long out[2]);

static long long random_end(rng *r) {
  static const int widths[] = {3, 40, 5000, 70000, 1 << 30};
  const int width = widths[rng_below(r, 5)];
  return (long long)rng_below(r, width) - (rng_below(r, 2) ? width / 2 : 0);
}

static void test_same_bounds(void **state) {
  (void)state;
  static const ir_op ops[] = {IR_ADD, IR_SUB,  IR_MUL,    IR_NEG, IR_FLOORDIV, IR_MOD,     IR_MIN, IR_MAX,
                              IR_ABS, IR_SIGN, IR_SELECT, IR_LT,  IR_LE,       IR_EQ,      IR_NE,  IR_BAND,
                              IR_BOR, IR_BXOR, IR_SHL,    IR_SHR, IR_SHR_BAND, IR_OP_COUNT};
  rng r = {5};
  for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
    int compared = 0;
    for (int i = 0; i < 200000; i++) {
      long long end[4], small[2], wide[2];
      for (int j = 0; j < 4; j += 2) {
        end[j] = random_end(&r);
        end[j + 1] = end[j] + (rng_below(&r, 3) == 0 ? 0 : rng_below(&r, 300));
      }
      int_bounds_wide(ops[k], end, wide);
      if (wide[0] < INT32_MIN || wide[1] > INT32_MAX) continue;
      int_bounds_small(ops[k], end, small);
      assert_true(small[0] == wide[0] && small[1] == wide[1]);
      compared++;
    }
    assert_true(compared > 50000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bounds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
