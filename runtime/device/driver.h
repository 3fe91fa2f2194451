/* driver.h: libcuda's functions, loaded at run time. Declares the part of the CUDA driver API that luattn
 * calls, so that a build needs no CUDA header. */
#ifndef LUATTN_RUNTIME_DRIVER_H
#define LUATTN_RUNTIME_DRIVER_H

#include <pthread.h>

#include "common/fail.h"
#include "luattn/runtime.h"

typedef int cu_result; /* CUresult; 0 is success */
typedef int cu_device;
typedef unsigned long long cu_pointer; /* CUdeviceptr */
typedef unsigned long long cu_size;    /* cuuint64_t */
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_stream_object *cu_stream;
typedef struct cu_event_object *cu_event;

/* CUlaunchAttribute. */
typedef struct cu_attribute {
  unsigned id, unused, value[16];
} cu_attribute;

/* CUlaunchConfig. */
typedef struct cu_launch {
  unsigned grid[3], block[3], shared_bytes;
  cu_stream stream;
  const cu_attribute *attributes;
  unsigned num_attributes;
} cu_launch;

/* Values of cuda.h, which never change: they are the driver's binary interface. */
enum {
  CU_INVALID_VALUE = 1,
  CU_OUT_OF_MEMORY = 2,
  CU_LAUNCH_EARLY = 6, /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION; its value is 1 */
  CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  CU_DEVICE_MULTIPROCESSORS = 16,
  CU_DEVICE_MAJOR = 75,
  CU_DEVICE_MINOR = 76,
  CU_DEVICE_SHARED_OPTIN = 97
};

/* One row a function: member, symbol, parameters. */
#define DRIVER_FUNCTIONS(X)                                                                                         \
  X(get_error_name, "cuGetErrorName", (cu_result result, const char **name))                                        \
  X(init, "cuInit", (unsigned flags))                                                                               \
  X(driver_version, "cuDriverGetVersion", (int *version))                                                           \
  X(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                                                   \
  X(device_count, "cuDeviceGetCount", (int *count))                                                                 \
  X(device_name, "cuDeviceGetName", (char *name, int size, cu_device device))                                       \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t *bytes, cu_device device))                                        \
  X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cu_device device))                        \
  X(context_retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))                           \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                                            \
  X(context_push, "cuCtxPushCurrent_v2", (cu_context context))                                                      \
  X(context_pop, "cuCtxPopCurrent_v2", (cu_context * context))                                                      \
  X(module_load, "cuModuleLoadData", (cu_module * module, const void *image))                                       \
  X(module_unload, "cuModuleUnload", (cu_module module))                                                            \
  X(module_function, "cuModuleGetFunction", (cu_function * f, cu_module module, const char *name))                  \
  X(function_set, "cuFuncSetAttribute", (cu_function f, int attribute, int value))                                  \
  X(launch, "cuLaunchKernel",                                                                                       \
    (cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,          \
     unsigned block_z, unsigned shared_bytes, cu_stream stream, void **params, void **extra))                       \
  X(fill_words, "cuMemsetD32Async", (cu_pointer ptr, unsigned value, size_t count, cu_stream stream))               \
  X(fill_bytes, "cuMemsetD8Async", (cu_pointer ptr, unsigned char value, size_t count, cu_stream stream))           \
  X(alloc, "cuMemAlloc_v2", (cu_pointer * ptr, size_t size))                                                        \
  X(free, "cuMemFree_v2", (cu_pointer ptr))                                                                         \
  X(copy_to_device, "cuMemcpyHtoD_v2", (cu_pointer dst, const void *src, size_t size))                              \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2", (cu_pointer dst, const void *src, size_t size, cu_stream stream)) \
  X(copy_to_host, "cuMemcpyDtoH_v2", (void *dst, cu_pointer src, size_t size))                                      \
  X(stream_wait, "cuStreamSynchronize", (cu_stream stream))                                                         \
  X(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                                              \
  X(event_destroy, "cuEventDestroy_v2", (cu_event event))                                                           \
  X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                                              \
  X(event_wait, "cuEventSynchronize", (cu_event event))                                                             \
  X(stream_follow, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))                         \
  X(event_elapsed, "cuEventElapsedTime", (float *ms, cu_event start, cu_event stop))

/* Functions that older drivers lack: NULL there. */
#define DRIVER_OPTIONAL(X)                                                                                            \
  X(launch_ex, "cuLaunchKernelEx", (const cu_launch *config, cu_function f, void **params, void **extra))             \
  X(encode_tiled, "cuTensorMapEncodeTiled",                                                                           \
    (void *map, int type, unsigned rank, void *data, const cu_size *size, const cu_size *stride, const unsigned *box, \
     const unsigned *step, int interleave, int swizzle, int promotion, int outside))                                  \
  X(stream_is_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status))                                      \
  X(stream_id, "cuStreamGetId", (cu_stream stream, unsigned long long *id))                                           \
  X(replace_address, "cuTensorMapReplaceAddress", (void *map, void *data))

#define DRIVER_MAX_DEVICES 64

struct luattn_driver {
  void *library;
  int version; /* 1000 * major + 10 * minor, as cuDriverGetVersion gives it */
  int num_devices;
  pthread_mutex_t lock;                   /* guards `context` */
  cu_context context[DRIVER_MAX_DEVICES]; /* primary contexts, retained when first used, released on close */
#define DRIVER_MEMBER(name, symbol, params) cu_result(*name) params;
  DRIVER_FUNCTIONS(DRIVER_MEMBER)
  DRIVER_OPTIONAL(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

/* Reports that `call` failed with `result`. The message names the call, the driver's name for the result, and
 * the call's purpose. */
luattn_status driver_fail(const luattn_driver *d, luattn_error *err, cu_result result, const char *call,
                          const char *doing, ...) __attribute__((format(printf, 5, 6)));

/* The device's primary context. */
luattn_status driver_context(luattn_driver *d, int device, cu_context *context, luattn_error *err);

/* Between push and pop the primary context is current; afterwards it is the caller's again. */
luattn_status driver_push(const luattn_driver *d, cu_context context, luattn_error *err);
void driver_pop(const luattn_driver *d);

luattn_status driver_enter(luattn_driver *d, int device, luattn_error *err); /* driver_context, driver_push */

#endif
