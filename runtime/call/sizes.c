#include "runtime/call/sizes.h"

#include <inttypes.h>

#include "abi/workspace.h"
#include "common/call/limits.h"

const manifest_entry *sizes_entry(const image_manifest *m, luattn_role role) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].role == (uint32_t)role) return &m->entry[i];
  return NULL;
}

const manifest_entry *sizes_main(const image_manifest *m) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (luattn_role_is_main(m->entry[i].role)) return &m->entry[i];
  return NULL;
}

/* A mod's kernel has a grid slice for each of the three tensors of a batch entry. */
static int most_batches(const image_manifest *m) {
  return m->has_query_mod || m->has_key_mod || m->has_value_mod ? LUATTN_MAX_BATCH / 3 : LUATTN_MAX_BATCH;
}

luattn_status sizes_batch(const args_call *c, const char *name, int64_t batch) {
  if (batch <= most_batches(c->info)) return LUATTN_OK;
  return args_fail(
      c, "%s: has batch %" PRId64 ", expected at most %d%s; split the call", name, batch, most_batches(c->info),
      most_batches(c->info) < LUATTN_MAX_BATCH ? " for a spec with a query_mod, key_mod or value_mod" : "");
}

luattn_status sizes_grid(const args_call *c, const manifest_entry *entry, const int64_t size[3]) {
  static const char *const axis = "xyz";
  static const int64_t limit[] = {INT32_MAX, 65535, 65535};
  for (int i = 0; i < 3; ++i)
    if (size[i] > limit[i])
      return args_fail(c,
                       "%s: needs a grid of %" PRId64 " x %" PRId64 " x %" PRId64 ", and %c is at most %" PRId64
                       "; split the call into smaller batches or fewer heads",
                       entry->name, size[0], size[1], size[2], axis[i], limit[i]);
  return LUATTN_OK;
}

void sizes_add_padding(const args_call *c, const LuattnCallParams *all, int64_t size[3]) {
  if (!c->info->writes_padding || all->packed.total_q + (int64_t)all->packed.total_k == 0) return;
  if (size[0] == 0 || size[1] == 0 || size[2] == 0) size[0] = size[1] = size[2] = 1;
}

size_t sizes_elem(const image_manifest *m) { return m->dtype == LUATTN_F64 ? 8 : m->dtype == LUATTN_F32 ? 4 : 2; }

void sizes_of_stat(const image_manifest *m, const LuattnParams *p, uint32_t stat, int64_t *num_rows, int64_t *blocks) {
  const manifest_stat *s = &m->stat[stat];
  const LuattnInput *in = &p->inputs.input[s->input];
  *num_rows = 1;
  for (uint32_t a = 0; a < s->axis; ++a) *num_rows = *num_rows > INT32_MAX ? *num_rows : *num_rows * in->size[a];
  *blocks = ceil_div(in->size[s->axis], s->block);
}

bool sizes_draws_kv(const image_manifest *m) {
  return manifest_traits(m)->is_resident && m->pass == LUATTN_BACKWARD && sizes_entry(m, LUATTN_ROLE_DKDV) != NULL;
}

int64_t sizes_blocks_together(const image_manifest *m, const manifest_entry *dkdv) {
  return workspace_blocks_together(manifest_traits(m)->pairs_blocks, (int)dkdv->tile_n);
}

int64_t sizes_kv_blocks(const image_manifest *m, const manifest_entry *dkdv, const LuattnParams *p) {
  const int64_t together = sizes_blocks_together(m, dkdv);
  return ceil_div(p->shape.kv_len, dkdv->tile_n * together) * together;
}

void sizes_of_tile_bitmap(const image_manifest *m, const LuattnParams *p, int64_t *rows, int64_t *words) {
  const bool forward = m->pass == LUATTN_FORWARD;
  const manifest_entry *main = sizes_entry(m, forward ? LUATTN_ROLE_FORWARD : LUATTN_ROLE_DKDV);
  *rows = *words = 0;
  if (main == NULL) return;
  const int64_t q_tiles = ceil_div(p->shape.q_len, main->tile_m),
                kv_tiles = ceil_div(p->shape.kv_len, main->tile_n * (forward ? 1 : sizes_blocks_together(m, main)));
  *rows = forward ? q_tiles : kv_tiles;
  *words = workspace_words(forward ? kv_tiles : q_tiles);
}

pairs_sizes sizes_of_pairs(const image_manifest *m, uint32_t input, const LuattnParams *p) {
  pairs_sizes s = {.batch = p->shape.batch,
                   .heads = p->shape.heads,
                   .heads_kv = p->shape.heads_kv,
                   .q_len = p->shape.q_len,
                   .kv_len = p->shape.kv_len,
                   .packed = m->packed != 0};
  for (uint32_t a = 0; a < m->input[input].num_axes; ++a) s.axis[a] = (double)p->inputs.input[input].size[a];
  return s;
}
