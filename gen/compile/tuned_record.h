/* tuned_record.h: the text of a tuning record: a head with a hash of what follows, the version, the key and the origin, then
 * fields of its kind, a line each. */
#ifndef LUATTN_GEN_TUNED_RECORD_H
#define LUATTN_GEN_TUNED_RECORD_H

#include <stdbool.h>

#include "gen/base/hash.h"

enum { RECORD_SIZE = 1024 };

/* STALE: made with another luattn, NVRTC or set of templates. */
typedef enum tuned_state { TUNED_NONE, TUNED_SOUND, TUNED_DAMAGED, TUNED_STALE } tuned_state;

/* Writes the head before `fields`, lines that end with a newline. */
void tuned_record_write(hash128 key, hash128 origin, const char *fields, char text[RECORD_SIZE]);
/* The fields of a record under this key, in `text`; NULL: it is damaged. *is_stale: it has another version or origin. */
const char *tuned_record_read(const char *text, hash128 key, hash128 origin, bool *is_stale);

#endif
