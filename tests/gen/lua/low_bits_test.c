/* low_bits_test.c: masks of bits over arithmetic that leaves 32 bits give what Lua's own 64 bits give, at all
 * lengths. */
#include "traced.h"

#include <stdio.h>
#include <string.h>

#include "gen/ir/interval.h"

/* Bodies of a block_mask. */
static const char *const hashes[] = {
    "local x = (q_idx // 64 * 2654435761 + kv_idx // 64 * 40503) & 0xFFFFFFFF return (x >> 29) < 3",
    "return ((q_idx * 40503 + kv_idx * 30011) & 65535) >> 8 < 100",
    "return (q_idx * 2654435761 ~ kv_idx * 2246822519) & 255 < 100",
    "return ((q_idx * 2654435761) & 0xFFFFFFFF) < (kv_idx * 2246822519 & 0xFFFFFFFF)",
    "return ((q_idx * 2654435761) & 0xFFFFFFFF) < 0x80000000",
    "return eq((q_idx * 2654435761 - kv_idx * 40503) % 65536 // 16384, 1)",
    "return (q_idx * 2654435761 - kv_idx) % 4294967296 > 3000000000",
    "return ((q_idx ~ 0x80000000) & 0xFFFFFFFF) > (kv_idx * 40503001 & 0xFFFFFFFF)",
    "return (q_idx * 40503 + kv_idx ~ 0x80000000) & 0xFFFFFF < 9000000",
    "local x = (q_idx * 73856093 ~ kv_idx * 19349663) & 0xFFFFFFFF x = x ~ (x >> 16) x = (x * 0x85ebca6b) & 0xFFFFFFFF "
    "x = x ~ (x >> 13) "
    "x = (x * 0xc2b2ae35) & 0xFFFFFFFF return (x ~ (x >> 16)) % 10 < 3",
    "local x = q_idx + kv_idx * 57 + 1 x = (x ~ (x << 13)) & 0xFFFFFFFF x = x ~ (x >> 17) x = (x ~ (x << 5)) & "
    "0xFFFFFFFF return x % 7 < 3",
    "local x = (q_idx * 1103515245 + kv_idx * 12345) & 0x7FFFFFFF return x // 1000 % 5 < 2",
    "return ((q_idx * q_idx * q_idx * 65537 + kv_idx) & 1023) < 400",
    "return max((q_idx * 2654435761) & 0xFFFFFFFF, 0x90000000) > 0xA0000000",
    "return where(kv_idx <= q_idx, q_idx * 2654435761, kv_idx * 40503) & 15 < 7",
    "return (~(q_idx * 2654435761) & 0xFFFF) > 30000",
    "return ((q_idx * 2654435761) & 0xFFFFFFFF) * 0.5 < 1.0e9",
    "return (-(q_idx * 2654435761) & 0xF0) < 100",
    "return ((q_idx << 27) ~ (kv_idx << 3)) & 0xFF00FF00 > 0x40000000",
    "return (((q_idx * 2654435761) & 0xFFFFFFFF) >> 40) + kv_idx % 3 < 2",
    "return ((kv_idx + 3) & 0xFFFFFFFF) // 10 < 3",
    "return ((kv_idx + 3) & 0xFFFFFFFF) % 7 < 3",
    "return abs((kv_idx + 3) & 0xFFFFFFFF) < 30",
    "return abs((kv_idx * 2654435761) & 0xFFFFFFFF) // 1000 % 5 < 3",
    "return eq((kv_idx * 5 & 0xFFFFFFFF) // 3 % 2, 0)",
    "return ((q_idx * 2654435761 + kv_idx) & 0xFFFFFFFF) % 2147483647 > 900000000",
    "return ((q_idx * 2654435761 + kv_idx) & 0xFFFFFFFF) // 1500000000 < 2",
    "return ((q_idx * 2654435761 + kv_idx) & 0xFFFFFFFF) // 4294967291 + kv_idx < 20",
    "return eq(((q_idx - kv_idx) >> 1) % 2, 0)",
    "return ((q_idx - kv_idx) >> 3) & 0xFF < 100",
    "return ((q_idx - kv_idx) >> 31) & 0xFFFFFFFF > 5",
    "return (((q_idx - kv_idx) >> 32) & 0xFFFFFFFF) // 4294967295 < 1",
    "return (((q_idx - kv_idx) >> 40) & 0xFFFFFFFF) // 16777215 < 1",
    "return eq((((q_idx - kv_idx) >> 5) * 3 + kv_idx) % 8, 1)",
    "return eq((((q_idx - kv_idx) * 3 >> 2) ~ q_idx) % 16, 1)",
    "return (((q_idx - kv_idx) >> 63) + q_idx) & 3 < 1",
    "return h * 2654435761 + b * 40503 + q_idx & 3 < 2",
};

static void test_as_lua(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
    char source[1024];
    const int n = snprintf(source, sizeof source,
                           "return attention { block_mask = function(b, h, q_idx, kv_idx) %s end }", hashes[i]);
    compare_with_oracle(hashes[i], source, (size_t)n, 64);
  }
}

/* Lengths are not limited by what a mask of bits removes. */
static void test_lengths(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
    char source[1024];
    traced_file t;
    snprintf(source, sizeof source, "return attention { block_mask = function(b, h, q_idx, kv_idx) %s end }",
             hashes[i]);
    trace_text(&t, source);
    const int64_t limit = ir_int_limit(t.spec.g, &t.spec.block_mask, 1);
    if (limit < 1 << 24) fail_msg("%s: lengths up to %lld", hashes[i], (long long)limit);
    trace_close(&t);
  }
}

/* Arithmetic that stays within 32 bits is as it was. */
static void test_others_stay(void **state) {
  (void)state;
  traced_file t;
  trace_text(&t,
             "return attention { block_mask = function(b, h, q_idx, kv_idx) return (q_idx * 3 + kv_idx) & 7 < 4 end }");
  assert_string_equal(show(&t, t.spec.block_mask), "(lt (mod (add kv_idx (mul q_idx 3)) 8) 4)");
  trace_close(&t);
  trace_text(&t,
             "return attention { score_mod = function(score, b, h, q_idx, kv_idx) return score - (q_idx - kv_idx) * "
             "100000 end }");
  assert_int_equal(ir_int_limit(t.spec.g, &t.spec.score_mod, 1), 21474);
  trace_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_as_lua),
      cmocka_unit_test(test_lengths),
      cmocka_unit_test(test_others_stay),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
