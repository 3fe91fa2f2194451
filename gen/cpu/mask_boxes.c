#include "gen/cpu/mask_boxes.h"

#include <math.h>
#include <string.h>

#include "gen/cpu/mask_survey.h"

enum { AXES = LUATTN_GRID_AXES };

/* A query along one axis. */
typedef struct axis_query {
  tile_box tile; /* first, for tile_box_variable */
  int at;
} axis_query;

typedef struct mask_lines {
  box_axis axis[AXES];
  int *bounds[AXES]; /* [2 q_extent]: what each query keeps: lo, then hi */
  int *last;         /* those of the head before, of all axes */
  bool is_known;
} mask_lines;

static ir_bounds query_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const axis_query *x = user;
  return v == VAR_TILE ? (ir_bounds){.integer = {x->at, x->at}} : tile_box_variable(user, v, index, type);
}

/* As kernels have it: an end that is no number leaves the axis whole. */
static int end_of(const cpu_problem *p, axis_query *x, ir_ref end, bool is_upper, int extent) {
  const ir_bounds_env env = {.user = x, .variable = query_variable, .load = tile_box_load};
  ir_bounds found;
  if (end == IR_NONE) return is_upper ? extent : 0;
  ir_interval(p->g, &end, 1, &env, p->worker[0].bounds, &found);
  const long long at = is_upper ? found.integer.hi : found.integer.lo;
  return at < 0 ? 0 : at > extent ? extent : (int)at;
}

static void find_lines(const cpu_problem *p, int b, int h, mask_lines *l) {
  axis_query x = {.tile = {.p = p, .b = b, .h = h}};
  for (int own = 0; own < p->q_side.axes; own++) {
    const int a = AXES - p->q_side.axes + own, n = l->axis[a].q_extent;
    const bool masked = p->mask.keep != IR_NONE;
    const mask_intervals *rows = &p->mask.axis[own].rows;
    for (x.at = 0; x.at < n; x.at++) {
      l->bounds[a][x.at] = end_of(p, &x, masked ? rows->lo[0] : IR_NONE, false, l->axis[a].kv_extent);
      l->bounds[a][n + x.at] = end_of(p, &x, masked ? rows->hi[0] : IR_NONE, true, l->axis[a].kv_extent);
    }
  }
}

/* Whether lines are those of the head before; they become these. */
static bool are_known(mask_lines *l) {
  bool same = l->is_known;
  int *last = l->last;
  for (int a = 0; a < AXES; a++) {
    const size_t count = 2 * (size_t)l->axis[a].q_extent;
    same = same && memcmp(last, l->bounds[a], count * sizeof *last) == 0;
    memcpy(last, l->bounds[a], count * sizeof *last);
    last += count;
  }
  l->is_known = true;
  return same;
}

static bool open_lines(const cpu_problem *p, mask_lines *l) {
  size_t all = 0;
  for (int a = 0; a < AXES; a++) {
    const int own = a - (AXES - p->q_side.axes);
    box_axis *x = &l->axis[a];
    *x = (box_axis){.q_extent = own >= 0 ? (int)p->q_side.extent[own] : 1,
                    .kv_extent = own >= 0 ? (int)p->kv_side.extent[own] : 1,
                    .step = own >= 0 ? p->mask.axis[own].step : 1};
    const size_t count = 2 * (size_t)x->q_extent;
    l->bounds[a] = arena_array(p->a, count + 2, sizeof *l->bounds[a]);
    if (l->bounds[a] == NULL) return false;
    l->bounds[a][0] = 0, l->bounds[a][1] = 1; /* of an axis that the grid lacks */
    x->lo = l->bounds[a], x->hi = l->bounds[a] + x->q_extent;
    all += count;
  }
  l->last = arena_array(p->a, all + 1, sizeof *l->last);
  return l->last != NULL;
}

/* A mask is known along each axis: one interval, of which a period keeps some. */
static bool is_known(const cpu_problem *p, bool *has_period) {
  *has_period = false;
  if (p->mask.keep == IR_NONE) return true;
  for (int a = 0; a < p->q_side.axes && p->mask.is_product; a++) {
    *has_period |= p->mask.axis[a].rows.period > 1;
    if (p->mask.axis[a].rows.count != 1) return false;
  }
  return p->mask.is_product;
}

/* Boxes of so many places along an axis, of all groups, from place `first` of each on. */
static double boxes_along(int extent, int step, int box, int first) {
  double boxes = 0;
  for (int group = 0; group < step && group < extent; group++)
    boxes += ceil((ceil((extent - group) / (double)step) - first) / box);
  return boxes;
}

static luattn_status count_heads(const cpu_problem *p, mask_boxes_call *given, mask_lines *l, bool has_period,
                                 luattn_error *err) {
  luattn_mask_counts *out = given->counts;
  double pairs = 1;
  out->full = out->partial = out->computed_error = out->needed_error = 0;
  for (int a = 0; a < AXES; a++) {
    const box_axis *x = &l->axis[a];
    const int first = given->pair.origin == BOX_GIVEN ? given->pair.first[a] : 0;
    pairs *= boxes_along(x->q_extent, x->step, given->pair.q.extent[a], first) *
             boxes_along(x->kv_extent, x->step, given->pair.kv.extent[a], 0);
  }
  for (int b = 0; b < p->batch; b++)
    for (int h = 0; h < p->heads; h++) {
      find_lines(p, b, h, l);
      if (!are_known(l)) TRY(box_count(given->pass, l->axis, &given->pair, err));
      const double full = has_period ? 0 : given->pair.counts.full;
      out->full += full, out->partial += given->pair.counts.computed - full;
    }
  out->tiles = pairs * p->batch * p->heads;
  out->needed = out->full + out->partial;
  return LUATTN_OK;
}

luattn_status mask_boxes_run(void *call, luattn_error *err) {
  mask_boxes_call *given = call;
  arena *a = arena_open(arena_allocator(given->spec->a));
  cpu_problem p;
  mask_lines lines = {.is_known = false};
  bool has_period;
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  luattn_status status = problem_open_mask(given->spec, given->args, a, &p, err);
  if (status == LUATTN_OK) status = problem_start(&p, 1, err);
  given->is_product = status == LUATTN_OK && is_known(&p, &has_period);
  if (given->is_product)
    status = open_lines(&p, &lines) ? count_heads(&p, given, &lines, has_period, err)
                                    : luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  arena_close(a);
  return status;
}
