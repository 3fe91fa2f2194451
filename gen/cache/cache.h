/* cache.h: images on disk and in memory, by content hash. A damaged entry is recompiled, never used. */
#ifndef LUATTN_GEN_CACHE_H
#define LUATTN_GEN_CACHE_H

#include <stdbool.h>

#include "gen/base/hash.h"
#include "luattn/image.h"

/* Resolves target->cache_dir (see compiler.h) into path[size]; empty = no disk cache. */
luattn_status cache_resolve(const char *cache_dir, char *path, size_t size, luattn_error *err);

/* NULL if the images in `dir` may be used; otherwise why not. find and keep_source do without such a
 * directory, store says so. */
const char *cache_distrust(const char *dir);

/* "4096", "500M": bytes, or a number with K, M, G or T. false: neither, or more than a size_t holds. */
bool cache_parse_size(const char *text, size_t *bytes);

/* LUATTN_CACHE_SIZE in bytes, else 1 GB; 0: no limit. Errors: LUATTN_INVALID. */
luattn_status cache_limit(size_t *bytes, luattn_error *err);

/* *image = NULL if there is no sound entry (a damaged one is removed, and one whose source_hash is not
 * {key.lo, key.hi}: it was stored under another name; so is an empty directory in its place, while of one that
 * holds something store says that it is in the way). Fails only on out of memory. */
luattn_status cache_find(const char *dir, hash128 key, luattn_image **image, luattn_error *err);

/* Publishes by write, fsync, rename. The image's source_hash must be the key. A full disk or a read-only
 * directory is reported in *warning (a fact, not a failure). */
luattn_status cache_store(const char *dir, hash128 key, const luattn_image *image, char *warning,
                          size_t warning_size, luattn_error *err);

/* Leaves a source that NVRTC refused beside the place of its image, where prune and clear find it. path[size]
 * gets its name; empty if it could not be written. */
void cache_keep_source(const char *dir, hash128 key, const char *text, char *path, size_t size);

/* Records of tuning: small texts beside the images, which clear removes and prune does not. What they say and
 * whether they are sound is the caller's business. text[size] gets the record, cut to fit, and
 * path[path_size] its file; false: there is none. */
bool cache_find_record(const char *dir, hash128 key, char *text, size_t size, char *path, size_t path_size);
/* Publishes like an image; text NULL removes the record. Errors: LUATTN_IO. */
luattn_status cache_store_record(const char *dir, hash128 key, const char *text, char *path, size_t path_size,
                                 luattn_error *err);

/* After a store: where there is more than max_bytes, removes what was not used for longest, until a tenth is
 * free. 0: no limit. What cannot be removed stays. Fails only on out of memory. */
bool cache_has(const char *dir, hash128 key); /* without reading it */
luattn_status cache_trim(const char *dir, size_t max_bytes, luattn_error *err);

/* For the CLI. A directory in the place of an entry is a damaged one, which clear removes where it is empty,
 * and prune leaves. `foreign`: of another version of luattn, which is left alone. */
typedef struct cache_stats {
  size_t entries, bytes, damaged, foreign, records;
} cache_stats;
luattn_status cache_info(const char *dir, cache_stats *out, luattn_error *err);
luattn_status cache_clear(const char *dir, size_t *removed, luattn_error *err);
luattn_status cache_prune(const char *dir, size_t max_bytes, size_t *removed, luattn_error *err);

#endif
