#include "runtime/call/na_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/call/dtype_text.h"
#include "common/call/overlap.h"
#include "common/struct_size.h"
#include "runtime/call/tensor_rule.h"

_Static_assert(LUATTN_NA_MAX_RANK == LUATTN_NA_AXES, "what is accepted is what kernels have room for");

enum { MAX_TENSORS = 8, MAX_AXES = LUATTN_NA_MAX_RANK + 3 };

typedef struct checks {
  args_call c;
  image_manifest info; /* of no image: what args_tensor reads */
  const luattn_na_window *window;
  na_call *out;
  int64_t batch, heads, heads_kv, dim, taps, extent[LUATTN_NA_MAX_RANK];
  overlap_item item[MAX_TENSORS];
  int count;
} checks;

/* Of the first tensor, which has the sizes of all others but k's heads. */
static luattn_status take_type(checks *k, const char *name, const DLTensor *t, const char *axes) {
  const int rank = k->window->rank;
  if (rank < 1 || rank > LUATTN_NA_MAX_RANK)
    return args_fail(&k->c, "window: rank: is %d, expected 1 to %d", rank, LUATTN_NA_MAX_RANK);
  if (t == NULL) return args_fail(&k->c, "%s: is missing", name);
  const uint32_t type = kernel_dtype_of(t->dtype);
  if (type == KERNEL_DTYPES) {
    char have[32];
    dtype_text(t->dtype, have, sizeof have);
    return args_fail(&k->c, "%s: has dtype %s, expected float64, float32, bfloat16 or float16; convert it", name, have);
  }
  k->out->type = (luattn_dtype)type;
  k->out->real = type == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32;
  if (t->ndim != rank + 3 || t->shape == NULL)
    return args_fail(&k->c, "%s: has %d axes, expected %d: [%s]", name, t->ndim, rank + 3, axes);
  for (int i = 0; i < rank + 3; ++i)
    if (t->shape[i] < 0 || t->shape[i] > INT32_MAX / 2)
      return args_fail(&k->c, "%s: axis %d has size %" PRId64 ", expected 0 to %d", name, i, t->shape[i],
                       INT32_MAX / 2);
  k->batch = t->shape[0], k->heads = t->shape[1];
  for (int a = 0; a < rank; ++a) k->extent[a] = t->shape[2 + a];
  return LUATTN_OK;
}

/* Takes the heads of keys or values, and for the av of weights the channels. */
static luattn_status take_heads(checks *k, const char *name, const DLTensor *t) {
  if (t == NULL) return args_fail(&k->c, "%s: is missing", name);
  if (t->ndim != k->window->rank + 3 || t->shape == NULL)
    return args_fail(&k->c, "%s: has %d axes, expected %d", name, t->ndim, k->window->rank + 3);
  k->heads_kv = t->shape[1];
  k->dim = t->shape[t->ndim - 1];
  if (k->heads_kv < 1 || k->heads % k->heads_kv != 0)
    return args_fail(&k->c, "%s: has %" PRId64 " heads, which is no divisor of the %" PRId64 " of queries", name,
                     k->heads_kv, k->heads);
  if (k->dim < 1 || k->dim > INT32_MAX / 2)
    return args_fail(&k->c, "%s: has head dim %" PRId64 ", expected 1 to %d", name, k->dim, INT32_MAX / 2);
  return LUATTN_OK;
}

static luattn_status check_axis(const char *place, const luattn_na_window *w, int a, int64_t extent,
                                luattn_error *err) {
  const int64_t dilation = w->dilation[a] == 0 ? 1 : w->dilation[a], kernel = w->kernel_size[a];
  if (dilation < 1 || dilation > INT32_MAX / 2)
    return luattn_fail(err, LUATTN_INVALID, "%s: window: dilation[%d]: is %" PRId64 ", expected 1 to %d, or 0 for 1",
                       place, a, dilation, INT32_MAX / 2);
  if (kernel < 2)
    return luattn_fail(err, LUATTN_INVALID, "%s: window: kernel_size[%d]: is %" PRId64 ", expected at least 2", place,
                       a, kernel);
  if (kernel > extent / dilation)
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: window: kernel_size[%d]: is %" PRId64 " with a dilation of %" PRId64
                       ", and the tensors have %" PRId64 " places along that axis; give at most %" PRId64,
                       place, a, kernel, dilation, extent, extent / dilation);
  return LUATTN_OK;
}

luattn_status na_check_window(const char *place, const luattn_na_window *w, const int64_t *extent, luattn_error *err) {
  for (int a = 0; a < w->rank; ++a) TRY(check_axis(place, w, a, extent[a], err));
  return LUATTN_OK;
}

static luattn_status take_axis(checks *k, int a, LuattnNaAxis *out) {
  const luattn_na_window *w = k->window;
  TRY(check_axis(k->c.place, w, a, k->extent[a], k->c.err));
  const int64_t dilation = w->dilation[a] == 0 ? 1 : w->dilation[a];
  *out = (LuattnNaAxis){(int)k->extent[a], (int)w->kernel_size[a], (int)dilation, w->is_causal[a] != 0};
  k->taps *= w->kernel_size[a];
  return LUATTN_OK;
}

/* Fills what all steps of a call share. */
static luattn_status take_window(checks *k, LuattnNaParams *p) {
  const int rank = k->window->rank;
  int64_t rows = k->batch * k->heads;
  k->taps = 1;
  for (int a = 0; a < LUATTN_NA_AXES; ++a) {
    p->axis[a] = (LuattnNaAxis){1, 1, 1, 0};
    const int own = a - (LUATTN_NA_AXES - rank);
    if (own < 0) continue;
    TRY(take_axis(k, own, &p->axis[a]));
    if (k->taps > INT32_MAX / 2) return args_fail(&k->c, "window: kernel_size: has more than %d taps", INT32_MAX / 2);
    if (rows > INT32_MAX / 2 || (rows *= k->extent[own]) > INT32_MAX / 2)
      return args_fail(&k->c, "query: has more than %d rows; split the call", INT32_MAX / 2);
  }
  p->batch = (int)k->batch, p->heads = (int)k->heads, p->group = (int)(k->heads / k->heads_kv), p->dim = (int)k->dim;
  return LUATTN_OK;
}

/* [batch, heads, .., last] of a side, or of the bias [heads, ..]. NULL leaves *out as it is. */
static luattn_status take(checks *k, const char *name, const DLTensor *t, int64_t heads, int64_t last, bool is_output,
                          LuattnNaTensor *out) {
  const int rank = k->window->rank, unused = LUATTN_NA_AXES - rank;
  const bool is_bias = last == 0;
  long long stride[MAX_AXES];
  tensor_rule rule = {.name = name,
                      .axes = is_bias ? "heads, 2 kernel_size - 1 an axis" : "batch, heads, .., head dim or taps",
                      .ndim = is_bias ? 1 + rank : 3 + rank,
                      .dtype = kernel_dtype(is_bias && is_output ? k->out->real : k->out->type)->dl,
                      .is_output = is_output,
                      .is_row = true,
                      .is_single = true};
  if (t == NULL) return LUATTN_OK;
  int n = 0;
  if (!is_bias) rule.shape[n++] = k->batch;
  rule.shape[n++] = heads;
  for (int a = 0; a < rank; ++a) rule.shape[n++] = is_bias ? 2 * k->window->kernel_size[a] - 1 : k->extent[a];
  if (!is_bias) rule.shape[n++] = last;
  TRY(args_tensor(&k->c, &rule, t, stride, &out->data));
  out->batch = is_bias ? 0 : stride[0];
  out->head = stride[is_bias ? 0 : 1];
  for (int a = 0; a < rank; ++a) out->axis[unused + a] = stride[(is_bias ? 1 : 2) + a];
  k->item[k->count++] = (overlap_item){name, t, is_output};
  return LUATTN_OK;
}

static void add_step(checks *k, const LuattnNaParams *p, LuattnNaOp op) {
  LuattnNaParams *to = &k->out->step[k->out->count];
  const int places = na_places(p);
  *to = *p;
  to->op = (int)op;
  to->rows = p->batch * p->heads * places;
  if (op == LUATTN_NA_KEYS) to->rows /= p->group;
  if (op == LUATTN_NA_BIAS) {
    to->rows = p->heads;
    for (int a = 0; a < LUATTN_NA_AXES; ++a) to->rows *= 2 * p->axis[a].kernel - 1;
  }
  if (to->rows > 0) k->out->count++;
}

static luattn_status check_overlap(checks *k) {
  overlap_pair shared;
  char text[400];
  if (!overlap_find_among(k->item, k->count, &shared)) return LUATTN_OK;
  overlap_text(&shared, text, sizeof text);
  return args_fail(&k->c, "%s", text);
}

static void open_checks(checks *k, const char *place, const luattn_na_window *window, luattn_pass pass, int device,
                        na_call *out, luattn_error *err) {
  *k = (checks){.window = window, .out = out};
  *out = (na_call){.count = 0};
  k->info.pass = (uint32_t)pass, k->info.family = LUATTN_SIMT, k->info.on_cpu = device == LUATTN_CPU;
  k->c = (args_call){.info = &k->info, .device = device, .place = place, .err = err};
}

static luattn_status none_wanted(const checks *k, const char *names) {
  return args_fail(&k->c, "%s: are all NULL, so there is nothing to compute; give at least one", names);
}

luattn_status na_qk_fill(const luattn_na_qk_args *given, luattn_pass pass, int device, na_call *out,
                         luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_na_qk_args, d_attn);
  const bool backward = pass == LUATTN_BACKWARD;
  const char *place = backward ? "luattn_na_qk_backward" : "luattn_na_qk";
  luattn_na_qk_args a;
  LuattnNaParams p = {.hides = 1};
  checks k;
  TRY(struct_take(&rule, place, given, &a, err));
  open_checks(&k, place, &a.window, pass, device, out, err);
  TRY(take_type(&k, "query", a.query, "batch, heads, .., head_dim"));
  TRY(take_heads(&k, "key", a.key));
  TRY(take_window(&k, &p));
  LuattnNaParams dq = p, dk = p, db = p;
  TRY(take(&k, "query", a.query, k.heads, k.dim, false, &p.q));
  TRY(take(&k, "key", a.key, k.heads_kv, k.dim, false, &p.k));
  const DLTensor *taps = backward ? a.d_attn : a.attn;
  if (taps == NULL) return args_fail(&k.c, "%s: is missing", backward ? "d_attn" : "attn");
  TRY(take(&k, backward ? "d_attn" : "attn", taps, k.heads, k.taps, !backward, &p.taps));
  if (!backward) {
    TRY(take(&k, "rel_pos_bias", a.rel_pos_bias, k.heads, 0, false, &p.bias));
    add_step(&k, &p, LUATTN_NA_SCORES);
    return check_overlap(&k);
  }
  if (a.d_query == NULL && a.d_key == NULL && a.d_rel_pos_bias == NULL)
    return none_wanted(&k, "d_query, d_key, d_rel_pos_bias");
  dq.taps = dk.taps = db.taps = p.taps, dq.k = p.k, dk.q = p.q;
  TRY(take(&k, "d_query", a.d_query, k.heads, k.dim, true, &dq.q));
  TRY(take(&k, "d_key", a.d_key, k.heads_kv, k.dim, true, &dk.k));
  TRY(take(&k, "d_rel_pos_bias", a.d_rel_pos_bias, k.heads, 0, true, &db.bias));
  if (a.d_query != NULL) add_step(&k, &dq, LUATTN_NA_QUERIES);
  if (a.d_key != NULL) add_step(&k, &dk, LUATTN_NA_KEYS);
  if (a.d_rel_pos_bias != NULL) add_step(&k, &db, LUATTN_NA_BIAS);
  return check_overlap(&k);
}

luattn_status na_av_fill(const luattn_na_av_args *given, luattn_pass pass, int device, na_call *out,
                         luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_na_av_args, d_out);
  const bool backward = pass == LUATTN_BACKWARD;
  const char *place = backward ? "luattn_na_av_backward" : "luattn_na_av";
  luattn_na_av_args a;
  LuattnNaParams p = {.hides = 0};
  checks k;
  TRY(struct_take(&rule, place, given, &a, err));
  open_checks(&k, place, &a.window, pass, device, out, err);
  TRY(take_type(&k, "attn", a.attn, "batch, heads, .., taps"));
  TRY(take_heads(&k, "value", a.value));
  TRY(take_window(&k, &p));
  LuattnNaParams da = p, dv = p;
  TRY(take(&k, "attn", a.attn, k.heads, k.taps, false, &p.taps));
  TRY(take(&k, "value", a.value, k.heads_kv, k.dim, false, &p.k));
  const DLTensor *rows = backward ? a.d_out : a.out;
  if (rows == NULL) return args_fail(&k.c, "%s: is missing", backward ? "d_out" : "out");
  TRY(take(&k, backward ? "d_out" : "out", rows, k.heads, k.dim, !backward, &p.q));
  if (!backward) {
    add_step(&k, &p, LUATTN_NA_QUERIES);
    return check_overlap(&k);
  }
  if (a.d_attn == NULL && a.d_value == NULL) return none_wanted(&k, "d_attn, d_value");
  da.q = dv.q = p.q, da.k = p.k, dv.taps = p.taps;
  TRY(take(&k, "d_attn", a.d_attn, k.heads, k.taps, true, &da.taps));
  TRY(take(&k, "d_value", a.d_value, k.heads_kv, k.dim, true, &dv.k));
  if (a.d_attn != NULL) add_step(&k, &da, LUATTN_NA_SCORES);
  if (a.d_value != NULL) add_step(&k, &dv, LUATTN_NA_KEYS);
  return check_overlap(&k);
}
