/* cpu_kernel.h: kernels without code, for which the CPU path computes. The runtime does not know it: who
 * makes such a kernel says what to call. */
#ifndef LUATTN_RUNTIME_CPU_KERNEL_H
#define LUATTN_RUNTIME_CPU_KERNEL_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "luattn/runtime.h"

/* Computes a pass, with arguments of this version (choices_take). */
typedef luattn_status cpu_pass(void *user, luattn_pass pass, const luattn_args *args, luattn_error *err);

/* `facts`, which is copied, says what a kernel of a GPU would: arguments are checked against it in the
 * same words, unless the kernel is `relaxed`, where `run` checks them alone. Unload it as others. */
luattn_status cpu_kernel_make(const image_manifest *facts, bool relaxed, cpu_pass *run, void *user,
                              luattn_kernel **kernel, luattn_error *err);

#endif
