#include "runtime/parts/grid_copies.h"

#include "runtime/call/grid_call.h"
#include "runtime/call/sizes.h"

void grid_copies_room(const args_call *c, prepared *p, LuattnTensor *t, bool of_keys, uint32_t dim) {
  const LuattnShape *s = &p->all.dense.shape;
  const int heads = of_keys ? s->heads_kv : s->heads;
  const int64_t places = grid_padded_places(c, &p->all, of_keys);
  t->data = room_take(&p->room, sizes_elem(c->info), s->batch, heads, places, dim);
  t->seq = dim;
  t->head = (long long)places * dim;
  t->batch = heads * t->head;
  grid_contiguous(c, &p->all, t, of_keys);
}

luattn_status grid_copies_take(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  LuattnTensors *t = &p->all.dense.tensors;
  LuattnTensor *const stored = m->pass == LUATTN_FORWARD ? &t->o : &t->dout;
  LuattnGridSteps *const steps = m->pass == LUATTN_FORWARD ? &p->all.grid.o : &p->all.grid.dout;
  if (sizes_entry(m, LUATTN_ROLE_COPY_IN) == NULL) return LUATTN_OK;
  if (grid_is_ragged(c, &p->all, true)) {
    if (!m->has_key_mod) grid_copies_room(c, p, &t->k, true, m->head_dim);
    if (!m->has_value_mod) grid_copies_room(c, p, &t->v, true, m->head_dim_v);
  }
  if (!grid_is_ragged(c, &p->all, false)) return LUATTN_OK;
  if (!m->has_query_mod) grid_copies_room(c, p, &t->q, false, m->head_dim);
  if (m->pass == LUATTN_FORWARD && sizes_entry(m, LUATTN_ROLE_COPY_OUT) == NULL) return LUATTN_OK;
  p->all.far.given = *stored;
  p->all.far.given_steps = *steps;
  grid_copies_room(c, p, stored, false, m->head_dim_v);
  return LUATTN_OK;
}

luattn_status grid_copies_in_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  int64_t most = 0;
  for (int keys = 0; keys < 2; ++keys) {
    const int64_t places = grid_is_ragged(c, &p->all, keys) ? grid_padded_places(c, &p->all, keys) : 0;
    if (places > most) most = places;
  }
  size[0] = ceil_div(most, entry->tile_m);
  if (most > 0) size[2] = (int64_t)p->all.dense.shape.batch * 4;
  return LUATTN_OK;
}

luattn_status grid_copies_out_grid(const args_call *c, const manifest_entry *entry, const prepared *p,
                                   int64_t size[3]) {
  size[0] = grid_is_ragged(c, &p->all, false) ? ceil_div(grid_places(&p->all, false), entry->tile_m) : 0;
  return LUATTN_OK;
}
