/* packed_test.c: the arguments of packed sequences: every way in which they can be wrong, and its message;
 * what the kernel receives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/limits.h"
#include "luattn/batch.h"
#include "runtime/call/packed.h"
#include "tests/runtime/packed_problem.h"
#include "tests/support/fake_cuda.h"

/* ---- errors ---- */

BEND(no_cu_q, c->batch.cu_seqlens_q = NULL)
BEND(no_cu_k, c->batch.cu_seqlens_k = NULL)
BEND(cu_q_axes, c->cu_q.t.ndim = 2)
BEND(cu_q_without_shape, c->cu_q.t.shape = NULL)
BEND(cu_q_empty, c->cu_q.shape[0] = 0)
BEND(cu_q_long_ints, c->cu_q.t.dtype.bits = 64)
BEND(cu_q_floats, c->cu_q.t.dtype.code = kDLFloat)
BEND(cu_q_stride, c->cu_q.strides[0] = 2)
BEND(cu_q_on_device_1, c->cu_q.t.device.device_id = 1)
BEND(cu_q_null, c->cu_q.t.data = NULL)
BEND(cu_q_unaligned, c->cu_q.t.byte_offset = 2)
BEND(cu_k_axes, c->cu_k.t.ndim = 0)
BEND(cu_k_count, c->cu_k.shape[0] = BATCH)
BEND(cu_k_unsigned, c->cu_k.t.dtype.code = kDLUInt)
BEND(too_many, c->cu_q.shape[0] = c->cu_k.shape[0] = LUATTN_MAX_BATCH + 2)
BEND(longest_q_negative, c->batch.max_seqlen_q = -1)
BEND(longest_k_negative, c->batch.max_seqlen_k = INT32_MIN)
BEND(longest_q_zero, c->batch.max_seqlen_q = 0)
BEND(longest_k_zero, c->batch.max_seqlen_k = 0)
BEND(longest_q_inexact, c->p.info.max_len = LONGEST_Q - 1)
BEND(longest_k_inexact, c->p.info.max_len = LONGEST_Q)
BEND(no_q, c->p.args.q = NULL)
BEND(longest_q_alone, c->batch.cu_seqlens_q = c->batch.cu_seqlens_k = NULL)
BEND(no_o, c->p.args.o = NULL)
BEND(no_saved, c->p.args.saved = NULL)
BEND(q_padded, c->p.q.t.ndim = 4)
BEND(k_flat, c->p.k.t.ndim = 2)
BEND(v_padded, c->p.v.t.ndim = 4)
BEND(o_padded, c->p.o.t.ndim = 4)
BEND(lse_padded, c->p.lse.t.ndim = 3)
BEND(saved_padded, c->p.saved.t.ndim = 4)
BEND(q_total_negative, c->p.q.shape[0] = -1)
BEND(q_total, c->p.q.shape[0] = LUATTN_MAX_TOTAL + 1)
BEND(k_total, c->p.k.shape[0] = INT32_MAX)
BEND(q_head_dim, c->p.q.shape[2] = 32)
BEND(k_no_heads, c->p.k.shape[1] = 0)
BEND(k_heads, c->p.k.shape[1] = 3)
BEND(v_heads, c->p.v.shape[1] = 1)
BEND(v_total, c->p.v.shape[0] = TOTAL_K - 1)
BEND(o_total, c->p.o.shape[0] = TOTAL_Q + 1)
BEND(lse_transposed, (c->p.lse.shape[0] = TOTAL_Q, c->p.lse.shape[1] = HEADS))
BEND(saved_total, c->p.saved.shape[2] = TOTAL_K)
BEND(saved_stride, c->p.saved.strides[1] = 2 * TOTAL_Q)
BEND(q_last_stride, c->p.q.strides[2] = 2)
BEND(q_row_stride, c->p.q.strides[0] += 4)
BEND(k_head_stride, c->p.k.strides[1] += 4)
BEND(o_broadcast, c->p.o.strides[0] = 0)
BEND(o_heads_meet, c->p.o.strides[1] = HEAD_DIM_V / 2)
BEND(o_on_cu_q, c->p.o.t.data = c->cu_q.t.data)
BEND(lse_on_cu_k, c->p.lse.t.data = c->cu_k.t.data)
BEND(workspace_on_cu_q,
     (c->p.args.workspace = c->cu_q.t.data, c->p.info.draws_tiles = 1, c->p.info.family = LUATTN_SM90))
BEND(used_count, (c->batch.seqused_q = &c->cu_k.t))
BEND(used_unsigned, (c->cu_k.t.dtype.code = kDLUInt, c->batch.seqused_k = &c->cu_k.t))
BEND(used_alone,
     (c->batch.seqused_k = &c->cu_k.t, c->batch.cu_seqlens_q = c->batch.cu_seqlens_k = NULL, c->batch.max_seqlen_q = 0))
static tensor used;
static void give_used(packed_problem *c, int device) {
  tensor_set(&c->p, &used, kDLInt, 32, 1, BATCH, 1, 1, 1);
  used.t.device.device_id = device;
  c->batch.seqused_k = &used.t;
}
BEND(used_on_device_1, give_used(c, 1))
BEND(o_on_used, (give_used(c, 0), c->p.o.t.data = used.t.data))
BEND(input_of_q, c->p.info.input[0].axis[0] = LUATTN_AXIS_Q)
BEND(input_of_kv, (c->p.info.input[0].axis[0] = LUATTN_AXIS_KV, c->p.slopes.shape[0] = TOTAL_K + 1))
BEND(input_of_pairs, (c->p.info.input[0].num_axes = 2, c->p.info.input[0].axis[0] = LUATTN_AXIS_KV,
                      c->p.info.input[0].axis[1] = LUATTN_AXIS_Q,
                      tensor_set(&c->p, &c->p.slopes, kDLFloat, 32, 2, LONGEST_K - 1, TOTAL_Q, 1, 1)))
BEND(input_batch, (c->p.info.input[0].axis[0] = LUATTN_AXIS_B, c->p.slopes.shape[0] = BATCH + 1))

static const bad_case cases[] = {
    {no_cu_q,
     "luattn_batch_open: cu_seqlens_q: is missing, and cu_seqlens_k is given; packed sequences need cu_seqlens of "
     "both"},
    {no_cu_k, "luattn_batch_open: cu_seqlens_k: is missing, and cu_seqlens_q is given"},
    {cu_q_axes, "cu_seqlens_q: expected one axis: [batch + 1]"},
    {cu_q_without_shape, "cu_seqlens_q: expected one axis: [batch + 1]"},
    {cu_q_empty, "cu_seqlens_q: has no elements, expected at least 1: [batch + 1]"},
    {cu_q_long_ints, "cu_seqlens_q: has dtype int64, expected int32; convert it"},
    {cu_q_floats, "cu_seqlens_q: has dtype float32, expected int32"},
    {cu_q_stride, "cu_seqlens_q: has stride 2, expected 1; copy it"},
    {cu_q_on_device_1, "cu_seqlens_q: is on CUDA device 1, but the kernel is loaded on device 0"},
    {cu_q_null, "cu_seqlens_q: its data pointer is NULL"},
    {cu_q_unaligned, "cu_seqlens_q: address 0x"},
    {cu_k_axes, "cu_seqlens_k: expected one axis: [batch + 1]"},
    {cu_k_count, "cu_seqlens_k: has 2 elements, and cu_seqlens_q 3; both have one more than there are sequences"},
    {cu_k_unsigned, "cu_seqlens_k: has dtype uint32, expected int32"},
    {too_many, "cu_seqlens_q: has batch 65536, expected at most 65535; split the call"},
    {longest_q_negative, "max_seqlen_q: is -1, expected 0 to 2147483647"},
    {longest_k_negative, "max_seqlen_k: is -2147483648, expected 0 to 2147483647"},
    {longest_q_alone, "luattn_batch_open: cu_seqlens_q: is missing, and max_seqlen_q is given"},
    {longest_q_zero, "max_seqlen_q: is 0, and there are 150 rows; give the longest sequence's length"},
    {longest_k_zero, "max_seqlen_k: is 0, and there are 170 rows; give the longest sequence's length"},
    {longest_q_inexact, "max_seqlen_q: is 90, but this spec's index arithmetic or grid ends at 89"},
    {longest_k_inexact, "max_seqlen_k: is 100, but this spec's index arithmetic or grid ends at 90"},
    {no_q, "q: is missing"},
    {no_o, "o: is missing; give a tensor [total_q, heads, head_dim_v]"},
    {no_saved,
     "saved: is missing; this spec keeps 1 numbers a row for backward, give a tensor [num_saved, heads, "
     "total_q]"},
    {q_padded, "q: has 4 axes, expected 3: [total_q, heads, head_dim]"},
    {k_flat, "k: has 2 axes, expected 3: [total_k, heads_kv, head_dim]"},
    {v_padded, "v: has 4 axes, expected 3: [total_k, heads_kv, head_dim_v]"},
    {o_padded, "o: has 4 axes, expected 3: [total_q, heads, head_dim_v]"},
    {lse_padded, "lse: has 3 axes, expected 2: [heads, total_q]"},
    {saved_padded, "saved: has 4 axes, expected 3: [num_saved, heads, total_q]"},
    {q_total_negative, "q: axis 0 has size -1, expected 0 to 1073741824"},
    {q_total, "q: axis 0 has size 1073741825, expected 0 to 1073741824"},
    {k_total, "k: axis 0 has size 2147483647, expected 0 to 1073741824"},
    {q_head_dim, "q: has shape [150, 8, 32], expected [150, 8, 64] = [total_q, heads, head_dim]"},
    {k_no_heads, "k: has no heads"},
    {k_heads, "k: has 3 heads, and q's 8 are no multiple of that"},
    {v_heads, "v: has shape [170, 1, 32], expected [170, 2, 32] = [total_k, heads_kv, head_dim_v]"},
    {v_total, "v: has shape [169, 2, 32], expected [170, 2, 32]"},
    {o_total, "o: has shape [151, 8, 32], expected [150, 8, 32] = [total_q, heads, head_dim_v]"},
    {lse_transposed, "lse: has shape [150, 8], expected [8, 150] = [heads, total_q]"},
    {saved_total, "saved: has shape [1, 8, 170], expected [1, 8, 150] = [num_saved, heads, total_q]"},
    {saved_stride, "saved: axis 1 has stride 300, expected 150; it must be contiguous"},
    {q_last_stride, "q: the last axis has stride 2, expected 1"},
    {q_row_stride, "q: axis 0 has stride 516, expected a multiple of 8 elements (16 bytes)"},
    {k_head_stride, "k: axis 1 has stride 68, expected a multiple of 8 elements (16 bytes)"},
    {o_broadcast, "o: axis 0 has stride 0 over 150 elements"},
    {o_heads_meet, "o: has shape [150, 8, 32] and strides [256, 16, 1], by which elements share memory"},
    {o_on_cu_q, "is shared with cu_seqlens_q, 0x"},
    {lse_on_cu_k, "is shared with cu_seqlens_k, 0x"},
    {workspace_on_cu_q, "is shared with cu_seqlens_q, 0x"},
    {used_count, "luattn_batch_open: seqused_q: has 3 elements, expected 2, one for each sequence"},
    {used_unsigned, "seqlens_k: has dtype uint32, expected int32"},
    {used_alone, "batch: has no cu_seqlens_q, and this image is for packed sequences"},
    {used_on_device_1, "seqused_k: is on CUDA device 1, but the kernel is loaded on device 0"},
    {o_on_used, "is shared with seqused_k, 0x"},
    {input_of_q, "input 'slopes': axis 0 (q: total_q) has size 8, expected 150"},
    {input_of_kv, "input 'slopes': axis 0 (kv: total_k) has size 171, expected 170"},
    {input_of_pairs, "input 'slopes': axis 0 (kv: max_seqlen_k) has size 99, expected 100 or more"},
    {input_batch, "input 'slopes': axis 0 (b) has size 3, expected 2, or 1 to broadcast"},
};

static void every_bad_argument_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    packed_problem c;
    packed_open(&c, LUATTN_SM80);
    cases[i].bend(&c);
    luattn_error err;
    if (launch_packed(&c, &err) != LUATTN_INVALID) fail_msg("accepted: %s", cases[i].message);
    if (strstr(err.message, cases[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, cases[i].message);
    assert_int_equal(fake_num_events(), 0); /* nothing was launched */
    problem_close(&c.p);
  }
}

/* An image for entries of equal lengths takes no packed sequences, and the other way round. */
static void images_refuse_the_other(void **state) {
  (void)state;
  for (int packed = 0; packed <= 1; ++packed) {
    packed_problem c;
    luattn_error err;
    packed_open(&c, LUATTN_SM80);
    if (packed) {
      assert_int_equal(try_launch(&c.p, &err), LUATTN_INVALID);
      assert_non_null(
          strstr(err.message, "batch: is missing, and this image is for packed sequences; give cu_seqlens_q"));
      c.batch = (luattn_batch_options){.struct_size = sizeof c.batch, .q_offset = 3};
      assert_int_equal(launch_packed(&c, &err), LUATTN_INVALID);
      assert_non_null(strstr(err.message, "batch: has no cu_seqlens_q, and this image is for packed sequences"));
    } else {
      problem_close(&c.p);
      problem_open(&c.p, LUATTN_FORWARD);
      tensor_set(&c.p, &c.cu_q, kDLInt, 32, 1, BATCH + 1, 1, 1, 1);
      tensor_set(&c.p, &c.cu_k, kDLInt, 32, 1, BATCH + 1, 1, 1, 1);
      assert_int_equal(launch_packed(&c, &err), LUATTN_INVALID);
      assert_non_null(strstr(err.message,
                             "batch: has cu_seqlens_q, and this image is for entries of equal lengths; compile "
                             "with luattn_target.packed"));
    }
    assert_int_equal(fake_num_events(), 0);
    problem_close(&c.p);
  }
}

/* ---- arrays in host memory ---- */

static int32_t host_q[] = {0, 90, TOTAL_Q}, host_k[] = {0, 70, TOTAL_K};

static void to_host(packed_problem *c) {
  c->cu_q.t.data = host_q, c->cu_k.t.data = host_k;
  c->cu_q.t.device.device_type = c->cu_k.t.device.device_type = kDLCPU;
  c->batch.max_seqlen_q = c->batch.max_seqlen_k = 0;
}

static void host_arrays_are_copied(void **state) {
  (void)state;
  packed_problem c;
  luattn_error err;
  luattn_batch *batch;
  size_t size;
  packed_open(&c, LUATTN_SM80);
  to_host(&c);
  assert_int_equal(launch_packed(&c, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message, "batch: cu_seqlens_q: is in CPU memory, expected CUDA device 0; luattn_batch_prepare"));
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_OK);
  assert_int_equal(luattn_batch_size(batch, &size, &err), LUATTN_OK);
  assert_int_equal(size, 512);
  void *memory;
  assert_int_equal(luattn_device_alloc(driver, 0, size + 256, &memory, &err), LUATTN_OK);
  char *const aligned = (char *)(((uintptr_t)memory + 255) & ~(uintptr_t)255);
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size - 1, NULL, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message, "luattn_batch_prepare: memory: has 511 bytes, expected 512; luattn_batch_size gives"));
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, NULL, size, NULL, &err), LUATTN_INVALID);
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned + 4, size, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "is not a multiple of 256 bytes"));
  fake_fail("cuMemcpyHtoDAsync_v2", 1, 1);
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_CUDA);
  assert_non_null(strstr(err.message, "copying cu_seqlens_q, 12 bytes, to "));
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_OK);
  assert_memory_equal(aligned, host_q, sizeof host_q);
  assert_memory_equal(aligned + 256, host_k, sizeof host_k);
  const args_call call = {.info = &c.p.info, .args = &c.p.args, .multiprocessors = 132, .err = &err};
  LuattnCallParams all;
  if (args_fill(&call, &all) != LUATTN_OK) fail_msg("%s", err.message);
  assert_ptr_equal(all.packed.cu_seqlens_q, aligned);
  assert_ptr_equal(all.packed.cu_seqlens_k, aligned + 256);
  assert_int_equal(all.dense.shape.q_len, 90); /* the longest sequence; the call gives no max_seqlen */
  assert_int_equal(all.dense.shape.kv_len, 100);
  c.p.o.t.data = aligned; /* an output on the copy */
  assert_int_equal(try_launch(&c.p, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "is shared with cu_seqlens_q, 0x"));
  luattn_batch_close(batch);
  assert_int_equal(luattn_device_free(driver, 0, memory, &err), LUATTN_OK);
  problem_close(&c.p);
}

/* Used lengths in host memory are checked, and copied behind cu_seqlens. */
static void host_used_lengths(void **state) {
  (void)state;
  packed_problem c;
  luattn_error err;
  luattn_batch *batch;
  size_t size;
  int32_t values[BATCH] = {90, 61};
  packed_open(&c, LUATTN_SM80);
  to_host(&c);
  give_used(&c, 0);
  used.t.data = values;
  used.t.device.device_type = kDLCPU;
  c.batch.seqused_q = c.batch.seqused_k, c.batch.seqused_k = NULL;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_INVALID);
  assert_non_null(
      strstr(err.message, "luattn_batch_open: seqused_q: is 61 for sequence 1, expected 0 to 60, its length"));
  values[1] = -1;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "seqused_q: is -1 for sequence 1"));
  values[1] = 60;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_OK);
  assert_int_equal(luattn_batch_size(batch, &size, &err), LUATTN_OK);
  assert_int_equal(size, 768);
  void *memory;
  assert_int_equal(luattn_device_alloc(driver, 0, size + 256, &memory, &err), LUATTN_OK);
  char *const aligned = (char *)(((uintptr_t)memory + 255) & ~(uintptr_t)255);
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_OK);
  assert_memory_equal(aligned + 512, values, sizeof values);
  const args_call call = {.info = &c.p.info, .args = &c.p.args, .multiprocessors = 132, .err = &err};
  LuattnUsed out;
  assert_int_equal(packed_used(&call, &out), LUATTN_OK);
  assert_ptr_equal(out.seqused_q, aligned + 512);
  assert_null(out.seqused_k);
  luattn_batch_close(batch);
  assert_int_equal(luattn_device_free(driver, 0, memory, &err), LUATTN_OK);
  problem_close(&c.p);
}

static void host_values_are_checked(void **state) {
  (void)state;
  static const struct {
    int32_t q[3];
    int longest;
    const char *message;
  } bad[] = {{{1, 90, 150}, 0, "luattn_batch_open: cu_seqlens_q: begins with 1, expected 0"},
             {{0, 90, 89},
              0,
              "luattn_batch_open: cu_seqlens_q: falls from 90 to 89 at sequence 1, expected values that never"},
             {{0, 90, 150}, 89, "luattn_batch_open: max_seqlen_q: is 89, and the longest sequence has 90 rows"},
             {{0, INT32_MIN, 150}, 0, "luattn_batch_open: cu_seqlens_q: falls from 0 to -2147483648 at sequence 0"},
             {{0, 90, 149}, 0, "batch: cu_seqlens_q: is in CPU memory"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    packed_problem c;
    luattn_error err;
    int32_t values[3];
    packed_open(&c, LUATTN_SM80);
    to_host(&c);
    memcpy(values, bad[i].q, sizeof values);
    c.cu_q.t.data = values;
    c.batch.max_seqlen_q = bad[i].longest;
    assert_int_equal(launch_packed(&c, &err), LUATTN_INVALID);
    if (strstr(err.message, bad[i].message) == NULL) fail_msg("'%s' lacks '%s'", err.message, bad[i].message);
    problem_close(&c.p);
  }
}

/* On the host the end of the last sequence is known, so that it is compared with the rows: there may be more. */
static void host_total_is_compared(void **state) {
  (void)state;
  packed_problem c;
  luattn_error err;
  luattn_batch *batch;
  size_t size;
  int32_t values[] = {0, 90, TOTAL_Q + 1};
  void *memory;
  packed_open(&c, LUATTN_SM80);
  to_host(&c);
  c.cu_q.t.data = values;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_OK);
  assert_int_equal(luattn_batch_size(batch, &size, &err), LUATTN_OK);
  assert_int_equal(luattn_device_alloc(driver, 0, size + 256, &memory, &err), LUATTN_OK);
  void *const aligned = (void *)(((uintptr_t)memory + 255) & ~(uintptr_t)255);
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_OK);
  assert_int_equal(try_launch(&c.p, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message,
                         "batch: cu_seqlens_q: ends with 151, and there are 150 rows; give the rows of all sequences"));
  values[2] = TOTAL_Q - 1;
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_OK);
  assert_int_equal(try_launch(&c.p, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message,
                         "ends with 149, there are 150 rows, and this image, of an earlier luattn, does not write the "
                         "rows of no sequence"));
  c.p.info.writes_padding = 1;
  if (try_launch(&c.p, &err) != LUATTN_OK) fail_msg("%s", err.message);
  values[2] = TOTAL_Q, values[1] = -1;
  assert_int_equal(luattn_batch_prepare(batch, driver, 0, aligned, size, NULL, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "luattn_batch_prepare: cu_seqlens_q: falls from 0 to -1 at sequence 0"));
  luattn_batch_close(batch);
  assert_int_equal(luattn_device_free(driver, 0, memory, &err), LUATTN_OK);
  problem_close(&c.p);
}

/* ---- valid calls ---- */

static void what_the_kernel_gets(void **state) {
  (void)state;
  packed_problem c;
  packed_open(&c, LUATTN_SM80);
  c.cu_k.t.byte_offset = 8;
  c.p.k.strides[0] = 5 * HEAD_DIM; /* k interleaved with another tensor */
  const LuattnCallParams all = packed_filled(&c);
  const LuattnParams *p = &all.dense;
  assert_ptr_equal(all.packed.cu_seqlens_q, c.cu_q.t.data);
  assert_ptr_equal(all.packed.cu_seqlens_k, (char *)c.cu_k.t.data + 8);
  assert_int_equal(all.packed.total_q, TOTAL_Q);
  assert_int_equal(all.packed.total_k, TOTAL_K);
  assert_int_equal(p->shape.batch, BATCH);
  assert_int_equal(p->shape.heads, HEADS);
  assert_int_equal(p->shape.heads_kv, HEADS_KV);
  assert_int_equal(p->shape.group, HEADS / HEADS_KV);
  assert_int_equal(p->shape.q_len, LONGEST_Q);
  assert_int_equal(p->shape.kv_len, LONGEST_K);
  const struct {
    const LuattnTensor *t;
    long long seq, head;
  } wanted[] = {{&p->tensors.q, HEADS * HEAD_DIM, HEAD_DIM},
                {&p->tensors.k, 5 * HEAD_DIM, HEAD_DIM},
                {&p->tensors.v, HEADS_KV * HEAD_DIM_V, HEAD_DIM_V},
                {&p->tensors.o, HEADS * HEAD_DIM_V, HEAD_DIM_V},
                {&p->tensors.lse, 1, TOTAL_Q}};
  for (int i = 0; i < 5; ++i) {
    assert_int_equal(wanted[i].t->seq, wanted[i].seq);
    assert_int_equal(wanted[i].t->head, wanted[i].head);
    assert_int_equal(wanted[i].t->batch, 0);
  }
  c.batch.max_seqlen_q = 1 << 20; /* an upper bound is allowed */
  c.batch.max_seqlen_k = TOTAL_K + 1;
  const LuattnCallParams bound = packed_filled(&c);
  assert_int_equal(bound.dense.shape.q_len, TOTAL_Q);
  assert_int_equal(bound.dense.shape.kv_len, TOTAL_K);
  problem_close(&c.p);
}

/* The grid has as many tiles as the longest sequence, for each head of each sequence; none without
 * queries. */
static void grids(void **state) {
  (void)state;
  const struct {
    int sequences, total_q, total_k, longest_q, longest_k;
    unsigned grid; /* 0: nothing is launched */
  } launches[] = {{BATCH, TOTAL_Q, TOTAL_K, LONGEST_Q, LONGEST_K, 2 * HEADS * BATCH},
                  {9, 70, 1, 64, 1, 1 * HEADS * 9},
                  {1, 1, 1, 1 << 20, 1, HEADS},
                  {LUATTN_MAX_BATCH, 3, 3, 1, 1, HEADS * LUATTN_MAX_BATCH},
                  {3, 65, 0, 65, 0, 2 * HEADS * 3},
                  {3, 65, 0, 65, 7, 2 * HEADS * 3},
                  {BATCH, 0, TOTAL_K, 0, LONGEST_K, 0},
                  {BATCH, 0, TOTAL_K, 5, LONGEST_K, 0},
                  {BATCH, 0, 0, 0, 0, 0},
                  {0, TOTAL_Q, TOTAL_K, LONGEST_Q, LONGEST_K, 0},
                  {0, 0, 0, 0, 0, 0}};
  for (size_t i = 0; i < sizeof launches / sizeof *launches; ++i)
    for (luattn_family family = LUATTN_SIMT; family <= LUATTN_SM90; ++family) {
      packed_problem c;
      luattn_error err;
      packed_open(&c, family);
      c.p.info.draws_tiles = family == LUATTN_SM90;
      packed_resize(&c, launches[i].sequences, launches[i].total_q, launches[i].total_k);
      c.batch.max_seqlen_q = launches[i].longest_q;
      c.batch.max_seqlen_k = launches[i].longest_k;
      if (launch_packed(&c, &err) != LUATTN_OK) fail_msg("case %zu: %s", i, err.message);
      unsigned blocks = 0;
      for (size_t e = 0; e < fake_num_events(); ++e)
        if (fake_get_event(e)->kind == FAKE_LAUNCH)
          blocks += fake_get_event(e)->grid[0] * fake_get_event(e)->grid[1] * fake_get_event(e)->grid[2];
      if (family != LUATTN_SM90)
        assert_int_equal(blocks, launches[i].grid); /* persistent blocks of sm90 process several tiles */
      else
        assert_int_equal(blocks > 0, launches[i].grid > 0);
      problem_close(&c.p);
    }
}

/* For outputs, too, the stride of an axis with one element does not matter. */
static void odd_strides_of_single_elements(void **state) {
  (void)state;
  for (luattn_family family = LUATTN_SIMT; family <= LUATTN_SM90; ++family) {
    packed_problem c;
    luattn_error err;
    packed_open(&c, family);
    packed_resize(&c, 1, 1, 1);
    tensor *const all[] = {&c.p.q, &c.p.k, &c.p.v, &c.p.o};
    for (int i = 0; i < 4; ++i) all[i]->strides[0] = 3 - 2 * i;
    c.batch.max_seqlen_q = c.batch.max_seqlen_k = 1;
    if (launch_packed(&c, &err) != LUATTN_OK) fail_msg("%s", err.message);
    problem_close(&c.p);
  }
}

/* The workspace size is queried before any memory is allocated. */
static void workspace_by_shapes(void **state) {
  (void)state;
  packed_problem c;
  luattn_error err;
  size_t size = 1;
  luattn_kernel *kernel = NULL;
  packed_open(&c, LUATTN_SM80);
  luattn_image *image = problem_image(&c.p);
  assert_int_equal(luattn_kernel_load(driver, 0, image, &kernel, &err), LUATTN_OK);
  luattn_image_free(image);
  luattn_batch *batch;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_OK);
  tensor *const all[] = {&c.p.q, &c.p.k, &c.p.v, &c.p.slopes};
  for (int i = 0; i < 4; ++i) all[i]->t.data = NULL;
  if (luattn_workspace_size(kernel, &c.p.args, &size, &err) != LUATTN_OK) fail_msg("%s", err.message);
  assert_int_equal(size, 0);
  luattn_batch_close(batch);
  c.batch.max_seqlen_q = 0;
  assert_int_equal(packed_open_batch(&c, &batch, &err), LUATTN_OK);
  assert_int_equal(luattn_workspace_size(kernel, &c.p.args, &size, &err), LUATTN_INVALID);
  luattn_batch_close(batch);
  assert_non_null(strstr(err.message, "max_seqlen_q: is 0"));
  luattn_kernel_unload(kernel);
  problem_close(&c.p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_bad_argument_is_named),    cmocka_unit_test(images_refuse_the_other),
      cmocka_unit_test(host_arrays_are_copied),         cmocka_unit_test(host_used_lengths),
      cmocka_unit_test(host_values_are_checked),        cmocka_unit_test(host_total_is_compared),
      cmocka_unit_test(what_the_kernel_gets),           cmocka_unit_test(grids),
      cmocka_unit_test(odd_strides_of_single_elements), cmocka_unit_test(workspace_by_shapes),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
