/* trust.c: checks who owns the cache, and how large it may become. */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fail.h"
#include "gen/cache/cache.h"
#include "gen/cache/entry.h"

#define DEFAULT_LIMIT ((size_t)1 << 30)

/* Images are code: whoever may write to a directory or a file chooses what runs, so it must belong to this user or to
 * root. A missing directory will be created for this user only. */
const char *distrust_of(const struct stat *st) {
  if (st->st_uid != geteuid() && st->st_uid != 0) return "it belongs to another user";
  if ((st->st_mode & (S_IWGRP | S_IWOTH)) == 0) return NULL;
  return S_ISDIR(st->st_mode) ? "others may write to it (chmod 700 helps)" : "others may write to it (chmod 600 helps)";
}

const char *cache_distrust(const char *dir) {
  struct stat st;
  return dir[0] == '\0' || stat(dir, &st) != 0 ? NULL : distrust_of(&st);
}

const char *folder_distrust(const char *folder) {
  struct stat st;
  if (lstat(folder, &st) != 0) return NULL;
  if (S_ISLNK(st.st_mode)) return "it is a symbolic link, which luattn does not create";
  return distrust_of(&st);
}

bool cache_parse_size(const char *text, size_t *bytes) {
  static const char units[] = "KMGT";
  char *end = NULL;
  errno = 0;
  unsigned long long value = isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : 0;
  bool ok = end != NULL && errno == 0;
  const char *unit = ok && *end != '\0' ? strchr(units, toupper((unsigned char)*end)) : NULL;
  for (const char *u = units; unit != NULL && u <= unit && ok; ++u) {
    ok = value <= SIZE_MAX >> 10;
    value <<= 10;
  }
  if (ok && unit != NULL) ++end;
  if (!ok || *end != '\0' || value > SIZE_MAX) return false;
  *bytes = (size_t)value;
  return true;
}

luattn_status cache_limit(size_t *bytes, luattn_error *err) {
  const char *text = getenv("LUATTN_CACHE_SIZE");
  *bytes = DEFAULT_LIMIT;
  if (text == NULL || text[0] == '\0' || cache_parse_size(text, bytes)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "LUATTN_CACHE_SIZE: '%s' is not a size; give bytes, or a number with K, M, G or T (0: no limit)",
                     text);
}
