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

/* A pair of boxes, as bounds of expressions over it are found. */
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

/* The class of the pair of boxes. */
static int class_of(const cpu_problem *p, place_box *box) {
  const ir_bounds_env env = {.user = box, .variable = place_variable, .load = tile_box_load, .refine = tile_box_refine};
  return p->mask.keep == IR_NONE ? 2 : mask_tile_class(p->g, &p->mask, &env, p->worker[0].bounds);
}

static void set_range(place_box *box, int side, int axis, int first, int size, int extent) {
  box->low[side][axis] = first;
  box->high[side][axis] = (first + size < extent ? first + size : extent) - 1;
}

/* Of the box of keys at box->low[KV]: adds its class to its places, and counts it. */
static void mark(const cpu_problem *p, place_box *box, luattn_mask_places *g) {
  const int class = class_of(p, box);
  int count = 1;
  g->boxes[class]++;
  for (int a = 0; a < g->axes; a++) count *= box->high[KV][a] - box->low[KV][a] + 1;
  for (int i = 0; i < count && class != 0; i++) {
    int rest = i, step = 1, place = 0;
    for (int a = g->axes; a-- > 0; step *= g->kv_extent[a]) {
      const int size = box->high[KV][a] - box->low[KV][a] + 1;
      place += (box->low[KV][a] + rest % size) * step;
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
    set_range(&box, Q, a, g->query[a] / g->q_box[a] * g->q_box[a], g->q_box[a], g->q_extent[a]);
    number *= (g->kv_extent[a] + g->kv_box[a] - 1) / g->kv_box[a];
  }
  for (int n = 0; n < number; n++) {
    int rest = n;
    for (int a = g->axes; a-- > 0;) {
      const int count = (g->kv_extent[a] + g->kv_box[a] - 1) / g->kv_box[a];
      set_range(&box, KV, a, rest % count * g->kv_box[a], g->kv_box[a], g->kv_extent[a]);
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
