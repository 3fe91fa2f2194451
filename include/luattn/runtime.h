/* runtime.h: loads images and launches their kernels. Needs neither Lua nor NVRTC; libcuda is loaded at run
 * time.
 *
 * Thread safety: a luattn_kernel may be launched from many threads on many streams. Launching allocates nothing, never
 * synchronises, and may be captured into a CUDA graph. luattn/engine.h says what differs on the CPU
 * (LUATTN_CPU). */
#ifndef LUATTN_RUNTIME_H
#define LUATTN_RUNTIME_H

#include "luattn/image.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct luattn_driver luattn_driver; /* libcuda's functions */
typedef struct luattn_kernel luattn_kernel; /* an image on a device */

/* Opens libcuda: LUATTN_LIBCUDA if set, else libcuda.so.1. Errors: LUATTN_CUDA (not found, too old, no device; the
 * message lists the tried paths). */
LUATTN_API luattn_status luattn_driver_open(luattn_driver **driver, luattn_error *err);
LUATTN_API void luattn_driver_close(luattn_driver *driver); /* close everything that was opened with it first; NULL is
                                                             * fine */

/* The driver's CUDA version: 1000 * major + 10 * minor. */
LUATTN_API luattn_status luattn_driver_version(luattn_driver *driver, int *version, luattn_error *err);

typedef struct luattn_device_info {
  char name[128];
  int arch; /* 10 * major + minor */
  int multiprocessors, shared_bytes_per_block;
  size_t memory;
} luattn_device_info;
LUATTN_API luattn_status luattn_device_count(luattn_driver *driver, int *count, luattn_error *err);
LUATTN_API luattn_status luattn_device_get_info(luattn_driver *driver, int device, luattn_device_info *info,
                                                luattn_error *err);

/* Device memory and time, for programs that do not use the CUDA runtime API. Everything lives in the device's primary
 * context, so pointers are interchangeable with cudaMalloc's. Errors: LUATTN_NO_MEMORY (the device's), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_device_alloc(luattn_driver *driver, int device, size_t size, void **ptr,
                                             luattn_error *err);
LUATTN_API luattn_status luattn_device_free(luattn_driver *driver, int device, void *ptr,
                                            luattn_error *err); /* NULL is fine */
/* Sets every byte on `stream`; does not wait. */
LUATTN_API luattn_status luattn_device_fill(luattn_driver *driver, int device, void *ptr, unsigned char byte,
                                            size_t size, void *stream, luattn_error *err);
/* Ordered with the default stream; the copy is complete on return. */
LUATTN_API luattn_status luattn_copy_to_device(luattn_driver *driver, int device, void *dst, const void *src,
                                               size_t size, luattn_error *err);
LUATTN_API luattn_status luattn_copy_to_host(luattn_driver *driver, int device, void *dst, const void *src, size_t size,
                                             luattn_error *err);
/* Waits for `stream`; reports the first fault of a kernel on it. */
LUATTN_API luattn_status luattn_synchronize(luattn_driver *driver, int device, void *stream, luattn_error *err);

/* Measures the time between start and stop on a stream with two device events. Not thread safe. Close it before the
 * driver. */
typedef struct luattn_timer luattn_timer;
LUATTN_API luattn_status luattn_timer_open(luattn_driver *driver, int device, luattn_timer **timer, luattn_error *err);
LUATTN_API void luattn_timer_close(luattn_timer *timer); /* NULL is fine */
LUATTN_API luattn_status luattn_timer_start(luattn_timer *timer, void *stream, luattn_error *err);
LUATTN_API luattn_status luattn_timer_stop(luattn_timer *timer, void *stream, luattn_error *err);
/* Waits for stop; *ms is the time in milliseconds. */
LUATTN_API luattn_status luattn_timer_read(luattn_timer *timer, double *ms, luattn_error *err);

/* Loads an image into the primary context of `device` (which the CUDA runtime API and frameworks share). The image may
 * be freed afterwards. The driver must outlive the kernel. May allocate 41 KB of device memory and wait for the default
 * stream, so load before capturing a graph. */
LUATTN_API luattn_status luattn_kernel_load(luattn_driver *driver, int device, const luattn_image *image,
                                            luattn_kernel **kernel, luattn_error *err);
LUATTN_API void luattn_kernel_unload(luattn_kernel *kernel); /* NULL is fine */
/* Describes what the kernel computes, and how. Set only description->struct_size before the call. Errors:
 * LUATTN_INVALID. */
LUATTN_API luattn_status luattn_kernel_describe(const luattn_kernel *kernel, luattn_kernel_description *description,
                                                luattn_error *err);

/* Returns the bytes of device workspace for these arguments; the result may be 0. Reads only q, k, v and the inputs
 * (whose data pointers may be NULL), scalars, scale, num_splits and skip. A workspace needs no initialisation, and a
 * program may use any number of them. If forward has a tile scheduler (luattn_kernel_description.draws_tiles), its
 * kernel owns work counters for about 1000 workspaces, and for about 250 streams, which serve launches with further
 * workspaces. A launch for which neither is left uses a counter in its workspace and zeroes it first; so does one with
 * a further workspace that is captured into a CUDA graph, runs on the per-thread default stream, or runs under a driver
 * before CUDA 12.0. */
LUATTN_API luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                               luattn_error *err);

/* Checks the arguments and launches the pass on `stream` (a CUstream or cudaStream_t; NULL is the default stream).
 * Backward needs exactly the gradients that the image computes (luattn_kernel_description.wants), except that any
 * input's grad and scalar_grads may be NULL. The caller's current context is restored. Errors: LUATTN_INVALID (message
 * names the tensor), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_launch(const luattn_kernel *kernel, const luattn_args *args, void *stream,
                                       luattn_error *err);

/* Forward, and the tangents of o and lse along args->tangents (luattn_tangents), as luattn_cpu_forward_jvp computes them.
 * Tangents have the types, and the requirements on strides and alignments, of what they belong to. On a GPU
 * the kernel is one of luattn_target.tangents, and they are given of all that it says, and of nothing else;
 * luattn_workspace_size, with such a kernel and without tangents in the arguments, has the size of the workspace.
 * With a kernel of backward: what luattn_cpu_backward_jvp computes.
 * Errors: LUATTN_UNSUPPORTED (keys in pages, keys_modified, large_scores, append, and skip and decode with _ALWAYS),
 * LUATTN_INVALID (another kernel; message names the tensor), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_launch_jvp(const luattn_kernel *kernel, const luattn_args *args, void *stream,
                                           luattn_error *err);

/* The weights of V for the same arguments, by a kernel of luattn_target.weights: float32 (float64 for float64 kernels)
 * [batch, heads, q_len, kv_len], packed [sequences, heads, the longest q_len, the longest kv_len], of any strides with
 * a contiguous last axis, on the device, overlapping no other tensor of the call. They are those without dropout, times
 * -1 where dropout drops them, and 0 where the mask does and past a sequence's ends: for tests and pictures, as
 * FlashAttention's return_softmax. Of args, o, lse and saved are neither read nor written, and may be NULL.
 * luattn_workspace_size, with such a kernel, has the size of the workspace. May be captured into a CUDA graph. Errors:
 * LUATTN_INVALID (another kernel; message names the tensor), LUATTN_CUDA. */
LUATTN_API luattn_status luattn_launch_weights(const luattn_kernel *kernel, const luattn_args *args,
                                               const DLTensor *weights, void *stream, luattn_error *err);

#ifdef __cplusplus
}
#endif
#endif
