#include "runtime/call/stream_order.h"

#include "runtime/device/check_mode.h"
#include "runtime/device/driver.h"

luattn_status stream_follow(luattn_driver *d, int device, void *later, void *earlier, luattn_error *err) {
  enum { NO_TIMES = 2 };
  cu_event event;
  if (later == earlier) return LUATTN_OK;
  TRY(driver_enter(d, device, err));
  const char *call = "cuEventCreate";
  cu_result result = d->event_create(&event, NO_TIMES);
  if (result == 0) {
    call = "cuEventRecord", result = d->event_record(event, earlier);
    if (result == 0) call = "cuStreamWaitEvent", result = d->stream_follow(later, event, 0);
    (void)d->event_destroy(event); /* the driver keeps it until it has happened */
  }
  driver_pop(d);
  return result == 0 ? LUATTN_OK : driver_fail(d, err, result, call, "ordering two streams of device %d", device);
}

luattn_status stream_is_captured(luattn_driver *d, int device, void *stream, bool *out, luattn_error *err) {
  TRY(driver_enter(d, device, err)); /* the default stream is one of the current context */
  const luattn_status status = check_captured(d, stream, out, err);
  driver_pop(d);
  return status;
}
