#include "runtime/parts/modified_copies.h"

#include <string.h>

#include "runtime/call/sizes.h"
#include "runtime/call/tangents.h"
#include "runtime/parts/grid_copies.h"

/* Packed: `len` rows of all entries, without a batch axis. */
static void take(const args_call *c, room *w, int batch, int heads, int len, uint32_t dim, LuattnTensor *out) {
  const bool packed = c->info->packed;
  out->data = room_take(w, sizes_elem(c->info), packed ? 1 : batch, heads, len, dim);
  out->seq = dim;
  out->head = (long long)len * dim;
  out->batch = packed ? 0 : heads * out->head;
}

/* Room for one of them. */
static void take_one(const args_call *c, prepared *p, bool of_keys, uint32_t dim, LuattnTensor *out) {
  const LuattnShape *s = &p->all.dense.shape;
  const bool packed = c->info->packed;
  if (c->info->over_grid)
    grid_copies_room(c, p, out, of_keys, dim);
  else if (of_keys)
    take(c, &p->room, s->batch, s->heads_kv, packed ? p->all.packed.total_k : s->kv_len, dim, out);
  else
    take(c, &p->room, s->batch, s->heads, packed ? p->all.packed.total_q : s->q_len, dim, out);
}

/* Beside tangents: what luattn_mod reads and writes of these. */
static void take_tangents(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  LuattnTangents *to = tangents_place(m, &p->all);
  LuattnTangentMods *from = tangents_mods_place(m, &p->all);
  LuattnTangentSteps *steps = &p->all.grid_tangents.steps;
  const uint32_t made = m->tangent_mods_of[0].tangents;
  memset(from, 0, sizeof *from);
  from->src_q = to->q, from->src_k = to->k, from->src_v = to->v;
  if (m->over_grid) steps->src_q = steps->q, steps->src_k = steps->k, steps->src_v = steps->v;
  if (m->has_query_mod && (made & 1)) take_one(c, p, false, m->head_dim, &to->q);
  if (m->has_key_mod && (made & 2)) take_one(c, p, true, m->head_dim, &to->k);
  if (m->has_value_mod && (made & 4)) take_one(c, p, true, m->head_dim_v, &to->v);
}

luattn_status modified_take(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  LuattnTensors *t = &p->all.dense.tensors;
  if (sizes_entry(m, LUATTN_ROLE_MOD) == NULL) return LUATTN_OK;
  if (m->has_query_mod) take_one(c, p, false, m->head_dim, &t->q);
  if (m->has_key_mod) take_one(c, p, true, m->head_dim, &t->k);
  if (m->has_value_mod) take_one(c, p, true, m->head_dim_v, &t->v);
  if (m->tangent_mods) take_tangents(c, p);
  return LUATTN_OK;
}

luattn_status modified_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  const LuattnShape *s = &p->all.dense.shape;
  size[0] = ceil_div(c->info->paged ? s->q_len : max_of(s->q_len, s->kv_len), entry->tile_m);
  size[2] = (int64_t)s->batch * 3; /* keys in pages have no mod */
  return LUATTN_OK;
}
