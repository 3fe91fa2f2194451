/* tune_test.c: tests the comparison of two kernels' results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "cli/tune.h"

enum { ROWS = 5000, WIDTH = 16 };

typedef struct pair {
  array want, got;
} pair;

static double noise(uint32_t *state) { /* in -1 .. 1 */
  *state = *state * 1664525u + 1013904223u;
  return (double)*state / 2147483648.0 - 1;
}

/* Makes random rows, and a copy with a relative error of at most `error` in each number. */
static pair make_pair(luattn_dtype dtype, double error) {
  const int64_t shape[] = {2, 5, ROWS / 10, WIDTH};
  luattn_error err;
  uint32_t state = 1;
  pair p;
  if (array_new(&p.want, dtype_dl(dtype), 4, shape, false, &err) != LUATTN_OK ||
      array_new(&p.got, dtype_dl(dtype), 4, shape, false, &err) != LUATTN_OK)
    fail_msg("%s", err.message);
  for (int64_t i = 0; i < array_count(&p.want); i++) {
    array_set(&p.want, i, noise(&state));
    array_set(&p.got, i, array_get(&p.want, i) * (1 + error * noise(&state)));
  }
  return p;
}

static void free_pair(pair *p) {
  array_free(&p->want);
  array_free(&p->got);
}

static bool agree(const pair *p, luattn_dtype dtype, char why[320]) {
  why[0] = 0;
  return tune_agrees("o", &p->want, &p->got, dtype, why, 320);
}

/* In each type, rounding errors pass, and errors ten times as large do not. */
static void rounding(void **state) {
  (void)state;
  static const double unit[] = {
      [LUATTN_F64] = 1e-11, [LUATTN_F32] = 2e-5, [LUATTN_BF16] = 0x1p-7, [LUATTN_F16] = 0x1p-10};
  char why[320];
  for (int dtype = 0; dtype < 4; dtype++)
    for (int large = 0; large < 2; large++) {
      pair p = make_pair((luattn_dtype)dtype, (large ? 20 : 1) * unit[dtype]);
      const bool same = agree(&p, (luattn_dtype)dtype, why);
      if (same == large) fail_msg("dtype %d, large %d: %s", dtype, large, why);
      free_pair(&p);
    }
}

/* Tiles have at least 64 rows, so the sample covers each tile. */
static void one_wrong_tile(void **state) {
  (void)state;
  char why[320];
  for (int at = 0; at + 64 <= ROWS; at += 61) {
    pair p = make_pair(LUATTN_BF16, 0);
    for (int64_t i = (int64_t)at * WIDTH; i < (int64_t)(at + 64) * WIDTH; i++)
      array_set(&p.got, i, 1.1 * array_get(&p.want, i));
    assert_false(agree(&p, LUATTN_BF16, why));
    assert_non_null(strstr(why, "WRONG: o, row "));
    free_pair(&p);
  }
}

/* Late rows of a causal mask average many values, so they are small. They are compared relative to their own
 * size. */
static void small_rows(void **state) {
  (void)state;
  char why[320];
  pair p = make_pair(LUATTN_BF16, 0);
  for (int64_t i = 31 * WIDTH; i < 32 * WIDTH; i++) {
    array_set(&p.want, i, 0.01 * array_get(&p.want, i));
    array_set(&p.got, i, 1.1 * array_get(&p.want, i));
  }
  assert_false(agree(&p, LUATTN_BF16, why));
  assert_non_null(strstr(why, "row 31: "));
  for (int64_t i = 31 * WIDTH; i < 32 * WIDTH; i++) { /* but the remainder of a cancellation is noise */
    array_set(&p.want, i, 1e-7);
    array_set(&p.got, i, -1e-7);
  }
  assert_true(agree(&p, LUATTN_BF16, why));
  free_pair(&p);
}

static void not_finite(void **state) {
  (void)state;
  static const struct {
    double want, got;
    bool same;
  } cases[] = {{NAN, NAN, true},      {-INFINITY, -INFINITY, true}, {NAN, 0, false},
               {0, NAN, false},       {INFINITY, -INFINITY, false}, {-INFINITY, 0, false},
               {NAN, INFINITY, false}};
  char why[320];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pair p = make_pair(LUATTN_F32, 0);
    array_set(&p.want, 62 * WIDTH + 3, cases[i].want);
    array_set(&p.got, 62 * WIDTH + 3, cases[i].got);
    if (agree(&p, LUATTN_F32, why) != cases[i].same) fail_msg("case %zu: %s", i, why);
    free_pair(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(rounding), cmocka_unit_test(one_wrong_tile),
                                     cmocka_unit_test(small_rows), cmocka_unit_test(not_finite)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
