/* entry.h: how the cache's files are named: <dir>/<first 2 hex digits>/<32 hex digits>.lai, and beside it .cu
 * of a compilation that failed. Records of tuning, by keys of their own, end in .tuned. A file that is still
 * being written is called .tmp-XXXXXX. */
#ifndef LUATTN_GEN_CACHE_ENTRY_H
#define LUATTN_GEN_CACHE_ENTRY_H

#include <stdbool.h>

#include "common/fail.h"
#include "luattn/image.h"

#define ENTRY_SUFFIX ".lai"
#define RECORD_SUFFIX ".tuned"
#define ENTRY_TEMPORARY ".tmp-"
#define ENTRY_PATH_SIZE 4096

typedef enum entry_state {
  ENTRY_NONE, /* or it cannot be read */
  ENTRY_SOUND,
  ENTRY_FOREIGN, /* an image of another format: another version of luattn uses this directory, too */
  ENTRY_DAMAGED
} entry_state;

/* Reads the image in `path`; *image = NULL unless it is sound. is_use: note the time, for prune. Fails only
 * on out of memory. */
luattn_status entry_read(const char *path, bool is_use, luattn_image **image, entry_state *state,
                         luattn_error *err);

#endif
