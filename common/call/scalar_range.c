#include "common/call/scalar_range.h"

#include <math.h>

#include "common/host.h"

bool scalar_range_has(const scalar_range *r, double x) {
  if (r->by[0] == '\0') return true;
  if (r->whole && isfinite(x) && x != floor(x)) return false;
  return x <= r->most && (r->above ? x > r->least : x >= r->least);
}

void scalar_range_words(const scalar_range *r, char *text, size_t size) {
  char limit[64] = "";
  if (r->least > -1e300)
    host_format(limit, sizeof limit, r->above ? " above %g" : r->whole ? ", at least %g" : " from %g on", r->least);
  host_format(text, size, "%s%s%s",
              r->whole         ? "an integer"
              : isinf(r->most) ? "a number"
                               : "a finite number",
              limit, r->whole && isinf(r->most) ? ", or inf for no bound" : "");
}
