#include "runtime/call/grid_boxes.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/call/grid_call.h"

static long long divisor(long long a, long long b) {
  while (b != 0) {
    const long long rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The stride of an axis, or 0 where none is stepped along. */
static long long stepped(long long stride, int size) { return size > 1 ? stride : 0; }

static const LuattnGridSteps *steps_of(const LuattnGrid *g, grid_tensor which, bool backward) {
  const LuattnGridSteps *const all[] = {&g->q, &g->k, &g->v, backward ? &g->dout : &g->o};
  return all[which];
}

/* Makes axis i that of the places of one group; the stride between groups, of which there are *groups. */
static long long take_groups(grid_boxes *b, int i, int *groups) {
  const int step = b->step[i], extent = b->extent[i];
  const long long stride = b->stride[i];
  *groups = extent < step ? extent : step;
  b->extent[i] = (extent + step - 1) / step;
  b->stride[i] = stride * step;
  b->step[i] = 1;
  return stepped(stride, *groups);
}

luattn_status grid_boxes_of(const args_call *c, LuattnCallParams *all, grid_tensor which, const LuattnTensor *t,
                            const char *name, int rows, grid_boxes *out) {
  const manifest_grid *m = &c->info->grid[0];
  const bool of_keys = which == GRID_K || which == GRID_V;
  const LuattnShape *shape = &all->dense.shape;
  LuattnGrid *g = &all->grid;
  LuattnGridUnits *const units[] = {&g->units_q, &g->units_k, &g->units_v, &g->units_o};
  const LuattnGridSteps *steps = steps_of(g, which, c->info->pass == LUATTN_BACKWARD);
  const int heads = of_keys ? shape->heads_kv : shape->heads, axes = (int)m->axes;
  long long place[GRID_TMA_AXES] = {0}; /* from a group of a far axis to the next one */
  int groups[GRID_TMA_AXES];
  memset(out, 0, sizeof *out);
  out->axes = axes < GRID_TMA_AXES ? axes : GRID_TMA_AXES;
  for (int i = 0; i < out->axes; ++i) {
    const int axis = LUATTN_GRID_AXES - 1 - i, extent = (int)(of_keys ? m->kv_box : m->q_box)[axis];
    out->extent[i] = of_keys ? g->axis[axis].kv.extent : g->axis[axis].q.extent;
    out->stride[i] = i == 0 ? t->seq : steps->outer[axis];
    out->box[i] = extent < rows ? extent : rows;
    rows /= out->box[i];
    out->step[i] = grid_step(c, axis);
    if (grid_is_far(c, axis)) place[i] = take_groups(out, i, &groups[i]);
  }
  const int outer = of_keys ? g->axis[0].kv.extent : g->axis[0].q.extent;
  const long long head = stepped(t->head, heads), batch = stepped(t->batch, shape->batch),
                  first = axes == LUATTN_GRID_AXES ? stepped(steps->outer[0], outer) : 0;
  long long unit = divisor(divisor(head, batch), first);
  for (int i = 0; i < out->axes; ++i) unit = divisor(unit, place[i]);
  const long long by = unit > 0 ? unit : 1;
  out->stride[out->axes] = unit;
  out->units = 1 + (heads - 1) * (head / by) + (shape->batch - 1) * (batch / by) + (outer - 1) * (first / by);
  for (int i = 0; i < out->axes; ++i) {
    if (place[i] != 0) out->units += (groups[i] - 1) * (place[i] / by);
    all->far.of[which][LUATTN_GRID_AXES - 1 - i] = (int)(place[i] / by);
  }
  if (out->units > INT32_MAX)
    return args_fail(c,
                     "%s: strides %lld, %lld (batch, head) in elements are %" PRId64
                     " steps of %lld, expected at most %d; make it contiguous, or compile with family 1 + LUATTN_SIMT",
                     name, t->batch, t->head, out->units, unit, INT32_MAX);
  *units[which] = (LuattnGridUnits){(int)(head / by), (int)(batch / by), (int)(first / by)};
  return LUATTN_OK;
}

luattn_status grid_no_descriptor(const args_call *c, const char *name, const LuattnTensor *t, const grid_boxes *boxes) {
  return args_fail(
      c,
      "%s: strides %lld, %lld, %lld, %lld (batch, head, the innermost axis and the next) in elements are not "
      "what TMA can take (0 to 2^39, multiples of 8); make it contiguous, or compile with family 1 + "
      "LUATTN_SIMT",
      name, t->batch, t->head, boxes->stride[0], boxes->stride[1]);
}
