/* linear_erasing_test.c: runs the gradients of linear attention's updates that erase, two chains and a kernel over all chunks,
 * on the PTX machine, or natively, for Specs by hand (tests/ptx/linear). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear_calls.h"

#define KERNEL(decay, mods, K, V) {"bf16_t", decay, "DeltaRule", mods, "NoSkip", K, V, V, 2, false}
static const linear_kernel delta = KERNEL("TokenDecay", "NoRowMods", 64, 64),
                           wide = KERNEL("TokenDecay", "NoRowMods", 128, 128),
                           factors = KERNEL("TokenDecay", "RowFactors", 64, 64);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    call c = {.kernel = delta,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {200},
              .most_write = 1,
              .has_first = true,
              .has_last = true};
    linear_run_erasing(&c);
  }
}
static void test_wide(void **state) {
  (void)state;
  call c = {.kernel = wide,
            .gates = WEAK,
            .heads = 1,
            .heads_v = 2,
            .entries = 2,
            .tokens = {140, 140},
            .most_write = 1,
            .has_first = true,
            .has_last = true};
  linear_run_erasing(&c);
}
/* Of one token there are few numbers, which many heads make up for. */
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 1000};
  for (int i = 0; i < 6; i++) {
    const int n = lengths[i];
    call c = {.kernel = delta,
              .gates = i % 2 ? WEAK : PRODUCTION,
              .heads = n == 1 ? 8 : 1,
              .heads_v = n == 1 ? 8 : 1,
              .entries = n == 1000 ? 1 : 2,
              .tokens = {n, n},
              .most_write = 1,
              .has_first = i % 2 == 0,
              .has_last = i % 2 == 0,
              .k_first = i == 2};
    linear_run_erasing(&c);
  }
}
/* Keys that are alike, writes of up to 2, no decays. */
static void test_alike(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    call c = {.kernel = delta,
              .gates = NONE,
              .keys = i % 2 ? ALIKE : RANDOM_KEYS,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {200},
              .most_write = i < 2 ? 1 : 2,
              .has_first = true,
              .has_last = true};
    c.kernel.decay = "NoDecay";
    linear_run_erasing(&c);
  }
}
/* Sequences of all lengths, some empty, beside one of NaN; strides; groups; rows of a pool; factors. */
static void test_packed(void **state) {
  (void)state;
  call c = {.kernel = factors,
            .gates = PRODUCTION,
            .heads = 1,
            .heads_v = 2,
            .entries = 7,
            .tokens = {0, 65, 3, 64, 0, 130, 1},
            .has_first = true,
            .has_last = true,
            .wide_rows = true,
            .pool = {3, 9, 1, 4, 7, 2, 6},
            .poisoned = {false, false, true, false, false, true, false},
            .most_write = 1};
  c.kernel.packed = true;
  linear_run_erasing(&c);
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[3] = -1;
  linear_run_erasing(&c);
}
/* Segments, whose maps both chains take. */
static void test_segments(void **state) {
  (void)state;
  for (gates g = NONE; g <= PRODUCTION; g++) {
    call c = {.kernel = g == WEAK ? wide : delta,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {500},
              .most_write = 1,
              .has_first = true,
              .has_last = true,
              .segments = 4};
    if (g == PRODUCTION) {
      c.kernel.packed = true, c.entries = 4, c.kernel.k_dim = 72, c.kernel.v_dim = 80, c.kernel.v_block = 128;
      c.tokens[0] = 0, c.tokens[1] = 65, c.tokens[2] = 300, c.tokens[3] = 70;
    }
    linear_run_erasing(&c);
  }
}
/* Head dims that fill boxes in part, K and V apart; value channels shared by blocks of the chains. */
static void test_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{120, 72, 128}, {64, 128, 64}, {128, 48, 64}};
  for (int i = 0; i < 3; i++) {
    call c = {.kernel = factors,
              .gates = WEAK,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {140},
              .most_write = 1,
              .has_first = true,
              .has_last = true};
    c.kernel.k_dim = dims[i][0], c.kernel.v_dim = dims[i][1], c.kernel.v_block = dims[i][2];
    linear_run_erasing(&c);
  }
}

static int open_driver(void **state) {
  (void)state;
  linear_open_driver();
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gates),   cmocka_unit_test(test_wide),
                                     cmocka_unit_test(test_lengths), cmocka_unit_test(test_alike),
                                     cmocka_unit_test(test_packed),  cmocka_unit_test(test_segments),
                                     cmocka_unit_test(test_dims)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, open_driver, NULL);
}
