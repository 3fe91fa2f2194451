/* memory.c: allocates and copies device memory, waits and takes times. */
#include <stdint.h>
#include <stdlib.h>

#include "runtime/device/driver.h"

static cu_pointer to_device(const void *ptr) { return (cu_pointer)(uintptr_t)ptr; }

luattn_status luattn_device_alloc(luattn_driver *driver, int device, size_t size, void **ptr, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  NEED(ptr);
  TRY(driver_enter(driver, device, err));
  cu_pointer p = 0;
  const cu_result result = driver->alloc(&p, size > 0 ? size : 1); /* the driver refuses 0 bytes */
  driver_pop(driver);
  if (result != 0)
    return driver_fail(driver, err, result, "cuMemAlloc", "allocating %zu bytes on device %d", size, device);
  *ptr = (void *)(uintptr_t)p;
  return LUATTN_OK;
}

luattn_status luattn_device_free(luattn_driver *driver, int device, void *ptr, luattn_error *err) {
  fail_clear(err);
  if (ptr == NULL) return LUATTN_OK;
  NEED(driver);
  TRY(driver_enter(driver, device, err));
  const cu_result result = driver->free(to_device(ptr));
  driver_pop(driver);
  if (result != 0) return driver_fail(driver, err, result, "cuMemFree", "freeing %p on device %d", ptr, device);
  return LUATTN_OK;
}

luattn_status luattn_device_fill(luattn_driver *driver, int device, void *ptr, unsigned char byte, size_t size,
                                 void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  if (size == 0) return LUATTN_OK;
  NEED(ptr);
  TRY(driver_enter(driver, device, err));
  const cu_result result = driver->fill_bytes(to_device(ptr), byte, size, stream);
  driver_pop(driver);
  if (result != 0)
    return driver_fail(driver, err, result, "cuMemsetD8Async", "filling %zu bytes at %p on device %d", size, ptr,
                       device);
  return LUATTN_OK;
}

luattn_status luattn_copy_to_device(luattn_driver *driver, int device, void *dst, const void *src, size_t size,
                                    luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  if (size == 0) return LUATTN_OK;
  NEED(dst);
  NEED(src);
  TRY(driver_enter(driver, device, err));
  cu_result result = driver->copy_to_device(to_device(dst), src, size);
  if (result == 0) result = driver->stream_wait(NULL); /* a copy from pageable memory may still be in flight */
  driver_pop(driver);
  if (result != 0)
    return driver_fail(driver, err, result, "cuMemcpyHtoD", "copying %zu bytes to %p on device %d", size, dst, device);
  return LUATTN_OK;
}

luattn_status luattn_copy_to_host(luattn_driver *driver, int device, void *dst, const void *src, size_t size,
                                  luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  if (size == 0) return LUATTN_OK;
  NEED(dst);
  NEED(src);
  TRY(driver_enter(driver, device, err));
  const cu_result result = driver->copy_to_host(dst, to_device(src), size);
  driver_pop(driver);
  if (result != 0)
    return driver_fail(driver, err, result, "cuMemcpyDtoH", "copying %zu bytes from %p on device %d", size, src,
                       device);
  return LUATTN_OK;
}

luattn_status luattn_synchronize(luattn_driver *driver, int device, void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  TRY(driver_enter(driver, device, err));
  const cu_result result = driver->stream_wait(stream);
  driver_pop(driver);
  if (result != 0) return driver_fail(driver, err, result, "cuStreamSynchronize", "waiting for device %d", device);
  return LUATTN_OK;
}

struct luattn_timer {
  luattn_driver *driver;
  cu_context context;
  cu_event start, stop;
};

luattn_status luattn_timer_open(luattn_driver *driver, int device, luattn_timer **timer, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  NEED(timer);
  luattn_timer *t = calloc(1, sizeof *t);
  if (t == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_timer_open: out of memory");
  t->driver = driver;
  luattn_status status = driver_context(driver, device, &t->context, err);
  if (status == LUATTN_OK) status = driver_push(driver, t->context, err);
  if (status != LUATTN_OK) {
    free(t);
    return status;
  }
  cu_result result = driver->event_create(&t->start, 0);
  if (result == 0) result = driver->event_create(&t->stop, 0);
  driver_pop(driver);
  if (result != 0) {
    luattn_timer_close(t);
    return driver_fail(driver, err, result, "cuEventCreate", "making a timer on device %d", device);
  }
  *timer = t;
  return LUATTN_OK;
}

void luattn_timer_close(luattn_timer *timer) {
  if (timer == NULL) return;
  if (driver_push(timer->driver, timer->context, NULL) == LUATTN_OK) {
    if (timer->start != NULL) (void)timer->driver->event_destroy(timer->start);
    if (timer->stop != NULL) (void)timer->driver->event_destroy(timer->stop);
    driver_pop(timer->driver);
  }
  free(timer);
}

static luattn_status record(const luattn_timer *timer, cu_event event, void *stream, luattn_error *err) {
  TRY(driver_push(timer->driver, timer->context, err));
  const cu_result result = timer->driver->event_record(event, stream);
  driver_pop(timer->driver);
  return result == 0 ? LUATTN_OK : driver_fail(timer->driver, err, result, "cuEventRecord", "timing a stream");
}

luattn_status luattn_timer_start(luattn_timer *timer, void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(timer);
  return record(timer, timer->start, stream, err);
}

luattn_status luattn_timer_stop(luattn_timer *timer, void *stream, luattn_error *err) {
  fail_clear(err);
  NEED(timer);
  return record(timer, timer->stop, stream, err);
}

luattn_status luattn_timer_read(luattn_timer *timer, double *ms, luattn_error *err) {
  fail_clear(err);
  NEED(timer);
  NEED(ms);
  TRY(driver_push(timer->driver, timer->context, err));
  float elapsed = 0;
  const char *call = "cuEventSynchronize";
  cu_result result = timer->driver->event_wait(timer->stop);
  if (result == 0) {
    call = "cuEventElapsedTime";
    result = timer->driver->event_elapsed(&elapsed, timer->start, timer->stop);
  }
  driver_pop(timer->driver);
  if (result != 0) return driver_fail(timer->driver, err, result, call, "reading a timer");
  *ms = (double)elapsed;
  return LUATTN_OK;
}
