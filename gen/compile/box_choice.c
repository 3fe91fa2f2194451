#include "gen/compile/box_choice.h"

#include <stdio.h>
#include <string.h>

#include "common/host.h"
#include "gen/compile/box_within.h"
#include "gen/compile/tuned_boxes.h"
#include "gen/ir/passes.h"
#include "gen/plan/plan.h"
#include "gen/plan/tiles.h"

enum { AXES = LUATTN_GRID_AXES };

/* A block of queries along one axis. */
typedef struct axis_block {
  const traced_spec *t;
  const int64_t *q, *kv; /* extents of the spec's axes */
  uint32_t axis;         /* among these */
  int first;             /* query of lane 0 */
} axis_block;

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const axis_block *b = user;
  for (int i = 0; i < lanes; i++) {
    switch (v) {
      case VAR_TILE: /* both ends of a box of one query */
        out[i] = b->first + i;
        break;
      case VAR_Q_LEN:
        out[i] = (double)b->q[index];
        break;
      case VAR_KV_LEN:
        out[i] = (double)b->kv[index];
        break;
      case VAR_HEADS:
      case VAR_HEADS_KV:
        out[i] = 1;
        break;
      case VAR_SCALAR:
        out[i] = b->t->scalar_default[index];
        break;
      default:
        out[i] = 0;
    }
  }
}

static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  (void)user, (void)input, (void)n_index, (void)index;
  memset(out, 0, (size_t)lanes * sizeof *out);
}

static int within(double x, int64_t extent) { return !(x > 0) ? 0 : x < (double)extent ? (int)x : (int)extent; }

/* What each query keeps along an axis of the grid. false: out of memory. */
static bool find_lines(compilation *c, axis_block *b, box_axis *out) {
  const mask_axis *m = &c->mask.axis[b->axis];
  const bool exact = c->mask.is_product && m->rows.count == 1;
  const int64_t n = b->q[b->axis], extent = b->kv[b->axis];
  const bool masked = c->mask.keep != IR_NONE;
  const ir_ref end[] = {!masked ? IR_NONE
                        : exact ? m->rows.lo[0]
                                : m->kv_lo,
                        !masked ? IR_NONE
                        : exact ? m->rows.hi[0]
                                : m->kv_hi};
  int *bounds = arena_array(c->a, 2 * (size_t)n + 1, sizeof *bounds);
  if (bounds == NULL) return false;
  for (int e = 0; e < 2; e++) {
    int *to = bounds + e * n;
    ir_program *program = end[e] != IR_NONE ? ir_program_new(c->a, c->spec.traced.g, &end[e], 1) : NULL;
    void *scratch = program != NULL ? arena_new(c->a, ir_program_scratch(program)) : NULL;
    if (end[e] != IR_NONE && scratch == NULL) return false;
    const ir_env env = {.user = b, .variable = variable, .load = load};
    for (int64_t i = 0; i < n; i += IR_LANES) {
      double value[IR_LANES], *const values[] = {value};
      const int lanes = n - i < IR_LANES ? (int)(n - i) : IR_LANES;
      b->first = (int)i;
      if (program != NULL) ir_program_run(program, &env, lanes, scratch, values);
      for (int l = 0; l < lanes; l++) to[i + l] = program != NULL ? within(value[l], extent) : e == 0 ? 0 : (int)extent;
    }
  }
  *out = (box_axis){.q_extent = (int)n, .kv_extent = (int)extent, .step = m->step, .lo = bounds, .hi = bounds + n};
  return true;
}

luattn_status box_choice_axes(compilation *c, const box_call *of, box_axis axis[AXES], luattn_error *err) {
  static const int one_lo[] = {0}, one_hi[] = {1};
  const int axes = c->spec.traced.grid_axes;
  for (int a = 0; a < AXES; a++) {
    const int own = a - (AXES - axes);
    axis_block b = {.t = &c->spec.traced, .q = of->q, .kv = of->kv, .axis = (uint32_t)own};
    if (own < 0)
      axis[a] = (box_axis){.q_extent = 1, .kv_extent = 1, .step = 1, .lo = one_lo, .hi = one_hi};
    else if (!find_lines(c, &b, &axis[a]))
      return luattn_fail(err, LUATTN_NO_MEMORY, "boxes of '%s': out of memory", c->spec.traced.name);
  }
  return LUATTN_OK;
}

static bool takes_phases(const plan *p) {
  return p->axes > 0 && p->pass == LUATTN_BACKWARD && plan_kernel(p)->accumulates_dq;
}

luattn_status box_phases_take(compilation *c, plan *p, luattn_error *err) {
  enum { EXTENT = 2048, WINDOWS = 4 };
  const traced_spec *t = &c->spec.traced;
  box_axis axis[AXES];
  box_call of = {.heads = 1, .heads_kv = 1};
  box_pair pair = {.origin = BOX_PHASE};
  memset(p->phase, 0, sizeof p->phase);
  if (!takes_phases(p) || c->mask.keep == IR_NONE) return LUATTN_OK;
  for (int a = 0; a < t->grid_axes; a++) {
    const int64_t windows = WINDOWS * (int64_t)t->least_extent[a], extent = windows > EXTENT ? windows : EXTENT;
    of.q[a] = of.kv[a] = extent < LUATTN_GRID_EXTENT_MAX ? extent : LUATTN_GRID_EXTENT_MAX;
  }
  TRY(box_choice_axes(c, &of, axis, err));
  family_box(p, false, pair.q.extent), family_box(p, true, pair.kv.extent);
  TRY(box_count(p->pass, axis, &pair, err));
  for (int a = 0; a < AXES; a++) p->phase[a] = tiles_is_far(p, a) ? 0 : -pair.first[a];
  return LUATTN_OK;
}

static luattn_status count_pairs(const plan *p, const box_axis axis[AXES], const box_extents *pairs, box_choice *out,
                                 luattn_error *err) {
  const box_kernel kernel = {.pass = p->pass, .head_dim = p->head_dim};
  for (int i = 0; i < out->count; i++) {
    box_pair *pair = &out->pair[i];
    *pair = (box_pair){.origin = out->origin};
    memcpy(pair->q.extent, pairs[i].q, sizeof pair->q.extent);
    memcpy(pair->kv.extent, pairs[i].kv, sizeof pair->kv.extent);
    TRY(box_count(p->pass, axis, pair, err));
    pair->cycles = box_cycles(&kernel, pair);
    if (i == 0 || pair->cycles < out->pair[out->best - 1].cycles) out->best = i + 1;
  }
  return LUATTN_OK;
}

luattn_status box_choice_within(compilation *c, const box_call *of, box_choice *out, luattn_error *err) {
  const box_extents *pairs;
  plan *p = &c->at.plan;
  *out = (box_choice){.count = 0};
  TRY(plan_start(&c->spec, &c->target, p, err));
  out->origin = tiles_free_boxes(p) ? BOX_FREE : takes_phases(p) ? BOX_PHASE : BOX_LATTICE;
  out->count = family_box_pairs(p, &pairs);
  if (c->target.device != NULL && p->axes > 0 && !p->forced && c->target.boxes == 0)
    TRY(tuned_boxes_find(c, of, &out->tuned, err));
  if (out->count == 0) return LUATTN_OK;
  box_axis axis[AXES];
  TRY(box_choice_axes(c, of, axis, err));
  return count_pairs(p, axis, pairs, out, err);
}

typedef struct choice_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const box_call *of;
  box_choice *out;
} choice_call;

static luattn_status answer(void *arguments, luattn_error *err) {
  const choice_call *call = arguments;
  compilation *c;
  luattn_status status = compilation_open(call->spec, call->target, &c, err);
  if (status == LUATTN_OK) status = box_choice_within(c, call->of, call->out, err);
  compilation_close(c);
  return status;
}

luattn_status box_choice_find(const luattn_spec *spec, const luattn_target *target, const box_call *of, box_choice *out,
                              luattn_error *err) {
  *out = (box_choice){.count = 0};
  return host_run(answer, &(choice_call){spec, target, of, out}, err);
}

luattn_status box_call_check(const luattn_spec *spec, const char *place, bool of_keys, const int64_t *extent,
                             luattn_error *err) {
  const traced_spec *t = &spec->traced;
  const char *tensor = of_keys ? "k" : "q", *length = of_keys ? "kv_len" : "q_len";
  int64_t places = 1; /* below 2^60 */
  for (int a = 0; a < t->grid_axes; a++) {
    const long long of = extent[a], least = of_keys ? t->least_extent[a] : 0;
    if (of > LUATTN_GRID_EXTENT_MAX)
      return luattn_fail(err, LUATTN_INVALID, "%s of '%s': %s: %s.%s is %lld, expected at most %d", place, t->name,
                         tensor, length, t->grid_axis[a], of, LUATTN_GRID_EXTENT_MAX);
    if (of < least)
      return luattn_fail(err, LUATTN_INVALID,
                         "%s of '%s': %s: %s.%s is %lld, and the spec's mask needs at least %lld, a window times its "
                         "dilation; give more places, or a smaller window",
                         place, t->name, tensor, length, t->grid_axis[a], of, least);
    places *= of;
  }
  if (places <= LUATTN_GRID_POSITIONS_MAX) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID, "%s of '%s': %s: has %lld places, expected at most %d", place, t->name,
                     tensor, (long long)places, LUATTN_GRID_POSITIONS_MAX);
}

/* ---- what was chosen ---- */

uint64_t box_size_of(const int extent[AXES]) {
  uint64_t size = 0;
  for (int a = 0; a < AXES; a++) size = size << 16 | (uint64_t)extent[a];
  return size;
}

static bool is_pair(const box_pair *pair, const box_sizes *of) {
  return box_size_of(pair->q.extent) == of->q && box_size_of(pair->kv.extent) == of->kv;
}

/* Of the kernel's own pairs the number is given, so that a tuned one is the same image. */
void box_choice_take(const box_choice *choice, luattn_target *target) {
  const tuned_boxes *tuned = &choice->tuned;
  int number = tuned->state == TUNED_SOUND ? 0 : choice->best;
  for (int i = 0; i < choice->count && tuned->state == TUNED_SOUND; i++)
    if (is_pair(&choice->pair[i], &tuned->boxes)) number = i + 1;
  target->boxes = number > 1 ? number : 0;
  if (number > 0 || tuned->state != TUNED_SOUND) return;
  target->query_tile_size = tuned->boxes.q, target->key_tile_size = tuned->boxes.kv;
}

typedef char box_text[32];

/* "16 x 8". */
static const char *text_of(uint64_t size, int axes, box_text out) {
  int used = 0;
  for (int a = axes - 1; a >= 0 && used < (int)sizeof(box_text); a--)
    used += snprintf(out + used, sizeof(box_text) - (size_t)used, "%s%d", a < axes - 1 ? " x " : "",
                     (int)(size >> 16 * a & 0xffff));
  return out;
}

/* What has room is added. */
#define ADD(...) snprintf(out + strlen(out), size - strlen(out), __VA_ARGS__)

void box_choice_explain(const luattn_spec *spec, const box_choice *choice, char *out, size_t size) {
  const int axes = luattn_spec_grid(spec, NULL);
  const tuned_boxes *tuned = &choice->tuned;
  box_text q, kv, own_q, own_kv;
  out[0] = 0;
  if (tuned->state == TUNED_SOUND) {
    ADD("boxes: %s queries by %s keys, tuned: %.2f times as fast as %s by %s, for these extents: %s\n",
        text_of(tuned->boxes.q, axes, q), text_of(tuned->boxes.kv, axes, kv), tuned->gain,
        text_of(tuned->own.q, axes, own_q), text_of(tuned->own.kv, axes, own_kv), tuned->path);
    return;
  }
  if (choice->count > 0) {
    const box_pair *best = &choice->pair[choice->best - 1];
    ADD("boxes: %s queries by %s keys, ", text_of(box_size_of(best->q.extent), axes, q),
        text_of(box_size_of(best->kv.extent), axes, kv));
    if (choice->count == 1)
      ADD("the only pair of its kernel\n");
    else
      ADD("which of %d pairs are predicted to take the least time\n", choice->count);
  }
  if (tuned->state != TUNED_NONE)
    ADD("tuned: not used, run luattn tune again: %s %s\n", tuned->path,
        tuned->state == TUNED_DAMAGED ? "is damaged" : "was made with another luattn, NVRTC or set of templates");
}
#undef ADD
