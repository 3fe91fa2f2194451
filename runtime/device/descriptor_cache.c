#include "runtime/device/descriptor_cache.h"

#include <string.h>

/* Entry i of the probe window for a key with this hash. */
static cached_descriptor *in_window(descriptor_cache *cache, uint64_t hash, unsigned i) {
  return &cache->entry[((hash >> 32) + i) % DESCRIPTOR_ENTRIES];
}

static uint64_t hash_of(const uint64_t key[DESCRIPTOR_KEY_WORDS]) {
  const uint64_t odd = 0x9e3779b97f4a7c15u;
  uint64_t hash = 0;
  for (int i = 0; i < DESCRIPTOR_KEY_WORDS; ++i)
    hash += key[i] * (odd + 2 * (uint64_t)i); /* independent multiplications */
  return hash * odd;
}

static bool is_empty(const cached_descriptor *e) {
  return atomic_load_explicit(&e->version, memory_order_relaxed) == 0;
}

/* Copies a descriptor from the cache; *address is that of the tensor it was encoded for. On false, *out may
 * have been overwritten. */
static bool recall(cached_descriptor *e, const uint64_t key[DESCRIPTOR_KEY_WORDS], LuattnTensorMap *out,
                   uint64_t *address) {
  const uint64_t version = atomic_load_explicit(&e->version, memory_order_acquire);
  if (version % 2 != 0) return false;
  for (int i = 0; i < DESCRIPTOR_KEY_WORDS; ++i)
    if (atomic_load_explicit(&e->key[i], memory_order_acquire) != key[i]) return false;
  *address = atomic_load_explicit(&e->address, memory_order_acquire);
  for (int i = 0; i < DESCRIPTOR_WORDS; ++i) {
    const uint64_t word = atomic_load_explicit(&e->words[i], memory_order_acquire);
    memcpy(out->bytes + sizeof word * (size_t)i, &word, sizeof word);
  }
  return atomic_load_explicit(&e->version, memory_order_relaxed) == version;
}

/* Skips an entry that another thread is writing. */
static void remember(cached_descriptor *e, const uint64_t key[DESCRIPTOR_KEY_WORDS], uint64_t address,
                     const LuattnTensorMap *descriptor) {
  uint64_t version = atomic_load_explicit(&e->version, memory_order_relaxed), word[DESCRIPTOR_WORDS];
  if (version % 2 != 0 || !atomic_compare_exchange_strong(&e->version, &version, version + 1)) return;
  memcpy(word, descriptor->bytes, sizeof word);
  for (int i = 0; i < DESCRIPTOR_KEY_WORDS; ++i) atomic_store_explicit(&e->key[i], key[i], memory_order_release);
  atomic_store_explicit(&e->address, address, memory_order_release);
  for (int i = 0; i < DESCRIPTOR_WORDS; ++i) atomic_store_explicit(&e->words[i], word[i], memory_order_release);
  atomic_store_explicit(&e->version, version + 2, memory_order_release);
}

bool descriptor_find(descriptor_cache *cache, const uint64_t key[DESCRIPTOR_KEY_WORDS], LuattnTensorMap *out,
                     uint64_t *address, descriptor_place *place) {
  const uint64_t hash = hash_of(key);
  unsigned i = 0; /* the entry with this key, or the first empty one, which ends the probe */
  for (; i < DESCRIPTOR_WINDOW && !is_empty(in_window(cache, hash, i)); ++i)
    if (recall(in_window(cache, hash, i), key, out, address)) return true;
  *place = (descriptor_place){hash, i};
  return false;
}

void descriptor_store(descriptor_cache *cache, const uint64_t key[DESCRIPTOR_KEY_WORDS], descriptor_place place,
                      uint64_t address, const LuattnTensorMap *descriptor) {
  unsigned i = place.i;
  if (i == DESCRIPTOR_WINDOW) i = atomic_fetch_add_explicit(&cache->turn, 1, memory_order_relaxed) % DESCRIPTOR_WINDOW;
  remember(in_window(cache, place.hash, i), key, address, descriptor);
}
