/* cpu_kernel.h: kernels without code, which the CPU path computes. The runtime does not depend on it: the
 * creator of such a kernel passes the function to call. */
#ifndef LUATTN_RUNTIME_CPU_KERNEL_H
#define LUATTN_RUNTIME_CPU_KERNEL_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "runtime/device/cpu_pass.h"

/* `facts`, which is copied, describes what a GPU kernel would require: arguments are checked against it with
 * the same messages, unless the kernel is `relaxed`, where only `run` checks them. Unload it like others. */
luattn_status cpu_kernel_make(const image_manifest *facts, bool relaxed, cpu_pass *run, cpu_append_pass *append,
                              void *user, luattn_kernel **kernel, luattn_error *err);

/* luattn_launch and luattn_workspace_size of such a kernel. */
luattn_status cpu_kernel_launch(const luattn_kernel *kernel, const luattn_args *args, const DLTensor *weights,
                                const void *stream, luattn_error *err);
luattn_status cpu_kernel_workspace(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                   luattn_error *err);

#endif
