/* kernel.h: a kernel on a device: the functions of an image, and what its launches share. */
#ifndef LUATTN_RUNTIME_KERNEL_H
#define LUATTN_RUNTIME_KERNEL_H

#include "abi/manifest.h"
#include "runtime/device/cpu_pass.h"
#include "runtime/device/descriptor_cache.h"
#include "runtime/device/driver.h"
#include "runtime/device/work_counters.h"

/* It never changes; what launches learn is behind `counters` and `descriptors`. */
struct luattn_kernel {
  cpu_append_pass *cpu_append;
  cpu_pass *cpu_run; /* not NULL: the CPU path computes, and everything except `info` is 0 */
  void *cpu_user;
  bool cpu_relaxed;
  luattn_driver *driver;
  int device;
  int multiprocessors;
  cu_context context;
  cu_pointer zero;               /* 8 bytes of zeros, if there are inputs; see args_call */
  counter_table *counters;       /* if the image draws tiles from a work counter */
  descriptor_cache *descriptors; /* sm90 family only */
  cu_module module[2];           /* of the main kernel, or of all; of the others, if they have a code of their own */
  cu_function function[MANIFEST_MAX_ENTRIES];
  luattn_kernel *pass[MANIFEST_MAX_PASSES]; /* of a backward with row passes */
  image_manifest info;
  luattn_function_info functions[MANIFEST_MAX_ENTRIES]; /* in the form of luattn_kernel_describe */
};

#endif
