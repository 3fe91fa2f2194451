/* workspace_layout.c: what a launch keeps in its workspace, part by part, and the choices on which that depends. */
#include "runtime/launch/workspace_layout.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "abi/workspace.h"
#include "common/limits.h"
#include "luattn/compiler.h"
#include "runtime/parts/batch_masks.h"
#include "runtime/call/sizes.h"
#include "runtime/parts/split_list.h"
#include "runtime/parts/tile_bits.h"
#include "runtime/parts/tile_table.h"

/* A bump allocator over the workspace. */
typedef struct cursor {
  uintptr_t base;
  size_t used;
  bool overflow;
} cursor;

static void *take(cursor *w, size_t elem, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t factor[] = {a, b, c, d};
  size_t bytes = elem;
  for (int i = 0; i < 4; ++i) {
    if (__builtin_mul_overflow(bytes, (size_t)factor[i], &bytes) || bytes > SIZE_MAX / 2) w->overflow = true;
    if (w->overflow) return NULL;
  }
  const size_t start = w->used;
  if (bytes > SIZE_MAX / 2 - start - 255) {
    w->overflow = true;
    return NULL;
  }
  w->used = start + (bytes + 255) / 256 * 256;
  return w->base != 0 ? (void *)(w->base + start) : NULL;
}

/* Packed: `len` rows of all entries, without a batch axis. */
static void take_modified(cursor *w, size_t elem, bool packed, int batch, int heads, int len, int dim, LuattnTensor *out) {
  out->data = take(w, elem, packed ? 1 : batch, heads, len, dim);
  out->seq = dim;
  out->head = (long long)len * dim;
  out->batch = packed ? 0 : heads * out->head;
}

/* The gradients of a mod's parameters need the gradient of its tensor, whether or not the caller wants
 * that. */
static bool is_needed(const image_manifest *m, unsigned want, uint32_t has_mod) {
  return (m->wants & want) != 0 || (has_mod && (m->wants & (LUATTN_WANT_INPUTS | LUATTN_WANT_SCALARS)) != 0);
}

/* Rows of a head in dq_acc, dk_acc, dv_acc and bwd_rows. */
static int64_t padded_rows(const image_manifest *m, int len) {
  return workspace_rows(m->family == LUATTN_SM90, len);
}

/* Rows of a head, or with a batch axis of all entries, in an array of backward that has rows of queries; in_groups: an
 * accumulator in groups of rows. */
static int64_t all_q_rows(const args_call *c, const LuattnParams *p, bool in_groups) {
  if (!c->info->packed) return p->shape.batch * padded_rows(c->info, p->shape.q_len);
  const int64_t total = c->args->q->shape[0];
  return in_groups || c->info->family == LUATTN_SM90 ? workspace_packed_rows(total, p->shape.batch) : total;
}

/* The same for rows of keys, in dk_acc and dv_acc: the sm90 family's have groups of rows. */
static int64_t all_kv_rows(const args_call *c, const LuattnParams *p) {
  if (!c->info->packed) return (int64_t)p->shape.batch * padded_rows(c->info, p->shape.kv_len);
  const int64_t total = c->args->k->shape[0];
  return c->info->family == LUATTN_SM90 ? workspace_packed_rows(total, p->shape.batch) : total;
}

static bool adds_dq(const image_manifest *m) {
  return m->accumulates_dq && is_needed(m, LUATTN_WANT_DQ, m->has_query_mod);
}

/* Counters for the q tiles of a head (work/dq_order.cuh, sm90/bwd/dq_first_store.cuh). */
static int64_t num_turns(const image_manifest *m, const LuattnParams *p) {
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_DKDV);
  const int each = workspace_turns(m->family == LUATTN_SM90, (int)main->threads, (int)main->tile_n);
  return ceil_div(p->shape.q_len, main->tile_m) * each;
}

/* The work counter, and a counter for each q tile: the semaphore of the dQ order, or the flag of the first
 * store. */
static int64_t num_counters(const image_manifest *m, const LuattnParams *p) {
  return LUATTN_TURNS_FIRST + (adds_dq(m) ? (int64_t)p->shape.batch * p->shape.heads * num_turns(m, p) : 0);
}

/* Estimates the time of a backward whose kv tiles are shared by n blocks each, in units of a q tile: each
 * block has an overhead of two, and partial dk and dv are written, read and added up. With a mask, half of
 * the tiles remain, and blocks differ in length (bench/journal/deterministic_backward.md, step 5). */
static int64_t time_with_splits(int n, int64_t blocks, int64_t tiles, int64_t multiprocessors,
                                bool has_mask) {
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
  if (m->family != LUATTN_SM90 || m->packed || main == NULL || p->schedule.num_splits > 1 ||
      !pairs_in_batch_order(info, &s))
    return false;
  if (sizes_kv_blocks(m, main, p) * p->shape.heads_kv * 8 < c->multiprocessors) return false;
  p->schedule.batches_in_turn = 1;
  return true;
}

/* Exact sums of a deterministic backward, next to dq_acc. */
static void take_ordered(cursor *w, const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const size_t limbs = (size_t)workspace_limbs((int)args_real_size(m)) * sizeof(unsigned long long);
  if (adds_dq(m) && !sizes_draws_kv(m)) {
    const int64_t count = (int64_t)p->shape.batch * p->shape.heads * num_turns(m, p);
    p->scratch.turns = take(w, sizeof *p->scratch.turns, LUATTN_TURNS_FIRST + count, 1, 1, 1);
  }
  p->schedule.batches_in_turn = 0;
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    LuattnInput *in = &p->inputs.input[i];
    in->count = 1;
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) in->count *= in->size[a];
    const bool wanted = m->input[i].grad && (m->wants & LUATTN_WANT_INPUTS);
    if (wanted && !is_ordered(c, i, p)) in->exact = take(w, limbs, in->count, 1, 1, 1);
  }
  p->inputs.num_scalars = (int)m->num_scalars;
  if (m->wants & LUATTN_WANT_SCALARS) p->inputs.scalar_exact = take(w, limbs, m->num_scalars, 1, 1, 1);
}

/* Accumulators, side by side, so that one memset zeroes them; in the sm90 family prepare zeroes dq_acc, while
 * it waits for loads, and the counters. */
static void take_sums(cursor *w, const args_call *c, LuattnParams *p, workspace_need *out) {
  const image_manifest *m = c->info;
  const bool adds = sizes_entry(m, LUATTN_ROLE_FINISH) != NULL && adds_dq(m), prepared = m->family == LUATTN_SM90;
  if (adds && prepared)
    p->scratch.dq_acc = take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (sizes_draws_kv(m)) p->scratch.turns = take(w, sizeof *p->scratch.turns, num_counters(m, p), 1, 1, 1);
  out->sums = w->used;
  if (adds && !prepared)
    p->scratch.dq_acc = take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (m->deterministic) take_ordered(w, c, p);
  out->sums_size = w->used - out->sums;
}

/* The list of a decode kernel's blocks comes from the batch, or is made in the workspace, or there is none. */
static luattn_status take_list(cursor *w, const args_call *c, const LuattnParams *p, workspace_need *out) {
  bool found;
  memset(&out->list, 0, sizeof out->list);
  out->has_list = split_list_pays(c, p);
  out->makes_list = false;
  if (!out->has_list) return LUATTN_OK;
  TRY(split_list_sizes(c, p, &out->list));
  TRY(split_list_take(c, p, &out->list, &found));
  out->makes_list = !found;
  if (found) return LUATTN_OK;
  void *memory = take(w, split_list_place(p, 0, &out->list), 1, 1, 1, 1);
  (void)split_list_place(p, (uintptr_t)memory, &out->list);
  return LUATTN_OK;
}

/* Chooses the splits of a decode kernel, and takes room for what their blocks leave for luattn_merge. */
static luattn_status take_splits(cursor *w, const args_call *c, const LuattnParams *p, workspace_need *need) {
  const image_manifest *m = c->info;
  const int asked = c->args->num_splits;
  LuattnSplits *out = &need->splits;
  *out = (LuattnSplits){.count = 0};
  need->has_list = need->makes_list = false;
  if (!m->decode) return LUATTN_OK;
  if (asked < 0 || asked > LUATTN_MAX_SPLITS)
    return args_fail(c, "num_splits: is %d, expected 1 to %d, or 0 to leave it to the launch", asked, LUATTN_MAX_SPLITS);
  TRY(take_list(w, c, p, need));
  const LuattnSplitList *list = &need->list;
  out->count = need->has_list ? (list->most_parts > 0 ? (int)list->most_parts : 1) : asked > 0 ? asked : split_count(c, p);
  if (out->count == 1) return LUATTN_OK;
  const int64_t rows = need->has_list ? (int64_t)list->heads_kv * list->rows
                       : (int64_t)p->shape.heads * (m->packed ? c->args->q->shape[0] : (int64_t)p->shape.batch * p->shape.q_len);
  out->o = take(w, sizeof(float), out->count, rows, m->head_dim_v, 1);
  out->state = take(w, sizeof(float), (int64_t)m->num_state[0] + 1, out->count, rows, 1);
  return LUATTN_OK;
}

static luattn_status choose_splits(const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const manifest_entry *main = sizes_entry(m, LUATTN_ROLE_DKDV);
  const bool can = m->can_split && main != NULL; /* not decode, which has splits of its own */
  const int asked = c->args->num_splits;
  p->schedule.num_splits = 1;
  if (asked > 1 && !can && m->pass == LUATTN_BACKWARD) /* one luattn_args may serve both passes */
    return args_fail(c, "num_splits: is %d, and this kernel has one block for a kv tile; leave it 0 or 1",
                     asked);
  if (!can) return LUATTN_OK;
  const int64_t blocks = sizes_kv_blocks(m, main, p) * p->shape.heads_kv * p->shape.batch;
  if (asked > 0)
    p->schedule.num_splits = asked;
  else if (blocks > 0 && blocks < c->multiprocessors)
    p->schedule.num_splits = best_splits(blocks, ceil_div(p->shape.q_len, main->tile_m) * p->shape.group,
                                         c->multiprocessors, m->has_mask);
  return LUATTN_OK;
}

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
      sizes_entry(c->info, LUATTN_ROLE_REACH) != NULL && (forward || p->shape.batch <= LUATTN_MAX_BATCH / 2);
  /* One luattn_args may serve both passes: backward may lack what forward has. */
  if (asked == LUATTN_SKIP_ALWAYS && !can && forward && !c->info->tile_bits)
    return args_fail(c,
                     "skip: is LUATTN_SKIP_ALWAYS, and this kernel knows no tiles without weight; leave it "
                     "LUATTN_SKIP_AUTO");
  *skips = can && p->shape.q_len > 0 && p->shape.kv_len > 0 &&
           (asked == LUATTN_SKIP_ALWAYS || (asked == LUATTN_SKIP_AUTO && skipping_pays(c->info, p)));
  return LUATTN_OK;
}

static luattn_status take_visits(cursor *w, const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const int64_t q_groups = workspace_norms(p->shape.q_len), kv_groups = workspace_norms(p->shape.kv_len);
  int64_t rows, words;
  bool skips = false;
  TRY(choose_skip(c, p, &skips));
  if (!skips) return LUATTN_OK;
  sizes_of_visits(m, p, &rows, &words);
  p->scratch.norm_k = take(w, sizeof *p->scratch.norm_k, p->shape.batch, p->shape.heads_kv, kv_groups, 1);
  if (m->pass == LUATTN_BACKWARD) {
    p->scratch.norm_q = take(w, sizeof *p->scratch.norm_q, p->shape.batch, p->shape.heads, q_groups, 1);
    p->scratch.least_lse = take(w, sizeof *p->scratch.least_lse, p->shape.batch, p->shape.heads, q_groups, 1);
  }
  p->scratch.visits = take(w, sizeof *p->scratch.visits, p->shape.batch, p->shape.heads, rows, words);
  return LUATTN_OK;
}

/* After the schedule is known. `orders`: those of the batch, or NULL. Returns whether the launch makes its own. */
static bool take_tile_order(cursor *w, const args_call *c, LuattnCallParams *all, unsigned *orders) {
  LuattnTileOrder *out = &all->tile_order;
  const int64_t words =
      tile_order_fill(c->info, &all->dense, &all->bits, c->args->skip, c->multiprocessors, out);
  if (words == 0) return false;
  out->tiles = tile_orders_find(c->info, &all->dense.shape, &all->bits, out, orders);
  if (out->tiles != NULL) return false;
  out->tiles = take(w, sizeof *out->tiles, words, 1, 1, 1);
  return true;
}

/* Tile bits come from the batch, or are made in the workspace, or there are none. */
static luattn_status take_tile_bits(cursor *w, const args_call *c, LuattnCallParams *all, workspace_need *need) {
  const LuattnShape *shape = &all->dense.shape;
  LuattnTileBits *out = &all->bits;
  unsigned *orders;
  TRY(batch_masks_take(c, all, &orders));
  need->has_tile_bits = out->rows == NULL && tile_bits_pay(c->info, shape, c->args->skip);
  need->has_tile_order = false;
  all->tile_order = (LuattnTileOrder){.tiles = NULL};
  if (need->has_tile_bits) tile_bits_sets(c->info, shape, out);
  if (need->has_tile_bits || out->rows != NULL) need->has_tile_order = take_tile_order(w, c, all, orders);
  if (out->rows != NULL && tile_bits_decide(c->info)) /* nothing reads them */
    memset(all->dense.scratch.stats, 0, sizeof all->dense.scratch.stats);
  if (!need->has_tile_bits) return LUATTN_OK;
  out->rows = take(w, sizeof *out->rows, out->batch, out->heads, tile_bits_row_words(shape), 1);
  out->columns = take(w, sizeof *out->columns, out->batch, out->heads, tile_bits_column_words(shape), 1);
  return LUATTN_OK;
}

/* A table of packed sequences comes from the batch, or is made in the workspace, or there is none. */
static luattn_status take_table(cursor *w, const args_call *c, const LuattnParams *p, workspace_need *out) {
  bool found = false;
  memset(&out->table, 0, sizeof out->table);
  out->has_table = tile_table_pays(c, p);
  if (out->has_table) TRY(tile_table_take(c, p, &out->table, &found));
  out->makes_table = out->has_table && !found;
  if (out->has_table) tile_table_order(c, p, &out->table);
  if (!out->makes_table) return LUATTN_OK;
  void *memory = take(w, tile_table_place(c, p, 0, &out->table), 1, 1, 1, 1);
  (void)tile_table_place(c, p, (uintptr_t)memory, &out->table);
  return LUATTN_OK;
}

static void take_stats(cursor *w, const image_manifest *m, LuattnParams *p) {
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    int64_t num_rows, blocks;
    sizes_of_stat(m, p, i, &num_rows, &blocks);
    p->scratch.stats[i] = take(w, sizeof(int), num_rows, blocks, 2, 1);
  }
}

size_t workspace_place_stats(const image_manifest *m, LuattnParams *p, uintptr_t base) {
  cursor w = {.base = base};
  if (sizes_entry(m, LUATTN_ROLE_STATS) != NULL) take_stats(&w, m, p);
  return w.overflow ? SIZE_MAX / 2 : w.used;
}

luattn_status workspace_layout(const args_call *c, uintptr_t base, LuattnCallParams *all, workspace_need *out) {
  LuattnParams *p = &all->dense;
  const image_manifest *m = c->info;
  cursor w = {.base = base};
  const size_t real = args_real_size(m), elem = sizes_elem(m);
  const int head_dim = (int)m->head_dim, head_dim_v = (int)m->head_dim_v;
  TRY(choose_splits(c, p));
  if (sizes_entry(m, LUATTN_ROLE_MOD) != NULL) {
    const bool packed = m->packed;
    const int q_rows = packed ? all->packed.total_q : p->shape.q_len,
              kv_rows = packed ? all->packed.total_k : p->shape.kv_len;
    if (m->has_query_mod)
      take_modified(&w, elem, packed, p->shape.batch, p->shape.heads, q_rows, head_dim, &p->tensors.q);
    if (m->has_key_mod)
      take_modified(&w, elem, packed, p->shape.batch, p->shape.heads_kv, kv_rows, head_dim, &p->tensors.k);
    if (m->has_value_mod)
      take_modified(&w, elem, packed, p->shape.batch, p->shape.heads_kv, kv_rows, head_dim_v, &p->tensors.v);
  }
  if (m->num_bwd_rows > 0 && m->pass == LUATTN_BACKWARD)
    p->scratch.bwd_rows =
        take(&w, real, m->num_bwd_rows, p->shape.heads, all_q_rows(c, p, false), 1);
  TRY(take_splits(&w, c, p, out));
  take_sums(&w, c, p, out);
  if (sizes_entry(m, LUATTN_ROLE_FINISH) != NULL) {
    if (!m->accumulates_dq && is_needed(m, LUATTN_WANT_DQ, m->has_query_mod) && m->has_query_mod)
      p->scratch.dq_acc = take(&w, real, p->shape.heads, all_q_rows(c, p, false), head_dim, 1);
    const int64_t rows = p->schedule.num_splits * all_kv_rows(c, p);
    const bool in_parts = p->schedule.num_splits > 1;
    if (is_needed(m, LUATTN_WANT_DK, m->has_key_mod) && (m->has_key_mod || in_parts))
      p->scratch.dk_acc = take(&w, real, p->shape.heads_kv, rows, head_dim, 1);
    if (is_needed(m, LUATTN_WANT_DV, m->has_value_mod) && (m->has_value_mod || in_parts))
      p->scratch.dv_acc = take(&w, real, p->shape.heads_kv, rows, head_dim_v, 1);
  }
  if (m->draws_tiles) p->scratch.tickets = take(&w, sizeof *p->scratch.tickets, 1, 1, 1, 1);
  take_stats(&w, m, p);
  TRY(take_visits(&w, c, p));
  TRY(take_tile_bits(&w, c, all, out));
  TRY(take_table(&w, c, p, out));
  if (w.overflow)
    return args_fail(c, "workspace: would exceed what this machine can address; use smaller tensors");
  out->size = w.used;
  return LUATTN_OK;
}

luattn_status workspace_check(const args_call *c, size_t need) {
  const uintptr_t address = (uintptr_t)c->args->workspace;
  if (need == 0) return LUATTN_OK;
  if (address == 0)
    return args_fail(
        c, "workspace: is NULL, expected %zu bytes of device memory, as luattn_workspace_size says", need);
  if (c->args->workspace_size < need)
    return args_fail(c, "workspace: has %zu bytes, expected %zu, as luattn_workspace_size says",
                     c->args->workspace_size, need);
  if (need > UINTPTR_MAX - address)
    return args_fail(c, "workspace: its %zu bytes at 0x%" PRIxPTR " reach beyond what can be addressed", need,
                     address);
  if (address % 256 != 0)
    return args_fail(c, "workspace: address 0x%" PRIxPTR " is not a multiple of 256 bytes; align it",
                     address);
  return LUATTN_OK;
}
