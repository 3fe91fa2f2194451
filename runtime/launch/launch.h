/* launch.h: launches the entries of an image, with the workspace of workspace_layout.h and the grids of launch_grids.h. */
#ifndef LUATTN_RUNTIME_LAUNCH_H
#define LUATTN_RUNTIME_LAUNCH_H

#include "runtime/call/args.h"
#include "runtime/launch/cpu_kernel.h"
#include "runtime/device/driver.h"
#include "runtime/launch/tma_descriptors.h"
#include "runtime/device/work_counters.h"

/* A kernel on a device. It never changes; what launches learn is behind `counters` and `descriptors`. */
struct luattn_kernel {
  cpu_append_pass *cpu_append;
  cpu_pass *cpu_run; /* not NULL: the CPU path computes, and everything except `info` is 0 */
  void *cpu_user;
  bool cpu_relaxed;
  luattn_driver *driver;
  int device;
  int multiprocessors;
  cu_context context;
  cu_pointer zero;       /* 8 bytes of zeros, if there are inputs; see args_call */
  counter_table *counters; /* if the image draws tiles from a work counter */
  descriptor_cache *descriptors;      /* sm90 family only */
  cu_module module[2]; /* of the main kernel, or of all; of the others, if they have a code of their own */
  cu_function function[MANIFEST_MAX_ENTRIES];
  image_manifest info;
  luattn_function_info functions[MANIFEST_MAX_ENTRIES]; /* in the form of luattn_kernel_describe */
};

/* Evaluates a mask from data into params->bits, after minima of what it reads, which go where workspace_place_stats puts them, and
 * writes all orders of a batch to params->tile_order.tiles, if that is not NULL. The device's context is current. Errors: LUATTN_INVALID (a limit of the device), LUATTN_CUDA. */
luattn_status launch_tile_bits(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream);

/* Sorts packed sequences into params->table. The device's context is current. Errors: LUATTN_INTERNAL (the image has no such function),
 * LUATTN_CUDA. */
luattn_status launch_tile_table(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream);

/* Lists the blocks of a decode kernel in params->list. The device's context is current. Errors: LUATTN_INTERNAL (the image has no such
 * function), LUATTN_CUDA. */
luattn_status launch_split_list(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream);

/* Writes a table of blocks. The device's context is current. Errors: LUATTN_INVALID (a limit of the device; the image has no such
 * function), LUATTN_CUDA. */
luattn_status launch_block_table(const luattn_kernel *kernel, const args_call *c, LuattnBlockTable *params, const int64_t size[3],
                                 cu_stream stream);

/* Writes rows to a cache. The device's context is current. Errors: LUATTN_INVALID (a limit of the device), LUATTN_INTERNAL (the image
 * has no such function), LUATTN_CUDA. */
luattn_status launch_append(const luattn_kernel *kernel, const args_call *c, LuattnCallParams *params, cu_stream stream);

/* append.c: writes the new rows of a call's `append`, if it has any. Errors: LUATTN_INVALID, LUATTN_CUDA. */
luattn_status append_first(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err);

/* What the checks of a call to a kernel on a device share; `used` as choices_take returned it. */
args_call launch_call(const luattn_kernel *kernel, const luattn_args *used, bool shapes_only, luattn_error *err);

/* "forward" or "backward", as messages about a call begin. */
const char *launch_place(const luattn_kernel *kernel);

/* cpu_kernel.c: luattn_launch and luattn_workspace_size of such a kernel. */
luattn_status cpu_kernel_launch(const luattn_kernel *kernel, const luattn_args *args, const DLTensor *weights, const void *stream,
                                luattn_error *err);
luattn_status cpu_kernel_workspace(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                   luattn_error *err);

#endif
