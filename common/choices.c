#include "common/choices.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "common/host.h"

/* In the limits the scale is a normal number, and 1 / scale and scale * log2(e), which kernels take, are
 * finite. */
static bool scale_ok(double scale, bool is_float64, char *text, size_t size) {
  const double least = is_float64 ? DBL_MIN : (double)FLT_MIN;
  const double most = (is_float64 ? DBL_MAX : (double)FLT_MAX) / 2;
  if (scale == 0 || (scale >= least && scale <= most)) return true;
  if (scale > 0 && isfinite(scale))
    host_format(text, size, "scale: is %g, expected %g to %g, which %s can hold, or 0 for head_dim^-1/2",
                scale, least, most, is_float64 ? "float64" : "float32");
  else
    host_format(text, size, "scale: is %g, expected a positive number, or 0 for head_dim^-1/2", scale);
  return false;
}

bool choices_ok(const luattn_args *args, bool is_float64, char *text, size_t size) {
  if (!scale_ok(args->scale, is_float64, text, size)) return false;
  if (args->num_splits < 0 || args->num_splits > CHOICES_MAX_SPLITS) {
    snprintf(text, size, "num_splits: is %d, expected 1 to %d, or 0 to leave it to the launch",
             args->num_splits, CHOICES_MAX_SPLITS);
    return false;
  }
  if (args->skip < LUATTN_SKIP_AUTO || args->skip > LUATTN_SKIP_NEVER) {
    snprintf(text, size, "skip: is %d, expected a luattn_skip, 0 to 2", args->skip);
    return false;
  }
  return true;
}
