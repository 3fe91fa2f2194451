/* linear_passes.c: the passes of a call of linear attention: their tensors, segments, and what lies in the workspace. */
#include <stdint.h>

#include "runtime/call/linear_args.h"

enum {
  LEAST_SEGMENT = 16 * LUATTN_CHUNK, /* tokens: below, a segment's state costs more than it saves */
  ALIGNMENT = 256
};

typedef struct room {
  char *base;
  size_t used;
} room;

static void *take(room *r, size_t bytes) {
  void *at = r->base != NULL ? r->base + r->used : NULL;
  r->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static size_t rows_of(const linear_call *l) {
  return (size_t)l->p.tokens * (l->c.info->packed ? 1 : (size_t)l->p.entries);
}

/* Contiguous rows [rows][heads][dim] in half precision. */
static LuattnTensor take_rows(room *r, const linear_call *l, int heads, int dim) {
  const long long row = (long long)heads * dim;
  return (LuattnTensor){take(r, rows_of(l) * (size_t)row * 2), row * l->p.tokens, dim, row};
}

/* As many as fill the device, of tokens enough that a state more costs little. */
static luattn_status choose_segments(const linear_call *l, int v_block, linear_pass *pass) {
  const args_call *c = &l->c;
  const int64_t of_v = (pass->value.dim + v_block - 1) / v_block;
  const int64_t each = l->p.entries > 0 && c->info->packed ? l->p.tokens / l->p.entries : l->p.tokens;
  int64_t count = 1;
  pass->segments = 1;
  pass->blocks = (int64_t)l->p.entries * l->p.heads_v;
  if (pass->blocks > INT32_MAX / LUATTN_MAX_SEGMENTS / of_v)
    return args_fail(c, "q, v: %d entries of %d value heads are more blocks than a launch has; split the batch",
                     l->p.entries, l->p.heads_v);
  pass->blocks *= of_v;
  if (c->info->linear_facts[0].cuts && pass->blocks > 0) count = c->multiprocessors / pass->blocks;
  if (count > each / LEAST_SEGMENT) count = each / LEAST_SEGMENT;
  if (count > LUATTN_MAX_SEGMENTS) count = LUATTN_MAX_SEGMENTS;
  if (count > 1) pass->segments = (int)count;
  if (c->info->linear_facts[0].cuts == MANIFEST_CUT_MAPS)
    pass->map_blocks = (int64_t)l->p.entries * l->p.heads_v * ((pass->key.dim + v_block - 1) / v_block);
  return LUATTN_OK;
}

/* Rows that main kernels read: the caller's, or ones that are made. */
static void place_rows(linear_call *l, room *r) {
  LuattnLinearParams *p = &l->p;
  const image_manifest *m = l->c.info;
  LuattnTensor *const to[] = {&p->q, &p->k, &p->v};
  for (int i = 0; i < LUATTN_LINEAR_TENSORS; i++)
    *to[i] = m->linear_facts[0].made >> i & 1
                 ? take_rows(r, l, i < 2 ? p->heads : p->heads_v, (int)(i < 2 ? m->head_dim : m->head_dim_v))
                 : p->rows.from[i];
}

static luattn_status place_forward(linear_call *l) {
  const LuattnLinearParams *p = &l->p;
  const int k_dim = (int)l->c.info->head_dim, v_dim = (int)l->c.info->head_dim_v;
  l->pass[0] = (linear_pass){.wanted = true,
                             .query = {p->q, "q", p->heads, k_dim},
                             .key = {p->k, "k", p->heads, k_dim},
                             .value = {p->v, "v", p->heads_v, v_dim},
                             .o = {p->o, "o", p->heads_v, v_dim},
                             .first = p->first,
                             .last = p->last};
  return choose_segments(l, (int)l->c.info->linear_facts[0].v_block, &l->pass[0]);
}

/* Passes run one after another, and share the memory of their segments. */
static void place_segments(linear_call *l, room *r) {
  const size_t state = (size_t)l->c.info->head_dim * l->c.info->head_dim_v;
  int most = 1;
  for (int i = 0; i < LINEAR_PASSES; i++)
    if (l->pass[i].wanted && l->pass[i].segments > most) most = l->pass[i].segments;
  if (most <= 1) return;
  const size_t slots = (size_t)l->p.entries * (size_t)l->p.heads_v * (size_t)most;
  l->p.segments.states = take(r, slots * state * sizeof(float));
  l->p.segments.decays = take(r, slots * sizeof(float));
  if (l->c.info->linear_facts[0].cuts == MANIFEST_CUT_MAPS)
    l->p.segments.maps = take(r, slots * l->c.info->head_dim * l->c.info->head_dim * sizeof(float));
}

luattn_status linear_place_passes(linear_call *l, void *base) {
  room r = {base, 0};
  l->p.segments.count = 1;
  place_rows(l, &r);
  TRY(place_forward(l));
  place_segments(l, &r);
  l->workspace = r.used;
  return LUATTN_OK;
}

LuattnLinearParams linear_pass_params(const linear_call *l, int i) {
  const linear_pass *pass = &l->pass[i];
  LuattnLinearParams p = l->p;
  p.q = pass->query.t, p.k = pass->key.t, p.v = pass->value.t, p.o = pass->o.t;
  p.first = pass->first, p.last = pass->last;
  p.segments.count = pass->segments;
  return p;
}
