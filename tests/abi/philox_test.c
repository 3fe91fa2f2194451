/* philox_test.c: Philox 4x32-10 against the known answers of Random123, and the place of each score's draw. */
#include "abi/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h> /* needs those above */

/* Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result; the lowest words first. */
static const uint32_t known[][10] = {
    {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
    {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
     0x6d5451fd},
    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
     0x24126ea1},
};

static void test_known_answers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const uint32_t *k = known[i];
    const LuattnPhilox x = philox_4x32_10((uint64_t)k[5] << 32 | k[4], (uint64_t)k[1] << 32 | k[0], k[2], k[3]);
    assert_memory_equal(x.x, k + 6, sizeof x.x);
  }
}

/* 32 scores share a patch, two calls apart from the next, and each has a bit of its own. */
static void test_places(void **state) {
  (void)state;
  enum { LENGTH = 64 };
  static unsigned char taken[LENGTH / 4][LENGTH / 4][32];
  memset(taken, 0, sizeof taken);
  for (int q = 0; q < LENGTH; q++)
    for (int kv = 0; kv < LENGTH; kv++) {
      assert_in_range(dropout_bit(q, kv), 0, 31);
      assert_in_range(dropout_q_patch(q), 0, LENGTH / 4 - 1);
      assert_in_range(dropout_kv_patch(kv), 0, LENGTH / 4 - 2);
      assert_int_equal(dropout_kv_patch(kv) % 2, 0);
      assert_int_equal(taken[dropout_q_patch(q)][dropout_kv_patch(kv)][dropout_bit(q, kv)]++, 0);
    }
}

/* Every draw against every keep: 32 draws at a time, bit n of plane i being bit i of draw n. */
static void test_comparison(void **state) {
  (void)state;
  for (unsigned first = 0; first < 256; first += 32) {
    LuattnPhilox high = {{0}}, low = {{0}};
    for (unsigned n = 0; n < 32; n++)
      for (int bit = 0; bit < 8; bit++) {
        const unsigned here = (first + n) >> bit & 1u;
        if (bit >= 4)
          high.x[7 - bit] |= here << n;
        else
          low.x[3 - bit] |= here << n;
      }
    for (int keep = 1; keep < 256; keep++) {
      const unsigned kept = dropout_kept(high, low, keep);
      for (unsigned n = 0; n < 32; n++) assert_int_equal(kept >> n & 1u, first + n < (unsigned)keep);
    }
  }
}

/* A carry goes into the upper word, and past 2^64 offsets begin again at 0. */
static void test_counter(void **state) {
  (void)state;
  assert_true(dropout_counter(UINT64_C(0xfffffffe), 1, 4, 3) == UINT64_C(0x100000005));
  assert_true(dropout_counter(UINT64_MAX, 0, 4, 2) == 1);
  assert_true(dropout_counter(0, 65535, 1 << 20, 1) == UINT64_C(65535) * (1 << 20) + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_answers), cmocka_unit_test(test_places),
                                     cmocka_unit_test(test_comparison), cmocka_unit_test(test_counter)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
