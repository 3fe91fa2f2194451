/* chunks_test.c: counts by chunk beside the classes of all tiles, for masks of positions and from data, by head and batch
 * entry. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "luattn/compiler.h"

enum { BATCH = 2, HEADS = 3, Q = 1000, KV = 900, TILE = 128, ROWS = 256, Q_CHUNKS = 4, KV_CHUNKS = 4, MOST = 64 };

static luattn_spec *load(const char *text) {
  luattn_spec *spec;
  luattn_error err;
  if (luattn_spec_load_text("a.lua", text, strlen(text), NULL, &spec, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return spec;
}

static void check(const char *text, DLTensor *input) {
  luattn_spec *spec = load(text);
  int64_t q_shape[] = {BATCH, HEADS, Q, 64}, k_shape[] = {BATCH, HEADS, KV, 64};
  DLTensor q = {.device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = q_shape}, k = q;
  k.shape = k_shape;
  luattn_args args = {.struct_size = sizeof args, .q = &q, .k = &k};
  const luattn_input named = {.name = "ids", .tensor = input};
  args.inputs = &named, args.num_inputs = input != NULL;
  float got[Q_CHUNKS * KV_CHUNKS];
  double want[Q_CHUNKS * KV_CHUNKS] = {0};
  unsigned char classes[MOST];
  luattn_error err;
  if (luattn_mask_chunks(spec, &args, ROWS, got, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < HEADS; h++) {
      assert_int_equal(luattn_mask_tiles(spec, &args, b, h, TILE, TILE, classes, &err), LUATTN_OK);
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) want[i / 2 * KV_CHUNKS + j / 2] += classes[i * 8 + j] != 0;
    }
  for (int i = 0; i < Q_CHUNKS * KV_CHUNKS; i++)
    if (got[i] < want[i] / (BATCH * HEADS) - 1e-5 || got[i] > want[i] / (BATCH * HEADS) + 1e-5)
      fail_msg("%s: chunks %d and %d: %g tiles, counted %g", text, i / KV_CHUNKS, i % KV_CHUNKS, (double)got[i],
               want[i] / (BATCH * HEADS));
  assert_int_equal(luattn_mask_chunks(spec, &args, 100, got, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "chunk_rows: is 100, expected a multiple of 128"));
  luattn_spec_free(spec);
}

static void test_positions(void **state) {
  (void)state;
  check("return attention { }", NULL);
  check("return attention { block_mask = causal() }", NULL);
  check(
      "return attention { block_mask = function(b, h, q_idx, kv_idx) return q_idx - kv_idx < 200 * (1 + h) and kv_idx "
      "<= q_idx + b end }",
      NULL);
  check("return attention { block_mask = function(b, h, q_idx, kv_idx) return q_idx < 0 end }", NULL);
}

static void test_data(void **state) {
  (void)state;
  int32_t ids[BATCH * Q];
  uint32_t random = 1;
  for (int b = 0; b < BATCH; b++)
    for (int i = 0, id = 0; i < Q; i++) {
      random = random * 1664525u + 1013904223u;
      if (random >> 24 < 4) id++;
      ids[b * Q + i] = b == 0 ? id : (int32_t)(random >> 28); /* documents; numbers that recur */
    }
  int64_t shape[] = {BATCH, Q};
  DLTensor input = {.data = ids, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLInt, 32, 1}, .shape = shape};
  check(
      "return attention { inputs = { ids = { axes = {\"b\", \"q\"}, dtype = \"i32\" } }, "
      "block_mask = function(b, h, q_idx, kv_idx) return eq(ids[{b, q_idx}], ids[{b, kv_idx}]) end }",
      &input);
}

/* A mask that only an evaluation decides, of more tiles than are evaluated: chunks that need each other have a count
 * wherever the sample looked. */
static void test_sample(void **state) {
  (void)state;
  enum { LEN = 8192, CHUNKS = LEN / TILE, MODULUS = 1 << 18 };
  int32_t *ids = malloc(LEN * sizeof *ids);
  float *got = malloc(CHUNKS * CHUNKS * sizeof *got);
  bool *needed = calloc(CHUNKS * CHUNKS, sizeof *needed);
  for (int i = 0; i < LEN; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 14);
  for (int i = 0; i < LEN; i++)
    for (int j = 0; j < LEN; j++)
      if ((ids[i] + ids[j]) % MODULUS == 5) needed[i / TILE * CHUNKS + j / TILE] = true;
  int64_t shape[] = {LEN}, sizes[] = {1, 1, LEN, 64};
  DLTensor input = {.data = ids, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = shape};
  DLTensor q = {.device = {kDLCPU, 0}, .ndim = 4, .dtype = {kDLFloat, 32, 1}, .shape = sizes};
  const luattn_input named = {.name = "ids", .tensor = &input};
  luattn_args args = {.struct_size = sizeof args, .q = &q, .k = &q, .inputs = &named, .num_inputs = 1};
  luattn_spec *spec = load(
      "return attention { inputs = { ids = { axes = {\"n\"}, dtype = \"i32\" } }, "
      "block_mask = function(b, h, q, kv) return eq((ids[q] + ids[kv]) % 262144, 5) end }");
  luattn_error err;
  double sum = 0;
  int pairs = 0, none = 0;
  if (luattn_mask_chunks(spec, &args, TILE, got, &err) != LUATTN_OK) fail_msg("%s", err.message);
  for (int i = 0; i < CHUNKS * CHUNKS; i++) {
    if (needed[i] && got[i] <= 0) fail_msg("chunks %d and %d have no tile", i / CHUNKS, i % CHUNKS);
    pairs += needed[i], none += got[i] == 0, sum += (double)got[i];
  }
  if (none == 0 || none == CHUNKS * CHUNKS - pairs || fabs(sum - pairs) > 0.1 * pairs)
    fail_msg("%d pairs, %d without tiles, %g tiles", pairs, none, sum);
  luattn_spec_free(spec);
  free(needed);
  free(got);
  free(ids);
}

static void test_parameters(void **state) {
  (void)state;
  luattn_spec *spec = load(
      "return attention { inputs = { ids = { axes = {'n'}, dtype = 'i32' }, slope = { axes = {'h'}, "
      "dtype = 'f32', grad = true } }, scalars = { width = 3, bound = 0 }, score_mod = function(s, b, h, q, kv) "
      "return s * slope[h] + width end, online_func = attention_sink(\"bound\"), "
      "block_mask = function(b, h, q, kv) return eq(ids[q], ids[kv]) and q - kv < 100 * h end }");
  const unsigned want[] = {LUATTN_PARAMETER_MASKS, LUATTN_PARAMETER_OF_SCORES, LUATTN_PARAMETER_OF_ROWS,
                           LUATTN_PARAMETER_OF_SCORES};
  for (size_t i = 0; i < 4; i++) assert_int_equal(luattn_spec_parameter(spec, i), want[i]);
  assert_int_equal(luattn_spec_parameter(spec, 4), 0);
  assert_int_equal(luattn_spec_mask_differs(spec), LUATTN_MASK_BY_HEAD);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_positions), cmocka_unit_test(test_data),
                                     cmocka_unit_test(test_sample), cmocka_unit_test(test_parameters)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
