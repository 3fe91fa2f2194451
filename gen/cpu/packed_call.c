#include "gen/cpu/packed_call.h"

#include <math.h>
#include <string.h>

#include "common/call/batch.h"
#include "common/call/packed_axis.h"
#include "gen/analysis/specs/large_scores.h"
#include "gen/cpu/cpu.h"

/* ---- one sequence's tensors ---- */

typedef struct part {
  DLTensor t;
  int64_t shape[4], strides[4];
} part;

static void strides_of(const DLTensor *whole, int64_t strides[4]) {
  int64_t next = 1;
  for (int i = whole->ndim - 1; i >= 0; i--) {
    strides[i] = whole->strides != NULL ? whole->strides[i] : next;
    next *= whole->shape[i];
  }
}

/* Axis 0 becomes the batch's, of one entry; `position` and `head` are the axes of the packed tensor. */
static void take_part(const DLTensor *whole, int position, int head, int first, int rows, part *out) {
  int64_t strides[4];
  strides_of(whole, strides);
  const int last = whole->ndim - 1;
  const bool has_width = position != last && head != last;
  *out = (part){.t = *whole};
  out->shape[0] = 1, out->strides[0] = 0;
  out->shape[1] = whole->shape[head], out->strides[1] = strides[head];
  out->shape[2] = rows, out->strides[2] = strides[position];
  if (has_width) out->shape[3] = whole->shape[last], out->strides[3] = strides[last];
  out->t.ndim = has_width ? 4 : 3;
  out->t.byte_offset += (uint64_t)((int64_t)first * strides[position] * (whole->dtype.bits / 8));
}

static const DLTensor *take_rows(const DLTensor *whole, int first, int rows, part *out) {
  if (whole == NULL) return NULL;
  take_part(whole, 0, 1, first, rows, out);
  out->t.shape = out->shape, out->t.strides = out->strides;
  return &out->t;
}

/* lse [heads, total], saved [num_saved, heads, total]. */
static const DLTensor *take_numbers(const DLTensor *whole, int first, int rows, part *out) {
  if (whole == NULL) return NULL;
  if (whole->ndim == 2) {
    take_part(whole, 1, 0, first, rows, out);
  } else {
    const int64_t heads = whole->shape[1], total = whole->shape[2];
    *out = (part){.t = *whole, .shape = {whole->shape[0], 1, heads, rows}, .strides = {heads * total, 0, total, 1}};
    out->t.ndim = 4;
    out->t.byte_offset += (uint64_t)first * (whole->dtype.bits / 8u);
  }
  out->t.shape = out->shape, out->t.strides = out->strides;
  return &out->t;
}

/* Leaves one sequence's offsets in a copy of the batch. */
static void take_entry(luattn_batch *batch, int entry) {
  for (int i = 0; i < BATCH_ARRAYS; i++) {
    batch_array *array = &batch->array[i];
    if (!array->is_given) continue;
    array->is_given = i < BATCH_CU_SEQLENS_Q;
    array->given.byte_offset += (uint64_t)entry * sizeof(int32_t);
    array->count = 1;
  }
}

/* The chunks of one sequence's rows, of which `first` of the tensor is the first (common/call/packed_chunks.h). */
static void take_chunks(const luattn_batch *whole, int side, int entries, int entry, int first, int rows,
                        luattn_batch *out) {
  const batch_array *from = &whole->array[BATCH_Q_CHUNKS + side];
  batch_array *to = &out->array[BATCH_Q_CHUNKS + side];
  if (whole->chunk_memory[side] == NULL) return;
  *to = *from;
  to->given.byte_offset += (uint64_t)(entries + first / whole->chunk_rows) * sizeof(int32_t);
  to->count = (rows + whole->chunk_rows - 1) / whole->chunk_rows;
  out->offset[side].whole = batch_whole_length(whole, side, entry);
  out->chunk_memory[side] = NULL;
}

/* One entry of a tensor whose axis `axis` is the batch. */
static const DLTensor *take_dense(const DLTensor *whole, int axis, int entry, part *out) {
  if (whole == NULL) return NULL;
  *out = (part){.t = *whole};
  memcpy(out->shape, whole->shape, (size_t)whole->ndim * sizeof *out->shape);
  strides_of(whole, out->strides);
  out->shape[axis] = 1;
  out->t.byte_offset += (uint64_t)((int64_t)entry * out->strides[axis] * (whole->dtype.bits / 8));
  out->t.shape = out->shape, out->t.strides = out->strides;
  return &out->t;
}

static luattn_status check_lengths(luattn_batch *batch, const luattn_args *args, luattn_error *err) {
  const bool packed = batch_is_packed(batch), paged = batch_is_paged(batch);
  const int64_t total[] = {args->q->shape[0], args->k->shape[0]};
  TRY(batch_read_lengths(batch, "cpu", err));
  for (int i = 0; i < 2; i++)
    if (packed && !(i == 1 && paged) && batch->lengths[i].total > total[i])
      return luattn_fail(err, LUATTN_INVALID,
                         "cpu: %s: ends with %lld, and there are %lld rows; give the rows of all sequences, or offsets "
                         "that end with them",
                         batch->array[BATCH_CU_SEQLENS_Q + i].name, (long long)batch->lengths[i].total,
                         (long long)total[i]);
  return LUATTN_OK;
}

/* ---- all sequences ---- */

typedef struct packed_call {
  const luattn_spec *spec;
  const luattn_args *args;
  const luattn_tangents *tangents; /* NULL: of another pass */
  luattn_batch batch;              /* as its arrays are now: they may have changed since it was opened */
  int entries;
  bool is_forward;
  bool packed, paged; /* q is; k and v are */
  batch_pages pages;  /* if paged */
  char *gathered[2];  /* room for an entry's keys and values, side by side: [heads_kv, length, width] */
} packed_call;

static int64_t row_bytes(const DLTensor *t) { return t->shape[3] * (t->dtype.bits / 8); }

/* Opens k and v in pages, and checks their numbers. */
static luattn_status open_pages(arena *a, packed_call *c, luattn_error *err) {
  const luattn_args *args = c->args;
  const batch_array *used = &c->batch.array[BATCH_SEQUSED_K], *table = &c->batch.array[BATCH_BLOCK_TABLE];
  int64_t most = 0;
  char wrong[300];
  c->pages =
      (batch_pages){.entries = used->count,
                    .num_pages = args->k->shape[0],
                    .page_size = args->k->shape[2],
                    .longest = batch_longest_paged(&c->batch, args->k->shape[2]),
                    .used = (const int32_t *)(const void *)((const char *)used->given.data + used->given.byte_offset)};
  if (table->is_given)
    c->pages.table = (const int32_t *)(const void *)((const char *)table->given.data + table->given.byte_offset);
  if (!batch_pages_ok(&c->pages, &c->batch, wrong, sizeof wrong))
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s", wrong);
  for (int64_t b = 0; b < used->count; b++) most = c->pages.used[b] > most ? c->pages.used[b] : most;
  for (int i = 0; i < 2; i++) {
    const DLTensor *t = i == 0 ? args->k : args->v;
    c->gathered[i] = arena_array(a, (size_t)(most * t->shape[1]) + 1, (size_t)row_bytes(t));
    if (c->gathered[i] == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  }
  return LUATTN_OK;
}

static luattn_status open_call(arena *a, const luattn_spec *spec, const luattn_args *args, bool is_forward,
                               packed_call *out, luattn_error *err) {
  *out = (packed_call){.spec = spec,
                       .args = args,
                       .is_forward = is_forward,
                       .batch = *args->batch,
                       .packed = batch_is_packed(args->batch),
                       .paged = batch_is_paged(args->batch)};
  const luattn_batch *batch = &out->batch;
  out->entries = (int)(out->packed ? batch->array[BATCH_CU_SEQLENS_Q].count - 1 : batch->array[BATCH_SEQUSED_K].count);
  TRY(check_lengths(&out->batch, args, err));
  for (int i = 0; i < spec->traced.num_inputs; i++) cpu_warn_of_ints(spec, i, INT_RANGE_SPEC, args, err);
  return out->paged ? open_pages(a, out, err) : LUATTN_OK;
}

/* Copies an entry's rows of k (0) or v (1) from their pages. */
static const DLTensor *gather(const packed_call *c, int which, int entry, int rows, part *out) {
  const DLTensor *whole = which == 0 ? c->args->k : c->args->v;
  const int64_t bytes = row_bytes(whole), elem = whole->dtype.bits / 8;
  char *to = c->gathered[which];
  int64_t strides[4];
  strides_of(whole, strides);
  for (int64_t h = 0; h < whole->shape[1]; h++)
    for (int64_t i = 0; i < rows; i++, to += bytes) {
      const int64_t page = batch_page_of(&c->pages, &c->batch, entry, i), row = i % c->pages.page_size;
      const char *from = (const char *)whole->data + whole->byte_offset;
      from += (page * strides[0] + h * strides[1] + row * strides[2]) * elem;
      memcpy(to, from, (size_t)bytes);
    }
  *out = (part){.t = *whole, .shape = {1, whole->shape[1], rows, whole->shape[3]}};
  out->t.data = c->gathered[which], out->t.byte_offset = 0;
  out->t.shape = out->shape, out->t.strides = NULL;
  return &out->t;
}

enum { MAX_INPUTS = sizeof((traced_spec *)0)->input / sizeof(luattn_input_info) };

/* The arguments of one sequence, which point into this very object. */
typedef struct entry_args {
  luattn_args args;
  bool packed, paged; /* as in packed_call */
  luattn_batch batch;
  int first_q, first_kv, q_len, kv_len;
  part parts[11], input_parts[MAX_INPUTS];
  luattn_input inputs[MAX_INPUTS];
  luattn_tangents tangents;
  part tangent_parts[10], input_tangent_parts[MAX_INPUTS];
  luattn_input input_tangents[MAX_INPUTS];
} entry_args;

static const luattn_input_info *info_of(const traced_spec *t, const char *name) {
  int i = 0;
  while (strcmp(t->input[i].name, name) != 0) i++; /* the arguments have been checked */
  return &t->input[i];
}

/* Cuts axes q and kv of an input, or of its gradient, to the sequence's positions; returns the first position on the
 * packed axis, or 0. */
static int cut_axes(const luattn_input_info *in, const entry_args *one, int64_t shape[4]) {
  const int packed = packed_axis_of(in, one->packed, one->paged);
  for (uint32_t a = 0; a < in->num_axes; a++)
    if (in->axis[a] == LUATTN_AXIS_Q || in->axis[a] == LUATTN_AXIS_KV)
      shape[a] = in->axis[a] == LUATTN_AXIS_Q ? one->q_len : one->kv_len;
  return packed < 0 ? 0 : in->axis[packed] == LUATTN_AXIS_Q ? one->first_q : one->first_kv;
}

static void take_inputs(const traced_spec *t, const luattn_input *whole, size_t count, const entry_args *one,
                        part *parts, luattn_input *inputs) {
  for (size_t i = 0; i < count; i++) {
    const luattn_input_info *in = info_of(t, whole[i].name);
    part *out = &parts[i];
    const DLTensor *from = whole[i].tensor;
    inputs[i] = whole[i];
    inputs[i].grad = NULL;                             /* backward has a place for it (sum_shape) */
    if (from == NULL || packed_axis(in) < 0) continue; /* it has neither q nor kv */
    const int packed = packed_axis_of(in, one->packed, one->paged);
    *out = (part){.t = *from};
    memcpy(out->shape, from->shape, (size_t)from->ndim * sizeof *out->shape);
    strides_of(from, out->strides);
    const int64_t first = cut_axes(in, one, out->shape);
    if (packed >= 0) out->t.byte_offset += (uint64_t)(first * out->strides[packed] * ((from->dtype.bits + 7) / 8));
    out->t.shape = out->shape, out->t.strides = out->strides;
    inputs[i].tensor = &out->t;
  }
}

static bool saves_rows(const packed_call *c) {
  return c->spec->derived.num_saved > 0 || (c->args->large_scores != 0 && large_scores_count(c->spec) > 0);
}

static void take_tangents(const packed_call *c, entry_args *out) {
  const luattn_tangents *t = c->tangents;
  luattn_tangents *one = &out->tangents;
  part *p = out->tangent_parts;
  *one = *t;
  one->q = take_rows(t->q, out->first_q, out->q_len, &p[0]);
  one->k = take_rows(t->k, out->first_kv, out->kv_len, &p[1]);
  one->v = take_rows(t->v, out->first_kv, out->kv_len, &p[2]);
  one->o = take_rows(t->o, out->first_q, out->q_len, &p[3]);
  one->lse = take_numbers(t->lse, out->first_q, out->q_len, &p[4]);
  take_inputs(&c->spec->traced, t->inputs, t->num_inputs, out, out->input_tangent_parts, out->input_tangents);
  one->inputs = out->input_tangents;
  one->dout = take_rows(t->dout, out->first_q, out->q_len, &p[5]);
  one->dlse = take_numbers(t->dlse, out->first_q, out->q_len, &p[6]);
  one->dq = take_rows(t->dq, out->first_q, out->q_len, &p[7]);
  one->dk = take_rows(t->dk, out->first_kv, out->kv_len, &p[8]);
  one->dv = take_rows(t->dv, out->first_kv, out->kv_len, &p[9]);
}

static void take_args(const packed_call *c, int entry, entry_args *out) {
  const luattn_args *a = c->args;
  const batch_array *cu = &c->batch.array[BATCH_CU_SEQLENS_Q];
  const int q = c->packed ? batch_at(&cu[0], entry) : 0, k = c->paged ? 0 : batch_at(&cu[1], entry);
  const int q_len = c->packed ? batch_used(&c->batch, 0, entry, batch_at(&cu[0], entry + 1) - q) : (int)a->q->shape[2],
            kv_len = batch_used(&c->batch, 1, entry, c->paged ? 0 : batch_at(&cu[1], entry + 1) - k);
  part *p = out->parts;
  luattn_args *one = &out->args;
  out->args = *a, out->batch = c->batch;
  out->packed = c->packed, out->paged = c->paged;
  out->first_q = q, out->first_kv = k, out->q_len = q_len, out->kv_len = kv_len;
  take_inputs(&c->spec->traced, a->inputs, a->num_inputs, out, out->input_parts, out->inputs);
  one->inputs = out->inputs;
  if (c->tangents != NULL) take_tangents(c, out);
  take_entry(&out->batch, entry);
  take_chunks(&c->batch, 0, c->entries, entry, q, q_len, &out->batch);
  take_chunks(&c->batch, 1, c->entries, entry, k, kv_len, &out->batch);
  one->batch = batch_offsets(&out->batch) != LUATTN_OFFSET_NONE ? &out->batch : NULL;
  one->q = c->packed ? take_rows(a->q, q, q_len, &p[0]) : take_dense(a->q, 0, entry, &p[0]);
  one->k = c->paged ? gather(c, 0, entry, kv_len, &p[1]) : take_rows(a->k, k, kv_len, &p[1]);
  one->v = c->paged ? gather(c, 1, entry, kv_len, &p[2]) : take_rows(a->v, k, kv_len, &p[2]);
  one->o = c->packed ? take_rows(a->o, q, q_len, &p[3]) : take_dense(a->o, 0, entry, &p[3]);
  one->lse = c->packed ? take_numbers(a->lse, q, q_len, &p[4]) : take_dense(a->lse, 0, entry, &p[4]);
  if (saves_rows(c))
    one->saved = c->packed ? take_numbers(a->saved, q, q_len, &p[5]) : take_dense(a->saved, 1, entry, &p[5]);
  else
    one->saved = NULL;
  one->dout = one->dlse = one->dq = one->dk = one->dv = NULL;
  if (c->is_forward) return; /* which does not read them, so that nothing has checked them */
  one->dout = take_rows(a->dout, q, q_len, &p[6]);
  one->dlse = take_numbers(a->dlse, q, q_len, &p[7]);
  one->dq = take_rows(a->dq, q, q_len, &p[8]);
  one->dk = take_rows(a->dk, k, kv_len, &p[9]);
  one->dv = take_rows(a->dv, k, kv_len, &p[10]);
}

/* ---- rows of no sequence ---- */

/* Writes `value` to rows [first, end) of axis `axis`. */
static void set_rows(const cpu_view *to, int axis, int64_t first, int64_t end, double value) {
  int64_t count = end - first;
  for (int i = 0; i < to->ndim; i++) count *= i == axis ? 1 : to->shape[i];
  for (int64_t at = 0; at < count; at++) {
    int64_t index[4], rest = at;
    for (int i = to->ndim - 1; i >= 0; i--) {
      const int64_t size = i == axis ? end - first : to->shape[i];
      index[i] = rest % size + (i == axis ? first : 0), rest /= size;
    }
    view_set(to, index, value);
  }
}

/* Writes `value` to the rows of a packed output that no sequence has: behind the used ones, and behind the last
 * sequence. `axis` is that of the rows of queries (side 0) or keys (1). */
static luattn_status set_padding(const packed_call *c, const char *name, const DLTensor *t, int side, int axis,
                                 double value, luattn_error *err) {
  const batch_array *cu = &c->batch.array[BATCH_CU_SEQLENS_Q + side];
  cpu_view to;
  if (t == NULL || t->data == NULL) return LUATTN_OK;
  view_rule rule = {.name = name, .axes = "packed rows", .ndim = t->ndim, .shape = {-1, -1, -1, -1}, .is_output = true};
  TRY(view_open(&rule, t, &to, err));
  for (int b = 0; b < c->entries; b++) {
    const int first = batch_at(cu, b), end = batch_at(cu, b + 1);
    set_rows(&to, axis, first + batch_used(&c->batch, side, b, end - first), end, value);
  }
  set_rows(&to, axis, batch_at(cu, c->entries), to.shape[axis], value);
  return LUATTN_OK;
}

static luattn_status forward_padding(const packed_call *c, luattn_error *err) {
  const luattn_args *a = c->args;
  if (!c->packed) return LUATTN_OK;
  TRY(set_padding(c, "o", a->o, 0, 0, 0, err));
  TRY(set_padding(c, "lse", a->lse, 0, 1, -INFINITY, err));
  if (c->tangents != NULL) {
    TRY(set_padding(c, "tangents.o", c->tangents->o, 0, 0, 0, err));
    TRY(set_padding(c, "tangents.lse", c->tangents->lse, 0, 1, 0, err));
  }
  return saves_rows(c) ? set_padding(c, "saved", a->saved, 0, 2, 0, err) : LUATTN_OK;
}

static luattn_status backward_padding(const packed_call *c, luattn_error *err) {
  const luattn_args *a = c->args;
  const luattn_tangents *t = c->tangents;
  TRY(set_padding(c, "dq", t != NULL ? t->dq : a->dq, 0, 0, 0, err));
  TRY(set_padding(c, "dk", t != NULL ? t->dk : a->dk, 1, 0, 0, err));
  return set_padding(c, "dv", t != NULL ? t->dv : a->dv, 1, 0, 0, err);
}

static luattn_status forward_within(arena *a, const luattn_spec *spec, const luattn_args *args,
                                    const luattn_tangents *tangents, luattn_error *err) {
  packed_call c;
  entry_args one;
  TRY(open_call(a, spec, args, true, &c, err));
  c.tangents = tangents;
  for (int i = 0; i < c.entries; i++) {
    take_args(&c, i, &one);
    if (one.q_len > 0)
      TRY(tangents != NULL ? cpu_forward_jvp_entry(spec, &one.args, &one.tangents, i, c.entries, err)
                           : cpu_forward_entry(spec, &one.args, i, c.entries, err));
  }
  return forward_padding(&c, err);
}

static luattn_status packed_forward(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                    luattn_error *err) {
  arena *a = arena_open(arena_allocator(spec->a));
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  const luattn_status status = forward_within(a, spec, args, tangents, err);
  arena_close(a);
  return status;
}

luattn_status cpu_packed_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return packed_forward(spec, args, NULL, err);
}

luattn_status cpu_packed_forward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                     luattn_error *err) {
  return packed_forward(spec, args, tangents, err);
}

/* ---- weights ---- */

static luattn_status clear_weights(const DLTensor *weights, luattn_error *err) {
  cpu_view to;
  view_rule rule = {.name = "weights", .axes = "batch, heads, q_len, kv_len", .ndim = 4, .is_output = true};
  for (int i = 0; i < 4; i++) rule.shape[i] = weights->shape[i];
  TRY(view_open(&rule, weights, &to, err));
  const int64_t *n = rule.shape;
  for (int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; i++)
    view_set(&to, (int64_t[]){i / n[3] / n[2] / n[1], i / n[3] / n[2] % n[1], i / n[3] % n[2], i % n[3]}, 0);
  return LUATTN_OK;
}

static luattn_status weights_within(arena *a, const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                    luattn_error *err) {
  packed_call c;
  entry_args one;
  part to;
  TRY(open_call(a, spec, args, true, &c, err));
  TRY(clear_weights(weights, err));
  for (int i = 0; i < c.entries; i++) {
    take_args(&c, i, &one);
    (void)take_dense(weights, 0, i, &to);
    to.shape[2] = one.q_len, to.shape[3] = one.kv_len;
    if (one.q_len > 0) TRY(cpu_weights_entry(spec, &one.args, i, c.entries, &to.t, err));
  }
  return LUATTN_OK;
}

luattn_status cpu_packed_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                 luattn_error *err) {
  arena *a = arena_open(arena_allocator(spec->a));
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  const luattn_status status = weights_within(a, spec, args, weights, err);
  arena_close(a);
  return status;
}

/* ---- gradients of inputs and scalars ---- */

/* A gradient, of one sequence and of all so far. */
typedef struct sum {
  const DLTensor *to; /* the caller's; NULL: not wanted */
  DLTensor one;       /* contiguous float64 */
  int64_t shape[4];   /* of `one` */
  int64_t count;
  double *all;
} sum;

static luattn_status sum_open(arena *a, const DLTensor *to, sum *out, luattn_error *err) {
  *out = (sum){.to = to != NULL && to->data != NULL ? to : NULL};
  if (out->to == NULL) return LUATTN_OK;
  out->count = 1;
  for (int i = 0; i < to->ndim; i++) out->count *= to->shape[i];
  out->one = *to;
  out->one.dtype = (DLDataType){kDLFloat, 64, 1};
  out->one.strides = NULL, out->one.byte_offset = 0;
  out->one.data = arena_array(a, (size_t)out->count + 1, sizeof(double));
  out->all = arena_array(a, (size_t)out->count + 1, sizeof(double));
  return out->one.data != NULL && out->all != NULL ? LUATTN_OK
                                                   : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

/* Makes room for one sequence's gradient of an input; in NULL: of the scalars. */
static void sum_shape(sum *s, const luattn_input_info *in, const entry_args *one) {
  if (s->to == NULL) return;
  memcpy(s->shape, s->to->shape, (size_t)s->to->ndim * sizeof *s->shape);
  if (in != NULL) (void)cut_axes(in, one, s->shape);
  s->one.shape = s->shape;
}

static void sum_add(sum *s, const luattn_input_info *in, const entry_args *one) {
  int64_t ignored[4], count = 1;
  if (s->to == NULL) return;
  const int packed = in != NULL ? packed_axis_of(in, one->packed, one->paged) : -1,
            first = in != NULL ? cut_axes(in, one, ignored) : 0;
  for (int j = 0; j < s->to->ndim; j++) count *= s->shape[j];
  for (int64_t at = 0; at < count; at++) {
    int64_t rest = at, to = 0, stride = 1;
    for (int j = s->to->ndim - 1; j >= 0; j--) {
      to += (rest % s->shape[j] + (j == packed ? first : 0)) * stride;
      rest /= s->shape[j], stride *= s->to->shape[j];
    }
    s->all[to] += ((const double *)s->one.data)[at];
  }
}

static luattn_status sum_write(const sum *s, luattn_error *err) {
  cpu_view to;
  if (s->to == NULL) return LUATTN_OK;
  view_rule rule = {.name = "grads", .axes = "as the input", .ndim = s->to->ndim, .is_output = true};
  for (int i = 0; i < s->to->ndim; i++) rule.shape[i] = s->to->shape[i];
  TRY(view_open(&rule, s->to, &to, err));
  for (int64_t at = 0; at < s->count; at++) {
    int64_t index[4], rest = at;
    for (int j = to.ndim - 1; j >= 0; j--) index[j] = rest % to.shape[j], rest /= to.shape[j];
    view_set(&to, index, s->all[at]);
  }
  return LUATTN_OK;
}

typedef struct sums {
  sum input[MAX_INPUTS], scalars;
} sums;

static luattn_status sums_open(arena *a, const luattn_input *inputs, size_t num_inputs, const DLTensor *scalar_grads,
                               sums *out, luattn_error *err) {
  for (size_t i = 0; i < num_inputs; i++) TRY(sum_open(a, inputs[i].grad, &out->input[i], err));
  return sum_open(a, scalar_grads, &out->scalars, err);
}

/* The inputs of a call that have gradients, and those of one sequence: of backward, or of its tangents. */
typedef struct summed_inputs {
  const luattn_input *whole;
  luattn_input *one;
  size_t count;
  const DLTensor **scalars; /* of one sequence */
} summed_inputs;

static summed_inputs summed_of(const packed_call *c, entry_args *one) {
  const luattn_tangents *t = c->tangents;
  if (t != NULL) return (summed_inputs){t->inputs, one->input_tangents, t->num_inputs, &one->tangents.scalar_grads};
  return (summed_inputs){c->args->inputs, one->inputs, c->args->num_inputs, &one->args.scalar_grads};
}

static luattn_status sequences_backward(const packed_call *c, sums *s, luattn_error *err) {
  entry_args one;
  const summed_inputs of = summed_of(c, &one);
  const traced_spec *t = &c->spec->traced;
  for (int i = 0; i < c->entries; i++) {
    take_args(c, i, &one);
    if (one.q_len == 0 && one.kv_len == 0) continue;
    for (size_t j = 0; j < of.count; j++) {
      sum_shape(&s->input[j], info_of(t, of.whole[j].name), &one);
      of.one[j].grad = s->input[j].to != NULL ? &s->input[j].one : NULL;
    }
    sum_shape(&s->scalars, NULL, &one);
    if (s->scalars.to != NULL) *of.scalars = &s->scalars.one;
    TRY(c->tangents != NULL ? cpu_backward_jvp_entry(c->spec, &one.args, &one.tangents, i, c->entries, err)
                            : cpu_backward_entry(c->spec, &one.args, i, c->entries, err));
    for (size_t j = 0; j < of.count; j++) sum_add(&s->input[j], info_of(t, of.whole[j].name), &one);
    sum_add(&s->scalars, NULL, &one);
  }
  TRY(backward_padding(c, err));
  for (size_t j = 0; j < of.count; j++) TRY(sum_write(&s->input[j], err));
  return sum_write(&s->scalars, err);
}

static luattn_status packed_backward(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *t,
                                     luattn_error *err) {
  packed_call c;
  arena *a = arena_open(arena_allocator(spec->a));
  sums *s = a != NULL ? arena_new(a, sizeof *s) : NULL;
  luattn_status status = LUATTN_NO_MEMORY;
  if (s == NULL)
    (void)luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  else
    status = t != NULL ? sums_open(a, t->inputs, t->num_inputs, t->scalar_grads, s, err)
                       : sums_open(a, args->inputs, args->num_inputs, args->scalar_grads, s, err);
  if (status == LUATTN_OK) status = open_call(a, spec, args, false, &c, err);
  c.tangents = t;
  if (status == LUATTN_OK) status = sequences_backward(&c, s, err);
  arena_close(a);
  return status;
}

luattn_status cpu_packed_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return packed_backward(spec, args, NULL, err);
}

luattn_status cpu_packed_backward_jvp(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                      luattn_error *err) {
  return packed_backward(spec, args, tangents, err);
}
