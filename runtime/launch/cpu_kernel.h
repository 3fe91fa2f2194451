/* cpu_kernel.h: kernels without code, which the CPU path computes. The runtime does not depend on it: the
 * creator of such a kernel passes the function to call. */
#ifndef LUATTN_RUNTIME_CPU_KERNEL_H
#define LUATTN_RUNTIME_CPU_KERNEL_H

#include <stdbool.h>

#include "abi/manifest.h"
#include "luattn/batch.h"
#include "luattn/runtime.h"

/* Computes a pass, with arguments of this version (choices_take); weights not NULL: instead of forward the weights of V. */
typedef luattn_status cpu_pass(void *user, luattn_pass pass, const luattn_args *args, const DLTensor *weights, luattn_error *err);

/* Writes new rows to a cache through the spec's mods (luattn_append), with arguments that have been checked, and numbers of pages. */
typedef luattn_status cpu_append_pass(void *user, const luattn_append_args *args, luattn_error *err);

/* `facts`, which is copied, describes what a GPU kernel would require: arguments are checked against it with
 * the same messages, unless the kernel is `relaxed`, where only `run` checks them. Unload it like others. */
luattn_status cpu_kernel_make(const image_manifest *facts, bool relaxed, cpu_pass *run, cpu_append_pass *append, void *user,
                              luattn_kernel **kernel, luattn_error *err);

#endif
