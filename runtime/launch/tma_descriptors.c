#include "runtime/launch/tma_descriptors.h"

#include <string.h>

#include "runtime/call/grid_boxes.h"
#include "runtime/call/linear_args.h"
#include "runtime/call/paged.h"
#include "runtime/call/sizes.h"

/* Enumerators of cuda.h. */
enum { MAP_FLOAT16 = 6, MAP_BFLOAT16 = 9, MAP_SWIZZLE_128 = 3, MAP_PROMOTE_256 = 3 };

enum { BOX_CHANNELS = 64, Q_BOX_ROWS = 64, O_BOX_ROWS = 16, ELEM_BYTES = 2 };

typedef struct tma_shape {
  const char *name;
  int dim, len, heads, batch, box_rows;
  enum { AXES_DENSE, AXES_PACKED, AXES_PAGES, AXES_GRID } axes; /* of the functions below */
  const grid_boxes *grid;                                       /* of AXES_GRID */
} tma_shape;

/* An axis of one element is never stepped along: its stride need not suit TMA. */
static cu_size stride_bytes(long long stride, int size) {
  return size > 1 ? (cu_size)stride * ELEM_BYTES : BOX_CHANNELS * ELEM_BYTES;
}

static void key_of_grid(const tma_shape *s, uint64_t key[DESCRIPTOR_KEY_WORDS]) {
  const grid_boxes *g = s->grid; /* extents fit 15 bits, boxes 9 */
  for (int i = 0; i <= GRID_TMA_AXES; ++i) key[i] = (uint64_t)g->stride[i];
  key[4] = (uint64_t)g->extent[0] << 40 | (uint64_t)g->extent[1] << 20 | (uint64_t)g->extent[2];
  key[5] = (uint64_t)g->units << 32 | (uint64_t)g->box[0] << 20 | (uint64_t)g->box[1] << 10 | (uint64_t)g->box[2];
  key[6] = (uint64_t)s->dim << 32 | (uint64_t)g->step[0] << 12 | (uint64_t)g->step[1] << 8 | (uint64_t)g->step[2] << 4 |
           (uint64_t)g->axes;
}

/* The cache key of a descriptor: everything in it except the address. */
static void key_of(const LuattnTensor *t, const tma_shape *s, uint64_t key[DESCRIPTOR_KEY_WORDS]) {
  key[0] = stride_bytes(t->seq, s->len);
  key[1] = stride_bytes(t->head, s->heads);
  key[2] = stride_bytes(t->batch, s->batch);
  key[3] = (uint64_t)s->len << 32 | (uint64_t)s->heads; /* each fits 31 bits */
  key[4] = (uint64_t)s->batch << 2 | (uint64_t)s->axes;
  key[5] = (uint64_t)s->dim << 16 | (uint64_t)s->box_rows;
  key[6] = 0;
  if (s->axes == AXES_GRID) key_of_grid(s, key);
}

/* The axes of a descriptor, the channel first; its stride is implied. */
typedef struct tma_axes {
  unsigned rank, box[3]; /* of the three axes after the channel; 1 along the last one */
  unsigned step[3];      /* along these; 0: 1 */
  cu_size size[5], stride[4];
} tma_axes;

static tma_axes dense_axes(const LuattnTensor *t, const tma_shape *s) {
  return (tma_axes){
      .rank = 4,
      .box = {(unsigned)s->box_rows, 1, 1},
      .size = {(cu_size)s->dim, (cu_size)s->len, (cu_size)s->heads, (cu_size)s->batch},
      .stride = {stride_bytes(t->seq, s->len), stride_bytes(t->head, s->heads), stride_bytes(t->batch, s->batch)}};
}

/* The axes of packed rows. TMA zeros what lies past the end of an axis, but sequences end at places that only the
 * device knows. So the row axis ends at row `wrap`, and the last row of every sequence is laid on row wrap - 1: the
 * axis `end` steps by rows, too, and its coordinate is the end of the sequence. The wrap axis takes back the bytes of
 * `wrap` rows by 64-bit wrap-around, at the coordinate `wrap`: wrap * row + wrap * (2^64 / wrap - row) = 2^64. The base
 * address stays the tensor's own: TMA faults if the base is in unmapped memory, even if no box reads there. Triton's
 * ragged descriptors do the same. */
static tma_axes packed_axes(const LuattnTensor *t, const tma_shape *s) {
  const cu_size wrap = (cu_size)1 << LUATTN_WRAP_LOG2, row = stride_bytes(t->seq, s->len);
  return (tma_axes){
      .rank = 5,
      .box = {(unsigned)s->box_rows, 1, 1},
      .size = {(cu_size)s->dim, wrap, (cu_size)s->heads, (cu_size)s->len + 1, wrap + 1},
      .stride = {row, stride_bytes(t->head, s->heads), row, ((cu_size)1 << (64 - LUATTN_WRAP_LOG2)) - row}};
}

/* The axes of boxes that no entry's end cuts: their rows, and steps of t->batch to each row of each page of each
 * head. */
static tma_axes page_axes(const LuattnTensor *t, const tma_shape *s) {
  return (tma_axes){.rank = 3,
                    .box = {(unsigned)s->box_rows, 1, 1},
                    .size = {(cu_size)s->dim, (cu_size)s->len, (cu_size)s->batch},
                    .stride = {stride_bytes(t->seq, s->len), stride_bytes(t->batch, s->batch)}};
}

/* The axes of a grid, the innermost one first, and units, which lead to each head of each batch entry. */
static tma_axes grid_axes(const tma_shape *s) {
  const grid_boxes *g = s->grid;
  tma_axes axes = {.rank = (unsigned)g->axes + 2, .box = {1, 1, 1}, .size = {(cu_size)s->dim}};
  for (int i = 0; i < g->axes; ++i) {
    axes.size[1 + i] = (cu_size)g->extent[i];
    axes.stride[i] = stride_bytes(g->stride[i], g->extent[i]);
    axes.step[i] = (unsigned)g->step[i];
    axes.box[i] = (unsigned)(g->box[i] * g->step[i]); /* TMA takes every step-th element of so many */
  }
  axes.size[1 + g->axes] = (cu_size)g->units;
  axes.stride[g->axes] = stride_bytes(g->stride[g->axes], g->units > 1 ? 2 : 1);
  return axes;
}

static luattn_status encode(const luattn_driver *d, const args_call *c, const LuattnTensor *t, const tma_shape *s,
                            LuattnTensorMap *out) {
  const int type = c->info->dtype == LUATTN_BF16 ? MAP_BFLOAT16 : MAP_FLOAT16;
  const tma_axes axes = s->axes == AXES_PACKED  ? packed_axes(t, s)
                        : s->axes == AXES_PAGES ? page_axes(t, s)
                        : s->axes == AXES_GRID  ? grid_axes(s)
                                                : dense_axes(t, s);
  const unsigned box[] = {BOX_CHANNELS, axes.box[0], axes.box[1], axes.box[2], 1};
  unsigned step[] = {1, 1, 1, 1, 1};
  for (int i = 0; i < 3; ++i) step[1 + i] = axes.step[i] > 1 ? axes.step[i] : 1;
  const cu_result result = d->encode_tiled(out, type, axes.rank, t->data, axes.size, axes.stride, box, step, 0,
                                           MAP_SWIZZLE_128, MAP_PROMOTE_256, 0);
  if (result == 0) return LUATTN_OK;
  if (result != CU_INVALID_VALUE)
    return driver_fail(d, c->err, result, "cuTensorMapEncodeTiled", "describing %s", s->name);
  if (s->axes == AXES_GRID) return grid_no_descriptor(c, s->name, t, s->grid);
  if (s->axes == AXES_PACKED)
    return args_fail(
        c,
        "%s: strides %lld, %lld (position, head) in elements are not what TMA can take (0 to 2^33 and 2^39, "
        "multiples of 8); make it contiguous, or compile with family 1 + LUATTN_SM80",
        s->name, t->seq, t->head);
  return args_fail(c,
                   "%s: strides %lld, %lld, %lld (batch, head, position) in elements are not what TMA can take "
                   "(0 to 2^39, multiples of 8); make it contiguous, or compile with family 1 + LUATTN_SM80",
                   s->name, t->batch, t->head, t->seq);
}

static luattn_status move(const luattn_driver *d, const args_call *c, const LuattnTensor *t, const tma_shape *s,
                          LuattnTensorMap *descriptor) {
  const cu_result result = d->replace_address(descriptor, t->data);
  if (result == 0) return LUATTN_OK;
  return driver_fail(d, c->err, result, "cuTensorMapReplaceAddress", "describing %s", s->name);
}

static luattn_status fill(const luattn_driver *d, descriptor_cache *cache, const args_call *c, const LuattnTensor *t,
                          const tma_shape *s, LuattnTensorMap *out) {
  if (s->len == 0 || s->batch == 0) { /* nothing is loaded */
    memset(out, 0, sizeof *out);
    return LUATTN_OK;
  }
  const uint64_t wanted = (uintptr_t)t->data;
  uint64_t key[DESCRIPTOR_KEY_WORDS], address;
  descriptor_place place;
  key_of(t, s, key);
  if (descriptor_find(cache, key, out, &address, &place)) return address == wanted ? LUATTN_OK : move(d, c, t, s, out);
  TRY(encode(d, c, t, s, out));
  descriptor_store(cache, key, place, wanted, out);
  return LUATTN_OK;
}

/* Describes one of q, k, v, o, dout. The positions of a packed tensor are its `total` rows. */
static luattn_status describe(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                              const LuattnTensor *t, tma_shape s, int total, LuattnTensorMap *out) {
  if (c->info->packed) {
    s.len = total;
    s.batch = 1;
    s.axes = AXES_PACKED;
  }
  return fill(d, cache, c, t, &s, out);
}

/* Describes k or v in pages as packed rows, of which `page_rows` lie between one page's first and the next one's. */
static luattn_status describe_pages(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                    const LuattnTensor *t, const char *name, int dim, int heads_kv, int page_rows,
                                    int box_rows, LuattnTensorMap *out) {
  const int64_t num_pages = c->args->k->shape[0], page_size = c->args->k->shape[2];
  const int64_t len = num_pages > 0 ? (num_pages - 1) * page_rows + page_size : 0;
  const tma_shape s = {name, dim, (int)len, heads_kv, 1, box_rows, AXES_PACKED, NULL};
  return fill(d, cache, c, t, &s, out);
}

static luattn_status describe_keys(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                   const LuattnCallParams *all, const LuattnPaging *paging, int tile_n,
                                   LuattnTensorMaps *out) {
  const LuattnParams *p = &all->dense;
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v, heads_kv = p->shape.heads_kv,
            total = all->packed.total_k;
  if (c->info->paged) {
    TRY(describe_pages(d, cache, c, &p->tensors.k, "k", dim, heads_kv, paging->page_rows_k, paging->box_rows, &out->k));
    return describe_pages(d, cache, c, &p->tensors.v, "v", dim_v, heads_kv, paging->page_rows_v, paging->box_rows,
                          &out->v);
  }
  TRY(describe(d, cache, c, &p->tensors.k,
               (tma_shape){"k", dim, p->shape.kv_len, heads_kv, p->shape.batch, tile_n, AXES_DENSE, NULL}, total,
               &out->k));
  return describe(d, cache, c, &p->tensors.v,
                  (tma_shape){"v", dim_v, p->shape.kv_len, heads_kv, p->shape.batch, tile_n, AXES_DENSE, NULL}, total,
                  &out->v);
}

/* Those of a call over a grid; `rows` of a box of q, and of o or dout. */
static luattn_status fill_grid(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                               LuattnCallParams *all, const int rows[4], LuattnTensorMaps *out) {
  const LuattnTensors *t = &all->dense.tensors;
  const bool backward = c->info->pass == LUATTN_BACKWARD;
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v;
  const struct {
    const LuattnTensor *tensor;
    const char *name;
    int dim, len;
    LuattnTensorMap *map;
  } of[] = {{&t->q, "q", dim, all->dense.shape.q_len, &out->q},
            {&t->k, "k", dim, all->dense.shape.kv_len, &out->k},
            {&t->v, "v", dim_v, all->dense.shape.kv_len, &out->v},
            {backward ? &t->dout : &t->o, backward ? "dout" : "o", dim_v, all->dense.shape.q_len, &out->o}};
  for (int i = GRID_Q; i <= GRID_O; ++i) {
    grid_boxes boxes;
    const tma_shape s = {.name = of[i].name,
                         .dim = of[i].dim,
                         .len = of[i].len,
                         .batch = all->dense.shape.batch,
                         .axes = AXES_GRID,
                         .grid = &boxes};
    if (i == GRID_O && c->info->out_f32 && !backward) { /* stored from registers */
      memset(of[i].map, 0, sizeof *of[i].map);
      continue;
    }
    TRY(grid_boxes_of(c, all, (grid_tensor)i, of[i].tensor, of[i].name, rows[i], &boxes));
    TRY(fill(d, cache, c, of[i].tensor, &s, of[i].map));
  }
  return LUATTN_OK;
}

luattn_status descriptors_fill(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                               LuattnCallParams *all, const LuattnPaging *paging, LuattnTensorMaps *out) {
  const LuattnParams *p = &all->dense;
  const int total_q = all->packed.total_q;
  const manifest_entry *entry = sizes_main(c->info);
  const bool backward = c->info->pass == LUATTN_BACKWARD;
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v;
  if (entry == NULL) {
    memset(out, 0, sizeof *out);
    return LUATTN_OK;
  }
  const int tile_n = (int)entry->tile_n, q_rows = backward ? (int)entry->tile_m : Q_BOX_ROWS;
  if (d->encode_tiled == NULL || d->replace_address == NULL)
    return luattn_fail(c->err, LUATTN_UNSUPPORTED,
                       "luattn_launch: kernels of the sm90 family need a libcuda of CUDA 12.0 or newer, this "
                       "one is of %d.%d; "
                       "update NVIDIA's driver, or compile with family 1 + LUATTN_SM80",
                       d->version / 1000, d->version % 1000 / 10);
  if (c->info->over_grid) {
    const int rows[] = {q_rows, tile_n, tile_n, backward ? q_rows : O_BOX_ROWS};
    return fill_grid(d, cache, c, all, rows, out);
  }
  TRY(describe(d, cache, c, &p->tensors.q,
               (tma_shape){"q", dim, p->shape.q_len, p->shape.heads, p->shape.batch, q_rows, AXES_DENSE, NULL}, total_q,
               &out->q));
  TRY(describe_keys(d, cache, c, all, paging, tile_n, out));
  if (c->info->out_f32 && !backward) { /* stored from registers */
    memset(&out->o, 0, sizeof out->o);
    return LUATTN_OK;
  }
  if (!backward)
    return describe(
        d, cache, c, &p->tensors.o,
        (tma_shape){"o", dim_v, p->shape.q_len, p->shape.heads, p->shape.batch, O_BOX_ROWS, AXES_DENSE, NULL}, total_q,
        &out->o);
  return describe(d, cache, c, &p->tensors.dout,
                  (tma_shape){"dout", dim_v, p->shape.q_len, p->shape.heads, p->shape.batch, q_rows, AXES_DENSE, NULL},
                  total_q, &out->dout);
}

luattn_status descriptors_fill_tangents(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                        LuattnCallParams *all, LuattnTangentMaps *out) {
  const uint64_t has = c->info->tangent_mods ? c->info->tangent_mods_of[0].tangents : c->info->tangents_of[0].bits;
  const LuattnShape *s = &all->dense.shape;
  const LuattnTangents *t = &all->tangents;
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v, total_q = all->packed.total_q,
            total_k = all->packed.total_k;
  LuattnTensorMaps usual;
  TRY(descriptors_fill(d, cache, c, all, NULL, &usual));
  memset(out, 0, sizeof *out);
  out->q = usual.q, out->k = usual.k, out->v = usual.v;
  if (sizes_main(c->info) == NULL) return LUATTN_OK;
  const int tile_n = (int)sizes_main(c->info)->tile_n;
  if (has & LUATTN_TANGENT_Q)
    TRY(describe(d, cache, c, &t->q,
                 (tma_shape){"tangents: q", dim, s->q_len, s->heads, s->batch, Q_BOX_ROWS, AXES_DENSE, NULL}, total_q,
                 &out->q_tangent));
  if (has & LUATTN_TANGENT_K)
    TRY(describe(d, cache, c, &t->k,
                 (tma_shape){"tangents: k", dim, s->kv_len, s->heads_kv, s->batch, tile_n, AXES_DENSE, NULL}, total_k,
                 &out->k_tangent));
  if (has & LUATTN_TANGENT_V)
    TRY(describe(d, cache, c, &t->v,
                 (tma_shape){"tangents: v", dim_v, s->kv_len, s->heads_kv, s->batch, tile_n, AXES_DENSE, NULL}, total_k,
                 &out->v_tangent));
  return LUATTN_OK;
}

static luattn_status describe_whole_pages(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                          const LuattnTensor *t, const char *name, int dim, LuattnPageSteps steps,
                                          int box_rows, LuattnTensorMap *out) {
  const int64_t *shape = c->args->k->shape,
                last = (shape[0] - 1) * steps.page + (shape[1] - 1) * steps.head + (shape[2] - 1) * steps.row;
  const LuattnTensor stepped = {.data = t->data, .batch = paged_unit(t), .seq = t->seq};
  const tma_shape s = {name, dim, box_rows, 1, (int)last + 1, box_rows, AXES_PAGES, NULL};
  if (steps.row != 0) return fill(d, cache, c, &stepped, &s, out);
  memset(out, 0, sizeof *out);
  return LUATTN_OK;
}

luattn_status descriptors_fill_pages(const luattn_driver *d, descriptor_cache *cache, const args_call *c,
                                     const LuattnParams *p, const LuattnPaging *paging, LuattnPagedMaps *out) {
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v;
  TRY(describe_whole_pages(d, cache, c, &p->tensors.k, "k", dim, paging->steps_k, paging->box_rows, &out->k_whole));
  return describe_whole_pages(d, cache, c, &p->tensors.v, "v", dim_v, paging->steps_v, paging->box_rows, &out->v_whole);
}

luattn_status descriptors_fill_linear(const luattn_driver *d, descriptor_cache *cache, const linear_call *l, int pass,
                                      LuattnTensorMaps *out) {
  const linear_pass *of = &l->pass[pass];
  const linear_tensor *const from[] = {&of->query, &of->key, &of->value, &of->o};
  LuattnTensorMap *const to[] = {&out->q, &out->k, &out->v, &out->o};
  if (d->encode_tiled == NULL || d->replace_address == NULL)
    return luattn_fail(
        l->c.err, LUATTN_UNSUPPORTED,
        "luattn_linear_launch: kernels of linear attention need a libcuda of CUDA 12.0 or newer, this one "
        "is of %d.%d; update NVIDIA's driver",
        d->version / 1000, d->version % 1000 / 10);
  for (int i = 0; i < 4; i++) {
    const tma_shape shape = {from[i]->name, from[i]->dim, l->p.tokens, from[i]->heads,
                             l->p.entries,  LUATTN_CHUNK, AXES_DENSE,  NULL};
    TRY(describe(d, cache, &l->c, &from[i]->t, shape, l->p.tokens, to[i]));
  }
  return LUATTN_OK;
}

luattn_status descriptors_fill_linear_rows(const luattn_driver *d, descriptor_cache *cache, const linear_call *l,
                                           LuattnLinearRowMaps *out) {
  const int k_dim = (int)l->c.info->head_dim, v_dim = (int)l->c.info->head_dim_v, of_v = l->p.heads_v,
            of_keys = linear_adds_heads(l->c.info) ? l->p.heads : of_v;
  const struct {
    linear_tensor from;
    LuattnTensorMap *to;
  } rows[] = {{l->pass[1].query, &out->q},
              {l->pass[1].key, &out->k},
              {l->pass[1].value, &out->v},
              {l->pass[2].value, &out->dout},
              {{l->p.dq, "dq", of_keys, k_dim}, &out->dq},
              {{l->p.dk, "dk", of_keys, k_dim}, &out->dk},
              {{l->p.dv, "dv", of_v, v_dim}, &out->dv}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const linear_tensor *x = &rows[i].from;
    const tma_shape shape = {x->name, x->dim, l->p.tokens, x->heads, l->p.entries, LUATTN_CHUNK, AXES_DENSE, NULL};
    TRY(describe(d, cache, &l->c, &x->t, shape, l->p.tokens, rows[i].to));
  }
  return LUATTN_OK;
}
