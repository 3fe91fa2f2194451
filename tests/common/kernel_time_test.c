/* kernel_time_test.c: the choice of a kernel, and of splits, beside what was measured (H200, bench/journal/decode.md).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/call/kernel_time.h"

static forward_sizes call(int entries, int keys, int heads, int heads_kv, int queries, int dim) {
  return (forward_sizes){.entries = entries,
                         .queries = queries,
                         .all_queries = (double)entries * queries,
                         .keys = keys,
                         .longest = keys,
                         .heads = heads,
                         .heads_kv = heads_kv,
                         .head_dim = dim,
                         .head_dim_v = dim,
                         .multiprocessors = 132};
}

/* The faster kernel by measured microseconds. */
static void takes_the_faster_one(void **state) {
  (void)state;
  static const struct {
    int entries, keys, heads, heads_kv, queries, dim;
    double decode, general;
  } row[] = {{256, 512, 64, 8, 1, 128, 133, 740},  {1, 64, 64, 8, 1, 128, 3.4, 5.53},
             {4, 512, 32, 8, 1, 128, 8.95, 9.65},  {1, 256, 64, 8, 4, 128, 7.69, 6.89},
             {1, 2048, 64, 8, 4, 128, 11.7, 23.4}, {1, 256, 64, 8, 8, 128, 10.8, 7.78},
             {4, 512, 32, 8, 16, 128, 14.7, 9.88}, {16, 128, 32, 8, 16, 128, 9.35, 13.3},
             {64, 512, 16, 16, 1, 128, 67.6, 71},  {256, 2048, 16, 16, 16, 128, 981, 1029},
             {64, 1024, 32, 8, 4, 64, 37.1, 184},  {1, 128, 32, 8, 1, 256, 5.9, 7.34}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    const forward_sizes f =
        call(row[i].entries, row[i].keys, row[i].heads, row[i].heads_kv, row[i].queries, row[i].dim);
    if (kernel_takes_decode(&f) != (row[i].decode < row[i].general)) fail_msg("row %zu takes the slower kernel", i);
    const kernel_times t = kernel_times_of(&f);
    if (t.decode < row[i].decode / 1.5 || t.decode > row[i].decode * 1.5 || t.general < row[i].general / 1.5 ||
        t.general > row[i].general * 1.5)
      fail_msg("row %zu: predicted %g and %g us", i, t.decode, t.general);
  }
}

/* The splits that took the least time, or 3 % more. */
static void splits_as_measured(void **state) {
  (void)state;
  static const struct {
    int entries, keys, heads, heads_kv, queries, splits[3];
  } row[] = {{4, 2048, 64, 8, 4, {4}},
             {4, 8192, 64, 8, 4, {4}},
             {32, 2048, 64, 8, 4, {1}},
             {1, 8192, 64, 8, 4, {16}},
             {8, 8192, 64, 8, 4, {2, 4}},
             {16, 8192, 64, 8, 4, {1}},
             {1, 512, 32, 8, 1, {8}},
             {4, 512, 32, 8, 1, {4}},
             {32, 8192, 32, 8, 1, {1}},
             {4, 65536, 32, 8, 1, {3, 4}},
             {1, 131072, 32, 8, 1, {12, 13, 16}}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    const forward_sizes f = call(row[i].entries, row[i].keys, row[i].heads, row[i].heads_kv, row[i].queries, 128);
    const int splits = kernel_times_of(&f).splits;
    if (splits != row[i].splits[0] && splits != row[i].splits[1] && splits != row[i].splits[2])
      fail_msg("row %zu: %d splits", i, splits);
  }
}

/* Shapes that a launch refuses: anything, but no trap. */
static void any_sizes(void **state) {
  (void)state;
  forward_sizes f = call(0, 0, 1, 1, 0, 1);
  (void)kernel_takes_decode(&f);
  f = call(1, 1, 1, 1, 1, 1);
  f.entries = f.queries = f.keys = f.longest = f.all_queries = 0x1p62;
  assert_false(kernel_takes_decode(&f));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(takes_the_faster_one), cmocka_unit_test(splits_as_measured),
                                     cmocka_unit_test(any_sizes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
