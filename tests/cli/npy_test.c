/* npy_test.c: tests .npy files: round trips, NumPy as a reader if installed, and 100000 damaged files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> /* needs those above */

#include "cli/cli.h"

static uint64_t next(uint64_t *state) {
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* ---- round trips ---- */

static const DLDataType types[] = {{kDLFloat, 64, 1}, {kDLFloat, 32, 1}, {kDLFloat, 16, 1},
                                   {kDLInt, 32, 1},   {kDLUInt, 8, 1},   {kDLBfloat, 16, 1}};
static const char *const numpy_names[] = {"float64", "float32", "float16", "int32", "bool", "float32"};
#define NUM_TYPES ((int)(sizeof types / sizeof *types))

static const struct {
  int ndim;
  int64_t shape[4];
} shapes[] = {{0, {0}}, {1, {7}}, {2, {3, 0}}, {3, {2, 3, 4}}, {4, {2, 3, 4, 5}}, {4, {1, 1000, 1, 1}}};
#define NUM_SHAPES ((int)(sizeof shapes / sizeof *shapes))

static void fill(array *a, uint64_t seed) {
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double x = (double)(int64_t)next(&seed) * 0x1p-60;
    array_set(a, i, a->t.dtype.code == kDLInt ? floor(x * 1e8) : a->t.dtype.code == kDLUInt ? x > 0 : x);
  }
}

/* Makes a file per process, because tests run in parallel. */
static void temporary_path(char path[64]) {
  snprintf(path, 64, "/tmp/luattn-npy-XXXXXX");
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
}

static void test_round_trip(void **state) {
  char path[64];
  (void)state;
  temporary_path(path);
  for (int i = 0; i < NUM_TYPES * NUM_SHAPES * 2; i++) {
    const int shape = i / 2 % NUM_SHAPES;
    array a, b;
    luattn_error err;
    assert_int_equal(array_new(&a, types[i / 2 / NUM_SHAPES], shapes[shape].ndim, shapes[shape].shape, i % 2, &err),
                     LUATTN_OK);
    fill(&a, (uint64_t)i);
    if (npy_write(path, &a, &err) != LUATTN_OK || npy_read(path, &b, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(b.t.ndim, a.t.ndim);
    assert_memory_equal(b.shape, a.shape, sizeof(int64_t) * (size_t)a.t.ndim);
    assert_int_equal(b.t.dtype.code, a.t.dtype.code == kDLBfloat ? kDLFloat : a.t.dtype.code);
    assert_int_equal(b.t.dtype.bits, a.t.dtype.code == kDLBfloat ? 32 : a.t.dtype.bits);
    for (int64_t at = 0; at < array_count(&a); at++) assert_true(array_get(&a, at) == array_get(&b, at));
    array_free(&a), array_free(&b);
  }
  unlink(path);
}

static void test_numpy_reads_it(void **state) {
  char path[64], command[1024];
  (void)state;
  if (system("python3 -c 'import numpy' >/dev/null 2>&1") != 0) skip();
  temporary_path(path);
  for (int i = 0; i < NUM_TYPES; i++) {
    array a;
    double sum = 0;
    assert_int_equal(array_new(&a, types[i], 4, (int64_t[]){2, 3, 4, 5}, true, NULL), LUATTN_OK);
    fill(&a, (uint64_t)i);
    for (int64_t at = 0; at < 120; at++) sum += (double)(at + 1) * array_get(&a, at);
    assert_int_equal(npy_write(path, &a, NULL), LUATTN_OK);
    snprintf(command, sizeof command,
             "python3 -c 'import numpy as np; x = np.load(\"%s\"); assert x.shape == (2, 3, 4, 5) and "
             "x.dtype == np.%s; "
             "s = (np.arange(1, 121) * x.astype(np.float64).ravel()).sum(); assert abs(s - (%.17g)) <= 1e-9 "
             "* abs(s), s'",
             path, i == 4 ? "bool_" : numpy_names[i], sum);
    if (system(command) != 0) fail_msg("%s", command);
    array_free(&a);
  }
  unlink(path);
}

/* A bshd file holds [batch, length, heads, dim]; reading gives the same tensor as [batch, heads, length,
 * dim]. */
static void test_layouts(void **state) {
  (void)state;
  static const char source[] = "return attention { }";
  const int64_t shape[4] = {2, 2, 3, 5}, swapped[4] = {2, 3, 2, 5};
  luattn_spec *spec;
  char path[2][64];
  array first, last;
  luattn_error err;
  assert_int_equal(luattn_spec_load_text("s.lua", source, sizeof source - 1, NULL, &spec, &err), LUATTN_OK);
  assert_int_equal(array_new(&first, types[1], 4, shape, false, &err), LUATTN_OK);
  assert_int_equal(array_new(&last, types[1], 4, swapped, false, &err), LUATTN_OK);
  for (int64_t at = 0; at < 60; at++) {
    const int64_t b = at / 30, h = at / 15 % 2, i = at / 5 % 3, d = at % 5;
    array_set(&first, at, (double)at);
    array_set(&last, ((b * 3 + i) * 2 + h) * 5 + d, (double)at);
  }
  for (int l = 0; l < 2; l++) {
    cli_options o = {.q = path[l], .k = path[l], .v = path[l], .layout = l == 0 ? "bhsd" : "bshd"};
    cli_problem p;
    temporary_path(path[l]);
    assert_int_equal(npy_write(path[l], l == 0 ? &first : &last, &err), LUATTN_OK);
    if (problem_read(spec, &o, false, &p, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_true(p.batch == 2 && p.heads == 2 && p.heads_kv == 2 && p.q_len == 3 && p.kv_len == 3);
    assert_true(p.dim == 5 && p.dim_v == 5);
    for (int64_t at = 0; at < 60; at++) {
      assert_true(array_get(&p.q, at) == (double)at && array_get(&p.v, at) == (double)at);
    }
    problem_free(&p);
    unlink(path[l]);
  }
  array_free(&first), array_free(&last);
  luattn_spec_free(spec);
}

/* ---- damage ---- */

#define MOST_BYTES 1024

typedef struct sample {
  size_t size;
  unsigned char byte[MOST_BYTES];
} sample;

/* Version 1 has 2 bytes of header length, later ones 4. */
static sample make_sample(int version, const char *descr, const char *shape, size_t data) {
  char header[256];
  sample s = {.byte = {0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version}};
  const size_t length = version > 1 ? 4 : 2;
  size_t n =
      (size_t)snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
  while ((8 + length + n + 1) % 64 != 0) header[n++] = ' ';
  header[n++] = '\n';
  s.byte[8] = (unsigned char)n;
  memcpy(s.byte + 8 + length, header, n);
  s.size = 8 + length + n + data;
  for (size_t i = 0; i < data; i++) s.byte[s.size - data + i] = (unsigned char)(i % 8 == 0);
  return s;
}

static luattn_status read_sample(sample *s, array *out, luattn_error *err) {
  FILE *f = fmemopen(s->byte, s->size, "rb");
  assert_non_null(f);
  const luattn_status status = npy_read_stream("x.npy", f, out, err);
  fclose(f);
  return status;
}

/* Flips bytes, replaces digits, truncates, repeats, or moves pieces. */
static void damage(sample *s, uint64_t *seed) {
  static const char ours[] = "0123456789(),' :{}[]<>|fiub-+\0\n";
  for (uint64_t n = 1 + next(seed) % 4; n > 0; n--) {
    const size_t at = next(seed) % s->size, in_header = next(seed) % (s->size < 128 ? s->size : 128);
    switch (next(seed) % 6) {
      case 0:
        s->byte[at] ^= (unsigned char)(1u << next(seed) % 8);
        break;
      case 1:
        s->byte[in_header] = (unsigned char)ours[next(seed) % sizeof ours];
        break;
      case 2:
        s->byte[in_header] = (unsigned char)next(seed);
        break;
      case 3:
        s->size = 1 + at;
        break;
      case 4:
        if (s->size == MOST_BYTES) break;
        memmove(s->byte + at + 1, s->byte + at, s->size++ - at);
        break;
      default:
        memmove(s->byte + in_header, s->byte + at, (s->size - (at > in_header ? at : in_header)) / 2);
        break;
    }
  }
}

static void test_damaged_files(void **state) {
  (void)state;
  const sample right[] = {make_sample(1, "<f4", "(2, 3, 4)", 96), make_sample(2, "<f8", "(12,)", 96),
                          make_sample(3, "<f2", "(6, 8)", 96),    make_sample(1, "<i8", "(3, 4)", 96),
                          make_sample(1, "<i4", "()", 4),         make_sample(1, "|b1", "(96,)", 96),
                          make_sample(1, "|u1", "(0, 5)", 0)};
  const int kinds = (int)(sizeof right / sizeof *right);
  uint64_t seed = 1;
  long read = 0, refused = 0;
  for (int i = 0; i < kinds; i++) {
    sample s = right[i];
    array a;
    luattn_error err;
    if (read_sample(&s, &a, &err) != LUATTN_OK) fail_msg("sample %d: %s", i, err.message);
    array_free(&a);
  }
  for (int i = 0; i < 100000; i++) {
    sample s = right[i % kinds];
    array a;
    luattn_error err;
    damage(&s, &seed);
    const luattn_status status = read_sample(&s, &a, &err);
    if (status == LUATTN_OK) {
      double sum = 0;
      for (int64_t at = 0, n = array_count(&a); at < n; at++) sum += array_get(&a, at);
      assert_true(array_bytes(&a) <= s.size && (sum < 0 || sum >= 0 || isnan(sum)));
      read++;
    } else {
      assert_null(a.storage);
      assert_true(status == LUATTN_IO || status == LUATTN_INVALID);
      if (strncmp(err.message, "x.npy: ", 7) != 0 && strncmp(err.message, "array: ", 7) != 0)
        fail_msg("%s", err.message);
      refused++;
    }
    array_free(&a);
  }
  assert_true(read > 1000 && refused > 50000); /* damaged data is read, a damaged header is refused */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_numpy_reads_it),
                                     cmocka_unit_test(test_layouts), cmocka_unit_test(test_damaged_files)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
