/* kernel.c: loads an image's functions on a device. */
#include "runtime/device/kernel.h"

#include <stdlib.h>
#include <string.h>

#include "abi/image.h"
#include "abi/linear_params.h"
#include "common/host.h"
#include "runtime/device/arch.h"

#define KERNEL_FORMAT "'%s' (%s, %s_%u%s)"
#define KERNEL_VALUES(m) \
  (m)->spec_name, kernel_pass_name((m)->pass), (m)->is_ptx ? "compute" : "sm", (unsigned)(m)->arch, (m)->arch_suffix

static luattn_status check_device(luattn_driver *driver, int device, const image_manifest *m, luattn_error *err) {
  if (m->params_version != LUATTN_PARAMS_VERSION)
    return luattn_fail(err, LUATTN_IMAGE,
                       "luattn_kernel_load: " KERNEL_FORMAT
                       ": was built for parameter layout %u, this luattn (%s) has %d; compile it again",
                       KERNEL_VALUES(m), (unsigned)m->params_version, luattn_version(), LUATTN_PARAMS_VERSION);
  if (m->linear && m->params_bytes != sizeof(LuattnLinearParams))
    return luattn_fail(err, LUATTN_IMAGE,
                       "luattn_kernel_load: " KERNEL_FORMAT
                       ": takes %u bytes of parameters of linear attention, this luattn (%s) has %zu; compile it again",
                       KERNEL_VALUES(m), (unsigned)m->params_bytes, luattn_version(), sizeof(LuattnLinearParams));
  /* A kernel may take fewer bytes: the driver copies as many as it takes, from the first on. */
  if (!m->linear && m->params_bytes > sizeof(LuattnCallParams))
    return luattn_fail(err, LUATTN_IMAGE,
                       "luattn_kernel_load: " KERNEL_FORMAT
                       ": reads %u bytes of parameters, this luattn (%s) has %zu; use a later luattn, or "
                       "compile it again",
                       KERNEL_VALUES(m), (unsigned)m->params_bytes, luattn_version(), sizeof(LuattnCallParams));
  luattn_device_info info;
  TRY(luattn_device_get_info(driver, device, &info, err));
  if (arch_match((arch_code){m->arch, m->arch_suffix, m->is_ptx != 0}, info.arch) == 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "luattn_kernel_load: " KERNEL_FORMAT
                       ": does not run on device %d, %s (sm_%d); compile it for arch %d",
                       KERNEL_VALUES(m), device, info.name, info.arch, info.arch);
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].shared_bytes > (unsigned)info.shared_bytes_per_block)
      return luattn_fail(
          err, LUATTN_UNSUPPORTED,
          "luattn_kernel_load: " KERNEL_FORMAT
          ": %s needs %u bytes of shared memory, device %d, %s, has %d a block; compile with smaller tiles",
          KERNEL_VALUES(m), m->entry[i].name, (unsigned)m->entry[i].shared_bytes, device, info.name,
          info.shared_bytes_per_block);
  return LUATTN_OK;
}

static luattn_status load_module(luattn_kernel *k, int number, const void *code, luattn_error *err) {
  const luattn_driver *d = k->driver;
  const cu_result result = d->module_load(&k->module[number], code);
  if (result == 0) return LUATTN_OK;
  k->module[number] = NULL;
  return driver_fail(d, err, result, "cuModuleLoadData",
                     "loading " KERNEL_FORMAT
                     "; the driver supports CUDA %d.%d, and NVRTC must not be newer by a major version",
                     KERNEL_VALUES(&k->info), d->version / 1000, d->version % 1000 / 10);
}

static luattn_status load_functions(luattn_kernel *k, const void *code, luattn_error *err) {
  const luattn_driver *d = k->driver;
  const image_manifest *m = &k->info;
  TRY(load_module(k, 0, code, err));
  if (m->second_code > 0) TRY(load_module(k, 1, (const char *)code + m->second_code, err));
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const int number = m->second_code > 0 && !luattn_role_is_main(m->entry[i].role);
    cu_result result = d->module_function(&k->function[i], k->module[number], m->entry[i].name);
    if (result != 0)
      return driver_fail(d, err, result, "cuModuleGetFunction", "looking for %s in " KERNEL_FORMAT, m->entry[i].name,
                         KERNEL_VALUES(m));
    if (m->entry[i].shared_bytes == 0) continue;
    result = d->function_set(k->function[i], CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)m->entry[i].shared_bytes);
    if (result != 0)
      return driver_fail(d, err, result, "cuFuncSetAttribute",
                         "giving %s of " KERNEL_FORMAT " %u bytes of shared memory", m->entry[i].name, KERNEL_VALUES(m),
                         (unsigned)m->entry[i].shared_bytes);
  }
  return LUATTN_OK;
}

/* Waits for the memset, so that a launch on any stream may follow at once. */
static luattn_status alloc_zeros(const luattn_driver *d, size_t size, cu_pointer *out, luattn_error *err) {
  cu_result result = d->alloc(out, size);
  if (result != 0) {
    *out = 0;
    return driver_fail(d, err, result, "cuMemAlloc", "allocating %zu bytes", size);
  }
  result = d->fill_bytes(*out, 0, size, NULL);
  if (result != 0) return driver_fail(d, err, result, "cuMemsetD8Async", "zeroing %zu bytes", size);
  result = d->stream_wait(NULL);
  return result == 0 ? LUATTN_OK
                     : driver_fail(d, err, result, "cuStreamSynchronize", "waiting for %zu bytes of zeros", size);
}

/* Allocates the device memory that launches share. */
static luattn_status make_memory(luattn_kernel *k, luattn_error *err) {
  if (k->info.num_inputs > 0) TRY(alloc_zeros(k->driver, 8, &k->zero, err));
  const bool describes = manifest_traits(&k->info)->takes_descriptors;
  if (describes) k->descriptors = calloc(1, sizeof *k->descriptors);
  if (k->info.draws_tiles) k->counters = calloc(1, sizeof *k->counters);
  if ((describes && k->descriptors == NULL) || (k->info.draws_tiles && k->counters == NULL))
    return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_kernel_load: out of memory");
  if (k->counters == NULL) return LUATTN_OK;
  return alloc_zeros(k->driver, COUNTER_BYTES, &k->counters->counters, err);
}

static luattn_status load_pass(luattn_kernel *k, const luattn_image *image, int number, luattn_error *err) {
  luattn_image *pass = NULL;
  TRY(image_open_pass(image, number, &pass, err));
  const luattn_status status = luattn_kernel_load(k->driver, k->device, pass, &k->pass[number], err);
  luattn_image_free(pass);
  return status;
}

luattn_status luattn_kernel_load(luattn_driver *driver, int device, const luattn_image *image, luattn_kernel **kernel,
                                 luattn_error *err) {
  HOST_SCOPE;
  fail_clear(err);
  NEED(driver);
  NEED(image);
  NEED(kernel);
  const image_manifest *m = image_get_manifest(image);
  TRY(check_device(driver, device, m, err));
  luattn_kernel *k = calloc(1, sizeof *k);
  if (k == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "luattn_kernel_load: out of memory");
  k->driver = driver;
  k->device = device;
  k->info = *m;
  manifest_functions(&k->info, k->functions);
  luattn_device_info device_info;
  luattn_status status = luattn_device_get_info(driver, device, &device_info, err);
  if (status == LUATTN_OK) status = driver_context(driver, device, &k->context, err);
  if (status == LUATTN_OK) k->multiprocessors = device_info.multiprocessors;
  if (status == LUATTN_OK) status = driver_push(driver, k->context, err);
  if (status == LUATTN_OK) {
    size_t size;
    status = load_functions(k, luattn_image_cubin(image, &size), err);
    if (status == LUATTN_OK) status = make_memory(k, err);
    driver_pop(driver);
  }
  for (uint32_t i = 0; status == LUATTN_OK && m->row_passes && i < m->passes[0].count; ++i)
    status = load_pass(k, image, (int)i, err);
  if (status != LUATTN_OK) {
    luattn_kernel_unload(k);
    return status;
  }
  *kernel = k;
  return LUATTN_OK;
}

void luattn_kernel_unload(luattn_kernel *kernel) {
  if (kernel == NULL) return;
  for (int i = 0; i < MANIFEST_MAX_PASSES; ++i) luattn_kernel_unload(kernel->pass[i]);
  if (kernel->module[0] != NULL && driver_push(kernel->driver, kernel->context, NULL) == LUATTN_OK) {
    if (kernel->zero != 0) (void)kernel->driver->free(kernel->zero);
    if (kernel->counters != NULL && kernel->counters->counters != 0)
      (void)kernel->driver->free(kernel->counters->counters);
    for (int i = 0; i < 2; ++i)
      if (kernel->module[i] != NULL) (void)kernel->driver->module_unload(kernel->module[i]);
    driver_pop(kernel->driver);
  }
  free(kernel->counters);
  free(kernel->descriptors);
  free(kernel);
}

luattn_status luattn_kernel_describe(const luattn_kernel *kernel, luattn_kernel_description *description,
                                     luattn_error *err) {
  fail_clear(err);
  NEED(kernel);
  NEED(description);
  return manifest_describe(&kernel->info, kernel->functions, "luattn_kernel_describe", description, err);
}
