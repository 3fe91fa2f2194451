/* grid_mask_test.c: compares masks over random grids with brute force: what they keep with their definitions, written
 * another way; ranges along each axis and classes of boxes with what they keep; intervals of rows and columns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"
#include "gen/lua/front.h"

enum { MOST_AXES = 4, MOST_PLACES = 256, ENDS = 4, LINE = 6, OF_AXIS = ENDS + 2 * LINE };

static uint64_t seed = 20260714;
static int below(int n) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int)((seed >> 33) % (uint64_t)n);
}
static int between(int lo, int hi) { return lo + below(hi - lo + 1); }

typedef enum kind { NEIGHBORHOOD, SLIDING_TILE, SWIN, AXIAL_CAUSAL, DISC, DILATED_BAND, KINDS } kind;

typedef struct drawn {
  kind kind;
  int axes, extent[2][MOST_AXES]; /* of q, of kv */
  int kernel[MOST_AXES], stride[MOST_AXES], dilation[MOST_AXES], radius;
  bool flag[MOST_AXES];
  bool causal; /* and causal along axis 0 */
} drawn;

/* ---- definitions ---- */

/* NATTEN's own expression of a window (semantics of its reference mask). */
static bool near(const drawn *d, int a, int i, int j, int L) {
  const int dilation = d->dilation[a], k = d->kernel[a], s = d->stride[a];
  const int g = i % dilation, p = i / dilation, n = (L - g + dilation - 1) / dilation;
  if (j % dilation != g) return false;
  const int x = j / dilation;
  if (d->flag[a]) {
    const int leader = s * (p / s) + s - 1 < n - 1 || s == 1 ? s * (p / s) + s - 1 : n - 1;
    const int start = leader - k + 1 > 0 ? leader - k + 1 : 0;
    return x >= start && x <= p;
  }
  const int left = k / 2, right = k / 2 + k % 2 - 1;
  const int leader = s * (p / s) + s / 2 < n - 1 || s == 1 ? s * (p / s) + s / 2 : n - 1;
  int start = leader - left > 0 ? leader - left : 0;
  if (leader + right >= n) start += n - right - leader - 1;
  return x >= start && x < start + k;
}

static bool tiles_near(const drawn *d, int a, int i, int j, int L) {
  const int tile = d->stride[a], across = d->kernel[a] / tile, tiles = (L + tile - 1) / tile;
  int first = i / tile - across / 2;
  if (first + across > tiles) first = tiles - across;
  if (first < 0) first = 0;
  return j / tile >= first && j / tile < first + across;
}

static int window_of(int c, int window, int shift) { return c < shift ? -1 : (c - shift) / window; }

static bool keeps(const drawn *d, const int *q, const int *kv) {
  int distance = 0;
  for (int a = 0; a < d->axes; a++) {
    const int L = d->extent[1][a];
    if (d->kind == NEIGHBORHOOD && !near(d, a, q[a], kv[a], L)) return false;
    if (d->kind == SLIDING_TILE && !tiles_near(d, a, q[a], kv[a], L)) return false;
    if (d->kind == SWIN && window_of(q[a], d->kernel[a], d->stride[a]) != window_of(kv[a], d->kernel[a], d->stride[a]))
      return false;
    if (d->kind == DILATED_BAND &&
        ((kv[a] - q[a]) % d->dilation[a] != 0 || abs(kv[a] - q[a]) > d->kernel[a] * d->dilation[a]))
      return false;
    if (d->kind == AXIAL_CAUSAL && (d->flag[a] ? kv[a] > q[a] : kv[a] != q[a])) return false;
    distance += (q[a] - kv[a]) * (q[a] - kv[a]);
  }
  if (d->kind == DISC && distance > d->radius * d->radius) return false;
  return !d->causal || kv[0] <= q[0];
}

/* ---- specs ---- */

static void draw(drawn *d) {
  static const int most[] = {0, 24, 13, 6, 4};
  memset(d, 0, sizeof *d);
  d->kind = (kind)below(KINDS);
  d->axes = between(2, MOST_AXES);
  d->causal = below(3) == 0;
  d->radius = between(1, 5);
  for (int a = 0; a < d->axes; a++) {
    for (int side = 0; side < 2; side++) d->extent[side][a] = between(2, most[d->axes]);
    if (below(2) == 0) d->extent[0][a] = d->extent[1][a];
    const int L = d->extent[1][a];
    d->dilation[a] = L >= 4 && below(2) == 0 ? between(1, L / 2) : 1;
    d->kernel[a] = between(2, L / d->dilation[a] < 2 ? 2 : L / d->dilation[a]); /* up to the whole axis */
    d->stride[a] = between(1, d->kernel[a]);
    d->flag[a] = below(3) == 0;
    if (d->kind == SLIDING_TILE) d->stride[a] = between(1, 3), d->kernel[a] = d->stride[a] * (1 + 2 * below(2));
    if (d->kind == SWIN) d->stride[a] = below(d->kernel[a]);
  }
}

static void list(char *out, const char *name, const drawn *d, const int *x) {
  sprintf(out + strlen(out), "%s{", name);
  for (int a = 0; a < d->axes; a++) sprintf(out + strlen(out), "%d, ", x[a]);
  strcat(out, "}");
}

static void write_mask(const drawn *d, char *out) {
  static const char names[] = "tzyx";
  strcpy(out, "return attention { grid = {");
  for (int a = 0; a < d->axes; a++) sprintf(out + strlen(out), "'%c', ", names[a]);
  strcat(out, "}, block_mask = mask_and(");
  if (d->kind == NEIGHBORHOOD) {
    list(out, "neighborhood { kernel_size = ", d, d->kernel);
    list(out, ", stride = ", d, d->stride);
    list(out, ", dilation = ", d, d->dilation);
    strcat(out, ", is_causal = {");
    for (int a = 0; a < d->axes; a++) strcat(out, d->flag[a] ? "true, " : "false, ");
    strcat(out, "} }");
  } else if (d->kind == SLIDING_TILE) {
    list(out, "sliding_tile { tile = ", d, d->stride);
    list(out, ", window = ", d, d->kernel);
    strcat(out, " }");
  } else if (d->kind == SWIN) {
    list(out, "swin(", d, d->kernel);
    list(out, ", ", d, d->stride);
    strcat(out, ")");
  } else if (d->kind == AXIAL_CAUSAL) {
    strcat(out, "function() return true end");
    for (int causal = 0; causal < 2; causal++) {
      int count = 0;
      for (int a = 0; a < d->axes; a++) {
        if (!d->flag[a]) continue;
        sprintf(out + strlen(out), "%s'%c'", count++ > 0 ? ", " : causal ? ", causal_along(" : ", axial(", names[a]);
      }
      strcat(out, count > 0 ? ")" : causal ? "" : ", function(b, h, q, k) return ");
      for (int a = 0; a < d->axes && count == 0 && !causal; a++)
        sprintf(out + strlen(out), "%seq(q.%c, k.%c)", a > 0 ? " and " : "", names[a], names[a]);
      if (count == 0 && !causal) strcat(out, " end");
    }
  } else if (d->kind == DILATED_BAND) {
    static const char *const forms[] = {"eq((k.%c - q.%c) %% %d, 0)", "eq((q.%c - k.%c + %d) %% %d, 0)",
                                        "eq(q.%c %% %d, k.%c %% %d)"};
    strcat(out, "function(b, h, q, k) return true");
    for (int a = 0; a < d->axes; a++) {
      const int x = names[a], by = d->dilation[a], form = d->stride[a] % 3;
      char *to = (strcat(out, " and "), out + strlen(out));
      if (form == 0) sprintf(to, forms[0], x, x, by);
      if (form == 1) sprintf(to, forms[1], x, x, 2 * by, by);
      if (form == 2) sprintf(to, forms[2], x, by, x, by);
      sprintf(to + strlen(to), " and abs(q.%c - k.%c) <= %d", x, x, d->kernel[a] * by);
    }
    strcat(out, " end");
  } else {
    strcat(out, "function(b, h, q, k) local r = 0 ");
    for (int a = 0; a < d->axes; a++)
      sprintf(out + strlen(out), "r = r + (q.%c - k.%c) * (q.%c - k.%c) ", names[a], names[a], names[a], names[a]);
    sprintf(out + strlen(out), "return r <= %d end", d->radius * d->radius);
  }
  strcat(out, d->causal ? ", causal_along('t')) }" : ") }");
}

/* ---- evaluation ---- */

typedef struct mask_case {
  drawn d;
  char text[1200];
  arena *a;
  traced_spec t;
  mask_info m;
  ir_program *keep, *of_axes;
  void *keep_scratch, *axes_scratch;
  ir_bounds *bounds;
  int places[2];
  bool kept[MOST_PLACES][MOST_PLACES];
  /* of the current evaluation */
  int q[MOST_AXES], kv0, tile[ENDS * MOST_AXES];
} mask_case;

static void coordinates(const mask_case *c, int side, int place, int *at) {
  for (int a = c->d.axes - 1; a >= 0; a--) {
    at[a] = place % c->d.extent[side][a];
    place /= c->d.extent[side][a];
  }
}

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const mask_case *c = user;
  for (int i = 0; i < lanes; i++) {
    int at[MOST_AXES];
    if (v == VAR_KV) coordinates(c, 1, c->kv0 + i < c->places[1] ? c->kv0 + i : 0, at);
    out[i] = v == VAR_KV       ? at[index]
             : v == VAR_Q      ? c->q[index]
             : v == VAR_Q_LEN  ? c->d.extent[0][index]
             : v == VAR_KV_LEN ? c->d.extent[1][index]
             : v == VAR_TILE   ? c->tile[index]
                               : 0;
  }
}

static ir_bounds box_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const mask_case *c = user;
  const int *end = c->tile + ENDS * index;
  (void)type;
  ir_bounds b = {.integer = ivi_all()};
  if (v == VAR_Q) b.integer = ivi_make(end[VAR_Q0], end[VAR_Q1]);
  if (v == VAR_KV) b.integer = ivi_make(end[VAR_KV0], end[VAR_KV1]);
  if (v == VAR_Q_LEN) b.integer = ivi_point(c->d.extent[0][index]);
  if (v == VAR_KV_LEN) b.integer = ivi_point(c->d.extent[1][index]);
  return b;
}

static ir_ref or_end(ir *g, ir_ref side, int axis, bool upper, bool of_kv) {
  if (side != IR_NONE) return side;
  return upper ? ir_variable(g, of_kv ? VAR_KV_LEN : VAR_Q_LEN, (uint32_t)axis) : ir_int(g, 0);
}

static void put_intervals(ir *g, const mask_intervals *m, int axis, bool of_kv, ir_ref out[LINE]) {
  for (int i = 0; i < 2; i++) {
    out[2 * i] = or_end(g, m->lo[i], axis, false, of_kv);
    out[2 * i + 1] = or_end(g, m->hi[i], axis, true, of_kv);
  }
  out[4] = or_end(g, m->rest_lo, axis, false, of_kv);
  out[5] = or_end(g, m->rest_hi, axis, true, of_kv);
}

static void *compile(mask_case *c, const ir_ref *roots, int n, ir_program **p) {
  *p = ir_program_new(c->a, c->t.g, roots, n);
  assert_non_null(*p);
  return arena_new(c->a, ir_program_scratch(*p));
}

static void open_case(mask_case *c) {
  luattn_error err;
  write_mask(&c->d, c->text);
  c->a = arena_open(NULL);
  if (front_trace(c->a, "test.lua", c->text, strlen(c->text), &c->t, &err) != LUATTN_OK)
    fail_msg("%s\n%s", c->text, err.message);
  const ir_ref written = c->t.block_mask != IR_NONE ? c->t.block_mask : ir_bool(c->t.g, true);
  if (mask_analyse(c->a, &c->t, &c->m, &err) != LUATTN_OK) fail_msg("%s\n%s", c->text, err.message);
  assert_int_equal(c->m.num_axes, c->d.axes);
  for (int a = 0; a < c->d.axes; a++) {
    const bool dilated = (c->d.kind == NEIGHBORHOOD || c->d.kind == DILATED_BAND) && c->d.dilation[a] <= MASK_STEP_MAX;
    assert_int_equal(c->m.axis[a].step, dilated ? c->d.dilation[a] : 1);
  }
  ir *g = c->t.g;
  ir_ref root[OF_AXIS * MOST_AXES];
  for (int a = 0; a < c->d.axes; a++) {
    const mask_axis *axis = &c->m.axis[a];
    const ir_ref side[ENDS] = {axis->kv_lo, axis->kv_hi, axis->q_lo, axis->q_hi};
    ir_ref *to = root + OF_AXIS * a;
    for (int i = 0; i < ENDS; i++) to[i] = or_end(g, side[i], a, i % 2 == 1, i < 2);
    put_intervals(g, &axis->rows, a, true, to + ENDS);
    put_intervals(g, &axis->columns, a, false, to + ENDS + LINE);
  }
  c->keep_scratch = compile(c, &written, 1, &c->keep);
  c->axes_scratch = compile(c, root, OF_AXIS * c->d.axes, &c->of_axes);
  c->bounds = arena_array(c->a, ir_count(g), sizeof *c->bounds);
  for (int side = 0; side < 2; side++) {
    c->places[side] = 1;
    for (int a = 0; a < c->d.axes; a++) c->places[side] *= c->d.extent[side][a];
    assert_true(c->places[side] <= 24 * 24);
    if (c->places[side] > MOST_PLACES) c->places[side] = MOST_PLACES;
  }
}

/* ---- checks ---- */

static void check_keep(mask_case *c) {
  const ir_env env = {.user = c, .variable = variable};
  for (int q = 0; q < c->places[0]; q++) {
    coordinates(c, 0, q, c->q);
    for (c->kv0 = 0; c->kv0 < c->places[1]; c->kv0 += IR_LANES) {
      double x[IR_LANES], *out = x;
      ir_program_run(c->keep, &env, IR_LANES, c->keep_scratch, &out);
      for (int i = 0; i < IR_LANES && c->kv0 + i < c->places[1]; i++) {
        int kv[MOST_AXES];
        coordinates(c, 1, c->kv0 + i, kv);
        c->kept[q][c->kv0 + i] = x[i] != 0;
        if ((x[i] != 0) != keeps(&c->d, c->q, kv))
          fail_msg("%s: q %d of %d, kv %d of %d: %g", c->text, q, c->places[0], c->kv0 + i, c->places[1], x[i]);
      }
    }
  }
}

/* Whether x, of a line at `other`, lies in its group and in an interval and, with a period, in its remainders. */
static bool in_intervals(const mask_intervals *m, const double line[LINE], int step, int other, int x) {
  if ((x - other) % step != 0) return false;
  const bool first = x >= line[0] && x < line[1], second = m->count == 2 && x >= line[2] && x < line[3];
  if (!first && !second) return false;
  if (m->period == 0) return true;
  for (int at = x - 2 * m->period * (1 + x / m->period); at <= x + 2 * m->period; at += 1)
    if ((at - x) % m->period == 0 && at >= line[4] && at < line[5]) return true;
  return false;
}

typedef struct counts {
  long boxes, decided, decidable, products, rows_known;
} counts;

static void check_box(mask_case *c, counts *n) {
  /* Boxes of places by the axis' step, both in one group. */
  for (int a = 0; a < c->d.axes; a++) {
    const int step = c->m.axis[a].step, *L[] = {&c->d.extent[0][a], &c->d.extent[1][a]};
    const int group = below(*L[0] < *L[1] ? (*L[0] < step ? *L[0] : step) : (*L[1] < step ? *L[1] : step));
    for (int side = 0; side < 2; side++) {
      const int places = (*L[side] - group + step - 1) / step, lo = below(places), size = between(1, 4);
      c->tile[ENDS * a + 2 * side] = group + lo * step;
      c->tile[ENDS * a + 2 * side + 1] = group + (lo + size < places ? lo + size - 1 : places - 1) * step;
    }
  }
  const ir_bounds_env bounds_env = {.user = c, .variable = box_variable};
  const ir_env env = {.user = c, .variable = variable};
  const mask_info within = {.keep = c->m.within};
  const int class = mask_tile_class(c->t.g, &within, &bounds_env, c->bounds);
  double value[OF_AXIS * MOST_AXES], *out[OF_AXIS * MOST_AXES];
  for (int i = 0; i < OF_AXIS * c->d.axes; i++) out[i] = &value[i];
  ir_program_run(c->of_axes, &env, 1, c->axes_scratch, out);
  long kept = 0, all = 0;
  for (int q = 0; q < c->places[0]; q++) {
    int at[2][MOST_AXES];
    coordinates(c, 0, q, at[0]);
    for (int kv = 0; kv < c->places[1]; kv++) {
      bool inside = true;
      coordinates(c, 1, kv, at[1]);
      bool q_in = true, kv_in = true;
      for (int a = 0; a < c->d.axes; a++) {
        const int *end = c->tile + ENDS * a;
        const int step = c->m.axis[a].step;
        q_in &= at[0][a] >= end[VAR_Q0] && at[0][a] <= end[VAR_Q1] && (at[0][a] - end[VAR_Q0]) % step == 0;
        kv_in &= at[1][a] >= end[VAR_KV0] && at[1][a] <= end[VAR_KV1] && (at[1][a] - end[VAR_KV0]) % step == 0;
      }
      inside = q_in && kv_in;
      all += inside, kept += inside && c->kept[q][kv];
      for (int a = 0; a < c->d.axes && c->kept[q][kv]; a++) {
        const double *range = value + OF_AXIS * a;
        if (q_in && !(at[1][a] >= range[0] && at[1][a] < range[1]))
          fail_msg("%s: axis %d: a kept kv %d is outside of [%g, %g)", c->text, a, at[1][a], range[0], range[1]);
        if (kv_in && !(at[0][a] >= range[2] && at[0][a] < range[3]))
          fail_msg("%s: axis %d: a kept q %d is outside of [%g, %g)", c->text, a, at[0][a], range[2], range[3]);
      }
    }
  }
  if (class == 0 && kept > 0) fail_msg("%s: an empty box keeps %ld of %ld", c->text, kept, all);
  if (class == 2 && kept < all) fail_msg("%s: a full box keeps %ld of %ld", c->text, kept, all);
  n->boxes++, n->decided += class != 1, n->decidable += kept == 0 || kept == all;
}

/* A product's rows and columns are what their intervals along each axis say. */
static void check_lines(mask_case *c, counts *n) {
  const ir_env env = {.user = c, .variable = variable};
  bool rows = c->m.is_product, columns = c->m.is_product;
  for (int a = 0; a < c->d.axes; a++) rows &= c->m.axis[a].rows.count > 0, columns &= c->m.axis[a].columns.count > 0;
  n->products += c->m.is_product, n->rows_known += rows;
  for (int of_kv = 0; of_kv < 2; of_kv++) {
    if (!(of_kv ? columns : rows)) continue;
    for (int line = 0; line < c->places[of_kv]; line++) {
      int at[MOST_AXES], other[MOST_AXES];
      double value[OF_AXIS * MOST_AXES], *out[OF_AXIS * MOST_AXES];
      coordinates(c, of_kv, line, at);
      for (int a = 0; a < c->d.axes; a++) c->tile[ENDS * a + (of_kv ? VAR_KV0 : VAR_Q0)] = at[a];
      for (int i = 0; i < OF_AXIS * c->d.axes; i++) out[i] = &value[i];
      ir_program_run(c->of_axes, &env, 1, c->axes_scratch, out);
      for (int x = 0; x < c->places[!of_kv]; x++) {
        bool in = true;
        coordinates(c, !of_kv, x, other);
        for (int a = 0; a < c->d.axes; a++)
          in &= in_intervals(of_kv ? &c->m.axis[a].columns : &c->m.axis[a].rows,
                             value + OF_AXIS * a + ENDS + (of_kv ? LINE : 0), c->m.axis[a].step, at[a], other[a]);
        if (in != (of_kv ? c->kept[x][line] : c->kept[line][x]))
          fail_msg("%s: %s %d: intervals %s %d", c->text, of_kv ? "column" : "row", line, in ? "have" : "lack", x);
      }
    }
  }
}

static int rounds = 400;

static void test_random_grids(void **state) {
  (void)state;
  static mask_case c;
  counts of[KINDS] = {{0}};
  for (int i = 0; i < rounds; i++) {
    memset(&c, 0, sizeof c);
    draw(&c.d);
    open_case(&c);
    check_keep(&c);
    for (int k = 0; k < 6; k++) check_box(&c, &of[c.d.kind]);
    check_lines(&c, &of[c.d.kind]);
    arena_close(c.a);
  }
  for (int k = 0; k < KINDS; k++) {
    const counts *n = &of[k];
    /* A box at an end, or under several conditions, may stay undecided; most are not. */
    if ((double)n->decided < (double)n->decidable * (k == DISC ? 0.5 : 0.8))
      fail_msg("kind %d: %ld of %ld boxes are decided, %ld could be", k, n->decided, n->boxes, n->decidable);
    if (k != DISC) assert_true(n->products > 0 && n->rows_known > n->products / 2);
    if (k == DISC) assert_int_equal(n->products, 0);
  }
}

/* An argument: thousands of grids. */
int main(int argc, char **argv) {
  (void)argv;
  if (argc > 1) rounds = 5000;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_grids)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
