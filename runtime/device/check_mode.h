/* check_mode.h: LUATTN_CHECK, with which a launch reads back what only the device knows, and checks it. */
#ifndef LUATTN_RUNTIME_CHECK_MODE_H
#define LUATTN_RUNTIME_CHECK_MODE_H

#include <stdbool.h>

#include "runtime/device/driver.h"

/* Whether LUATTN_CHECK=1 is in the environment. */
bool check_asked(void);

/* Whether a graph records the stream, in which nothing can be read back. The stream's context must be current. Errors:
 * LUATTN_CUDA. */
luattn_status check_captured(const luattn_driver *d, cu_stream stream, bool *out, luattn_error *err);

#endif
