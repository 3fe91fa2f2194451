/* fail.h: fills a luattn_error, for every module. */
#ifndef LUATTN_FAIL_H
#define LUATTN_FAIL_H

#include "luattn/status.h"

/* Fills *err (may be NULL) and returns `status`, so that a caller can write `return luattn_fail(err,
 * LUATTN_INVALID, ...)`. Message style: `place: subject: what is wrong; what to do`. Lower case, single
 * quotes round user names, no full stop. */
luattn_status luattn_fail(luattn_error *err, luattn_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A caller's name as a message shows it: at most 64 bytes, and '?' for the control characters of ASCII.
 * Returns `out`. */
enum { FAIL_NAME_SIZE = 65 };
const char *fail_name(const char *name, char out[FAIL_NAME_SIZE]);

/* Starts a public function: clears *err (may be NULL), so that after LUATTN_OK a message is a warning. */
static inline void fail_clear(luattn_error *err) {
  if (err == NULL) return;
  err->status = LUATTN_OK;
  err->message[0] = 0;
}

/* Leaves a warning in *err (may be NULL): the call succeeded, but went without something. */
void luattn_warn(luattn_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "luattn_compile: spec: is NULL; give one". */
luattn_status fail_null(luattn_error *err, const char *function, const char *parameter);

/* Fails a public function whose pointer parameter is NULL. */
#define NEED(parameter)                                                   \
  do {                                                                    \
    if ((parameter) == NULL) return fail_null(err, __func__, #parameter); \
  } while (0)

#define TRY(call)                                     \
  do {                                                \
    const luattn_status try_status_ = (call);         \
    if (try_status_ != LUATTN_OK) return try_status_; \
  } while (0)

#endif
