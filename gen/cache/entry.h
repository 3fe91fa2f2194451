/* entry.h: names the cache's files: <dir>/<first 2 hex digits>/<32 hex digits>.lai, next to it .cu of a
 * failed compilation. Tuning records, under keys of their own, end in .tuned. A file that is still being
 * written is called .tmp-XXXXXX. */
#ifndef LUATTN_GEN_CACHE_ENTRY_H
#define LUATTN_GEN_CACHE_ENTRY_H

#include <stdbool.h>
#include <sys/stat.h>

#include "common/fail.h"
#include "luattn/image.h"

#define ENTRY_SUFFIX ".lai"
#define RECORD_SUFFIX ".tuned"
#define ENTRY_TEMPORARY ".tmp-"
#define ENTRY_PATH_SIZE 4096

typedef enum entry_state {
  ENTRY_NONE, /* no entry, or unreadable */
  ENTRY_SOUND,
  ENTRY_FOREIGN, /* an image of another format: another version of luattn shares this directory */
  ENTRY_DAMAGED
} entry_state;

/* Reads the image in `path`; *image = NULL unless it is sound. is_use: update its time of use, for prune.
 * Fails only on out of memory. */
luattn_status entry_read(const char *path, bool is_use, luattn_image **image, entry_state *state, luattn_error *err);

/* trust.c: NULL, or why what lies there is not used: of a file or folder; of a folder below the cache's directory,
 * which may be missing. */
const char *distrust_of(const struct stat *st);
const char *folder_distrust(const char *folder);

#endif
