/* build_kernel.h: makes the kernel of a key: from a pack, or compiled, or on the CPU. */
#ifndef LUATTN_ENGINE_BUILD_KERNEL_H
#define LUATTN_ENGINE_BUILD_KERNEL_H

#include "engine/engine_setup.h"
#include "engine/kernel_key.h"

/* Logs a success. report->plan and report->every_length are set; on success *err has a warning, or none. */
luattn_status build_kernel(const engine_setup *e, const kernel_key *key, luattn_kernel **kernel,
                           luattn_compile_report *report, luattn_error *err);

#endif
