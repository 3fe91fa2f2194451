/* linear_test.c: runs the forward kernels of linear attention on the PTX machine, or natively, for Specs by hand
 * (tests/ptx/linear). */
#include "tests/ptx/linear_cases.h"

static const linear_kernel gated = LINEAR_KERNEL(3, "TokenDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           plain = LINEAR_KERNEL(3, "NoDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           retention = LINEAR_KERNEL(3, "HeadDecay", "PlainUpdate", "NoRowMods", "NoSkip", 128, 128),
                           mamba = LINEAR_KERNEL(3, "TokenDecay", "Writes", "NoRowMods", "Skips", 128, 64),
                           all = LINEAR_KERNEL(3, "TokenDecay", "Writes", "Factors", "Skips", 64, 128),
                           delta = LINEAR_KERNEL(3, "TokenDecay", "DeltaRule", "NoRowMods", "NoSkip", 64, 64);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    const call c = linear_case(&gated, g, 130);
    linear_run(&c);
  }
}
static void test_classes(void **state) {
  (void)state;
  const linear_kernel *const kernels[] = {&plain, &retention, &mamba, &all};
  for (int i = 0; i < 4; i++) {
    call c = linear_case(kernels[i], WEAK, 140);
    c.heads_v = 2;
    linear_run(&c);
  }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 300};
  for (int i = 0; i < 6; i++) {
    call c = linear_case_of_two(&gated, WEAK, lengths[i]);
    c.has_first = i % 2 == 0, c.in_place = i % 4 == 0;
    linear_run(&c);
  }
}
static void test_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&gated, PRODUCTION, 2, 4);
  linear_run(&c);
  c.kernel.elem = "half_t", c.kernel.v_dim = c.kernel.v_block = 128;
  c.pool[3] = c.pool[4] = -1;
  linear_run(&c);
}
static void test_states(void **state) {
  (void)state;
  for (int type = LUATTN_STATE_F32; type <= LUATTN_STATE_F16; type++)
    for (int k_first = 0; k_first < 2; k_first++) {
      call c = linear_case_of_two(&mamba, WEAK, 70);
      c.state_type = type, c.k_first = k_first == 1, c.in_place = k_first == 0;
      linear_run(&c);
    }
}
/* Value channels shared by blocks; segments. */
static void test_splits(void **state) {
  (void)state;
  call c = linear_case(&all, WEAK, 400);
  c.kernel.v_block = 64, c.in_place = true;
  linear_run(&c);
  c.segments = 3;
  linear_run(&c);
  c.kernel = gated, c.segments = 4;
  linear_run(&c);
  c.gates = EVEN;
  linear_run(&c);
  c.gates = PRODUCTION;
  linear_pack(&c, 1);
  linear_run(&c);
}

/* Updates that erase: gates, keys that are alike, writes of up to 2, packed sequences. */
static void test_erasing(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    const call c = linear_case(&delta, g, 200);
    linear_run(&c);
  }
}
static void test_erasing_alike(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_ALIKE_CALLS; i++) {
    call c = linear_alike_case(&delta, i);
    c.kernel.k_dim = 128, c.kernel.stages = 2;
    linear_run(&c);
  }
}
static void test_erasing_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&delta, PRODUCTION, 1, 2);
  linear_run(&c);
  linear_set_dims(&c, 128, 128, 128);
  c.kernel.stages = 2, c.kernel.skip = "Skips", c.gates = WEAK, c.pool[5] = -1;
  linear_run(&c);
}

/* The same by one kernel that makes all of it: two stages, and three as of 128 channels; f16; boxes that are filled in part. */
static void test_whole(void **state) {
  (void)state;
  for (gates g = NONE; g <= RARE; g++) {
    call c = linear_case(&delta, g, g == PRODUCTION ? 330 : 200);
    if (g == WEAK) linear_set_dims(&c, 120, 72, 128), c.k_first = true;
    if (g == PRODUCTION) linear_set_dims(&c, 128, 128, 128), c.kernel.stages = 3;
    if (g == STRONG) c.kernel.elem = "half_t", c.in_place = true;
    linear_run_whole(&c);
  }
}
static void test_whole_alike(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_ALIKE_CALLS; i++) {
    call c = linear_alike_case(&delta, i);
    c.kernel.k_dim = 128, c.kernel.stages = 2;
    linear_run_whole(&c);
  }
}
static void test_whole_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&delta, PRODUCTION, 1, 2);
  linear_run_whole(&c);
  linear_set_dims(&c, 128, 128, 128);
  c.kernel.stages = 3, c.kernel.skip = "Skips", c.gates = WEAK, c.pool[5] = -1;
  linear_run_whole(&c);
}

/* Segments, whose maps of the state meet one another; of which the last chunks decide alone; and writes of more than 2, where none
 * may be left out. */
static void test_erasing_segments(void **state) {
  (void)state;
  for (gates g = NONE; g <= PRODUCTION; g++) {
    call c = linear_case(&delta, g, 500);
    c.in_place = true, c.segments = 4, c.kernel.stages = g == NONE ? 3 : 2;
    if (g == WEAK) linear_set_dims(&c, 128, 128, 64);
    if (g == PRODUCTION) linear_set_dims(&c, 72, 80, 128), linear_pack(&c, 1);
    linear_run(&c);
  }
  call c = linear_case(&delta, WEAK, 1920);
  c.segments = 3, c.kernel.stages = 2;
  linear_run(&c);
  c = linear_case(&delta, PRODUCTION, 500);
  c.segments = 4, c.kernel.stages = 2, c.most_write = 2.5;
  linear_run(&c);
}

/* Head dims that fill boxes in part. */
static void test_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{80, 200, 128}, {16, 24, 64}, {120, 72, 128}};
  for (int i = 0; i < 3; i++) {
    call c = linear_case(i < 2 ? &mamba : &delta, WEAK, 140);
    linear_set_dims(&c, dims[i][0], dims[i][1], dims[i][2]);
    c.heads_v = 2, c.most_write = 1, c.kernel.stages = 2;
    c.k_first = i == 1, c.in_place = i == 2, c.segments = i == 0 ? 2 : 1;
    linear_run(&c);
  }
}

LINEAR_TESTS(cmocka_unit_test(test_gates), cmocka_unit_test(test_classes), cmocka_unit_test(test_lengths),
             cmocka_unit_test(test_packed), cmocka_unit_test(test_states), cmocka_unit_test(test_splits),
             cmocka_unit_test(test_erasing), cmocka_unit_test(test_erasing_alike),
             cmocka_unit_test(test_erasing_packed), cmocka_unit_test(test_erasing_segments),
             cmocka_unit_test(test_whole), cmocka_unit_test(test_whole_alike), cmocka_unit_test(test_whole_packed),
             cmocka_unit_test(test_dims))
