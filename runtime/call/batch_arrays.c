/* batch_arrays.c: copies a batch's arrays from host memory to a device, and passes arrays to kernels. */
#include "runtime/call/batch_arrays.h"

#include <inttypes.h>
#include <stdlib.h>

#include "runtime/call/tensor_rule.h"
#include "runtime/device/check_mode.h"

luattn_status batch_array_take(const args_call *c, const batch_array *array, const char *axes, int64_t count,
                               const int **out) {
  const bool copied = array->prepared != NULL && !c->info->on_cpu;
  const tensor_rule rule = {
      .name = array->name, .axes = axes, .ndim = 1, .shape = {count}, .dtype = {kDLInt, 32, 1}, .is_contiguous = true};
  DLTensor t = array->given;
  int64_t shape = array->count;
  long long stride[4];
  void *data;
  t.shape = &shape;
  if (copied) {
    t.data = (void *)(uintptr_t)array->prepared;
    t.byte_offset = 0;
    t.device = (DLDevice){kDLCUDA, array->device};
  } else if (batch_on_host(array) && array->count > 0 && !c->info->on_cpu && !c->shapes_only) {
    return args_fail(c, "batch: %s: is in CPU memory, expected CUDA device %d; luattn_batch_prepare copies it there",
                     array->name, c->device);
  }
  TRY(args_tensor(c, &rule, &t, stride, &data));
  *out = data;
  return LUATTN_OK;
}

static luattn_status copy(luattn_driver *driver, int device, const batch_array *array, void *to, void *stream,
                          luattn_error *err) {
  const void *from = (const char *)array->given.data + array->given.byte_offset;
  const size_t bytes = (size_t)array->count * sizeof(int32_t);
  if (bytes == 0) return LUATTN_OK;
  const cu_result result = driver->copy_to_device_async((cu_pointer)(uintptr_t)to, from, bytes, stream);
  if (result == 0) return LUATTN_OK;
  return driver_fail(driver, err, result, "cuMemcpyHtoDAsync", "copying %s, %zu bytes, to %p on device %d", array->name,
                     bytes, to, device);
}

static luattn_status copy_arrays(luattn_batch *batch, luattn_driver *driver, int device, char *memory, void *stream,
                                 luattn_error *err) {
  for (int i = 0; i < BATCH_ARRAYS; ++i) {
    batch_array *array = &batch->array[i];
    if (!batch_on_host(array)) continue;
    TRY(copy(driver, device, array, memory, stream, err));
    array->prepared = memory;
    array->device = device;
    memory += batch_array_room(array);
  }
  return LUATTN_OK;
}

luattn_status luattn_batch_prepare(luattn_batch *batch, luattn_driver *driver, int device, void *memory, size_t size,
                                   void *stream, luattn_error *err) {
  size_t needed;
  fail_clear(err);
  NEED(batch);
  NEED(driver);
  TRY(luattn_batch_size(batch, &needed, err));
  if (size < needed || (needed > 0 && memory == NULL))
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_prepare: memory: has %zu bytes%s, expected %zu; luattn_batch_size gives the size",
                       size, memory == NULL ? " at NULL" : "", needed);
  if (((uintptr_t)memory & 255) != 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "luattn_batch_prepare: memory: address %p is not a multiple of 256 bytes; align it", memory);
  TRY(batch_read_lengths(batch, "luattn_batch_prepare", err));
  if (needed == 0) return LUATTN_OK;
  TRY(driver_enter(driver, device, err));
  const luattn_status status = copy_arrays(batch, driver, device, memory, stream, err);
  driver_pop(driver);
  return status;
}

/* ---- LUATTN_CHECK ---- */

/* The device's context is current. */
static luattn_status fetch(const luattn_driver *d, const args_call *c, cu_stream stream, const array_copy *copies,
                           int count) {
  cu_result result = d->stream_wait(stream);
  for (int i = 0; i < count && result == 0; ++i)
    if (copies[i].from != NULL && copies[i].count > 0)
      result =
          d->copy_to_host(copies[i].to, (cu_pointer)(uintptr_t)copies[i].from, copies[i].count * sizeof *copies[i].to);
  return result == 0 ? LUATTN_OK
                     : driver_fail(d, c->err, result, "cuMemcpyDtoH", "LUATTN_CHECK: reading arrays of '%s'",
                                   c->info->spec_name);
}

luattn_status batch_arrays_fetch(const luattn_kernel *kernel, const args_call *c, cu_stream stream, array_copy *copies,
                                 int count, void **memory) {
  size_t all = 1;
  bool captured = false;
  for (int i = 0; i < count; ++i) all += copies[i].count;
  int32_t *at = *memory = calloc(all, sizeof *at);
  if (at == NULL) return luattn_fail(c->err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  for (int i = 0; i < count; ++i) copies[i].to = at, at += copies[i].count;
  luattn_status status = driver_push(kernel->driver, kernel->context, c->err);
  if (status == LUATTN_OK) {
    status = check_captured(kernel->driver, stream, &captured, c->err);
    if (status == LUATTN_OK && !captured) status = fetch(kernel->driver, c, stream, copies, count);
    driver_pop(kernel->driver);
  }
  if (status == LUATTN_OK && !captured) return LUATTN_OK;
  free(*memory);
  *memory = NULL;
  return status;
}
