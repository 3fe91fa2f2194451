/* stream_order.h: for calls of several launches, on two streams. */
#ifndef LUATTN_RUNTIME_STREAM_ORDER_H
#define LUATTN_RUNTIME_STREAM_ORDER_H

#include <stdbool.h>

#include "luattn/runtime.h"

/* What `later` runs from now on begins when all that `earlier` has so far has ended. Does nothing for one stream. Errors:
 * LUATTN_CUDA. */
luattn_status stream_follow(luattn_driver *driver, int device, void *later, void *earlier, luattn_error *err);

/* Whether a CUDA graph captures a stream of the device. Errors: LUATTN_CUDA. */
luattn_status stream_is_captured(luattn_driver *driver, int device, void *stream, bool *out, luattn_error *err);

#endif
