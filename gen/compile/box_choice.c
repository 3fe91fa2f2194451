#include "gen/compile/box_choice.h"

#include <string.h>

#include "common/host.h"
#include "gen/compile/compilation.h"
#include "gen/ir/passes.h"
#include "gen/plan/plan.h"

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

typedef struct choice_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const int64_t *q, *kv;
  box_choice *out;
} choice_call;

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

static luattn_status find(compilation *c, const choice_call *call, luattn_error *err) {
  static const int one_lo[] = {0}, one_hi[] = {1};
  const box_extents *pairs;
  const int axes = c->spec.traced.grid_axes;
  plan p;
  TRY(plan_start(&c->spec, &c->target, &p, err));
  call->out->origin = tiles_free_boxes(&p) ? BOX_FREE : BOX_LATTICE;
  call->out->count = family_box_pairs(&p, &pairs);
  if (call->out->count == 0) return LUATTN_OK;
  box_axis axis[AXES];
  for (int a = 0; a < AXES; a++) {
    const int own = a - (AXES - axes);
    axis_block b = {.t = &c->spec.traced, .q = call->q, .kv = call->kv, .axis = (uint32_t)own};
    if (own < 0)
      axis[a] = (box_axis){.q_extent = 1, .kv_extent = 1, .step = 1, .lo = one_lo, .hi = one_hi};
    else if (!find_lines(c, &b, &axis[a]))
      return luattn_fail(err, LUATTN_NO_MEMORY, "boxes of '%s': out of memory", c->spec.traced.name);
  }
  return count_pairs(&p, axis, pairs, call->out, err);
}

static luattn_status answer(void *arguments, luattn_error *err) {
  const choice_call *call = arguments;
  compilation *c;
  luattn_status status = compilation_open(call->spec, call->target, &c, err);
  if (status == LUATTN_OK) status = find(c, call, err);
  compilation_close(c);
  return status;
}

luattn_status box_choice_find(const luattn_spec *spec, const luattn_target *target, const int64_t *q, const int64_t *kv,
                              box_choice *out, luattn_error *err) {
  *out = (box_choice){.count = 0};
  return host_run(answer, &(choice_call){spec, target, q, kv, out}, err);
}
