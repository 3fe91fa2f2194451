/* sizes.h: messages that show the size of luattn_args, which grows. Host only. */
#ifndef LUATTN_TESTS_SIZES_H
#define LUATTN_TESTS_SIZES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "luattn/tensors.h"

/* Returns `message` with sizeof(luattn_args) for each {args}, and so many more or fewer for {args+8} and {args-4}. What
 * it returns stays until the next call. */
static inline const char *with_sizes(const char *message) {
  static char shown[1024];
  size_t n = 0;
  shown[0] = 0;
  for (const char *at = message; *at != 0 && n + 24 < sizeof shown;) {
    if (strncmp(at, "{args", 5) != 0) {
      shown[n++] = *at++, shown[n] = 0;
      continue;
    }
    char *end;
    const long more = strtol(at + 5, &end, 10);
    n += (size_t)snprintf(shown + n, sizeof shown - n, "%ld", (long)sizeof(luattn_args) + more);
    at = strchr(end, '}') + 1;
  }
  return shown;
}

#endif
