#include "runtime/call/grid_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "abi/philox.h"
#include "runtime/call/order.h"
#include "runtime/call/sizes.h"

static const manifest_grid *grid_of(const args_call *c) { return &c->info->grid[0]; }

/* The first used axis of LuattnGrid. */
static int first_axis(const args_call *c) { return LUATTN_GRID_AXES - (int)grid_of(c)->axes; }

static LuattnGridSide *side_of(LuattnCallParams *all, int axis, bool of_keys) {
  LuattnGridAxis *both = &all->grid.axis[axis];
  return of_keys ? &both->kv : &both->q;
}

int grid_step(const args_call *c, int axis) { return c->info->has_steps ? (int)c->info->steps[0].of[axis] : 1; }

bool grid_is_far(const args_call *c, int axis) {
  const uint32_t q = grid_of(c)->q_box[axis], kv = grid_of(c)->kv_box[axis];
  return axis > 0 && grid_step_is_far(grid_step(c, axis), (int)(q > kv ? q : kv)) &&
         manifest_traits(c->info)->takes_descriptors;
}

/* The boxes of all groups along an axis (templates/ops/grid_places.cuh), which begin at place `first` of their groups, at
 * most 0: the last ones of those that begin at the same place may have none. */
static int64_t boxes_along(int64_t extent, int64_t box, int64_t step, int64_t first) {
  const int64_t before_last = ceil_div(ceil_div(extent, step) - first, box) - 1, at = first + before_last * box,
                left = extent - (at > 0 ? at * step : 0);
  if (extent == 0) return 1;
  return before_last * step + (left < step ? left : step);
}

/* "batch, heads, q_len.y, q_len.x, head_dim" for "batch, heads, q_len, head_dim". */
static void axes_text(const args_call *c, const char *along_line, bool of_keys, char axes[GRID_AXES_TEXT]) {
  const char *length = of_keys ? "kv_len" : "q_len", *at = strstr(along_line, length);
  const manifest_grid *g = grid_of(c);
  size_t used = (size_t)snprintf(axes, GRID_AXES_TEXT, "%.*s", (int)(at - along_line), along_line);
  for (uint32_t a = 0; a < g->axes && used < GRID_AXES_TEXT; ++a)
    used += (size_t)snprintf(axes + used, GRID_AXES_TEXT - used, "%s%s.%s", a > 0 ? ", " : "", length, g->name[a]);
  if (used < GRID_AXES_TEXT) snprintf(axes + used, GRID_AXES_TEXT - used, "%s", at + strlen(length));
}

static luattn_status check_rank(const args_call *c, const char *name, const DLTensor *t, const char *along_line,
                                bool of_keys) {
  const int ndim = 3 + (int)grid_of(c)->axes;
  char axes[GRID_AXES_TEXT];
  if (t == NULL) return args_fail(c, "%s: is missing", name);
  axes_text(c, along_line, of_keys, axes);
  if (t->ndim != ndim || t->shape == NULL)
    return args_fail(c, "%s: has %d axes, expected %d: [%s]", name, t->ndim, ndim, axes);
  for (int i = 0; i < ndim - 1; ++i)
    if (t->shape[i] < 0 || t->shape[i] > INT32_MAX)
      return args_fail(c, "%s: axis %d has size %" PRId64 ", expected 0 to %d", name, i, t->shape[i], INT32_MAX);
  return LUATTN_OK;
}

static luattn_status check_extent(const args_call *c, const char *name, uint32_t a, int64_t extent, bool of_keys) {
  const manifest_grid *g = grid_of(c);
  const char *length = of_keys ? "kv_len" : "q_len";
  const int64_t most = c->info->max_len < LUATTN_GRID_EXTENT_MAX ? c->info->max_len : LUATTN_GRID_EXTENT_MAX;
  if (extent > most)
    return args_fail(c, "%s: %s.%s is %" PRId64 ", expected at most %" PRId64 "%s", name, length, g->name[a], extent,
                     most, most < LUATTN_GRID_EXTENT_MAX ? ", where this spec's index arithmetic ends" : "");
  if (of_keys && extent < g->least_extent[a])
    return args_fail(c,
                     "%s: %s.%s is %" PRId64
                     ", and the spec's mask needs at least %u, a window times its dilation; give "
                     "more places, or a smaller window",
                     name, length, g->name[a], extent, g->least_extent[a]);
  return LUATTN_OK;
}

/* Of an axis of LuattnGrid, in steps of `by`. */
static int64_t extent_of(const DLTensor *t, const args_call *c, int axis, int by) {
  const int a = axis - first_axis(c);
  return a >= 0 ? ceil_div(t->shape[2 + a], by) : 1;
}

/* Fills one side, and the number of its slots. */
static luattn_status fill_side(const args_call *c, const char *name, const DLTensor *t, bool of_keys,
                               LuattnCallParams *out, int *slots) {
  const manifest_grid *g = grid_of(c);
  int64_t places = 1, all = 1, padded = 1;
  for (int axis = 0; axis < LUATTN_GRID_AXES; ++axis) {
    const int a = axis - first_axis(c);
    const int64_t extent = a >= 0 ? t->shape[2 + a] : 1, box = (of_keys ? g->kv_box : g->q_box)[axis];
    if (a >= 0) TRY(check_extent(c, name, (uint32_t)a, extent, of_keys));
    places *= extent; /* below 2^60 */
    const int first = of_keys || !c->info->has_phases ? 0 : -(int)c->info->phases[0].of[axis];
    const int64_t boxes = boxes_along(extent, box, grid_step(c, axis), first);
    if (all <= INT32_MAX || extent == 0) all *= extent > 0 ? boxes * box : 0; /* below 2^54, and else too many */
    padded *= grid_is_far(c, axis) ? grid_padded_extent((int)extent, grid_step(c, axis)) : extent;
    *side_of(out, axis, of_keys) =
        (LuattnGridSide){.extent = (int)extent, .first = first, .boxes = order_divisor(boxes)};
  }
  const int64_t most = all > padded ? all : padded;
  if (places > LUATTN_GRID_POSITIONS_MAX || most > INT32_MAX / 2)
    return args_fail(
        c, "%s: has %" PRId64 " places, %" PRId64 " with those past the ends of its boxes, expected at most %d", name,
        places, most, LUATTN_GRID_POSITIONS_MAX);
  *slots = (int)all;
  const int64_t patches = extent_of(t, c, 0, 1) * extent_of(t, c, 1, 1) * extent_of(t, c, 2, 4) * extent_of(t, c, 3, 4);
  if (c->info->random && patches > LUATTN_DROPOUT_PATCHES)
    return args_fail(c,
                     "%s: has %" PRId64
                     " patches of 4 x 4 places, and a grid of a spec that draws random numbers has at "
                     "most %d",
                     name, patches, LUATTN_DROPOUT_PATCHES);
  return LUATTN_OK;
}

luattn_status grid_fill(const args_call *c, LuattnCallParams *out) {
  LuattnShape *shape = &out->dense.shape;
  const DLTensor *q = c->args->q;
  if (c->args->batch != NULL)
    return args_fail(
        c,
        "batch: is given, and the spec has a grid of %u axes, whose calls have no lengths of a whole, offsets, "
        "packed sequences or pages; leave it NULL",
        grid_of(c)->axes);
  TRY(sizes_batch(c, "q", q->shape[0]));
  shape->batch = (int)q->shape[0];
  TRY(fill_side(c, "q", q, false, out, &shape->q_len));
  return fill_side(c, "k", c->args->k, true, out, &shape->kv_len);
}

luattn_status grid_ranks(const args_call *c) {
  TRY(check_rank(c, "q", c->args->q, "batch, heads, q_len, head_dim", false));
  TRY(check_rank(c, "k", c->args->k, "batch, heads_kv, kv_len, head_dim", true));
  return check_rank(c, "v", c->args->v, "batch, heads_kv, kv_len, head_dim_v", true);
}

void grid_rule(const args_call *c, const LuattnCallParams *all, bool of_keys, int at, tensor_rule *rule,
               char axes[GRID_AXES_TEXT]) {
  const int first = first_axis(c), count = (int)grid_of(c)->axes;
  axes_text(c, rule->axes, of_keys, axes);
  rule->axes = axes;
  for (int i = rule->ndim - 1; i > at; --i) rule->shape[i + count - 1] = rule->shape[i];
  for (int a = 0; a < count; ++a) {
    const LuattnGridAxis *both = &all->grid.axis[first + a];
    rule->shape[at + a] = of_keys ? both->kv.extent : both->q.extent;
  }
  rule->ndim += count - 1;
}

/* NULL: its rows are always in row-major order. */
static LuattnGridSteps *steps_of(LuattnCallParams *all, const LuattnTensor *t) {
  LuattnTensors *of = &all->dense.tensors;
  LuattnGrid *g = &all->grid;
  LuattnTangents *tangents = &all->grid_tangents.tangents;
  LuattnTangentSteps *more = &all->grid_tangents.steps;
  const struct {
    const LuattnTensor *tensor;
    LuattnGridSteps *steps;
  } rows[] = {{&of->q, &g->q},          {&of->k, &g->k},         {&of->v, &g->v},   {&of->src_q, &g->src_q},
              {&of->src_k, &g->src_k},  {&of->src_v, &g->src_v}, {&of->o, &g->o},   {&of->dout, &g->dout},
              {&of->dq, &g->dq},        {&of->dk, &g->dk},       {&of->dv, &g->dv}, {&tangents->q, &more->q},
              {&tangents->k, &more->k}, {&tangents->v, &more->v}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    if (rows[i].tensor == t) return rows[i].steps;
  return NULL;
}

void grid_strides(const args_call *c, LuattnCallParams *all, LuattnTensor *out, const long long *stride, int at) {
  LuattnGridSteps *steps = steps_of(all, out);
  const int count = (int)grid_of(c)->axes;
  out->seq = steps != NULL ? stride[at + count - 1] : 1;
  for (int a = 0; steps != NULL && a < count - 1; ++a) steps->outer[first_axis(c) + a] = stride[at + a];
}

static int padded_extent(const args_call *c, const LuattnCallParams *all, int axis, bool of_keys) {
  const LuattnGridAxis *both = &all->grid.axis[axis];
  const int extent = of_keys ? both->kv.extent : both->q.extent;
  return grid_is_far(c, axis) ? grid_padded_extent(extent, grid_step(c, axis)) : extent;
}

void grid_contiguous(const args_call *c, LuattnCallParams *all, LuattnTensor *out, bool of_keys) {
  LuattnGridSteps *steps = steps_of(all, out);
  long long step = out->seq;
  for (int axis = LUATTN_GRID_AXES - 1; axis > 0; --axis) {
    step *= padded_extent(c, all, axis, of_keys);
    steps->outer[axis - 1] = step;
  }
}

int64_t grid_padded_places(const args_call *c, const LuattnCallParams *all, bool of_keys) {
  int64_t places = 1;
  for (int axis = 0; axis < LUATTN_GRID_AXES; ++axis) places *= padded_extent(c, all, axis, of_keys);
  return places;
}

bool grid_is_ragged(const args_call *c, const LuattnCallParams *all, bool of_keys) {
  return grid_places(all, of_keys) > 0 && grid_padded_places(c, all, of_keys) > grid_places(all, of_keys);
}

int64_t grid_extent(const args_call *c, const LuattnCallParams *all, int32_t axis) {
  const bool of_keys = axis <= LUATTN_AXIS_KV_GRID;
  const LuattnGridAxis *both =
      &all->grid.axis[first_axis(c) + (of_keys ? LUATTN_AXIS_KV_GRID : LUATTN_AXIS_Q_GRID) - axis];
  return of_keys ? both->kv.extent : both->q.extent;
}

int64_t grid_places(const LuattnCallParams *all, bool of_keys) {
  int64_t places = 1;
  for (int axis = 0; axis < LUATTN_GRID_AXES; ++axis) {
    const LuattnGridAxis *both = &all->grid.axis[axis];
    places *= of_keys ? both->kv.extent : both->q.extent;
  }
  return places;
}
