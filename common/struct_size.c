#include "common/struct_size.h"

#include <string.h>

enum { MOST_BEHIND = 4096 }; /* bytes past the known struct; a larger size is an uninitialised variable */

/* Sizes are multiples of 8, so a member is never cut in half. */
static luattn_status check_size(const struct_rule *rule, const char *place, size_t size, const char *rest,
                                luattn_error *err) {
  if (size >= rule->least && size <= rule->known + MOST_BEHIND && size % sizeof size == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: %s: struct_size is %zu, expected sizeof(%s), which is %zu in luattn %s and at least %zu in "
                     "any version; set it%s",
                     place, rule->name, size, rule->name, rule->known, luattn_version(), rule->least, rest);
}

luattn_status struct_give(const struct_rule *rule, const char *place, const void *filled, void *out,
                          luattn_error *err) {
  size_t size;
  memcpy(&size, out, sizeof size);
  TRY(check_size(rule, place, size, "", err));
  memset(out, 0, size);
  memcpy(out, filled, size < rule->known ? size : rule->known);
  memcpy(out, &size, sizeof size);
  return LUATTN_OK;
}

luattn_status struct_take(const struct_rule *rule, const char *place, const void *given, void *out, luattn_error *err) {
  const size_t known = rule->known;
  size_t size;
  memcpy(&size, given, sizeof size);
  TRY(check_size(rule, place, size, ", and what is not used to 0", err));
  const unsigned char *bytes = given;
  for (size_t i = known; i < size; ++i)
    if (bytes[i] != 0)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: struct_size is %zu, and byte %zu is set, which luattn %s does not know: it has %zu; "
                         "use the luattn whose headers the program was built with, or a later one, or set that "
                         "member to 0",
                         place, rule->name, size, i, luattn_version(), known);
  memset(out, 0, known);
  memcpy(out, given, size < known ? size : known);
  memcpy(out, &known, sizeof known);
  return LUATTN_OK;
}
