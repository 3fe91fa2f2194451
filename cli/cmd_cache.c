/* cmd_cache.c: luattn cache and luattn devices. */
#include <string.h>

#include "cli/cli.h"
#include "gen/cache/cache.h"

/* Returns the bytes that prune keeps: --max-bytes, else the cache's limit. */
static luattn_status size_to_keep(const cli_options *o, size_t *bytes, luattn_error *err) {
  if (o->max_bytes != NULL) {
    if (cache_parse_size(o->max_bytes, bytes) && *bytes > 0) return LUATTN_OK;
    return luattn_fail(err, LUATTN_INVALID,
                       "--max-bytes: '%s' is not a size to keep; give bytes, at least 1, or a number with K, "
                       "M, G or T",
                       o->max_bytes);
  }
  TRY(cache_limit(bytes, err));
  if (*bytes > 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "cache: prune: no limit is in force, as LUATTN_CACHE_SIZE is 0; give the size to keep "
                     "with --max-bytes");
}

/* Refuses arguments that would be ignored. */
static luattn_status check_options(const cli_options *o, luattn_error *err) {
  const bool is_info = strcmp(o->spec, "info") == 0;
  if (o->max_bytes == NULL || (!is_info && strcmp(o->spec, "clear") != 0)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "cache: %s: %s, so that --max-bytes '%s' has no use; leave it out, or use prune", o->spec,
                     is_info ? "removes nothing" : "removes everything", o->max_bytes);
}

static luattn_status run(const cli_options *o, luattn_error *err) {
  char dir[4096];
  size_t removed, limit;
  TRY(check_options(o, err));
  TRY(cache_resolve(o->cache_dir, dir, sizeof dir, err));
  if (dir[0] == 0)
    return luattn_fail(err, LUATTN_INVALID,
                       "cache: there is none on disk, as its directory is empty; name one with --cache-dir "
                       "or LUATTN_CACHE_DIR");
  if (strcmp(o->spec, "info") == 0) {
    cache_stats stats;
    TRY(cache_limit(&limit, err));
    TRY(cache_info(dir, &stats, err));
    printf(
        "%s: %zu images, %.1f MB (limit: %.1f MB, 0 for none), %zu damaged, %zu of other versions of luattn, "
        "%zu records of tuning\n",
        dir, stats.entries, (double)stats.bytes / 1e6, (double)limit / 1e6, stats.damaged, stats.foreign,
        stats.records);
    const char *distrust = cache_distrust(dir);
    if (distrust != NULL) printf("%s: is not used: %s\n", dir, distrust);
    return LUATTN_OK;
  }
  if (strcmp(o->spec, "clear") == 0) {
    TRY(cache_clear(dir, &removed, err));
  } else if (strcmp(o->spec, "prune") == 0) {
    TRY(size_to_keep(o, &limit, err));
    TRY(cache_prune(dir, limit, &removed, err));
  } else {
    return luattn_fail(err, LUATTN_INVALID, "cache: '%s' is not something it can do; use info, prune or clear",
                       o->spec);
  }
  printf("%s: removed %zu images\n", dir, removed);
  return LUATTN_OK;
}

int cmd_cache(const cli_options *o) {
  luattn_error err;
  return run(o, &err) == LUATTN_OK ? 0 : cli_fail(&err);
}

int cmd_devices(const cli_options *o) {
  luattn_error err;
  luattn_driver *driver;
  int count = 0;
  (void)o;
  if (luattn_driver_open(&driver, &err) != LUATTN_OK) return cli_fail(&err);
  luattn_status status = luattn_device_count(driver, &count, &err);
  for (int i = 0; i < count && status == LUATTN_OK; i++) {
    luattn_device_info info;
    status = luattn_device_get_info(driver, i, &info, &err);
    if (status != LUATTN_OK) break;
    printf("cuda:%d  %s  sm_%d  %d multiprocessors  %d KB shared memory a block  %.1f GB\n", i, info.name, info.arch,
           info.multiprocessors, info.shared_bytes_per_block / 1024, (double)info.memory / 1e9);
  }
  luattn_driver_close(driver);
  return status == LUATTN_OK ? 0 : cli_fail(&err);
}
