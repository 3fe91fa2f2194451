/* linear_calls.c: luattn_linear_forward: on the CPU, or by a kernel of the engine. */
#include "luattn/linear.h"

#include <string.h>

#include "common/call/dtype_text.h"
#include "common/fail.h"
#include "common/struct_size.h"
#include "engine/check_growth.h"

static luattn_status take(const luattn_spec *spec, const char *function, const luattn_linear_args *given,
                          luattn_linear_args *used, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_linear_args, workspace);
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  if (luattn_spec_form(spec) != LUATTN_FORM_LINEAR)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: spec '%s': is of attention, and this function is of linear attention; call luattn_forward",
                       function, info.name);
  return struct_take(&rule, function, given, used, err);
}

/* The types of tensors given for inputs whose dtype is any, as luattn_target.input_types. */
static luattn_status read_types(const luattn_spec *spec, const char *function, const luattn_linear_args *a,
                                uint64_t *out, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  for (size_t i = 0; i < info.num_inputs; ++i) {
    const DLTensor *t = NULL;
    char text[DTYPE_TEXT_SIZE];
    if (info.inputs[i].dtype != LUATTN_INPUT_ANY) continue;
    for (size_t j = 0; j < a->num_inputs && a->inputs != NULL; ++j)
      if (a->inputs[j].name != NULL && strcmp(a->inputs[j].name, info.inputs[i].name) == 0) t = a->inputs[j].tensor;
    if (t == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: input '%s': is missing; give a tensor by this name", function,
                         info.inputs[i].name);
    dtype_text(t->dtype, text, sizeof text);
    const uint32_t dtype = kernel_dtype_of(t->dtype);
    if (dtype == KERNEL_DTYPES)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: input '%s': has dtype %s, expected float64, float32, bfloat16 or float16", function,
                         info.inputs[i].name, text);
    *out |= (uint64_t)(1 + kernel_dtype(dtype)->input) << 4 * i;
  }
  return LUATTN_OK;
}

enum {
  MOST_WALKED = 16
}; /* tokens of an entry: up to it a kernel that walks them is faster than one that takes chunks */

/* Of packed sequences in the mean: their ends are on the device. */
static int64_t tokens_of_entry(const luattn_linear_args *a) {
  const DLTensor *cu = a->cu_seqlens;
  const int64_t tokens = a->q->shape[1];
  return cu == NULL || cu->ndim != 1 || cu->shape == NULL || cu->shape[0] < 2 ? tokens : tokens / (cu->shape[0] - 1);
}

/* The gradients that backward is compiled for: of tensors always, as passes of those not wanted are not launched. */
static unsigned wants_of(const luattn_linear_args *a) {
  unsigned wants = LUATTN_WANT_DQ | LUATTN_WANT_DK | LUATTN_WANT_DV;
  for (size_t i = 0; i < a->num_inputs && a->inputs != NULL; ++i)
    if (a->inputs[i].grad != NULL) wants |= LUATTN_WANT_INPUTS;
  return a->scalar_grads != NULL ? wants | LUATTN_WANT_SCALARS : wants;
}

static luattn_status read_key(const luattn_spec *spec, luattn_pass pass, const char *function,
                              const luattn_linear_args *a, kernel_key *key, luattn_error *err) {
  luattn_spec_info info;
  luattn_spec_get_info(spec, &info);
  *key = (kernel_key){
      .spec = spec, .spec_hash = {info.hash[0], info.hash[1]}, .pass = pass, .packed = a->cu_seqlens != NULL};
  const DLTensor *const of[] = {a->q, a->v};
  for (int i = 0; i < 2; i++) {
    const char *name = i == 0 ? "q" : "v";
    if (of[i] == NULL || of[i]->ndim != 4 || of[i]->shape == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: expected a tensor of 4 axes, [batch, tokens, heads%s]", function,
                         name, i == 0 ? ", head_dim" : "_v, head_dim_v");
    if (of[i]->shape[3] < 1 || of[i]->shape[3] > 4096)
      return luattn_fail(err, LUATTN_INVALID, "%s: %s: its last axis has size %lld, expected 1 to 4096", function, name,
                         (long long)of[i]->shape[3]);
  }
  char text[DTYPE_TEXT_SIZE];
  dtype_text(a->q->dtype, text, sizeof text);
  const uint32_t dtype = kernel_dtype_of(a->q->dtype);
  if (dtype == KERNEL_DTYPES)
    return luattn_fail(err, LUATTN_INVALID, "%s: q: has dtype %s, expected float32, float64, bfloat16 or float16",
                       function, text);
  if (pass == LUATTN_FORWARD) key->decode = a->ring_k != NULL ? 2 : tokens_of_entry(a) <= MOST_WALKED;
  if (pass == LUATTN_BACKWARD) key->wants = wants_of(a);
  key->dtype = (luattn_dtype)dtype;
  key->head_dim = (int)a->q->shape[3], key->head_dim_v = (int)a->v->shape[3];
  return read_types(spec, function, a, &key->input_types, err);
}

typedef luattn_status cpu_call(const luattn_spec *spec, const luattn_linear_args *args, luattn_error *err);

static luattn_status run(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, cpu_call *on_cpu,
                         const char *function, const luattn_linear_args *args, void *stream, luattn_error *err) {
  kernel_key key;
  const luattn_kernel *kernel;
  luattn_linear_args used;
  luattn_error said;
  TRY(take(spec, function, args, &used, err));
  if (engine_get_place(engine).driver == NULL) {
    if (stream != NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: stream: is not NULL, and the CPU has none; give NULL", function);
    return on_cpu(spec, args, err);
  }
  TRY(read_key(spec, pass, function, &used, &key, err));
  TRY(engine_kernel(engine, &key, &kernel, err));
  const engine_place at = engine_get_place(engine);
  luattn_status status = luattn_linear_launch(kernel, args, stream, &said);
  if (status == LUATTN_OK && pass == LUATTN_FORWARD)
    status = engine_check_growth(&at, spec, &used, function, stream, &said);
  return engine_tell(status, &said, err);
}

typedef luattn_status size_call(const luattn_kernel *kernel, const luattn_linear_args *args, size_t *size,
                                luattn_error *err);

static luattn_status find_size(luattn_engine *engine, const luattn_spec *spec, luattn_pass pass, size_call *of_kernel,
                               const char *function, const luattn_linear_args *args, size_t *size, luattn_error *err) {
  kernel_key key;
  const luattn_kernel *kernel;
  luattn_linear_args used;
  luattn_error said;
  TRY(take(spec, function, args, &used, err));
  *size = 0;
  if (engine_get_place(engine).driver == NULL) return LUATTN_OK;
  TRY(read_key(spec, pass, function, &used, &key, err));
  TRY(engine_kernel(engine, &key, &kernel, err));
  return engine_tell(of_kernel(kernel, args, size, &said), &said, err);
}

luattn_status luattn_linear_forward(luattn_engine *engine, const luattn_spec *spec, const luattn_linear_args *args,
                                    void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  return run(engine, spec, LUATTN_FORWARD, luattn_cpu_linear_forward, __func__, args, stream, err);
}

luattn_status luattn_linear_backward(luattn_engine *engine, const luattn_spec *spec, const luattn_linear_args *args,
                                     void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  return run(engine, spec, LUATTN_BACKWARD, luattn_cpu_linear_backward, __func__, args, stream, err);
}

luattn_status luattn_linear_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                           const luattn_linear_args *args, size_t *size, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(size);
  return find_size(engine, spec, LUATTN_FORWARD, luattn_linear_launch_size, __func__, args, size, err);
}

luattn_status luattn_linear_kept_size(luattn_engine *engine, const luattn_spec *spec, const luattn_linear_args *args,
                                      size_t *size, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(size);
  return find_size(engine, spec, LUATTN_FORWARD, luattn_linear_launch_kept_size, __func__, args, size, err);
}

luattn_status luattn_linear_backward_workspace_size(luattn_engine *engine, const luattn_spec *spec,
                                                    const luattn_linear_args *args, size_t *size, luattn_error *err) {
  fail_clear(err);
  NEED(engine);
  NEED(spec);
  NEED(args);
  NEED(size);
  return find_size(engine, spec, LUATTN_BACKWARD, luattn_linear_launch_size, __func__, args, size, err);
}
