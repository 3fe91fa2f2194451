/* cpu_device.h: kernels of an engine on the CPU. */
#ifndef LUATTN_ENGINE_CPU_DEVICE_H
#define LUATTN_ENGINE_CPU_DEVICE_H

#include "engine/kernel_key.h"

enum { CPU_DEVICE_MAX_DIM = 65536 }; /* head dims of the CPU path */

/* From the engine's options. */
typedef struct cpu_device {
  int family;
  bool deterministic, relaxed;
} cpu_device;

/* Calls luattn_cpu_forward or luattn_cpu_backward. Fills every_length and plan of the report. */
luattn_status cpu_device_kernel(const cpu_device *how, const kernel_key *key, luattn_kernel **kernel,
                                luattn_compile_report *report, luattn_error *err);

#endif
