#include "runtime/parts/kv_splits.h"

#include "runtime/call/sizes.h"

/* Estimates the time of a backward whose kv tiles are shared by n blocks each, in units of a q tile: each
 * block has an overhead of two, and partial dk and dv are written, read and added up. With a mask, half of
 * the tiles remain, and blocks differ in length (bench/journal/deterministic_backward.md, step 5). */
static int64_t time_with_splits(int n, int64_t blocks, int64_t tiles, int64_t multiprocessors, bool has_mask) {
  const int64_t longest = ceil_div(tiles, n) + 2, sums = n > 1 ? 2 + 4 * n * blocks / multiprocessors : 0;
  if (!has_mask) return ceil_div(blocks * n, multiprocessors) * longest + sums;
  return max_of(longest, (blocks * (tiles / 2 + 2 * n)) / multiprocessors + longest / 2) + sums;
}

/* How many blocks share a kv tile. A predicted gain below an eighth is not reliable. */
static int best_splits(int64_t blocks, int64_t tiles, int64_t multiprocessors, bool has_mask) {
  const int64_t whole = time_with_splits(1, blocks, tiles, multiprocessors, has_mask);
  int best = 1;
  int64_t least = whole - whole / 8;
  for (int n = 2; n <= 16; ++n) {
    const int64_t time = time_with_splits(n, blocks, tiles, multiprocessors, has_mask);
    if (time < least) best = n, least = time;
  }
  return best;
}

luattn_status kv_splits_take(const args_call *c, prepared *to) {
  LuattnParams *const p = &to->all.dense;
  const image_manifest *m = c->info;
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_DKDV);
  const bool can = m->can_split && main != NULL; /* not decode, which has splits of its own */
  const int asked = c->args->num_splits;
  p->schedule.num_splits = 1;
  if (asked > 1 && !can && m->pass == LUATTN_BACKWARD) /* one luattn_args may serve both passes */
    return args_fail(c, "num_splits: is %d, and this kernel has one block for a kv tile; leave it 0 or 1", asked);
  if (!can) return LUATTN_OK;
  const int64_t blocks = sizes_kv_blocks(m, main, p) * p->shape.heads_kv * p->shape.batch;
  if (asked > 0)
    p->schedule.num_splits = asked;
  else if (blocks > 0 && blocks < c->multiprocessors)
    p->schedule.num_splits =
        best_splits(blocks, ceil_div(p->shape.q_len, main->tile_m) * p->shape.group, c->multiprocessors, m->has_mask);
  return LUATTN_OK;
}
