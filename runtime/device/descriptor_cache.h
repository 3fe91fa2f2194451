/* descriptor_cache.h: a cache of encoded TMA descriptors. Tensors of the same sizes and strides differ only in the
 * address, which libcuda replaces in a fifth of the time that encoding takes. */
#ifndef LUATTN_RUNTIME_DESCRIPTOR_CACHE_H
#define LUATTN_RUNTIME_DESCRIPTOR_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi/params.h"

enum {
  DESCRIPTOR_ENTRIES = 512,
  DESCRIPTOR_WINDOW = 8, /* length of the probe window */
  DESCRIPTOR_KEY_WORDS = 7,
  DESCRIPTOR_WORDS = sizeof(LuattnTensorMap) / 8
};

/* A cache entry, written by one thread at a time and read by any number without waiting (a seqlock):
 * `version` is odd while the rest is being written, and 0 before the first write. A read is consistent if
 * `version` is the same before and after it. */
typedef struct cached_descriptor {
  _Atomic(uint64_t) version, key[DESCRIPTOR_KEY_WORDS], address, words[DESCRIPTOR_WORDS];
} cached_descriptor;

/* The cache of one kernel, so that the dtype is in no key. Starts as all zeros. Any number of threads may share it. */
typedef struct descriptor_cache {
  cached_descriptor entry[DESCRIPTOR_ENTRIES];
  atomic_uint turn; /* which entry of a full window is replaced next */
} descriptor_cache;

/* Where a descriptor that was not found is to be stored. */
typedef struct descriptor_place {
  uint64_t hash;
  unsigned i; /* of the window */
} descriptor_place;

/* Copies the descriptor with this key to *out; *address is that of the tensor it was encoded for. False: there is none,
 * and *place is for descriptor_store; *out may have been overwritten. */
bool descriptor_find(descriptor_cache *cache, const uint64_t key[DESCRIPTOR_KEY_WORDS], LuattnTensorMap *out,
                     uint64_t *address, descriptor_place *place);

/* Stores a descriptor that was encoded for a tensor at `address`, unless another thread is writing there. */
void descriptor_store(descriptor_cache *cache, const uint64_t key[DESCRIPTOR_KEY_WORDS], descriptor_place place,
                      uint64_t address, const LuattnTensorMap *descriptor);

#endif
