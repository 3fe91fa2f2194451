/* batch_arrays.h: passes the arrays of a luattn_batch to kernels. */
#ifndef LUATTN_RUNTIME_BATCH_ARRAYS_H
#define LUATTN_RUNTIME_BATCH_ARRAYS_H

#include "common/call/batch.h"
#include "runtime/call/args_call.h"

/* Checks an array against a call, and stores the address at which the kernel reads it: the caller's, or that of the
 * copy which luattn_batch_prepare made. `axes`: how messages show its `count` elements. */
luattn_status batch_array_take(const args_call *c, const batch_array *array, const char *axes, int64_t count,
                               const int **out);

/* An array on the device, and room for a copy. */
typedef struct array_copy {
  const int *from; /* NULL: nothing is copied */
  size_t count;
  int32_t *to;
} array_copy;

/* For LUATTN_CHECK: waits for the stream and copies the arrays to host memory, which it allocates. *memory: to free;
 * NULL: the stream is being captured, so that nothing has been read. */
luattn_status batch_arrays_fetch(const luattn_kernel *kernel, const args_call *c, cu_stream stream, array_copy *copies,
                                 int count, void **memory);

#endif
