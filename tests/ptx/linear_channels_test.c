/* linear_channels_test.c: as linear_test.c, where decays differ between channels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear_calls.h"

#define KERNEL(update, mods, skip, K, V) {"bf16_t", "ChannelDecay", update, mods, skip, K, V, V, 2, false}
static const linear_kernel gla = KERNEL("PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           all = KERNEL("Writes", "Factors", "Skips", 128, 128),
                           kda = KERNEL("DeltaRule", "NoRowMods", "NoSkip", 64, 64);

/* Gates of all kinds: chunks whose decays are little, or so great that pairs are of single tokens. */
static void test_gates(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++)
    for (int k_dim = 64; k_dim <= 128; k_dim += 64) {
      call c = {.kernel = gla,
                .gates = g,
                .heads = 1,
                .heads_v = 1,
                .entries = 1,
                .tokens = {k_dim == 64 ? 200 : 64},
                .has_first = true,
                .has_last = true};
      c.kernel.k_dim = k_dim;
      linear_run(&c);
    }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 1000};
  for (int i = 0; i < 6; i++) {
    const int n = lengths[i];
    call c = {.kernel = gla,
              .gates = i % 2 ? PRODUCTION : WEAK,
              .heads = 1,
              .heads_v = 1,
              .entries = i < 5 ? 2 : 1,
              .tokens = {n, n},
              .has_first = i % 2 == 0,
              .has_last = true,
              .in_place = i % 4 == 0};
    linear_run(&c);
  }
}
/* Sequences of all lengths, some empty, beside one of NaN; strides; groups; rows of a pool. */
static void test_packed(void **state) {
  (void)state;
  call c = {.kernel = gla,
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
  linear_run(&c);
  c.gates = WEAK, c.kernel.elem = "half_t", c.kernel.v_dim = c.kernel.v_block = 128;
  c.pool[3] = c.pool[4] = -1;
  linear_run(&c);
}
/* Mods, what is skipped, states of each type, value channels shared by blocks, head dims that fill boxes in part. */
static void test_parts(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    static const int dims[][3] = {{128, 128, 128}, {128, 128, 64}, {72, 200, 128}, {16, 24, 64}};
    call c = {.kernel = all,
              .gates = i % 2 ? MIXED : WEAK,
              .heads = 1,
              .heads_v = 2,
              .entries = 1,
              .tokens = {140},
              .state_type = i % 3,
              .k_first = i % 2 == 1,
              .has_first = true,
              .has_last = true};
    c.kernel.k_dim = dims[i][0], c.kernel.v_dim = dims[i][1], c.kernel.v_block = dims[i][2];
    linear_run(&c);
  }
}

/* Updates that erase: gates, keys that are alike, writes of up to 2, packed sequences. */
static void test_erasing(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    call c = {.kernel = kda,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {200},
              .most_write = 1,
              .has_first = true,
              .has_last = true};
    if (g % 2 == 0) c.kernel.k_dim = c.kernel.v_dim = c.kernel.v_block = 128;
    linear_run(&c);
  }
}
static void test_erasing_alike(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    call c = {.kernel = kda,
              .gates = NONE,
              .keys = i % 2 ? ALIKE : RANDOM_KEYS,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {200},
              .most_write = i < 2 ? 1 : 2,
              .has_first = true,
              .has_last = true};
    c.kernel.k_dim = 128;
    linear_run(&c);
  }
}
static void test_erasing_packed(void **state) {
  (void)state;
  call c = {.kernel = kda,
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
  linear_run(&c);
  c.kernel.k_dim = 120, c.kernel.v_dim = 72, c.kernel.v_block = 128, c.kernel.skip = "Skips";
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[5] = -1;
  linear_run(&c);
}

/* Gradients. */
static void test_backward_gates(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++) {
    call c = {.kernel = gla,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {200},
              .has_first = true,
              .has_last = true};
    linear_run_erasing(&c);
  }
}
static void test_backward_dims(void **state) {
  (void)state;
  static const int dims[][2] = {{128, 128}, {72, 40}, {64, 128}};
  for (int i = 0; i < 3; i++) {
    call c = {.kernel = gla,
              .gates = i == 1 ? WEAK : PRODUCTION,
              .heads = 1,
              .heads_v = 2,
              .entries = 2,
              .tokens = {100 - 37 * i, 100 - 37 * i},
              .has_first = i != 1,
              .has_last = true};
    c.kernel.k_dim = dims[i][0], c.kernel.v_dim = dims[i][1], c.kernel.v_block = dims[i][1] > 64 ? 128 : 64;
    linear_run_erasing(&c);
  }
}
static void test_backward_packed(void **state) {
  (void)state;
  call c = {.kernel = gla,
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
  linear_run_erasing(&c);
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[3] = -1;
  linear_run_erasing(&c);
}

static int open_driver(void **state) {
  (void)state;
  linear_open_driver();
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gates),          cmocka_unit_test(test_lengths),
                                     cmocka_unit_test(test_packed),         cmocka_unit_test(test_parts),
                                     cmocka_unit_test(test_erasing),        cmocka_unit_test(test_erasing_alike),
                                     cmocka_unit_test(test_erasing_packed), cmocka_unit_test(test_backward_gates),
                                     cmocka_unit_test(test_backward_dims),  cmocka_unit_test(test_backward_packed)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, open_driver, NULL);
}
