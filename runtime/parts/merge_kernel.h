/* merge_kernel.h: kernels that merge finished parts (luattn/merge.h): checks of their arguments, loading and launching; and loading of
 * other kernels without a spec. */
#ifndef LUATTN_RUNTIME_MERGE_KERNEL_H
#define LUATTN_RUNTIME_MERGE_KERNEL_H

#include <stdbool.h>

#include "abi/merge_params.h"
#include "luattn/merge.h"

/* What a call asks for. */
typedef struct merge_call {
  LuattnMergeParams params;
  luattn_dtype part, elem; /* types of o of the parts, and of the merged o */
  int size;                /* 0, 1, 2: of kernels for up to 2, 4 and LUATTN_MERGE_MAX parts, the least that takes them */
  bool is_empty;           /* there are no rows */
} merge_call;

/* The caller's struct in this version. */
luattn_status merge_args_take(const luattn_merge_args *given, luattn_pass pass, luattn_merge_args *out, luattn_error *err);
/* Checks the arguments for `device`, or LUATTN_CPU, and fills *out. With args->spec, num_rows and num_saved are those of its parts. */
typedef struct merge_rows {
  int num_rows, num_saved;
} merge_rows;
luattn_status merge_args_fill(const luattn_merge_args *args, luattn_pass pass, int device, const merge_rows *rows, merge_call *out,
                              luattn_error *err);

typedef struct merge_kernel merge_kernel; /* a cubin of gen/compile/merge_code.c on a device */
/* `function`: the kernel's name. */
luattn_status merge_kernel_load(luattn_driver *driver, int device, const void *cubin, const char *function, merge_kernel **kernel,
                                luattn_error *err);
void merge_kernel_unload(merge_kernel *kernel); /* NULL is fine */
const struct luattn_driver *merge_kernel_driver(const merge_kernel *kernel);
/* Makes the device's context current; driver_pop ends that. */
luattn_status merge_kernel_enter(const merge_kernel *kernel, luattn_error *err);
/* Launches `blocks` blocks of `threads` in the current context. Returns the driver's result. */
int merge_kernel_start(const merge_kernel *kernel, unsigned blocks, unsigned threads, void **params, void *stream);
luattn_status merge_kernel_launch(const merge_kernel *kernel, const merge_call *call, void *stream, luattn_error *err);

#endif
