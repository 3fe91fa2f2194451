#include "gen/cpu/row_blocks.h"

int64_t blocks_in_all(const cpu_problem *p) {
  return (int64_t)p->batch * p->heads * ((p->q_len + CPU_TILE - 1) / CPU_TILE);
}

luattn_status blocks_open(const cpu_problem *p, int64_t most, row_blocks *out, luattn_error *err) {
  const int64_t all = blocks_in_all(p);
  *out = (row_blocks){.p = p,
                      .per_head = (p->q_len + CPU_TILE - 1) / CPU_TILE,
                      .kv_tiles = (p->kv_len + CPU_TILE - 1) / CPU_TILE,
                      .most = (int)(most < all ? most : all)};
  out->classes = arena_array(p->a, (size_t)out->most, (size_t)out->kv_tiles);
  return out->classes != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

block_place blocks_place(const row_blocks *r, int i) {
  const int64_t number = r->first + i, head = number / r->per_head;
  const int q0 = (int)(number % r->per_head) * CPU_TILE, left = r->p->q_len - q0;
  return (block_place){(int)(head / r->p->heads), (int)(head % r->p->heads), q0, left < CPU_TILE ? left : CPU_TILE};
}

block_place blocks_rows(const row_blocks *r, int64_t unit, int *from, int *to) {
  const block_place place = blocks_place(r, (int)(unit / UNITS_OF_BLOCK));
  *from = (int)(unit % UNITS_OF_BLOCK) * ROWS_OF_UNIT;
  *to = *from + ROWS_OF_UNIT < place.rows ? *from + ROWS_OF_UNIT : place.rows;
  return place;
}

static void classify(void *blocks, int worker, int64_t i) {
  const row_blocks *r = blocks;
  const cpu_problem *p = r->p;
  const block_place at = blocks_place(r, (int)i);
  unsigned char *out = r->classes + (size_t)i * (size_t)r->kv_tiles;
  for (int t = 0; t < r->kv_tiles; t++) {
    const int kv0 = t * CPU_TILE, kv1 = p->kv_len - kv0 > CPU_TILE ? kv0 + CPU_TILE - 1 : p->kv_len - 1;
    out[t] = (unsigned char)problem_tile_class(p, &p->worker[worker], at.b, at.h, at.q0, at.q0 + at.rows - 1, kv0, kv1);
  }
}

bool blocks_next(row_blocks *r) {
  const int64_t left = blocks_in_all(r->p) - (r->first += r->count);
  r->count = (int)(left < r->most ? left : r->most);
  problem_run(r->p, classify, r, r->count);
  return r->count > 0;
}
