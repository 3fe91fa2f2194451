/* args_test.c: triggers every check of the CPU path's arguments and compares its message. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "luattn/batch.h"
#include "tests/support/cpu_call.h"
#include "tests/support/sizes.h"

#define SPEC                                                                                              \
  "return attention {\n"                                                                                  \
  "  scalars = { cap = 30.0 },\n"                                                                         \
  "  inputs = { slopes = { axes = {'h'}, grad = true }, ids = { axes = {'b', 'free'}, dtype = 'i32' },\n" \
  "             flag = { axes = {'kv'}, dtype = 'bool' }, fixed = { axes = {3} } },\n"                    \
  "  score_mod = function(score, b, h, q_idx, kv_idx)\n"                                                  \
  "    return cap * tanh(score / cap) + slopes[h] * fixed[kv_idx % 3] end,\n"                             \
  "  block_mask = function(b, h, q_idx, kv_idx) return flag[kv_idx] and ids[{b, kv_idx}] < 7 end,\n"      \
  "}\n"
#define NO_LSE "return attention { name = 'plain', online_func = sigmoid_attention }"
#define SAVES "return attention { name = 'plain', online_func = online_retention }"

/* A valid call, which each case spoils. */
typedef struct fixture {
  call c;
  tensor slopes, ids, flag, fixed, slopes_grad, fixed_grad, scalar_grads;
  luattn_input inputs[5];
  luattn_scalar scalars[2];
} fixture;

enum { SLOPES, IDS, FLAG, FIXED };

static const DLTensor *view(tensor *t) {
  t->t.shape = t->shape, t->t.strides = t->stride;
  return &t->t;
}

static void fixture_new(fixture *f, const luattn_spec *spec, bool with_inputs) {
  const int size[] = {2, 4, 2, 5, 6, 4, 3};
  memset(f, 0, sizeof *f);
  call_new(&f->c, spec, size, DENSE, F64, F64);
  tensor_new(&f->slopes, F32, 1, (int64_t[]){4}, DENSE), tensor_new(&f->slopes_grad, F64, 1, (int64_t[]){4}, DENSE);
  tensor_new(&f->ids, I32, 2, (int64_t[]){1, 9}, DENSE), tensor_new(&f->flag, BOOL, 1, (int64_t[]){6}, DENSE);
  tensor_new(&f->fixed, F16, 1, (int64_t[]){3}, DENSE), tensor_new(&f->fixed_grad, F64, 1, (int64_t[]){3}, DENSE);
  tensor_new(&f->scalar_grads, F64, 1, (int64_t[]){1}, DENSE);
  tensor *const all[] = {&f->slopes, &f->ids, &f->flag, &f->fixed};
  for (int i = 0; i < 4; i++) {
    for (int64_t at = 0; at < tensor_count(all[i]); at++) tensor_set(all[i], at, 1);
  }
  f->inputs[SLOPES] = (luattn_input){"slopes", view(&f->slopes), view(&f->slopes_grad)};
  f->inputs[IDS] = (luattn_input){"ids", view(&f->ids), NULL};
  f->inputs[FLAG] = (luattn_input){"flag", view(&f->flag), NULL};
  f->inputs[FIXED] = (luattn_input){"fixed", view(&f->fixed), NULL};
  f->scalars[0] = (luattn_scalar){"cap", 20};
  if (!with_inputs) return;
  f->c.args.inputs = f->inputs, f->c.args.num_inputs = 4;
  f->c.args.scalars = f->scalars, f->c.args.num_scalars = 1;
  f->c.args.scalar_grads = view(&f->scalar_grads);
}

static void fixture_free(fixture *f) {
  tensor *const all[] = {&f->slopes, &f->ids, &f->flag, &f->fixed, &f->slopes_grad, &f->fixed_grad, &f->scalar_grads};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tensor_free(all[i]);
  call_free(&f->c);
}

/* ---- one function per mistake ---- */

static void q_wraps(fixture *f) { f->c.q.stride[0] = INT64_C(1) << 62; }
static void q_wraps_down(fixture *f) { f->c.q.stride[0] = INT64_MIN; }
static void o_wraps(fixture *f) { f->c.o.stride[0] = INT64_C(1) << 62; }
static void offset_wraps(fixture *f) { f->c.q.t.byte_offset = UINT64_MAX - 7; }
static void input_wraps(fixture *f) { f->slopes.stride[0] = INT64_C(1) << 62; }
static void small_struct(fixture *f) { f->c.args.struct_size = 8; }
static void no_q(fixture *f) { f->c.args.q = NULL; }
static void no_k(fixture *f) { f->c.args.k = NULL; }
static void no_v(fixture *f) { f->c.args.v = NULL; }
static void no_o(fixture *f) { f->c.args.o = NULL; }
static void q_on_gpu(fixture *f) { f->c.q.t.device.device_type = kDLCUDA; }
static void q_without_data(fixture *f) { f->c.q.t.data = NULL; }
static void q_without_shape(fixture *f) { f->c.q.t.shape = NULL; }
static void q_of_three(fixture *f) { f->c.q.t.ndim = 3; }
static void q_of_ints(fixture *f) { f->c.q.t.dtype = I32; }
static void q_of_pairs(fixture *f) { f->c.q.t.dtype.lanes = 2; }
static void q_of_eight_bits(fixture *f) { f->c.q.t.dtype.bits = 8; }
static void q_headless(fixture *f) { f->c.q.shape[1] = 0; }
static void k_headless(fixture *f) { f->c.k.shape[1] = 0; }
static void q_negative(fixture *f) { f->c.q.shape[2] = -1; }
static void q_too_long(fixture *f) { f->c.q.shape[2] = INT64_C(1) << 31; }
static void q_endless(fixture *f) { /* one element, broadcast with strides of 0 */
  for (int i = 0; i < 3; i++) f->c.q.shape[i] = INT32_MAX, f->c.q.stride[i] = 0;
}
static void q_flat(fixture *f) { f->c.q.shape[3] = f->c.k.shape[3] = 0; }
static void v_flat(fixture *f) { f->c.v.shape[3] = 0; }
static void k_dim(fixture *f) { f->c.k.shape[3] = 5; }
static void k_batch(fixture *f) { f->c.k.shape[0] = 1; }
static void k_heads(fixture *f) { f->c.k.shape[1] = f->c.v.shape[1] = 3; }
static void v_heads(fixture *f) { f->c.v.shape[1] = 1; }
static void v_len(fixture *f) { f->c.v.shape[2] = 7; }
static void o_shape(fixture *f) { f->c.o.shape[3] = 4; }
static void o_stride(fixture *f) { f->c.o.stride[0] = 0; }
static void o_rows_meet(fixture *f) { f->c.o.stride[2] = 2; }
static void o_is_q(fixture *f) { f->c.o.t.data = f->c.q.t.data; }
static void dk_is_dq(fixture *f) { f->c.dk.t.data = f->c.dq.t.data; }
static void o_of_ints(fixture *f) { f->c.o.t.dtype = I32; }
static void lse_shape(fixture *f) { f->c.lse.shape[2] = 4; }
static void lse_given(fixture *f) { f->c.args.lse = view(&f->c.lse); }
static void dlse_given(fixture *f) { f->c.args.dlse = view(&f->c.dlse); }
static void no_dout(fixture *f) { f->c.args.dout = NULL; }
static void no_lse(fixture *f) { f->c.args.lse = NULL; }
static void no_saved(fixture *f) { f->c.args.saved = NULL; }
static void large_scores(fixture *f) { f->c.args.large_scores = 2; }
static void saved_shape(fixture *f) { f->c.saved.shape[0] = 7; }
static void dq_shape(fixture *f) { f->c.dq.shape[2] = 3; }
static void dv_on_gpu(fixture *f) { f->c.dv.t.device.device_type = kDLCUDA; }
static void input_missing(fixture *f) { f->inputs[IDS] = f->inputs[FIXED], f->c.args.num_inputs = 3; }
static void input_unnamed(fixture *f) { f->inputs[IDS].name = NULL; }
static void scalar_nan(fixture *f) { f->scalars[0].value = (double)NAN; }
static void k_longer_than_ints(fixture *f) { f->c.k.shape[2] = f->c.v.shape[2] = (1 << 30) + 1; }
static void input_unknown(fixture *f) { f->inputs[4] = (luattn_input){"slope", NULL, NULL}, f->c.args.num_inputs = 5; }
static void input_escape(fixture *f) {
  f->inputs[4] = (luattn_input){"a\x1b[31m\n-\x7f", NULL, NULL}, f->c.args.num_inputs = 5;
}
static void input_long(fixture *f) { /* a two-byte UTF-8 character crosses the size limit */
  f->inputs[4] =
      (luattn_input){"0123456789012345678901234567890123456789012345678901234567890123\xc3\xa4" + 1, NULL, NULL},
  f->c.args.num_inputs = 5;
}
static void scalar_escape(fixture *f) { f->scalars[0].name = "\rcap"; }
static void input_null(fixture *f) { f->inputs[IDS].tensor = NULL; }
static void input_axes(fixture *f) { f->slopes.t.ndim = 2; }
static void input_size(fixture *f) { f->slopes.shape[0] = 3; }
static void input_batch(fixture *f) { f->ids.shape[0] = 3; }
static void input_fixed(fixture *f) { f->fixed.shape[0] = 1; }
static void input_empty(fixture *f) { f->ids.shape[1] = 0; }
static void input_floats(fixture *f) { f->ids.t.dtype = F32; }
static void input_ints(fixture *f) { f->slopes.t.dtype = I32; }
static void input_not_bool(fixture *f) { f->flag.t.dtype = F32; }
static void grad_unmarked(fixture *f) { f->inputs[FIXED].grad = view(&f->fixed_grad); }
static void grad_size(fixture *f) { f->slopes_grad.shape[0] = 2; }
static void scalar_unknown(fixture *f) { f->scalars[0].name = "gap"; }
static void scalar_twice(fixture *f) { f->scalars[1] = f->scalars[0], f->c.args.num_scalars = 2; }
static void scalars_null(fixture *f) { f->c.args.scalars = NULL; }
static void input_twice(fixture *f) { f->inputs[4] = f->inputs[FLAG], f->c.args.num_inputs = 5; }
static void inputs_null(fixture *f) { f->c.args.inputs = NULL; }
static void scalar_unnamed(fixture *f) { f->scalars[0].name = NULL; }
static void scalar_grads_size(fixture *f) { f->scalar_grads.shape[0] = 2; }
static void scale_negative(fixture *f) { f->c.args.scale = -1; }
static void scale_nan(fixture *f) { f->c.args.scale = NAN; }
static void scale_tiny(fixture *f) { f->c.args.scale = 5e-324; }
static void splits_negative(fixture *f) { f->c.args.num_splits = -1; }
static void splits_many(fixture *f) { f->c.args.num_splits = 65; }
static void skip_unknown(fixture *f) { f->c.args.skip = 9; }

typedef struct argument_case {
  void (*spoil)(fixture *f);
  const char *source;
  bool backward;
  const char *message;
} argument_case;

static const argument_case cases[] = {
    {small_struct, SPEC, false,
     "cpu: luattn_args: struct_size is 8, expected sizeof(luattn_args), which is {args} in luattn 0.1.0 and at "
     "least 32 in any version; set it, and what is not used to 0"},
    {no_q, SPEC, false, "cpu: q: is missing; give a tensor [batch, heads, q_len, head_dim]"},
    {no_k, SPEC, false, "cpu: k: is missing; give a tensor [batch, heads_kv, kv_len, head_dim]"},
    {no_v, SPEC, false, "cpu: v: is missing; give a tensor [batch, heads_kv, kv_len, head_dim_v]"},
    {no_o, SPEC, false, "cpu: o: is missing; give a tensor [batch, heads, q_len, head_dim_v]"},
    {q_on_gpu, SPEC, false,
     "cpu: q: is on DLPack device type 2, expected 1 (CPU); luattn_copy_to_host copies from a GPU"},
    {q_without_data, SPEC, false, "cpu: q: its data pointer is NULL; give it memory"},
    {q_without_shape, SPEC, false, "cpu: q: has 4 axes and no shape, expected 4: [batch, heads, q_len, head_dim]"},
    {q_of_three, SPEC, false, "cpu: q: has 3 axes, expected 4: [batch, heads, q_len, head_dim]"},
    {q_of_ints, SPEC, false,
     "cpu: q: has dtype int32, expected float64, float32, bfloat16 or float16; "
     "convert it"},
    {q_of_pairs, SPEC, false,
     "cpu: q: has dtype float64x2, expected float64, float32, bfloat16 or float16; "
     "convert it"},
    {q_of_eight_bits, SPEC, false,
     "cpu: q: has dtype float8, expected float64, float32, bfloat16 or float16; "
     "convert it"},
    {q_headless, SPEC, false, "cpu: q: has no heads, expected at least 1"},
    {k_headless, SPEC, false, "cpu: k: has no heads, expected at least 1"},
    {q_negative, SPEC, false,
     "cpu: q: axis 2 of [batch, heads, q_len, head_dim] has size -1, expected 0 to 2147483647"},
    {q_too_long, SPEC, false,
     "cpu: q: axis 2 of [batch, heads, q_len, head_dim] has size 2147483648, expected 0 to 2147483647"},
    {q_wraps, SPEC, false,
     "cpu: q: has shape [2, 4, 5, 4], strides [4611686018427387904, 20, 4, 1] and byte_offset 0, which reach "
     "beyond "
     "what 64 bits can address; give those of its memory"},
    {q_wraps_down, SPEC, true,
     "cpu: q: has shape [2, 4, 5, 4], strides [-9223372036854775808, 20, 4, 1] and byte_offset 0, which "
     "reach beyond "
     "what 64 bits can address; give those of its memory"},
    {o_wraps, SPEC, false,
     "cpu: o: has shape [2, 4, 5, 3], strides [4611686018427387904, 15, 3, 1] and byte_offset 0, which reach "
     "beyond "
     "what 64 bits can address; give those of its memory"},
    {offset_wraps, SPEC, false,
     "cpu: q: has shape [2, 4, 5, 4], strides [80, 20, 4, 1] and byte_offset 18446744073709551608, which "
     "reach beyond "
     "what 64 bits can address; give those of its memory"},
    {input_wraps, SPEC, false,
     "cpu: input 'slopes': has shape [4], strides [4611686018427387904] and byte_offset 0, which reach "
     "beyond "
     "what 64 bits can address; give those of its memory"},
    {q_endless, SPEC, false, "cpu: q: has more elements than a machine can address"},
    {q_flat, SPEC, false, "cpu: q: head_dim is 0, expected 1 to 65536"},
    {v_flat, SPEC, false, "cpu: v: head_dim_v is 0, expected 1 to 65536"},
    {k_dim, SPEC, false,
     "cpu: k: axis 3 of [batch, heads_kv, kv_len, head_dim] has size 5, expected 4; tensors must agree"},
    {k_batch, SPEC, false,
     "cpu: k: axis 0 of [batch, heads_kv, kv_len, head_dim] has size 1, expected 2; tensors must agree"},
    {k_heads, SPEC, false, "cpu: k: its 3 heads do not divide q's 4; heads must be a multiple of heads_kv"},
    {v_heads, SPEC, false,
     "cpu: v: axis 1 of [batch, heads_kv, kv_len, head_dim_v] has size 1, expected 2; tensors must agree"},
    {v_len, SPEC, false,
     "cpu: v: axis 2 of [batch, heads_kv, kv_len, head_dim_v] has size 7, expected 6; tensors must agree"},
    {o_shape, SPEC, false,
     "cpu: o: axis 3 of [batch, heads, q_len, head_dim_v] has size 4, expected 3; tensors must agree"},
    {o_stride, SPEC, false,
     "cpu: o: axis 0 has stride 0 over 2 elements; give each element of an output memory of its own"},
    {o_rows_meet, SPEC, false,
     "cpu: o: has strides by which elements share memory; expected strides of an output to reach past all "
     "that "
     "smaller ones span"},
    {o_is_q, SPEC, false, "cpu: o: its memory, 0x"},
    {dk_is_dq, SPEC, true, "cpu: dk: its memory, 0x"},
    {o_of_ints, SPEC, false,
     "cpu: o: has dtype int32, expected float64, float32, bfloat16 or float16; "
     "convert it"},
    {lse_shape, SPEC, false, "cpu: lse: axis 2 of [batch, heads, q_len] has size 4, expected 5; tensors must agree"},
    {lse_given, NO_LSE, false,
     "cpu: lse: online_func 'sigmoid_attention' of the spec 'plain' has no lse; leave it NULL"},
    {dlse_given, NO_LSE, true,
     "cpu: dlse: online_func 'sigmoid_attention' of the spec 'plain' has no lse; leave it NULL"},
    {no_dout, SPEC, true, "cpu: dout: is missing; give a tensor [batch, heads, q_len, head_dim_v]"},
    {no_lse, SPEC, true, "cpu: lse: is missing; give a tensor [batch, heads, q_len]"},
    {large_scores, SAVES, true, "cpu: large_scores: is 2, expected 0 or 1"},
    {no_saved, SAVES, true, "cpu: saved: is missing; give a tensor [num_saved, batch, heads, q_len]"},
    {saved_shape, SAVES, false,
     "cpu: saved: axis 0 of [num_saved, batch, heads, q_len] has size 7, expected 1; tensors must agree"},
    {dq_shape, SPEC, true,
     "cpu: dq: axis 2 of [batch, heads, q_len, head_dim] has size 3, expected 5; tensors must agree"},
    {dv_on_gpu, SPEC, true,
     "cpu: dv: is on DLPack device type 2, expected 1 (CPU); luattn_copy_to_host copies from a GPU"},
    {input_missing, SPEC, false, "cpu: input 'ids': is missing, and the spec 'test' reads it; add it to args.inputs"},
    {input_unnamed, SPEC, false, "cpu: inputs: number 1 has no name"},
    {scalar_nan, SPEC, false, "cpu: scalar 'cap': is nan, expected a number"},
    {k_longer_than_ints, SPEC, false, "cpu: k: has length 1073741825, expected at most 1073741824"},
    {input_unknown, SPEC, false, "cpu: input 'slope': the spec 'test' declares no input of that name; take it out"},
    {input_escape, SPEC, false, "cpu: input 'a?[31m?-?': the spec 'test' declares no input of that name; take it out"},
    {input_long, SPEC, false,
     "cpu: input '123456789012345678901234567890123456789012345678901234567890123': the spec 'test' declares "
     "no "
     "input of that name; take it out"},
    {scalar_escape, SPEC, false, "cpu: scalar '?cap': the spec 'test' declares no scalar of that name; take it out"},
    {input_null, SPEC, false, "cpu: input 'ids': is missing; give a tensor [b, free]"},
    {input_axes, SPEC, false, "cpu: input 'slopes': has 2 axes, expected 1: [h]"},
    {input_size, SPEC, false, "cpu: input 'slopes': axis 0 of [h] has size 3, expected 4; tensors must agree"},
    {input_batch, SPEC, false, "cpu: input 'ids': axis 0 of [b, free] has size 3, expected 2; tensors must agree"},
    {input_fixed, SPEC, false, "cpu: input 'fixed': axis 0 of [3] has size 1, expected 3; tensors must agree"},
    {input_empty, SPEC, false, "cpu: input 'ids': axis 1 is empty; a gather needs at least 1 element"},
    {input_floats, SPEC, false, "cpu: input 'ids': has dtype float32, expected int32; convert it"},
    {input_ints, SPEC, false,
     "cpu: input 'slopes': has dtype int32, expected float64, float32, bfloat16 "
     "or float16; "
     "convert it"},
    {input_not_bool, SPEC, false, "cpu: input 'flag': has dtype float32, expected bool; convert it"},
    {grad_unmarked, SPEC, true,
     "cpu: input 'fixed': its gradient is asked for, but the spec does not mark it; leave grad NULL, or "
     "write grad = true "
     "in the spec"},
    {grad_size, SPEC, true,
     "cpu: grad of input 'slopes': axis 0 of [as the input] has size 2, expected 4; tensors must agree"},
    {scalar_unknown, SPEC, false, "cpu: scalar 'gap': the spec 'test' declares no scalar of that name; take it out"},
    {scalar_twice, SPEC, false, "cpu: scalar 'cap': was given twice"},
    {scalars_null, SPEC, false, "cpu: scalars: is NULL, but num_scalars is 1"},
    {input_twice, SPEC, false, "cpu: input 'flag': was given twice"},
    {inputs_null, SPEC, false, "cpu: inputs: is NULL, but num_inputs is 4"},
    {scalar_unnamed, SPEC, false, "cpu: scalar 'NULL': the spec 'test' declares no scalar of that name; take it out"},
    {scalar_grads_size, SPEC, true,
     "cpu: scalar_grads: axis 0 of [number of scalars] has size 2, expected 1; tensors must agree"},
    {scale_negative, SPEC, false, "cpu: scale: is -1, expected a positive number, or 0 for head_dim^-1/2"},
    {scale_nan, SPEC, true, "cpu: scale: is nan, expected a positive number, or 0 for head_dim^-1/2"},
    {scale_tiny, SPEC, false,
     "cpu: scale: is 4.94066e-324, expected 2.22507e-308 to 8.98847e+307, which float64 can hold, or 0 for "
     "head_dim^-1/2"},
    {splits_negative, SPEC, true, "cpu: num_splits: is -1, expected 1 to 64, or 0 to leave it to the launch"},
    {splits_many, SPEC, true, "cpu: num_splits: is 65, expected 1 to 64, or 0 to leave it to the launch"},
    {skip_unknown, SPEC, false, "cpu: skip: is 9, expected a luattn_skip, 0 to 2"},
};

/* Compares messages except for addresses, which differ between runs. */
static bool is_message(const char *expected, const char *got) {
  const size_t n = strlen(expected);
  const bool has_address = n > 2 && strcmp(expected + n - 2, "0x") == 0;
  return has_address ? strncmp(expected, got, n) == 0 : strcmp(expected, got) == 0;
}

static void test_messages(void **state) {
  (void)state;
  int wrong = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const argument_case *t = &cases[i];
    luattn_spec *spec = load_text(t->source);
    luattn_error err;
    fixture f;
    fixture_new(&f, spec, strcmp(t->source, SPEC) == 0);
    if (luattn_cpu_forward(spec, &f.c.args, &err) != LUATTN_OK)
      fail_msg("%s", err.message); /* the call is valid before a mistake */
    t->spoil(&f);
    const luattn_status status =
        t->backward ? luattn_cpu_backward(spec, &f.c.args, &err) : luattn_cpu_forward(spec, &f.c.args, &err);
    if (status != LUATTN_INVALID || !is_message(with_sizes(t->message), err.message)) {
      print_error("case %zu: status %d\n  got      %s\n  expected %s\n", i, status,
                  status != LUATTN_OK ? err.message : "", with_sizes(t->message));
      wrong++;
    }
    fixture_free(&f);
    luattn_spec_free(spec);
  }
  assert_int_equal(wrong, 0);
}

/* luattn_cpu_forward and _backward refuse packed arguments. */
static void test_packed(void **state) {
  (void)state;
  static int32_t cu[] = {0, 3};
  static int64_t two = 2;
  const DLTensor t = {.data = cu, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = &two};
  const luattn_batch_options options = {.struct_size = sizeof options, .cu_seqlens_q = &t, .cu_seqlens_k = &t};
  luattn_spec *spec = load_text(SPEC);
  for (int i = 0; i < 2; i++) {
    luattn_error err;
    luattn_batch *batch;
    fixture f;
    fixture_new(&f, spec, true);
    if (luattn_cpu_forward(spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_int_equal(luattn_batch_open(&options, &batch, &err), LUATTN_OK);
    f.c.args.batch = batch;
    assert_int_equal(i == 0 ? luattn_cpu_forward(spec, &f.c.args, &err) : luattn_cpu_backward(spec, &f.c.args, &err),
                     LUATTN_UNSUPPORTED);
    assert_string_equal(
        err.message,
        "cpu: batch: has cu_seqlens_q, and luattn_forward and luattn_launch alone take packed sequences yet; "
        "call it for each sequence, with a batch that has none");
    luattn_batch_close(batch);
    fixture_free(&f);
  }
  luattn_spec_free(spec);
}

/* Everything that a case spoils is valid before. Both bool types of DLPack are read. A size of 1 broadcasts
 * over batch entries or heads. */
static void test_right(void **state) {
  (void)state;
  luattn_spec *spec = load_text(SPEC);
  for (int i = 0; i < 3; i++) {
    luattn_error err;
    fixture f;
    fixture_new(&f, spec, true);
    if (i == 1) f.flag.t.dtype.code = 6;
    if (i == 2) f.slopes.shape[0] = f.slopes_grad.shape[0] = 1;
    if (luattn_cpu_forward(spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    if (luattn_cpu_backward(spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
    assert_true(isfinite(tensor_get(&f.slopes_grad, 0)) && isfinite(tensor_get(&f.scalar_grads, 0)));
    assert_true(isnan(((double *)f.slopes_grad.memory)[3]) == (i == 2));
    fixture_free(&f);
  }
  luattn_spec_free(spec);
}

/* If kernels compute in float32 for a type, a scale must fit float32. In double the range is larger. */
static void test_scale_of_types(void **state) {
  (void)state;
  luattn_spec *spec = load_text(NO_LSE);
  fixture f;
  fixture_new(&f, spec, false);
  for (int i = 0; i < 2; i++) {
    luattn_error err;
    f.c.args.scale = i == 0 ? 1e-46 : 1e39;
    assert_int_equal(luattn_cpu_forward(spec, &f.c.args, NULL), LUATTN_OK);
    assert_int_equal(luattn_cpu_forward_in(spec, &f.c.args, LUATTN_BF16, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "expected 1.17549e-38 to 1.70141e+38, which float32 can hold"));
  }
  fixture_free(&f);
  luattn_spec_free(spec);
}

/* Checks the same range for a scalar, and for its default if no value is given. */
static void test_scalars_of_types(void **state) {
  (void)state;
  static const char *const defaults[] = {"30.0", "1e200"};
  for (int i = 0; i < 2; i++) {
    char source[200];
    snprintf(source, sizeof source,
             "return attention { scalars = { cap = %s }, score_mod = function(score, b, h, q_idx, kv_idx)\n"
             "  return cap * tanh(score / cap) end }",
             defaults[i]);
    luattn_spec *spec = load_text(source);
    const luattn_scalar beyond = {"cap", 1e39}, fits = {"cap", 3e38}, none = {"cap", 0};
    luattn_error err;
    fixture f;
    fixture_new(&f, spec, false);
    assert_int_equal(luattn_cpu_forward(spec, &f.c.args, NULL), LUATTN_OK);
    assert_int_equal(luattn_cpu_forward_in(spec, &f.c.args, LUATTN_F32, &err), i == 0 ? LUATTN_OK : LUATTN_INVALID);
    if (i == 1)
      assert_string_equal(err.message,
                          "cpu: scalar 'cap': has the default 1e+200, expected 0, or a magnitude of 1.17549e-38 to "
                          "3.40282e+38, which float32 can hold; give it a value");
    f.c.args.num_scalars = 1;
    f.c.args.scalars = &fits;
    assert_int_equal(luattn_cpu_forward_in(spec, &f.c.args, LUATTN_BF16, NULL), LUATTN_OK);
    f.c.args.scalars = &none;
    assert_int_equal(luattn_cpu_forward_in(spec, &f.c.args, LUATTN_BF16, NULL), LUATTN_OK);
    f.c.args.scalars = &beyond;
    f.c.q.t.dtype = F32; /* refused, as kernels of this type would refuse it, whatever the data are */
    assert_int_equal(luattn_cpu_forward(spec, &f.c.args, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "cpu: scalar 'cap': is 1e+39"));
    f.c.q.t.dtype = F64;
    assert_int_equal(luattn_cpu_backward(spec, &f.c.args, NULL), LUATTN_OK);
    assert_int_equal(luattn_cpu_backward_in(spec, &f.c.args, LUATTN_F16, &err), LUATTN_INVALID);
    assert_non_null(strstr(err.message, "cpu: scalar 'cap': is 1e+39, expected 0, or a magnitude of 1.17549e-38"));
    fixture_free(&f);
    luattn_spec_free(spec);
  }
}

/* Flags of keys that are read at queries, of a part of the keys: the part may lack them. */
static void test_part_read_elsewhere(void **state) {
  (void)state;
  luattn_spec *spec = load_text(
      "return attention { name = 'plain', inputs = { flag = { axes = {'kv'}, dtype = 'bool' } },\n"
      "  block_mask = function(b, h, q_idx, kv_idx) return flag[q_idx] and flag[kv_idx] end }");
  const luattn_batch_options part = {.struct_size = sizeof part, .kv_len = 12};
  luattn_batch *batch;
  luattn_error err;
  fixture f;
  fixture_new(&f, spec, false);
  f.c.args.inputs = &f.inputs[FLAG], f.c.args.num_inputs = 1;
  assert_int_equal(luattn_cpu_forward(spec, &f.c.args, &err), LUATTN_OK);
  assert_int_equal(luattn_batch_open(&part, &batch, &err), LUATTN_OK);
  f.c.args.batch = batch;
  assert_int_equal(luattn_cpu_forward(spec, &f.c.args, &err), LUATTN_INVALID);
  assert_string_equal(
      err.message,
      "cpu: input 'flag': the spec reads its axis kv elsewhere than at kv_idx, and k is a part of the whole, which may "
      "lack that place; declare a free axis instead, as axes = {\"n\"}, and give the input of the whole");
  luattn_batch_close(batch);
  fixture_free(&f);
  luattn_spec_free(spec);
}

/* Tensors that the pass or the spec does not use may have any value; a smaller struct of an earlier version
 * is accepted. */
static void test_passed_over(void **state) {
  (void)state;
  luattn_spec *spec = load_text("return attention { name = 'plain' }");
  fixture f;
  fixture_new(&f, spec, false);
  const DLTensor odd = {.ndim = 7, .data = &f};
  luattn_error err;
  f.c.args.num_splits = 65;
  f.c.args.saved = &odd;
  if (luattn_cpu_forward(spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  f.c.args.skip = -3;
  f.c.args.struct_size = offsetof(luattn_args, num_splits);
  if (luattn_cpu_backward(spec, &f.c.args, &err) != LUATTN_OK) fail_msg("%s", err.message);
  fixture_free(&f);
  luattn_spec_free(spec);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed),         cmocka_unit_test(test_messages),
                                     cmocka_unit_test(test_right),          cmocka_unit_test(test_part_read_elsewhere),
                                     cmocka_unit_test(test_scale_of_types), cmocka_unit_test(test_scalars_of_types),
                                     cmocka_unit_test(test_passed_over)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
