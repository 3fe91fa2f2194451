/* threshold_test.c: masks whose comparisons a last bit decides: counted, pictured and computed as float32 compares
 * them, or double in a call of float64 without float data. */
#include <stdio.h>

#include "tests/support/cpu_call.h"

enum { LENGTH = 40 };

typedef struct threshold {
  const char *keep; /* of q_idx, kv_idx, edge, which is 0.7, and x[kv_idx], whose elements are kv_idx / 10 in float32 */
  DLDataType of_call, of_data;
  bool (*kept)(int q, int kv);
} threshold;

static float tenths(int kv) { return (float)kv / 10; }
static bool of_data(int q, int kv) { return (void)q, tenths(kv) >= 0.7f; }
static bool of_doubles(int q, int kv) { return (void)q, kv / 10.0 >= 0.7; }
static bool of_positions(int q, int kv) { return (float)kv <= (float)q * 0.7f; }
static bool of_positions_in_double(int q, int kv) { return kv <= q * 0.7; }
static bool of_rounded_steps(int q, int kv) {
  volatile float product = (float)q * 0.1f; /* never merged with the sum */
  return product - 0.3f >= 0 && kv >= 0;
}
static bool of_quotients(int q, int kv) { return (float)kv <= (float)q / 3.0f; }
static bool of_whole_numbers(int q, int kv) {
  volatile float product = tenths(kv) * 10.0f;
  return (int)product % 3 == q % 3;
}

static bool same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits; }

static void check_threshold(const threshold *t) {
  char source[512];
  luattn_error err;
  call c;
  tensor x;
  snprintf(source, sizeof source,
           "return attention { scalars = { edge = 0.7 }, inputs = { x = { axes = {'kv'}, dtype = '%s' } },\n"
           "  mask_mod = function(b, h, q_idx, kv_idx) return %s end }",
           same(t->of_data, F64) ? "f64" : "f32", t->keep);
  luattn_spec *spec = load_text(source);
  call_new(&c, spec, (int[]){1, 1, 1, LENGTH, LENGTH, 4, 4}, DENSE, t->of_call, F64);
  tensor_new(&x, t->of_data, 1, (int64_t[]){LENGTH}, DENSE);
  x.t.shape = x.shape;
  for (int kv = 0; kv < LENGTH; kv++) tensor_set(&x, kv, same(t->of_data, F64) ? kv / 10.0 : tenths(kv));
  const luattn_input input = {"x", &x.t, NULL};
  c.args.inputs = &input, c.args.num_inputs = 1;
  int64_t kept = 0, want = 0;
  unsigned char class[LENGTH * LENGTH];
  if (luattn_mask_count(spec, &c.args, &kept, &err) != LUATTN_OK ||
      luattn_mask_tiles(spec, &c.args, 0, 0, 1, 1, class, &err) != LUATTN_OK ||
      luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s: %s", t->keep, err.message);
  for (int q = 0; q < LENGTH; q++) {
    bool any = false;
    for (int kv = 0; kv < LENGTH; kv++) {
      const bool keeps = t->kept(q, kv);
      want += keeps, any |= keeps;
      if (class[q * LENGTH + kv] == (keeps ? 0 : 2)) /* 1: kernels ask the mask itself */
        fail_msg("%s: q %d, kv %d: the picture says %d", t->keep, q, kv, class[q * LENGTH + kv]);
    }
    if ((tensor_get(&c.lse, q) > -1e300) != any) fail_msg("%s: row %d: lse %g", t->keep, q, tensor_get(&c.lse, q));
  }
  if (kept != want) fail_msg("%s: keeps %d, expected %d", t->keep, (int)kept, (int)want);
  call_free(&c), tensor_free(&x);
  luattn_spec_free(spec);
}

static void test_thresholds(void **state) {
  (void)state;
  const threshold cases[] = {
      {"x[kv_idx] >= 0.7", F32, F32, of_data},
      {"x[kv_idx] >= 0.7", BF16, F32, of_data},
      {"x[kv_idx] >= 0.7", F64, F32, of_data},
      {"x[kv_idx] >= 0.7", F64, F64, of_doubles},
      {"x[kv_idx] >= 0.7", F32, F64, of_doubles},
      {"x[kv_idx] >= edge", F32, F32, of_data},
      {"-x[kv_idx] <= -edge", BF16, F32, of_data},
      {"not (x[kv_idx] < edge)", F64, F32, of_data},
      {"x[kv_idx] >= edge", F64, F64, of_doubles},
      {"kv_idx <= q_idx * edge", F32, F32, of_positions},
      {"kv_idx <= q_idx * 0.7", F32, F32, of_positions},
      {"kv_idx <= q_idx * 0.7", F16, F32, of_positions},
      {"kv_idx <= q_idx * 0.7", F64, F32, of_positions_in_double},
      {"q_idx * 0.1 - 0.3 >= 0", F32, F32, of_rounded_steps},
      {"kv_idx <= q_idx / 3", F32, F32, of_quotients},
      {"eq(floor(x[kv_idx] * 10) % 3, q_idx % 3)", F32, F32, of_whole_numbers},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_threshold(&cases[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_thresholds)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
