/* runtime.h: from an image to a launch. Needs neither Lua nor NVRTC; libcuda is loaded at run time.
 *
 * Thread safety: a luattn_kernel is immutable and may be launched from many threads on many streams. Launching allocates
 * nothing, never synchronises, and may be captured into a CUDA graph.
 */
#ifndef LUATTN_RUNTIME_H
#define LUATTN_RUNTIME_H

#include "luattn/image.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_driver luattn_driver; /* libcuda's functions */
typedef struct luattn_kernel luattn_kernel; /* an image on a device */

/* Opens libcuda. Errors: LUATTN_CUDA (not found, too old, no device; the message says what was tried). */
LUATTN_API luattn_status luattn_driver_open(luattn_driver **driver, luattn_error *err);
LUATTN_API void luattn_driver_close(luattn_driver *driver);

typedef struct luattn_device_info {
  char name[128];
  int arch; /* 10 * major + minor */
  int multiprocessors, shared_bytes_per_block;
  size_t memory;
} luattn_device_info;
LUATTN_API luattn_status luattn_device_count(luattn_driver *driver, int *count, luattn_error *err);
LUATTN_API luattn_status luattn_device_get_info(luattn_driver *driver, int device, luattn_device_info *info,
                                                luattn_error *err);

/* Loads an image for `device` in its primary context (which the CUDA runtime API and frameworks share). Copies what it needs
 * of the image. The driver must outlive the kernel. */
LUATTN_API luattn_status luattn_kernel_load(luattn_driver *driver, int device, const luattn_image *image,
                                            luattn_kernel **kernel, luattn_error *err);
LUATTN_API void luattn_kernel_unload(luattn_kernel *kernel);
LUATTN_API const luattn_image_info *luattn_kernel_get_info(const luattn_kernel *kernel);

/* Bytes of device workspace for these arguments (data pointers may be NULL). 0 is a possible answer. */
LUATTN_API luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                               luattn_error *err);

/* Checks the arguments and launches the pass on `stream` (a CUstream or cudaStream_t; NULL is the default stream).
 * Errors: LUATTN_INVALID (message names the tensor), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_launch(const luattn_kernel *kernel, const luattn_args *args, void *stream, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
