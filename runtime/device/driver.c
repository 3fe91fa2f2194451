#include "runtime/device/driver.h"
#include "common/host.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_WAY_OUT "install NVIDIA's driver, or use the CPU path (luattn_cpu_forward, or --device cpu)"

luattn_status driver_fail(const luattn_driver *d, luattn_error *err, cu_result result, const char *call,
                          const char *doing, ...) {
  const luattn_status status = result == CU_OUT_OF_MEMORY ? LUATTN_NO_MEMORY : LUATTN_CUDA;
  if (err == NULL) return status;
  const char *name = NULL;
  if (d->get_error_name(result, &name) != 0 || name == NULL) name = "unknown error";
  char subject[512];
  va_list args;
  va_start(args, doing);
  vsnprintf(subject, sizeof subject, doing, args);
  va_end(args);
  return luattn_fail(err, status, "%s: %s (%d): %s", call, name, result, subject);
}

/* ISO C has no cast from void * to a function pointer; POSIX says that they are represented alike. */
static luattn_status load_functions(luattn_driver *d, const char *path, luattn_error *err) {
#define DRIVER_LOAD(name, symbol, params)                                                    \
  {                                                                                          \
    void *address = dlsym(d->library, symbol);                                               \
    if (address == NULL)                                                                     \
      return luattn_fail(err, LUATTN_CUDA,                                                   \
                         "luattn_driver_open: %s: has no %s; it is too old or not libcuda, " \
                         "update NVIDIA's driver",                                           \
                         path, symbol);                                                      \
    memcpy(&d->name, &address, sizeof address);                                              \
  }
  DRIVER_FUNCTIONS(DRIVER_LOAD)
#undef DRIVER_LOAD
#define DRIVER_TRY(name, symbol, params)        \
  {                                             \
    void *address = dlsym(d->library, symbol);  \
    memcpy(&d->name, &address, sizeof address); \
  }
  DRIVER_OPTIONAL(DRIVER_TRY)
#undef DRIVER_TRY
  return LUATTN_OK;
}

static luattn_status start_driver(luattn_driver *d, luattn_error *err) {
  cu_result result = d->init(0);
  if (result != 0) return driver_fail(d, err, result, "cuInit", "no usable device; " CPU_WAY_OUT);
  result = d->driver_version(&d->version);
  if (result != 0) return driver_fail(d, err, result, "cuDriverGetVersion", "reading the driver's version");
  result = d->device_count(&d->num_devices);
  if (result != 0) return driver_fail(d, err, result, "cuDeviceGetCount", "counting devices");
  if (d->num_devices <= 0)
    return luattn_fail(err, LUATTN_CUDA, "cuDeviceGetCount: there is no CUDA device; " CPU_WAY_OUT);
  if (d->num_devices > DRIVER_MAX_DEVICES) d->num_devices = DRIVER_MAX_DEVICES;
  return LUATTN_OK;
}

/* RTLD_NODELETE: libcuda has its own threads and exit handlers, and crashes if it is unmapped. */
static luattn_status open_library(luattn_driver *d, const char **path, luattn_error *err) {
  *path = getenv("LUATTN_LIBCUDA");
  const int chosen = *path != NULL && **path != '\0';
  if (!chosen) *path = "libcuda.so.1";
  d->library = dlopen(*path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (d->library != NULL) return LUATTN_OK;
  const char *why = dlerror();
  return luattn_fail(err, LUATTN_CUDA, "luattn_driver_open: cannot load libcuda, tried '%s'%s: %s; " CPU_WAY_OUT, *path,
                     chosen ? " (LUATTN_LIBCUDA)" : " (LUATTN_LIBCUDA names another)",
                     why != NULL ? why : "unknown reason");
}

luattn_status luattn_driver_open(luattn_driver **driver, luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(driver);
  luattn_driver *d = calloc(1, sizeof *d);
  if (d == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_driver_open: out of memory");
  if (pthread_mutex_init(&d->lock, NULL) != 0) {
    free(d);
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_driver_open: cannot create a mutex");
  }
  const char *path;
  luattn_status status = open_library(d, &path, err);
  if (status == LUATTN_OK) status = load_functions(d, path, err);
  if (status == LUATTN_OK) status = start_driver(d, err);
  if (status != LUATTN_OK) {
    luattn_driver_close(d);
    return status;
  }
  *driver = d;
  return LUATTN_OK;
}

void luattn_driver_close(luattn_driver *driver) {
  if (driver == NULL) return;
  for (int i = 0; i < driver->num_devices; ++i) {
    cu_device device;
    if (driver->context[i] != NULL && driver->device_get(&device, i) == 0) (void)driver->context_release(device);
  }
  pthread_mutex_destroy(&driver->lock);
  if (driver->library != NULL) dlclose(driver->library);
  free(driver);
}

static luattn_status get_device(const luattn_driver *d, int ordinal, cu_device *device, luattn_error *err) {
  if (ordinal < 0 || ordinal >= d->num_devices)
    return luattn_fail(err, LUATTN_INVALID, "device %d: there is no such device; this machine has %d, numbered from 0",
                       ordinal, d->num_devices);
  const cu_result result = d->device_get(device, ordinal);
  return result == 0 ? LUATTN_OK : driver_fail(d, err, result, "cuDeviceGet", "opening device %d", ordinal);
}

luattn_status driver_context(luattn_driver *d, int device, cu_context *context, luattn_error *err) {
  cu_device handle;
  TRY(get_device(d, device, &handle, err));
  pthread_mutex_lock(&d->lock);
  cu_result result = 0;
  if (d->context[device] == NULL) result = d->context_retain(&d->context[device], handle);
  if (result != 0) d->context[device] = NULL;
  *context = d->context[device];
  pthread_mutex_unlock(&d->lock);
  if (result != 0)
    return driver_fail(d, err, result, "cuDevicePrimaryCtxRetain", "opening the primary context of device %d", device);
  return LUATTN_OK;
}

luattn_status driver_push(const luattn_driver *d, cu_context context, luattn_error *err) {
  const cu_result result = d->context_push(context);
  if (result == 0) return LUATTN_OK;
  return driver_fail(d, err, result, "cuCtxPushCurrent", "making the primary context current");
}

void driver_pop(const luattn_driver *d) {
  cu_context popped;
  (void)d->context_pop(&popped); /* it fails only where push would have failed */
}

luattn_status driver_enter(luattn_driver *d, int device, luattn_error *err) {
  cu_context context;
  TRY(driver_context(d, device, &context, err));
  return driver_push(d, context, err);
}

luattn_status luattn_device_count(luattn_driver *driver, int *count, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  NEED(count);
  *count = driver->num_devices; /* counted when the driver was opened */
  return LUATTN_OK;
}

luattn_status luattn_driver_version(luattn_driver *driver, int *version, luattn_error *err) {
  fail_clear(err);
  NEED(driver);
  NEED(version);
  *version = driver->version;
  return LUATTN_OK;
}

luattn_status luattn_device_get_info(luattn_driver *driver, int device, luattn_device_info *info, luattn_error *err) {
  luattn_device_info out = {.arch = 0};
  cu_device handle;
  fail_clear(err);
  NEED(driver);
  NEED(info);
  TRY(get_device(driver, device, &handle, err));
  int major = 0, minor = 0;
  const struct {
    int attribute;
    int *value;
  } query[] = {
      {CU_DEVICE_MAJOR, &major},
      {CU_DEVICE_MINOR, &minor},
      {CU_DEVICE_MULTIPROCESSORS, &out.multiprocessors},
      {CU_DEVICE_SHARED_OPTIN, &out.shared_bytes_per_block},
  };
  for (size_t i = 0; i < sizeof query / sizeof *query; ++i) {
    const cu_result result = driver->device_attribute(query[i].value, query[i].attribute, handle);
    if (result != 0)
      return driver_fail(driver, err, result, "cuDeviceGetAttribute", "attribute %d of device %d", query[i].attribute,
                         device);
  }
  cu_result result = driver->device_name(out.name, (int)sizeof out.name, handle);
  if (result != 0) return driver_fail(driver, err, result, "cuDeviceGetName", "name of device %d", device);
  result = driver->device_memory(&out.memory, handle);
  if (result != 0) return driver_fail(driver, err, result, "cuDeviceTotalMem", "memory of device %d", device);
  out.arch = 10 * major + minor;
  *info = out;
  return LUATTN_OK;
}
