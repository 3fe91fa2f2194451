#include "runtime/parts/tile_bitmap.h"

#include "abi/workspace.h"
#include "common/call/limits.h"
#include "luattn/compiler.h"
#include "runtime/call/sizes.h"

/* Whether skipping is faster: with few tiles, computing the bitmap takes longer than it saves. */
static bool skipping_pays(const image_manifest *m, const LuattnParams *p) {
  const int least = m->pass == LUATTN_FORWARD ? LUATTN_SKIP_FORWARD : LUATTN_SKIP_BACKWARD;
  return p->shape.q_len >= least && p->shape.kv_len >= least;
}

static luattn_status choose_skip(const args_call *c, const LuattnParams *p, bool *skips) {
  const int asked = c->args->skip;
  /* In backward the norms have two grid slices for each batch entry. */
  const bool forward = c->info->pass == LUATTN_FORWARD;
  const bool can =
      sizes_entry(c->info, LUATTN_ROLE_TILE_BITMAP) != NULL && (forward || p->shape.batch <= LUATTN_MAX_BATCH / 2);
  /* One luattn_args may serve both passes: backward may lack what forward has. */
  if (asked == LUATTN_SKIP_ALWAYS && !can && forward && !c->info->tile_bits)
    return args_fail(c,
                     "skip: is LUATTN_SKIP_ALWAYS, and this kernel knows no tiles without weight; leave it "
                     "LUATTN_SKIP_AUTO");
  *skips = can && p->shape.q_len > 0 && p->shape.kv_len > 0 &&
           (asked == LUATTN_SKIP_ALWAYS || (asked == LUATTN_SKIP_AUTO && skipping_pays(c->info, p)));
  return LUATTN_OK;
}

luattn_status tile_bitmap_take(const args_call *c, prepared *p) {
  const image_manifest *m = c->info;
  const LuattnShape *s = &p->all.dense.shape;
  LuattnScratch *to = &p->all.dense.scratch;
  room *const w = &p->room;
  const int64_t q_groups = workspace_norms(s->q_len), kv_groups = workspace_norms(s->kv_len);
  int64_t rows, words;
  bool skips = false;
  TRY(choose_skip(c, &p->all.dense, &skips));
  if (!skips) return LUATTN_OK;
  sizes_of_tile_bitmap(m, &p->all.dense, &rows, &words);
  to->norm_k = room_take(w, sizeof *to->norm_k, s->batch, s->heads_kv, kv_groups, 1);
  if (m->pass == LUATTN_BACKWARD) {
    to->norm_q = room_take(w, sizeof *to->norm_q, s->batch, s->heads, q_groups, 1);
    to->least_lse = room_take(w, sizeof *to->least_lse, s->batch, s->heads, q_groups, 1);
  }
  to->tile_bitmap = room_take(w, sizeof *to->tile_bitmap, s->batch, s->heads, rows, words);
  return LUATTN_OK;
}

luattn_status tile_bitmap_norms_grid(const args_call *c, const manifest_entry *entry, const prepared *p,
                                     int64_t size[3]) {
  const LuattnShape *s = &p->all.dense.shape;
  if (p->all.dense.scratch.tile_bitmap == NULL) return LUATTN_OK;
  size[0] = ceil_div(s->kv_len, entry->tile_m);
  size[1] = s->heads_kv;
  if (c->info->pass == LUATTN_FORWARD) return LUATTN_OK;
  size[0] = max_of(size[0], ceil_div(s->q_len, entry->tile_m));
  size[1] = s->heads;
  size[2] = (int64_t)s->batch * 2;
  return LUATTN_OK;
}

/* In backward a warp handles 32 q tiles of a kv tile. */
luattn_status tile_bitmap_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]) {
  int64_t rows, words;
  if (p->all.dense.scratch.tile_bitmap == NULL) return LUATTN_OK;
  sizes_of_tile_bitmap(c->info, &p->all.dense, &rows, &words);
  size[0] = c->info->pass == LUATTN_FORWARD ? rows : ceil_div(rows * words, entry->threads / 32);
  return LUATTN_OK;
}
