/* xla_call.c: see xla_call.h. */
#include "xla/xla_call.h"
#include "common/fail.h"

#include <string.h>

/* Attributes that are integers, by where they go. */
enum place { IN_CALL, IN_ARGS, IN_BATCH };
typedef struct number {
  const char *name;
  enum place place;
  int bytes;
  size_t offset;
} number;

static const number NUMBERS[] = {
    {"bshd", IN_CALL, 8, offsetof(xla_call, bshd)}, /* q, k, v and the like with four axes have lengths before heads */
    {"deterministic", IN_CALL, 8, offsetof(xla_call, deterministic)},
    {"decode", IN_ARGS, 4, offsetof(luattn_args, decode)},
    {"keys_modified", IN_ARGS, 4, offsetof(luattn_args, keys_modified)},
    {"q_offset", IN_BATCH, 8, offsetof(luattn_batch_options, q_offset)},
    {"kv_offset", IN_BATCH, 8, offsetof(luattn_batch_options, kv_offset)},
    {"q_len", IN_BATCH, 8, offsetof(luattn_batch_options, q_len)},
    {"kv_len", IN_BATCH, 8, offsetof(luattn_batch_options, kv_len)},
    {"head_offset", IN_BATCH, 8, offsetof(luattn_batch_options, head_offset)},
    {"heads", IN_BATCH, 8, offsetof(luattn_batch_options, heads)},
    {"heads_kv", IN_BATCH, 8, offsetof(luattn_batch_options, heads_kv)},
    {"max_seqlen_q", IN_BATCH, 8, offsetof(luattn_batch_options, max_seqlen_q)},
    {"max_seqlen_k", IN_BATCH, 8, offsetof(luattn_batch_options, max_seqlen_k)},
};

/* Buffers that are tensors. */
typedef struct tensor_place {
  const char *name;
  enum place place;
  int is_rows; /* [batch, heads, length, channels], whose axes `bshd` swaps */
  size_t offset;
} tensor_place;

static const tensor_place TENSORS[] = {
    {"q", IN_ARGS, 1, offsetof(luattn_args, q)},
    {"k", IN_ARGS, 1, offsetof(luattn_args, k)},
    {"v", IN_ARGS, 1, offsetof(luattn_args, v)},
    {"o", IN_ARGS, 1, offsetof(luattn_args, o)},
    {"lse", IN_ARGS, 0, offsetof(luattn_args, lse)},
    {"saved", IN_ARGS, 0, offsetof(luattn_args, saved)},
    {"dout", IN_ARGS, 1, offsetof(luattn_args, dout)},
    {"dlse", IN_ARGS, 0, offsetof(luattn_args, dlse)},
    {"dq", IN_ARGS, 1, offsetof(luattn_args, dq)},
    {"dk", IN_ARGS, 1, offsetof(luattn_args, dk)},
    {"dv", IN_ARGS, 1, offsetof(luattn_args, dv)},
    {"q_offsets", IN_BATCH, 0, offsetof(luattn_batch_options, q_offsets)},
    {"kv_offsets", IN_BATCH, 0, offsetof(luattn_batch_options, kv_offsets)},
    {"cu_seqlens_q", IN_BATCH, 0, offsetof(luattn_batch_options, cu_seqlens_q)},
    {"cu_seqlens_k", IN_BATCH, 0, offsetof(luattn_batch_options, cu_seqlens_k)},
    {"seqused_q", IN_BATCH, 0, offsetof(luattn_batch_options, seqused_q)},
    {"seqused_k", IN_BATCH, 0, offsetof(luattn_batch_options, seqused_k)},
    {"block_table", IN_BATCH, 0, offsetof(luattn_batch_options, block_table)},
};

static const struct {
  int xla;
  DLDataType is;
} TYPES[] = {
    {XLA_F64, {kDLFloat, 64, 1}}, {XLA_F32, {kDLFloat, 32, 1}}, {XLA_BF16, {kDLBfloat, 16, 1}},
    {XLA_F16, {kDLFloat, 16, 1}}, {XLA_S32, {kDLInt, 32, 1}},   {XLA_PRED, {kDLBool, 8, 1}},
    {XLA_S64, {kDLInt, 64, 1}},   {XLA_S16, {kDLInt, 16, 1}},   {XLA_U8, {kDLUInt, 8, 1}},
    {XLA_U32, {kDLUInt, 32, 1}},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int is_name(xla_span span, const char *name) {
  return strlen(name) == span.size && memcmp(name, span.text, span.size) == 0;
}

static char *base_of(xla_call *call, enum place place) {
  if (place == IN_BATCH) call->has_batch = 1;
  return place == IN_CALL ? (char *)call : place == IN_ARGS ? (char *)&call->args : (char *)&call->batch;
}

/* Of xla_call: the tensor of a buffer. */
static luattn_status read_tensor(xla_call *call, xla_span name, const xla_buffer *buffer, int is_rows, DLTensor **made,
                                 luattn_error *err) {
  if (call->num_tensors == CALL_TENSORS)
    return luattn_fail(err, LUATTN_INVALID, "%.*s: is one buffer too many, expected at most %d", (int)name.size,
                       name.text, CALL_TENSORS);
  size_t type = 0;
  while (type < COUNT(TYPES) && TYPES[type].xla != buffer->dtype) ++type;
  if (type == COUNT(TYPES))
    return luattn_fail(err, LUATTN_INVALID, "%.*s: has a type (%d of XLA) that luattn does not take", (int)name.size,
                       name.text, buffer->dtype);
  int64_t *sizes = call->sizes[call->num_tensors];
  DLTensor *t = *made = &call->tensors[call->num_tensors++];
  *t = (DLTensor){
      .data = buffer->data,
      .device = {call->device == LUATTN_CPU ? kDLCPU : kDLCUDA, call->device == LUATTN_CPU ? 0 : call->device},
      .ndim = (int32_t)buffer->rank,
      .dtype = TYPES[type].is,
      .shape = buffer->dims};
  if (!is_rows || !call->bshd || buffer->rank != 4) return LUATTN_OK;
  const int64_t *d = buffer->dims;
  const int64_t swapped[8] = {d[0], d[2], d[1], d[3], d[1] * d[2] * d[3], d[3], d[2] * d[3], 1};
  memcpy(sizes, swapped, sizeof swapped);
  t->shape = sizes;
  t->strides = sizes + 4;
  return LUATTN_OK;
}

static luattn_status read_input(xla_call *call, xla_span name, const xla_buffer *buffer, int is_result,
                                luattn_error *err) {
  const luattn_spec_info *info = &call->spec->info;
  const xla_span bare = {name.text + 1, name.size - 1};
  size_t i = 0;
  while (i < info->num_inputs && !is_name(bare, info->inputs[i].name)) ++i;
  if (i == info->num_inputs || i >= CALL_INPUTS)
    return luattn_fail(err, LUATTN_INVALID, "%s: has no input '%.*s'", info->name, (int)bare.size, bare.text);
  DLTensor *t;
  TRY(read_tensor(call, name, buffer, 0, &t, err));
  call->inputs[i].name = info->inputs[i].name;
  if (is_result)
    call->inputs[i].grad = t;
  else
    call->inputs[i].tensor = t;
  return LUATTN_OK;
}

static luattn_status read_seed(xla_call *call, const xla_buffer *buffer, luattn_error *err) {
  if (buffer->dtype != XLA_U32 || buffer->rank != 1 || buffer->dims[0] != 4)
    return luattn_fail(err, LUATTN_INVALID, "seed: expected four u32: seed and offset, low word first");
  call->random = (luattn_random){.struct_size = sizeof call->random, .seed_at = buffer->data};
  call->random.offset_at = call->random.seed_at + 1;
  call->args.random = &call->random;
  return LUATTN_OK;
}

static luattn_status read_buffer(xla_call *call, xla_span name, const xla_buffer *buffer, int is_result,
                                 luattn_error *err) {
  if (is_name(name, "initial") && !is_result) return LUATTN_OK;
  if (is_name(name, "seed") && !is_result) return read_seed(call, buffer, err);
  if (name.size > 1 && name.text[0] == '@') return read_input(call, name, buffer, is_result, err);
  for (size_t i = 0; i < COUNT(TENSORS); ++i)
    if (is_name(name, TENSORS[i].name)) {
      DLTensor *t;
      TRY(read_tensor(call, name, buffer, TENSORS[i].is_rows, &t, err));
      const DLTensor *const given = t;
      memcpy(base_of(call, TENSORS[i].place) + TENSORS[i].offset, &given, sizeof given);
      return LUATTN_OK;
    }
  return luattn_fail(err, LUATTN_INVALID, "%s: '%.*s': is no %s that this luattn knows; it is of a later version",
                     call->spec->info.name, (int)name.size, name.text, is_result ? "result" : "operand");
}

/* names: of all buffers. */
static luattn_status read_buffers(xla_call *call, xla_span names, const xla_buffers *buffers, int is_result,
                                  luattn_error *err) {
  int64_t i = 0;
  for (const char *at = names.text, *end = names.text + names.size; at < end; ++i) {
    const char *space = memchr(at, ' ', (size_t)(end - at));
    const xla_span name = {at, (size_t)((space != NULL ? space : end) - at)};
    if (i < buffers->size) {
      if (buffers->types[i] != XLA_BUFFER)
        return luattn_fail(err, LUATTN_INVALID, "%.*s: is no buffer of XLA", (int)name.size, name.text);
      TRY(read_buffer(call, name, buffers->buffers[i], is_result, err));
    }
    at = space != NULL ? space + 1 : end;
  }
  if (i != buffers->size)
    return luattn_fail(err, LUATTN_INVALID, "%s: names %lld buffers, and there are %lld",
                       is_result ? "results" : "operands", (long long)i, (long long)buffers->size);
  return LUATTN_OK;
}

static luattn_status read_number(xla_call *call, xla_span name, int type, const void *value, luattn_error *err) {
  const xla_scalar *scalar = value;
  for (size_t i = 0; i < COUNT(NUMBERS); ++i) {
    const number *n = &NUMBERS[i];
    if (!is_name(name, n->name)) continue;
    if (type != XLA_ATTR_SCALAR || scalar->dtype != XLA_S64)
      return luattn_fail(err, LUATTN_INVALID, "%s: expected an i64", n->name);
    int64_t wide;
    memcpy(&wide, scalar->value, sizeof wide);
    if (n->bytes == 4 && (wide < INT32_MIN || wide > INT32_MAX))
      return luattn_fail(err, LUATTN_INVALID, "%s: %lld does not fit 32 bits", n->name, (long long)wide);
    const int32_t narrow = (int32_t)wide;
    memcpy(base_of(call, n->place) + n->offset, n->bytes == 4 ? (const void *)&narrow : (const void *)&wide,
           (size_t)n->bytes);
    return LUATTN_OK;
  }
  return luattn_fail(err, LUATTN_INVALID, "'%.*s': is no option that this luattn knows; it is of a later version",
                     (int)name.size, name.text);
}

static luattn_status read_scalars(xla_call *call, const xla_array *given, luattn_error *err) {
  const luattn_spec_info *info = &call->spec->info;
  if (given->dtype != XLA_F64 || given->size != info->num_scalars || given->size > CALL_SCALARS)
    return luattn_fail(err, LUATTN_INVALID, "%s: scalars: has %zu numbers, expected %zu as f64", info->name,
                       given->size, info->num_scalars);
  for (size_t i = 0; i < given->size; ++i) {
    call->scalars[i].name = info->scalar_names[i];
    memcpy(&call->scalars[i].value, (const char *)given->data + i * sizeof(double), sizeof(double));
  }
  call->args.scalars = call->scalars;
  call->args.num_scalars = given->size;
  return LUATTN_OK;
}

/* The attributes that are not integers. */
typedef struct texts {
  xla_span spec, operands, results;
  const xla_array *scalars;
} texts;

static luattn_status read_attribute(xla_call *call, texts *found, xla_span name, int type, const void *value,
                                    luattn_error *err) {
  if (type == XLA_ATTR_STRING && is_name(name, "spec")) {
    memcpy(&found->spec, value, sizeof found->spec);
  } else if (type == XLA_ATTR_STRING && is_name(name, "operands")) {
    memcpy(&found->operands, value, sizeof found->operands);
  } else if (type == XLA_ATTR_STRING && is_name(name, "results")) {
    memcpy(&found->results, value, sizeof found->results);
  } else if (type == XLA_ATTR_ARRAY && is_name(name, "scalars")) {
    found->scalars = value;
  } else if (type == XLA_ATTR_SCALAR && is_name(name, "scale") && ((const xla_scalar *)value)->dtype == XLA_F64) {
    memcpy(&call->args.scale, ((const xla_scalar *)value)->value, sizeof(double));
  } else {
    return read_number(call, name, type, value, err);
  }
  return LUATTN_OK;
}

/* That each input has a tensor, and that a GPU knows how long sequences are. */
static luattn_status check_call(const xla_call *call, luattn_error *err) {
  const luattn_spec_info *info = &call->spec->info;
  for (size_t i = 0; i < info->num_inputs && i < CALL_INPUTS; ++i)
    if (call->inputs[i].tensor == NULL)
      return luattn_fail(err, LUATTN_INVALID, "%s: input '%s' is missing", info->name, info->inputs[i].name);
  if (call->device == LUATTN_CPU) return LUATTN_OK;
  const luattn_batch_options *b = &call->batch;
  if (b->cu_seqlens_q != NULL && b->max_seqlen_q == 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "%s: max_seqlen_q: is missing: the host does not read cu_seqlens_q on a GPU; give the longest length",
        info->name);
  if (b->cu_seqlens_k != NULL && b->max_seqlen_k == 0)
    return luattn_fail(
        err, LUATTN_INVALID,
        "%s: max_seqlen_k: is missing: the host does not read cu_seqlens_k on a GPU; give the longest length",
        info->name);
  return LUATTN_OK;
}

luattn_status xla_call_read(xla_call *call, const xla_frame *frame, int device, luattn_error *err) {
  memset(call, 0, offsetof(xla_call, tensors));
  memset(call->inputs, 0, sizeof call->inputs);
  call->device = device;
  call->args.struct_size = sizeof call->args;
  call->batch.struct_size = sizeof call->batch;
  texts found = {{NULL, 0}, {NULL, 0}, {NULL, 0}, NULL};
  const xla_attributes *a = &frame->attributes;
  for (int64_t i = 0; i < a->size; ++i) TRY(read_attribute(call, &found, *a->names[i], a->types[i], a->values[i], err));
  if (found.spec.text == NULL) return luattn_fail(err, LUATTN_INVALID, "spec: is missing: the attribute with its text");
  TRY(library_find_spec(found.spec.text, found.spec.size, &call->spec, err));
  if (found.scalars != NULL) TRY(read_scalars(call, found.scalars, err));
  TRY(read_buffers(call, found.operands, &frame->args, 0, err));
  TRY(read_buffers(call, found.results, &frame->results, 1, err));
  call->args.inputs = call->inputs;
  call->args.num_inputs = call->spec->info.num_inputs;
  return check_call(call, err);
}
