#include "gen/compile/compilation.h"

#include <stdlib.h>
#include <string.h>

#include "abi/host_device.h"
#include "common/struct_size.h"
#include "gen/analysis/specs/append_mods.h"
#include "gen/analysis/specs/decisions.h"
#include "gen/analysis/specs/large_scores.h"
#include "gen/analysis/online/merge.h"
#include "gen/analysis/specs/mod_rows.h"
#include "gen/ir/passes.h"
#include "gen/plan/check_target.h"

/* Notes that kernels have no backward, so that programs that compile only forward learn it at once. */
static const char *backward_note(const compilation *c) {
  const derived_spec *d = &c->spec.derived;
  return d->missing == NULL ? "" : arena_printf(c->a, "no backward: %s\n", d->missing);
}

/* Head dims that no kernel has are refused later, by plan_start. */
static luattn_status resolve_rows(compilation *c, luattn_error *err) {
  const int dim = c->target.head_dim, dim_v = c->target.head_dim_v > 0 ? c->target.head_dim_v : dim;
  if (dim < 1 || dim > LUATTN_MAX_HEAD_DIM || dim_v > LUATTN_MAX_HEAD_DIM) return LUATTN_OK;
  return mod_rows_resolve(c->a, &c->spec, dim, dim_v, err);
}

luattn_status compilation_resolve_types(traced_spec *t, uint64_t input_types, int other, luattn_error *err) {
  for (int i = 0; i < t->num_inputs; i++) {
    luattn_input_info *in = &t->input[i];
    int type = (int)(input_types >> 4 * i & 15) - 1;
    if (in->dtype != LUATTN_INPUT_ANY && type < 0) continue;
    if (in->dtype != LUATTN_INPUT_ANY)
      return luattn_fail(err, LUATTN_INVALID,
                         "target: input_types: gives a type to input '%s', whose dtype is not any; leave it 0",
                         in->name);
    if (type < 0) type = other;
    if (type < 0)
      return luattn_fail(
          err, LUATTN_INVALID,
          "target: input_types: says no type of input '%s', whose dtype is any, and a kernel is for one; say "
          "which, or declare it in the spec",
          in->name);
    if (type > LUATTN_INPUT_F16)
      return luattn_fail(
          err, LUATTN_INVALID,
          "target: input_types: input '%s': is %d, expected 1 + a luattn_input_dtype up to LUATTN_INPUT_F16", in->name,
          type + 1);
    in->dtype = (uint32_t)type;
  }
  return LUATTN_OK;
}

/* Whether the decode kernel has the spec, where the target leaves that open; a note says why not. */
static luattn_status resolve_decode(compilation *c, luattn_error *err) {
  luattn_error why;
  if (c->target.decode != 2) return LUATTN_OK;
  luattn_status status = target_check_decode(&c->target, &why);
  if (status == LUATTN_OK && (c->target.head_dim % 8 != 0 || c->target.head_dim_v % 8 != 0))
    status = luattn_fail(&why, LUATTN_UNSUPPORTED, "head dims are no multiples of 8");
  if (status == LUATTN_OK) {
    online_merge *merge = arena_new(c->a, sizeof *merge);
    if (merge == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", c->spec.traced.name);
    status = merge_derive(c->a, &c->spec.traced, merge, &why);
  }
  c->target.decode = status == LUATTN_OK;
  if (status == LUATTN_OK) return LUATTN_OK;
  c->target.lengths = LUATTN_SHORT; /* which said something about rows of decode */
  if (status != LUATTN_UNSUPPORTED) return luattn_fail(err, status, "%s", why.message);
  return compilation_note(c, arena_printf(c->a, "not the decode kernel: %s", why.message), err);
}

luattn_status compilation_take_target(const luattn_target *target, luattn_target *taken, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_target, wants);
  return struct_take(&rule, "target", target, taken, err);
}

/* Boxes of kernels step by a dilation, which their masks need not ask then. */
static void take_steps(compilation *c) {
  const int unused = LUATTN_MAX_AXES - c->mask.num_axes;
  if (!mask_steps(&c->mask)) return;
  for (int a = 0; a < c->mask.num_axes; a++) c->spec.step[unused + a] = c->mask.axis[a].step;
  c->mask.keep = c->mask.within;
}

/* Says along which axes boxes do not step, although the mask has a dilation there. */
static luattn_status note_asked_steps(compilation *c, luattn_error *err) {
  for (int a = 0; a < c->mask.num_axes; a++)
    if (c->mask.axis[a].asks_step)
      TRY(compilation_note(c,
                           arena_printf(c->a,
                                        "slow: dilation along %s: its d is no constant, so boxes have consecutive "
                                        "places, about d times as many keys, and ask (kv_idx.%s - q_idx.%s) %% d for "
                                        "each score; write d as a constant from 2 to %d, by which boxes step",
                                        c->spec.traced.grid_axis[a], c->spec.traced.grid_axis[a],
                                        c->spec.traced.grid_axis[a], MASK_STEP_MAX),
                           err));
  return LUATTN_OK;
}

/* Whether the gradient of an input adds scores with the same kv - q at one of its elements. */
static luattn_status find_learned(compilation *c, luattn_error *err) {
  const traced_spec *t = &c->spec.traced;
  const derived_terms *terms = &c->spec.derived.element_terms;
  if (t->grid_axes < 2 || terms->count == 0) return LUATTN_OK;
  uint8_t *level = arena_array(c->a, ir_count(t->g), sizeof *level);
  if (level == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", t->name);
  analyse_levels(t->g, level);
  for (int i = 0; i < terms->count; i++) {
    const derived_term *x = &terms->term[i];
    bool moves = false;
    for (int k = 0; k < x->num_index; k++) moves |= level[x->index[k]] == LEVEL_ELEMENT;
    c->spec.learns_displacements |= moves && analyse_distance(c->a, t->g, x->index, x->num_index);
  }
  return LUATTN_OK;
}

luattn_status compilation_open(const luattn_spec *spec, const luattn_target *target, compilation **out,
                               luattn_error *err) {
  luattn_target taken;
  *out = NULL;
  TRY(compilation_take_target(target, &taken, err));
  if (taken.large_scores && spec->derived.num_passes > 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': large_scores is 1, and its backward takes a row pass, which has no form "
                       "for large scores; leave it 0",
                       spec->traced.file, spec->traced.online.name);
  if (taken.pass == LUATTN_BACKWARD && spec->derived.missing != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "%s", spec->derived.missing);
  arena *a = arena_open(arena_allocator(spec->a));
  compilation *c = a == NULL ? NULL : arena_new(a, sizeof *c);
  if (c == NULL) {
    arena_close(a);
    return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  }
  *out = c;
  c->a = a;
  c->target = taken;
  nvrtc_search_start(&c->search, taken.nvrtc, (int)taken.driver_version, taken.ptx != 0);
  c->spec = *spec;
  c->given = &spec->traced;
  c->loaded = spec->traced.g;
  c->spec.traced.g = ir_clone(c->a, spec->traced.g);
  if (c->spec.traced.g == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  ir_set_line(c->spec.traced.g, 0);
  c->note = backward_note(c);
  if (c->note == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", spec->traced.name);
  TRY(compilation_resolve_types(&c->spec.traced, c->target.input_types, -1, err));
  for (int i = 0; i < c->spec.traced.num_inputs; i++)
    if (c->spec.traced.input[i].dtype == LUATTN_INPUT_F64) ir_input_wide(c->spec.traced.g, (uint32_t)i);
  TRY(resolve_rows(c, err));
  if (c->target.keys_modified == 1 && c->target.pass == LUATTN_FORWARD) /* else plan_start refuses it */
    TRY(append_mods_take(c->a, &c->spec, c->target.pages != 0, &c->target.keys_modified, err));
  if (c->target.large_scores) TRY(large_scores_apply(c->a, &c->spec, err));
  TRY(resolve_decode(c, err));
  TRY(templates_get(c->a, &c->templates, &c->num_templates, err));
  TRY(mask_analyse(c->a, &c->spec.traced, &c->mask, err));
  take_steps(c);
  TRY(note_asked_steps(c, err));
  TRY(find_learned(c, err));
  TRY(decisions_apply(c->a, &c->spec, &c->mask, c->target.dtype == LUATTN_F64, err));
  c->spec.by_cells = c->mask.evaluated.is;
  c->spec.by_query_blocks = c->mask.evaluated.is && c->mask.evaluated.by_query && c->mask.evaluated.rows > 1;
  c->spec.by_narrow_blocks = c->mask.evaluated.is && c->mask.evaluated.has_narrow_blocks;
  c->spec.by_block_bounds = c->mask.num_stats > 0;
  return LUATTN_OK;
}

void compilation_close(compilation *c) {
  if (c == NULL) return;
  arena_close(c->second);
  arena_close(c->a); /* c lies in it */
}

luattn_status compilation_find_nvrtc(compilation *c, luattn_error *err) {
  return c->nvrtc.path[0] != 0 ? LUATTN_OK : nvrtc_next(&c->search, &c->nvrtc, err);
}

luattn_status compilation_memory(const compilation *c, luattn_error *err) {
  if (!arena_failed(c->a) && (c->second == NULL || !arena_failed(c->second))) return LUATTN_OK;
  return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", c->spec.traced.name);
}

luattn_status compilation_note(compilation *c, const char *line, luattn_error *err) {
  const char *note = line == NULL ? NULL : arena_printf(c->a, "%s%s\n", c->note, line);
  if (note == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", c->spec.traced.name);
  c->note = note;
  return LUATTN_OK;
}

const char *compilation_why(const compilation *c) {
  const char *why = c->note[0] == 0 ? NULL : arena_printf(c->a, "%s%s", c->at.why, c->note);
  return why != NULL ? why : c->at.why;
}

const char *compilation_add_line(arena *a, const char *before, const char *line) {
  const char *both = arena_printf(a, "%s%s\n", before, line);
  return both != NULL ? both : before;
}

bool compilation_has_line_info(void) {
  const char *value = getenv("LUATTN_LINEINFO");
  return value != NULL && strcmp(value, "1") == 0;
}

int compilation_nvrtc_options(bool recent, bool apart, const char *out[COMPILATION_NVRTC_OPTIONS]) {
  int n = 0;
  out[n++] = "-std=c++20";
  out[n++] = "-default-device";
  out[n++] = "--ptxas-options=-v";
  if (compilation_has_line_info()) out[n++] = "-lineinfo";
  if (recent) out[n++] = "--minimal";
  if (recent) out[n++] = "--no-cache";
  if (apart) out[n++] = "-DLUATTN_MIN_MAX_APART";
  return n;
}

const char *compilation_arch(const compilation *c, arena *a) {
  const char suffix[2] = {c->at.plan.arch_suffix, 0};
  return arena_printf(a, "sm_%d%s", c->at.plan.arch, suffix);
}
