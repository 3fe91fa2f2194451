#include "runtime/device/launch_entry.h"

/* From this libcuda on a stream that is being captured takes early launches, too. */
enum { CAPTURES_EARLY = 12030 };

/* Whether an entry waits for the one before itself, and so may be launched while that runs. */
static bool is_early(const luattn_kernel *k, uint32_t i) {
  const manifest_entry *e = &k->info.entry[i];
  const bool waits =
      k->info.linear ? (k->info.linear_facts[0].early >> i & 1) != 0 : e->role == LUATTN_ROLE_MERGE && e->tile_n > 1;
  return waits && k->driver->version >= CAPTURES_EARLY;
}

/* With libcuda of CUDA 11.8 and newer, cuLaunchKernelEx takes 0.1 us less, and there are attributes. */
static cu_result launch(const luattn_kernel *k, uint32_t i, unsigned threads, unsigned shared_bytes,
                        const unsigned grid[3], cu_stream stream, void **pointers) {
  const luattn_driver *d = k->driver;
  cu_function f = k->function[i];
  static const cu_attribute early = {CU_LAUNCH_EARLY, 0, {1}};
  const unsigned attributes = is_early(k, i);
  const cu_launch how = {{grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared_bytes, stream,
                         attributes ? &early : NULL,  attributes};
  if (d->launch_ex != NULL) return d->launch_ex(&how, f, pointers, NULL);
  return d->launch(f, grid[0], grid[1], grid[2], threads, 1, 1, shared_bytes, stream, pointers, NULL);
}

static luattn_status launch_with(const luattn_kernel *k, uint32_t i, unsigned threads, unsigned shared_bytes,
                                 void **pointers, const unsigned grid[3], cu_stream stream, luattn_error *err) {
  const manifest_entry *e = &k->info.entry[i];
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return LUATTN_OK;
  const cu_result result = launch(k, i, threads, shared_bytes, grid, stream, pointers);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, k->driver->launch_ex != NULL ? "cuLaunchKernelEx" : "cuLaunchKernel",
                     "%s of '%s', grid %u x %u x %u, %u threads, %u bytes of shared memory", e->name, k->info.spec_name,
                     grid[0], grid[1], grid[2], threads, shared_bytes);
}

luattn_status launch_entry(const luattn_kernel *k, uint32_t i, void *params, void *maps, const unsigned grid[3],
                           cu_stream stream, luattn_error *err) {
  void *pointers[] = {params, maps}; /* an entry takes a prefix of the first, and may lack the second */
  return launch_with(k, i, k->info.entry[i].threads, k->info.entry[i].shared_bytes, pointers, grid, stream, err);
}

luattn_status launch_threads(const luattn_kernel *k, uint32_t i, unsigned threads, unsigned shared_bytes, void *params,
                             const unsigned grid[3], cu_stream stream, luattn_error *err) {
  void *pointers[] = {params};
  return launch_with(k, i, threads, shared_bytes, pointers, grid, stream, err);
}

luattn_status launch_zero(const luattn_kernel *k, void *ptr, size_t size, const char *what, cu_stream stream,
                          luattn_error *err) {
  if (ptr == NULL || size == 0) return LUATTN_OK;
  const cu_result result = k->driver->fill_words((cu_pointer)(uintptr_t)ptr, 0, size / 4, stream);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, "cuMemsetD32Async", "zeroing %s (%zu bytes at %p)", what, size, ptr);
}
