#include "runtime/parts/stats.h"

#include "runtime/call/sizes.h"

static void take(room *w, const image_manifest *m, LuattnParams *p) {
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    int64_t num_rows, blocks;
    sizes_of_stat(m, p, i, &num_rows, &blocks);
    p->scratch.stats[i] = room_take(w, sizeof(int), num_rows, blocks, 2, 1);
  }
}

luattn_status stats_take(const args_call *c, prepared *p) {
  take(&p->room, c->info, &p->all.dense);
  return LUATTN_OK;
}

size_t stats_place(const image_manifest *m, LuattnParams *params, uintptr_t base) {
  room w = {.base = base};
  if (sizes_entry(m, LUATTN_ROLE_STATS) != NULL) take(&w, m, params);
  return w.overflow ? SIZE_MAX / 2 : w.used;
}

luattn_status stats_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  (void)entry;
  if (p->all.dense.scratch.stats[0] == NULL) return LUATTN_OK;
  size[1] = 0;
  size[2] = c->info->num_stats;
  for (uint32_t i = 0; i < c->info->num_stats; ++i) {
    int64_t num_rows, blocks;
    sizes_of_stat(c->info, &p->all.dense, i, &num_rows, &blocks);
    size[0] = max_of(size[0], blocks);
    size[1] = max_of(size[1], num_rows);
  }
  return LUATTN_OK;
}
