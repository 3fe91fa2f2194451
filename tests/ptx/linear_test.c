/* linear_test.c: runs the forward kernels of linear attention on the PTX machine, or natively, for Specs by hand
 * (tests/ptx/linear). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "linear_calls.h"

#define KERNEL(decay, update, mods, skip, K, V) {"bf16_t", decay, update, mods, skip, K, V, V, 3, false}
static const linear_kernel gated = KERNEL("TokenDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           plain = KERNEL("NoDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           retention = KERNEL("HeadDecay", "PlainUpdate", "NoRowMods", "NoSkip", 128, 128),
                           mamba = KERNEL("TokenDecay", "Writes", "NoRowMods", "Skips", 128, 64),
                           all = KERNEL("TokenDecay", "Writes", "Factors", "Skips", 64, 128),
                           delta = KERNEL("TokenDecay", "DeltaRule", "NoRowMods", "NoSkip", 64, 64);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    call c = {.kernel = gated,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {130},
              .has_first = true,
              .has_last = true};
    linear_run(&c);
  }
}
static void test_classes(void **state) {
  (void)state;
  const linear_kernel *const kernels[] = {&plain, &retention, &mamba, &all};
  for (int i = 0; i < 4; i++) {
    call c = {.kernel = *kernels[i],
              .gates = WEAK,
              .heads = 1,
              .heads_v = 2,
              .entries = 1,
              .tokens = {140},
              .has_first = true,
              .has_last = true};
    linear_run(&c);
  }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 300};
  for (int i = 0; i < 6; i++) {
    const int n = lengths[i];
    call c = {.kernel = gated,
              .gates = WEAK,
              .heads = 1,
              .heads_v = 1,
              .entries = 2,
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
  call c = {.kernel = gated,
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
  c.kernel.elem = "half_t", c.kernel.v_dim = c.kernel.v_block = 128;
  c.pool[3] = c.pool[4] = -1;
  linear_run(&c);
}
static void test_states(void **state) {
  (void)state;
  for (int type = LUATTN_STATE_F32; type <= LUATTN_STATE_F16; type++)
    for (int k_first = 0; k_first < 2; k_first++) {
      call c = {.kernel = mamba,
                .gates = WEAK,
                .heads = 1,
                .heads_v = 1,
                .entries = 2,
                .tokens = {70, 70},
                .state_type = type,
                .k_first = k_first == 1,
                .has_first = true,
                .has_last = true,
                .in_place = k_first == 0};
      linear_run(&c);
    }
}
/* Value channels shared by blocks; segments. */
static void test_splits(void **state) {
  (void)state;
  call c = {.kernel = all,
            .gates = WEAK,
            .heads = 1,
            .heads_v = 1,
            .entries = 1,
            .tokens = {400},
            .has_first = true,
            .has_last = true,
            .in_place = true};
  c.kernel.v_block = 64;
  linear_run(&c);
  c.segments = 3;
  linear_run(&c);
  c.kernel = gated, c.segments = 4;
  linear_run(&c);
  c.kernel.packed = true, c.entries = 4, c.gates = PRODUCTION;
  c.tokens[0] = 0, c.tokens[1] = 65, c.tokens[2] = 300, c.tokens[3] = 1;
  linear_run(&c);
}

/* Updates that erase: gates, keys that are alike, writes of up to 2, packed sequences. */
static void test_erasing(void **state) {
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
    linear_run(&c);
  }
}
static void test_erasing_alike(void **state) {
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
    c.kernel.k_dim = 128, c.kernel.stages = 2;
    linear_run(&c);
  }
}
static void test_erasing_packed(void **state) {
  (void)state;
  call c = {.kernel = delta,
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
  c.kernel.k_dim = c.kernel.v_dim = c.kernel.v_block = 128, c.kernel.stages = 2, c.kernel.skip = "Skips";
  c.gates = WEAK, c.pool[5] = -1;
  linear_run(&c);
}

/* Segments, whose maps of the state meet one another. */
static void test_erasing_segments(void **state) {
  (void)state;
  for (gates g = NONE; g <= PRODUCTION; g++) {
    call c = {.kernel = delta,
              .gates = g,
              .heads = 1,
              .heads_v = 1,
              .entries = 1,
              .tokens = {500},
              .most_write = 1,
              .has_first = true,
              .has_last = true,
              .in_place = true,
              .segments = 4};
    if (g == WEAK) c.kernel.k_dim = c.kernel.v_dim = 128, c.kernel.v_block = 64, c.kernel.stages = 2;
    if (g == PRODUCTION) {
      c.kernel.packed = true, c.entries = 4, c.kernel.k_dim = 72, c.kernel.v_dim = 80, c.kernel.v_block = 128;
      c.kernel.stages = 2, c.tokens[0] = 0, c.tokens[1] = 65, c.tokens[2] = 300, c.tokens[3] = 1;
    }
    linear_run(&c);
  }
}

/* Head dims that fill boxes in part. */
static void test_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{80, 200, 128}, {16, 24, 64}, {120, 72, 128}};
  for (int i = 0; i < 3; i++) {
    call c = {.kernel = i < 2 ? mamba : delta,
              .gates = WEAK,
              .heads = 1,
              .heads_v = 2,
              .entries = 1,
              .tokens = {140},
              .most_write = 1,
              .has_first = true,
              .has_last = true,
              .k_first = i == 1,
              .in_place = i == 2,
              .segments = i == 0 ? 2 : 1};
    c.kernel.k_dim = dims[i][0], c.kernel.v_dim = dims[i][1], c.kernel.v_block = dims[i][2];
    c.kernel.stages = 2;
    linear_run(&c);
  }
}

static int open_driver(void **state) {
  (void)state;
  linear_open_driver();
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gates),
                                     cmocka_unit_test(test_classes),
                                     cmocka_unit_test(test_lengths),
                                     cmocka_unit_test(test_packed),
                                     cmocka_unit_test(test_states),
                                     cmocka_unit_test(test_splits),
                                     cmocka_unit_test(test_erasing),
                                     cmocka_unit_test(test_erasing_alike),
                                     cmocka_unit_test(test_erasing_packed),
                                     cmocka_unit_test(test_erasing_segments),
                                     cmocka_unit_test(test_dims)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests(tests, open_driver, NULL);
}
