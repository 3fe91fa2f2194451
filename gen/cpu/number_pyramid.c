/* number_pyramid.c: minima and maxima of aligned blocks of numbers, of a power of two each. */
#include "gen/cpu/number_pyramid.h"

#include <math.h>

#define PYRAMID_BLOCK 32

static const low_high nothing = {INFINITY, -INFINITY, false};

low_high low_high_join(low_high x, low_high y) {
  return (low_high){y.low < x.low ? y.low : x.low, y.high > x.high ? y.high : x.high, x.nan || y.nan};
}

static low_high of_elements(const number_pyramid *p, const int64_t given[4], int64_t lo, int64_t hi) {
  int64_t at[4] = {given[0], given[1], given[2], given[3]};
  low_high all = nothing;
  for (int64_t i = lo; i <= hi; i++) {
    at[p->axes - 1] = i;
    const double x = view_get(p->view, at);
    if (isnan(x)) all.nan = true;
    if (x < all.low) all.low = x;
    if (x > all.high) all.high = x;
  }
  return all;
}

static int64_t row_of(const number_pyramid *p, const int64_t at[4]) {
  int64_t row = 0;
  for (int i = 0; i < p->axes - 1; i++) row = row * p->view->shape[i] + at[i];
  return row;
}

static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

static void fill_row(number_pyramid *p, int64_t row, const int64_t at[4]) {
  low_high *block = p->level[0] + row * p->blocks[0];
  for (int64_t i = 0; i < p->blocks[0]; i++)
    block[i] = of_elements(p, at, i * PYRAMID_BLOCK, least((i + 1) * PYRAMID_BLOCK, p->len) - 1);
  for (int l = 1; l < p->num_levels; l++) {
    const low_high *of = p->level[l - 1] + row * p->blocks[l - 1];
    for (int64_t i = 0; i < p->blocks[l]; i++)
      p->level[l][row * p->blocks[l] + i] =
          2 * i + 1 < p->blocks[l - 1] ? low_high_join(of[2 * i], of[2 * i + 1]) : of[2 * i];
  }
}

bool pyramid_open(arena *a, const cpu_view *view, int axes, number_pyramid *out) {
  int64_t rows = 1, at[4] = {0};
  *out = (number_pyramid){.view = view, .axes = axes, .len = view->shape[axes - 1]};
  for (int i = 0; i < axes - 1; i++) rows *= view->shape[i];
  for (int64_t blocks = (out->len + PYRAMID_BLOCK - 1) / PYRAMID_BLOCK; blocks > 0 && out->num_levels < PYRAMID_LEVELS;
       blocks = blocks > 1 ? (blocks + 1) / 2 : 0) {
    out->blocks[out->num_levels] = blocks;
    out->level[out->num_levels] = arena_raw(a, (size_t)(rows * blocks), sizeof(low_high));
    if (out->level[out->num_levels++] == NULL) return false;
  }
  for (int64_t row = 0; row < rows; row++) {
    int64_t rest = row;
    for (int i = axes - 2; i >= 0; rest /= view->shape[i--]) at[i] = rest % view->shape[i];
    fill_row(out, row, at);
  }
  return true;
}

low_high pyramid_bounds(const number_pyramid *p, const int64_t at[4], int64_t lo, int64_t hi) {
  const int64_t row = row_of(p, at);
  low_high all = nothing;
  while (lo <= hi) {
    const bool to_end = hi == p->len - 1;
    int l = -1;
    while (l + 1 < p->num_levels) {
      const int64_t size = (int64_t)PYRAMID_BLOCK << (l + 1);
      if (lo % size != 0 || (lo + size - 1 > hi && !to_end)) break;
      l++;
    }
    if (l < 0) {
      const int64_t end = least(lo / PYRAMID_BLOCK * PYRAMID_BLOCK + PYRAMID_BLOCK - 1, hi);
      all = low_high_join(all, of_elements(p, at, lo, end));
      lo = end + 1;
    } else {
      const int64_t size = (int64_t)PYRAMID_BLOCK << l;
      all = low_high_join(all, p->level[l][row * p->blocks[l] + lo / size]);
      lo += size;
    }
  }
  return all;
}
