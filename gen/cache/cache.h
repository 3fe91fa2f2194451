/* cache.h: images on disk and in memory, by content hash. A damaged entry is recompiled, never used. */
#ifndef LUATTN_GEN_CACHE_H
#define LUATTN_GEN_CACHE_H

#include <stdbool.h>

#include "gen/base/hash.h"
#include "luattn/image.h"

/* Resolves target->cache_dir (see compiler.h) into path[size]; empty = no disk cache. */
luattn_status cache_resolve(const char *cache_dir, char *path, size_t size, luattn_error *err);

/* NULL if the images in `dir` may be used; otherwise the reason. find and keep_source ignore such a
 * directory, store reports it. */
const char *cache_distrust(const char *dir);

/* "4096", "500M": bytes, or a number with K, M, G or T. false: neither, or more than a size_t holds. */
bool cache_parse_size(const char *text, size_t *bytes);

/* LUATTN_CACHE_SIZE in bytes, else 1 GB; 0: no limit. Errors: LUATTN_INVALID. */
luattn_status cache_limit(size_t *bytes, luattn_error *err);

/* *image = NULL if there is no sound entry. A damaged entry is removed, and so is one whose source_hash is
 * not {key.lo, key.hi} (it was renamed or copied from another entry) and an empty directory in its place; a
 * directory that is not empty stays, and store reports it. Fails only on out of memory. */
luattn_status cache_find(const char *dir, hash128 key, luattn_image **image, luattn_error *err);

/* Publishes by write, fsync, rename. The image's source_hash must be the key. A full disk or a read-only
 * directory is reported in *warning, not as a failure. */
luattn_status cache_store(const char *dir, hash128 key, const luattn_image *image, char *warning, size_t warning_size,
                          luattn_error *err);

/* Keeps a source that NVRTC refused next to the path of its image, where prune and clear remove it.
 * path[size] gets its name; empty if it could not be written. */
void cache_keep_source(const char *dir, hash128 key, const char *text, char *path, size_t size);

/* Tuning records: small texts next to the images, which clear removes and prune keeps. The caller interprets
 * and validates them. text[size] gets the record, cut to fit, and path[path_size] its file; false: there is
 * none. */
bool cache_find_record(const char *dir, hash128 key, char *text, size_t size, char *path, size_t path_size);
/* Publishes like an image; text NULL removes the record. Errors: LUATTN_IO. */
luattn_status cache_store_record(const char *dir, hash128 key, const char *text, char *path, size_t path_size,
                                 luattn_error *err);

/* After a store: if the cache exceeds max_bytes, removes the least recently used entries until a tenth is
 * free. 0: no limit. Entries that cannot be removed stay. Fails only on out of memory. */
bool cache_has(const char *dir, hash128 key); /* without reading it */
luattn_status cache_trim(const char *dir, size_t max_bytes, luattn_error *err);

/* For the CLI. A directory in the place of an entry is a damaged one; clear removes it if it is empty, prune
 * leaves it. `foreign`: files of another version of luattn, which are left alone. */
typedef struct cache_stats {
  size_t entries, bytes, damaged, foreign, records;
} cache_stats;
luattn_status cache_info(const char *dir, cache_stats *out, luattn_error *err);
luattn_status cache_clear(const char *dir, size_t *removed, luattn_error *err);
luattn_status cache_prune(const char *dir, size_t max_bytes, size_t *removed, luattn_error *err);

#endif
