/* hash.h: 128-bit content hash (XXH3) for cache keys, fed in labelled pieces, so that different inputs cannot
 * concatenate to the same bytes. */
#ifndef LUATTN_GEN_HASH_H
#define LUATTN_GEN_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct hash128 {
  uint64_t lo, hi;
} hash128;

typedef struct hasher {
  void *state;
} hasher; /* XXH3 state */

int hasher_open(hasher *h); /* 0: out of memory */
void hasher_add(hasher *h, const char *label, const void *data, size_t size);
hash128 hasher_close(hasher *h);
hash128 hash_bytes(const void *data, size_t size);
void hash_hex(hash128 h, char out[33]);

#endif
