/* launch_kernel.h: the steps of a launch of one kernel on a device, without row passes ahead of it. */
#ifndef LUATTN_RUNTIME_LAUNCH_KERNEL_H
#define LUATTN_RUNTIME_LAUNCH_KERNEL_H

#include "runtime/parts/part.h"

/* What a launch needs from its first step to its last. */
typedef struct kernel_launch {
  const luattn_kernel *kernel;
  args_call c;
  const DLTensor *weights; /* NULL: the kernel does not write them */
  prepared p;
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  union {
    LuattnPagedMaps maps;           /* other kernels take the first part, but */
    LuattnTangentMaps tangent_maps; /* those with tangents */
  };
} kernel_launch;

/* Fills everything that kernels take, from arguments of this version, and lays out the workspace: with shapes_only only
 * measures it, as l->p.room.used. Errors: LUATTN_INVALID. */
luattn_status kernel_launch_fill(kernel_launch *l, const luattn_kernel *kernel, const luattn_args *used,
                                 const DLTensor *weights, bool shapes_only, luattn_error *err);

/* Makes all checks that come before the first operation on the stream, but those of descriptors. Errors:
 * LUATTN_INVALID, .. */
luattn_status kernel_launch_check(kernel_launch *l, cu_stream stream);

/* In the device's context: fills the descriptors; then starts what is prepared, in the order of the stream. */
luattn_status kernel_launch_describe(kernel_launch *l);
luattn_status kernel_launch_start(kernel_launch *l, cu_stream stream);

#endif
