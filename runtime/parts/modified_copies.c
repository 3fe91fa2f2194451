#include "runtime/parts/modified_copies.h"

#include "runtime/call/sizes.h"
#include "runtime/parts/grid_copies.h"

/* Packed: `len` rows of all entries, without a batch axis. */
static void take(const args_call *c, room *w, int batch, int heads, int len, uint32_t dim, LuattnTensor *out) {
  const bool packed = c->info->packed;
  out->data = room_take(w, sizes_elem(c->info), packed ? 1 : batch, heads, len, dim);
  out->seq = dim;
  out->head = (long long)len * dim;
  out->batch = packed ? 0 : heads * out->head;
}

luattn_status modified_take(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  LuattnTensors *t = &p->all.dense.tensors;
  const LuattnShape *s = &p->all.dense.shape;
  if (sizes_entry(m, LUATTN_ROLE_MOD) == NULL) return LUATTN_OK;
  const int q_rows = m->packed ? p->all.packed.total_q : s->q_len,
            kv_rows = m->packed ? p->all.packed.total_k : s->kv_len;
  if (m->over_grid) {
    if (m->has_query_mod) grid_copies_room(c, p, &t->q, false, m->head_dim);
    if (m->has_key_mod) grid_copies_room(c, p, &t->k, true, m->head_dim);
    if (m->has_value_mod) grid_copies_room(c, p, &t->v, true, m->head_dim_v);
    return LUATTN_OK;
  }
  if (m->has_query_mod) take(c, &p->room, s->batch, s->heads, q_rows, m->head_dim, &t->q);
  if (m->has_key_mod) take(c, &p->room, s->batch, s->heads_kv, kv_rows, m->head_dim, &t->k);
  if (m->has_value_mod) take(c, &p->room, s->batch, s->heads_kv, kv_rows, m->head_dim_v, &t->v);
  return LUATTN_OK;
}

luattn_status modified_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  const LuattnShape *s = &p->all.dense.shape;
  size[0] = ceil_div(c->info->paged ? s->q_len : max_of(s->q_len, s->kv_len), entry->tile_m);
  size[2] = (int64_t)s->batch * 3; /* keys in pages have no mod */
  return LUATTN_OK;
}
