/* args.c: checks the arguments of a call one after another, and fills the parameters of its kernels. */
#include "runtime/call/args.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/limits.h"
#include "common/call/overlap.h"
#include "luattn/compiler.h"
#include "runtime/call/grid_call.h"
#include "runtime/call/inputs.h"
#include "runtime/call/offsets.h"
#include "runtime/call/packed.h"
#include "runtime/call/paged.h"
#include "runtime/call/sizes.h"
#include "runtime/call/tensor_rule.h"

_Static_assert(CHOICES_MAX_SPLITS == LUATTN_MAX_SPLITS && CHOICES_MAX_INPUTS == LUATTN_MAX_INPUTS &&
                   CHOICES_MAX_SCALARS == LUATTN_MAX_SCALARS,
               "what is accepted is what kernels have room for");

/* Checks the shapes of q, k and v: packed tensors have no batch axis, and positions before heads. In pages, k and v
 * have an axis of pages instead. */
static luattn_status check_axes(const args_call *c) {
  if (c->info->over_grid) return grid_ranks(c);
  const DLTensor *tensor[] = {c->args->q, c->args->k, c->args->v};
  static const char *const name[] = {"q", "k", "v"};
  static const char *const axes[3][3] = {
      {"batch, heads, q_len, head_dim", "batch, heads_kv, kv_len, head_dim", "batch, heads_kv, kv_len, head_dim_v"},
      {"total_q, heads, head_dim", "total_k, heads_kv, head_dim", "total_k, heads_kv, head_dim_v"},
      {"", "num_pages, heads_kv, page_size, head_dim", "num_pages, heads_kv, page_size, head_dim_v"}};
  for (int i = 0; i < 3; ++i) {
    const DLTensor *t = tensor[i];
    const int kind = i > 0 && c->info->paged ? 2 : c->info->packed ? 1 : 0, ndim = kind == 1 ? 3 : 4;
    const int most = kind == 1 ? LUATTN_MAX_TOTAL : INT32_MAX; /* check_heads limits heads far below this */
    if (t == NULL) return args_fail(c, "%s: is missing", name[i]);
    if (t->ndim != ndim || t->shape == NULL)
      return args_fail(c, "%s: has %d axes, expected %d: [%s]", name[i], t->ndim, ndim, axes[kind][i]);
    for (int a = 0; a < ndim - 1; ++a)
      if (t->shape[a] < 0 || t->shape[a] > most)
        return args_fail(c, "%s: axis %d has size %" PRId64 ", expected 0 to %d", name[i], a, t->shape[a], most);
  }
  return LUATTN_OK;
}

static luattn_status check_heads(const args_call *c, LuattnParams *p) {
  const int64_t heads = c->args->q->shape[1], heads_kv = c->args->k->shape[1];
  if (heads == 0 || heads_kv == 0) return args_fail(c, "%s: has no heads, expected at least 1", heads == 0 ? "q" : "k");
  if (heads % heads_kv != 0)
    return args_fail(c,
                     "k: has %" PRId64 " heads, and q's %" PRId64
                     " are no multiple of that; heads must be a multiple of heads_kv",
                     heads_kv, heads);
  if (heads > LUATTN_MAX_HEADS)
    return args_fail(c, "q: has %" PRId64 " heads, expected at most %d; split the call", heads, LUATTN_MAX_HEADS);
  p->shape.heads = (int)heads;
  p->shape.heads_kv = (int)heads_kv;
  p->shape.group = p->shape.heads / p->shape.heads_kv;
  return LUATTN_OK;
}

/* Lengths come from q and k; every other tensor has to agree with them. */
static luattn_status check_lengths(const args_call *c, LuattnParams *p) {
  const int64_t *q = c->args->q->shape, *k = c->args->k->shape, length[] = {q[2], k[2]};
  TRY(sizes_batch(c, "q", q[0]));
  for (int i = 0; i < 2; ++i)
    if (length[i] > c->info->max_len)
      return args_fail(c,
                       "%s: has length %" PRId64 ", but this spec's index arithmetic or grid ends at %" PRId64
                       "; shorten it, or use smaller factors or a larger grid in the spec",
                       i == 0 ? "q" : "k", length[i], c->info->max_len);
  p->shape.batch = (int)q[0];
  p->shape.q_len = (int)q[2];
  p->shape.kv_len = (int)k[2];
  return LUATTN_OK;
}

static luattn_status check_choices(const args_call *c, LuattnParams *p) {
  const double scale = c->args->scale;
  char text[200];
  if (!choices_ok(c->args, c->info->pass == LUATTN_FORWARD, c->info->dtype == LUATTN_F64, text, sizeof text))
    return args_fail(c, "%s", text);
  p->scale = scale != 0 ? scale : 1 / sqrt((double)c->info->head_dim);
  return LUATTN_OK;
}

enum { DIM_BATCH, DIM_HEADS, DIM_HEADS_KV, DIM_Q, DIM_KV, DIM_D, DIM_DV };
typedef enum presence { UNUSED, REQUIRED, OPTIONAL, REFUSED } presence;

/* One row a tensor: its offsets in luattn_args and LuattnParams, its axes, and its use in each pass. */
typedef struct tensor_row {
  const char *name, *axes, *packed_axes;
  size_t from, to;
  int ndim;
  unsigned char dim[4];
  bool out_forward;
  unsigned want; /* gradients: luattn_wants */
} tensor_row;

#define AT(member) offsetof(luattn_args, member), offsetof(LuattnParams, tensors.member)
#define Q_AXES \
  4, { DIM_BATCH, DIM_HEADS, DIM_Q, DIM_D }
#define O_AXES \
  4, { DIM_BATCH, DIM_HEADS, DIM_Q, DIM_DV }
#define K_AXES \
  4, { DIM_BATCH, DIM_HEADS_KV, DIM_KV, DIM_D }
#define V_AXES \
  4, { DIM_BATCH, DIM_HEADS_KV, DIM_KV, DIM_DV }
#define ROW_AXES 3, {DIM_BATCH, DIM_HEADS, DIM_Q, 0}

static const tensor_row rows[] = {
    {"q", "batch, heads, q_len, head_dim", "total_q, heads, head_dim", AT(q), Q_AXES, false, 0},
    {"k", "batch, heads_kv, kv_len, head_dim", "total_k, heads_kv, head_dim", AT(k), K_AXES, false, 0},
    {"v", "batch, heads_kv, kv_len, head_dim_v", "total_k, heads_kv, head_dim_v", AT(v), V_AXES, false, 0},
    {"o", "batch, heads, q_len, head_dim_v", "total_q, heads, head_dim_v", AT(o), O_AXES, true, 0},
    {"lse", "batch, heads, q_len", "heads, total_q", AT(lse), ROW_AXES, true, 0},
    {"dout", "batch, heads, q_len, head_dim_v", "total_q, heads, head_dim_v", AT(dout), O_AXES, false, 0},
    {"dlse", "batch, heads, q_len", "heads, total_q", AT(dlse), ROW_AXES, false, 0},
    {"dq", "batch, heads, q_len, head_dim", "total_q, heads, head_dim", AT(dq), Q_AXES, false, LUATTN_WANT_DQ},
    {"dk", "batch, heads_kv, kv_len, head_dim", "total_k, heads_kv, head_dim", AT(dk), K_AXES, false, LUATTN_WANT_DK},
    {"dv", "batch, heads_kv, kv_len, head_dim_v", "total_k, heads_kv, head_dim_v", AT(dv), V_AXES, false,
     LUATTN_WANT_DV},
};

/* One luattn_args may serve both passes, so forward ignores tensors that only backward reads. */
static presence row_presence(const image_manifest *m, const tensor_row *row) {
  const bool is_forward = m->pass == LUATTN_FORWARD;
  if (row->want != 0) return is_forward ? UNUSED : (m->wants & row->want) != 0 ? REQUIRED : REFUSED;
  if (m->weights && row->out_forward) return UNUSED;
  if (m->tangents && !is_forward && row->out_forward) return OPTIONAL;
  switch (row->to) {
    case offsetof(LuattnParams, tensors.dout):
      return is_forward ? UNUSED : REQUIRED;
    case offsetof(LuattnParams, tensors.dlse):
      return is_forward ? UNUSED : m->has_lse ? OPTIONAL : REFUSED;
    case offsetof(LuattnParams, tensors.lse):
      return !m->has_lse ? REFUSED : is_forward ? OPTIONAL : REQUIRED;
    default:
      return REQUIRED;
  }
}

/* Whether a tensor is float32 beside q, k and v of half types. */
static bool is_float(const image_manifest *m, const tensor_row *row) {
  return row->want != 0 ? m->grad_f32 : row->out_forward && m->out_f32;
}

static luattn_status refuse(const args_call *c, const tensor_row *row) {
  if (row->want != 0)
    return args_fail(c, "%s: this image does not compute it; leave it NULL, or compile with more luattn_wants",
                     row->name);
  return args_fail(c, "%s: the online function of this spec has no lse; leave it NULL", row->name);
}

static luattn_status missing(const args_call *c, const tensor_row *row) {
  if (row->want != 0)
    return args_fail(c, "%s: is missing, but this image computes it; give it, or compile with fewer luattn_wants",
                     row->name);
  return args_fail(c, "%s: is missing; give a tensor [%s]", row->name,
                   c->info->packed ? row->packed_axes : row->axes); /* k and v are never missing here */
}

/* Fills shape and strides of a packed tensor: [positions, heads, width], or [heads, positions] for row
 * numbers. */
static luattn_status fill_packed(const args_call *c, const tensor_row *row, tensor_rule *rule, const DLTensor *t,
                                 LuattnTensor *out) {
  const int64_t heads = rule->shape[1], positions = rule->shape[2], width = rule->shape[3];
  long long stride[4];
  rule->ndim = row->ndim - 1;
  rule->axes = row->packed_axes;
  rule->shape[0] = rule->is_row ? positions : heads;
  rule->shape[1] = rule->is_row ? heads : positions;
  rule->shape[2] = width;
  TRY(args_tensor(c, rule, t, stride, &out->data));
  out->seq = stride[rule->is_row ? 0 : 1];
  out->head = stride[rule->is_row ? 1 : 0];
  return LUATTN_OK;
}

static bool is_of_keys(const tensor_row *row) { return row->dim[2] == DIM_KV; }

/* Numbers of rows lie in the order of places. */
static luattn_status fill_of_grid(const args_call *c, const tensor_row *row, tensor_rule *rule, const DLTensor *t,
                                  LuattnCallParams *all, LuattnTensor *out) {
  char axes[GRID_AXES_TEXT];
  long long stride[LUATTN_MAX_AXES + 3];
  grid_rule(c, all, is_of_keys(row), 2, rule, axes);
  rule->is_contiguous = !rule->is_row;
  TRY(args_tensor(c, rule, t, stride, &out->data));
  out->batch = stride[0];
  out->head = stride[1];
  grid_strides(c, all, out, stride, 2);
  return LUATTN_OK;
}

static luattn_status fill_tensor(const args_call *c, const tensor_row *row, const int64_t dim[],
                                 LuattnCallParams *all) {
  LuattnParams *p = &all->dense;
  const DLTensor *t;
  memcpy(&t, (const char *)c->args + row->from, sizeof t);
  const presence use = row_presence(c->info, row);
  if (use == UNUSED || (t == NULL && use != REQUIRED)) return LUATTN_OK;
  if (use == REFUSED) return refuse(c, row);
  if (t == NULL) return missing(c, row);
  const bool is_row = row->ndim == 4, is_wide = is_row && is_float(c->info, row);
  tensor_rule rule = {.name = row->name,
                      .axes = row->axes,
                      .ndim = row->ndim,
                      .dtype = is_row && !is_wide ? args_elem(c->info) : args_real(c->info),
                      .is_wide = is_wide,
                      .is_output = row->want != 0 || (row->out_forward && c->info->pass == LUATTN_FORWARD),
                      .is_row = is_row};
  for (int i = 0; i < row->ndim; ++i) rule.shape[i] = dim[row->dim[i]];
  long long stride[4];
  LuattnTensor *out = (LuattnTensor *)(void *)((char *)p + row->to);
  const bool in_pages = c->info->paged && row->dim[1] == DIM_HEADS_KV;
  if (in_pages) {
    rule.shape[0] = c->args->k->shape[0];
    rule.shape[2] = c->args->k->shape[2];
    rule.axes = row->dim[3] == DIM_D ? "num_pages, heads_kv, page_size, head_dim"
                                     : "num_pages, heads_kv, page_size, head_dim_v";
  }
  if (c->info->over_grid) return fill_of_grid(c, row, &rule, t, all, out);
  if (c->info->packed && !in_pages) return fill_packed(c, row, &rule, t, out);
  TRY(args_tensor(c, &rule, t, stride, &out->data));
  out->batch = stride[0];
  out->head = stride[1];
  out->seq = in_pages && rule.shape[2] == 1
                 ? stride[0]
                 : stride[2]; /* pages of one row are rows, for descriptors (runtime/call/paged.c) */
  return LUATTN_OK;
}

/* What kernels are compiled for. */
static luattn_status check_choice(const args_call *c, const char *name, int given, int compiled, const char *when) {
  if (given == compiled) return LUATTN_OK;
  if (given != 0 && given != 1) return args_fail(c, "%s: is %d, expected 0 or 1", name, given);
  return args_fail(
      c, "%s: is %d, and the kernel is compiled for %d; give that%s, or compile it with luattn_target.%s = %d", name,
      given, compiled, when, name, given);
}

static luattn_status check_compiled_choices(const args_call *c) {
  const image_manifest *m = c->info;
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks)                                  \
  if ((lacks)[0] != 0 && c->args->name == 1 && m->pass != LUATTN_FORWARD)                           \
    return args_fail(c, #name ": is 1, and there is no %s over " lacks, kernel_pass_name(m->pass)); \
  if (m->name != 0 || !(serves_both)) TRY(check_choice(c, #name, c->args->name, (int)m->name, m->name ? if_1 : if_0));
#include "abi/kernel_facts.def"
  return LUATTN_OK;
}

static luattn_status fill_saved(const args_call *c, const int64_t dim[], LuattnCallParams *all) {
  LuattnParams *p = &all->dense;
  char axes[GRID_AXES_TEXT];
  if (c->info->num_saved == 0 || c->info->weights || (c->info->tangents && c->info->pass == LUATTN_BACKWARD))
    return LUATTN_OK;
  tensor_rule rule = {.name = "saved",
                      .axes = "num_saved, batch, heads, q_len",
                      .ndim = 4,
                      .shape = {c->info->num_saved, dim[DIM_BATCH], dim[DIM_HEADS], dim[DIM_Q]},
                      .dtype = args_real(c->info),
                      .is_contiguous = true};
  if (c->info->packed) {
    rule.axes = "num_saved, heads, total_q";
    rule.ndim = 3;
    rule.shape[1] = dim[DIM_HEADS];
    rule.shape[2] = dim[DIM_Q];
  }
  if (c->info->over_grid) grid_rule(c, all, false, 3, &rule, axes);
  if (c->args->saved == NULL)
    return args_fail(c, "saved: is missing; this spec keeps %u numbers a row for backward, give a tensor [%s]",
                     (unsigned)c->info->num_saved, rule.axes);
  long long stride[LUATTN_MAX_AXES + 3];
  return args_tensor(c, &rule, c->args->saved, stride, &p->tensors.saved);
}

/* Of packed sequences and of pages the longest one's: kernels alone read the other lengths. */
static luattn_status check_least_keys(const args_call *c, const LuattnCallParams *all) {
  const image_manifest *m = c->info;
  const int length = m->offsets ? all->offsets.kv_len : all->dense.shape.kv_len;
  const bool is_known = !m->offsets || length != 0;
  if (!m->has_least_keys || !is_known || length >= (int)m->least_keys[0]) return LUATTN_OK;
  return args_fail(c,
                   "k: kv_len is %d, and the spec's mask needs at least %u, a window times its dilation; give more "
                   "places, or a smaller window",
                   length, m->least_keys[0]);
}

luattn_status args_fill(const args_call *c, LuattnCallParams *out) {
  LuattnParams *params = &out->dense;
  memset(out, 0, sizeof *out);
  TRY(check_axes(c));
  TRY(check_heads(c, params));
  TRY(packed_fill(c, out));
  TRY(paged_fill(c, params));
  if (c->info->over_grid)
    TRY(grid_fill(c, out));
  else if (!c->info->packed && !c->info->paged)
    TRY(check_lengths(c, params));
  TRY(offsets_fill(c, out));
  TRY(check_least_keys(c, out));
  TRY(check_choices(c, params));
  TRY(check_compiled_choices(c));
  if (c->args->append != NULL && c->info->pass == LUATTN_FORWARD && !c->info->paged)
    return args_fail(c,
                     "append: is given, and this kernel is for keys that are not in pages; take one with "
                     "luattn_target.pages, or leave it NULL");
  const bool packed = c->info->packed;
  const int64_t dim[] = {[DIM_BATCH] = params->shape.batch,
                         [DIM_HEADS] = params->shape.heads,
                         [DIM_HEADS_KV] = params->shape.heads_kv,
                         [DIM_Q] = packed ? out->packed.total_q : params->shape.q_len,
                         [DIM_KV] = packed ? out->packed.total_k : params->shape.kv_len,
                         [DIM_D] = c->info->head_dim,
                         [DIM_DV] = c->info->head_dim_v};
  const size_t num_rows = c->shapes_only ? 3 : sizeof rows / sizeof *rows;
  for (size_t i = 0; i < num_rows; ++i) TRY(fill_tensor(c, &rows[i], dim, out));
  if (!c->shapes_only) TRY(fill_saved(c, dim, out));
  params->tensors.src_q = params->tensors.q;
  params->tensors.src_k = params->tensors.k;
  params->tensors.src_v = params->tensors.v;
  out->grid.src_q = out->grid.q, out->grid.src_k = out->grid.k, out->grid.src_v = out->grid.v;
  TRY(args_inputs(c, params));
  return args_scalars(c, params);
}

luattn_status args_fill_arrays(const args_call *c, LuattnCallParams *out) {
  TRY(packed_fill(c, out));
  TRY(offsets_fill(c, out));
  return packed_used(c, &out->used);
}

luattn_status args_apart(const args_call *c, size_t workspace_size) {
  luattn_args used = *c->args;
  used.workspace_size = workspace_size;
  if (c->info->num_saved == 0) used.saved = NULL;
  overlap_pair pair;
  char text[400];
  if (!overlap_find(&used, c->info->pass == LUATTN_FORWARD, &pair)) return LUATTN_OK;
  overlap_text(&pair, text, sizeof text);
  return args_fail(c, "%s", text);
}
