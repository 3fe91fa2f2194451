/* chunks_test.c: counts by chunk beside the classes of all tiles, for masks of positions and from data, by head and batch
 * entry. */
#include <setjmp.h>
#include <stdarg.h>
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_positions), cmocka_unit_test(test_data)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
