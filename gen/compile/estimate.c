/* estimate.c: estimates the memory that a pass needs, before anything is compiled. */
#include <math.h>
#include <string.h>

#include "abi/grid_params.h"
#include "common/call/need_attention.h"
#include "abi/workspace.h"
#include "common/host.h"
#include "common/call/limits.h"
#include "common/call/pairs.h"
#include "gen/compile/pipeline.h"

/* The factors of the estimate, in double, so that no product overflows before it is known to fit a size_t. */
typedef struct sizes {
  double batch, heads, heads_kv, q_len, kv_len, dim, dim_v, elem, real;
  double q_slots, kv_slots; /* rows of the workspace: over a grid those of whole boxes */
  const luattn_problem *given;
} sizes;

static double q_rows(const sizes *s) { return s->batch * s->heads * s->q_len; }
static double kv_rows(const sizes *s) { return s->batch * s->heads_kv * s->kv_len; }

static double axis_size(int32_t axis, const sizes *s) {
  switch (axis) {
    case LUATTN_AXIS_B:
      return s->batch;
    case LUATTN_AXIS_H:
      return s->heads;
    case LUATTN_AXIS_HKV:
      return s->heads_kv;
    case LUATTN_AXIS_Q:
      return s->q_len;
    case LUATTN_AXIS_KV:
      return s->kv_len;
    default:
      return axis > 0                      ? axis
             : axis <= LUATTN_AXIS_KV_GRID ? s->given->kv_extent[LUATTN_AXIS_KV_GRID - axis]
             : axis <= LUATTN_AXIS_Q_GRID  ? s->given->q_extent[LUATTN_AXIS_Q_GRID - axis]
                                           : 1;
  }
}

/* Elements of an extra input; an axis of free size counts as 1. */
static double input_count(const luattn_input_info *in, const sizes *s) {
  double n = 1;
  for (uint32_t i = 0; i < in->num_axes; i++) n *= axis_size(in->axis[i], s);
  return n;
}

static double input_size(uint32_t dtype) {
  switch (dtype) {
    case LUATTN_INPUT_F64:
    case LUATTN_INPUT_I64:
      return 8;
    case LUATTN_INPUT_F32:
    case LUATTN_INPUT_I32:
      return 4;
    case LUATTN_INPUT_BOOL:
    case LUATTN_INPUT_U8:
      return 1;
    default:
      return 2;
  }
}

static bool has_role(const image_manifest *m, luattn_role role) {
  for (uint32_t i = 0; i < m->num_entries; i++)
    if (m->entry[i].role == (uint32_t)role) return true;
  return false;
}

/* Counts the work counter of kv tiles and the counters of q tiles. */
static double counters(const image_manifest *m, const sizes *s, bool dq) {
  const image_traits *t = manifest_traits(m);
  double bytes = 0;
  for (uint32_t i = 0; i < m->num_entries; i++) {
    const manifest_entry *e = &m->entry[i];
    if (e->role != LUATTN_ROLE_DKDV) continue;
    const bool counts = dq && m->accumulates_dq && (t->is_resident || m->deterministic);
    const int each = workspace_dq_orders(t->pairs_blocks, (int)e->threads, (int)e->tile_n);
    const double tiles = counts ? ceil(s->q_slots / e->tile_m) : 0;
    if (t->is_resident || counts) bytes += 4 * (LUATTN_DQ_ORDER_FIRST + s->batch * s->heads * tiles * each);
  }
  return bytes;
}

static bool in_any_order(const luattn_input_info *in, const sizes *s) {
  pairs_sizes all = {.batch = s->batch, .heads = s->heads, .q_len = s->q_len, .kv_len = s->kv_len};
  for (uint32_t a = 0; a < in->num_axes; a++) all.axis[a] = axis_size(in->axis[a], s);
  return pairs_in_any_order(in, &all);
}

/* Counts the exact sums of a deterministic backward. */
static double ordered(const image_manifest *m, const sizes *s) {
  double bytes = 0, elements = m->wants & LUATTN_WANT_SCALARS ? m->num_scalars : 0;
  for (uint32_t i = 0; i < m->num_inputs; i++)
    if ((m->wants & LUATTN_WANT_INPUTS) && m->input[i].grad && !in_any_order(&m->input[i], s))
      elements += input_count(&m->input[i], s);
  return bytes + elements * 8 * workspace_limbs((int)s->real);
}

/* Counts norms and the tile bitmap, if tiles in which P vanishes are skipped. */
static double tile_bitmap_bytes(const image_manifest *m, const sizes *s) {
  const bool backward = m->pass == LUATTN_BACKWARD;
  const double least = backward ? LUATTN_SKIP_BACKWARD : LUATTN_SKIP_FORWARD;
  double bytes = 0;
  if (backward && s->batch > LUATTN_MAX_BATCH / 2) return 0;
  if (!has_role(m, LUATTN_ROLE_TILE_BITMAP) || s->q_len < least || s->kv_len < least) return 0;
  for (uint32_t i = 0; i < m->num_entries; i++) {
    const manifest_entry *e = &m->entry[i];
    if (e->role != LUATTN_ROLE_TILE_BITMAP) continue;
    const int together = backward ? workspace_blocks_together(true, (int)e->tile_n) : 1;
    const double q_tiles = ceil(s->q_len / e->tile_m), kv_tiles = ceil(s->kv_len / e->tile_n / together);
    const double words = backward ? kv_tiles * (double)workspace_words((int64_t)q_tiles)
                                  : q_tiles * (double)workspace_words((int64_t)kv_tiles);
    bytes += 4 * s->batch * s->heads * words;
  }
  bytes += 4 * s->batch * s->heads_kv * (double)workspace_norms((int64_t)s->kv_len);
  return bytes + (backward ? 8 * s->batch * s->heads * (double)workspace_norms((int64_t)s->q_len) : 0);
}

/* Tangents behind mods, and gradients there. */
static double tangent_mods_bytes(const image_manifest *m, const sizes *s) {
  const manifest_tangent_mods *of = &m->tangent_mods_of[0];
  const double q = q_rows(s) * s->dim, k = kv_rows(s) * s->dim, v = kv_rows(s) * s->dim_v;
  double bytes = 0;
  if (m->has_query_mod && (of->tangents & 1)) bytes += q * s->elem;
  if (m->has_key_mod && (of->tangents & 2)) bytes += k * s->elem;
  if (m->has_value_mod && (of->tangents & 4)) bytes += v * s->elem;
  if (of->values & 1) bytes += q * s->real;
  if (of->values & 2) bytes += k * s->real;
  if (of->values & 4) bytes += v * s->real;
  return bytes;
}

/* The parts of the workspace, as runtime/parts/ take room for them (abi/workspace.h). */
static double workspace(const image_manifest *m, const sizes *s) {
  const bool parameters = (m->wants & (LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS)) != 0,
             finish = has_role(m, LUATTN_ROLE_FINISH);
  double bytes = 0;
  if (m->has_query_mod) bytes += q_rows(s) * s->dim * s->elem;
  if (m->has_key_mod) bytes += kv_rows(s) * s->dim * s->elem;
  if (m->has_value_mod) bytes += kv_rows(s) * s->dim_v * s->elem;
  if (m->tangent_mods) bytes += tangent_mods_bytes(m, s);
  const bool in_groups = manifest_traits(m)->groups_rows;
  const double padded_rows = s->batch * s->heads * (double)workspace_rows(in_groups, (int64_t)s->q_slots),
               padded_kv = s->batch * s->heads_kv * (double)workspace_rows(in_groups, (int64_t)s->kv_slots);
  if (m->pass == LUATTN_BACKWARD) bytes += padded_rows * m->num_bwd_rows * s->real;
  const bool dq = (m->wants & LUATTN_WANT_DQ) != 0 || (m->has_query_mod && parameters);
  const bool dk = (m->wants & LUATTN_WANT_DK) != 0 || parameters, dv = (m->wants & LUATTN_WANT_DV) != 0 || parameters;
  if (finish && dq && (m->accumulates_dq || m->has_query_mod)) bytes += padded_rows * s->dim * s->real;
  if (m->pass == LUATTN_BACKWARD) bytes += counters(m, s, finish && dq);
  if (m->deterministic) bytes += ordered(m, s);
  if (finish && dk && m->has_key_mod) bytes += padded_kv * s->dim * s->real;
  if (finish && dv && m->has_value_mod) bytes += padded_kv * s->dim_v * s->real;
  for (uint32_t i = 0; i < m->num_stats; i++)
    bytes += input_count(&m->input[m->stat[i].input], s) / m->stat[i].block * 8;
  return bytes + tile_bitmap_bytes(m, s);
}

static luattn_status estimate_of(const image_manifest *m, const sizes *s, luattn_memory_estimate *out,
                                 luattn_error *err) {
  const double q = q_rows(s) * s->dim * s->elem, k = kv_rows(s) * s->dim * s->elem, v = kv_rows(s) * s->dim_v * s->elem;
  const double dout = q_rows(s) * s->dim_v * s->elem, o = m->out_f32 ? dout / s->elem * s->real : dout,
               grad = m->grad_f32 ? s->real / s->elem : 1, rows = q_rows(s) * s->real * (m->has_lse + m->num_saved);
  double input = q + k + v, output = 0;
  for (uint32_t i = 0; i < m->num_inputs; i++) input += input_count(&m->input[i], s) * input_size(m->input[i].dtype);
  if (m->pass == LUATTN_FORWARD) {
    output = o + rows;
  } else {
    input += o + dout + rows;
    if (m->wants & LUATTN_WANT_DQ) output += q * grad;
    if (m->wants & LUATTN_WANT_DK) output += k * grad;
    if (m->wants & LUATTN_WANT_DV) output += v * grad;
    for (uint32_t i = 0; i < m->num_inputs; i++)
      if ((m->wants & LUATTN_WANT_INPUTS) && m->input[i].grad) output += input_count(&m->input[i], s) * s->real;
    if (m->wants & LUATTN_WANT_SCALARS) output += m->num_scalars * s->real;
  }
  const double internal = workspace(m, s), total = input + internal + output;
  if (total >= 0x1p62)
    return luattn_fail(err, LUATTN_INVALID,
                       "problem: needs %.3g bytes, more than a machine can address; use smaller sizes", total);
  *out = (luattn_memory_estimate){(size_t)input, (size_t)internal, (size_t)output, (size_t)total};
  return LUATTN_OK;
}

static luattn_status check_extents(const luattn_problem *p, int axes, luattn_error *err) {
  for (int side = 0; side < 2; side++)
    for (int a = 0; a < axes; a++) {
      const int extent = side == 0 ? p->q_extent[a] : p->kv_extent[a];
      if (extent < 1 || extent > LUATTN_GRID_EXTENT_MAX)
        return luattn_fail(
            err, LUATTN_INVALID,
            "problem: %s[%d]: is %d, must be 1 to %d: the spec has a grid of %d axes, whose extents stand "
            "in the place of lengths",
            side == 0 ? "q_extent" : "kv_extent", a, extent, LUATTN_GRID_EXTENT_MAX, axes);
    }
  return LUATTN_OK;
}

static luattn_status check_problem(const luattn_problem *p, int axes, luattn_error *err) {
  const struct {
    const char *name;
    int value;
  } given[] = {
      {"batch", p->batch}, {"heads", p->heads}, {"heads_kv", p->heads_kv}, {"q_len", p->q_len}, {"kv_len", p->kv_len}};
  if (axes > 1) TRY(check_extents(p, axes, err));
  for (int i = 0; i < (axes > 1 ? 3 : 5); i++)
    if (given[i].value < 1)
      return luattn_fail(err, LUATTN_INVALID, "problem: %s: is %d, must be at least 1", given[i].name, given[i].value);
  if (p->batch > LUATTN_MAX_BATCH)
    return luattn_fail(err, LUATTN_INVALID, "problem: batch: is %d, must be at most %d", p->batch, LUATTN_MAX_BATCH);
  if (p->heads % p->heads_kv != 0)
    return luattn_fail(err, LUATTN_INVALID, "problem: heads: %d is not a multiple of heads_kv = %d", p->heads,
                       p->heads_kv);
  return LUATTN_OK;
}

/* Fills both sides' rows and slots, over a grid by its extents and the kernel's boxes. */
static void fill_rows(const image_manifest *m, const luattn_problem *p, sizes *out) {
  out->q_len = out->q_slots = p->q_len, out->kv_len = out->kv_slots = p->kv_len;
  if (m->over_grid == 0) return;
  const manifest_grid *g = &m->grid[0];
  const uint32_t first = LUATTN_MAX_AXES - g->axes;
  out->q_len = out->q_slots = out->kv_len = out->kv_slots = 1;
  for (uint32_t a = 0; a < g->axes; a++) {
    const double q = p->q_extent[a], kv = p->kv_extent[a], q_box = g->q_box[first + a], kv_box = g->kv_box[first + a];
    out->q_len *= q, out->q_slots *= ceil(q / q_box) * q_box;
    out->kv_len *= kv, out->kv_slots *= ceil(kv / kv_box) * kv_box;
  }
}

typedef struct memory_call {
  const luattn_spec *spec;
  const luattn_target *target;
  const luattn_problem *problem;
  luattn_memory_estimate *estimate;
} memory_call;

static luattn_status prepare(const memory_call *given, compilation **c, luattn_error *err) {
  TRY(compilation_open(given->spec, given->target, c, err));
  return pipeline_tuned_source(*c, err);
}

static luattn_status answer_memory(void *arguments, luattn_error *err) {
  const memory_call *given = arguments;
  const luattn_problem *problem = given->problem;
  compilation *c;
  TRY(check_problem(problem, luattn_spec_grid(given->spec, NULL), err));
  luattn_status status = prepare(given, &c, err);
  if (status == LUATTN_OK) {
    const double elem = kernel_dtype(c->at.plan.dtype)->dl.bits / 8;
    sizes s = {.batch = problem->batch,
               .heads = problem->heads,
               .heads_kv = problem->heads_kv,
               .dim = c->at.plan.head_dim,
               .dim_v = c->at.plan.head_dim_v,
               .elem = elem,
               .real = c->at.plan.dtype == LUATTN_F64 ? 8 : 4,
               .given = problem};
    fill_rows(&c->at.info, problem, &s);
    status = estimate_of(&c->at.info, &s, given->estimate, err);
  }
  compilation_close(c);
  if (status == LUATTN_OK) fail_clear(err);
  return status;
}

luattn_status luattn_estimate_memory(const luattn_spec *spec, const luattn_target *target,
                                     const luattn_problem *problem, luattn_memory_estimate *estimate,
                                     luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(target);
  NEED(problem);
  NEED(estimate);
  memory_call call = {.spec = spec, .target = target, .problem = problem, .estimate = estimate};
  return host_run(answer_memory, &call, err);
}
