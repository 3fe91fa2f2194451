/* boxes.c: see boxes.h.
 *
 * Backward's boxes of keys and forward's boxes of queries are on a lattice, so both passes are counted from the queries'
 * side: for each box of queries along an axis, how many boxes of keys meet one of its rows' intervals, and how many lie in
 * all of them. A group (positions of one remainder by `step`) is an axis of its own, and counts of groups add up. */
#include "gen/plan/boxes.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

/* The cost model, in cycles of a multiprocessor at head dim 128, fitted to kernels of one H200 (bench/journal/grids.md).
 * Forward takes 16 cycles a column for the two products of 128 rows and 272 for what else a box needs (dense kernels),
 * 700 more where a box is partial, and 4850 for the start and end of an outer box: of 24 pairs over two and three axes
 * all are within 8 %, by 4 % in the mean. Backward takes 3440 cycles for 64 x 128 scores, and 6000 for an outer box; a
 * partial box takes 1.10 of a full one: 1.05 was measured with one-dimensional tiles of a window of 13 x 13. */
static const double column_cycles = 16, box_overhead = 272, partial_cycles = 700, q_box_cycles = 4850,
                    backward_cycles = 3440, kv_box_cycles = 6000, partial_factor = 1.10;

/* The queries and keys of one group of an axis. */
typedef struct line {
  int q_extent, kv_extent;
  const int *lo, *hi;
} line;

typedef struct axis_lines {
  line *of; /* [count] */
  int *bounds;
  int count;
} axis_lines;

/* Sums over the boxes of an axis. */
typedef struct axis_counts {
  double outer, computed, full;
  int first;
} axis_counts;

static int least_of(int a, int b) { return a < b ? a : b; }
static int most_of(int a, int b) { return a > b ? a : b; }
static int up(int n, int by) { return n >= 0 ? (n + by - 1) / by : -(-n / by); }
static int down(int n, int by) { return n >= 0 ? n / by : -((-n + by - 1) / by); }

/* ---- groups ---- */

/* Takes an axis apart by remainders of `step`. false: out of memory. */
static bool split_axis(const box_axis *axis, axis_lines *out) {
  const int n = axis->q_extent, step = axis->step;
  *out = (axis_lines){.count = step};
  out->of = malloc((size_t)step * sizeof *out->of);
  out->bounds = malloc(2 * (size_t)n * sizeof *out->bounds + 1);
  if (out->of == NULL || out->bounds == NULL) return false;
  int *lo = out->bounds, *hi = lo + n;
  for (int g = 0; g < step; g++) {
    line *l = &out->of[g];
    *l = (line){up(n - g, step), up(axis->kv_extent - g, step), lo, hi};
    for (int i = g; i < n; i += step) {
      *lo++ = most_of(up(axis->lo[i] - g, step), 0);
      *hi++ = least_of(up(axis->hi[i] - g, step), l->kv_extent);
    }
  }
  return true;
}

static void free_lines(axis_lines lines[LUATTN_GRID_AXES]) {
  for (int a = 0; a < LUATTN_GRID_AXES; a++) {
    free(lines[a].of);
    free(lines[a].bounds);
  }
}

/* ---- one axis ---- */

/* What rows of a box of queries keep: [from, to) holds all of their intervals, [in, out) lies in all of them. */
typedef struct hull {
  int from, to, in, out;
  bool is_whole; /* no key between two intervals is in none */
} hull;

static hull hull_of(const line *l, int first, int end) {
  hull h = {l->kv_extent, 0, 0, l->kv_extent, true};
  int reached = -1;
  for (int i = first; i < end; i++) {
    if (l->lo[i] >= l->hi[i]) {
      h.out = 0;
      continue;
    }
    if (reached >= 0 && (l->lo[i] > reached || l->hi[i] < h.from)) h.is_whole = false;
    h.from = least_of(h.from, l->lo[i]), h.to = most_of(h.to, l->hi[i]);
    h.in = most_of(h.in, l->lo[i]), h.out = least_of(h.out, l->hi[i]);
    reached = h.to;
  }
  return h;
}

/* Boxes of `extent` keys from `first` on, at least one of whose keys a row keeps. */
static double boxes_met(const line *l, int q0, int q1, const hull *h, int first, int extent) {
  const int from = down(h->from - first, extent), to = up(h->to - first, extent);
  if (h->is_whole) return to - from;
  int met = 0;
  for (int j = from; j < to; j++) {
    const int k0 = first + j * extent;
    bool meets = false;
    for (int i = q0; i < q1 && !meets; i++) meets = l->lo[i] < l->hi[i] && l->lo[i] < k0 + extent && l->hi[i] > k0;
    met += meets;
  }
  return met;
}

static double boxes_inside(const hull *h, int first, int extent) {
  return most_of(down(h->out - first, extent) - up(most_of(h->in, first) - first, extent), 0);
}

/* Where a lattice of `extent` begins so that a box begins at `at`: in (-extent, 0]. */
static int phase_of(int at, int extent) { return at % extent == 0 ? 0 : at % extent - extent; }

/* Where the range of the middle outer box begins. */
static int middle_range(const line *l, luattn_pass pass, int q_extent, int kv_extent) {
  if (pass == LUATTN_FORWARD) {
    const int q0 = l->q_extent / q_extent / 2 * q_extent;
    const hull h = hull_of(l, q0, least_of(q0 + q_extent, l->q_extent));
    return h.from < h.to ? h.from : 0;
  }
  const int k0 = l->kv_extent / kv_extent / 2 * kv_extent;
  for (int i = 0; i < l->q_extent; i++)
    if (l->lo[i] < l->hi[i] && l->lo[i] < k0 + kv_extent && l->hi[i] > k0) return i;
  return 0;
}

/* `phase`: where the lattice of inner boxes begins. */
static axis_counts count_line(const line *l, luattn_pass pass, box_origin origin, int phase, int q_extent,
                              int kv_extent) {
  axis_counts n = {0};
  const bool forward = pass == LUATTN_FORWARD, is_free = forward && origin == BOX_FREE;
  for (int q0 = forward ? 0 : phase; q0 < l->q_extent; q0 += q_extent) {
    const int begin = most_of(q0, 0), end = least_of(q0 + q_extent, l->q_extent);
    const hull h = hull_of(l, begin, end);
    n.outer += forward;
    if (h.from >= h.to) continue;
    const int first = is_free ? h.from : forward ? phase : 0;
    n.computed += boxes_met(l, begin, end, &h, first, kv_extent);
    /* Rows past the end are not stored by forward, and are no part of sums over queries. */
    if (forward || end - begin == q_extent) n.full += boxes_inside(&h, first, kv_extent);
  }
  if (!forward) n.outer = up(l->kv_extent, kv_extent);
  return n;
}

static axis_counts count_lines(const axis_lines *lines, luattn_pass pass, box_origin origin, int phase, int q_extent,
                               int kv_extent) {
  axis_counts sum = {.first = phase};
  for (int g = 0; g < lines->count; g++) {
    const axis_counts n = count_line(&lines->of[g], pass, origin, phase, q_extent, kv_extent);
    sum.outer += n.outer, sum.computed += n.computed, sum.full += n.full;
  }
  return sum;
}

static axis_counts count_axis(const axis_lines *lines, luattn_pass pass, box_origin origin, int q_extent,
                              int kv_extent) {
  const axis_counts at_0 = count_lines(lines, pass, origin, 0, q_extent, kv_extent);
  if (origin != BOX_PHASE) return at_0;
  const int range = middle_range(&lines->of[0], pass, q_extent, kv_extent);
  const int phase = phase_of(range, pass == LUATTN_FORWARD ? kv_extent : q_extent);
  if (phase == 0) return at_0;
  const axis_counts moved = count_lines(lines, pass, origin, phase, q_extent, kv_extent);
  return moved.computed < at_0.computed ? moved : at_0;
}

static double kept_of(const axis_lines *lines) {
  double kept = 0;
  for (int g = 0; g < lines->count; g++)
    for (int i = 0; i < lines->of[g].q_extent; i++) kept += most_of(lines->of[g].hi[i] - lines->of[g].lo[i], 0);
  return kept;
}

/* ---- all axes ---- */

static luattn_status split_axes(const box_axis axis[LUATTN_GRID_AXES], axis_lines out[LUATTN_GRID_AXES],
                                luattn_error *err) {
  memset(out, 0, LUATTN_GRID_AXES * sizeof *out);
  for (int a = 0; a < LUATTN_GRID_AXES; a++)
    if (!split_axis(&axis[a], &out[a])) return luattn_fail(err, LUATTN_NO_MEMORY, "boxes of a grid: out of memory");
  return LUATTN_OK;
}

double box_cycles(const box_kernel *kernel, const box_pair *pair) {
  const double dim = kernel->head_dim / 128.0;
  double keys = 1, queries = 1;
  for (int a = 0; a < LUATTN_GRID_AXES; a++) keys *= pair->kv.extent[a], queries *= pair->q.extent[a];
  const bool forward = kernel->pass == LUATTN_FORWARD;
  const double full = forward ? (column_cycles * keys * dim + box_overhead) * queries / 128
                              : backward_cycles * dim * keys * queries / (64 * 128);
  const box_counts *n = &pair->counts;
  const double partial = forward ? full + partial_cycles * queries / 128 : full * partial_factor;
  return n->outer * (forward ? q_box_cycles : kv_box_cycles) + full * n->full + partial * (n->computed - n->full);
}

luattn_status box_count(luattn_pass pass, const box_axis axis[LUATTN_GRID_AXES], box_pair *pair, luattn_error *err) {
  axis_lines lines[LUATTN_GRID_AXES];
  const luattn_status status = split_axes(axis, lines, err);
  if (status == LUATTN_OK) {
    box_counts n = {1, 1, 1, 1};
    for (int a = 0; a < LUATTN_GRID_AXES; a++) {
      const int q = pair->q.extent[a], kv = pair->kv.extent[a];
      const axis_counts c = pair->origin == BOX_GIVEN
                                ? count_lines(&lines[a], pass, pair->origin, pair->first[a], q, kv)
                                : count_axis(&lines[a], pass, pair->origin, q, kv);
      n.kept *= kept_of(&lines[a]), n.outer *= c.outer, n.computed *= c.computed, n.full *= c.full;
      pair->first[a] = c.first;
    }
    pair->counts = n;
  }
  free_lines(lines);
  return status;
}

/* ---- the choice ---- */

enum { OUTER_LOG2 = 9, INNER_MOST = 256, SIDE_ALIGNED = 4 };

/* Counts of an axis, for each pair of extents that was asked for. */
typedef struct known_counts {
  axis_counts of[OUTER_LOG2][INNER_MOST + 1];
  bool is_known[OUTER_LOG2][INNER_MOST + 1];
} known_counts;

typedef struct search {
  const box_kernel *kernel;
  const box_axis *axis;
  const axis_lines *lines;
  known_counts *known; /* [LUATTN_GRID_AXES] */
  double kept;
  grid_box outer, inner;
  box_pair *best;
  int most, count;
} search;

static int log2_of(int power) {
  int n = 0;
  while (power > 1) power /= 2, n++;
  return n;
}

static const axis_counts *counts_of(search *s, int a) {
  known_counts *k = &s->known[a];
  const int row = log2_of(s->outer.extent[a]), inner = s->inner.extent[a];
  const bool forward = s->kernel->pass == LUATTN_FORWARD;
  if (!k->is_known[row][inner]) {
    const int outer = s->outer.extent[a];
    k->is_known[row][inner] = true;
    k->of[row][inner] =
        count_axis(&s->lines[a], s->kernel->pass, s->kernel->origin, forward ? outer : inner, forward ? inner : outer);
  }
  return &k->of[row][inner];
}

static void try_pair(search *s) {
  const bool forward = s->kernel->pass == LUATTN_FORWARD;
  box_pair p = {.q = forward ? s->outer : s->inner, .kv = forward ? s->inner : s->outer, .origin = s->kernel->origin};
  p.counts = (box_counts){s->kept, 1, 1, 1};
  for (int a = 0; a < LUATTN_GRID_AXES; a++) {
    const axis_counts *c = counts_of(s, a);
    p.counts.outer *= c->outer, p.counts.computed *= c->computed, p.counts.full *= c->full;
    p.first[a] = c->first;
  }
  p.cycles = box_cycles(s->kernel, &p);
  int at = s->count;
  while (at > 0 && s->best[at - 1].cycles > p.cycles) at--;
  if (at == s->most) return;
  const int kept = least_of(s->count, s->most - 1);
  memmove(&s->best[at + 1], &s->best[at], (size_t)(kept - at) * sizeof p);
  s->best[at] = p;
  s->count = kept + 1;
}

/* Whether all positions along an axis are one: then no box is longer there. */
static bool is_unused(const box_axis *axis) { return axis->q_extent == 1 && axis->kv_extent == 1; }

/* Gives axes from `a` on the extents whose product is `left`. */
static void each_inner(search *s, int a, int left) {
  const bool innermost = a == LUATTN_GRID_AXES - 1;
  if (innermost) {
    if (left % SIDE_ALIGNED != 0 && !is_unused(&s->axis[a])) return;
    s->inner.extent[a] = left;
    try_pair(s);
    return;
  }
  for (int n = 1; n <= left; n++) {
    if (left % n != 0 || (n > 1 && is_unused(&s->axis[a]))) continue;
    s->inner.extent[a] = n;
    each_inner(s, a + 1, left / n);
  }
}

static void each_outer(search *s, int a, int left) {
  if (a == LUATTN_GRID_AXES - 1) {
    s->outer.extent[a] = left;
    for (const int *columns = s->kernel->columns; *columns != 0; columns++) each_inner(s, 0, *columns);
    return;
  }
  for (int n = 1; n <= left && (n == 1 || !is_unused(&s->axis[a])); n *= 2) {
    s->outer.extent[a] = n;
    each_outer(s, a + 1, left / n);
  }
}

luattn_status box_choose(const box_kernel *kernel, const box_axis axis[LUATTN_GRID_AXES], box_pair *out, int most,
                         int *count, luattn_error *err) {
  *count = 0;
  axis_lines lines[LUATTN_GRID_AXES];
  luattn_status status = split_axes(axis, lines, err);
  known_counts *known = calloc(LUATTN_GRID_AXES, sizeof *known);
  if (status == LUATTN_OK && known == NULL)
    status = luattn_fail(err, LUATTN_NO_MEMORY, "boxes of a grid: out of memory");
  if (status == LUATTN_OK) {
    search s = {.kernel = kernel, .axis = axis, .lines = lines, .known = known, .best = out, .most = most, .kept = 1};
    for (int a = 0; a < LUATTN_GRID_AXES; a++) s.kept *= kept_of(&lines[a]);
    each_outer(&s, 0, kernel->rows);
    *count = s.count;
  }
  free(known);
  free_lines(lines);
  return status;
}
