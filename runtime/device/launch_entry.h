/* launch_entry.h: launches one entry of a kernel, and zeroes memory ahead of one. The device's context is current. */
#ifndef LUATTN_RUNTIME_LAUNCH_ENTRY_H
#define LUATTN_RUNTIME_LAUNCH_ENTRY_H

#include "runtime/device/kernel.h"

/* Launches entry number `i`, which takes a prefix of *params, and may take `maps` (NULL: it does not); nothing where a
 * size of the grid is 0. Errors: LUATTN_CUDA. */
luattn_status launch_entry(const luattn_kernel *k, uint32_t i, void *params, void *maps, const unsigned grid[3],
                           cu_stream stream, luattn_error *err);

/* Likewise an entry that takes *params alone, with blocks of as many threads, and as much shared memory, as the manifest
 * says, or fewer. */
luattn_status launch_threads(const luattn_kernel *k, uint32_t i, unsigned threads, unsigned shared_bytes, void *params,
                             const unsigned grid[3], cu_stream stream, luattn_error *err);

/* Zeroes `size` bytes, a multiple of 4; messages name them `what`. Errors: LUATTN_CUDA. */
luattn_status launch_zero(const luattn_kernel *k, void *ptr, size_t size, const char *what, cu_stream stream,
                          luattn_error *err);

#endif
