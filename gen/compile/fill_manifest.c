#include <stdio.h>
#include <string.h>

#include "abi/kernel_facts.h"
#include "abi/params.h"
#include "gen/compile/fill_manifest.h"
#include "gen/compile/large_integers.h"
#include "gen/compile/pass_spec.h"

#define TAKES(member) (uint32_t)LUATTN_PARAMS_THROUGH(member)

static void copy_name(char *out, const char *name) { snprintf(out, LUATTN_NAME_SIZE, "%s", name); }

static void fill_entries(const plan *p, image_manifest *out) {
  out->num_entries = (uint32_t)p->num_entries;
  for (int i = 0; i < p->num_entries; i++) {
    const plan_entry *e = &p->entry[i];
    manifest_entry *to = &out->entry[i];
    copy_name(to->name, e->name);
    to->role = (uint32_t)e->role;
    to->threads = (uint32_t)e->threads;
    to->shared_bytes = (uint32_t)e->shared_bytes;
    to->tile_m = (uint32_t)e->tile_m;
    to->tile_n = (uint32_t)e->tile_n;
  }
}

static void fill_grid(const compilation *c, manifest_grid *out) {
  const traced_spec *t = &c->spec.traced;
  const plan *p = &c->at.plan;
  int q_box[LUATTN_MAX_AXES], kv_box[LUATTN_MAX_AXES];
  tiles_box(p, false, q_box), tiles_box(p, true, kv_box);
  out->axes = (uint32_t)p->axes;
  for (int a = 0; a < LUATTN_MAX_AXES; a++) {
    out->q_box[a] = (uint32_t)q_box[a], out->kv_box[a] = (uint32_t)kv_box[a];
    out->least_extent[a] = (uint32_t)t->least_extent[a];
    if (a < p->axes) snprintf(out->name[a], sizeof out->name[a], "%s", t->grid_axis[a]);
  }
}

void manifest_fill_declared(const compilation *c, image_manifest *out) {
  const traced_spec *t = &c->spec.traced;
  copy_name(out->spec_name, t->name);
  out->num_inputs = (uint32_t)t->num_inputs;
  out->num_scalars = (uint32_t)t->num_scalars;
  out->has_ranges = t->num_ranges > 0;
  out->has_least_keys = t->grid_axes == 1 && t->least_extent[0] > 0;
  out->least_keys[0] = out->has_least_keys ? (uint32_t)t->least_extent[0] : 0;
  out->append_mods[0] = (manifest_append_mods){
      .key_mod = t->append_mod[0] != IR_NONE, .value_mod = t->append_mod[1] != IR_NONE, .inputs = t->append_inputs};
  for (int i = 0; i < t->num_inputs; i++) out->input[i] = t->input[i];
  for (int i = 0; i < t->num_scalars; i++) {
    copy_name(out->scalar[i].name, t->scalar_name[i]);
    out->scalar[i].value = t->scalar_default[i];
    out->ranges[0].of[i] = t->scalar_range[i];
  }
  out->num_elsewhere = c->target.offsets != LUATTN_OFFSET_NONE ? (uint32_t)t->num_elsewhere : 0;
  for (uint32_t i = 0; i < out->num_elsewhere; i++)
    out->elsewhere[i] = (manifest_elsewhere){t->elsewhere[i].input, t->elsewhere[i].axis};
  out->num_saved = (uint32_t)c->spec.derived.num_saved;
  out->has_lse = t->online.lse >= 0;
  out->has_mask = c->mask.keep != IR_NONE; /* as in spec.cuh: not where it simplifies to true */
  out->has_query_mod = t->query_mod != IR_NONE;
  out->has_key_mod = t->key_mod != IR_NONE;
  out->has_value_mod = t->value_mod != IR_NONE;
}

static void fill_spec(const compilation *c, image_manifest *out) {
  manifest_fill_declared(c, out);
  out->num_stats = (uint32_t)c->mask.num_stats;
  for (uint32_t i = 0; i < out->num_inputs; i++) out->input[i].pairs = c->at.lowered->pairs[i];
  for (int i = 0; i < c->mask.num_stats; i++) {
    const mask_stat *s = &c->mask.stat[i];
    out->stat[i].input = (uint32_t)s->input;
    out->stat[i].axis = (uint32_t)s->axis;
    out->stat[i].block =
        (uint32_t)(s->along_q ? c->at.plan.tile_m
                              : tiles_walk_columns(&c->at.plan)); /* as block_bounds_size in spec.cuh */
  }
}

static void fill_tile_bits(const compilation *c, const mask_evaluated *bits, manifest_tile_bits *out) {
  *out = (manifest_tile_bits){.layout = 1,
                              .by_batch = bits->by_batch || c->at.plan.packed || c->at.plan.pages,
                              .by_head = bits->by_head,
                              .rows = (uint32_t)bits->rows,
                              .columns = (uint32_t)bits->columns,
                              .cost = (uint32_t)c->at.lowered->rows.evaluated_cost,
                              .inputs = bits->inputs,
                              .scalars = bits->scalars,
                              .reads_heads = bits->reads_heads,
                              .has_reals = bits->has_reals};
  for (int i = 0; i < 4; i++) out->spec[i] = (uint32_t)(c->spec.hash[i / 2] >> 32 * (i % 2));
}

/* Their images are compiled after this one, and joined to it (compile.c). */
static luattn_status fill_row_passes(const compilation *c, manifest_row_passes *out, luattn_error *err) {
  const derived_spec *d = &c->spec.derived;
  *out = (manifest_row_passes){.count = (uint32_t)d->num_passes, .num_sums = (uint32_t)d->num_sums};
  for (int i = 0; i < d->num_passes; i++) {
    int row[PASS_MAX_ROWS];
    const int count = pass_spec_rows(c->a, &c->spec, i, row);
    if (count < 0) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
    for (int j = 0; j < count && j < MANIFEST_MAX_PASS_ROWS; j++) out->row[i][j] = row[j];
    out->num_rows[i] = (uint32_t)count; /* too many are refused when the pass is compiled */
  }
  return LUATTN_OK;
}

/* Refuses a spec whose integers might exceed a kernel's 32 bits at any length. */
static luattn_status refuse_large(const compilation *c, luattn_error *err) {
  /* Tile ranges that could overflow have been dropped already, so the overflow is in the spec's own
   * arithmetic, and too_large names its node; without one, memory ran out. */
  if (c->mask.too_large == IR_NONE) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  return large_integers_refuse(&c->spec.traced, ir_get(c->spec.traced.g, c->mask.too_large), c->mask.largest, err);
}

luattn_status manifest_fill(const compilation *c, image_manifest *out, luattn_error *err) {
  const plan *p = &c->at.plan;
  memset(out, 0, sizeof *out);
  out->pass = p->pass;
  out->family = p->family->id;
  out->dtype = p->dtype;
  out->arch = (uint32_t)p->arch;
  out->arch_suffix[0] = p->arch_suffix;
  out->head_dim = (uint32_t)p->head_dim;
  out->head_dim_v = (uint32_t)p->head_dim_v;
  out->params_version = LUATTN_PARAMS_VERSION;
  const lowered *l = c->at.lowered;
  out->params_bytes = TAKES(dense);
#define IMAGE_SECTION(tag, need, fact, when, takes, type, layout, range) \
  out->fact = (when) ? 1 : 0;                                            \
  if (out->fact && out->params_bytes < (takes)) out->params_bytes = (takes);
#include "abi/kernel_facts.def"
  out->paged_layout[0] = (uint32_t)p->pages;
  out->offsets_layout[0] = p->offsets != LUATTN_OFFSET_NONE ? p->offsets - LUATTN_OFFSET_NUMBERS : 0;
  out->num_state[0] = (uint32_t)c->spec.traced.online.num_state;
  if (out->over_grid) fill_grid(c, &out->grid[0]);
  for (int a = 0; a < LUATTN_MAX_AXES && out->has_steps; a++) out->steps[0].of[a] = (uint32_t)p->step[a];
  for (int a = 0; a < LUATTN_MAX_AXES && out->has_phases; a++) out->phases[0].of[a] = (uint32_t)p->phase[a];
  if (out->tile_bits) fill_tile_bits(c, l->rows.evaluated, &out->bits[0]);
  if (out->row_passes) TRY(fill_row_passes(c, &out->passes[0], err));
  out->tangents_of[0].bits = p->tangents;
  if (out->tangent_mods)
    out->tangent_mods_of[0] = (manifest_tangent_mods){.tangents = p->tangents_of, .values = p->mod_values};
  out->num_bwd_rows = (uint32_t)l->num_rows;
  out->accumulates_dq = plan_kernel(p)->accumulates_dq;
  out->deterministic = p->deterministic;
  out->can_split = plan_kernel(p)->splits && (p->family->merges || !p->packed);
  out->wants = p->wants;
  out->draws_tiles = plan_kernel(p)->draws_tiles && (c->mask.keep != IR_NONE || p->packed || p->pages);
  out->is_ptx = c->target.ptx != 0;
  out->reads_ahead = l->rows.bias_row_bytes > 0;
  const int64_t longest = INT64_C(1) << 30; /* kernels add a tile to a position in 32 bits */
  out->max_len = l->max_len > longest ? longest : l->max_len;
  if (out->max_len < 1) return refuse_large(c, err);
  fill_spec(c, out);
  fill_entries(p, out);
  return LUATTN_OK;
}
