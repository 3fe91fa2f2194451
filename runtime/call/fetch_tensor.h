/* fetch_tensor.h: copies a tensor of a call from the device, for checks of LUATTN_CHECK=1. */
#ifndef LUATTN_RUNTIME_FETCH_TENSOR_H
#define LUATTN_RUNTIME_FETCH_TENSOR_H

#include "luattn/runtime.h"

/* Waits for the stream, and copies `t`, which a launch has checked, to memory that it allocates; *out has the tensor's
 * shape and strides. *memory: to free; NULL: LUATTN_CHECK is not 1, or the stream is being captured, or there are no
 * elements. Errors: LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status fetch_tensor(luattn_driver *driver, int device, void *stream, const DLTensor *t, const char *name,
                           DLTensor *out, void **memory, luattn_error *err);

#endif
