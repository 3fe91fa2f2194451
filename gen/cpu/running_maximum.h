/* running_maximum.h: the maximum of a row's elements, and what derived_sum of gen/spec.h says of it. */
#ifndef LUATTN_GEN_CPU_RUNNING_MAXIMUM_H
#define LUATTN_GEN_CPU_RUNNING_MAXIMUM_H

#include <math.h>
#include <stdbool.h>

#include "gen/spec.h"

/* The largest so far: its value, the next below it, the place of the first that is it, and how many are. */
typedef struct running_maximum {
  double top, next, place, count;
  double start; /* of the row's, as of any element */
} running_maximum;

static inline running_maximum maximum_of_none(void) {
  return (running_maximum){-INFINITY, -INFINITY, INFINITY, 0, -INFINITY};
}

/* Elements come in ascending order of places. */
static inline void maximum_take(running_maximum *m, double x, double place) {
  if (x > m->top)
    *m = (running_maximum){x, m->top, place, 1, m->start};
  else if (x == m->top && m->count > 0)
    m->count++;
  else if (x > m->next)
    m->next = x;
}

/* Writes PASS_PLACE and PASS_LEAST. Where rounding chooses another element, or the number that the maximum starts at, is a
 * kink: there all that are the largest share it, however near the next are. */
static inline void maximum_write(const running_maximum *m, bool kinks, double sum[2]) {
  const double size = 1 + fabs(m->top), gap = m->top - m->next;
  const double between = m->top - 0.5 * fmin(gap, size);
  const bool some = m->top > -INFINITY && (kinks || m->top >= m->start);
  const bool share = kinks || (m->count > 1 && gap > MAXIMUM_GAP * size);
  sum[0] = !some ? INFINITY : share ? -m->count : m->place;
  sum[1] = !some || !share ? INFINITY : kinks ? fmax(between, m->start) : between;
}

#endif
