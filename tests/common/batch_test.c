/* batch_test.c: errors of luattn_batch_open, and a batch's values for a call's tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/batch.h"

static int32_t numbers[6];
static int64_t three = 3, one_stride = 1, two_stride = 2, shape_of_two[] = {1, 3};
static DLTensor offsets(void) {
  return (DLTensor){.data = numbers, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &three};
}

static luattn_batch_options given(void) { return (luattn_batch_options){.struct_size = sizeof(luattn_batch_options)}; }

static luattn_batch_options chunks(const DLTensor *t) {
  return (luattn_batch_options){
      .struct_size = sizeof(luattn_batch_options), .q_chunks = t, .q_len = 1000, .chunk_rows = 128};
}

static void refused(const luattn_batch_options *o, const char *message) {
  luattn_batch *batch = (luattn_batch *)numbers;
  luattn_error err;
  assert_int_equal(luattn_batch_open(o, &batch, &err), LUATTN_INVALID);
  assert_null(batch);
  if (strstr(err.message, message) == NULL) fail_msg("'%s' lacks '%s'", err.message, message);
}

static luattn_batch *opened(const luattn_batch_options *o) {
  luattn_batch *batch;
  luattn_error err;
  if (luattn_batch_open(o, &batch, &err) != LUATTN_OK) fail_msg("%s", err.message);
  return batch;
}

static void options_are_checked(void **state) {
  (void)state;
  luattn_batch_options o = given();
  o.q_offset = -1, refused(&o, "q_offset: is -1, expected 0 to 2147483647");
  o = given(), o.kv_offset = INT64_C(1) << 40, refused(&o, "kv_offset: is 1099511627776, expected 0 to 2147483647");
  o = given(), o.kv_len = -2, refused(&o, "kv_len: is -2");
  o = given(), o.head_offset = 4, refused(&o, "heads: is 0, and head_offset is 4; give the heads of the whole");
  o = given(), o.heads_kv = 4, refused(&o, "heads: is 0, and heads_kv is 4");
  o = given(), o.heads = 1 << 20, refused(&o, "heads: is 1048576, expected 0 to ");
  DLTensor t = offsets();
  o = given(), o.q_offsets = &t, o.q_offset = 7, refused(&o, "q_offset: is 7, and q_offsets is given");
  o = given(), o.q_chunks = &t, refused(&o, "q_len: is 0, and q_chunks is given; give the whole's length");
  o = chunks(&t), o.chunk_rows = 192, refused(&o, "chunk_rows: is 192, expected a multiple of 128");
  o = chunks(&t), o.q_offset = 7, refused(&o, "q_offset: is given beside q_chunks");
  o = chunks(&t), o.kv_offsets = &t, refused(&o, "kv_offsets: is given beside q_chunks");
  o = chunks(&t), o.q_chunks = NULL, refused(&o, "chunk_rows: is 128, expected 0 to 0");
  o = given(), o.kv_offsets = &t;
  t.dtype.bits = 64, refused(&o, "kv_offsets: has dtype int64, expected int32");
  t = offsets(), t.ndim = 2, t.shape = shape_of_two, refused(&o, "kv_offsets: expected one axis: [batch]");
  t = offsets(), t.strides = &two_stride, refused(&o, "kv_offsets: has stride 2, expected 1");
  t = offsets(), t.data = NULL, refused(&o, "kv_offsets: its data pointer is NULL");
  t = offsets(), t.strides = &one_stride, luattn_batch_close(opened(&o));
  o.struct_size = 3, refused(&o, "struct_size is 3");
}

static bool heads(luattn_batch_options o, int call, int call_kv, batch_heads *out, char *text) {
  luattn_batch *batch = opened(&o);
  const bool ok = batch_heads_of(batch, call, call_kv, out, text, 400);
  luattn_batch_close(batch);
  return ok;
}

static void heads_agree_with_the_whole(void **state) {
  (void)state;
  char text[400];
  batch_heads h;
  luattn_batch_options o = given();
  assert_true(heads(o, 8, 2, &h, text)); /* the call's own heads */
  assert_int_equal(h.heads, 8), assert_int_equal(h.heads_kv, 2), assert_int_equal(h.offset, 0);
  o.heads = 32, o.head_offset = 24; /* a shard of 32 heads and 8 kv heads */
  assert_true(heads(o, 8, 2, &h, text));
  assert_int_equal(h.heads, 32), assert_int_equal(h.heads_kv, 8), assert_int_equal(h.offset_kv, 6);
  o.heads_kv = 1; /* one kv head, which every shard has */
  assert_true(heads(o, 8, 1, &h, text));
  assert_int_equal(h.heads_kv, 1), assert_int_equal(h.offset_kv, 0);
  assert_false(heads(o, 8, 2, &h, text)); /* two kv heads in the call */
  assert_non_null(strstr(text, "do not agree"));
  o.heads_kv = 0, o.head_offset = 26; /* heads 26 and 27 read kv head 6, not the call's first */
  assert_false(heads(o, 4, 1, &h, text));
  o.head_offset = 25;
  assert_false(heads(o, 8, 2, &h, text));
  assert_non_null(strstr(text, "head_offset: is 25, and q has 8 heads, which are more than the whole's 32"));
}

static void offsets_fit_the_whole(void **state) {
  (void)state;
  char text[400];
  DLTensor t = offsets();
  luattn_batch_options o = given();
  o.q_offset = 90, o.q_len = 100, o.kv_offsets = &t;
  luattn_batch *batch = opened(&o);
  assert_true(batch_offset_ok(batch, 0, 1, 10, 1000, text, sizeof text));
  assert_false(batch_offset_ok(batch, 0, 1, 11, 1000, text, sizeof text));
  assert_non_null(strstr(text, "q_offset: is 90, and with q's length of 11 exceeds the whole's length of 100"));
  assert_false(batch_offset_ok(batch, 0, 1, 10, 99, text, sizeof text));
  assert_non_null(strstr(text, "q_len: is 100, but this spec's index arithmetic or grid ends at 99"));
  assert_true(batch_offset_ok(batch, 1, 3, 7, 10, text, sizeof text));
  assert_false(batch_offset_ok(batch, 1, 2, 7, 10, text, sizeof text));
  assert_non_null(strstr(text, "kv_offsets: has 3 elements, expected 2"));
  assert_false(batch_offset_ok(batch, 1, 3, 11, 10, text, sizeof text));
  luattn_batch_close(batch);
}

static void chunks_lie_in_the_whole(void **state) {
  (void)state;
  char text[400];
  DLTensor t = offsets();
  const luattn_batch_options o = chunks(&t);
  luattn_batch *batch = opened(&o);
  assert_int_equal(batch_offsets(batch), LUATTN_OFFSET_CHUNKS);
  numbers[0] = 872, numbers[1] = 0, numbers[2] = 900;
  assert_true(batch_offset_ok(batch, 0, 1, 256 + 100, 1000, text, sizeof text)); /* the last chunk has fewer rows */
  assert_false(batch_offset_ok(batch, 0, 1, 256 + 101, 1000, text, sizeof text));
  assert_non_null(strstr(text, "q_chunks: is 900 for chunk 2, whose 101 rows do not lie in q_len of 1000"));
  numbers[0] = -1;
  assert_false(batch_offset_ok(batch, 0, 1, 256 + 100, 1000, text, sizeof text));
  assert_non_null(strstr(text, "q_chunks: is -1 for chunk 0"));
  assert_false(batch_offset_ok(batch, 0, 1, 256, 1000, text, sizeof text));
  assert_non_null(strstr(text, "q_chunks: has 3 elements, and q's length of 256 takes 2 chunks of 128 rows"));
  memset(numbers, 0, sizeof numbers);
  luattn_batch_close(batch);
}

static void refused_chunks(const luattn_batch_options *o, luattn_status status, const char *message) {
  luattn_batch *batch;
  luattn_error err;
  assert_int_equal(luattn_batch_open(o, &batch, &err), status);
  assert_non_null(strstr(err.message, message));
}

static void packed_sequences_in_chunks(void **state) {
  (void)state;
  static int32_t ends[] = {0, 256, 256, 512, 700}, used[] = {250, 0, 200, 188}, first[] = {128, 512};
  int64_t count[] = {5, 4, 2};
  DLTensor t[3];
  for (int i = 0; i < 3; ++i) t[i] = offsets(), t[i].shape = &count[i];
  t[0].data = ends, t[1].data = used, t[2].data = first;
  luattn_batch_options o = given();
  o.cu_seqlens_q = o.cu_seqlens_k = &t[0], o.seqused_q = &t[1], o.q_chunks = &t[2], o.chunk_rows = 256;
  luattn_batch *batch = opened(&o);
  const batch_array *cu = &batch->array[BATCH_CU_SEQLENS_Q], *rows = &batch->array[BATCH_SEQUSED_Q],
                    *blocks = &batch->array[BATCH_Q_CHUNKS];
  static const int own[] = {0, 128, 128, 256, 444}, own_used[] = {122, 0, 128, 188},
                   at[] = {250, 0, 200, 188, 128, 0, 0, 128};
  assert_int_equal(batch->chunk_rows, 128); /* a sequence begins in the middle of the first chunk */
  assert_int_equal(cu->count, 5), assert_int_equal(rows->count, 4), assert_int_equal(blocks->count, 8);
  for (int i = 0; i < 5; ++i) assert_int_equal(batch_at(cu, i), own[i]);
  for (int i = 0; i < 4; ++i) assert_int_equal(batch_at(rows, i), own_used[i]);
  for (int i = 0; i < 8; ++i) assert_int_equal(batch_at(blocks, i), at[i]);
  assert_int_equal(batch_at(&batch->array[BATCH_CU_SEQLENS_K], 4), 700); /* a side without chunks */
  char text[400];
  assert_true(batch_offset_ok(batch, 0, 4, 188, 256, text, sizeof text));
  assert_false(batch_offset_ok(batch, 0, 4, 188, 249, text, sizeof text));
  assert_non_null(strstr(text, "cu_seqlens_q: has a sequence of 250 rows, but this spec's index arithmetic or grid"));
  luattn_batch_close(batch);
  o.q_len = 700;
  refused_chunks(&o, LUATTN_INVALID, "q_len: is given beside q_chunks and packed sequences");
  o.q_len = 0, first[1] = 256;
  refused_chunks(&o, LUATTN_INVALID, "q_chunks: is 256 for chunk 1, expected a multiple of 128 from 384 to 700");
  first[1] = 520;
  refused_chunks(&o, LUATTN_INVALID, "q_chunks: is 520 for chunk 1");
  first[1] = 512, ends[3] = 511;
  refused_chunks(&o, LUATTN_INVALID, "cu_seqlens_q: sequence 3 begins with row 511");
  ends[3] = 512, t[2].device.device_type = kDLCUDA;
  refused_chunks(&o, LUATTN_UNSUPPORTED, "q_chunks: is in device memory");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(options_are_checked),
                                     cmocka_unit_test(heads_agree_with_the_whole),
                                     cmocka_unit_test(offsets_fit_the_whole), cmocka_unit_test(chunks_lie_in_the_whole),
                                     cmocka_unit_test(packed_sequences_in_chunks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
