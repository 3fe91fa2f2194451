#include "common/real.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/host.h"

const char *real_write(double x, int digits, char out[REAL_SIZE]) {
  HOST_SCOPE;
  for (;; digits++) {
    snprintf(out, REAL_SIZE, "%.*g", digits, x);
    if (digits >= 17 || strtod(out, NULL) == x) return out;
  }
}

double real_read(const char *text, char **end) {
  HOST_SCOPE;
  return strtod(text, end);
}
