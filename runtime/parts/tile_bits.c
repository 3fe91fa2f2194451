#include "runtime/parts/tile_bits.h"

#include "abi/workspace.h"
#include "luattn/tensors.h"
#include "runtime/call/sizes.h"

/* Below this many instructions, about 10 us on an H100, a launch more takes longer than it saves. */
static const double least_work = 1 << 27;

/* The grid's third axis. With skip always, more are an error of the launch. */
static const double most_sets = 65535;

/* Bits of packed sequences are as large as of as many sequences of the longest one's length: bytes that are not worth
 * it. */
static const double most_packed = 1 << 28;

/* Sorting takes about 4 us: with fewer instructions than this, of about 150 us for all tiles, more than it saves. With
 * fewer tiles of a head there is little to sort. */
static const double least_ordered = 1u << 31;
static const int64_t least_ranks = 16;

/* Of the main kernels on all tiles. */
static double instructions(const image_manifest *m, const LuattnShape *s) {
  const double scores = (double)s->q_len * s->kv_len, d = m->head_dim, dv = m->head_dim_v;
  const double products = m->pass == LUATTN_FORWARD ? d + dv : 3 * d + 2 * dv;
  return scores * s->batch * s->heads * products / manifest_traits(m)->products;
}

static int64_t words_of(int64_t rows, int64_t cells) { return rows * workspace_bit_words(cells) * 2; }

int64_t tile_bits_row_words(const LuattnShape *s) {
  return words_of(workspace_cells(s->q_len), workspace_cells(s->kv_len));
}
int64_t tile_bits_column_words(const LuattnShape *s) {
  return words_of(workspace_cells(s->kv_len), workspace_cells(s->q_len));
}

bool tile_bits_pay(const image_manifest *m, const LuattnShape *s, int skip) {
  const manifest_tile_bits *t = &m->bits[0];
  const double scores = (double)s->q_len * s->kv_len, work = instructions(m, s);
  if (!m->tile_bits || scores <= 0 || s->batch < 1 || s->heads < 1) return false;
  if (skip != LUATTN_SKIP_AUTO) return skip == LUATTN_SKIP_ALWAYS;
  const double sets = (t->by_batch ? s->batch : 1.0) * (t->by_head ? s->heads : 1.0);
  const double cost = scores * sets * t->cost / ((double)t->rows * t->columns);
  const double bytes = 4.0 * (double)(tile_bits_row_words(s) + tile_bits_column_words(s)) * sets;
  return work >= least_work && cost <= work / 2 && sets <= most_sets &&
         ((!m->packed && !m->paged) || bytes <= most_packed);
}

void tile_bits_sets(const image_manifest *m, const LuattnShape *shape, LuattnTileBits *out) {
  out->batch = m->bits[0].by_batch ? (unsigned)shape->batch : 1;
  out->heads = m->bits[0].by_head ? (unsigned)shape->heads : 1;
}

/* Blocks have 32 x 8 cells. All bytes of a column's words are written. */
void tile_bits_grid(const LuattnTileBits *bits, const LuattnShape *s, int64_t size[3]) {
  size[0] = workspace_bit_words(workspace_cells(s->kv_len));
  size[1] = workspace_bit_words(workspace_cells(s->q_len)) * 4;
  size[2] = (int64_t)bits->batch * bits->heads;
}

static bool orders(const image_manifest *m) {
  return sizes_entry(m, LUATTN_ROLE_TILE_ORDER) != NULL && sizes_main(m) != NULL;
}

int64_t tile_order_fill(const image_manifest *m, const LuattnParams *p, const LuattnTileBits *bits, int skip,
                        int multiprocessors, LuattnTileOrder *out) {
  const LuattnShape *s = &p->shape;
  *out = (LuattnTileOrder){.tiles = NULL};
  if (!orders(m)) return 0;
  const manifest_entry *e = sizes_main(m);
  const bool forward = m->pass == LUATTN_FORWARD;
  const int64_t size = forward ? e->tile_m : (int64_t)e->tile_n * sizes_blocks_together(m, e);
  const int64_t heads = forward ? s->heads : s->heads_kv, len = forward ? s->q_len : s->kv_len,
                count = (len + size - 1) / size;
  if (count < least_ranks || count * heads * s->batch <= multiprocessors) return 0;
  if (skip != LUATTN_SKIP_ALWAYS && instructions(m, s) < least_ordered) return 0;
  *out = (LuattnTileOrder){.count = (unsigned)count,
                           .first = (unsigned)(count / least_ranks),
                           .batch = p->schedule.batches_in_turn ? 1 : bits->batch, /* all at the same tile */
                           .heads = bits->heads > 1 ? (unsigned)heads : 1,
                           .size = (unsigned)size,
                           .descending = forward || m->deterministic};
  return 2 * count * out->batch * out->heads;
}

static int64_t order_words(const LuattnShape *s, const LuattnTileBits *bits, int order) {
  const int64_t of_q = (int64_t)bits->batch * bits->heads,
                of_kv = (int64_t)bits->batch * (bits->heads > 1 ? s->heads_kv : 1);
  return workspace_order_words(order, s->q_len, s->kv_len, of_q, of_kv);
}

int64_t tile_orders_words(const image_manifest *m, const LuattnShape *shape, const LuattnTileBits *bits) {
  return orders(m) && m->bits[0].layout > 0 ? order_words(shape, bits, LUATTN_ORDERS) : 0;
}

unsigned *tile_orders_find(const image_manifest *m, const LuattnShape *shape, const LuattnTileBits *bits,
                           const LuattnTileOrder *order, unsigned *orders) {
  if (orders == NULL || order->batch != bits->batch) return NULL;
  for (int i = 0; i < LUATTN_ORDERS; ++i)
    if (workspace_order_of_kv(i) == (m->pass == LUATTN_BACKWARD) && (unsigned)workspace_order_size(i) == order->size &&
        (unsigned)workspace_order_descends(i) == order->descending)
      return orders + order_words(shape, bits, i);
  return NULL;
}

/* Walks that take words have tiles of one or two cells (work/tile_bits.cuh, has_words). */
bool tile_bits_decide(const image_manifest *m) {
  const manifest_entry *e = sizes_main(m);
  if (e == NULL) return false;
  const uint32_t along = m->pass == LUATTN_FORWARD ? e->tile_n : e->tile_m;
  return !manifest_traits(m)->reads_tile_words || along == LUATTN_CELL || along == 2 * LUATTN_CELL;
}
