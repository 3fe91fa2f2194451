/* inputs.c: finds a spec's extra inputs and scalars by name, and checks them. */
#include "runtime/call/inputs.h"
#include "runtime/call/grid_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/dtype_text.h"
#include "common/call/packed_axis.h"
#include "luattn/compiler.h"
#include "runtime/call/tensor_rule.h"

/* Levenshtein distance of two names, capped at `limit`. */
static int edit_distance(const char *a, const char *b, int limit) {
  const size_t na = strlen(a), nb = strlen(b);
  int row[LUATTN_NAME_SIZE + 1];
  if (na > LUATTN_NAME_SIZE || nb > LUATTN_NAME_SIZE) return limit;
  for (size_t j = 0; j <= nb; ++j) row[j] = (int)j;
  for (size_t i = 1; i <= na; ++i) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= nb; ++j) {
      int best = diagonal + (a[i - 1] != b[j - 1]);
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[nb] < limit ? row[nb] : limit;
}

/* "; did you mean 'slopes'?" or "; this spec has 'a', 'b'". `name` is the first of an array of names,
 * `stride` bytes apart. */
static void suggest(const char *unknown, const char *name, size_t stride, uint32_t count, char *text, size_t size) {
  const char *best = NULL;
  int best_distance = 3; /* a larger distance is no misspelling */
  for (uint32_t i = 0; i < count; ++i) {
    const int distance = edit_distance(unknown, name + i * stride, best_distance);
    if (distance < best_distance && (size_t)distance < strlen(unknown)) {
      best = name + i * stride;
      best_distance = distance;
    }
  }
  if (best != NULL) {
    snprintf(text, size, "did you mean '%s'?", best);
    return;
  }
  size_t used = (size_t)snprintf(text, size, count > 0 ? "it has" : "it has none");
  for (uint32_t i = 0; i < count && used < size; ++i)
    used += (size_t)snprintf(text + used, size - used, "%s '%s'", i > 0 ? "," : "", name + i * stride);
}

static DLDataType input_dtype(uint32_t dtype) {
  static const DLDataType table[] = {
      [LUATTN_INPUT_F64] = {kDLFloat, 64, 1},   [LUATTN_INPUT_F32] = {kDLFloat, 32, 1},
      [LUATTN_INPUT_BF16] = {kDLBfloat, 16, 1}, [LUATTN_INPUT_F16] = {kDLFloat, 16, 1},
      [LUATTN_INPUT_I32] = {kDLInt, 32, 1},     [LUATTN_INPUT_BOOL] = {kDLUInt, 8, 1},
      [LUATTN_INPUT_I64] = {kDLInt, 64, 1},     [LUATTN_INPUT_I16] = {kDLInt, 16, 1},
      [LUATTN_INPUT_U8] = {kDLUInt, 8, 1},
  };
  return table[dtype];
}

/* DLPack 1.0 has a bool type (code 6); earlier versions use a byte of 0 or 1. Both are read. */
static bool is_bool(DLDataType dtype) {
  return (dtype.code == 6 || dtype.code == kDLUInt) && dtype.bits == 8 && dtype.lanes == 1;
}

typedef struct axis_size {
  const char *name;
  int64_t size;
  bool broadcasts;
} axis_size;

/* With packed rows an input has one entry where it has tokens. */
static axis_size expected_of_linear(const args_call *c, const luattn_input_info *info, int32_t axis) {
  bool has_tokens = false;
  for (uint32_t i = 0; i < info->num_axes; ++i) has_tokens |= info->axis[i] == LUATTN_AXIS_T;
  switch (axis) {
    case LUATTN_AXIS_B:
      return (axis_size){"b", c->linear->is_packed && has_tokens ? 1 : c->linear->entries, true};
    case LUATTN_AXIS_T:
      return (axis_size){"t", c->linear->tokens, false};
    case LUATTN_AXIS_HV:
      return (axis_size){"hv", c->linear->heads_v, true};
    case LUATTN_AXIS_D:
      return (axis_size){"d", c->info->head_dim, false};
    default:
      return (axis_size){"dv", c->info->head_dim_v, false};
  }
}

/* size -1: any size. */
static axis_size expected_axis(const args_call *c, const LuattnParams *p, const luattn_input_info *info, int32_t axis) {
  if (c->linear != NULL && (axis == LUATTN_AXIS_B || axis <= LUATTN_AXIS_T)) return expected_of_linear(c, info, axis);
  switch (axis) {
    case LUATTN_AXIS_FREE:
      return (axis_size){"free", -1, false};
    case LUATTN_AXIS_B:
      return (axis_size){"b", p->shape.batch, true};
    case LUATTN_AXIS_H:
      return (axis_size){"h", p->shape.heads, true};
    case LUATTN_AXIS_HKV:
      return (axis_size){"h_kv", p->shape.heads_kv, false};
    case LUATTN_AXIS_Q:
      return (axis_size){"q", p->shape.q_len, false};
    case LUATTN_AXIS_KV:
      return (axis_size){"kv", p->shape.kv_len, false};
    default:
      return (axis_size){"fixed", axis, false};
  }
}

/* Whether an axis is of positions of entries whose lengths differ. */
static bool is_by_entry(const args_call *c, int32_t axis) {
  if (axis == LUATTN_AXIS_KV) return c->info->packed || c->info->paged;
  return axis == LUATTN_AXIS_Q && c->info->packed;
}

/* Such axes q and kv: on the packed axis the rows of all sequences, on others a place for each position of the
 * longest sequence, or more. */
typedef struct packed_size {
  const char *name;
  int64_t size;
  bool or_more;
} packed_size;

static packed_size expected_packed(const args_call *c, const LuattnParams *p, const luattn_input_info *info, int axis) {
  const bool is_q = info->axis[axis] == LUATTN_AXIS_Q;
  if (packed_axis_of(info, c->info->packed, c->info->paged) != axis)
    return is_q ? (packed_size){"q: max_seqlen_q", p->shape.q_len, true}
                : (packed_size){"kv: max_seqlen_k", p->shape.kv_len, true};
  return is_q ? (packed_size){"q: total_q", c->args->q->shape[0], false}
              : (packed_size){"kv: total_k", c->args->k->shape[0], false};
}

static luattn_status check_packed_axis(const args_call *c, const LuattnParams *p, const luattn_input_info *info,
                                       const char *label, int axis, int64_t size) {
  const packed_size want = expected_packed(c, p, info, axis);
  if (size == want.size || (want.or_more && size > want.size && size <= INT32_MAX)) return LUATTN_OK;
  return args_fail(c, "%s: axis %d (%s) has size %" PRId64 ", expected %" PRId64 "%s", label, axis, want.name, size,
                   want.size, want.or_more ? " or more" : "");
}

static luattn_status check_axes(const args_call *c, const LuattnParams *p, const luattn_input_info *info,
                                const DLTensor *t, const char *label, int64_t shape[4]) {
  if (t->ndim != (int)info->num_axes || (t->ndim > 0 && t->shape == NULL))
    return args_fail(c, "%s: has %d axes, expected %u", label, t->ndim, (unsigned)info->num_axes);
  for (int i = 0; i < t->ndim; ++i) {
    axis_size want = expected_axis(c, p, info, info->axis[i]);
    if (info->axis[i] <= LUATTN_AXIS_Q_GRID && c->linear == NULL) {
      want = (axis_size){
          info->axis[i] <= LUATTN_AXIS_KV_GRID ? "kv, along an axis of the grid" : "q, along an axis of the grid",
          grid_extent(c, (const LuattnCallParams *)(const void *)p, info->axis[i]), false};
    }
    shape[i] = t->shape[i];
    if (is_by_entry(c, info->axis[i])) {
      TRY(check_packed_axis(c, p, info, label, i, shape[i]));
      continue;
    }
    if (shape[i] < 0 || shape[i] > INT32_MAX)
      return args_fail(c, "%s: axis %d (%s) has size %" PRId64 ", expected at most %d", label, i, want.name, shape[i],
                       INT32_MAX);
    if (want.size < 0) {
      if (shape[i] >= 1) continue;
      return args_fail(c, "%s: axis %d (free) has size 0, expected at least 1", label, i);
    }
    if (shape[i] != want.size && !(want.broadcasts && shape[i] == 1))
      return args_fail(c, "%s: axis %d (%s) has size %" PRId64 ", expected %" PRId64 "%s", label, i, want.name,
                       shape[i], want.size, want.broadcasts ? ", or 1 to broadcast" : "");
  }
  return LUATTN_OK;
}

/* A gradient is computed if the caller gives memory for it. */
static luattn_status fill_grad(const args_call *c, const luattn_input_info *info, const DLTensor *grad,
                               const tensor_rule *input_rule, LuattnInput *out) {
  if (c->info->pass == LUATTN_FORWARD || c->shapes_only || grad == NULL || grad->data == NULL) return LUATTN_OK;
  if (!info->grad)
    return args_fail(
        c, "input '%s': grad was given, but the spec does not mark it grad; leave it NULL, or write grad = true",
        info->name);
  if (!(c->info->wants & LUATTN_WANT_INPUTS))
    return args_fail(c,
                     "input '%s': grad was given, but this image computes no gradients of inputs; leave it "
                     "NULL, or compile with LUATTN_WANT_INPUTS",
                     info->name);
  char label[LUATTN_NAME_SIZE + 32];
  snprintf(label, sizeof label, "grad of input '%s'", info->name);
  tensor_rule rule = *input_rule; /* it has the input's shape */
  rule.name = label;
  rule.axes = "as the input";
  rule.dtype = args_real(c->info);
  rule.is_output = rule.is_contiguous = true;
  long long stride[4];
  return args_tensor(c, &rule, grad, stride, &out->grad);
}

/* Kernels multiply an index along the last axis by a 32-bit stride in bytes (templates/ops/input.cuh). */
static luattn_status check_last_stride(const args_call *c, const tensor_rule *rule, const long long *stride) {
  const int last = rule->ndim - 1;
  const long long most = INT32_MAX / (rule->dtype.bits / 8);
  if (last < 0 || (stride[last] <= most && stride[last] >= -most)) return LUATTN_OK;
  return args_fail(c, "%s: the last axis has stride %lld, expected at most %lld elements; copy it with a smaller one",
                   rule->name, stride[last], most);
}

static luattn_status fill_input(const args_call *c, uint32_t index, LuattnParams *p) {
  const luattn_input_info *info = &c->info->input[index];
  const luattn_input *given = NULL;
  for (size_t i = 0; i < c->args->num_inputs && given == NULL; ++i)
    if (c->args->inputs[i].name != NULL && strcmp(c->args->inputs[i].name, info->name) == 0)
      given = &c->args->inputs[i];
  char label[LUATTN_NAME_SIZE + 32];
  snprintf(label, sizeof label, "input '%s'", info->name);
  tensor_rule rule = {
      .name = label, .axes = "as the spec declares", .ndim = (int)info->num_axes, .dtype = input_dtype(info->dtype)};
  if (given == NULL || given->tensor == NULL) {
    char dtype[32];
    dtype_text(rule.dtype, dtype, sizeof dtype);
    return args_fail(c, "%s: is missing; give a %s tensor of %u axes by this name", label, dtype,
                     (unsigned)info->num_axes);
  }
  const DLTensor *t = given->tensor;
  TRY(check_axes(c, p, info, t, label, rule.shape));
  if (info->dtype == LUATTN_INPUT_BOOL && is_bool(t->dtype)) rule.dtype = t->dtype;
  LuattnInput *out = &p->inputs.input[index];
  void *data;
  TRY(args_tensor(c, &rule, t, out->stride, &data));
  TRY(check_last_stride(c, &rule, out->stride));
  out->data = data;
  for (int i = 0; i < rule.ndim; ++i) out->size[i] = (int)rule.shape[i];
  if (rule.ndim == 0) out->size[0] = 1; /* kernels read it at index 0 */
  if (data == NULL) {                   /* it has no elements: a clamped gather then reads 0 */
    out->data = c->zero;
    memset(out->stride, 0, sizeof out->stride);
  }
  return fill_grad(c, info, given->grad, &rule, out);
}

luattn_status args_inputs(const args_call *c, LuattnParams *params) { return args_some_inputs(c, ~0u, params); }

luattn_status args_some_inputs(const args_call *c, unsigned which, LuattnParams *params) {
  const image_manifest *m = c->info;
  if (c->args->num_inputs > 0 && c->args->inputs == NULL)
    return args_fail(c, "inputs: is NULL, but num_inputs is %zu", c->args->num_inputs);
  for (size_t i = 0; i < c->args->num_inputs; ++i) {
    const char *name = c->args->inputs[i].name;
    if (name == NULL) return args_fail(c, "inputs: number %zu has no name", i);
    uint32_t found = 0;
    while (found < m->num_inputs && strcmp(name, m->input[found].name) != 0) ++found;
    if (found == m->num_inputs) {
      char shown[FAIL_NAME_SIZE], hint[400];
      suggest(name, m->input[0].name, sizeof m->input[0], m->num_inputs, hint, sizeof hint);
      return args_fail(c, "input '%s': the spec has no such input; %s", fail_name(name, shown), hint);
    }
    for (size_t j = 0; j < i; ++j)
      if (strcmp(name, c->args->inputs[j].name) == 0) return args_fail(c, "input '%s': was given twice", name);
  }
  for (uint32_t i = 0; i < m->num_inputs; ++i)
    if (which >> i & 1) TRY(fill_input(c, i, params));
  return LUATTN_OK;
}

static luattn_status fill_scalar_grads(const args_call *c, LuattnParams *p) {
  const DLTensor *t = c->args->scalar_grads;
  if (c->info->pass == LUATTN_FORWARD || c->shapes_only || t == NULL) return LUATTN_OK;
  if (!(c->info->wants & LUATTN_WANT_SCALARS))
    return args_fail(c,
                     "scalar_grads: was given, but this image computes no gradients of scalars; leave it "
                     "NULL, or compile with LUATTN_WANT_SCALARS");
  const tensor_rule rule = {.name = "scalar_grads",
                            .axes = "number of scalars",
                            .ndim = 1,
                            .shape = {c->info->num_scalars},
                            .dtype = args_real(c->info),
                            .is_output = true,
                            .is_contiguous = true};
  long long stride[4];
  return args_tensor(c, &rule, t, stride, &p->inputs.scalar_grad);
}

luattn_status args_scalars(const args_call *c, LuattnParams *params) {
  const image_manifest *m = c->info;
  for (uint32_t i = 0; i < m->num_scalars; ++i) params->inputs.scalar[i] = m->scalar[i].value;
  if (c->args->num_scalars > 0 && c->args->scalars == NULL)
    return args_fail(c, "scalars: is NULL, but num_scalars is %zu", c->args->num_scalars);
  uint32_t seen = 0;
  for (size_t i = 0; i < c->args->num_scalars; ++i) {
    const luattn_scalar *s = &c->args->scalars[i];
    if (s->name == NULL) return args_fail(c, "scalars: number %zu has no name", i);
    uint32_t found = 0;
    while (found < m->num_scalars && strcmp(s->name, m->scalar[found].name) != 0) ++found;
    if (found == m->num_scalars) {
      char shown[FAIL_NAME_SIZE], hint[400];
      suggest(s->name, m->scalar[0].name, sizeof m->scalar[0], m->num_scalars, hint, sizeof hint);
      return args_fail(c, "scalar '%s': the spec has no such scalar; %s", fail_name(s->name, shown), hint);
    }
    if (seen >> found & 1u) return args_fail(c, "scalar '%s': was given twice", s->name);
    seen |= 1u << found;
    params->inputs.scalar[found] = s->value;
  }
  for (uint32_t i = 0; i < m->num_scalars; ++i) {
    char text[300];
    const scalar_range *range = m->has_ranges ? &m->ranges[0].of[i] : NULL;
    if (!choices_scalar_ok(m->scalar[i].name, params->inputs.scalar[i], range, !(seen >> i & 1u),
                           m->dtype == LUATTN_F64, text, sizeof text))
      return args_fail(c, "%s", text);
  }
  return fill_scalar_grads(c, params);
}
