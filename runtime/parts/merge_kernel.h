/* merge_kernel.h: loads and launches kernels that merge finished parts (luattn/merge.h), and loads other kernels
 * without a spec. */
#ifndef LUATTN_RUNTIME_MERGE_KERNEL_H
#define LUATTN_RUNTIME_MERGE_KERNEL_H

#include "runtime/call/merge_args.h"

typedef struct merge_kernel merge_kernel; /* a cubin of gen/compile/merge_code.c on a device */
/* `function`: the kernel's name. */
luattn_status merge_kernel_load(luattn_driver *driver, int device, const void *cubin, const char *function,
                                merge_kernel **kernel, luattn_error *err);
void merge_kernel_unload(merge_kernel *kernel); /* NULL is fine */
const struct luattn_driver *merge_kernel_driver(const merge_kernel *kernel);
/* Makes the device's context current; merge_kernel_leave, or driver_pop, ends that. */
luattn_status merge_kernel_enter(const merge_kernel *kernel, luattn_error *err);
void merge_kernel_leave(const merge_kernel *kernel);
/* Launches `blocks` blocks of `threads` in the current context. Returns the driver's result. */
int merge_kernel_start(const merge_kernel *kernel, unsigned blocks, unsigned threads, void **params, void *stream);
/* What a result other than 0 of a launch of `name` means. */
luattn_status merge_kernel_fail(const merge_kernel *kernel, int result, const char *name, int rows, luattn_error *err);
luattn_status merge_kernel_launch(const merge_kernel *kernel, const merge_call *call, void *stream, luattn_error *err);

#endif
