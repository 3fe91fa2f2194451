/* worse.h: keeps the largest error of a comparison. */
#ifndef LUATTN_TESTS_WORSE_H
#define LUATTN_TESTS_WORSE_H

#include <math.h>

/* The larger of two errors; NaN if one is, so that no later error replaces it. Compare it by `<=`, which NaN fails. */
static inline double worse(double a, double b) { return isnan(a) || b <= a ? a : b; }

#endif
