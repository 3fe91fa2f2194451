/* number_pyramid.h: minima and maxima of any part of a row of an input, in logarithmic time. */
#ifndef LUATTN_GEN_NUMBER_PYRAMID_H
#define LUATTN_GEN_NUMBER_PYRAMID_H

#include "gen/cpu/cpu.h"

typedef struct low_high {
  double low, high; /* low > high: no number but NaN */
  bool nan;
} low_high;

#define PYRAMID_LEVELS 32

/* The last axis of the input in blocks of PYRAMID_BLOCK << level. */
typedef struct number_pyramid {
  const cpu_view *view;
  int axes; /* at least 1 */
  int64_t len;
  int num_levels;
  int64_t blocks[PYRAMID_LEVELS]; /* of a row */
  low_high *level[PYRAMID_LEVELS];
} number_pyramid;

/* Reads the whole input. false: out of memory. */
bool pyramid_open(arena *a, const cpu_view *view, int axes, number_pyramid *out);
/* Of elements at[last] = lo .. hi, inclusive and inside the axis, with the other indices as given. */
low_high pyramid_bounds(const number_pyramid *p, const int64_t at[4], int64_t lo, int64_t hi);
low_high low_high_join(low_high x, low_high y);

#endif
