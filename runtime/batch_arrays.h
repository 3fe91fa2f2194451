/* batch_arrays.h: passes the arrays of a luattn_batch to kernels. */
#ifndef LUATTN_RUNTIME_BATCH_ARRAYS_H
#define LUATTN_RUNTIME_BATCH_ARRAYS_H

#include "common/batch.h"
#include "runtime/args.h"

/* Checks an array against a call, and stores the address at which the kernel reads it: the caller's, or that of the copy which
 * luattn_batch_prepare made. `axes`: how messages show its `count` elements. */
luattn_status batch_array_take(const args_call *c, const batch_array *array, const char *axes, int64_t count, const int **out);

#endif
