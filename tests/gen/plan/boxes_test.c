/* boxes_test.c: counts of boxes beside a count score by score, and the rates that they predict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/plan/boxes.h"

enum { AXES = LUATTN_GRID_AXES };

static uint64_t state = 20;
static int below(int n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int)((state >> 33) % (uint64_t)n);
}
static int least_of(int a, int b) { return a < b ? a : b; }
static int most_of(int a, int b) { return a > b ? a : b; }

/* Fills the window of a neighbourhood: NATTEN's, by remainders of the dilation. */
static void fill_window(int extent, int window, int stride, int dilation, int causal, int *lo, int *hi) {
  for (int i = 0; i < extent; i++) {
    const int g = i % dilation, p = i / dilation, n = (extent - g + dilation - 1) / dilation;
    const int leader = least_of(stride * (p / stride) + (causal ? stride - 1 : stride / 2), n - 1);
    const int start = causal ? most_of(leader - window + 1, 0) : most_of(least_of(leader - window / 2, n - window), 0);
    lo[i] = g + dilation * start;
    hi[i] = g + dilation * ((causal ? p : start + window - 1)) + 1;
  }
}

/* ---- counts score by score ---- */

typedef struct grid {
  box_axis axis[AXES];
  int lo[AXES][64], hi[AXES][64];
} grid;

static int keeps(const box_axis *a, int q, int kv) {
  return (kv - q) % a->step == 0 && kv >= a->lo[q] && kv < a->hi[q];
}

/* One group of an axis, box by box: the same definitions as boxes.h, by loops. */
static void count_boxes(luattn_pass pass, const box_axis *a, int g, const box_pair *p, int which, double out[4]) {
  const int nq = (a->q_extent - g + a->step - 1) / a->step, nk = (a->kv_extent - g + a->step - 1) / a->step;
  const int forward = pass == LUATTN_FORWARD, bq = p->q.extent[which], bk = p->kv.extent[which];
  const int outer = forward ? bq : bk, inner = forward ? bk : bq, no = forward ? nq : nk, ni = forward ? nk : nq;
  for (int o = 0; o < no; o += outer) {
    int from = ni, to = 0;
    for (int x = o; x < least_of(o + outer, no); x++)
      for (int y = 0; y < ni; y++)
        if (keeps(a, g + a->step * (forward ? x : y), g + a->step * (forward ? y : x)))
          from = least_of(from, y), to = most_of(to, y + 1);
    out[0]++;
    for (int i = p->origin == BOX_FREE ? from : p->first[which]; i < to; i += inner) {
      int any = 0, all = i >= 0 && i + inner <= ni && (forward || o + outer <= no);
      for (int x = o; x < least_of(o + outer, no); x++)
        for (int y = most_of(i, 0); y < least_of(i + inner, ni); y++)
          if (keeps(a, g + a->step * (forward ? x : y), g + a->step * (forward ? y : x)))
            any = 1, out[3]++;
          else
            all = 0;
      out[1] += any, out[2] += any && all;
    }
  }
}

static void draw(grid *g, int axes, int is_neighborhood) {
  for (int a = 0; a < AXES; a++) {
    box_axis *x = &g->axis[a];
    *x = (box_axis){1, 1, 1, g->lo[a], g->hi[a]};
    g->lo[a][0] = 0, g->hi[a][0] = 1;
    if (a < AXES - axes) continue;
    x->q_extent = x->kv_extent = 3 + below(38);
    if (is_neighborhood) {
      const int steps = below(4) == 0 ? 17 : 3;
      x->step = 1 + below(steps < x->q_extent ? steps : x->q_extent);
      const int most = x->q_extent / x->step, window = 1 + below(most);
      fill_window(x->q_extent, window, 1 + below(window), x->step, below(2), g->lo[a], g->hi[a]);
    } else {
      x->kv_extent = 1 + below(40);
      for (int i = 0; i < x->q_extent; i++)
        g->lo[a][i] = below(x->kv_extent), g->hi[a][i] = below(x->kv_extent + 1); /* some empty */
    }
  }
}

static void check_pair(const grid *g, luattn_pass pass, box_pair *p) {
  luattn_error err;
  assert_int_equal(box_count(pass, g->axis, p, &err), LUATTN_OK);
  double want[4] = {1, 1, 1, 1};
  for (int a = 0; a < AXES; a++) {
    double sum[4] = {0};
    for (int r = 0; r < g->axis[a].step; r++) count_boxes(pass, &g->axis[a], r, p, a, sum);
    for (int i = 0; i < 4; i++) want[i] *= sum[i];
    const int inner = pass == LUATTN_FORWARD ? p->kv.extent[a] : p->q.extent[a];
    assert_true(p->first[a] <= 0 && p->first[a] > -inner &&
                (p->origin == BOX_PHASE || p->origin == BOX_GIVEN || p->first[a] == 0));
  }
  const double got[4] = {p->counts.outer, p->counts.computed, p->counts.full, p->counts.kept};
  for (int i = 0; i < 4; i++)
    if (got[i] != want[i])
      fail_msg("pass %d origin %d, number %d: %.0f, counted %.0f", pass, p->origin, i, got[i], want[i]);
}

static void counts_are_exact(void **unused) {
  (void)unused;
  static const int extents[] = {1, 2, 3, 4, 6, 7, 8, 10, 16};
  for (int trial = 0; trial < 3000; trial++) {
    grid g;
    const int axes = 1 + below(AXES), is_neighborhood = trial % 4 != 0;
    draw(&g, axes, is_neighborhood);
    for (int pass = LUATTN_FORWARD; pass <= LUATTN_BACKWARD; pass++) {
      box_pair p = {.origin = (box_origin)below(pass == LUATTN_FORWARD ? BOX_FREE + 1 : BOX_FREE)};
      for (int a = 0; a < AXES; a++) {
        p.q.extent[a] = a < AXES - axes ? 1 : extents[below(9)];
        p.kv.extent[a] = a < AXES - axes ? 1 : extents[below(9)];
        if (p.origin == BOX_GIVEN) p.first[a] = -below(pass == LUATTN_FORWARD ? p.kv.extent[a] : p.q.extent[a]);
      }
      check_pair(&g, (luattn_pass)pass, &p);
    }
  }
}

/* ---- the choice ---- */

/* A grid of NATTEN's published cases. */
static void neighborhood(grid *g, int axes, const int extent[], const int window[], const int stride[]) {
  static int lo[AXES][512], hi[AXES][512];
  for (int a = 0; a < AXES; a++) {
    const int i = a - (AXES - axes);
    g->axis[a] = (box_axis){1, 1, 1, lo[a], hi[a]};
    lo[a][0] = 0, hi[a][0] = 1;
    if (i < 0) continue;
    g->axis[a].q_extent = g->axis[a].kv_extent = extent[i];
    fill_window(extent[i], window[i], stride[i], 1, 0, lo[a], hi[a]);
  }
}

static double rate_of(const box_kernel *k, const box_pair *p) {
  const double flop = (k->pass == LUATTN_FORWARD ? 4 : 10) * p->counts.kept * k->head_dim;
  return flop / (p->cycles / 132 / 1.684e9) / 1e12;
}

static const int wide[] = {64, 80, 96, 112, 128, 144, 160, 176, 0}, usual[] = {64, 128, 0}, narrow[] = {64, 0};

static double best_rate(const grid *g, luattn_pass pass, box_origin origin, box_pair *best) {
  const box_kernel k = {pass, 128, 128, pass == LUATTN_BACKWARD ? narrow : origin == BOX_FREE ? wide : usual, origin};
  box_pair found[3];
  int count;
  luattn_error err;
  assert_int_equal(box_choose(&k, g->axis, found, 3, &count, &err), LUATTN_OK);
  assert_int_equal(count, 3);
  for (int i = 0; i < count; i++) {
    box_pair again = found[i];
    assert_int_equal(box_count(pass, g->axis, &again, &err), LUATTN_OK);
    assert_memory_equal(&again.counts, &found[i].counts, sizeof again.counts);
    assert_true(i == 0 || found[i - 1].cycles <= found[i].cycles);
    int q = 1, kv = 1;
    for (int a = 0; a < AXES; a++) q *= found[i].q.extent[a], kv *= found[i].kv.extent[a];
    assert_int_equal(pass == LUATTN_FORWARD ? q : kv, 128);
  }
  *best = found[0];
  return rate_of(&k, &found[0]);
}

static void assert_near(double got, double want) {
  if (got < want * 0.99 || got > want * 1.03) fail_msg("%.1f, expected %.1f", got, want);
}

static void choice_is_best(void **unused) {
  (void)unused;
  grid g;
  box_pair p;
  neighborhood(&g, 2, (int[]){256, 256}, (int[]){80, 80}, (int[]){1, 1});
  assert_near(best_rate(&g, LUATTN_FORWARD, BOX_LATTICE, &p), 535);
  assert_near(best_rate(&g, LUATTN_FORWARD, BOX_FREE, &p), 584);
  assert_near(best_rate(&g, LUATTN_BACKWARD, BOX_PHASE, &p), 532);
  neighborhood(&g, 2, (int[]){256, 256}, (int[]){80, 80}, (int[]){16, 16});
  best_rate(&g, LUATTN_FORWARD, BOX_LATTICE, &p);
  assert_true(p.counts.full == p.counts.computed);
  neighborhood(&g, 3, (int[]){30, 48, 80}, (int[]){18, 24, 24}, (int[]){1, 1, 1});
  assert_near(best_rate(&g, LUATTN_FORWARD, BOX_FREE, &p), 445);
  neighborhood(&g, 2, (int[]){128, 128}, (int[]){13, 13}, (int[]){1, 1});
  assert_near(best_rate(&g, LUATTN_FORWARD, BOX_FREE, &p), 136);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(counts_are_exact), cmocka_unit_test(choice_is_best)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
