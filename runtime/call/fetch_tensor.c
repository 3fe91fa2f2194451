#include "runtime/call/fetch_tensor.h"

#include <stdlib.h>

#include "runtime/device/check_mode.h"

/* The elements from the first to the last in memory: *before of them lie before element 0. */
static int64_t span(const DLTensor *t, int64_t *before) {
  int64_t after = 0, size = 1;
  *before = 0;
  for (int i = t->ndim - 1; i >= 0; --i) {
    const int64_t stride = t->strides != NULL ? t->strides[i] : size, reach = (t->shape[i] - 1) * stride;
    if (t->shape[i] == 0) return 0;
    *(reach < 0 ? before : &after) += reach < 0 ? -reach : reach;
    size *= t->shape[i];
  }
  return *before + 1 + after;
}

/* The device's context is current. */
static luattn_status copy(const luattn_driver *d, cu_stream stream, cu_pointer from, size_t size, const char *name,
                          void **memory, luattn_error *err) {
  bool captured;
  TRY(check_captured(d, stream, &captured, err));
  if (captured) return LUATTN_OK;
  *memory = malloc(size);
  if (*memory == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  cu_result result = d->stream_wait(stream);
  if (result == 0) result = d->copy_to_host(*memory, from, size);
  if (result == 0) return LUATTN_OK;
  free(*memory);
  *memory = NULL;
  return driver_fail(d, err, result, "cuMemcpyDtoH", "LUATTN_CHECK: reading '%s'", name);
}

luattn_status fetch_tensor(luattn_driver *driver, int device, void *stream, const DLTensor *t, const char *name,
                           DLTensor *out, void **memory, luattn_error *err) {
  int64_t before;
  const int64_t count = span(t, &before);
  const size_t element = (size_t)(t->dtype.bits + 7) / 8;
  *memory = NULL;
  if (count == 0 || !check_asked()) return LUATTN_OK;
  const cu_pointer from = (cu_pointer)((uintptr_t)t->data + (uintptr_t)t->byte_offset - (uintptr_t)before * element);
  TRY(driver_enter(driver, device, err));
  const luattn_status status = copy(driver, stream, from, (size_t)count * element, name, memory, err);
  driver_pop(driver);
  *out = *t;
  out->data = *memory, out->byte_offset = (uint64_t)before * element;
  return status;
}
