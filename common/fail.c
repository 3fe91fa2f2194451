#include "common/fail.h"

#include <stdarg.h>

#include "common/host.h"

luattn_status luattn_fail(luattn_error *err, luattn_status status, const char *fmt, ...) {
  if (err != NULL) {
    va_list args;
    va_start(args, fmt);
    err->status = status;
    host_vformat(err->message, sizeof err->message, fmt, args);
    va_end(args);
  }
  return status;
}

void luattn_warn(luattn_error *err, const char *fmt, ...) {
  if (err == NULL) return;
  va_list args;
  va_start(args, fmt);
  err->status = LUATTN_OK;
  host_vformat(err->message, sizeof err->message, fmt, args);
  va_end(args);
}

luattn_status fail_null(luattn_error *err, const char *function, const char *parameter) {
  return luattn_fail(err, LUATTN_INVALID, "%s: %s: is NULL; give one", function, parameter);
}

const char *fail_name(const char *name, char out[FAIL_NAME_SIZE]) {
  size_t n = 0;
  for (; n + 1 < FAIL_NAME_SIZE && name[n] != 0; n++)
    out[n] = (unsigned char)name[n] < ' ' || name[n] == 0x7f ? '?' : name[n];
  while (name[n] != 0 && n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--; /* never splits a UTF-8 character */
  out[n] = 0;
  return out;
}

const char *luattn_version(void) { return LUATTN_VERSION; }

const char *luattn_status_text(luattn_status status) {
  switch (status) {
#define LUATTN_X(name, text) \
  case LUATTN_##name:        \
    return text;
    LUATTN_STATUS_MAP(LUATTN_X)
#undef LUATTN_X
  }
  return "unknown status";
}
