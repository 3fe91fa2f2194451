/* box_list.c: lists the pairs of boxes that a kernel over a grid could run for the extents of a call, and remembers the one
 * that was measured to be the fastest. */
#include <math.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/host.h"
#include "gen/cache/cache.h"
#include "gen/compile/box_within.h"
#include "gen/compile/tuned_boxes.h"
#include "gen/plan/plan.h"

enum { AXES = LUATTN_GRID_AXES, MOST_PROPOSED = 48, MOST_LISTED = 24 };

/* The extents and heads that q and k of a call have. */
static luattn_status read_call(const luattn_spec *spec, const luattn_args *given, box_call *out, luattn_error *err) {
  const int axes = luattn_spec_grid(spec, NULL);
  luattn_args args;
  luattn_spec_info info;
  TRY(choices_take(given, "boxes", &args, err));
  const DLTensor *const side[] = {args.q, args.k};
  luattn_spec_get_info(spec, &info);
  memset(out, 0, sizeof *out);
  if (axes <= 1)
    return luattn_fail(err, LUATTN_INVALID,
                       "boxes: the spec '%s' has no grid of several axes, whose boxes are listed; ask "
                       "luattn_plan_candidates for tiles",
                       info.name);
  for (int i = 0; i < 2; i++) {
    if (side[i] == NULL || side[i]->ndim != axes + 3 || side[i]->shape == NULL)
      return luattn_fail(err, LUATTN_INVALID,
                         "boxes: %s: expected a tensor of %d axes, batch, heads, the %d of the grid of '%s' and head "
                         "dim, whose data are not read",
                         i == 0 ? "q" : "k", axes + 3, axes, info.name);
    int64_t *const to = i == 0 ? out->q : out->kv;
    for (int a = 0; a < axes; a++) {
      to[a] = side[i]->shape[2 + a];
      if (to[a] < 0 || to[a] > LUATTN_GRID_EXTENT_MAX)
        return luattn_fail(err, LUATTN_INVALID,
                           "boxes: %s: has an extent of %lld along axis %d of the grid, expected 0 to %d",
                           i == 0 ? "q" : "k", (long long)to[a], a, LUATTN_GRID_EXTENT_MAX);
    }
  }
  out->heads = args.q->shape[1], out->heads_kv = args.k->shape[1];
  return LUATTN_OK;
}

/* ---- listing ---- */

typedef struct list_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const box_call *of;
  luattn_box_pair *out;
  int most, *count;
} list_call;

typedef struct box_list {
  compilation *c;
  const box_axis *axis;
  plan own; /* of the choice */
  double own_cycles;
  luattn_box_pair *out;
  int most, count;
} box_list;

static void fill(const box_list *l, const box_pair *pair, int number, luattn_box_pair *out) {
  double queries = 1, keys = 1;
  for (int a = 0; a < AXES; a++) queries *= pair->q.extent[a], keys *= pair->kv.extent[a];
  *out = (luattn_box_pair){.query_tile_size = box_size_of(pair->q.extent),
                           .key_tile_size = box_size_of(pair->kv.extent),
                           .boxes = number,
                           .kept = pair->counts.kept,
                           .computed = pair->counts.computed * queries * keys,
                           .full = pair->counts.computed > 0 ? pair->counts.full / pair->counts.computed : 0,
                           .predicted = l->own_cycles > 0 ? pair->cycles / l->own_cycles : 1};
}

/* Adds a pair that the family has a kernel for, unless it is there. */
static void add(box_list *l, const box_pair *pair, int number) {
  luattn_box_pair one;
  plan p;
  fill(l, pair, number, &one);
  for (int i = 0; i < l->count; i++)
    if (l->out[i].query_tile_size == one.query_tile_size && l->out[i].key_tile_size == one.key_tile_size) return;
  if (l->count == l->most) return;
  luattn_target target = l->c->target;
  if (number > 0)
    target.boxes = number;
  else
    target.query_tile_size = one.query_tile_size, target.key_tile_size = one.key_tile_size;
  if (l->count > 0 && (plan_choose(l->c->a, &l->c->spec, &target, &p, NULL) != LUATTN_OK || p.family != l->own.family ||
                       tiles_least_shared(&p) > p.shared_limit))
    return;
  l->out[l->count++] = one;
}

/* The pair of a plan. */
static luattn_status pair_of(const plan *p, box_origin origin, const box_axis *axis, box_pair *out, luattn_error *err) {
  const box_kernel kernel = {.pass = p->pass, .head_dim = p->head_dim};
  *out = (box_pair){.origin = origin};
  family_box(p, false, out->q.extent), family_box(p, true, out->kv.extent);
  TRY(box_count(p->pass, axis, out, err));
  out->cycles = box_cycles(&kernel, out);
  return LUATTN_OK;
}

/* Other pairs, by what the model predicts. Forward keeps a box of queries and walks over keys, backward the other way
 * round. */
static luattn_status add_others(box_list *l, box_origin origin, luattn_error *err) {
  static const int of_keys[] = {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 0},
                   of_queries[] = {64, 128, 0};
  const bool forward = l->own.pass == LUATTN_FORWARD;
  int q[AXES], kv[AXES], found = 0;
  box_pair *list = arena_array(l->c->a, MOST_PROPOSED, sizeof *list);
  if (list == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "boxes: out of memory");
  family_box(&l->own, false, q), family_box(&l->own, true, kv);
  const box_kernel kernel = {.pass = l->own.pass,
                             .head_dim = l->own.head_dim,
                             .rows = family_box_rows(forward ? q : kv),
                             .columns = forward ? of_keys : of_queries,
                             .origin = origin};
  TRY(box_choose(&kernel, l->axis, list, MOST_PROPOSED, &found, err));
  for (int i = 0; i < found && l->count < l->most; i++) add(l, &list[i], 0);
  return LUATTN_OK;
}

static luattn_status list_within(compilation *c, const list_call *call, luattn_error *err) {
  box_axis axis[AXES];
  box_choice choice;
  box_pair own;
  box_list l = {.c = c, .axis = axis, .out = call->out, .most = call->most};
  if (l.most > MOST_LISTED) l.most = MOST_LISTED;
  TRY(box_choice_axes(c, call->of, axis, err));
  c->target.device = NULL; /* the choice by counts */
  TRY(box_choice_within(c, call->of, &choice, err));
  luattn_target target = c->target;
  box_choice_take(&choice, &target);
  TRY(plan_choose(c->a, &c->spec, &target, &l.own, err));
  if (plan_kernel(&l.own)->box_pairs == NULL)
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "boxes: the %s family, which '%s' has for %s and this target, takes the boxes of its tiles "
        "alone, so there is nothing to choose; the sm80 and sm90 families have pairs of boxes (bf16 and f16)",
        kernel_family_name(l.own.family->id), c->spec.traced.name, kernel_dtype_name(l.own.dtype));
  TRY(pair_of(&l.own, choice.origin, axis, &own, err));
  l.own_cycles = own.cycles;
  add(&l, &own, choice.best);
  for (int i = 0; i < choice.count; i++) add(&l, &choice.pair[i], i + 1);
  TRY(add_others(&l, choice.origin, err));
  *call->count = l.count;
  return compilation_memory(c, err);
}

static luattn_status answer_list(void *arguments, luattn_error *err) {
  const list_call *call = arguments;
  compilation *c;
  luattn_status status = compilation_open(call->spec, call->target, &c, err);
  if (status == LUATTN_OK) status = list_within(c, call, err);
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_plan_box_pairs(const luattn_spec *spec, const luattn_target *target, const luattn_args *args,
                                    luattn_box_pair *out, int most, int *count, luattn_error *err) {
  box_call of;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  NEED(args);
  NEED(out);
  NEED(count);
  if (most < 1) return luattn_fail(err, LUATTN_INVALID, "boxes: most: is %d, expected the length of `out`", most);
  TRY(read_call(spec, args, &of, err));
  return host_run(answer_list, &(list_call){spec, target, &of, out, most, count}, err);
}

/* ---- remembering ---- */

typedef struct store_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const box_call *of;
  double gain;
  char *path;
  size_t size;
} store_call;

static luattn_status check_store(const compilation *c, const store_call *call, char dir[1024], luattn_error *err) {
  const luattn_target *t = &c->target;
  if (t->device == NULL)
    return luattn_fail(err, LUATTN_INVALID,
                       "tuned: device: is NULL; give the luattn_device_info.name that was measured");
  if ((t->query_tile_size == 0) != (t->key_tile_size == 0))
    return luattn_fail(
        err, LUATTN_INVALID,
        "tuned: %s: is 0, and the other one is given; give both of the boxes that were measured, or none "
        "to forget them",
        t->query_tile_size == 0 ? "query_tile_size" : "key_tile_size");
  if (t->query_tile_size != 0 && !(isfinite(call->gain) && call->gain > 0))
    return luattn_fail(err, LUATTN_INVALID, "tuned: gain: is %g, expected how many times as fast they are", call->gain);
  TRY(cache_resolve(t->cache_dir, dir, 1024, err));
  if (dir[0] != 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "tuned: there is no cache on disk to remember boxes beside, as its directory is empty; name one "
                     "with cache_dir or LUATTN_CACHE_DIR");
}

static luattn_status store_within(compilation *c, const store_call *call, luattn_error *err) {
  char dir[1024];
  tuned_boxes r = {.gain = call->gain, .boxes = {c->target.query_tile_size, c->target.key_tile_size}};
  box_choice choice;
  box_pair own = {.origin = BOX_LATTICE};
  nvrtc lib;
  plan p;
  TRY(check_store(c, call, dir, err));
  if (r.boxes.q != 0) TRY(plan_choose(c->a, &c->spec, &c->target, &p, err)); /* fails if no kernel has them */
  const char *device = c->target.device;
  c->target.query_tile_size = c->target.key_tile_size = 0, c->target.boxes = 0;
  c->target.device = NULL;
  TRY(box_choice_within(c, call->of, &choice, err));
  luattn_target target = c->target;
  box_choice_take(&choice, &target);
  TRY(plan_choose(c->a, &c->spec, &target, &p, err));
  family_box(&p, false, own.q.extent), family_box(&p, true, own.kv.extent);
  r.own = (box_sizes){box_size_of(own.q.extent), box_size_of(own.kv.extent)};
  c->target.device = device;
  TRY(nvrtc_open_first(&c->search, &c->nvrtc, &lib, err)); /* the NVRTC that compiled them */
  TRY(compilation_memory(c, err));
  return tuned_boxes_store(c, call->of, r.boxes.q != 0 ? &r : NULL, call->path, call->path != NULL ? call->size : 0,
                           err);
}

static luattn_status answer_store(void *arguments, luattn_error *err) {
  const store_call *call = arguments;
  compilation *c;
  luattn_status status = compilation_open(call->spec, call->target, &c, err);
  if (status == LUATTN_OK) status = store_within(c, call, err);
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_tuned_boxes_store(const luattn_spec *spec, const luattn_target *target, const luattn_args *args,
                                       double gain, char *path, size_t size, luattn_error *err) {
  box_call of;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  NEED(args);
  TRY(read_call(spec, args, &of, err));
  return host_run(answer_store, &(store_call){spec, target, &of, gain, path, size}, err);
}
