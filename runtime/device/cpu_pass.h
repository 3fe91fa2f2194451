/* cpu_pass.h: the functions by which a kernel without code computes, on the CPU (runtime/launch/cpu_kernel.h). */
#ifndef LUATTN_RUNTIME_CPU_PASS_H
#define LUATTN_RUNTIME_CPU_PASS_H

#include "luattn/batch.h"
#include "luattn/runtime.h"

/* Computes a pass, with arguments of this version (choices_take); weights not NULL: instead of forward the weights of
 * V. */
typedef luattn_status cpu_pass(void *user, luattn_pass pass, const luattn_args *args, const DLTensor *weights,
                               luattn_error *err);

/* Writes new rows to a cache through the spec's mods (luattn_append), with arguments that have been checked, and
 * numbers of pages. */
typedef luattn_status cpu_append_pass(void *user, const luattn_append_args *args, luattn_error *err);

#endif
