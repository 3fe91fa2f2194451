#include "runtime/parts/backward_scratch.h"

#include "abi/workspace.h"
#include "luattn/compiler.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tangents.h"
#include "runtime/call/tensor_rule.h"
#include "runtime/parts/tile_table.h"

/* The gradients of a mod's parameters need the gradient of its tensor, whether or not the caller wants
 * that. */
static bool is_needed(const image_manifest *m, unsigned want, uint32_t has_mod) {
  return (m->wants & want) != 0 || (has_mod && (m->wants & (LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS)) != 0);
}

/* Rows of a head in dq_acc, dk_acc, dv_acc and bwd_rows. */
static int64_t padded_rows(const image_manifest *m, int len) {
  return workspace_rows(manifest_traits(m)->groups_rows, len);
}

/* Rows of a head, or with a batch axis of all entries, in an array of backward that has rows of queries; in_groups: an
 * accumulator in groups of rows. */
static int64_t all_q_rows(const args_call *c, const LuattnParams *p, bool in_groups) {
  if (!c->info->packed) return p->shape.batch * padded_rows(c->info, p->shape.q_len);
  const int64_t total = c->args->q->shape[0];
  return in_groups || manifest_traits(c->info)->groups_rows ? workspace_packed_rows(total, p->shape.batch) : total;
}

/* The same for rows of keys, in dk_acc and dv_acc. */
static int64_t all_kv_rows(const args_call *c, const LuattnParams *p) {
  if (!c->info->packed) return (int64_t)p->shape.batch * padded_rows(c->info, p->shape.kv_len);
  const int64_t total = c->args->k->shape[0];
  return manifest_traits(c->info)->groups_rows ? workspace_packed_rows(total, p->shape.batch) : total;
}

static bool adds_dq(const image_manifest *m) {
  return m->accumulates_dq && is_needed(m, LUATTN_WANT_DQ, m->has_query_mod);
}

/* Counters for the q tiles of a head (work/dq_order.cuh, sm90/bwd/dq_first_store.cuh). */
static int64_t num_dq_orders(const image_manifest *m, const LuattnParams *p) {
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_DKDV);
  const int each = workspace_dq_orders(manifest_traits(m)->pairs_blocks, (int)main->threads, (int)main->tile_n);
  return ceil_div(p->shape.q_len, main->tile_m) * each;
}

/* The work counter, and a counter for each q tile: the semaphore of the dQ order, or the flag of the first
 * store. */
static int64_t num_counters(const image_manifest *m, const LuattnParams *p) {
  return LUATTN_DQ_ORDER_FIRST + (adds_dq(m) ? (int64_t)p->shape.batch * p->shape.heads * num_dq_orders(m, p) : 0);
}

/* ---- rows ---- */

luattn_status backward_rows_take(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  LuattnParams *const dense = &p->all.dense;
  if (m->num_bwd_rows == 0 || m->pass != LUATTN_BACKWARD) return LUATTN_OK;
  dense->scratch.bwd_rows =
      room_take(&p->room, args_real_size(m), m->num_bwd_rows, dense->shape.heads, all_q_rows(c, dense, false), 1);
  return LUATTN_OK;
}

/* At least one block, where it zeroes a counter. */
luattn_status backward_rows_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  tile_table_q_tiles(c, p, entry->tile_m, size);
  size[0] = max_of(size[0], sizes_draws_kv(c->info));
  sizes_add_padding(c, &p->all, size);
  return LUATTN_OK;
}

/* ---- sums ---- */

/* Whether a deterministic backward needs no exact sums of an input's gradient: the order of additions does
 * not matter, or blocks can keep a fixed order. For a fixed order a block processes all batches of a kv tile,
 * and the blocks should still fill an eighth of the GPU, because exact sums take about eight times as
 * long. */
static bool is_ordered(const args_call *c, uint32_t input, LuattnParams *p) {
  const image_manifest *m = c->info;
  const luattn_input_info *info = &m->input[input];
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_DKDV);
  const pairs_sizes s = sizes_of_pairs(m, input, p);
  if (pairs_in_any_order(info, &s)) return true;
  if (!manifest_traits(m)->is_resident || m->packed || main == NULL || p->schedule.num_splits > 1 ||
      !pairs_in_batch_order(info, &s))
    return false;
  if (sizes_kv_blocks(m, main, p) * p->shape.heads_kv * 8 < c->multiprocessors) return false;
  p->schedule.batches_in_turn = 1;
  return true;
}

/* Exact sums of a deterministic backward, next to dq_acc. */
static void take_ordered(room *w, const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const size_t limbs = (size_t)workspace_limbs((int)args_real_size(m)) * sizeof(unsigned long long);
  if (adds_dq(m) && !sizes_draws_kv(m)) {
    const int64_t count = (int64_t)p->shape.batch * p->shape.heads * num_dq_orders(m, p);
    p->scratch.dq_order = room_take(w, sizeof *p->scratch.dq_order, LUATTN_DQ_ORDER_FIRST + count, 1, 1, 1);
  }
  p->schedule.batches_in_turn = 0;
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    LuattnInput *in = &p->inputs.input[i];
    in->count = 1;
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) in->count *= in->size[a];
    const bool wanted = m->input[i].grad && (m->wants & LUATTN_WANT_INPUTS);
    if (wanted && !is_ordered(c, i, p)) in->exact = room_take(w, limbs, in->count, 1, 1, 1);
  }
  p->inputs.num_scalars = (int)m->num_scalars;
  if (m->wants & LUATTN_WANT_SCALARS) p->inputs.scalar_exact = room_take(w, limbs, m->num_scalars, 1, 1, 1);
}

/* Accumulators, side by side, so that one memset zeroes them, unless prepare zeroes dq_acc, while it
 * waits for loads, and the counters. */
static void take_sums(const args_call *c, prepared *out) {
  LuattnParams *const p = &out->all.dense;
  room *const w = &out->room;
  const image_manifest *m = c->info;
  const bool adds = sizes_entry(m, LUATTN_ROLE_FINISH) != NULL && adds_dq(m),
             by_prepare = manifest_traits(m)->prepares_sums;
  if (adds && by_prepare)
    p->scratch.dq_acc = room_take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (sizes_draws_kv(m)) p->scratch.dq_order = room_take(w, sizeof *p->scratch.dq_order, num_counters(m, p), 1, 1, 1);
  out->sums = w->used;
  if (adds && !by_prepare)
    p->scratch.dq_acc = room_take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (m->deterministic) take_ordered(w, c, p);
  out->sums_size = w->used - out->sums;
}

/* Beside tangents, whose accumulators are the others: those of gradients behind mods. */
static void take_values(const args_call *c, prepared *to) {
  const image_manifest *m = c->info;
  LuattnParams *const p = &to->all.dense;
  LuattnTangentMods *const mods = tangents_mods_place(m, &to->all);
  const uint32_t values = m->tangent_mods_of[0].values;
  const size_t real = args_real_size(m);
  if ((values & 1) && is_needed(m, LUATTN_WANT_DQ, true))
    mods->dq_acc = room_take(&to->room, real, p->shape.heads, all_q_rows(c, p, false), m->head_dim, 1);
  if ((values & 2) && is_needed(m, LUATTN_WANT_DK, true))
    mods->dk_acc = room_take(&to->room, real, p->shape.heads_kv, all_kv_rows(c, p), m->head_dim, 1);
  if ((values & 4) && is_needed(m, LUATTN_WANT_DV, true))
    mods->dv_acc = room_take(&to->room, real, p->shape.heads_kv, all_kv_rows(c, p), m->head_dim_v, 1);
}

luattn_status backward_sums_take(const args_call *c, prepared *to) {
  const image_manifest *m = c->info;
  LuattnParams *const p = &to->all.dense;
  room *const w = &to->room;
  const size_t real = args_real_size(m);
  take_sums(c, to);
  if (sizes_entry(m, LUATTN_ROLE_FINISH) == NULL) return LUATTN_OK;
  if (!m->accumulates_dq && is_needed(m, LUATTN_WANT_DQ, m->has_query_mod) && m->has_query_mod)
    p->scratch.dq_acc = room_take(w, real, p->shape.heads, all_q_rows(c, p, false), m->head_dim, 1);
  const int64_t rows = p->schedule.num_splits * all_kv_rows(c, p);
  const bool in_parts = p->schedule.num_splits > 1;
  if (is_needed(m, LUATTN_WANT_DK, m->has_key_mod) && (m->has_key_mod || in_parts))
    p->scratch.dk_acc = room_take(w, real, p->shape.heads_kv, rows, m->head_dim, 1);
  if (is_needed(m, LUATTN_WANT_DV, m->has_value_mod) && (m->has_value_mod || in_parts))
    p->scratch.dv_acc = room_take(w, real, p->shape.heads_kv, rows, m->head_dim_v, 1);
  if (m->tangent_mods) take_values(c, to);
  return LUATTN_OK;
}

/* Finishes dq only, or all three. */
luattn_status backward_finish_grid(const args_call *c, const manifest_entry *entry, const prepared *p,
                                   int64_t size[3]) {
  const LuattnShape *s = &p->all.dense.shape;
  const LuattnScratch *has = &p->all.dense.scratch;
  const bool kv = has->dk_acc != NULL || has->dv_acc != NULL;
  if (has->dq_acc == NULL && !kv) return LUATTN_OK;
  if (p->has_table && !kv && !c->info->has_query_mod) { /* mods are undone entry by entry */
    tile_table_q_tiles(c, p, entry->tile_m, size);
    return LUATTN_OK;
  }
  size[0] = ceil_div(kv ? max_of(s->q_len, s->kv_len) : s->q_len, entry->tile_m);
  size[2] = (int64_t)s->batch * (kv ? 3 : 1);
  return LUATTN_OK;
}

/* The last of size[1] is for the scalars, which are fewer than a block's threads. */
luattn_status backward_round_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  const LuattnInputs *in = &p->all.dense.inputs;
  size[0] = in->num_scalars > 0 && in->scalar_exact != NULL;
  for (uint32_t i = 0; i < c->info->num_inputs; ++i)
    if (in->input[i].exact != NULL) size[0] = max_of(size[0], ceil_div(in->input[i].count, entry->tile_m));
  size[1] = (int64_t)c->info->num_inputs + 1;
  size[2] = 1;
  return LUATTN_OK;
}
