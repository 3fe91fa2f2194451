#include "runtime/maps.h"

#include <string.h>

/* Values of cuda.h. */
enum { MAP_FLOAT16 = 6, MAP_BFLOAT16 = 9, MAP_SWIZZLE_128 = 3, MAP_PROMOTE_256 = 3 };

enum { BOX_CHANNELS = 64, Q_BOX_ROWS = 64, ELEM_BYTES = 2 };

typedef struct map_shape {
  const char *name;
  int dim, len, heads, batch, box_rows;
} map_shape;

/* An axis of one element is never stepped along: what its stride says need not suit the copy engine. */
static cu_size stride_bytes(long long stride, int size) {
  return size > 1 ? (cu_size)stride * ELEM_BYTES : BOX_CHANNELS * ELEM_BYTES;
}

static luattn_status fill(const luattn_driver *d, const args_call *c, const LuattnTensor *t,
                          const map_shape *s, LuattnTensorMap *out) {
  const int bf16 = c->info->dtype == LUATTN_BF16;
  const cu_size size[] = {(cu_size)s->dim, (cu_size)s->len, (cu_size)s->heads, (cu_size)s->batch};
  const cu_size stride[] = {stride_bytes(t->seq, s->len), stride_bytes(t->head, s->heads),
                            stride_bytes(t->batch, s->batch)};
  const unsigned box[] = {BOX_CHANNELS, (unsigned)s->box_rows, 1, 1}, step[] = {1, 1, 1, 1};
  if (s->len == 0 || s->batch == 0) return LUATTN_OK; /* nothing is loaded */
  const cu_result result = d->encode_tiled(out, bf16 ? MAP_BFLOAT16 : MAP_FLOAT16, 4, t->data, size, stride,
                                           box, step, 0, MAP_SWIZZLE_128, MAP_PROMOTE_256, 0);
  if (result == 0) return LUATTN_OK;
  if (result != CU_INVALID_VALUE)
    return driver_fail(d, c->err, result, "cuTensorMapEncodeTiled", "describing %s", s->name);
  return args_fail(
      c,
      "%s: strides %lld, %lld, %lld (batch, head, position) in elements are not what TMA can take "
      "(0 to 2^39, multiples of 8); make it contiguous, or compile with family 1 + LUATTN_SM80",
      s->name, t->batch, t->head, t->seq);
}

static int forward_tile_n(const luattn_image_info *m) {
  for (uint32_t i = 0; i < m->num_entries; ++i)
    if (m->entry[i].role == LUATTN_ROLE_FORWARD) return (int)m->entry[i].tile_n;
  return 0;
}

luattn_status maps_fill(const luattn_driver *d, const args_call *c, const LuattnParams *p,
                        LuattnTensorMaps *out) {
  const int tile_n = forward_tile_n(c->info);
  const int dim = (int)c->info->head_dim, dim_v = (int)c->info->head_dim_v;
  memset(out, 0, sizeof *out);
  if (d->encode_tiled == NULL)
    return luattn_fail(c->err, LUATTN_UNSUPPORTED,
                       "luattn_launch: kernels of the sm90 family need a libcuda of CUDA 12.0 or newer, this "
                       "one is of %d.%d; "
                       "update NVIDIA's driver, or compile with family 1 + LUATTN_SM80",
                       d->version / 1000, d->version % 1000 / 10);
  TRY(fill(d, c, &p->q, &(map_shape){"q", dim, p->q_len, p->heads, p->batch, Q_BOX_ROWS}, &out->q));
  TRY(fill(d, c, &p->k, &(map_shape){"k", dim, p->kv_len, p->heads_kv, p->batch, tile_n}, &out->k));
  return fill(d, c, &p->v, &(map_shape){"v", dim_v, p->kv_len, p->heads_kv, p->batch, tile_n}, &out->v);
}
