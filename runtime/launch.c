#include "runtime/launch.h"
#include "abi/workspace.h"
#include "common/choices.h"
#include "common/host.h"
#include "common/limits.h"
#include "common/pairs.h"
#include "runtime/batch_masks.h"
#include "runtime/order.h"
#include "runtime/packed.h"
#include "runtime/random.h"
#include "runtime/tile_table.h"
#include "runtime/tile_bits.h"

#include <inttypes.h>
#include <string.h>

#include "luattn/compiler.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

static bool has_role(const image_manifest *m, luattn_role role) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].role == (uint32_t)role) return true;
  return false;
}

static size_t elem_size(const image_manifest *m) {
  return m->dtype == LUATTN_F64 ? 8 : m->dtype == LUATTN_F32 ? 4 : 2;
}

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

/* Bytes of a workspace, and the range of sums that must start as zeros. */
typedef struct workspace_need {
  size_t size, sums, sums_size;
  bool has_tile_bits;  /* the launch evaluates the mask into it */
  bool has_tile_order; /* the launch orders tiles by the bits in it */
  bool has_table, makes_table; /* the launch has a list of packed tiles; makes it in the workspace */
  LuattnTileTable table;
} workspace_need;

/* Packed: `len` rows of all entries, without a batch axis. */
static void take_modified(cursor *w, size_t elem, bool packed, int batch, int heads, int len, int dim, LuattnTensor *out) {
  out->data = take(w, elem, packed ? 1 : batch, heads, len, dim);
  out->seq = dim;
  out->head = (long long)len * dim;
  out->batch = packed ? 0 : heads * out->head;
}

/* The shape of one stat: the axes before the input's last, flattened to rows, and the blocks of the last. */
static void stat_shape(const image_manifest *m, const LuattnParams *p, uint32_t stat, int64_t *num_rows,
                       int64_t *blocks) {
  const manifest_stat *s = &m->stat[stat];
  const LuattnInput *in = &p->inputs.input[s->input];
  *num_rows = 1;
  for (uint32_t a = 0; a < s->axis; ++a)
    *num_rows = *num_rows > INT32_MAX ? *num_rows : *num_rows * in->size[a];
  *blocks = ceil_div(in->size[s->axis], s->block);
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

static const manifest_entry *entry_of(const image_manifest *m, luattn_role role) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].role == (uint32_t)role) return &m->entry[i];
  return NULL;
}

static bool adds_dq(const image_manifest *m) {
  return m->accumulates_dq && is_needed(m, LUATTN_WANT_DQ, m->has_query_mod);
}

/* Counters for the q tiles of a head (work/dq_order.cuh, sm90/bwd/dq_first_store.cuh). */
static int64_t num_turns(const image_manifest *m, const LuattnParams *p) {
  const manifest_entry *main = entry_of(m, LUATTN_ROLE_DKDV);
  const int each = workspace_turns(m->family == LUATTN_SM90, (int)main->threads, (int)main->tile_n);
  return ceil_div(p->shape.q_len, main->tile_m) * each;
}

/* The sm90 backward takes its kv tiles from a work counter. */
static bool draws_kv(const image_manifest *m) {
  return m->family == LUATTN_SM90 && m->pass == LUATTN_BACKWARD && has_role(m, LUATTN_ROLE_DKDV);
}

/* The work counter, and a counter for each q tile: the semaphore of the dQ order, or the flag of the first
 * store. */
static int64_t num_counters(const image_manifest *m, const LuattnParams *p) {
  return LUATTN_TURNS_FIRST + (adds_dq(m) ? (int64_t)p->shape.batch * p->shape.heads * num_turns(m, p) : 0);
}

/* Blocks of a cluster. */
static int64_t blocks_together(const image_manifest *m, const manifest_entry *dkdv) {
  return workspace_blocks_together(m->family == LUATTN_SM90, (int)dkdv->tile_n);
}

static int64_t kv_blocks(const image_manifest *m, const manifest_entry *dkdv, const LuattnParams *p) {
  const int64_t together = blocks_together(m, dkdv);
  return ceil_div(p->shape.kv_len, dkdv->tile_n * together) * together;
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

static pairs_sizes sizes_of(const image_manifest *m, uint32_t input, const LuattnParams *p) {
  pairs_sizes s = {.batch = p->shape.batch,
                   .heads = p->shape.heads,
                   .heads_kv = p->shape.heads_kv,
                   .q_len = p->shape.q_len,
                   .kv_len = p->shape.kv_len,
                   .packed = m->packed != 0};
  for (uint32_t a = 0; a < m->input[input].num_axes; ++a) s.axis[a] = (double)p->inputs.input[input].size[a];
  return s;
}

static void find_alone(const image_manifest *m, LuattnParams *p) {
  p->inputs.alone = 0;
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    const pairs_sizes s = sizes_of(m, i, p);
    if (pairs_alone(&m->input[i], &s)) p->inputs.alone |= 1u << i;
  }
}

/* Whether a deterministic backward needs no exact sums of an input's gradient: the order of additions does
 * not matter, or blocks can keep a fixed order. For a fixed order a block processes all batches of a kv tile,
 * and the blocks should still fill an eighth of the GPU, because exact sums take about eight times as
 * long. */
static bool is_ordered(const args_call *c, uint32_t input, LuattnParams *p) {
  const image_manifest *m = c->info;
  const luattn_input_info *info = &m->input[input];
  const manifest_entry *main = entry_of(m, LUATTN_ROLE_DKDV);
  const pairs_sizes s = sizes_of(m, input, p);
  if (pairs_in_any_order(info, &s)) return true;
  if (m->family != LUATTN_SM90 || m->packed || main == NULL || p->schedule.num_splits > 1 ||
      !pairs_in_batch_order(info, &s))
    return false;
  if (kv_blocks(m, main, p) * p->shape.heads_kv * 8 < c->multiprocessors) return false;
  p->schedule.batches_in_turn = 1;
  return true;
}

/* Exact sums of a deterministic backward, next to dq_acc. */
static void take_ordered(cursor *w, const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const size_t limbs = (size_t)workspace_limbs((int)args_real_size(m)) * sizeof(unsigned long long);
  if (adds_dq(m) && !draws_kv(m)) {
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
  const bool adds = has_role(m, LUATTN_ROLE_FINISH) && adds_dq(m), prepared = m->family == LUATTN_SM90;
  if (adds && prepared)
    p->scratch.dq_acc = take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (draws_kv(m)) p->scratch.turns = take(w, sizeof *p->scratch.turns, num_counters(m, p), 1, 1, 1);
  out->sums = w->used;
  if (adds && !prepared)
    p->scratch.dq_acc = take(w, args_real_size(m), p->shape.heads, all_q_rows(c, p, true), m->head_dim, 1);
  if (m->deterministic) take_ordered(w, c, p);
  out->sums_size = w->used - out->sums;
}

static luattn_status choose_splits(const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const manifest_entry *main = entry_of(m, LUATTN_ROLE_DKDV);
  const bool can = m->can_split && main != NULL;
  const int asked = c->args->num_splits;
  p->schedule.num_splits = 1;
  if (asked > 1 && !can && m->pass == LUATTN_BACKWARD) /* one luattn_args may serve both passes */
    return args_fail(c, "num_splits: is %d, and this kernel has one block for a kv tile; leave it 0 or 1",
                     asked);
  if (!can) return LUATTN_OK;
  const int64_t blocks = kv_blocks(m, main, p) * p->shape.heads_kv * p->shape.batch;
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
      has_role(c->info, LUATTN_ROLE_REACH) && (forward || p->shape.batch <= LUATTN_MAX_BATCH / 2);
  /* One luattn_args may serve both passes: backward may lack what forward has. */
  if (asked == LUATTN_SKIP_ALWAYS && !can && forward && !c->info->tile_bits)
    return args_fail(c,
                     "skip: is LUATTN_SKIP_ALWAYS, and this kernel knows no tiles without weight; leave it "
                     "LUATTN_SKIP_AUTO");
  *skips = can && p->shape.q_len > 0 && p->shape.kv_len > 0 &&
           (asked == LUATTN_SKIP_ALWAYS || (asked == LUATTN_SKIP_AUTO && skipping_pays(c->info, p)));
  return LUATTN_OK;
}

/* The tile bitmap's size: rows of tiles of a head, and 32-bit words of each (work/tile_walk.cuh, Visits). */
static void visits_shape(const image_manifest *m, const LuattnParams *p, int64_t *rows, int64_t *words) {
  const bool forward = m->pass == LUATTN_FORWARD;
  const manifest_entry *main = entry_of(m, forward ? LUATTN_ROLE_FORWARD : LUATTN_ROLE_DKDV);
  *rows = *words = 0;
  if (main == NULL) return;
  const int64_t q_tiles = ceil_div(p->shape.q_len, main->tile_m),
                kv_tiles = ceil_div(p->shape.kv_len, main->tile_n * (forward ? 1 : blocks_together(m, main)));
  *rows = forward ? q_tiles : kv_tiles;
  *words = workspace_words(forward ? kv_tiles : q_tiles);
}

static luattn_status take_visits(cursor *w, const args_call *c, LuattnParams *p) {
  const image_manifest *m = c->info;
  const int64_t q_groups = workspace_norms(p->shape.q_len), kv_groups = workspace_norms(p->shape.kv_len);
  int64_t rows, words;
  bool skips = false;
  TRY(choose_skip(c, p, &skips));
  if (!skips) return LUATTN_OK;
  visits_shape(m, p, &rows, &words);
  p->scratch.norm_k = take(w, sizeof *p->scratch.norm_k, p->shape.batch, p->shape.heads_kv, kv_groups, 1);
  if (m->pass == LUATTN_BACKWARD) {
    p->scratch.norm_q = take(w, sizeof *p->scratch.norm_q, p->shape.batch, p->shape.heads, q_groups, 1);
    p->scratch.least_lse = take(w, sizeof *p->scratch.least_lse, p->shape.batch, p->shape.heads, q_groups, 1);
  }
  p->scratch.visits = take(w, sizeof *p->scratch.visits, p->shape.batch, p->shape.heads, rows, words);
  return LUATTN_OK;
}

/* After the schedule is known. `orders`: those of the batch, or NULL. Returns whether the launch makes its own. */
static bool take_tile_order(cursor *w, const args_call *c, LuattnTileBitsParams *all, unsigned *orders) {
  LuattnTileOrder *out = &all->tile_order;
  const int64_t words =
      tile_order_fill(c->info, &all->before.dense, &all->bits, c->args->skip, c->multiprocessors, out);
  if (words == 0) return false;
  out->tiles = tile_orders_find(c->info, &all->before.dense.shape, &all->bits, out, orders);
  if (out->tiles != NULL) return false;
  out->tiles = take(w, sizeof *out->tiles, words, 1, 1, 1);
  return true;
}

/* Tile bits come from the batch, or are made in the workspace, or there are none. */
static luattn_status take_tile_bits(cursor *w, const args_call *c, LuattnTileBitsParams *all, workspace_need *need) {
  const LuattnShape *shape = &all->before.dense.shape;
  LuattnTileBits *out = &all->bits;
  unsigned *orders;
  TRY(batch_masks_take(c, all, &orders));
  need->has_tile_bits = out->rows == NULL && tile_bits_pay(c->info, shape, c->args->skip);
  need->has_tile_order = false;
  all->tile_order = (LuattnTileOrder){.tiles = NULL};
  if (need->has_tile_bits) tile_bits_sets(c->info, shape, out);
  if (need->has_tile_bits || out->rows != NULL) need->has_tile_order = take_tile_order(w, c, all, orders);
  if (out->rows != NULL && tile_bits_decide(c->info)) /* nothing reads them */
    memset(all->before.dense.scratch.stats, 0, sizeof all->before.dense.scratch.stats);
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
    stat_shape(m, p, i, &num_rows, &blocks);
    p->scratch.stats[i] = take(w, sizeof(int), num_rows, blocks, 2, 1);
  }
}

size_t launch_place_stats(const image_manifest *m, LuattnParams *p, uintptr_t base) {
  cursor w = {.base = base};
  if (has_role(m, LUATTN_ROLE_STATS)) take_stats(&w, m, p);
  return w.overflow ? SIZE_MAX / 2 : w.used;
}

/* Lays out the workspace at `base` (0: computes the size only) and enters it into *p. Every part starts at a
 * multiple of 256 bytes. Errors: LUATTN_INVALID (the size overflows size_t). */
static luattn_status workspace_layout(const args_call *c, uintptr_t base, LuattnTileBitsParams *all,
                                      workspace_need *out) {
  LuattnParams *p = &all->before.dense;
  const image_manifest *m = c->info;
  cursor w = {.base = base};
  const size_t real = args_real_size(m), elem = elem_size(m);
  const int head_dim = (int)m->head_dim, head_dim_v = (int)m->head_dim_v;
  TRY(choose_splits(c, p));
  if (has_role(m, LUATTN_ROLE_MOD)) {
    const bool packed = m->packed;
    const int q_rows = packed ? all->before.packed.total_q : p->shape.q_len,
              kv_rows = packed ? all->before.packed.total_k : p->shape.kv_len;
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
  take_sums(&w, c, p, out);
  if (has_role(m, LUATTN_ROLE_FINISH)) {
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

static luattn_status check_workspace(const args_call *c, size_t need) {
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

/* Fixed by CUDA for every architecture so far. */
static luattn_status check_grid(const args_call *c, const manifest_entry *entry, const int64_t size[3]) {
  static const char *const axis = "xyz";
  static const int64_t limit[] = {INT32_MAX, 65535, 65535};
  for (int i = 0; i < 3; ++i)
    if (size[i] > limit[i])
      return args_fail(c,
                       "%s: needs a grid of %" PRId64 " x %" PRId64 " x %" PRId64
                       ", and %c is at most %" PRId64 "; split the call into smaller batches or fewer heads",
                       entry->name, size[0], size[1], size[2], axis[i], limit[i]);
  return LUATTN_OK;
}

/* Kernels number their tiles with an int. */
static luattn_status check_tiles(const args_call *c, const manifest_entry *entry, const int64_t size[3],
                                 int64_t limit) {
  const int64_t per_tile = size[1] * size[2];
  if (size[0] > 0 && per_tile > 0 && (per_tile > limit || size[0] > limit / per_tile))
    return args_fail(c,
                     "%s: has %" PRId64 " x %" PRId64 " x %" PRId64 " tiles, expected at most %" PRId64
                     "; split the call into smaller batches or fewer heads",
                     entry->name, size[0], size[1], size[2], limit);
  return LUATTN_OK;
}

/* A persistent grid of the sm90 family: one block per multiprocessor, which takes tile after tile, alone or
 * with the `together` - 1 others of its cluster. */
static luattn_status resident_grid(const args_call *c, const manifest_entry *entry, const int64_t size[3],
                                   int64_t together, unsigned grid[3]) {
  TRY(check_tiles(c, entry, size, INT32_MAX / 2)); /* a block counts past the last tile */
  const int64_t tiles = size[0] * size[1] * size[2],
                most = max_of(c->multiprocessors / together, 1) * together;
  grid[0] = (unsigned)(tiles < most ? tiles : most);
  grid[1] = grid[2] = 1;
  return LUATTN_OK;
}

/* In backward a warp handles 32 q tiles of a kv tile. */
static int64_t reach_blocks(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p) {
  int64_t rows, words;
  visits_shape(m, p, &rows, &words);
  return m->pass == LUATTN_FORWARD ? rows : ceil_div(rows * words, entry->threads / 32);
}

/* Tiles of queries along x: those of all entries, or with a table of packed sequences at most as many as there are, which
 * then have no entries along z. Likewise of keys. */
static void q_tiles_size(const args_call *c, const workspace_need *need, const LuattnParams *p, int64_t tile, int64_t size[3]) {
  size[0] = ceil_div(p->shape.q_len, tile);
  if (!need->has_table) return;
  size[0] = tile_table_most(c, p, 0, tile);
  size[2] = 1;
}
static void kv_tiles_size(const args_call *c, const workspace_need *need, const manifest_entry *entry, const LuattnParams *p,
                          int64_t size[3]) {
  const int64_t together = blocks_together(c->info, entry);
  size[0] = kv_blocks(c->info, entry, p);
  size[1] = p->shape.heads_kv;
  size[2] = (int64_t)p->shape.batch * p->schedule.num_splits;
  if (!need->has_table) return;
  size[0] = tile_table_most(c, p, 1, entry->tile_n * together) * together;
  size[2] = 1;
}

/* The functions below enter the grid of one role; size[1] and size[2] are p->shape.heads and batch before,
 * and size[0] is 0. */
static void stats_size(const image_manifest *m, const LuattnParams *p, int64_t size[3]) {
  size[1] = 0;
  size[2] = m->num_stats;
  for (uint32_t i = 0; i < m->num_stats; ++i) {
    int64_t num_rows, blocks;
    stat_shape(m, p, i, &num_rows, &blocks);
    size[0] = max_of(size[0], blocks);
    size[1] = max_of(size[1], num_rows);
  }
}

static void norms_size(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p,
                       int64_t size[3]) {
  if (p->scratch.visits == NULL) return;
  size[0] = ceil_div(p->shape.kv_len, entry->tile_m);
  size[1] = p->shape.heads_kv;
  if (m->pass == LUATTN_FORWARD) return;
  size[0] = max_of(size[0], ceil_div(p->shape.q_len, entry->tile_m));
  size[1] = p->shape.heads;
  size[2] = (int64_t)p->shape.batch * 2;
}

/* Finishes dq only, or all three. */
static void finish_size(const args_call *c, const workspace_need *need, const manifest_entry *entry, const LuattnParams *p,
                        int64_t size[3]) {
  const bool kv = p->scratch.dk_acc != NULL || p->scratch.dv_acc != NULL;
  if (p->scratch.dq_acc == NULL && !kv) return;
  if (need->has_table && !kv && !c->info->has_query_mod) { /* mods are undone entry by entry */
    q_tiles_size(c, need, p, entry->tile_m, size);
    return;
  }
  size[0] = ceil_div(kv ? max_of(p->shape.q_len, p->shape.kv_len) : p->shape.q_len, entry->tile_m);
  size[2] = (int64_t)p->shape.batch * (kv ? 3 : 1);
}

/* A launch's own order, or all of a batch. */
static void order_size(const LuattnTileBitsParams *p, const workspace_need *need, int64_t size[3]) {
  const LuattnTileOrder *o = &p->tile_order;
  if (need->has_tile_order) size[0] = o->size > 0 ? (int64_t)o->batch * o->heads : (int64_t)p->bits.batch * p->bits.heads;
  size[1] = o->size > 0 ? 1 : LUATTN_ORDERS;
  size[2] = 1;
}

/* The last of size[1] is for the scalars, which are fewer than a block's threads. */
static void round_size(const image_manifest *m, const manifest_entry *entry, const LuattnParams *p,
                       int64_t size[3]) {
  size[0] = p->inputs.num_scalars > 0 && p->inputs.scalar_exact != NULL;
  for (uint32_t i = 0; i < m->num_inputs; ++i)
    if (p->inputs.input[i].exact != NULL)
      size[0] = max_of(size[0], ceil_div(p->inputs.input[i].count, entry->tile_m));
  size[1] = (int64_t)m->num_inputs + 1;
  size[2] = 1;
}

/* The grid of one entry; a size of 0 means that there is nothing to launch. Errors: LUATTN_INVALID (a limit
 * of the device). */
static luattn_status launch_grid(const args_call *c, const manifest_entry *entry, const LuattnTileBitsParams *all,
                                 const workspace_need *need, unsigned grid[3]) {
  const LuattnParams *p = &all->before.dense;
  int64_t size[3] = {0, p->shape.heads, p->shape.batch};
  switch ((luattn_role)entry->role) {
    case LUATTN_ROLE_STATS:
      if (p->scratch.stats[0] != NULL) stats_size(c->info, p, size);
      break;
    case LUATTN_ROLE_MOD:
      size[0] = ceil_div(max_of(p->shape.q_len, p->shape.kv_len), entry->tile_m);
      size[2] = (int64_t)p->shape.batch * 3;
      break;
    case LUATTN_ROLE_FINISH:
      finish_size(c, need, entry, p, size);
      break;
    case LUATTN_ROLE_NORMS:
      norms_size(c->info, entry, p, size);
      break;
    case LUATTN_ROLE_REACH:
      if (p->scratch.visits != NULL) size[0] = reach_blocks(c->info, entry, p);
      break;
    case LUATTN_ROLE_TILE_BITS:
      if (need->has_tile_bits) tile_bits_grid(&all->bits, &p->shape, size);
      break;
    case LUATTN_ROLE_TILE_ORDER:
      order_size(all, need, size);
      break;
    case LUATTN_ROLE_TILE_TABLE:
      if (need->makes_table) size[0] = (int64_t)p->shape.batch + 1;
      size[1] = size[2] = 1;
      break;
    case LUATTN_ROLE_FORWARD:
      q_tiles_size(c, need, p, entry->tile_m, size);
      if (c->info->family == LUATTN_SM90) return resident_grid(c, entry, size, 1, grid);
      if (c->info->family == LUATTN_SM80) TRY(check_tiles(c, entry, size, INT32_MAX));
      break;
    case LUATTN_ROLE_PREPARE: /* at least one block, where it zeroes a counter */
      q_tiles_size(c, need, p, entry->tile_m, size);
      size[0] = max_of(size[0], draws_kv(c->info));
      break;
    case LUATTN_ROLE_DQ:
      size[0] = ceil_div(p->shape.q_len, entry->tile_m);
      break;
    case LUATTN_ROLE_DKDV:
      kv_tiles_size(c, need, entry, p, size);
      if (draws_kv(c->info)) return resident_grid(c, entry, size, blocks_together(c->info, entry), grid);
      break;
    case LUATTN_ROLE_ROUND:
      round_size(c->info, entry, p, size);
      break;
    case LUATTN_ROLE_BLOCK_TABLE: /* for luattn_block_table */
      break;
    case LUATTN_ROLE_COUNT: /* refused when the image was opened */
      return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no role", entry->name);
  }
  TRY(check_grid(c, entry, size));
  for (int i = 0; i < 3; ++i) grid[i] = (unsigned)size[i];
  return LUATTN_OK;
}

/* Chooses the order of a forward kernel's q tiles; its grid is known to be within the limits. If the first of each head
 * come before all others (LuattnTileOrder), it is the order of the others, none of which is long. */
static void choose_order(const image_manifest *m, LuattnParams *p, const LuattnTileOrder *by_length) {
  const manifest_entry *main = entry_of(m, LUATTN_ROLE_FORWARD);
  if (main == NULL || m->family == LUATTN_SIMT) return;
  const int64_t q_tiles = ceil_div(p->shape.q_len, main->tile_m),
                tiles = q_tiles * p->shape.heads * p->shape.batch;
  if (tiles == 0) return;
  const bool stays = m->family == LUATTN_SM90;
  const int64_t kv_bytes = (int64_t)elem_size(m) * (m->head_dim + m->head_dim_v);
  order_fill(p, q_tiles - by_length->first,
             stays ? order_groups_resident(p, q_tiles, m->has_mask && by_length->tiles == NULL, kv_bytes) : order_groups(tiles));
  p->order.tiles = (unsigned)tiles;
}

static luattn_status zero(const luattn_kernel *k, void *ptr, size_t size, const char *what, cu_stream stream,
                          luattn_error *err) {
  if (ptr == NULL || size == 0) return LUATTN_OK;
  const cu_result result = k->driver->fill_words((cu_pointer)(uintptr_t)ptr, 0, size / 4, stream);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, "cuMemsetD32Async", "zeroing %s (%zu bytes at %p)", what, size,
                     ptr);
}

/* Sets the work counter of a launch. The workspace has room for one, which is zeroed and used only if none of
 * the kernel's own counters is free for this launch. */
static luattn_status place_counter(const luattn_kernel *k, const void *workspace, LuattnParams *p,
                                   cu_stream stream, luattn_error *err) {
  if (k->counters == NULL) return LUATTN_OK;
  unsigned *counter = counter_find(k->counters, k->driver, workspace, stream);
  if (counter == NULL)
    return zero(k, p->scratch.tickets, sizeof *p->scratch.tickets, "the work counter", stream, err);
  p->scratch.tickets = counter;
  return LUATTN_OK;
}

/* Zeroes what kernels add to; also gradients that are stored, because skipped tiles store nothing. */
static luattn_status zero_sums(const luattn_kernel *k, const LuattnParams *p, void *sums, size_t size,
                               cu_stream stream, luattn_error *err) {
  const image_manifest *m = &k->info;
  const size_t real = args_real_size(m);
  TRY(zero(k, sums, size, m->deterministic ? "sums" : "dq_acc", stream, err));
  for (uint32_t i = 0; i < m->num_inputs; ++i) {
    size_t count = 1;
    for (uint32_t a = 0; a < m->input[i].num_axes; ++a) count *= (size_t)p->inputs.input[i].size[a];
    TRY(zero(k, p->inputs.input[i].grad, count * real, m->input[i].name, stream, err));
  }
  return zero(k, p->inputs.scalar_grad, m->num_scalars * real, "scalar_grads", stream, err);
}

/* With libcuda of CUDA 11.8 and newer, cuLaunchKernelEx takes 0.1 us less. */
static cu_result launch_entry(const luattn_driver *d, cu_function f, const manifest_entry *e,
                              const unsigned grid[3], cu_stream stream, void **pointers) {
  const cu_launch how = {{grid[0], grid[1], grid[2]}, {e->threads, 1, 1}, e->shared_bytes, stream, NULL, 0};
  if (d->launch_ex != NULL) return d->launch_ex(&how, f, pointers, NULL);
  return d->launch(f, grid[0], grid[1], grid[2], e->threads, 1, 1, e->shared_bytes, stream, pointers, NULL);
}

static luattn_status launch_one(const luattn_kernel *k, uint32_t i, void *p, LuattnTensorMaps *maps, const unsigned g[3],
                                cu_stream stream, luattn_error *err) {
  void *pointers[] = {p, maps}; /* an entry takes a prefix of the first, and may lack the second */
  const manifest_entry *e = &k->info.entry[i];
  if (g[0] == 0 || g[1] == 0 || g[2] == 0) return LUATTN_OK;
  const cu_result result = launch_entry(k->driver, k->function[i], e, g, stream, pointers);
  if (result == 0) return LUATTN_OK;
  return driver_fail(k->driver, err, result, k->driver->launch_ex != NULL ? "cuLaunchKernelEx" : "cuLaunchKernel",
                     "%s of '%s', grid %u x %u x %u, %u threads, %u bytes of shared memory", e->name,
                     k->info.spec_name, g[0], g[1], g[2], (unsigned)e->threads, (unsigned)e->shared_bytes);
}

luattn_status launch_tile_bits(const luattn_kernel *kernel, const args_call *c, LuattnTileBitsParams *params,
                               cu_stream stream) {
  const image_manifest *m = &kernel->info;
  const workspace_need makes = {.has_tile_bits = true, .has_tile_order = params->tile_order.tiles != NULL};
  LuattnTensorMaps maps;
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  memset(&maps, 0, sizeof maps);
  for (int launches = 0; launches < 2; ++launches) /* all checks come first */
    for (uint32_t i = 0; i < m->num_entries; ++i) {
      const manifest_entry *e = &m->entry[i];
      if (e->role != LUATTN_ROLE_STATS && e->role != LUATTN_ROLE_TILE_BITS && e->role != LUATTN_ROLE_TILE_ORDER) continue;
      if (launches)
        TRY(launch_one(kernel, i, params, &maps, grid[i], stream, c->err));
      else
        TRY(launch_grid(c, e, params, &makes, grid[i]));
    }
  return LUATTN_OK;
}

static luattn_status launch_entries(const luattn_kernel *k, LuattnRandomParams *p, LuattnTensorMaps *maps,
                                    unsigned (*grid)[3], cu_stream stream, luattn_error *err) {
  for (uint32_t i = 0; i < k->info.num_entries; ++i) TRY(launch_one(k, i, p, maps, grid[i], stream, err));
  return LUATTN_OK;
}

luattn_status launch_tile_table(const luattn_kernel *kernel, const args_call *c, LuattnPackedTileParams *params, cu_stream stream) {
  const workspace_need makes = {.makes_table = true};
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i) {
    const manifest_entry *e = &kernel->info.entry[i];
    unsigned grid[3];
    if (e->role != LUATTN_ROLE_TILE_TABLE) continue;
    TRY(launch_grid(c, e, &params->before, &makes, grid));
    return launch_one(kernel, i, params, NULL, grid, stream, c->err);
  }
  return luattn_fail(c->err, LUATTN_INTERNAL, "%s: has no luattn_tile_table", kernel->info.spec_name);
}

luattn_status launch_block_table(const luattn_kernel *kernel, const args_call *c, LuattnBlockTable *params,
                                 const int64_t size[3], cu_stream stream) {
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i) {
    const manifest_entry *e = &kernel->info.entry[i];
    if (e->role != LUATTN_ROLE_BLOCK_TABLE) continue;
    TRY(check_grid(c, e, size));
    const unsigned grid[] = {(unsigned)size[0], (unsigned)size[1], (unsigned)size[2]};
    return launch_one(kernel, i, params, NULL, grid, stream, c->err);
  }
  return args_fail(c, "luattn_block_table: its mask reads no table of bytes along positions; take a kernel of a spec with an "
                      "input of dtype u8 and four axes, which its mask indexes with q // n and kv // m");
}

const char *launch_place(const luattn_kernel *k) {
  return k->info.pass == LUATTN_FORWARD ? "forward" : "backward";
}

luattn_status luattn_workspace_size(const luattn_kernel *kernel, const luattn_args *args, size_t *size,
                                    luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  NEED(size);
  TRY(choices_take(args, launch_place(kernel), &used, err));
  if (kernel->cpu_run != NULL) return cpu_kernel_workspace(kernel, &used, size, err);
  const args_call c = {.info = &kernel->info,
                       .args = &used,
                       .device = kernel->device,
                       .multiprocessors = kernel->multiprocessors,
                       .shapes_only = true,
                       .err = err};
  LuattnTileBitsParams p;
  workspace_need need;
  TRY(args_fill(&c, &p.before));
  TRY(workspace_layout(&c, 0, &p, &need));
  *size = need.size;
  return LUATTN_OK;
}

/* All checks come before the first operation on the stream. */
luattn_status luattn_launch(const luattn_kernel *kernel, const luattn_args *args, void *stream,
                            luattn_error *err) {
  HOST_FLOATS_SCOPE;
  luattn_args used;
  fail_clear(err);
  NEED(kernel);
  NEED(args);
  TRY(choices_take(args, launch_place(kernel), &used, err));
  if (kernel->cpu_run != NULL) return cpu_kernel_launch(kernel, &used, stream, err);
  const args_call c = {.info = &kernel->info,
                       .args = &used,
                       .device = kernel->device,
                       .multiprocessors = kernel->multiprocessors,
                       .zero = (const void *)(uintptr_t)kernel->zero,
                       .err = err};
  LuattnRandomParams everything;
  LuattnPackedTileParams *const whole = &everything.before;
  LuattnTileBitsParams *const all = &whole->before;
  LuattnParams *p = &all->before.dense;
  LuattnTensorMaps maps;
  TRY(args_fill(&c, &all->before));
  workspace_need need;
  TRY(workspace_layout(&c, (uintptr_t)used.workspace, all, &need));
  whole->table = need.table;
  TRY(packed_used(&c, &whole->used));
  TRY(random_fill(&c, &everything));
  TRY(check_workspace(&c, need.size));
  unsigned grid[MANIFEST_MAX_ENTRIES][3];
  for (uint32_t i = 0; i < kernel->info.num_entries; ++i)
    TRY(launch_grid(&c, &kernel->info.entry[i], all, &need, grid[i]));
  TRY(args_apart(&c, need.size));
  TRY(batch_masks_check(kernel, &c, all, need.has_tile_bits, stream));
  if (need.has_table) TRY(tile_table_check(kernel, &c, whole, need.makes_table, stream));
  choose_order(&kernel->info, p, &all->tile_order);
  find_alone(&kernel->info, p);
  TRY(driver_push(kernel->driver, kernel->context, err));
  luattn_status status = LUATTN_OK;
  if (kernel->info.family == LUATTN_SM90)
    status = descriptors_fill(kernel->driver, kernel->descriptors, &c, &all->before, &maps);
  if (status == LUATTN_OK) status = place_counter(kernel, used.workspace, p, stream, err);
  if (status == LUATTN_OK)
    status = zero_sums(kernel, p, (char *)used.workspace + need.sums, need.sums_size, stream, err);
  if (status == LUATTN_OK) status = launch_entries(kernel, &everything, &maps, grid, stream, err);
  driver_pop(kernel->driver);
  return status;
}
