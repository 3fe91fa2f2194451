/* tma_descriptors.h: TMA descriptors of q, k, v and o (backward: dout), and a cache of encoded ones. Tensors of the same
 * sizes and strides differ only in the address, which libcuda replaces in a fifth of the time that encoding
 * takes. */
#ifndef LUATTN_RUNTIME_TMA_DESCRIPTORS_H
#define LUATTN_RUNTIME_TMA_DESCRIPTORS_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/call/args.h"
#include "runtime/device/driver.h"
#include "abi/params.h"

enum {
  DESCRIPTOR_ENTRIES = 512,
  DESCRIPTOR_WINDOW = 8, /* length of the probe window */
  DESCRIPTOR_KEY_WORDS = 6,
  DESCRIPTOR_WORDS = sizeof(LuattnTensorMap) / 8
};

/* A cache entry, written by one thread at a time and read by any number without waiting (a seqlock):
 * `version` is odd while the rest is being written, and 0 before the first write. A read is consistent if
 * `version` is the same before and after it. */
typedef struct cached_descriptor {
  _Atomic(uint64_t) version, key[DESCRIPTOR_KEY_WORDS], address, words[DESCRIPTOR_WORDS];
} cached_descriptor;

/* The cache of one kernel, so that the dtype is in no key. Starts as all zeros. */
typedef struct descriptor_cache {
  cached_descriptor entry[DESCRIPTOR_ENTRIES];
  atomic_uint turn; /* which entry of a full window is replaced next */
} descriptor_cache;

/* Encodes or recalls descriptors of the q, k, v and o (or dout) that *p names, with the boxes of params.h.
 * Uses no device, but libcuda needs a current context. Any number of threads may share `cache`. Errors:
 * LUATTN_UNSUPPORTED (libcuda older than CUDA 12), LUATTN_INVALID (a stride that no descriptor can hold). */
luattn_status descriptors_fill(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                        const LuattnCallParams *all, const LuattnPaging *paging, LuattnTensorMaps *out);

/* Adds those of whole pages, after descriptors_fill; zeros where `paging` has no steps. */
luattn_status descriptors_fill_pages(const luattn_driver *d, descriptor_cache *cache, const args_call *c, const LuattnParams *p,
                                     const LuattnPaging *paging, LuattnPagedMaps *out);

#endif
