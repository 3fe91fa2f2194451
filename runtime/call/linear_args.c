#include "runtime/call/linear_args.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/linear_params.h"
#include "common/call/limits.h"
#include "common/call/overlap.h"
#include "common/call/states_between.h"
#include "runtime/call/fetch_tensor.h"
#include "runtime/call/inputs.h"
#include "runtime/call/tensor_rule.h"

#define QK_AXES "batch, tokens, heads, head_dim"
#define V_AXES "batch, tokens, heads_v, head_dim_v"

/* ---- tensors of tokens ---- */

static luattn_status need_tensor(const args_call *c, const char *name, const DLTensor *t, const char *axes) {
  if (t == NULL) return args_fail(c, "%s: is NULL, expected a tensor [%s]", name, axes);
  if (t->ndim == 4 && t->shape != NULL) return LUATTN_OK;
  return args_fail(c, "%s: has %d axes, expected 4: [%s]", name, t->ndim, axes);
}

/* TMA steps along rows forwards, by multiples of 16 bytes. */
static luattn_status fill_tokens(const linear_call *l, const char *name, const DLTensor *t, const char *axes, int heads,
                                 int dim, bool is_output, LuattnTensor *out) {
  const args_call *c = &l->c;
  const tensor_rule rule = {.name = name,
                            .axes = axes,
                            .ndim = 4,
                            .shape = {l->c.info->packed ? 1 : l->p.entries, l->p.tokens, heads, dim},
                            .dtype = args_elem(c->info),
                            .is_output = is_output,
                            .is_row = true};
  long long stride[4];
  TRY(need_tensor(c, name, t, axes));
  TRY(args_tensor(c, &rule, t, stride, &out->data));
  for (int i = 0; i < 3; i++)
    if (c->info->family == LUATTN_SM90 && (stride[i] < 0 || stride[i] >= INT64_C(1) << 32))
      return args_fail(c, "%s: axis %d has stride %lld, expected 0 to 4294967295 elements; make it contiguous", name, i,
                       stride[i]);
  out->batch = stride[0], out->seq = stride[1], out->head = stride[2];
  return LUATTN_OK;
}

static luattn_status size_of(const args_call *c, const char *what, int64_t x, int64_t least, int64_t most, int *out) {
  if (x < least || x > most)
    return args_fail(c, "%s is %" PRId64 ", expected %" PRId64 " to %" PRId64, what, x, least, most);
  *out = (int)x;
  return LUATTN_OK;
}

/* Backward: gradients, where a tensor that is NULL is not wanted. */
static luattn_status fill_gradients(linear_call *l) {
  const luattn_linear_args *a = l->args;
  LuattnLinearRows *r = &l->p.rows;
  const int k_dim = (int)l->c.info->head_dim, v_dim = (int)l->c.info->head_dim_v;
  const struct {
    const char *name, *axes;
    const DLTensor *t;
    int heads, dim;
  } rows[] = {{"dq", QK_AXES, a->dq, l->p.heads, k_dim},
              {"dk", QK_AXES, a->dk, l->p.heads, k_dim},
              {"dv", V_AXES, a->dv, l->p.heads_v, v_dim}};
  for (int i = 0; i < LUATTN_LINEAR_TENSORS; i++)
    if (rows[i].t != NULL)
      TRY(fill_tokens(l, rows[i].name, rows[i].t, rows[i].axes, rows[i].heads, rows[i].dim, true, &r->grad[i]));
  if (a->dout == NULL)
    return args_fail(&l->c, "dout: is NULL; give a tensor [" V_AXES "], of zeros if o has no gradient");
  return fill_tokens(l, "dout", a->dout, V_AXES, l->p.heads_v, v_dim, false, &r->dout);
}

static luattn_status fill_sizes(linear_call *l) {
  const args_call *c = &l->c;
  const luattn_linear_args *a = l->args;
  LuattnLinearParams *p = &l->p;
  TRY(need_tensor(c, "q", a->q, QK_AXES));
  TRY(need_tensor(c, "v", a->v, V_AXES));
  TRY(size_of(c, "q: batch", a->q->shape[0], 0, LUATTN_MAX_BATCH, &p->entries));
  TRY(size_of(c, "q: the number of tokens", a->q->shape[1], 0, c->info->max_len, &p->tokens));
  TRY(size_of(c, "q: heads", a->q->shape[2], 1, LUATTN_MAX_HEADS, &p->heads));
  TRY(size_of(c, "v: heads_v", a->v->shape[2], 1, LUATTN_MAX_HEADS, &p->heads_v));
  if (p->heads_v % p->heads != 0)
    return args_fail(c, "v: its %d heads are no multiple of q's %d; give each head of q the same number of value heads",
                     p->heads_v, p->heads);
  p->group = p->heads_v / p->heads;
  return LUATTN_OK;
}

/* An int32 list, on the device. */
static luattn_status fill_list(const args_call *c, const char *name, const char *axes, const DLTensor *t, int64_t count,
                               const int **out) {
  const tensor_rule rule = {
      .name = name, .axes = axes, .ndim = 1, .shape = {count}, .dtype = {kDLInt, 32, 1}, .is_contiguous = true};
  long long stride[1];
  void *data;
  TRY(args_tensor(c, &rule, t, stride, &data));
  *out = data;
  return LUATTN_OK;
}

static luattn_status fill_entries(linear_call *l) {
  const args_call *c = &l->c;
  const DLTensor *cu = l->args->cu_seqlens;
  if ((cu != NULL) != (c->info->packed != 0))
    return args_fail(c, "cu_seqlens: is %s, and the kernel is compiled for %s", cu != NULL ? "given" : "NULL",
                     c->info->packed ? "packed sequences; give it" : "batch entries; leave it NULL");
  if (cu == NULL) return LUATTN_OK;
  if (l->p.entries != 1)
    return args_fail(c, "cu_seqlens: is given, and q has batch %d; packed sequences have batch 1", l->p.entries);
  if (cu->ndim != 1 || cu->shape == NULL || cu->shape[0] < 1)
    return args_fail(c, "cu_seqlens: expected one axis, [entries + 1], of at least 1 number");
  TRY(size_of(c, "cu_seqlens: its size", cu->shape[0], 1, LUATTN_MAX_BATCH + 1, &l->p.entries));
  TRY(fill_list(c, "cu_seqlens", "entries + 1", cu, cu->shape[0], &l->p.cu_seqlens));
  l->p.entries--;
  return LUATTN_OK;
}

/* ---- states ---- */

static luattn_status state_type(const args_call *c, const char *name, const DLTensor *t, int *type) {
  const DLDataType d = t->dtype;
  if (d.lanes == 1 && d.code == kDLFloat && d.bits == 32)
    *type = LUATTN_STATE_F32;
  else if (d.lanes == 1 && d.code == kDLFloat && d.bits == 64 && c->info->dtype == LUATTN_F64)
    *type = LUATTN_STATE_F64;
  else if (d.lanes == 1 && d.code == kDLBfloat && d.bits == 16)
    *type = LUATTN_STATE_BF16;
  else if (d.lanes == 1 && d.code == kDLFloat && d.bits == 16)
    *type = LUATTN_STATE_F16;
  else
    return args_fail(c,
                     "%s: has DLPack dtype code %d of %d bits; states are float32, bfloat16 or float16 on a GPU, and "
                     "float64 beside q of float64",
                     name, (int)d.code, (int)d.bits);
  return LUATTN_OK;
}

static luattn_status fill_state(linear_call *l, const char *name, const DLTensor *t, bool is_output, int64_t *rows,
                                LuattnStates *out) {
  const args_call *c = &l->c;
  const int layout = l->args->state_layout, k_dim = (int)c->info->head_dim,
            v_dim = (int)c->info->head_dim_v + (int)c->info->linear_facts[0].normalizes;
  if (t == NULL) return LUATTN_OK;
  if (layout != LUATTN_STATE_VK && layout != LUATTN_STATE_KV)
    return args_fail(c,
                     "state_layout: is %d, and %s is given; say LUATTN_STATE_VK for [.., head_dim_v, head_dim], or "
                     "LUATTN_STATE_KV",
                     layout, name);
  const bool kv = layout == LUATTN_STATE_KV;
  const char *axes = kv ? "rows, heads_v, head_dim, head_dim_v" : "rows, heads_v, head_dim_v, head_dim";
  long long stride[4];
  TRY(need_tensor(c, name, t, axes));
  TRY(state_type(c, name, t, &out->type));
  if (*rows < 0) *rows = t->shape[0];
  const tensor_rule rule = {.name = name,
                            .axes = axes,
                            .ndim = 4,
                            .shape = {*rows, l->p.heads_v, kv ? k_dim : v_dim, kv ? v_dim : k_dim},
                            .dtype = t->dtype,
                            .is_output = is_output};
  TRY(args_tensor(c, &rule, t, stride, &out->data));
  out->row = stride[0], out->head = stride[1];
  out->key = stride[kv ? 2 : 3], out->value = stride[kv ? 3 : 2];
  return LUATTN_OK;
}

/* As many states as linear.h says. */
static luattn_status fill_between(linear_call *l) {
  const args_call *c = &l->c;
  const luattn_linear_args *a = l->args;
  const manifest_linear *m = &c->info->linear_facts[0];
  LuattnStatesBetween *b = &l->p.between;
  if (a->intermediate_states == NULL) return LUATTN_OK;
  if (m->ring > 0)
    return args_fail(c, "intermediate_states: is given beside ring_k, whose states are not written; leave it NULL");
  states_between found;
  char wrong[300];
  if (!states_between_open(a, l->p.tokens, l->p.entries, &found, wrong, sizeof wrong)) return args_fail(c, "%s", wrong);
  b->every = (int)found.every, b->count = (int)found.count;
  int64_t rows = found.shape[0];
  TRY(fill_state(l, "intermediate_states", &found.rows, true, &rows, &b->states));
  if (rows == 0) *b = (LuattnStatesBetween){0};
  return LUATTN_OK;
}

static luattn_status fill_states(linear_call *l) {
  const luattn_linear_args *a = l->args;
  int64_t rows = a->state_indices != NULL ? -1 : l->p.entries;
  const bool backward = l->c.info->pass == LUATTN_BACKWARD;
  if (backward && a->initial_state != NULL && a->final_state != NULL && a->initial_state->data != NULL &&
      a->final_state->data == a->initial_state->data && a->final_state->byte_offset == a->initial_state->byte_offset)
    return args_fail(&l->c,
                     "initial_state: is final_state, which forward has updated in place, and backward needs the "
                     "initial state as it was; give forward a final_state of its own");
  TRY(fill_state(l, "initial_state", a->initial_state, false, &rows, &l->p.first));
  if (!backward) TRY(fill_state(l, "final_state", a->final_state, true, &rows, &l->p.last));
  if (!backward) TRY(fill_between(l));
  if (backward) TRY(fill_state(l, "dfinal_state", a->dfinal_state, false, &rows, &l->dlast));
  if (backward) TRY(fill_state(l, "dinitial_state", a->dinitial_state, true, &rows, &l->dfirst));
  if (a->state_indices == NULL) return LUATTN_OK;
  if (rows < 0) return args_fail(&l->c, "state_indices: is given, and there is no state; leave it NULL");
  l->pool_rows = rows;
  return fill_list(&l->c, "state_indices", "entries", a->state_indices, l->p.entries, &l->p.state_rows);
}

/* ---- a ring of rows behind a checkpoint ---- */

static luattn_status fill_ring_tensor(linear_call *l, const char *name, const DLTensor *t, int64_t width, bool wanted,
                                      LuattnTensor *out) {
  const args_call *c = &l->c;
  const bool is_sums = strcmp(name, "ring_decays") == 0;
  static const char axes[] = "rows, heads_v, count, channels";
  long long stride[4];
  if (!wanted && t == NULL) return LUATTN_OK;
  if (!wanted) return args_fail(c, "%s: is given, and the spec's rings have none; leave it NULL", name);
  TRY(need_tensor(c, name, t, axes));
  int type;
  TRY(state_type(c, name, t, &type));
  if (!is_sums && out != &l->p.ring.k && type != l->p.ring.type)
    return args_fail(c, "%s: is of another type than ring_k; give both the same", name);
  if (!is_sums) l->p.ring.type = type;
  const tensor_rule rule = {.name = name,
                            .axes = axes,
                            .ndim = 4,
                            .shape = {l->args->initial_state->shape[0], l->p.heads_v, l->p.ring.count, width},
                            .dtype = is_sums ? (DLDataType){kDLFloat, 32, 1} : t->dtype,
                            .is_output = true,
                            .is_single = true,
                            .is_row = true};
  TRY(args_tensor(c, &rule, t, stride, &out->data));
  out->batch = stride[0], out->head = stride[1], out->seq = stride[2];
  const bool is_number = is_sums && width == 1; /* read by itself; of other rows 16 bytes at once */
  if (!is_number && ((uintptr_t)out->data % 16 != 0 || (stride[0] | stride[1] | stride[2]) % (is_sums ? 4 : 8) != 0))
    return args_fail(c, "%s: its rows do not all begin at multiples of 16 bytes; make it contiguous", name);
  return LUATTN_OK;
}

/* Whether each element of the final state lies where that of the initial one does, so that a block may write what it has
 * read. */
static bool is_in_place(const linear_call *l) {
  const LuattnStates *a = &l->p.first, *b = &l->p.last;
  return a->data != NULL && a->data == b->data && a->type == b->type && a->row == b->row && a->head == b->head &&
         a->key == b->key && a->value == b->value;
}

static luattn_status check_ring(const linear_call *l) {
  const args_call *c = &l->c;
  const luattn_linear_args *a = l->args;
  const manifest_linear *m = &c->info->linear_facts[0];
  if (m->normalizes)
    return args_fail(
        c, "ring_k: is given, and the spec is normalised (normalize = true), which rings lack; leave it NULL");
  if (a->cu_seqlens != NULL)
    return args_fail(c,
                     "ring_k: is given beside cu_seqlens; a step has as many tokens of each entry: give batch entries");
  if (a->initial_state == NULL || a->final_state == NULL || (l->p.first.data != NULL && !is_in_place(l)))
    return args_fail(c, "final_state: is not initial_state, and a full ring is folded into that; give it twice");
  if (a->ring_k->ndim != 4 || a->ring_k->shape == NULL)
    return args_fail(c, "ring_k: has %d axes, expected 4: [rows, heads_v, count, head_dim]", a->ring_k->ndim);
  const int64_t count = a->ring_k->shape[2];
  if (count < 1 || count > m->ring)
    return args_fail(c, "ring_k: has %" PRId64 " rows, expected 1 to %u", count, m->ring);
  if (l->p.tokens > count || l->p.tokens > (int)m->step)
    return args_fail(c, "q: has %d tokens, and a ring of %" PRId64 " rows takes at most %d a step; split them",
                     l->p.tokens, count, count < m->step ? (int)count : (int)m->step);
  if (a->ring_used == NULL)
    return args_fail(c, "ring_used: is NULL, expected int32 [entries]: how many rows of the ring count");
  return LUATTN_OK;
}

static luattn_status fill_ring(linear_call *l) {
  const args_call *c = &l->c;
  const luattn_linear_args *a = l->args;
  const manifest_linear *m = &c->info->linear_facts[0];
  LuattnRing *r = &l->p.ring;
  if ((a->ring_k != NULL) != (m->ring > 0))
    return args_fail(c, "ring_k: is %s, and the kernel is compiled for %s", a->ring_k != NULL ? "given" : "NULL",
                     m->ring > 0 ? "rings; give it" : "states without rings; leave it NULL");
  if (m->ring == 0) return LUATTN_OK;
  TRY(check_ring(l));
  r->count = (int)a->ring_k->shape[2];
  TRY(fill_ring_tensor(l, "ring_k", a->ring_k, c->info->head_dim, true, &r->k));
  TRY(fill_ring_tensor(l, "ring_u", a->ring_u, c->info->head_dim_v, true, &r->u));
  TRY(fill_ring_tensor(l, "ring_decays", a->ring_decays, m->ring_width, m->ring_width > 0, &r->sums));
  TRY(fill_ring_tensor(l, "ring_e", a->ring_e, c->info->head_dim, m->ring_erases, &r->e));
  TRY(fill_ring_tensor(l, "ring_y", a->ring_y, c->info->head_dim_v, m->ring_erases, &r->y));
  return fill_list(c, "ring_used", "entries", a->ring_used, l->p.entries, &r->used);
}

/* ---- blocks ---- */

enum { RESIDENT = 512 }; /* threads of a multiprocessor, as gen/plan/linear_recurrent.c has it */

/* Shared memory of a kernel that walks tokens: of a ring's what the call's tokens and rows need. */
static unsigned walk_bytes(const linear_call *l) {
  const image_manifest *m = l->c.info;
  const manifest_linear *of = &m->linear_facts[0];
  const manifest_entry *e = &m->entry[0];
  if (of->ring == 0) return e->shared_bytes;
  return e->shared_bytes - manifest_ring_bytes(m, (int)of->step, (int)of->ring) +
         manifest_ring_bytes(m, l->p.tokens, l->p.ring.count);
}

/* The entry of this role, or 0: the first one has another. */
static unsigned entry_of(const image_manifest *m, luattn_role role) {
  for (unsigned i = m->num_entries - 1; i > 0; i--)
    if (m->entry[i].role == (uint32_t)role) return i;
  return 0;
}

/* The entry of luattn_linear_pairs, of states of bf16 along K, or 0. */
static unsigned pairs_entry(const linear_call *l) {
  const LuattnStates *s = &l->p.first;
  const long long strides = s->row | s->head | s->value;
  if (s->data == NULL || s->type != LUATTN_STATE_BF16 || s->key != 1 ||
      ((uintptr_t)s->data | (unsigned long long)strides * 2) % 16 != 0)
    return 0;
  return entry_of(l->c.info, LUATTN_ROLE_LINEAR_PAIRS);
}

static void take_pairs(linear_call *l, unsigned entry) {
  const manifest_entry *e = &l->c.info->entry[entry];
  const int k = layout_ceil((int)l->c.info->head_dim, 32) * 32;
  l->walk = (linear_walk){.entry = entry,
                          .threads = e->threads,
                          .shared_bytes = walk_bytes(l) + (unsigned)linear_ring_pair_bytes(l->p.tokens, k),
                          .grid = {(unsigned)((int64_t)l->p.entries * l->p.heads_v), 1, 1}};
}

/* As many warps a block as leave two blocks for each multiprocessor, where each has a part of the value channels. Blocks of
 * rings have all of a value head. */
static void choose_walk(linear_call *l) {
  const image_manifest *m = l->c.info;
  const manifest_linear *of = &m->linear_facts[0];
  const int64_t heads = (int64_t)l->p.entries * l->p.heads_v;
  linear_walk *w = &l->walk;
  if (of->v_warp == 0) return;
  int warps = (int)m->entry[0].threads / 32;
  const bool splits = !of->normalizes && of->ring == 0;
  while (splits && warps > 1 && heads * m->head_dim_v < (int64_t)2 * l->c.multiprocessors * warps * (int64_t)of->v_warp)
    warps = (warps + 1) / 2;
  const unsigned values = (unsigned)warps * of->v_warp, parts = (m->head_dim_v + values - 1) / values;
  w->threads = 32 * (unsigned)warps;
  w->shared_bytes = walk_bytes(l);
  w->grid[0] = (unsigned)heads;
  w->grid[1] = splits ? parts : 1;
  w->grid[2] = 1;
  l->p.ahead = (int)((int64_t)l->c.multiprocessors * RESIDENT / w->threads);
  const unsigned pairs = of->ring > 0 ? pairs_entry(l) : 0;
  if (pairs > 0) take_pairs(l, pairs);
}

/* Whether TMA copies parts of states as lines along V (by_v), or K. */
static bool has_lines(const LuattnStates *m, bool by_v) {
  const unsigned long long size = (unsigned long long)linear_state_bytes(m->type);
  const long long strides = m->row | m->head | (by_v ? m->key : m->value);
  return (by_v ? m->value : m->key) == 1 && ((uintptr_t)m->data | (unsigned long long)strides * size) % 16 == 0;
}

/* More tokens of an entry, in the mean, are walked with more warps; blocks of fewer turns have no time to run ahead. */
enum { MOST_STEPPED = 16, STEP_BATCH = 4, LEAST_TURNS = 4 };

static bool takes_step(const linear_call *l, int64_t parts) {
  const LuattnStates *first = &l->p.first, *last = &l->p.last;
  const image_manifest *m = l->c.info;
  const int64_t tokens = m->packed ? l->p.tokens / (l->p.entries > 0 ? l->p.entries : 1) : l->p.tokens;
  if (m->entry[m->num_entries - 1].role != LUATTN_ROLE_LINEAR_STEP || l->p.between.every > 0) return false;
  if (tokens > MOST_STEPPED || parts < (int64_t)LEAST_TURNS * 2 * l->c.multiprocessors) return false;
  if (first->data == NULL || last->data == NULL || first->type != last->type) return false;
  return has_lines(first, first->key != 1) && has_lines(last, first->key != 1);
}

/* Bytes before stages. */
static int step_rows(const LuattnLinearStep *s) {
  return (LINEAR_STEP_BARRIERS + s->slots * s->slot + 127) / 128 * 128;
}

/* The entry of small blocks, and their value channels, for a call's tokens and states along K; 0: there is none. */
static unsigned part_entry(const linear_call *l, int *values) {
  const image_manifest *m = l->c.info;
  const int tokens = l->p.tokens, type = l->p.first.type;
  unsigned i = 0;
  if (type == LUATTN_STATE_F32)
    return *values = LINEAR_PART_VALUES, tokens == 1 ? entry_of(m, LUATTN_ROLE_LINEAR_PART) : 0;
  if (type == LUATTN_STATE_BF16 && tokens > 1 && tokens <= LINEAR_TOKENS_MORE)
    i = entry_of(m, tokens <= LINEAR_TOKENS_FEW ? LUATTN_ROLE_LINEAR_TOKENS : LUATTN_ROLE_LINEAR_TOKENS_MORE);
  *values = i > 0 ? LINEAR_TOKENS_VALUES : LINEAR_PART_HALF_VALUES;
  return i == 0 && tokens == 1 ? entry_of(m, LUATTN_ROLE_LINEAR_PART_HALF) : i;
}

/* Whether a call of few tokens, whose states are along K, is of such an entry. */
static bool takes_part(linear_call *l) {
  const image_manifest *m = l->c.info;
  int values;
  const unsigned i = part_entry(l, &values);
  const int64_t blocks = (int64_t)l->p.entries * l->p.heads_v * (((int)m->head_dim_v + values - 1) / values);
  if (i == 0 || m->packed || l->p.first.key != 1 || l->p.last.key != 1 || blocks > INT32_MAX) return false;
  l->walk = (linear_walk){.entry = i,
                          .threads = m->entry[i].threads,
                          .shared_bytes = m->entry[i].shared_bytes,
                          .grid = {(unsigned)blocks, 1, 1}};
  return true;
}

/* A call of few tokens of many states is of luattn_linear_step, where the image has it, and its memory suffices. Its blocks each
 * take a part of a state after another. */
static void choose_step(linear_call *l) {
  const image_manifest *m = l->c.info;
  const manifest_entry *e = &m->entry[m->num_entries - 1];
  const manifest_linear *of = &m->linear_facts[0];
  LuattnLinearParams *p = &l->p;
  const int values = e->tile_n > 0 ? (int)e->tile_n : 1, v_dim = (int)m->head_dim_v;
  const int64_t heads = (int64_t)p->entries * p->heads_v, parts = heads * ((v_dim + values - 1) / values);
  if (of->ring > 0 || !takes_step(l, parts) || takes_part(l)) return;
  const int size = linear_state_bytes(p->first.type), by_v = p->first.key != 1,
            line = linear_step_pitch((by_v ? values : (int)m->head_dim) * size, by_v);
  LuattnLinearStep s = {.by_v = by_v};
  s.stage = (line * (by_v ? (int)m->head_dim : values) + 127) / 128 * 128;
  /* Whole heads, where memory suffices for rows of all of an entry's tokens; else parts, and rows of a few tokens. */
  for (s.whole = !m->packed; s.whole >= 0; s.whole--) {
    s.slots = s.whole ? 2 : LINEAR_STEP_SLOTS;
    s.batch = s.whole || p->tokens < STEP_BATCH ? p->tokens : STEP_BATCH;
    s.slot = 4 * s.batch * (int)of->numbers_kept;
    s.stages = ((int)e->shared_bytes - step_rows(&s)) / s.stage;
    if (s.stages >= 2) break;
  }
  if (s.stages < 2) return;
  if (s.stages > LINEAR_STEP_STAGES) s.stages = LINEAR_STEP_STAGES;
  const int64_t at_once = 2 * (int64_t)l->c.multiprocessors, turns = s.whole ? heads : parts;
  p->step = s;
  l->walk = (linear_walk){.entry = m->num_entries - 1,
                          .threads = e->threads,
                          .shared_bytes = (unsigned)(step_rows(&s) + s.stages * s.stage),
                          .grid = {(unsigned)(turns < at_once ? turns : at_once), 1, 1}};
}

/* ---- the whole ---- */

luattn_status linear_args_fill(const luattn_kernel *kernel, const luattn_linear_args *args, bool shapes_only,
                               linear_call *l, luattn_error *err) {
  const image_manifest *m = &kernel->info;
  *l = (linear_call){.args = args,
                     .shared = {.inputs = args->inputs,
                                .num_inputs = args->num_inputs,
                                .scalars = args->scalars,
                                .num_scalars = args->num_scalars,
                                .scalar_grads = args->scalar_grads}};
  l->c = args_call_of(kernel, &l->shared, shapes_only, err);
  const args_call *c = &l->c;
  const int k_dim = (int)m->head_dim, v_dim = (int)m->head_dim_v;
  LuattnLinearParams *p = &l->p;
  if (!m->linear) return args_fail(c, "the kernel is of attention; give it to luattn_launch");
  TRY(fill_sizes(l));
  TRY(fill_tokens(l, "q", args->q, QK_AXES, p->heads, k_dim, false, &p->rows.from[0]));
  TRY(fill_tokens(l, "k", args->k, QK_AXES, p->heads, k_dim, false, &p->rows.from[1]));
  TRY(fill_tokens(l, "v", args->v, V_AXES, p->heads_v, v_dim, false, &p->rows.from[2]));
  if (m->pass == LUATTN_BACKWARD)
    TRY(fill_gradients(l));
  else if (!shapes_only)
    TRY(fill_tokens(l, "o", args->o, V_AXES, p->heads_v, v_dim, true, &p->o));
  TRY(fill_entries(l));
  if (!isfinite(args->scale)) return args_fail(c, "scale: is %g, expected a finite number", args->scale);
  const double scale = args->scale != 0 ? args->scale : m->linear_facts[0].scale;
  p->wide_scale = scale != 0 ? scale : 1 / sqrt((double)k_dim);
  p->scale = (float)p->wide_scale;
  if (!shapes_only) TRY(fill_states(l));
  if (!shapes_only) TRY(fill_ring(l));
  if (!shapes_only) choose_walk(l);
  if (!shapes_only) choose_step(l);
  LuattnParams shared = {.shape = {.batch = p->entries, .heads = p->heads}};
  const input_axes axes = {
      .entries = p->entries, .tokens = p->tokens, .heads_v = p->heads_v, .is_packed = m->packed != 0};
  l->c.linear = &axes;
  luattn_status status = args_inputs(&l->c, &shared);
  if (status == LUATTN_OK) status = args_scalars(&l->c, &shared);
  l->c.linear = NULL;
  p->inputs = shared.inputs;
  return status == LUATTN_OK ? linear_place_passes(l, NULL) : status;
}

enum { MOST_ITEMS = 17 + 2 * MANIFEST_MAX_INPUTS };

static int items_of_forward(const linear_call *l, overlap_item *items) {
  const luattn_linear_args *a = l->args;
  const overlap_item of[] = {{"o", a->o, true},
                             {"final_state", a->final_state, true},
                             {"intermediate_states", a->intermediate_states, true},
                             {"initial_state", is_in_place(l) ? NULL : a->initial_state, false},
                             {"ring_k", a->ring_k, true},
                             {"ring_u", a->ring_u, true},
                             {"ring_decays", a->ring_decays, true},
                             {"ring_e", a->ring_e, true},
                             {"ring_y", a->ring_y, true},
                             {"ring_used", a->ring_used, false}};
  memcpy(items, of, sizeof of);
  return (int)(sizeof of / sizeof *of);
}

static int items_of_backward(const linear_call *l, overlap_item *items) {
  const luattn_linear_args *a = l->args;
  const overlap_item of[] = {{"dq", a->dq, true},
                             {"dk", a->dk, true},
                             {"dv", a->dv, true},
                             {"dinitial_state", a->dinitial_state, true},
                             {"initial_state", a->initial_state, false},
                             {"dout", a->dout, false},
                             {"dfinal_state", a->dfinal_state, false},
                             {"scalar_grads", a->scalar_grads, true}};
  int n = (int)(sizeof of / sizeof *of);
  memcpy(items, of, sizeof of);
  for (size_t i = 0; i < a->num_inputs && i < MANIFEST_MAX_INPUTS; i++)
    if (a->inputs[i].grad != NULL) items[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].grad, true};
  return n;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static luattn_status refuse_overlap(const linear_call *l) {
  const luattn_linear_args *a = l->args;
  overlap_item items[MOST_ITEMS];
  const bool is_backward = l->c.info->pass == LUATTN_BACKWARD;
  int n = is_backward ? items_of_backward(l, items) : items_of_forward(l, items);
  int64_t bytes[2] = {(int64_t)least(a->kept_size, l->kept_size), (int64_t)least(a->workspace_size, l->workspace)};
  const DLTensor memory = {.ndim = 1, .dtype = {kDLUInt, 8, 1}};
  DLTensor kept = memory, workspace = memory;
  kept.data = a->kept, kept.shape = &bytes[0];
  workspace.data = a->workspace, workspace.shape = &bytes[1];
  const overlap_item both[] = {{"kept", &kept, !is_backward},
                               {"workspace", &workspace, true},
                               {"q", a->q, false},
                               {"k", a->k, false},
                               {"v", a->v, false},
                               {"cu_seqlens", a->cu_seqlens, false},
                               {"state_indices", a->state_indices, false}};
  overlap_pair pair;
  char text[400];
  for (size_t i = 0; i < sizeof both / sizeof *both; i++) items[n++] = both[i];
  for (size_t i = 0; i < a->num_inputs && i < MANIFEST_MAX_INPUTS; i++)
    items[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
  if (!overlap_find_among(items, n, &pair)) return LUATTN_OK;
  overlap_text(&pair, text, sizeof text);
  return args_fail(&l->c, "%s", text);
}

/* ---- LUATTN_CHECK ---- */

static luattn_status check_ends(const linear_call *l, const int32_t *at) {
  for (int i = 0; i <= l->p.entries; i++) {
    const int32_t least = i > 0 ? at[i - 1] : 0;
    if (at[i] < least || at[i] > l->p.tokens)
      return args_fail(&l->c, "cu_seqlens: number %d is %d, expected %d to %d, the rows of q", i, (int)at[i],
                       (int)least, l->p.tokens);
  }
  return LUATTN_OK;
}

static luattn_status check_rows(const linear_call *l, const int32_t *row) {
  const int64_t rows = l->pool_rows;
  const bool writes = l->p.last.data != NULL || l->dfirst.data != NULL;
  char *seen = calloc((size_t)rows + 1, 1);
  luattn_status status = LUATTN_OK;
  if (seen == NULL) return luattn_fail(l->c.err, LUATTN_NO_MEMORY, "LUATTN_CHECK: out of memory");
  for (int i = 0; i < l->p.entries && status == LUATTN_OK; i++) {
    if (row[i] < -1 || row[i] >= rows)
      status = args_fail(&l->c,
                         "state_indices: number %d is %d, and the pool has %" PRId64
                         " rows; expected -1 for no state, or a row",
                         i, (int)row[i], rows);
    else if (row[i] >= 0 && writes && seen[row[i]]++)
      status = args_fail(&l->c,
                         "state_indices: two entries have row %d, whose state is written; give each entry a row of "
                         "its own",
                         (int)row[i]);
  }
  free(seen);
  return status;
}

static luattn_status check_list(const luattn_kernel *k, const linear_call *l, void *stream, const char *name,
                                const DLTensor *t, luattn_status (*check)(const linear_call *, const int32_t *)) {
  DLTensor copy;
  void *memory;
  if (t == NULL) return LUATTN_OK;
  TRY(fetch_tensor(k->driver, k->device, stream, t, name, &copy, &memory, l->c.err));
  const luattn_status status = memory != NULL ? check(l, memory) : LUATTN_OK;
  free(memory);
  return status;
}

/* Backward whose kernels take nothing leaves what is given alone. */
static luattn_status check_kept(const linear_call *l) {
  const luattn_linear_args *a = l->args;
  if (a->kept == NULL || (l->kept_size == 0 && l->c.info->pass == LUATTN_BACKWARD)) return LUATTN_OK;
  if (l->kept_size == 0 && a->kept_size > 0)
    return args_fail(&l->c, "kept: has %zu bytes, and this kernel keeps nothing for backward; leave it NULL",
                     a->kept_size);
  if (a->kept_size != l->kept_size)
    return args_fail(&l->c, "kept: has %zu bytes, expected %zu; give as many as luattn_linear_kept_size says",
                     a->kept_size, l->kept_size);
  if ((uintptr_t)a->kept % 16 != 0) return args_fail(&l->c, "kept: is not a multiple of 16 bytes");
  return LUATTN_OK;
}

luattn_status linear_args_check(const luattn_kernel *kernel, linear_call *l, void *stream) {
  const luattn_linear_args *a = l->args;
  TRY(refuse_overlap(l));
  TRY(check_kept(l));
  TRY(check_list(kernel, l, stream, "cu_seqlens", a->cu_seqlens, check_ends));
  TRY(check_list(kernel, l, stream, "state_indices", a->state_indices, check_rows));
  if (l->workspace == 0) return LUATTN_OK;
  if (a->workspace == NULL || a->workspace_size < l->workspace)
    return args_fail(&l->c, "workspace: has %zu bytes, expected %zu; give as many as luattn_linear_workspace_size says",
                     a->workspace != NULL ? a->workspace_size : 0, l->workspace);
  if ((uintptr_t)a->workspace % 16 != 0) return args_fail(&l->c, "workspace: is not a multiple of 16 bytes");
  return linear_place_passes(l, a->workspace);
}
