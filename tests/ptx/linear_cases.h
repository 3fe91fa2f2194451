/* linear_cases.h: what tests of calls of linear attention begin with. */
#ifndef LUATTN_TESTS_LINEAR_CASES_H
#define LUATTN_TESTS_LINEAR_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/ptx/hand_kernels.h"
#include "tests/ptx/linear_calls.h"

#define LINEAR_KERNEL(stages, decay, update, mods, skip, K, V) \
  {"bf16_t", decay, update, mods, skip, K, V, V, stages, false}

enum { LINEAR_ALIKE_CALLS = 4 };

/* One sequence of one head, with states before and behind it. Updates that erase write with factors of up to 1. */
call linear_case(const linear_kernel *kernel, gates g, int tokens);
/* Two of them. */
call linear_case_of_two(const linear_kernel *kernel, gates g, int tokens);
/* Sequences of all lengths, some empty, beside two of NaN; strides; rows of a pool. */
call linear_packed_case(const linear_kernel *kernel, gates g, int heads, int heads_v);
/* No decays: keys that are random, or alike, with writes of up to 1, or of up to 2. */
call linear_alike_case(const linear_kernel *kernel, int i);

/* Packs sequences of 0, 65, 300 and `last` tokens. */
void linear_pack(call *c, int last);
/* Sets head dims, and channels of V of a block. */
void linear_set_dims(call *c, int k_dim, int v_dim, int v_block);

/* A program of tests, all or those that its argument names. */
#define LINEAR_TESTS(...)                                         \
  int main(int argc, char **argv) {                               \
    const struct CMUnitTest tests[] = {__VA_ARGS__};              \
    if (argc > 1) cmocka_set_test_filter(argv[1]);                \
    return cmocka_run_group_tests(tests, hand_open_driver, NULL); \
  }

#endif
