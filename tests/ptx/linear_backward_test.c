/* linear_backward_test.c: runs the gradients of q, k, v and first states of linear attention, which are passes of the forward
 * kernel, on the PTX machine, or natively, for Specs by hand (tests/ptx/linear). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear_calls.h"

#define KERNEL(decay, update, mods, K, V) {"bf16_t", decay, update, mods, "NoSkip", K, V, V, 3, false}
static const linear_kernel gated = KERNEL("TokenDecay", "PlainUpdate", "NoRowMods", 64, 64),
                           plain = KERNEL("NoDecay", "PlainUpdate", "NoRowMods", 64, 64),
                           retention = KERNEL("HeadDecay", "Writes", "NoRowMods", 128, 128),
                           factors = KERNEL("TokenDecay", "Writes", "RowFactors", 64, 128);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= GONE; g++) {
    call c = {.kernel = gated,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {130},
              .has_first = true,
              .has_last = true};
    linear_run_gradients(&c);
  }
}
static void test_classes(void **state) {
  (void)state;
  const linear_kernel *const kernels[] = {&plain, &retention, &factors};
  for (int i = 0; i < 3; i++) {
    call c = {.kernel = *kernels[i],
              .gates = WEAK,
              .heads = 1,
              .heads_v = 2,
              .entries = 1,
              .tokens = {140},
              .has_first = i > 0,
              .has_last = true};
    linear_run_gradients(&c);
  }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 64, 65};
  for (int i = 0; i < 4; i++) {
    const int n = lengths[i];
    call c = {.kernel = gated,
              .gates = WEAK,
              .heads = 1,
              .heads_v = 1,
              .entries = 2,
              .tokens = {n, n},
              .has_first = i % 2 == 0,
              .has_last = true,
              .k_first = i == 2};
    linear_run_gradients(&c);
  }
}
/* Sequences of all lengths, some empty, beside one of NaN; strides; groups; rows of a pool. */
static void test_packed(void **state) {
  (void)state;
  call c = {.kernel = factors,
            .gates = PRODUCTION,
            .heads = 2,
            .heads_v = 4,
            .entries = 7,
            .tokens = {0, 65, 3, 64, 0, 130, 1},
            .has_first = true,
            .has_last = true,
            .wide_rows = true,
            .pool = {3, 9, 1, 4, 7, 2, 6},
            .poisoned = {false, false, true, false, false, true, false}};
  c.kernel.packed = true;
  c.pool[3] = -1;
  linear_run_gradients(&c);
}
static void test_segments(void **state) {
  (void)state;
  call c = {.kernel = gated,
            .gates = WEAK,
            .heads = 1,
            .heads_v = 1,
            .entries = 1,
            .tokens = {400},
            .has_first = true,
            .has_last = true,
            .segments = 4};
  linear_run_gradients(&c);
}

static void test_dims(void **state) {
  (void)state;
  call c = {.kernel = factors,
            .gates = WEAK,
            .heads = 1,
            .heads_v = 1,
            .entries = 1,
            .tokens = {100},
            .has_first = true,
            .has_last = true};
  c.kernel.k_dim = 72, c.kernel.v_dim = 48;
  linear_run_gradients(&c);
}

static int open_driver(void **state) {
  (void)state;
  linear_open_driver();
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gates),    cmocka_unit_test(test_classes),
                                     cmocka_unit_test(test_lengths),  cmocka_unit_test(test_packed),
                                     cmocka_unit_test(test_segments), cmocka_unit_test(test_dims)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, open_driver, NULL);
}
