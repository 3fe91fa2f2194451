/* append.h: the new rows of a launch's keys and values, which come before all else (luattn_args.append). */
#ifndef LUATTN_RUNTIME_APPEND_H
#define LUATTN_RUNTIME_APPEND_H

#include "runtime/device/kernel.h"

/* Writes the rows of a call's `append`, if it has any. Errors: LUATTN_INVALID, LUATTN_CUDA. */
luattn_status append_first(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err);

#endif
