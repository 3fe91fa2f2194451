/* nccl.h: a luattn_transport over NCCL, in a library of its own, libluattn_nccl.so. It loads libnccl.so.2 and libcuda.so.1
 * when a transport is opened, so that programs without them run without it; LUATTN_NCCL and LUATTN_LIBCUDA in the
 * environment name others. */
#ifndef LUATTN_NCCL_H
#define LUATTN_NCCL_H

#include "luattn/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills *transport, whose struct_size is set to sizeof(luattn_transport), with functions over `comm`, an ncclComm_t of
 * the caller's, whose ranks are the transport's. The device
 * of the communicator is current, here and where the transport is used, which one thread does at a time. `comm` outlives
 * the transport. A rank that dies is NCCL's own error, or its abort (NCCL_ASYNC_ERROR_HANDLING of the program): nothing
 * here waits. Errors: LUATTN_INVALID (the struct's size), LUATTN_UNSUPPORTED (a library that is not there), LUATTN_CUDA
 * (NCCL's and the driver's). */
LUATTN_API luattn_status luattn_nccl_open(void *comm, luattn_transport *transport, luattn_error *err);
LUATTN_API void luattn_nccl_close(luattn_transport *transport); /* NULL is fine. Not before its transfers have ended */

#ifdef __cplusplus
}
#endif
#endif
