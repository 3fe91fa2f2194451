/* maps.h: TMA descriptors, by which TMA of sm_90 finds q, k, v and o (backward: dout), and a memory
 * of those that were made: a tensor of the same sizes and strides has the same map, but for the address,
 * which libcuda replaces in a fifth of the time that it takes to make a map. */
#ifndef LUATTN_RUNTIME_MAPS_H
#define LUATTN_RUNTIME_MAPS_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/args.h"
#include "runtime/driver.h"
#include "abi/params.h"

enum {
  MAPS_ENTRIES = 512,
  MAPS_WINDOW = 8, /* entries, one after the other, in which a map may be */
  MAPS_KEY_WORDS = 6,
  MAPS_WORDS = sizeof(LuattnTensorMap) / 8
};

/* Written by one thread at a time and read by any number without waiting. `version` is odd while the rest is
 * being written, and 0 before it ever was; who has read the rest between two looks at one version has read
 * what belongs together. */
typedef struct remembered_map {
  _Atomic(uint64_t) version, key[MAPS_KEY_WORDS], address, map[MAPS_WORDS];
} remembered_map;

/* For one kernel: its dtype is in no key. All zeros at first. */
typedef struct map_memory {
  remembered_map entry[MAPS_ENTRIES];
  atomic_uint turn; /* which of a full window is forgotten next */
} map_memory;

/* Maps of the q, k, v and o (or dout) that *p names, in boxes as params.h says. No device is asked, but libcuda
 * wants a current context. Any number of threads may share `memory`. Errors: LUATTN_UNSUPPORTED (libcuda
 * older than CUDA 12), LUATTN_INVALID (a stride that no map can hold). */
luattn_status maps_fill(const luattn_driver *d, map_memory *memory, const args_call *c,
                        const LuattnPackedParams *all, LuattnTensorMaps *out);

#endif
