/* array.c: host tensors that own their memory, read and written as double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "cli/cli.h"
#include "gen/cpu/cpu.h"

DLDataType dtype_dl(luattn_dtype t) { return kernel_dtype(t)->dl; }

DLDataType dtype_of_input(uint32_t input_dtype) {
  switch (input_dtype) {
    case LUATTN_INPUT_F64:
      return (DLDataType){kDLFloat, 64, 1};
    case LUATTN_INPUT_BF16:
      return (DLDataType){kDLBfloat, 16, 1};
    case LUATTN_INPUT_F16:
      return (DLDataType){kDLFloat, 16, 1};
    case LUATTN_INPUT_I32:
      return (DLDataType){kDLInt, 32, 1};
    case LUATTN_INPUT_BOOL:
      return (DLDataType){ARRAY_BOOL, 8, 1};
    case LUATTN_INPUT_I64:
      return (DLDataType){kDLInt, 64, 1};
    case LUATTN_INPUT_I16:
      return (DLDataType){kDLInt, 16, 1};
    case LUATTN_INPUT_U8:
      return (DLDataType){kDLUInt, 8, 1};
    default:
      return (DLDataType){kDLFloat, 32, 1};
  }
}

int64_t array_count(const array *a) {
  int64_t n = 1;
  for (int i = 0; i < a->t.ndim; i++) n *= a->shape[i];
  return n;
}

void array_move_axis(array *a, int from, int to) {
  const int64_t shape = a->shape[from], stride = a->stride[from];
  for (const int step = from < to ? 1 : -1; from != to; from += step)
    a->shape[from] = a->shape[from + step], a->stride[from] = a->stride[from + step];
  a->shape[to] = shape, a->stride[to] = stride;
}

size_t array_bytes(const array *a) { return (size_t)array_count(a) * (a->t.dtype.bits / 8u); }

luattn_status array_new(array *a, DLDataType type, int ndim, const int64_t *shape, bool heads_last, luattn_error *err) {
  int order[ARRAY_MAX_AXES]; /* memory order of the logical axes */
  for (int i = 0; i < ndim; i++)
    order[i] = heads_last && ndim >= 4 && i >= 1 && i <= ndim - 2 ? i == ndim - 2 ? 1 : i + 1 : i;
  *a = (array){0};
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    a->shape[order[i]] = shape[order[i]];
    a->stride[order[i]] = stride;
    if (shape[order[i]] > 0 && stride > INT64_MAX / 16 / shape[order[i]]) {
      return luattn_fail(err, LUATTN_INVALID, "array: more than 2^59 elements; choose smaller sizes");
    }
    stride *= shape[order[i]];
  }
  a->t = (DLTensor){.device = {kDLCPU, 0}, .ndim = ndim, .dtype = type};
  a->storage = calloc((size_t)stride + 1, type.bits / 8u);
  if (a->storage == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "array: no memory for %lld elements; choose smaller sizes",
                       (long long)stride);
  a->t.data = a->storage;
  return LUATTN_OK;
}

void array_free(array *a) {
  free(a->storage);
  *a = (array){0};
}

/* Offset in elements of a flat index in logical row-major order. */
static int64_t offset(const array *a, int64_t flat) {
  int64_t at = 0;
  for (int i = a->t.ndim - 1; i >= 0; i--) {
    at += flat % a->shape[i] * a->stride[i];
    flat /= a->shape[i];
  }
  return at;
}

const void *array_at(const array *a, int64_t flat) {
  return (const char *)a->storage + offset(a, flat) * (a->t.dtype.bits / 8);
}

/* The element, as a view without axes. */
static cpu_view element(const array *a, int64_t flat) {
  const DLDataType type = a->t.dtype;
  return (cpu_view){.data = (char *)a->storage + offset(a, flat) * (type.bits / 8),
                    .code = type.code,
                    .bits = type.bits,
                    .kind = type.code == kDLUInt ? VIEW_U8 : VIEW_REAL};
}

double array_get(const array *a, int64_t flat) {
  const cpu_view v = element(a, flat);
  return view_get(&v, NULL);
}

void array_set(array *a, int64_t flat, double x) {
  const cpu_view v = element(a, flat);
  if (v.code == ARRAY_BOOL)
    *v.data = x != 0;
  else if (array_is_integer(a))
    array_set_integer(a, flat, (int64_t)x);
  else
    view_set(&v, NULL, x);
}

bool array_is_integer(const array *a) { return a->t.dtype.code == kDLInt || a->t.dtype.code == kDLUInt; }

int64_t array_integer(const array *a, int64_t flat) {
  int64_t i64;
  if (a->t.dtype.code != kDLInt || a->t.dtype.bits != 64) return (int64_t)array_get(a, flat);
  return memcpy(&i64, array_at(a, flat), sizeof i64), i64;
}

bool array_set_integer(array *a, int64_t flat, int64_t x) {
  char *at = element(a, flat).data;
  const int32_t i32 = (int32_t)x;
  const int16_t i16 = (int16_t)x;
  const uint8_t u8 = (uint8_t)x;
  if (a->t.dtype.code == kDLUInt) return memcpy(at, &u8, sizeof u8), u8 == x;
  if (a->t.dtype.bits == 64) return memcpy(at, &x, sizeof x), true;
  if (a->t.dtype.bits == 32) return memcpy(at, &i32, sizeof i32), i32 == x;
  return memcpy(at, &i16, sizeof i16), i16 == x;
}

const DLTensor *array_tensor(const array *a) {
  if (a->storage == NULL) return NULL;
  array *self = (array *)(uintptr_t)a; /* a view has pointers into the array, whose value stays the same */
  self->t.shape = self->shape;
  self->t.strides = self->stride;
  return &a->t;
}
