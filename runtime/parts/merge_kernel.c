#include "runtime/parts/merge_kernel.h"

#include <stdlib.h>

#include "runtime/device/driver.h"

enum { THREADS = 128 }; /* merge_parts_threads of templates/around/after/merge_parts.cuh */

struct merge_kernel {
  luattn_driver *driver;
  cu_context context;
  cu_module module;
  cu_function function;
};

static luattn_status load(merge_kernel *k, const void *cubin, const char *function, luattn_error *err) {
  const luattn_driver *d = k->driver;
  cu_result result = d->module_load(&k->module, cubin);
  if (result != 0) {
    k->module = NULL;
    return driver_fail(d, err, result, "cuModuleLoadData",
                       "loading %s; the driver supports CUDA %d.%d, and NVRTC must not be newer by a major version",
                       function, d->version / 1000, d->version % 1000 / 10);
  }
  result = d->module_function(&k->function, k->module, function);
  if (result != 0) return driver_fail(d, err, result, "cuModuleGetFunction", "looking for %s", function);
  return LUATTN_OK;
}

luattn_status merge_kernel_load(luattn_driver *driver, int device, const void *cubin, const char *function,
                                merge_kernel **kernel, luattn_error *err) {
  merge_kernel *k = calloc(1, sizeof *k);
  if (k == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", function);
  k->driver = driver;
  luattn_status status = driver_context(driver, device, &k->context, err);
  if (status == LUATTN_OK) status = driver_push(driver, k->context, err);
  if (status == LUATTN_OK) {
    status = load(k, cubin, function, err);
    driver_pop(driver);
  }
  if (status != LUATTN_OK) {
    merge_kernel_unload(k);
    return status;
  }
  *kernel = k;
  return LUATTN_OK;
}

void merge_kernel_unload(merge_kernel *kernel) {
  if (kernel == NULL) return;
  if (kernel->module != NULL && driver_push(kernel->driver, kernel->context, NULL) == LUATTN_OK) {
    (void)kernel->driver->module_unload(kernel->module);
    driver_pop(kernel->driver);
  }
  free(kernel);
}

const luattn_driver *merge_kernel_driver(const merge_kernel *kernel) { return kernel->driver; }

luattn_status merge_kernel_enter(const merge_kernel *kernel, luattn_error *err) {
  return driver_push(kernel->driver, kernel->context, err);
}

void merge_kernel_leave(const merge_kernel *kernel) { driver_pop(kernel->driver); }

int merge_kernel_start(const merge_kernel *kernel, unsigned blocks, unsigned threads, void **params, void *stream) {
  return (int)kernel->driver->launch(kernel->function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL);
}

luattn_status merge_kernel_fail(const merge_kernel *kernel, int result, const char *name, int rows, luattn_error *err) {
  return driver_fail(kernel->driver, err, (cu_result)result, "cuLaunchKernel", "launching %s for %d rows", name, rows);
}

luattn_status merge_kernel_launch(const merge_kernel *kernel, const merge_call *call, void *stream, luattn_error *err) {
  LuattnMergeParams p = call->params;
  void *params[] = {&p};
  const int each = THREADS / p.lanes;
  TRY(merge_kernel_enter(kernel, err));
  const int result = merge_kernel_start(kernel, (unsigned)((p.rows - 1) / each + 1), THREADS, params, stream);
  merge_kernel_leave(kernel);
  return result == 0 ? LUATTN_OK : merge_kernel_fail(kernel, result, "luattn_merge", p.rows, err);
}
