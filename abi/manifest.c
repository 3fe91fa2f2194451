/* manifest.c: checks manifests, and describes them to programs. */
#include "abi/manifest.h"

#include <stdbool.h>
#include <string.h>

#include "abi/linear_params.h"
#include "abi/workspace.h"
#include "common/fail.h"
#include "common/call/input_dtype.h"
#include "common/struct_size.h"
#include "luattn/compiler.h"

static luattn_status bad(luattn_error *err, const char *subject, long long value, const char *expected) {
  return luattn_fail(err, LUATTN_IMAGE, "image: %s: is %lld, expected %s; compile it again", subject, value, expected);
}

static luattn_status check_range(luattn_error *err, const char *subject, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE, "image: %s: is %llu, expected %llu to %llu; compile it again", subject,
                     (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static luattn_status check_name(luattn_error *err, const char *subject, const char *name, size_t size,
                                bool may_be_empty) {
  if (memchr(name, '\0', size) == NULL)
    return luattn_fail(err, LUATTN_IMAGE, "image: %s: its name does not end within %zu bytes; compile it again",
                       subject, size);
  if (!may_be_empty && name[0] == '\0')
    return luattn_fail(err, LUATTN_IMAGE, "image: %s: its name is empty; compile it again", subject);
  return LUATTN_OK;
}

static bool copies(uint32_t role) { return role == LUATTN_ROLE_COPY_IN || role == LUATTN_ROLE_COPY_OUT; }

static bool is_linear(uint32_t role) { return role >= LUATTN_ROLE_LINEAR && !copies(role); }

static bool role_in_pass(uint32_t role, uint32_t pass) {
  if (role == LUATTN_ROLE_STATS || role == LUATTN_ROLE_MOD || role == LUATTN_ROLE_NORMS ||
      role == LUATTN_ROLE_TILE_BITMAP || role == LUATTN_ROLE_TILE_BITS || role == LUATTN_ROLE_TILE_ORDER ||
      role == LUATTN_ROLE_BLOCK_TABLE || role == LUATTN_ROLE_TILE_TABLE || role == LUATTN_ROLE_APPEND ||
      role == LUATTN_ROLE_COPY_IN || is_linear(role))
    return true;
  return (role == LUATTN_ROLE_FORWARD || role == LUATTN_ROLE_MERGE || role == LUATTN_ROLE_SPLIT_LIST ||
          role == LUATTN_ROLE_COPY_OUT) == (pass == LUATTN_FORWARD);
}

static luattn_status check_append_mods(const image_manifest *m, luattn_error *err) {
  const manifest_append_mods *of = &m->append_mods[0];
  TRY(check_range(err, "append_mods: key_mod", of->key_mod, 0, m->paged));
  TRY(check_range(err, "append_mods: value_mod", of->value_mod, 0, m->paged));
  TRY(check_range(err, "append_mods: inputs", of->inputs, 0,
                  of->key_mod || of->value_mod ? (1u << MANIFEST_MAX_INPUTS) - 1 : 0));
  if (of->inputs >> m->num_inputs == 0) return LUATTN_OK;
  return bad(err, "append_mods: inputs", of->inputs, "bits of inputs that there are");
}

static luattn_status check_row_passes(const image_manifest *m, luattn_error *err) {
  const manifest_row_passes *p = &m->passes[0];
  TRY(check_range(err, "row_passes: of a forward pass", m->pass == LUATTN_FORWARD, 0, 0));
  TRY(check_range(err, "row_passes: count", p->count, 1, MANIFEST_MAX_PASSES));
  TRY(check_range(err, "row_passes: num_sums", p->num_sums, 0, 8));
  for (uint32_t i = 0; i < MANIFEST_MAX_PASSES; ++i) {
    TRY(check_range(err, "row_passes: num_rows", p->num_rows[i], 0, i < p->count ? MANIFEST_MAX_PASS_ROWS : 0));
    for (uint32_t j = 0; j < p->num_rows[i]; ++j)
      if (p->row[i][j] < -(int32_t)m->has_lse || p->row[i][j] >= (int32_t)m->num_saved)
        return bad(err, "row_passes: row", p->row[i][j], "-1 for an lse, or a row of saved");
  }
  return LUATTN_OK;
}

/* Offsets have no layout with bits. */
static luattn_status check_tile_bits(const image_manifest *m, luattn_error *err) {
  const manifest_tile_bits *t = &m->bits[0];
  TRY(check_range(err, "tile_bits: layout", t->layout, 0, 1));
  TRY(check_range(err, "tile_bits: by_batch", t->by_batch, 0, 1));
  TRY(check_range(err, "tile_bits: by_head", t->by_head, 0, 1));
  TRY(check_range(err, "tile_bits: rows", t->rows, 1, 64));
  TRY(check_range(err, "tile_bits: columns", t->columns, 1, 64));
  TRY(check_range(err, "tile_bits: cost", t->cost, 1, 1u << 20));
  TRY(check_range(err, "tile_bits: inputs", t->inputs, 0, (UINT64_C(1) << m->num_inputs) - 1));
  TRY(check_range(err, "tile_bits: scalars", t->scalars, 0, (UINT64_C(1) << m->num_scalars) - 1));
  TRY(check_range(err, "tile_bits: reads_heads", t->reads_heads, 0, 1));
  TRY(check_range(err, "tile_bits: has_reals", t->has_reals, 0, 1));
  TRY(check_range(err, "tile_bits: by_batch, where sequences have lengths of their own", t->by_batch,
                  m->packed || m->paged, 1));
  return check_range(err, "tile_bits: offsets", m->offsets, 0, 0);
}

static bool has_parameters(const image_manifest *m) {
  bool some = (m->wants & LUATTN_WANT_SCALARS) != 0 && m->num_scalars > 0;
  for (uint32_t i = 0; i < m->num_inputs; ++i) some |= (m->wants & LUATTN_WANT_INPUTS) != 0 && m->input[i].grad != 0;
  return some;
}

static luattn_status check_entries(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "num_entries", m->num_entries, 1, MANIFEST_MAX_ENTRIES));
  bool finishes = false, rounds = false, adds = false, norms = false, bitmaps = false, orders = false, sorts = false,
       lists = false, attends = false;
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const manifest_entry *e = &m->entry[i];
    TRY(check_name(err, "entry", e->name, sizeof e->name, false));
    TRY(check_range(err, "entry: role", e->role, 0, LUATTN_ROLE_COUNT - 1));
    if (!role_in_pass(e->role, m->pass))
      return luattn_fail(err, LUATTN_IMAGE, "image: entry '%s': role %u does not belong to a %s pass; compile it again",
                         e->name, (unsigned)e->role, kernel_pass_name(m->pass));
    if (is_linear(e->role) != (m->linear != 0))
      return luattn_fail(err, LUATTN_IMAGE, "image: entry '%s': role %u is not of %s; compile it again", e->name,
                         (unsigned)e->role, m->linear ? "linear attention" : "attention");
    TRY(check_range(err, "entry: threads", e->threads, 32, 1024));
    TRY(check_range(err, "entry: shared_bytes", e->shared_bytes, 0, 1u << 20));
    /* grids of runtime/ divide by these tile sizes */
    const bool by_m = e->role != LUATTN_ROLE_STATS,
               by_n = e->role == LUATTN_ROLE_FORWARD || e->role == LUATTN_ROLE_DKDV;
    TRY(check_range(err, "entry: tile_m", e->tile_m, by_m, 1u << 20));
    TRY(check_range(err, "entry: tile_n", e->tile_n, by_n, 1u << 20));
    finishes = finishes || e->role == LUATTN_ROLE_FINISH;
    rounds = rounds || e->role == LUATTN_ROLE_ROUND;
    adds = adds || e->role == LUATTN_ROLE_DKDV;
    norms = norms || e->role == LUATTN_ROLE_NORMS;
    bitmaps = bitmaps || e->role == LUATTN_ROLE_TILE_BITMAP;
    orders = orders || e->role == LUATTN_ROLE_TILE_ORDER;
    sorts = sorts || e->role == LUATTN_ROLE_TILE_TABLE;
    lists = lists || e->role == LUATTN_ROLE_SPLIT_LIST;
    attends = attends || e->role == LUATTN_ROLE_FORWARD;
  }
  if (orders && !m->tile_bits)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: entries: an order of tiles, and no bits of which it could be made; compile it again");
  if (sorts && !m->packed)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: entries: a table of packed sequences, and sequences are not packed; compile it again");
  if (lists && !(m->decode && (m->packed || m->paged)))
    return luattn_fail(
        err, LUATTN_IMAGE,
        "image: entries: a list of splits, and no decode kernel of entries of different lengths; compile it again");
  if (m->decode && !attends)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: entries: no decode kernel whose tiles could be split; compile it again");
  if (norms != bitmaps)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: entries: one of the norms of q and k and of the tiles that they leave is missing; "
                       "compile it again");
  if (m->deterministic && has_parameters(m) && !rounds)
    return luattn_fail(err, LUATTN_IMAGE,
                       "image: deterministic: no entry rounds the sums of inputs and scalars; compile it again");
  if (m->accumulates_dq && m->deterministic && !adds)
    return luattn_fail(err, LUATTN_IMAGE, "image: deterministic: no entry adds to dq_acc; compile it again");
  if (m->accumulates_dq && (m->wants & LUATTN_WANT_DQ) && !finishes)
    return luattn_fail(err, LUATTN_IMAGE, "image: accumulates_dq: no entry turns the sums into dq; compile it again");
  return LUATTN_OK;
}

static bool is_axis_of_grid(const image_manifest *m, int32_t axis) {
  const int32_t axes = m->over_grid ? (int32_t)m->grid[0].axes : 0;
  return (axis <= LUATTN_AXIS_Q_GRID && axis > LUATTN_AXIS_Q_GRID - axes) ||
         (axis <= LUATTN_AXIS_KV_GRID && axis > LUATTN_AXIS_KV_GRID - axes);
}

static bool is_axis_of_linear(const image_manifest *m, int32_t axis) {
  return m->linear && axis <= LUATTN_AXIS_T && axis >= LUATTN_AXIS_DV;
}

static luattn_status check_inputs(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "num_inputs", m->num_inputs, 0, MANIFEST_MAX_INPUTS));
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const luattn_input_info *in = &m->input[i];
    TRY(check_name(err, "input", in->name, sizeof in->name, false));
    TRY(check_range(err, "input: dtype", in->dtype, 0, LUATTN_INPUT_U8));
    TRY(check_range(err, "input: num_axes", in->num_axes, 0, 4));
    TRY(check_range(err, "input: grad", in->grad, 0, 1));
    for (uint32_t a = 0; a < 8; ++a)
      TRY(check_range(err, "input: pairs", in->pairs >> 4 * a & 15, 0, a < in->num_axes ? LUATTN_INDEX_KV : 0));
    for (uint32_t a = 0; a < in->num_axes; ++a)
      if (in->axis[a] < LUATTN_AXIS_KV && !is_axis_of_grid(m, in->axis[a]) && !is_axis_of_linear(m, in->axis[a]))
        return bad(err, "input: axis", in->axis[a], "a size, or -5 to 0");
    for (uint32_t j = 0; j < i; ++j)
      if (strcmp(in->name, m->input[j].name) == 0)
        return luattn_fail(err, LUATTN_IMAGE, "image: input '%s': stands twice; compile it again", in->name);
  }
  return LUATTN_OK;
}

static luattn_status check_scalars(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "num_scalars", m->num_scalars, 0, MANIFEST_MAX_SCALARS));
  for (uint32_t i = 0; i < m->num_scalars; ++i) {
    const char *name = m->scalar[i].name;
    TRY(check_name(err, "scalar", name, sizeof m->scalar[i].name, false));
    if (i > 0 && strcmp(m->scalar[i - 1].name, name) >= 0)
      return luattn_fail(err, LUATTN_IMAGE, "image: scalar '%s': names are not in order; compile it again", name);
  }
  return LUATTN_OK;
}

static luattn_status check_stats(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "num_stats", m->num_stats, 0, MANIFEST_MAX_STATS));
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    const manifest_stat *s = &m->stat[i];
    if (s->input >= m->num_inputs) return bad(err, "stat: input", s->input, "the number of an input");
    const luattn_input_info *in = &m->input[s->input];
    if (!input_is_integer(in->dtype) && in->dtype != LUATTN_INPUT_BOOL)
      return bad(err, "stat: dtype of its input", in->dtype, "that of an integer or of a flag");
    if (s->axis + (uint64_t)1 != in->num_axes) return bad(err, "stat: axis", s->axis, "its input's last axis");
    TRY(check_range(err, "stat: block", s->block, 1, 1u << 20));
  }
  return LUATTN_OK;
}

static luattn_status check_elsewhere(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "num_elsewhere", m->num_elsewhere, 0, m->offsets ? MANIFEST_MAX_ELSEWHERE : 0));
  for (uint32_t i = 0; i < m->num_elsewhere; ++i) {
    const manifest_elsewhere *e = &m->elsewhere[i];
    if (e->input >= m->num_inputs) return bad(err, "elsewhere: input", e->input, "the number of an input");
    const luattn_input_info *in = &m->input[e->input];
    if (e->axis >= in->num_axes || in->axis[e->axis] > LUATTN_AXIS_H)
      return bad(err, "elsewhere: axis", e->axis, "an axis q, kv, h or hkv of its input");
  }
  return LUATTN_OK;
}

/* The kernel that writes weights is of forward, of the simt family, and of keys that are not in pages. */
static luattn_status check_weights(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "weights: pass", m->pass, LUATTN_FORWARD, LUATTN_FORWARD));
  TRY(check_range(err, "weights: family", m->family, LUATTN_SIMT, LUATTN_SIMT));
  TRY(check_range(err, "weights: decode", m->decode, 0, 0));
  return check_range(err, "weights: paged", m->paged, 0, 0);
}

/* Kernels with tangents have no members of LuattnCallParams besides these after the pages. */
static luattn_status check_tangents(const image_manifest *m, luattn_error *err) {
  const uint64_t of_backward = m->pass == LUATTN_BACKWARD ? LUATTN_TANGENT_DOUT | LUATTN_TANGENT_DLSE : 0;
  const uint64_t rest = m->tangents_of[0].bits & ~(LUATTN_TANGENT_Q | LUATTN_TANGENT_K | LUATTN_TANGENT_V) &
                        ~of_backward & ~(LUATTN_TANGENT_INPUT(m->num_inputs) - LUATTN_TANGENT_INPUT(0)) &
                        ~(LUATTN_TANGENT_SCALAR(m->num_scalars) - LUATTN_TANGENT_SCALAR(0));
  TRY(check_range(err, "tangents: pass", m->pass, LUATTN_FORWARD, LUATTN_BACKWARD));
  TRY(check_range(err, "tangents: decode", m->decode, 0, 0));
  TRY(check_range(err, "tangents: weights", m->weights, 0, 0));
  TRY(check_range(err, "tangents: paged", m->paged, 0, 0));
  if (m->tangents_of[0].bits != 0 && rest == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE, "image: tangents: are of what the spec has not; compile it again");
}

static luattn_status check_tangent_mods(const image_manifest *m, luattn_error *err) {
  const manifest_tangent_mods *of = &m->tangent_mods_of[0];
  const uint32_t has = (m->has_query_mod ? 1u : 0) | (m->has_key_mod ? 2u : 0) | (m->has_value_mod ? 4u : 0);
  TRY(check_range(err, "tangent_mods: of an image without tangents", !m->tangents, 0, 0));
  if ((of->tangents & ~7u) != 0) return bad(err, "tangent_mods: tangents", of->tangents, "bits of q, k and v");
  if ((of->values & ~has) != 0) return bad(err, "tangent_mods: values", of->values, "bits of tensors with a mod");
  return check_range(err, "tangent_mods: values of a forward pass", m->pass == LUATTN_FORWARD && of->values != 0, 0, 0);
}

static luattn_status check_ranges(const image_manifest *m, luattn_error *err) {
  for (int i = 0; i < MANIFEST_MAX_SCALARS; ++i) {
    const scalar_range *r = &m->ranges[0].of[i];
    if (memchr(r->by, '\0', sizeof r->by) == NULL)
      return luattn_fail(err, LUATTN_IMAGE, "image: ranges: a name has no end; compile it again");
    if (r->least != r->least || r->most != r->most)
      return luattn_fail(err, LUATTN_IMAGE, "image: ranges: a limit is nan; compile it again");
    TRY(check_range(err, "ranges: whole", r->whole, 0, 1));
    TRY(check_range(err, "ranges: above", r->above, 0, 1));
  }
  return LUATTN_OK;
}

static luattn_status check_grid(const image_manifest *m, luattn_error *err) {
  const manifest_grid *g = &m->grid[0];
  uint64_t rows = 1, columns = 1;
  TRY(check_range(err, "grid: axes", g->axes, 2, LUATTN_MAX_AXES));
  for (uint32_t a = 0; a < LUATTN_MAX_AXES; ++a) {
    const uint32_t most = a + g->axes < LUATTN_MAX_AXES ? 1 : 256;
    TRY(check_range(err, "grid: q_box", g->q_box[a], 1, most));
    TRY(check_range(err, "grid: kv_box", g->kv_box[a], 1, most));
    TRY(check_range(err, "grid: least_extent", g->least_extent[a], 0, INT32_MAX));
    if (memchr(g->name[a], '\0', sizeof g->name[a]) == NULL)
      return luattn_fail(err, LUATTN_IMAGE, "image: grid: a name has no end; compile it again");
    rows *= g->q_box[a], columns *= g->kv_box[a];
  }
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const manifest_entry *e = &m->entry[i];
    const bool in_pairs = m->pass == LUATTN_BACKWARD && manifest_traits(m)->pairs_blocks;
    const uint64_t blocks = (uint64_t)workspace_blocks_together(in_pairs, (int)e->tile_n);
    if (luattn_role_is_main(e->role) && (e->tile_m != rows || e->tile_n * blocks != columns))
      return bad(err, "grid: places of a box", (long long)rows, "the rows of a tile");
  }
  return LUATTN_OK;
}

static luattn_status check_steps(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "steps: of a grid", m->over_grid, 1, 1));
  for (uint32_t a = 0; a < LUATTN_MAX_AXES; ++a) {
    const uint32_t most = a + m->grid[0].axes < LUATTN_MAX_AXES ? 1 : MANIFEST_STEP_MAX;
    TRY(check_range(err, "steps: along an axis", m->steps[0].of[a], 1, most));
  }
  return LUATTN_OK;
}

static luattn_status check_phases(const image_manifest *m, luattn_error *err) {
  TRY(check_range(err, "phases: of a grid", m->over_grid, 1, 1));
  for (uint32_t a = 0; a < LUATTN_MAX_AXES; ++a)
    TRY(check_range(err, "phases: along an axis", m->phases[0].of[a], 0, m->grid[0].q_box[a] - 1));
  return LUATTN_OK;
}

uint32_t manifest_ring_bytes(const image_manifest *m, int tokens, int rows) {
  const manifest_linear *l = &m->linear_facts[0];
  const int k = layout_ceil((int)m->head_dim, 32) * 32, width = l->ring_width > 1 ? k : (int)l->ring_width;
  return 4 * (uint32_t)linear_ring_places(tokens, (int)l->numbers_kept, rows, k, (int)l->v_block, width, 1,
                                          (int)l->ring_erases)
                 .numbers;
}

/* A call of fewer tokens than a step takes less memory than the entry (runtime/call/linear_args.c). */
static luattn_status check_ring(const image_manifest *m, luattn_error *err) {
  const manifest_linear *l = &m->linear_facts[0];
  if (l->ring == 0) return LUATTN_OK;
  const uint32_t least = manifest_ring_bytes(m, (int)l->step, (int)l->ring);
  return check_range(err, "linear: shared_bytes of a ring", m->entry[0].shared_bytes, least, 1 << 20);
}

static luattn_status check_linear(const image_manifest *m, luattn_error *err) {
  const manifest_linear *l = &m->linear_facts[0];
  bool computes = false;
  TRY(check_range(err, "linear: pass", m->pass, LUATTN_FORWARD, LUATTN_BACKWARD));
  TRY(check_range(err, "linear: head_dim", m->head_dim, 8, 256));
  TRY(check_range(err, "linear: v_block", l->v_block, 1, 256));
  TRY(check_range(err, "linear: cuts", l->cuts, 0, MANIFEST_CUT_MAPS));
  TRY(check_range(err, "linear: v_warp", l->v_warp, 0, l->v_block));
  TRY(check_range(err, "linear: ring", l->ring, 0, 64));
  TRY(check_range(err, "linear: step", l->step, 0, 64));
  TRY(check_range(err, "linear: ring_width", l->ring_width, 0, m->head_dim));
  TRY(check_range(err, "linear: ring_erases", l->ring_erases, 0, 1));
  TRY(check_range(err, "linear: run", l->run, 0, 1024));
  TRY(check_range(err, "linear: keys", l->keys, 0, 8));
  TRY(check_range(err, "linear: numbers_kept", l->numbers_kept, 0, m->pass == LUATTN_FORWARD ? 4096 : 256));
  TRY(check_range(err, "linear: room", l->room, 0, 1 << 20));
  TRY(check_range(err, "linear: early", l->early, 0, (1u << m->num_entries) - 1));
  TRY(check_range(err, "linear: normalizes", l->normalizes, 0, 1));
  TRY(check_ring(m, err));
  TRY(check_range(err, "linear: second_code", m->second_code, 0, 0));
  if (!(l->scale > -1e300 && l->scale < 1e300))
    return luattn_fail(err, LUATTN_IMAGE, "image: linear: scale is not finite; compile it again");
  for (uint32_t i = 0; i < m->num_entries && i < MANIFEST_MAX_ENTRIES; ++i)
    computes |= m->entry[i].role == LUATTN_ROLE_LINEAR || m->pass == LUATTN_BACKWARD;
  if (computes) return LUATTN_OK;
  return luattn_fail(err, LUATTN_IMAGE, "image: entries: none computes linear attention; compile it again");
}

static luattn_status check_sections(const image_manifest *m, luattn_error *err) {
#define CHECKED(what) LUATTN_OK
#define NUMBER(least, most) check_range(err, name, *number, least, most)
#define IMAGE_SECTION(tag, need, fact, when, takes, type, layout, range) \
  TRY(check_range(err, #fact, m->fact, 0, 1));                           \
  if (m->fact) {                                                         \
    const char *name = #layout;                                          \
    const uint32_t *number = (const void *)m->layout;                    \
    (void)name, (void)number;                                            \
    TRY(range);                                                          \
  }
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

/* What sections hold besides numbers. */
static luattn_status check_contents(const image_manifest *m, luattn_error *err) {
#undef CHECKED
#undef NUMBER
#define CHECKED(what) check_##what(m, err)
#define NUMBER(least, most) LUATTN_OK
#define IMAGE_SECTION(tag, need, fact, when, takes, type, layout, range) \
  if (m->fact) TRY(range);
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

const image_traits traits_of_weights = {.vector_bits = 16, .products = 2},
                   traits_of_decode = {.vector_bits = 64, .products = 20},
                   traits_of_family[KERNEL_FAMILIES] = {
                       [LUATTN_SIMT] = {.vector_bits = 16, .products = 2},
                       [LUATTN_SM80] = {.numbers_tiles = true, .vector_bits = 64, .products = 20},
                       [LUATTN_SM90] = {.takes_descriptors = true,
                                        .is_resident = true,
                                        .numbers_tiles = true,
                                        .groups_rows = true,
                                        .pairs_blocks = true,
                                        .prepares_sums = true,
                                        .reads_tile_words = true,
                                        .vector_bits = 64,
                                        .products = 40}};

luattn_status manifest_check(const image_manifest *m, luattn_error *err) {
  TRY(check_name(err, "spec", m->spec_name, sizeof m->spec_name, true));
  TRY(check_range(err, "pass", m->pass, 0, KERNEL_PASSES - 1));
  TRY(check_range(err, "family", m->family, 0, KERNEL_FAMILIES - 1));
  TRY(check_range(err, "dtype", m->dtype, 0, KERNEL_DTYPES - 1));
  TRY(check_range(err, "arch", m->arch, 50, 999));
  TRY(check_name(err, "arch_suffix", m->arch_suffix, sizeof m->arch_suffix, true));
  if (m->arch_suffix[0] != '\0' && strcmp(m->arch_suffix, "a") != 0)
    return luattn_fail(err, LUATTN_IMAGE, "image: arch_suffix: is '%s', expected 'a' or nothing; compile it again",
                       m->arch_suffix);
  TRY(check_range(err, "head_dim", m->head_dim, 1, 1024));
  TRY(check_range(err, "head_dim_v", m->head_dim_v, 1, 1024));
  TRY(check_range(err, "num_saved", m->num_saved, 0, 64));
  TRY(check_range(err, "num_bwd_rows", m->num_bwd_rows, 0, 64));
  const struct {
    const char *name;
    uint32_t value;
  } flag[] = {
      {"has_lse", m->has_lse},
      {"has_query_mod", m->has_query_mod},
      {"has_key_mod", m->has_key_mod},
      {"has_value_mod", m->has_value_mod},
      {"accumulates_dq", m->accumulates_dq},
      {"draws_tiles", m->draws_tiles},
      {"is_ptx", m->is_ptx},
      {"deterministic", m->deterministic},
      {"can_split", m->can_split},
      {"has_mask", m->has_mask},
      {"reads_ahead", m->reads_ahead},
  };
  for (size_t i = 0; i < sizeof flag / sizeof *flag; ++i) TRY(check_range(err, flag[i].name, flag[i].value, 0, 1));
  TRY(check_sections(m, err));
  if (m->weights) TRY(check_weights(m, err));
  TRY(check_range(err, "wants", m->wants, 0, LUATTN_WANT_ALL));
  TRY(check_range(err, "params_bytes", m->params_bytes, 1, MANIFEST_MAX_PARAMS));
  if (m->max_len < 1 || m->max_len > INT32_MAX) return bad(err, "max_len", m->max_len, "1 to 2147483647");
  TRY(check_inputs(m, err));
  TRY(check_scalars(m, err));
  TRY(check_contents(m, err));
  TRY(check_entries(m, err));
  TRY(check_elsewhere(m, err));
  return check_stats(m, err);
}

void manifest_functions(const image_manifest *m, luattn_function_info functions[MANIFEST_MAX_ENTRIES]) {
  for (uint32_t i = 0; i < m->num_entries; ++i) {
    const manifest_entry *e = &m->entry[i];
    functions[i] = (luattn_function_info){.is_main = (uint32_t)luattn_role_is_main(e->role),
                                          .threads = e->threads,
                                          .shared_bytes = e->shared_bytes,
                                          .tile_m = e->tile_m,
                                          .tile_n = e->tile_n,
                                          .registers = e->registers,
                                          .local_bytes = e->local_bytes};
    memcpy(functions[i].name, e->name, sizeof e->name);
  }
}

static int has_role(const image_manifest *m, luattn_role role) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].role == (uint32_t)role) return 1;
  return 0;
}

luattn_status manifest_describe(const image_manifest *m, const luattn_function_info *functions, const char *place,
                                luattn_kernel_description *out, luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_kernel_description, pass);
  luattn_kernel_description d = {
      .spec_name = m->spec_name,
      .pass = (luattn_pass)m->pass,
      .family = (luattn_family)m->family,
      .dtype = (luattn_dtype)m->dtype,
      .arch = (int)m->arch,
      .is_ptx = (int)m->is_ptx,
      .head_dim = (int)m->head_dim,
      .head_dim_v = (int)m->head_dim_v,
      .wants = m->wants,
      .deterministic = (int)m->deterministic,
      .has_lse = (int)m->has_lse,
      .has_mask = (int)m->has_mask,
      .num_saved = (int)m->num_saved,
      .draws_tiles = (int)m->draws_tiles,
      .can_split = (int)m->can_split,
      .can_skip = has_role(m, LUATTN_ROLE_TILE_BITMAP),
      .max_len = m->max_len,
      .second_code = m->second_code,
      .source_hash = {m->source_hash[0], m->source_hash[1]},
      .num_functions = m->num_entries,
      .functions = functions,
      .num_inputs = m->num_inputs,
      .inputs = m->input,
      .num_scalars = m->num_scalars,
      .scalars = m->scalar,
      .on_cpu = (int)m->on_cpu,
      .random = (int)m->random,
#define KERNEL_VARIANT(name, value, says) .name = (int)(value),
#include "abi/kernel_facts.def"
  };
  memcpy(d.arch_suffix, m->arch_suffix, sizeof d.arch_suffix);
  return struct_give(&rule, place, &d, out, err);
}
