/* args_test.c: tests every kind of wrong argument and its message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/call/limits.h"
#include "luattn/batch.h"
#include "runtime/launch/cpu_kernel.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/problem.h"
#include "tests/support/sizes.h"

static luattn_driver *driver;

static luattn_status launch(problem *p, luattn_error *err) {
  luattn_image *image = problem_image(p);
  luattn_kernel *kernel = NULL;
  luattn_error load_err;
  if (luattn_kernel_load(driver, 0, image, &kernel, &load_err) != LUATTN_OK) fail_msg("%s", load_err.message);
  luattn_image_free(image);
  fake_reset(); /* loading the module zeroed memory, which made events */
  const luattn_status status = luattn_launch(kernel, &p->args, NULL, err);
  luattn_kernel_unload(kernel);
  return status;
}

static int cpu_runs;
static luattn_status cpu_run(void *user, luattn_pass pass, const luattn_args *args, const DLTensor *weights,
                             luattn_error *err) {
  (void)pass, (void)weights, (void)err;
  ++cpu_runs;
  assert_ptr_equal(user, &cpu_runs);
  assert_int_equal(args->struct_size, sizeof *args);
  return LUATTN_OK;
}

/* Launches a kernel of the CPU path instead. */
static luattn_status launch_on_cpu(problem *p, bool relaxed, luattn_error *err) {
  luattn_kernel *kernel = NULL;
  luattn_error make_err;
  size_t size = 1;
  p->info.on_cpu = 1;
  if (cpu_kernel_make(&p->info, relaxed, cpu_run, NULL, &cpu_runs, &kernel, &make_err) != LUATTN_OK)
    fail_msg("%s", make_err.message);
  const luattn_status status = luattn_launch(kernel, &p->args, NULL, err);
  if (status == LUATTN_OK) assert_int_equal(luattn_workspace_size(kernel, &p->args, &size, NULL), LUATTN_OK);
  assert_int_equal(size, status == LUATTN_OK ? 0 : 1);
  luattn_kernel_unload(kernel);
  return status;
}

static void move_to_host(problem *p) {
  tensor *const all[] = {&p->q,      &p->k,           &p->v,   &p->o,     &p->lse,  &p->saved,
                         &p->dout,   &p->dlse,        &p->dq,  &p->dk,    &p->dv,   &p->scalar_grads,
                         &p->slopes, &p->slopes_grad, &p->ids, &p->flags, &p->table};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) all[i]->t.device = (DLDevice){kDLCPU, 0};
}

typedef void bend(problem *p);
typedef struct bad_case {
  luattn_pass pass;
  bend *bend;
  const char *message;
} bad_case;

#define BEND(name, statement) \
  static void name(problem *p) { statement; }

BEND(old_struct, p->args.struct_size = 24)
BEND(no_struct, p->args.struct_size = 0)
BEND(torn_struct, p->args.struct_size = sizeof p->args - 4)
BEND(later_struct, (p->args.struct_size += sizeof p->later, p->later[2] = 1))
BEND(endless_struct, p->args.struct_size = SIZE_MAX)
BEND(no_q, p->args.q = NULL)
BEND(no_v, p->args.v = NULL)
BEND(flat_q, p->q.t.ndim = 3)
BEND(q_without_shape, p->q.t.shape = NULL)
BEND(flat_o, p->o.t.ndim = 3)
BEND(negative_batch, p->q.shape[0] = -1)
BEND(long_q, p->q.shape[2] = (int64_t)1 << 33)
BEND(q_beyond_max_len, p->info.max_len = Q_LEN - 1)
BEND(k_beyond_max_len, p->info.max_len = KV_LEN - 1)
BEND(few_keys, (p->info.has_least_keys = 1, p->info.least_keys[0] = KV_LEN + 1))
BEND(no_heads, p->k.shape[1] = 0)
BEND(uneven_heads, p->k.shape[1] = 3)
BEND(k_batch, p->k.shape[0] = 1)
BEND(q_head_dim, p->q.shape[3] = 128)
BEND(v_head_dim, p->v.shape[3] = 64)
BEND(v_len, p->v.shape[2] = 7)
BEND(o_shape, p->o.shape[2] = 101)
BEND(q_f16, p->q.t.dtype.code = kDLFloat)
BEND(k_lanes, p->k.t.dtype.lanes = 2)
BEND(k_float8, (p->k.t.dtype.code = 10, p->k.t.dtype.bits = 8)) /* kDLFloat8_e4m3fn */
BEND(lse_f64, p->lse.t.dtype.bits = 64)
BEND(v_device_type, p->v.t.device.device_type = kDLROCM)
BEND(q_on_cpu, p->q.t.device.device_type = kDLCPU)
BEND(q_on_device_1, p->q.t.device.device_id = 1)
BEND(q_null, p->q.t.data = NULL)
BEND(q_unaligned, p->q.t.byte_offset = 8)
BEND(lse_unaligned, p->lse.t.byte_offset = 2)
BEND(q_last_stride, p->q.strides[3] = 2)
BEND(k_stride, p->k.strides[2] = HEAD_DIM + 4)
BEND(input_i64, p->info.input[1].dtype = LUATTN_INPUT_I64)
BEND(input_i16, p->info.input[1].dtype = LUATTN_INPUT_I16)
BEND(input_u8, (p->info.input[2].dtype = LUATTN_INPUT_U8, p->flags.t.dtype.code = kDLInt))
BEND(o_broadcast, p->o.strides[0] = 0)
BEND(no_o, p->args.o = NULL)
BEND(lse_not_there, p->info.has_lse = 0)
BEND(no_saved, p->args.saved = NULL)
BEND(large_scores, p->args.large_scores = 1)
BEND(odd_large_scores, p->args.large_scores = 2)
BEND(large_scores_not_given, p->info.large_scores = 1)
BEND(keys_modified, (p->args.keys_modified = 1, p->info.has_key_mod = 1))
BEND(odd_keys_modified, p->args.keys_modified = -1)
BEND(keys_modified_not_given, p->info.keys_modified = 1)
BEND(keys_modified_of_backward, p->args.keys_modified = 1)
BEND(append_without_pages, p->args.append = (const luattn_append_args *)(const void *)&p->q)
BEND(saved_strided, p->saved.strides[2] = 2 * Q_LEN)
BEND(nan_scale, p->args.scale = (double)NAN)
BEND(negative_scale, p->args.scale = -1)
BEND(infinite_scale, p->args.scale = (double)INFINITY)
BEND(scale_of_no_float, p->args.scale = 1e-46)
BEND(scale_subnormal, p->args.scale = 0x1p-127)
BEND(scale_beyond_float, p->args.scale = 1e39)
BEND(scale_without_log, p->args.scale = 3e38)
BEND(scale_beyond_double, (p->info.dtype = LUATTN_F64, p->args.scale = 1.7e308))
BEND(no_inputs, p->args.num_inputs = 3)
BEND(null_inputs, p->args.inputs = NULL)
BEND(unnamed_input, p->inputs[1].name = NULL)
BEND(misspelt_input, p->inputs[0].name = "slope")
BEND(unknown_input, p->inputs[0].name = "something")
BEND(input_escape, p->inputs[0].name = "\x1b[2J")
BEND(input_twice, p->inputs[3].name = "ids")
BEND(input_without_tensor, p->inputs[2].tensor = NULL)
BEND(input_dtype, p->ids.t.dtype.bits = 64)
BEND(bool_as_int, p->flags.t.dtype.code = kDLInt)
BEND(input_ndim, p->ids.t.ndim = 1)
BEND(input_heads, p->slopes.shape[0] = 3)
BEND(input_batch, p->ids.shape[0] = 3)
BEND(input_kv, p->ids.shape[1] = 1)
BEND(input_fixed, p->table.shape[1] = 15)
BEND(input_free, p->table.shape[0] = 0)
BEND(input_far_apart, p->ids.strides[1] = 1ll << 29)
BEND(input_on_cpu, p->slopes.t.device.device_type = kDLCPU)
BEND(unknown_scalar, p->scalars[0].name = "temprature")
BEND(scalar_escape, p->scalars[0].name = "cap\n")
BEND(unnamed_scalar, p->scalars[0].name = NULL)
BEND(nan_scalar, p->scalars[0].value = (double)NAN)
BEND(scalar_out_of_range,
     (p->info.has_ranges = 1, p->info.ranges[0].of[0] = (scalar_range){.most = 1e30, .above = 1, .by = "softcap: c"},
      p->scalars[0].value = 0))
BEND(scalar_beyond_float, p->scalars[0].value = 1e39)
BEND(scalar_below_float, p->scalars[0].value = -1e-39)
BEND(default_beyond_float, p->info.scalar[1].value = 1e300)
BEND(q_wraps, p->q.strides[0] = (int64_t)1 << 62)
BEND(q_wraps_down, p->q.strides[0] = INT64_MIN)
BEND(q_wraps_by_two_axes, (p->q.strides[0] = (int64_t)1 << 58, p->q.strides[1] = (int64_t)1 << 57))
BEND(o_wraps, p->o.strides[1] = (int64_t)1 << 61)
BEND(input_wraps, p->ids.strides[0] = INT64_MAX)
BEND(offset_wraps, p->q.t.byte_offset = UINT64_MAX - 15)
BEND(below_zero, p->q.strides[0] = -((int64_t)1 << 57))
BEND(one_batch_too_many, p->info.has_key_mod = 0; p->q.shape[0] = 65536)
BEND(null_scalars, p->args.scalars = NULL)
BEND(no_workspace, p->args.workspace = NULL)
BEND(small_workspace, p->args.workspace_size = 1000)
BEND(odd_workspace, p->args.workspace = (char *)p->args.workspace + 128)
BEND(no_dout, p->args.dout = NULL)
BEND(no_lse, p->args.lse = NULL)
BEND(no_dq, p->args.dq = NULL)
BEND(unwanted_dk, p->info.wants &= ~(unsigned)LUATTN_WANT_DK)
BEND(dq_broadcast, p->dq.strides[1] = 0)
BEND(grad_of_unmarked, p->info.input[0].grad = 0)
BEND(unwanted_grads, p->info.wants &= ~(unsigned)LUATTN_WANT_INPUTS)
BEND(grad_dtype, p->slopes_grad.t.dtype.code = kDLBfloat)
BEND(grad_shape, p->slopes_grad.shape[0] = 1)
BEND(unwanted_scalar_grads, p->info.wants &= ~(unsigned)LUATTN_WANT_SCALARS)
BEND(scalar_grads_shape, p->scalar_grads.shape[0] = 1)

/* ---- outputs that share memory ---- */

BEND(o_rows_meet, p->o.strides[2] = HEAD_DIM_V / 2)
BEND(dv_heads_meet, p->dv.strides[1] = p->dv.strides[2])
BEND(o_is_q, (p->o.t.data = p->q.t.data, p->o.t.byte_offset = 16))
BEND(lse_in_saved, (p->lse.t.data = p->saved.t.data, p->lse.t.byte_offset = 4))
BEND(dk_is_dv, p->dk.t.data = p->dv.t.data)
BEND(dq_is_dout, p->dq.t.data = p->dout.t.data)
BEND(grad_is_input, p->slopes_grad.t.data = p->slopes.t.data)
BEND(grad_is_scalar_grads, p->scalar_grads.t.data = p->slopes_grad.t.data)
BEND(workspace_on_q, p->args.workspace = p->memory)

static void scalar_twice(problem *p) {
  p->args.num_scalars = 2;
  p->scalars[1] = p->scalars[0];
}
static void too_many_heads(problem *p) { p->q.shape[1] = LUATTN_MAX_HEADS + 1; }
static void too_many_batches(problem *p) { problem_resize(p, 21846, 1, 1); }
/* Makes 2^14 tiles in each of 8 x 21000 heads. */
static void too_many_tiles(problem *p) {
  const int64_t len = 1 << 20;
  problem_resize(p, 21000, 1, 1);
  tensor *const rows[] = {&p->q, &p->o, &p->lse, &p->saved};
  for (int i = 0; i < 4; ++i) {
    const int axis = i < 3 ? 2 : 3;
    rows[i]->shape[axis] = len;
    for (int a = 0; a < axis; ++a) rows[i]->strides[a] *= len;
  }
  p->flags.shape[0] = len;
}
static void grad_strided(problem *p) {
  p->table.t.dtype.bits = 16;
  p->inputs[3].grad = &p->slopes_grad.t;
  tensor_set(p, &p->slopes_grad, kDLFloat, 32, 2, 5, 16, 1, 1);
  p->slopes_grad.strides[0] = 32;
  p->inputs[0].grad = NULL;
}

static luattn_batch *batches[32]; /* close_all closes them */
static size_t num_batches;

static luattn_batch *batch_of(const luattn_batch_options *given) {
  luattn_batch_options options = *given;
  options.struct_size = sizeof options;
  assert_true(num_batches < sizeof batches / sizeof *batches);
  assert_int_equal(luattn_batch_open(&options, &batches[num_batches], NULL), LUATTN_OK);
  return batches[num_batches++];
}
static void batch_for_whole(problem *p) { p->args.batch = batch_of(&(luattn_batch_options){.q_offset = 1}); }
static void offset_beyond_max_len(problem *p) {
  p->info.offsets = 1, p->info.max_len = 200;
  p->args.batch = batch_of(&(luattn_batch_options){.q_offset = 101});
}
static void head_beyond_whole(problem *p) {
  p->info.offsets = 1;
  p->args.batch = batch_of(&(luattn_batch_options){.head_offset = 9, .heads = 16});
}
/* Axis 0 of the first input is read at other places than its own, and is a part of what these read. */
static void part_is_read_elsewhere(problem *p, int32_t axis, const luattn_batch_options *part) {
  p->info.offsets = 1, p->info.num_elsewhere = 1;
  p->info.elsewhere[0] = (manifest_elsewhere){0, 0};
  p->info.input[0].axis[0] = axis;
  p->args.batch = batch_of(part);
}
static void keys_read_elsewhere(problem *p) {
  part_is_read_elsewhere(p, LUATTN_AXIS_KV, &(luattn_batch_options){.kv_len = 500});
}
static void queries_read_elsewhere(problem *p) {
  part_is_read_elsewhere(p, LUATTN_AXIS_Q, &(luattn_batch_options){.q_offset = 3});
}
static void heads_read_elsewhere(problem *p) {
  part_is_read_elsewhere(p, LUATTN_AXIS_H, &(luattn_batch_options){.heads = 16});
}
static void offsets_elsewhere(problem *p) {
  static int64_t two = 2;
  static int32_t numbers[2];
  static const DLTensor t = {
      .data = numbers, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &two};
  p->info.offsets = 1;
  p->info.offsets_layout[0] = 1;
  p->args.batch = batch_of(&(luattn_batch_options){.kv_offsets = &t});
}
static void chunks_for_arrays(problem *p) {
  static int64_t one = 1;
  static int32_t number;
  static const DLTensor t = {
      .data = &number, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &one};
  p->info.offsets = 1;
  p->info.offsets_layout[0] = 1;
  p->args.batch = batch_of(&(luattn_batch_options){.q_chunks = &t, .q_len = 500, .chunk_rows = 128});
}
static void arrays_for_chunks(problem *p) {
  offsets_elsewhere(p);
  p->info.offsets_layout[0] = 2;
}
static void array_for_numbers(problem *p) {
  offsets_elsewhere(p);
  p->info.offsets_layout[0] = 0;
}

static void no_random(problem *p) { p->info.random = 1; }
static void seed_astride(problem *p) {
  static const luattn_random r = {.struct_size = sizeof r, .seed_at = (const uint64_t *)(uintptr_t)0x1004};
  p->info.random = 1;
  p->args.random = &r;
}

static const bad_case cases[] = {
    {LUATTN_FORWARD, no_random, "forward of 'demo': random: is missing; the spec drops weights at random"},
    {LUATTN_BACKWARD, seed_astride, "random: seed_at: address 0x1004 is not a multiple of 8 bytes; align it"},
    {LUATTN_FORWARD, batch_for_whole,
     "batch: has offsets or heads of a whole, and this image is for tensors that are the whole; compile with "
     "luattn_target.offsets"},
    {LUATTN_FORWARD, offset_beyond_max_len,
     "batch: q_offset: is 101, and with q's length of 100 exceeds the length at which"},
    {LUATTN_BACKWARD, head_beyond_whole,
     "batch: head_offset: is 9, and q has 8 heads, which are more than the whole's 16"},
    {LUATTN_FORWARD, keys_read_elsewhere,
     "': the spec reads its axis kv elsewhere than at kv_idx, and k is a part of the whole, which may lack that place; "
     "declare a free axis "
     "instead, as axes = {\"n\"}, and give the input of the whole"},
    {LUATTN_BACKWARD, queries_read_elsewhere,
     "': the spec reads its axis q elsewhere than at q_idx, and q is a part of the whole"},
    {LUATTN_FORWARD, heads_read_elsewhere,
     "': the spec reads its axis h elsewhere than at h, and q has a part of the heads"},
    {LUATTN_FORWARD, array_for_numbers, "batch: kv_offsets: is given, and this image takes numbers alone"},
    {LUATTN_FORWARD, chunks_for_arrays,
     "batch: q_chunks: is given, and this image takes no chunks; compile with LUATTN_OFFSET_CHUNKS"},
    {LUATTN_FORWARD, arrays_for_chunks,
     "batch: kv_offsets: is given, and this image takes no other arrays than chunks"},
    {LUATTN_FORWARD, offsets_elsewhere, "kv_offsets: is in CPU memory, expected CUDA device 0"},
    {LUATTN_FORWARD, old_struct,
     "forward: luattn_args: struct_size is 24, expected sizeof(luattn_args), which is {args} in luattn 0.1.0 "
     "and at least 32 in any version; set it, and what is not used to 0"},
    {LUATTN_FORWARD, no_struct, "luattn_args: struct_size is 0, expected sizeof(luattn_args)"},
    {LUATTN_FORWARD, torn_struct, "luattn_args: struct_size is {args-4}, expected sizeof(luattn_args)"},
    {LUATTN_BACKWARD, later_struct,
     "backward: luattn_args: struct_size is {args+16}, and byte {args+8} is set, which luattn 0.1.0 does not know: it "
     "has {args}; use "
     "the luattn whose headers the program was built with, or a later one, or set that member to 0"},
    {LUATTN_FORWARD, endless_struct, "luattn_args: struct_size is 18446744073709551615, expected"},
    {LUATTN_FORWARD, no_q, "forward of 'demo': q: is missing"},
    {LUATTN_FORWARD, no_v, "v: is missing"},
    {LUATTN_FORWARD, flat_q, "q: has 3 axes, expected 4: [batch, heads, q_len, head_dim]"},
    {LUATTN_FORWARD, q_without_shape, "q: has 4 axes"},
    {LUATTN_FORWARD, flat_o, "o: has 3 axes, expected 4: [batch, heads, q_len, head_dim_v]"},
    {LUATTN_FORWARD, negative_batch, "q: axis 0 has size -1, expected 0 to 2147483647"},
    {LUATTN_FORWARD, long_q, "q: axis 2 has size 8589934592"},
    {LUATTN_FORWARD, q_beyond_max_len, "q: has length 100, but this spec's index arithmetic or grid ends at 99"},
    {LUATTN_FORWARD, k_beyond_max_len, "k: has length 130"},
    {LUATTN_FORWARD, few_keys,
     "k: kv_len is 130, and the spec's mask needs at least 131, a window times its dilation; give more places, or a "
     "smaller window"},
    {LUATTN_FORWARD, no_heads, "k: has no heads"},
    {LUATTN_FORWARD, uneven_heads, "k: has 3 heads, and q's 8 are no multiple of that"},
    {LUATTN_FORWARD, k_batch,
     "k: has shape [1, 2, 130, 64], expected [2, 2, 130, 64] = [batch, heads_kv, kv_len, head_dim]"},
    {LUATTN_FORWARD, q_head_dim, "q: has shape [2, 8, 100, 128], expected [2, 8, 100, 64]"},
    {LUATTN_FORWARD, v_head_dim, "v: has shape [2, 2, 130, 64], expected [2, 2, 130, 32]"},
    {LUATTN_FORWARD, v_len, "v: has shape [2, 2, 7, 32], expected [2, 2, 130, 32]"},
    {LUATTN_FORWARD, o_shape, "o: has shape [2, 8, 101, 32]"},
    {LUATTN_FORWARD, q_f16, "q: has dtype float16, expected bfloat16; convert it or compile for its dtype"},
    {LUATTN_FORWARD, k_lanes, "k: has dtype bfloat16x2"},
    {LUATTN_FORWARD, k_float8, "k: has dtype float8_e4m3fn, expected bfloat16; convert it"},
    {LUATTN_FORWARD, lse_f64, "lse: has dtype float64, expected float32; convert it"},
    {LUATTN_FORWARD, v_device_type, "v: has DLPack device type 10, expected 2 (CUDA)"},
    {LUATTN_FORWARD, q_on_cpu, "q: is in CPU memory, expected CUDA device 0; luattn_copy_to_device copies it"},
    {LUATTN_FORWARD, q_on_device_1, "q: is on CUDA device 1, but the kernel is loaded on device 0"},
    {LUATTN_FORWARD, q_null, "q: its data pointer is NULL"},
    {LUATTN_FORWARD, q_unaligned, "is not a multiple of 16 bytes; copy it, or convert q, k, v to float32"},
    {LUATTN_FORWARD, lse_unaligned, "is not a multiple of 4 bytes"},
    {LUATTN_FORWARD, q_last_stride, "q: the last axis has stride 2, expected 1"},
    {LUATTN_FORWARD, k_stride, "k: axis 2 has stride 68, expected a multiple of 8 elements"},
    {LUATTN_FORWARD, o_broadcast, "o: axis 0 has stride 0 over 2 elements"},
    {LUATTN_FORWARD, no_o, "o: is missing; give a tensor [batch, heads, q_len, head_dim_v]"},
    {LUATTN_FORWARD, lse_not_there, "lse: the online function of this spec has no lse; leave it NULL"},
    {LUATTN_FORWARD, no_saved, "saved: is missing; this spec keeps 1 numbers a row for backward"},
    {LUATTN_FORWARD, large_scores,
     "large_scores: is 1, and the kernel is compiled for 0; give that, or compile it with luattn_target.large_scores = "
     "1"},
    {LUATTN_BACKWARD, odd_large_scores, "large_scores: is 2, expected 0 or 1"},
    {LUATTN_BACKWARD, large_scores_not_given, "large_scores: is 0, and the kernel is compiled for 1; give that"},
    {LUATTN_FORWARD, keys_modified,
     "keys_modified: is 1, and the kernel is compiled for 0; give that if k and v have not yet been through key_mod "
     "and value_mod, or compile it with "
     "luattn_target.keys_modified = 1"},
    {LUATTN_FORWARD, odd_keys_modified, "keys_modified: is -1, expected 0 or 1"},
    {LUATTN_FORWARD, keys_modified_not_given,
     "keys_modified: is 0, and the kernel is compiled for 1; give that if k and v have already been"},
    {LUATTN_BACKWARD, keys_modified_of_backward,
     "keys_modified: is 1, and there is no backward over keys that key_mod has changed already"},
    {LUATTN_FORWARD, append_without_pages,
     "append: is given, and this kernel is for keys that are not in pages; take one with luattn_target.pages"},
    {LUATTN_FORWARD, saved_strided, "saved: axis 2 has stride 200, expected 100; it must be contiguous"},
    {LUATTN_FORWARD, nan_scale, "scale: is nan"},
    {LUATTN_FORWARD, negative_scale, "scale: is -1, expected a positive number, or 0 for head_dim^-1/2"},
    {LUATTN_FORWARD, infinite_scale, "scale: is inf"},
    {LUATTN_FORWARD, scale_of_no_float,
     "scale: is 1e-46, expected 1.17549e-38 to 1.70141e+38, which float32 can hold, or 0 for head_dim^-1/2"},
    {LUATTN_BACKWARD, scale_subnormal, "scale: is 5.87747e-39, expected 1.17549e-38"},
    {LUATTN_FORWARD, scale_beyond_float, "scale: is 1e+39, expected 1.17549e-38"},
    {LUATTN_FORWARD, scale_without_log, "scale: is 3e+38, expected 1.17549e-38"},
    {LUATTN_FORWARD, scale_beyond_double,
     "scale: is 1.7e+308, expected 2.22507e-308 to 8.98847e+307, which float64 can hold"},
    {LUATTN_FORWARD, no_inputs, "input 'table': is missing; give a float16 tensor of 2 axes by this name"},
    {LUATTN_FORWARD, null_inputs, "inputs: is NULL, but num_inputs is 4"},
    {LUATTN_FORWARD, unnamed_input, "inputs: number 1 has no name"},
    {LUATTN_FORWARD, misspelt_input, "input 'slope': the spec has no such input; did you mean 'slopes'?"},
    {LUATTN_FORWARD, unknown_input,
     "input 'something': the spec has no such input; it has 'slopes', 'ids', 'flags', 'table'"},
    {LUATTN_FORWARD, input_escape, "input '?[2J': the spec has no such input; it has"},
    {LUATTN_FORWARD, input_twice, "input 'ids': was given twice"},
    {LUATTN_FORWARD, input_without_tensor, "input 'flags': is missing; give a uint8 tensor"},
    {LUATTN_FORWARD, input_dtype, "input 'ids': has dtype int64, expected int32; convert it"},
    {LUATTN_FORWARD, bool_as_int, "input 'flags': has dtype int8, expected uint8"},
    {LUATTN_FORWARD, input_i64, "input 'ids': has dtype int32, expected int64; convert it"},
    {LUATTN_FORWARD, input_i16, "input 'ids': has dtype int32, expected int16; convert it"},
    {LUATTN_FORWARD, input_u8, "input 'flags': has dtype int8, expected uint8; convert it"},
    {LUATTN_FORWARD, input_ndim, "input 'ids': has 1 axes, expected 2"},
    {LUATTN_FORWARD, input_heads, "input 'slopes': axis 0 (h) has size 3, expected 8, or 1 to broadcast"},
    {LUATTN_FORWARD, input_batch, "input 'ids': axis 0 (b) has size 3, expected 2, or 1 to broadcast"},
    {LUATTN_FORWARD, input_kv, "input 'ids': axis 1 (kv) has size 1, expected 130"},
    {LUATTN_FORWARD, input_fixed, "input 'table': axis 1 (fixed) has size 15, expected 16"},
    {LUATTN_FORWARD, input_free, "input 'table': axis 0 (free) has size 0, expected at least 1"},
    {LUATTN_FORWARD, input_far_apart,
     "input 'ids': the last axis has stride 536870912, expected at most 536870911 elements; copy it with a "
     "smaller one"},
    {LUATTN_FORWARD, input_on_cpu, "input 'slopes': is in CPU memory"},
    {LUATTN_FORWARD, unknown_scalar, "scalar 'temprature': the spec has no such scalar; did you mean 'temperature'?"},
    {LUATTN_FORWARD, scalar_out_of_range,
     "scalar 'cap': is 0, and the spec takes it as softcap: c; give a finite number above 0"},
    {LUATTN_FORWARD, scalar_escape, "scalar 'cap?': the spec has no such scalar; did you mean 'cap'?"},
    {LUATTN_FORWARD, unnamed_scalar, "scalars: number 0 has no name"},
    {LUATTN_FORWARD, nan_scalar, "scalar 'cap': is nan"},
    {LUATTN_FORWARD, scalar_beyond_float,
     "scalar 'cap': is 1e+39, expected 0, or a magnitude of 1.17549e-38 to 3.40282e+38, which float32 can "
     "hold"},
    {LUATTN_BACKWARD, scalar_below_float, "scalar 'cap': is -1e-39, expected 0, or a magnitude of 1.17549e-38"},
    {LUATTN_FORWARD, default_beyond_float,
     "scalar 'temperature': has the default 1e+300, expected 0, or a magnitude of 1.17549e-38 to "
     "3.40282e+38, which "
     "float32 can hold; give it a value"},
    {LUATTN_FORWARD, q_wraps,
     "q: has shape [2, 8, 100, 64], strides [4611686018427387904, 6400, 64, 1] and byte_offset 0, which "
     "reach beyond "
     "what 64 bits can address; give those of its memory"},
    {LUATTN_FORWARD, q_wraps_down, "q: has shape [2, 8, 100, 64], strides [-9223372036854775808, 6400, 64, 1]"},
    {LUATTN_FORWARD, q_wraps_by_two_axes, "which reach beyond what 64 bits can address"},
    {LUATTN_FORWARD, o_wraps, "o: has shape [2, 8, 100, 32], strides [25600, 2305843009213693952, 32, 1]"},
    {LUATTN_FORWARD, input_wraps, "input 'ids': has shape [2, 130], strides [9223372036854775807, 1]"},
    {LUATTN_FORWARD, offset_wraps, "q: has shape [2, 8, 100, 64], strides [51200, 6400, 64, 1] and byte_offset 184"},
    {LUATTN_FORWARD, below_zero, "which reach beyond what 64 bits can address"},
    {LUATTN_FORWARD, one_batch_too_many, "q: has batch 65536, expected at most 65535; split the call"},
    {LUATTN_FORWARD, null_scalars, "scalars: is NULL, but num_scalars is 1"},
    {LUATTN_FORWARD, scalar_twice, "scalar 'cap': was given twice"},
    {LUATTN_FORWARD, no_workspace, "workspace: is NULL, expected "},
    {LUATTN_FORWARD, small_workspace, "workspace: has 1000 bytes, expected "},
    {LUATTN_FORWARD, odd_workspace, "is not a multiple of 256 bytes"},
    {LUATTN_FORWARD, too_many_heads, "q: has 32768 heads, expected at most 32767"},
    {LUATTN_FORWARD, too_many_batches,
     "q: has batch 21846, expected at most 21845 for a spec with a query_mod, key_mod or value_mod; split "
     "the call"},
    {LUATTN_FORWARD, too_many_tiles,
     "luattn_fwd: has 16384 x 8 x 21000 tiles, expected at most 2147483647; split the call into smaller "
     "batches or fewer heads"},
    {LUATTN_BACKWARD, no_dout, "backward of 'demo': dout: is missing"},
    {LUATTN_BACKWARD, no_lse, "lse: is missing; give a tensor [batch, heads, q_len]"},
    {LUATTN_BACKWARD, no_dq, "dq: is missing, but this image computes it; give it, or compile with fewer luattn_wants"},
    {LUATTN_BACKWARD, unwanted_dk,
     "dk: this image does not compute it; leave it NULL, or compile with more luattn_wants"},
    {LUATTN_BACKWARD, dq_broadcast, "dq: axis 1 has stride 0 over 8 elements"},
    {LUATTN_BACKWARD, grad_of_unmarked, "input 'slopes': grad was given, but the spec does not mark it grad"},
    {LUATTN_BACKWARD, unwanted_grads, "input 'slopes': grad was given, but this image computes no gradients of inputs"},
    {LUATTN_BACKWARD, grad_dtype, "grad of input 'slopes': has dtype bfloat32, expected float32"},
    {LUATTN_BACKWARD, grad_shape, "grad of input 'slopes': has shape [1], expected [8] = [as the input]"},
    {LUATTN_BACKWARD, grad_strided, "grad of input 'table': axis 0 has stride 32, expected 16"},
    {LUATTN_BACKWARD, unwanted_scalar_grads,
     "scalar_grads: was given, but this image computes no gradients of scalars"},
    {LUATTN_FORWARD, o_rows_meet,
     "o: has shape [2, 8, 100, 32] and strides [25600, 3200, 16, 1], by which elements share memory; "
     "expected "
     "strides of an output to reach past all that smaller ones span"},
    {LUATTN_BACKWARD, dv_heads_meet, "dv: has shape [2, 2, 130, 32] and strides [8320, 32, 32, 1]"},
    {LUATTN_FORWARD, o_is_q, "is shared with q, 0x"},
    {LUATTN_FORWARD, lse_in_saved, "is shared with lse, 0x"},
    {LUATTN_BACKWARD, dk_is_dv, "backward of 'demo': dv: its memory, 0x"},
    {LUATTN_BACKWARD, dk_is_dv, "is shared with dk, 0x"},
    {LUATTN_BACKWARD, dq_is_dout, "dq: its memory, 0x"},
    {LUATTN_BACKWARD, dq_is_dout, "is shared with dout, 0x"},
    {LUATTN_BACKWARD, grad_is_input, "grad of input 'slopes': its memory, 0x"},
    {LUATTN_BACKWARD, grad_is_input, "is shared with input 'slopes', 0x"},
    {LUATTN_BACKWARD, grad_is_scalar_grads, "is shared with scalar_grads, 0x"},
    {LUATTN_BACKWARD, workspace_on_q, "workspace: its memory, 0x"},
    {LUATTN_BACKWARD, scalar_grads_shape, "scalar_grads: has shape [1], expected [2] = [number of scalars]"},
};

static void every_bad_argument_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    problem_open(&p, cases[i].pass);
    cases[i].bend(&p);
    luattn_error err;
    fake_reset();
    if (launch(&p, &err) != LUATTN_INVALID) fail_msg("accepted: %s", cases[i].message);
    if (strstr(err.message, with_sizes(cases[i].message)) == NULL)
      fail_msg("'%s' lacks '%s'", err.message, with_sizes(cases[i].message));
    assert_int_equal(err.status, LUATTN_INVALID);
    assert_int_equal(fake_num_events(), 0); /* nothing was launched */
    assert_int_equal(launch(&p, NULL), LUATTN_INVALID);
    problem_close(&p);
  }
}

BEND(all_host, (void)p)

/* Returns whether an error concerns only a device, its memory or its grids. */
static bool is_of_gpu(bend *b) {
  static bend *const of_gpu[] = {v_device_type,   q_on_cpu,       q_on_device_1,     input_on_cpu,
                                 q_null,          no_workspace,   offsets_elsewhere, odd_workspace,
                                 small_workspace, workspace_on_q, too_many_tiles};
  for (size_t i = 0; i < sizeof of_gpu / sizeof *of_gpu; ++i)
    if (b == of_gpu[i]) return true;
  return false;
}

static void bend_on_host(problem *p, luattn_pass pass, bend *b) {
  problem_open(p, pass);
  move_to_host(p);
  b(p);
}

/* A kernel of the CPU path gives the same errors as a GPU kernel, before it computes anything. A relaxed
 * kernel leaves the checks to the CPU path. */
static void the_cpu_refuses_the_same(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    problem p;
    luattn_error err;
    if (is_of_gpu(cases[i].bend)) continue;
    bend_on_host(&p, cases[i].pass, cases[i].bend);
    cpu_runs = 0;
    if (launch_on_cpu(&p, false, &err) != LUATTN_INVALID) fail_msg("accepted: %s", cases[i].message);
    if (strstr(err.message, with_sizes(cases[i].message)) == NULL)
      fail_msg("'%s' lacks '%s'", err.message, with_sizes(cases[i].message));
    assert_int_equal(cpu_runs, 0);
    const bool is_of_struct = strstr(err.message, "struct_size") != NULL;
    assert_int_equal(launch_on_cpu(&p, true, &err), is_of_struct ? LUATTN_INVALID : LUATTN_OK);
    assert_int_equal(cpu_runs, !is_of_struct);
    problem_close(&p);
  }
}

/* Errors on the location of memory, the workspace and the stream. */
static void what_a_cpu_kernel_says(void **state) {
  (void)state;
  static const struct {
    bend *bend;
    const char *message;
  } other[] = {
      {v_device_type, "forward of 'demo': v: has DLPack device type 10, expected 1 (CPU)"},
      {q_null, "forward of 'demo': q: its data pointer is NULL; give it memory"},
      {workspace_on_q, NULL},
      {no_workspace, NULL},
      {odd_workspace, NULL},
  };
  problem p;
  luattn_error err;
  for (size_t i = 0; i < sizeof other / sizeof *other; ++i) {
    bend_on_host(&p, LUATTN_FORWARD, other[i].bend);
    const luattn_status status = launch_on_cpu(&p, false, &err);
    assert_int_equal(status, other[i].message == NULL ? LUATTN_OK : LUATTN_INVALID);
    if (other[i].message != NULL) assert_string_equal(err.message, other[i].message);
    problem_close(&p);
  }
  bend_on_host(&p, LUATTN_FORWARD, all_host);
  luattn_kernel *kernel = NULL;
  p.info.on_cpu = 1;
  p.k.t.device = (DLDevice){kDLCUDA, 3};
  assert_int_equal(cpu_kernel_make(&p.info, false, cpu_run, NULL, &cpu_runs, &kernel, &err), LUATTN_OK);
  assert_int_equal(luattn_launch(kernel, &p.args, NULL, &err), LUATTN_INVALID);
  assert_string_equal(err.message,
                      "forward of 'demo': k: is on CUDA device 3, and the engine is on the CPU; "
                      "luattn_copy_to_host copies it, an engine on that device computes there");
  assert_int_equal(luattn_launch(kernel, &p.args, &p, &err), LUATTN_INVALID);
  assert_non_null(strstr(err.message, "forward of 'demo': stream: is 0x"));
  assert_non_null(strstr(err.message, ", and the CPU has none; give NULL"));
  luattn_kernel_unload(kernel);
  problem_close(&p);
}

static void dq_without_its_pass(problem *p) {
  p->args.dq = NULL;
  p->info.wants &= ~(unsigned)LUATTN_WANT_DQ;
}
static void broadcast_inputs(problem *p) {
  p->slopes.shape[0] = p->slopes_grad.shape[0] = 1;
  p->ids.shape[0] = 1;
}
static void odd_strides_of_single_elements(problem *p) {
  problem_resize(p, 1, 1, 1);
  p->q.strides[0] = 3;
  p->q.strides[2] = 5;
  p->o.strides[2] = 0;
}
static void no_strides(problem *p) { p->q.t.strides = p->o.t.strides = p->ids.t.strides = NULL; }
static void wider_struct(problem *p) { p->args.struct_size += sizeof p->later; }
/* Arguments of a luattn without num_splits and skip, whose bytes are garbage. */
static void earlier_struct(problem *p) {
  p->args.struct_size = offsetof(luattn_args, num_splits);
  p->args.num_splits = p->args.skip = -7;
}
static void splits_of_backward(problem *p) { p->args.num_splits = 65; }
static void doubles(problem *p) {
  p->info.dtype = LUATTN_F64, p->info.family = LUATTN_SIMT, p->info.num_inputs = p->info.num_stats = 0;
  tensor *const rows[] = {&p->q, &p->k, &p->v, &p->o, &p->lse, &p->saved};
  for (int i = 0; i < 6; ++i) rows[i]->t.dtype = (DLDataType){kDLFloat, 64, 1};
  memset(p->info.entry, 0, sizeof *p->info.entry);
  memmove(p->info.entry, p->info.entry + 1, --p->info.num_entries * sizeof *p->info.entry); /* no stats */
  p->args.num_inputs = 0;
  p->scalars[0].value = 1e300;
  for (int i = 0; i < 6; ++i) rows[i]->t.data = p->memory + ((size_t)i << 23);
}
/* Elements of more than 16 bits are moved one by one. */
static void simt_family(problem *p) {
  doubles(p);
  p->q.t.byte_offset = 8;
  p->k.strides[2] = HEAD_DIM + 1;
}
static void no_row_outputs(problem *p) {
  p->args.dlse = NULL;
  p->args.scalar_grads = NULL;
  p->inputs[0].grad = NULL;
}
static void null_grad_data(problem *p) {
  p->slopes_grad.t.data = NULL;
  p->slopes_grad.t.dtype.bits = 8; /* not checked, because the gradient is not requested */
}
BEND(all_good, (void)p)
BEND(infinite_scalar, p->scalars[0].value = (double)INFINITY)
BEND(least_scale, p->args.scale = 0x1p-126)
BEND(most_scale, p->args.scale = 0x1p126)
BEND(managed_q, p->q.t.device = ((DLDevice){kDLCUDAManaged, 0}))
BEND(pinned_k, p->k.t.device = ((DLDevice){kDLCUDAHost, 5}))
BEND(dlpack_bool, p->flags.t.dtype.code = 6)
BEND(broadcast_k, p->k.strides[1] = 0)
BEND(no_lse_out, p->args.lse = NULL)
BEND(q_is_k_is_v, (p->k.t.data = p->q.t.data, p->v.t.data = p->q.t.data))
BEND(dq_where_forward_does_not_look, p->dq.t.data = p->q.t.data)

/* Gradients in one tensor [batch, length, heads + 2 heads_kv, head_dim], as for a fused QKV projection. */
static void packed_gradients(problem *p) {
  enum { ROW = (HEADS + 2 * HEADS_KV) * HEAD_DIM, ROWS = Q_LEN > KV_LEN ? Q_LEN : KV_LEN };
  tensor *const all[] = {&p->dq, &p->dk, &p->dv};
  const int first[] = {0, HEADS, HEADS + HEADS_KV};
  tensor whole;
  tensor_set(p, &whole, kDLBfloat, 16, 3, BATCH, ROWS, ROW, 1);
  for (int i = 0; i < 3; ++i) {
    const int64_t strides[] = {(int64_t)ROWS * ROW, HEAD_DIM, ROW, 1};
    memcpy(all[i]->strides, strides, sizeof strides);
    all[i]->t.data = (char *)whole.t.data + 2 * HEAD_DIM * first[i];
  }
}

static void what_is_allowed(void **state) {
  (void)state;
  const struct {
    luattn_pass pass;
    bend *bend;
  } good[] = {
      {LUATTN_FORWARD, all_good},           {LUATTN_BACKWARD, all_good},
      {LUATTN_FORWARD, least_scale},        {LUATTN_FORWARD, most_scale},
      {LUATTN_FORWARD, managed_q},          {LUATTN_FORWARD, pinned_k},
      {LUATTN_FORWARD, dlpack_bool},        {LUATTN_FORWARD, broadcast_k},
      {LUATTN_FORWARD, no_lse_out},         {LUATTN_FORWARD, no_dout},
      {LUATTN_FORWARD, q_is_k_is_v},        {LUATTN_FORWARD, dq_where_forward_does_not_look},
      {LUATTN_BACKWARD, packed_gradients},  {LUATTN_BACKWARD, dq_without_its_pass},
      {LUATTN_FORWARD, simt_family},        {LUATTN_FORWARD, no_strides},
      {LUATTN_BACKWARD, broadcast_inputs},  {LUATTN_BACKWARD, no_row_outputs},
      {LUATTN_BACKWARD, null_grad_data},    {LUATTN_FORWARD, wider_struct},
      {LUATTN_FORWARD, earlier_struct},     {LUATTN_BACKWARD, earlier_struct},
      {LUATTN_FORWARD, splits_of_backward}, {LUATTN_FORWARD, doubles},
      {LUATTN_FORWARD, infinite_scalar},    {LUATTN_FORWARD, odd_strides_of_single_elements},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    problem p;
    problem_open(&p, good[i].pass);
    good[i].bend(&p);
    luattn_error err;
    if (launch(&p, &err) != LUATTN_OK) fail_msg("case %zu: %s", i, err.message);
    problem_close(&p);
    if (good[i].bend == managed_q || good[i].bend == pinned_k) continue;
    problem_open(&p, good[i].pass);
    good[i].bend(&p);
    move_to_host(&p);
    if (launch_on_cpu(&p, false, &err) != LUATTN_OK) fail_msg("case %zu, on the CPU: %s", i, err.message);
    problem_close(&p);
  }
}

static int open_all(void **state) {
  (void)state;
  return luattn_driver_open(&driver, NULL) == LUATTN_OK ? 0 : -1;
}

static int close_all(void **state) {
  (void)state;
  luattn_driver_close(driver);
  while (num_batches > 0) luattn_batch_close(batches[--num_batches]);
  const fake_live_counts live = fake_live();
  return live.contexts + live.modules;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_bad_argument_is_named),
      cmocka_unit_test(the_cpu_refuses_the_same),
      cmocka_unit_test(what_a_cpu_kernel_says),
      cmocka_unit_test(what_is_allowed),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
