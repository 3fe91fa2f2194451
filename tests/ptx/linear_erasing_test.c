/* linear_erasing_test.c: runs the gradients of linear attention's updates that erase, two chains and a kernel over all chunks,
 * on the PTX machine, or natively, for Specs by hand (tests/ptx/linear). */
#include "tests/ptx/linear_cases.h"

static const linear_kernel delta = LINEAR_KERNEL(2, "TokenDecay", "DeltaRule", "NoRowMods", "NoSkip", 64, 64),
                           wide = LINEAR_KERNEL(2, "TokenDecay", "DeltaRule", "NoRowMods", "NoSkip", 128, 128),
                           factors = LINEAR_KERNEL(2, "TokenDecay", "DeltaRule", "RowFactors", "NoSkip", 64, 64);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= RARE; g++) {
    const call c = linear_case(&delta, g, 200);
    linear_run_erasing(&c);
  }
}
static void test_wide(void **state) {
  (void)state;
  call c = linear_case_of_two(&wide, WEAK, 140);
  c.heads_v = 2;
  linear_run_erasing(&c);
}
/* Of one token there are few numbers, which many heads make up for. */
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 63, 64, 65, 1000};
  for (int i = 0; i < 6; i++) {
    call c = linear_case_of_two(&delta, i % 2 ? WEAK : PRODUCTION, lengths[i]);
    if (lengths[i] == 1) c.heads = c.heads_v = 8;
    if (lengths[i] == 1000) c.entries = 1;
    c.has_first = c.has_last = i % 2 == 0, c.k_first = i == 2;
    linear_run_erasing(&c);
  }
}
/* Keys that are alike, writes of up to 2, no decays. */
static void test_alike(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_ALIKE_CALLS; i++) {
    call c = linear_alike_case(&delta, i);
    c.kernel.decay = "NoDecay";
    linear_run_erasing(&c);
  }
}
/* Factors as well. */
static void test_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&factors, PRODUCTION, 1, 2);
  linear_run_erasing(&c);
  c.kernel.elem = "half_t", c.gates = WEAK, c.pool[3] = -1;
  linear_run_erasing(&c);
}
/* The same by one kernel. */
static void test_packed_wide(void **state) {
  (void)state;
  call c = linear_packed_case(&factors, WEAK, 1, 2);
  linear_set_dims(&c, 120, 72, 128);
  c.pool[3] = -1;
  linear_run_erasing(&c);
}
/* Segments, whose maps both chains take. */
static void test_segments(void **state) {
  (void)state;
  for (gates g = NONE; g <= PRODUCTION; g++) {
    call c = linear_case(g == WEAK ? &wide : &delta, g, 500);
    c.segments = 4;
    if (g == PRODUCTION) linear_set_dims(&c, 72, 80, 128), linear_pack(&c, 70);
    linear_run_erasing(&c);
  }
}
/* Head dims that fill boxes in part, K and V apart; value channels shared by blocks of the chains. */
static void test_dims(void **state) {
  (void)state;
  static const int dims[][3] = {{120, 72, 128}, {64, 128, 64}, {128, 48, 64}};
  for (int i = 0; i < 3; i++) {
    call c = linear_case(&factors, WEAK, 140);
    linear_set_dims(&c, dims[i][0], dims[i][1], dims[i][2]);
    linear_run_erasing(&c);
  }
}

LINEAR_TESTS(cmocka_unit_test(test_gates), cmocka_unit_test(test_wide), cmocka_unit_test(test_lengths),
             cmocka_unit_test(test_alike), cmocka_unit_test(test_packed), cmocka_unit_test(test_segments),
             cmocka_unit_test(test_dims), cmocka_unit_test(test_packed_wide))
