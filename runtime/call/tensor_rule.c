/* tensor_rule.c: checks one tensor: shape, dtype, strides, device, alignment. */
#include "runtime/call/tensor_rule.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/call/dtype_text.h"
#include "common/call/overlap.h"
#include "luattn/compiler.h"

static bool is_same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static void shape_text(const int64_t *shape, int ndim, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int i = 0; i < ndim && used < size; ++i)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
  if (used < size) snprintf(text + used, size - used, "]");
}

DLDataType args_real(const image_manifest *info) {
  return (DLDataType){.code = kDLFloat, .bits = info->dtype == LUATTN_F64 ? 64 : 32, .lanes = 1};
}

size_t args_real_size(const image_manifest *info) { return info->dtype == LUATTN_F64 ? sizeof(double) : sizeof(float); }

DLDataType args_elem(const image_manifest *info) { return kernel_dtype(info->dtype)->dl; }

static luattn_status check_shape(const args_call *c, const tensor_rule *rule, const DLTensor *t) {
  if (t->ndim != rule->ndim)
    return args_fail(c, "%s: has %d axes, expected %d: [%s]", rule->name, t->ndim, rule->ndim, rule->axes);
  if (t->shape == NULL && rule->ndim > 0)
    return args_fail(c, "%s: its shape is NULL, expected [%s]", rule->name, rule->axes);
  if (!is_same_dtype(t->dtype, rule->dtype)) {
    char have[32], want[32];
    dtype_text(t->dtype, have, sizeof have);
    dtype_text(rule->dtype, want, sizeof want);
    return args_fail(c, "%s: has dtype %s, expected %s; convert it%s", rule->name, have, want,
                     rule->is_wide  ? ", or leave out_f32 and grad_f32 0"
                     : rule->is_row ? " or compile for its dtype"
                                    : "");
  }
  for (int i = 0; i < rule->ndim; ++i) {
    if (t->shape[i] == rule->shape[i]) continue;
    char have[128], want[128];
    shape_text(t->shape, t->ndim, have, sizeof have);
    shape_text(rule->shape, rule->ndim, want, sizeof want);
    return args_fail(c, "%s: has shape %s, expected %s = [%s]", rule->name, have, want, rule->axes);
  }
  return LUATTN_OK;
}

static luattn_status check_nests(const args_call *c, const tensor_rule *rule, const DLTensor *t) {
  if (!rule->is_output || rule->is_contiguous || overlap_nests(t)) return LUATTN_OK;
  char shape[128], strides[128];
  shape_text(t->shape, t->ndim, shape, sizeof shape);
  shape_text(t->strides, t->ndim, strides, sizeof strides);
  return args_fail(c,
                   "%s: has shape %s and strides %s, by which elements share memory; expected strides of an "
                   "output to reach past all that smaller ones span",
                   rule->name, shape, strides);
}

static luattn_status refuse_reach(const args_call *c, const tensor_rule *rule, const DLTensor *t) {
  char text[400];
  overlap_reach_text(t, text, sizeof text);
  return args_fail(c, "%s: %s", rule->name, text);
}

/* Whether a tensor has elements, one behind another, and not too many: the common case, for which all that
 * check_any_strides asks holds but that their addresses fit. */
static inline bool is_plain(const DLTensor *t, int ndim, long long *stride, uint64_t *elements) {
  int64_t next = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    const int64_t size = t->shape[i];
    if (size <= 0 || (t->strides != NULL && size > 1 && t->strides[i] != next)) return false;
    stride[i] = size > 1 ? next : 0;
    if (__builtin_mul_overflow(next, size, &next)) return false;
  }
  *elements = (uint64_t)next;
  return next <= INT64_MAX / 16;
}

static luattn_status check_any_strides(const args_call *c, const tensor_rule *rule, const DLTensor *t,
                                       long long *stride) {
  int64_t next = 1;
  bool is_empty = false;
  overlap_reach reach = {0, 0, false};
  for (int i = 0; i < rule->ndim; ++i) is_empty = is_empty || t->shape[i] == 0;
  for (int i = rule->ndim - 1; i >= 0; --i) {
    const int64_t have = t->strides != NULL ? t->strides[i] : next;
    stride[i] = t->shape[i] > 1 ? have : 0;
    overlap_reach_add(&reach, t->shape[i], have);
    if (t->shape[i] > 1 && !is_empty) {
      if (rule->is_contiguous && have != next)
        return args_fail(c, "%s: axis %d has stride %" PRId64 ", expected %" PRId64 "; it must be contiguous",
                         rule->name, i, have, next);
      if (rule->is_row && i == rule->ndim - 1 && have != 1)
        return args_fail(c, "%s: the last axis has stride %" PRId64 ", expected 1; make that axis contiguous",
                         rule->name, have);
      if (rule->is_output && have == 0)
        return args_fail(c,
                         "%s: axis %d has stride 0 over %" PRId64
                         " elements, expected memory of its own for each element of an output",
                         rule->name, i, t->shape[i]);
    }
    if (t->shape[i] > 0 && (__builtin_mul_overflow(next, t->shape[i], &next) || next > INT64_MAX / 16))
      return args_fail(c, "%s: has more elements than a machine can address", rule->name);
  }
  if (!is_empty && !overlap_reach_ok(&reach, t, c->shapes_only ? NULL : t->data)) return refuse_reach(c, rule, t);
  return check_nests(c, rule, t);
}

static luattn_status check_strides(const args_call *c, const tensor_rule *rule, const DLTensor *t, long long *stride) {
  uint64_t elements;
  if (!is_plain(t, rule->ndim, stride, &elements)) return check_any_strides(c, rule, t, stride);
  const overlap_reach reach = {.above = elements - 1};
  return overlap_reach_ok(&reach, t, c->shapes_only ? NULL : t->data) ? LUATTN_OK : refuse_reach(c, rule, t);
}

/* Checks a tensor for a kernel of the CPU path. */
static luattn_status check_host(const args_call *c, const tensor_rule *rule, const DLTensor *t) {
  if (t->device.device_type == kDLCPU) return LUATTN_OK;
  if (t->device.device_type == kDLCUDA)
    return args_fail(c,
                     "%s: is on CUDA device %d, and the engine is on the CPU; luattn_copy_to_host copies it, an "
                     "engine on that device computes there",
                     rule->name, t->device.device_id);
  return args_fail(c, "%s: has DLPack device type %d, expected %d (CPU)", rule->name, (int)t->device.device_type,
                   (int)kDLCPU);
}

static luattn_status check_device(const args_call *c, const tensor_rule *rule, const DLTensor *t) {
  if (c->info->on_cpu) return check_host(c, rule, t);
  switch (t->device.device_type) {
    case kDLCUDA:
      if (t->device.device_id == c->device) return LUATTN_OK;
      return args_fail(c, "%s: is on CUDA device %d, but the kernel is loaded on device %d; move it, or load there",
                       rule->name, t->device.device_id, c->device);
    case kDLCUDAManaged:
    case kDLCUDAHost: /* every device reads host and managed memory at the same address */
      return LUATTN_OK;
    case kDLCPU:
      return args_fail(c,
                       "%s: is in CPU memory, expected CUDA device %d; luattn_copy_to_device copies it, "
                       "luattn_cpu_forward and luattn_cpu_backward work there",
                       rule->name, c->device);
    default:
      return args_fail(c, "%s: has DLPack device type %d, expected %d (CUDA)", rule->name, (int)t->device.device_type,
                       (int)kDLCUDA);
  }
}

/* All sizes are powers of two, tested with masks: a
 * dozen 64-bit divisions per launch would take a third of the time of all checks. */
static luattn_status check_alignment(const args_call *c, const tensor_rule *rule, const DLTensor *t,
                                     const long long *stride, uintptr_t address) {
  const unsigned elem = rule->dtype.bits / 8u;
  const bool vectors =
      rule->is_row && !rule->is_single && (rule->is_wide || rule->dtype.bits <= manifest_traits(c->info)->vector_bits);
  const unsigned align = vectors ? 16 : elem;
  if ((address & (align - 1)) != 0)
    return args_fail(c, "%s: address 0x%" PRIxPTR " (data + byte_offset) is not a multiple of %u bytes; %s", rule->name,
                     address, align, vectors ? "copy it, or convert q, k, v to float32" : "its data is misplaced");
  if (!vectors) return LUATTN_OK;
  const long long step = 16 / (long long)elem;
  for (int i = 0; i < t->ndim - 1; ++i)
    if ((stride[i] & (step - 1)) != 0)
      return args_fail(c,
                       "%s: axis %d has stride %lld, expected a multiple of %lld elements (16 bytes); copy "
                       "it, or convert q, k, v to float32",
                       rule->name, i, stride[i], step);
  return LUATTN_OK;
}

luattn_status args_tensor(const args_call *c, const tensor_rule *rule, const DLTensor *t, long long *stride,
                          void **data) {
  TRY(check_shape(c, rule, t));
  TRY(check_strides(c, rule, t, stride));
  *data = NULL;
  if (c->shapes_only) return LUATTN_OK;
  for (int i = 0; i < t->ndim; ++i)
    if (t->shape[i] == 0) return LUATTN_OK; /* nothing is read, so the pointer may be anything */
  TRY(check_device(c, rule, t));
  if (t->data == NULL)
    return args_fail(c, "%s: its data pointer is NULL; give it memory%s", rule->name,
                     c->info->on_cpu ? "" : " on the device");
  const uintptr_t address = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
  TRY(check_alignment(c, rule, t, stride, address));
  *data = (void *)address;
  return LUATTN_OK;
}
