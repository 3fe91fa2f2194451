#include "gen/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL /* header only, so that no library is linked */
#include <xxhash.h>

int hasher_open(hasher *h) {
  XXH3_state_t *state = XXH3_createState();
  h->state = state;
  return state != NULL && XXH3_128bits_reset(state) == XXH_OK;
}

static void add_sized(XXH3_state_t *state, const void *data, size_t size) {
  unsigned char length[8]; /* written byte by byte, so that a key does not depend on the host's byte order */
  for (int i = 0; i < 8; ++i) length[i] = (unsigned char)((uint64_t)size >> (8 * i));
  XXH3_128bits_update(state, length, sizeof length);
  if (size > 0) XXH3_128bits_update(state, data, size);
}

void hasher_add(hasher *h, const char *label, const void *data, size_t size) {
  add_sized(h->state, label, strlen(label));
  add_sized(h->state, data, size);
}

hash128 hasher_close(hasher *h) {
  const XXH128_hash_t x = XXH3_128bits_digest(h->state);
  XXH3_freeState(h->state);
  h->state = NULL;
  return (hash128){.lo = x.low64, .hi = x.high64};
}

hash128 hash_bytes(const void *data, size_t size) {
  const XXH128_hash_t x = XXH3_128bits(size > 0 ? data : "", size);
  return (hash128){.lo = x.low64, .hi = x.high64};
}

void hash_hex(hash128 h, char out[33]) { snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo); }
