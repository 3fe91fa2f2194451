#include "runtime/device/check_mode.h"

#include <stdlib.h>
#include <string.h>

bool check_asked(void) {
  const char *value = getenv("LUATTN_CHECK");
  return value != NULL && strcmp(value, "1") == 0;
}

luattn_status check_captured(const luattn_driver *d, cu_stream stream, bool *out, luattn_error *err) {
  int status = 0;
  const cu_result result = d->stream_is_capturing != NULL ? d->stream_is_capturing(stream, &status) : 0;
  *out = status != 0;
  return result == 0
             ? LUATTN_OK
             : driver_fail(d, err, result, "cuStreamIsCapturing", "asking whether a CUDA graph captures a stream");
}
