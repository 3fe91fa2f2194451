/* linear_backward_test.c: runs the gradients of q, k, v and first states of linear attention, which are passes of the forward
 * kernel, on the PTX machine, or natively, for Specs by hand (tests/ptx/linear). */
#include "tests/ptx/linear_cases.h"

static const linear_kernel gated = LINEAR_KERNEL(3, "TokenDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           plain = LINEAR_KERNEL(3, "NoDecay", "PlainUpdate", "NoRowMods", "NoSkip", 64, 64),
                           retention = LINEAR_KERNEL(3, "HeadDecay", "Writes", "NoRowMods", "NoSkip", 128, 128),
                           factors = LINEAR_KERNEL(3, "TokenDecay", "Writes", "RowFactors", "NoSkip", 64, 128);

static void test_gates(void **state) {
  (void)state;
  for (gates g = WEAK; g <= GONE; g++) {
    const call c = linear_case(&gated, g, 130);
    linear_run_gradients(&c);
  }
}
static void test_classes(void **state) {
  (void)state;
  const linear_kernel *const kernels[] = {&plain, &retention, &factors};
  for (int i = 0; i < 3; i++) {
    call c = linear_case(kernels[i], WEAK, 140);
    c.heads_v = 2, c.has_first = i > 0;
    linear_run_gradients(&c);
  }
}
static void test_lengths(void **state) {
  (void)state;
  static const int lengths[] = {0, 1, 64, 65};
  for (int i = 0; i < 4; i++) {
    call c = linear_case_of_two(&gated, WEAK, lengths[i]);
    c.has_first = i % 2 == 0, c.k_first = i == 2;
    linear_run_gradients(&c);
  }
}
static void test_packed(void **state) {
  (void)state;
  call c = linear_packed_case(&factors, PRODUCTION, 2, 4);
  c.pool[3] = -1;
  linear_run_gradients(&c);
}
static void test_segments(void **state) {
  (void)state;
  call c = linear_case(&gated, WEAK, 400);
  c.segments = 4;
  linear_run_gradients(&c);
}
static void test_dims(void **state) {
  (void)state;
  call c = linear_case(&factors, WEAK, 100);
  linear_set_dims(&c, 72, 48, 128);
  linear_run_gradients(&c);
}

/* By a chain that keeps states, and a kernel that has all gradients, of numbers of tokens as well. */
static void test_ways(void **state) {
  (void)state;
  call c = linear_case(&factors, PRODUCTION, 140);
  linear_set_dims(&c, 128, 128, 128);
  c.heads_v = 2, c.kernel.stages = 2;
  linear_run_erasing(&c);
  linear_set_dims(&c, 72, 80, 128), linear_pack(&c, 70);
  c.kernel.mods = "NoRowMods", c.kernel.elem = "half_t", c.pool[3] = -1;
  linear_run_erasing(&c);
}
static void test_ways_segments(void **state) {
  (void)state;
  call c = linear_case(&gated, WEAK, 500);
  linear_set_dims(&c, 128, 128, 128);
  c.segments = 4, c.kernel.stages = 2;
  linear_run_erasing(&c);
}

LINEAR_TESTS(cmocka_unit_test(test_gates), cmocka_unit_test(test_classes), cmocka_unit_test(test_lengths),
             cmocka_unit_test(test_packed), cmocka_unit_test(test_segments), cmocka_unit_test(test_dims),
             cmocka_unit_test(test_ways), cmocka_unit_test(test_ways_segments))
