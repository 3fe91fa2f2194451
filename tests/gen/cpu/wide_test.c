/* wide_test.c: inputs of 64 bits: i64 of any value, and f64 in calls of float32. Masks and scores beside the same in
 * C. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cpu_call.h"

enum { LENGTH = 80 };

typedef struct wide_case {
  const char *keep, *score;
  bool (*kept)(const int64_t *t, int q, int kv);
  double (*added)(const int64_t *t, int q, int kv);
} wide_case;

static bool not_later(const int64_t *t, int q, int kv) { return t[kv] <= t[q]; }
static bool same(const int64_t *t, int q, int kv) { return t[kv] == t[q]; }
static bool recent(const int64_t *t, int q, int kv) {
  return (int64_t)((uint64_t)t[q] - (uint64_t)t[kv]) < 3 && t[q] >= t[kv];
}
static bool by_bits(const int64_t *t, int q, int kv) {
  return ((uint64_t)t[kv] >> 40 & 3) == ((uint64_t)t[q] >> 40 & 3);
}
static bool by_constant(const int64_t *t, int q, int kv) { return (void)q, t[kv] >= INT64_C(1764345600007); }
static bool largest(const int64_t *t, int q, int kv) {
  const int64_t more = t[q] > t[kv] ? t[q] : t[kv];
  return (more % 5 + 5) % 5 < 3; /* Lua's remainder */
}
static bool less_than_itself(const int64_t *t, int q, int kv) { return (void)kv, t[q] < (int64_t)((uint64_t)t[q] - 2); }
static bool shifted(const int64_t *t, int q, int kv) {
  return (int64_t)((uint64_t)t[kv] - 9) <= (int64_t)((uint64_t)t[q] + 2);
}
static double apart(const int64_t *t, int q, int kv) { return (double)(t[q] - t[kv]) / 1024; }
static double quotient(const int64_t *t, int q, int kv) { return (void)q, (double)((t[kv] >> 40) % 3); }

static const wide_case cases[] = {
    {"t[kv_idx] <= t[q_idx]", "score", not_later, NULL},
    {"eq(t[kv_idx], t[q_idx])", "score", same, NULL},
    {"t[q_idx] - t[kv_idx] < 3 and t[q_idx] >= t[kv_idx]", "score", recent, NULL},
    {"eq(t[kv_idx] >> 40 & 3, t[q_idx] >> 40 & 3)", "score", by_bits, NULL},
    {"t[kv_idx] >= 1764345600007", "score", by_constant, NULL},
    {"t[kv_idx] > 1764345600006.5", "score", by_constant, NULL},
    {"max(t[q_idx], t[kv_idx]) % 5 < 3", "score", largest, NULL},
    {"t[q_idx] < t[q_idx] - 2", "score", less_than_itself, NULL},
    {"t[kv_idx] - 9 <= t[q_idx] + 2", "score", shifted, NULL},
    {"true", "score + (t[q_idx] - t[kv_idx]) / 1024", NULL, apart},
    {"true", "score + t[kv_idx] // 1099511627776 % 3", NULL, quotient},
};

static const struct {
  const char *name;
  int64_t base, step, block; /* element i is base + i / block * step */
} values[] = {{"small", 0, 1, 13},
              {"milliseconds", INT64_C(1764345600000), 1, 7},
              {"upper words", 1, INT64_C(1) << 33, 20},
              {"hashes", (INT64_C(1) << 60) + 7, 1, 11},
              {"ends", INT64_MAX - 40, 1, 1},
              {"halves", (INT64_C(1) << 62) - 5, INT64_C(1) << 61, 20},
              {"negative", -(INT64_C(1) << 62) - 3, INT64_C(1) << 40, 9}};

static void reference(const call *c, const wide_case *w, const int64_t *t, double *lse, int64_t *count) {
  for (int q = 0; q < LENGTH; q++) {
    double sum = 0;
    for (int kv = 0; kv < LENGTH; kv++) {
      double s = 0;
      if (w->kept != NULL && !w->kept(t, q, kv)) continue;
      for (int d = 0; d < 4; d++) s += tensor_get(&c->q, q * 4 + d) * tensor_get(&c->k, kv * 4 + d) / 2;
      sum += exp(s + (w->added != NULL ? w->added(t, q, kv) : 0));
      ++*count;
    }
    lse[q] = log(sum);
  }
}

static void check_case(const wide_case *w, int which) {
  char source[512];
  luattn_error err;
  call c;
  int64_t t[LENGTH], kept = 0, want = 0, shape = LENGTH;
  double lse[LENGTH];
  unsigned char class[25];
  snprintf(source, sizeof source,
           "return attention { inputs = { t = { axes = {'n'}, dtype = 'i64' } },\n"
           "  score_mod = function(score, b, h, q_idx, kv_idx) return %s end,\n"
           "  mask_mod = function(b, h, q_idx, kv_idx) return %s end }",
           w->score, w->keep);
  for (int i = 0; i < LENGTH; i++)
    t[i] = (int64_t)((uint64_t)values[which].base + (uint64_t)(i / values[which].block * values[which].step));
  luattn_spec *spec = load_text(source);
  call_new(&c, spec, (int[]){1, 1, 1, LENGTH, LENGTH, 4, 4}, DENSE, F64, F64);
  DLTensor ids = {.data = t, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = &shape};
  const luattn_input input = {"t", &ids, NULL};
  c.args.inputs = &input, c.args.num_inputs = 1;
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK ||
      luattn_mask_count(spec, &c.args, &kept, &err) != LUATTN_OK ||
      luattn_mask_tiles(spec, &c.args, 0, 0, 16, 16, class, &err) != LUATTN_OK)
    fail_msg("%s: %s", w->keep, err.message);
  reference(&c, w, t, lse, &want);
  if (kept != want) fail_msg("%s of %s: keeps %d, expected %d", w->keep, values[which].name, (int)kept, (int)want);
  for (int q = 0; q < LENGTH; q++)
    if (!(fabs(tensor_get(&c.lse, q) - lse[q]) <= 1e-9 * (1 + fabs(lse[q]))) && tensor_get(&c.lse, q) != lse[q])
      fail_msg("%s, %s of %s: row %d: lse %.17g, expected %.17g", w->keep, w->score, values[which].name, q,
               tensor_get(&c.lse, q), lse[q]);
  for (int i = 0; i < 25 && w->kept != NULL; i++)
    for (int j = 0; j < 256; j++) {
      const bool keeps = w->kept(t, i / 5 * 16 + j / 16, i % 5 * 16 + j % 16);
      if (class[i] == (keeps ? 0 : 2))
        fail_msg("%s of %s: tile %d has class %d", w->keep, values[which].name, i, class[i]);
    }
  call_free(&c);
  luattn_spec_free(spec);
}

static void test_integers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int v = 0; v < (int)(sizeof values / sizeof *values); v++)
      if (cases[i].added == NULL || v == 0 || v == 1) check_case(&cases[i], v);
}

/* Documents with small ids skip tiles, as with ids of 32 bits. */
static void test_documents_skip_tiles(void **state) {
  (void)state;
  luattn_spec *spec = load_text(
      "return attention { inputs = { t = { axes = {'n'}, dtype = 'i64' } },\n"
      "  mask_mod = function(b, h, q_idx, kv_idx) return eq(t[q_idx], t[kv_idx]) end }");
  call c;
  luattn_error err;
  int64_t t[LENGTH], shape = LENGTH;
  unsigned char class[25];
  for (int i = 0; i < LENGTH; i++) t[i] = i / 16;
  call_new(&c, spec, (int[]){1, 1, 1, LENGTH, LENGTH, 4, 4}, DENSE, F32, F32);
  DLTensor ids = {.data = t, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = &shape};
  const luattn_input input = {"t", &ids, NULL};
  c.args.inputs = &input, c.args.num_inputs = 1;
  assert_int_equal(luattn_mask_tiles(spec, &c.args, 0, 0, 16, 16, class, &err), LUATTN_OK);
  for (int i = 0; i < 25; i++) assert_int_equal(class[i], i / 5 == i % 5 ? 2 : 0);
  call_free(&c);
  luattn_spec_free(spec);
}

/* floor(x) of float64 numbers beyond 32 bits: milliseconds, and beside them small ones. */
static void check_floor(const char *keep, bool (*kept)(const double *t, int q, int kv), DLDataType type) {
  char source[512];
  luattn_error err;
  call c;
  double t[LENGTH];
  int64_t shape = LENGTH, count = 0, want = 0;
  snprintf(source, sizeof source,
           "return attention { inputs = { t = { axes = {'n'}, dtype = 'f64' }, u = { axes = {4}, dtype = 'i32' } },\n"
           "  block_mask = function(b, h, q_idx, kv_idx) return %s end }",
           keep);
  for (int i = 0; i < LENGTH; i++) t[i] = (i % 3 == 0 ? -1 : 1) * (i < 40 ? 1764345600000.25 : 3.25) + i / 3 * 0.5;
  luattn_spec *spec = load_text(source);
  call_new(&c, spec, (int[]){1, 1, 1, LENGTH, LENGTH, 4, 4}, DENSE, type, F32);
  int32_t u[] = {0, 1, 2, 3};
  int64_t four = 4;
  DLTensor times = {.data = t, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1}, .shape = &shape};
  DLTensor small = {.data = u, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &four};
  const luattn_input inputs[] = {{"t", &times, NULL}, {"u", &small, NULL}};
  c.args.inputs = inputs, c.args.num_inputs = 2;
  if (luattn_mask_count(spec, &c.args, &count, &err) != LUATTN_OK) fail_msg("%s: %s", keep, err.message);
  for (int i = 0; i < LENGTH * LENGTH; i++) want += kept(t, i / LENGTH, i % LENGTH);
  if (count != want) fail_msg("%s: keeps %d, expected %d", keep, (int)count, (int)want);
  call_free(&c);
  luattn_spec_free(spec);
}

static bool floors_not_later(const double *t, int q, int kv) { return floor(t[kv]) <= floor(t[q]); }
static bool ceils_same(const double *t, int q, int kv) { return ceil(t[kv]) == ceil(t[q]); }
static bool floors_apart(const double *t, int q, int kv) { return floor(t[q]) - floor(t[kv]) < 3; }
static bool floors_rest(const double *t, int q, int kv) { return (void)kv, fmod(fmod(floor(t[q]), 7) + 7, 7) < 4; }
static bool floors_of_products(const double *t, int q, int kv) { return floor(t[kv] * 4) > floor(t[q] * 4); }
static bool floors_as_index(const double *t, int q, int kv) { return (void)kv, fmod(fmod(floor(t[q]), 4) + 4, 4) >= 2; }
static bool floors_clamped(const double *t, int q, int kv) {
  return (void)kv, ((int64_t)fmin(fmax(floor(t[q]), 0), 1e9) & 3) == 1;
}

static void test_floor(void **state) {
  (void)state;
  const DLDataType types[] = {F32, F64};
  for (int i = 0; i < 2; i++) {
    check_floor("floor(t[kv_idx]) <= floor(t[q_idx])", floors_not_later, types[i]);
    check_floor("eq(ceil(t[kv_idx]), ceil(t[q_idx]))", ceils_same, types[i]);
    check_floor("floor(t[q_idx]) - floor(t[kv_idx]) < 3", floors_apart, types[i]);
    check_floor("floor(t[q_idx]) % 7 < 4", floors_rest, types[i]);
    check_floor("floor(t[kv_idx] * 4) > floor(t[q_idx] * 4)", floors_of_products, types[i]);
    check_floor("u[floor(t[q_idx]) % 4] >= 2", floors_as_index, types[i]);
    check_floor("eq(clamp(floor(t[q_idx]), 0, 1000000000) & 3, 1)", floors_clamped, types[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_integers), cmocka_unit_test(test_documents_skip_tiles),
                                     cmocka_unit_test(test_floor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
