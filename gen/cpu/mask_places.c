/* mask_places.c: luattn_mask_places: which keys of a grid a query keeps, and the classes of boxes of keys beside its box. */
#include <string.h>

#include "common/call/choices.h"
#include "common/struct_size.h"
#include "gen/cpu/mask_survey.h"

enum { Q, KV, PLACES_OF_BOX = 64 };

typedef struct places_call {
  const luattn_spec *spec;
  const luattn_args *args;
  luattn_mask_places *given;
} places_call;

/* A pair of boxes, as bounds of expressions over it are found. Boxes take places by the steps of the mask. */
typedef struct place_box {
  tile_box tile; /* first, for tile_box_load and tile_box_refine */
  int low[2][LUATTN_MAX_AXES], high[2][LUATTN_MAX_AXES];
} place_box;

static ir_bounds place_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  const place_box *box = user;
  if (v != VAR_Q && v != VAR_KV) return tile_box_variable(user, v, index, type);
  const int side = v == VAR_Q ? Q : KV;
  return (ir_bounds){.integer = {box->low[side][index], box->high[side][index]}};
}

static const cpu_side *side_of(const cpu_problem *p, int side) { return side == Q ? &p->q_side : &p->kv_side; }

/* Powers of two with PLACES_OF_BOX places, the inner axes first: 8 x 8, 4 x 4 x 4. */
static void default_box(int axes, int box[LUATTN_MAX_AXES]) {
  int left = PLACES_OF_BOX;
  for (int a = 0; a < axes; a++) box[a] = 1;
  for (int a = axes; left > 1; left /= 2) {
    a = a > 0 ? a - 1 : axes - 1;
    box[a] *= 2;
  }
}

static luattn_status take_boxes(const cpu_problem *p, luattn_mask_places *g, luattn_error *err) {
  g->axes = p->q_side.axes;
  for (int side = 0; side < 2; side++) {
    int *box = side == Q ? g->q_box : g->kv_box, *extent = side == Q ? g->q_extent : g->kv_extent;
    if (box[0] == 0) default_box(g->axes, box);
    for (int a = 0; a < g->axes; a++) {
      extent[a] = (int)side_of(p, side)->extent[a];
      if (box[a] < 1)
        return luattn_fail(err, LUATTN_INVALID, "mask: %s[%d]: is %d, expected at least 1, or 0 in all for %d places",
                           side == Q ? "q_box" : "kv_box", a, box[a], PLACES_OF_BOX);
    }
  }
  return LUATTN_OK;
}

static luattn_status check(const cpu_problem *p, luattn_mask_places *g, luattn_error *err) {
  if (p->q_side.axes <= 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "mask: the spec '%s' has no grid of several axes; luattn_mask_tiles classifies tiles of a line",
                       p->spec->traced.name);
  TRY(take_boxes(p, g, err));
  if (g->batch < 0 || g->batch >= p->batch || g->head < 0 || g->head >= p->heads)
    return luattn_fail(err, LUATTN_INVALID, "mask: batch %d, head %d: does not exist; there are %d and %d", g->batch,
                       g->head, p->batch, p->heads);
  for (int a = 0; a < g->axes; a++)
    if (g->query[a] < 0 || g->query[a] >= g->q_extent[a])
      return luattn_fail(err, LUATTN_INVALID, "mask: query: is %d along %s, expected 0 to %d", g->query[a],
                         p->q_side.name[a], g->q_extent[a] - 1);
  return LUATTN_OK;
}

static void evaluate(const cpu_problem *p, const cpu_program *keep, luattn_mask_places *g) {
  double kv_idx[IR_LANES], kept[IR_LANES];
  int query = 0;
  for (int a = 0; a < g->axes; a++) query = query * g->q_extent[a] + g->query[a];
  for (int first = 0; first < p->kv_len; first += IR_LANES) {
    const int count = p->kv_len - first < IR_LANES ? p->kv_len - first : IR_LANES;
    for (int i = 0; i < count; i++) kv_idx[i] = first + i, kept[i] = 1;
    cpu_lanes lanes = {.p = p, .w = &p->worker[0], .b = g->batch, .h = g->head, .q_idx = query, .kv_idx = kv_idx};
    if (p->mask.keep != IR_NONE) program_run(keep, &lanes, count, (double *const[]){kept});
    for (int i = 0; i < count; i++) g->places[first + i] = kept[i] != 0;
  }
}

static int step_of(const cpu_problem *p, int axis) { return p->mask.keep != IR_NONE ? p->mask.axis[axis].step : 1; }

/* The class of the pair of boxes, which keeps nothing where they are of two groups. */
static int class_of(const cpu_problem *p, place_box *box) {
  const ir_bounds_env env = {.user = box, .variable = place_variable, .load = tile_box_load, .refine = tile_box_refine};
  for (int a = 0; a < p->q_side.axes; a++)
    if ((box->low[Q][a] - box->low[KV][a]) % step_of(p, a) != 0) return 0;
  if (p->mask.keep == IR_NONE) return 2;
  const mask_info within = {.keep = p->mask.within};
  return mask_tile_class(p->g, &within, &env, p->worker[0].bounds);
}

static int least_of(int a, int b) { return a < b ? a : b; }

/* Boxes along an axis: those of all groups that begin at the same place of theirs come one after another. */
static int boxes_along(int extent, int size, int step) {
  const int before = ((extent + step - 1) / step + size - 1) / size - 1, left = extent - before * size * step;
  return before * step + least_of(left, step);
}
static void set_range(place_box *box, int side, int axis, int number, int size, int step, int extent) {
  const int first = number / step * size * step + number % step,
            places = least_of(size, (extent - first + step - 1) / step);
  box->low[side][axis] = first;
  box->high[side][axis] = first + (places - 1) * step;
}

/* Of the box of keys at box->low[KV]: adds its class to its places, and counts it. */
static void mark(const cpu_problem *p, place_box *box, luattn_mask_places *g) {
  const int class = class_of(p, box);
  int count = 1;
  g->boxes[class]++;
  for (int a = 0; a < g->axes; a++) count *= (box->high[KV][a] - box->low[KV][a]) / step_of(p, a) + 1;
  for (int i = 0; i < count && class != 0; i++) {
    int rest = i, step = 1, place = 0;
    for (int a = g->axes; a-- > 0; step *= g->kv_extent[a]) {
      const int by = step_of(p, a), size = (box->high[KV][a] - box->low[KV][a]) / by + 1;
      place += (box->low[KV][a] + rest % size * by) * step;
      rest /= size;
    }
    g->places[place] |= (unsigned char)(class << 1);
  }
}

static void classify(const cpu_problem *p, luattn_mask_places *g) {
  place_box box = {.tile = {.p = p, .b = g->batch, .h = g->head}};
  int number = 1;
  memset(g->boxes, 0, sizeof g->boxes);
  for (int a = 0; a < g->axes; a++) {
    const int by = step_of(p, a);
    set_range(&box, Q, a, g->query[a] / by / g->q_box[a] * by + g->query[a] % by, g->q_box[a], by, g->q_extent[a]);
    number *= boxes_along(g->kv_extent[a], g->kv_box[a], by);
  }
  for (int n = 0; n < number; n++) {
    int rest = n;
    for (int a = g->axes; a-- > 0;) {
      const int by = step_of(p, a), count = boxes_along(g->kv_extent[a], g->kv_box[a], by);
      set_range(&box, KV, a, rest % count, g->kv_box[a], by, g->kv_extent[a]);
      rest /= count;
    }
    mark(p, &box, g);
  }
}

static luattn_status run(void *arguments, luattn_error *err) {
  const places_call *call = arguments;
  luattn_mask_places *g = call->given;
  arena *a = arena_open(arena_allocator(call->spec->a));
  cpu_problem p;
  cpu_program keep;
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "mask: out of memory");
  luattn_status status = problem_open_mask(call->spec, call->args, a, &p, err);
  if (status == LUATTN_OK) status = check(&p, g, err);
  if (status == LUATTN_OK && p.mask.keep != IR_NONE) status = program_open(&p, &p.mask.keep, 1, &keep, err);
  if (status == LUATTN_OK) status = problem_start(&p, 1, err);
  if (status == LUATTN_OK && g->places != NULL) {
    evaluate(&p, &keep, g);
    classify(&p, g);
  }
  arena_close(a);
  return status;
}

luattn_status luattn_mask_places_of(const luattn_spec *spec, const luattn_args *args, luattn_mask_places *places,
                                    luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_mask_places, boxes);
  luattn_args used;
  luattn_mask_places own;
  fail_clear(err);
  NEED(spec);
  NEED(args);
  NEED(places);
  TRY(struct_take(&rule, "luattn_mask_places_of", places, &own, err));
  TRY(choices_take_dense(args, "mask", &used, err));
  TRY(host_run(run, &(places_call){spec, &used, &own}, err));
  return struct_give(&rule, "luattn_mask_places_of", &own, places, err);
}
