/* view_test.c: tests conversions of half types with tables of all their values, and strides. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/support/cpu_call.h"

/* The non-negative values of a half type in order of their code. From code 0, each step adds one unit in the
 * last place, which is constant over the subnormals and the first exponent, and doubles with each later
 * exponent. The value after the largest finite one, in place of infinity, determines rounding. */
typedef struct half_type {
  luattn_dtype dtype;
  DLDataType dl;
  int per_exponent; /* codes per exponent */
  double smallest;
  int infinity; /* the code of infinity */
  double value[0x8000];
} half_type;

static half_type f16 = {
    .dtype = LUATTN_F16, .dl = {kDLFloat, 16, 1}, .per_exponent = 1024, .smallest = 0x1p-24, .infinity = 0x7c00};
static half_type bf16 = {
    .dtype = LUATTN_BF16, .dl = {kDLBfloat, 16, 1}, .per_exponent = 128, .smallest = 0x1p-133, .infinity = 0x7f80};

static void fill_table(half_type *t) {
  double ulp = t->smallest;
  t->value[0] = 0;
  for (int code = 1; code <= t->infinity; code++) {
    if (code > 2 * t->per_exponent && (code - 1) % t->per_exponent == 0) ulp *= 2;
    t->value[code] = t->value[code - 1] + ulp;
  }
}

static double decode(const half_type *t, uint16_t code) {
  const cpu_view v = {.data = (char *)&code, .code = t->dl.code, .bits = t->dl.bits};
  return view_get(&v, NULL);
}

static uint16_t encode(const half_type *t, double x) {
  uint16_t code = 0;
  const cpu_view v = {.data = (char *)&code, .code = t->dl.code, .bits = t->dl.bits};
  view_set(&v, NULL, x);
  return code;
}

/* Rounds x to nearest, ties to the even code, by a search in the table. */
static uint16_t nearest(const half_type *t, double x) {
  const double y = fabs(x);
  int low = 0, high = t->infinity;
  if (y >= t->value[high]) low = high;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    *(t->value[middle] <= y ? &low : &high) = middle;
  }
  if (low < t->infinity) {
    const double half_way = t->value[low] + (t->value[low + 1] - t->value[low]) / 2; /* exact in double */
    if (y > half_way || (y == half_way && low % 2 == 1)) low++;
  }
  return (uint16_t)(low | (signbit(x) ? 0x8000 : 0));
}

static void test_every_pattern(void **state) {
  const half_type *t = *state;
  for (int code = 0; code < 0x10000; code++) {
    const int magnitude = code & 0x7fff;
    const double x = decode(t, (uint16_t)code), sign = code & 0x8000 ? -1 : 1;
    if (magnitude > t->infinity) {
      assert_true(isnan(x));
      assert_true(isnan(decode(t, encode(t, x))));
      continue;
    }
    const double want = magnitude == t->infinity ? INFINITY : t->value[magnitude];
    if (x != sign * want || !!signbit(x) != (sign < 0))
      fail_msg("code %04x is %.17g, expected %.17g", code, x, sign * want);
    if (encode(t, x) != code) fail_msg("code %04x comes back as %04x", code, encode(t, x));
  }
}

static void check(const half_type *t, double x) {
  const uint16_t got = encode(t, x), want = nearest(t, x);
  double rounded = x;
  if (got != want) fail_msg("%.17g becomes %04x, expected %04x", x, got, want);
  round_all(t->dtype, &rounded, 1);
  const double back = decode(t, want);
  if (rounded != back || !!signbit(rounded) != !!signbit(back)) fail_msg("%.17g is rounded to %.17g", x, rounded);
}

static void test_ties(void **state) {
  const half_type *t = *state;
  for (int code = 0; code < t->infinity; code++) {
    const double low = t->value[code], half_way = low + (t->value[code + 1] - low) / 2;
    const double around[] = {low, nextafter(low, INFINITY), half_way, nextafter(half_way, 0),
                             nextafter(half_way, INFINITY)};
    for (int i = 0; i < 5; i++) check(t, around[i]), check(t, -around[i]);
  }
}

static void test_random(void **state) {
  const half_type *t = *state;
  uint64_t seed = 7;
  for (int i = 0; i < 1000000; i++) {
    /* Exponents from below half the smallest subnormal to beyond overflow; every eighth is arbitrary. */
    const int exponent = i % 8 == 0 ? (int)(uniform(&seed) * 2100) - 1074 : (int)(uniform(&seed) * 300) - 150;
    check(t, ldexp((1 + uniform(&seed)) * (uniform(&seed) < 0.5 ? -1 : 1), exponent));
  }
}

static void test_extremes(void **state) {
  const half_type *t = *state;
  const double x[] = {0,
                      -0.0,
                      DBL_MIN,
                      DBL_TRUE_MIN,
                      -DBL_TRUE_MIN,
                      DBL_MAX,
                      -DBL_MAX,
                      FLT_MAX,
                      FLT_MIN,
                      0x1p-149,
                      0x1p-150,
                      65504,
                      65519.999,
                      65520,
                      -65520,
                      1e39,
                      3.4028235677973366e38,
                      3.3961775292304957e38};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) check(t, x[i]);
  assert_int_equal(encode(t, INFINITY), t->infinity);
  assert_int_equal(encode(t, -INFINITY), t->infinity | 0x8000);
  assert_true(isnan(decode(t, encode(t, NAN))));
}

static void test_other_types(void **state) {
  (void)state;
  double x[] = {0.1, 1e300, -1e-300, 3};
  round_all(LUATTN_F64, x, 4);
  assert_true(x[0] == 0.1 && x[1] == 1e300 && x[2] == -1e-300 && x[3] == 3);
  round_all(LUATTN_F32, x, 4);
  assert_true(x[0] == (double)0.1f && x[1] == INFINITY && x[2] == 0 && signbit(x[2]) && x[3] == 3);
  const int32_t integer = -2147483647;
  const cpu_view i32 = {.data = (char *)&integer, .code = kDLInt, .bits = 32};
  assert_true(view_get(&i32, NULL) == -2147483647.0);
  const unsigned char byte[] = {0, 1, 255};
  for (int i = 0; i < 3; i++) {
    const cpu_view b = {.data = (char *)&byte[i], .code = kDLUInt, .bits = 8};
    assert_true(view_get(&b, NULL) == (i > 0));
  }
}

/* Elements are read and written only where the strides place them. */
static void test_strides(void **state) {
  (void)state;
  const int64_t shape[] = {2, 3, 4, 5};
  const DLDataType types[] = {F64, F32, F16, BF16};
  for (int type = 0; type < 4; type++) {
    for (layout l = DENSE_NULL; l < NUM_LAYOUTS; l++) {
      tensor t;
      cpu_view v;
      const view_rule rule = {.name = "x", .axes = "a, b, c, d", .ndim = 4, .shape = {2, -1, 4, -1}};
      tensor_new(&t, types[type], 4, shape, l);
      t.t.shape = t.shape, t.t.strides = l == DENSE_NULL ? NULL : t.stride;
      assert_int_equal(view_open(&rule, &t.t, &v, NULL), LUATTN_OK);
      for (int64_t i = 0; i < 120; i++) view_set(&v, (int64_t[]){i / 60, i / 20 % 3, i / 5 % 4, i % 5}, (double)i);
      for (int64_t i = 0; i < 120; i++) assert_true(tensor_get(&t, i) == (double)i);
      assert_true(memcmp(t.memory, "\xff\xff\xff\xff\xff\xff", l == PADDED ? 6 : 0) == 0); /* before byte_offset */
      tensor_free(&t);
    }
  }
}

int main(void) {
  fill_table(&f16);
  fill_table(&bf16);
#define BOTH(test) cmocka_unit_test_prestate(test, &f16), cmocka_unit_test_prestate(test, &bf16)
  const struct CMUnitTest tests[] = {BOTH(test_every_pattern),
                                     BOTH(test_ties),
                                     BOTH(test_random),
                                     BOTH(test_extremes),
                                     cmocka_unit_test(test_other_types),
                                     cmocka_unit_test(test_strides)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
