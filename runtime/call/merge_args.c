#include "runtime/call/merge_args.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/call/dtype_text.h"
#include "common/call/overlap.h"
#include "common/struct_size.h"
#include "runtime/call/order.h"
#include "runtime/call/tensor_rule.h"

_Static_assert(LUATTN_MERGE_MAX == LUATTN_MOST_PARTS, "what is accepted is what kernels have room for");

enum { NAME_SIZE = 24, MAX_TENSORS = 5 * LUATTN_MERGE_MAX + 6 };

typedef struct checks {
  args_call c;
  image_manifest info; /* of no image: what args_tensor reads */
  const luattn_merge_args *args;
  merge_call *out;
  bool packed;
  int64_t shape[4]; /* of o */
  overlap_item item[MAX_TENSORS];
  char name[MAX_TENSORS][NAME_SIZE];
  int count;
} checks;

/* The type of an o, "parts[0].o" or "o". */
static luattn_status take_type(const checks *k, const char *name, const DLTensor *t, luattn_dtype *out) {
  if (t == NULL) return args_fail(&k->c, "%s: is missing", name);
  const uint32_t type = kernel_dtype_of(t->dtype);
  if (type == KERNEL_DTYPES) {
    char have[32];
    dtype_text(t->dtype, have, sizeof have);
    return args_fail(&k->c, "%s: has dtype %s, expected float64, float32, bfloat16 or float16; convert it", name, have);
  }
  *out = (luattn_dtype)type;
  return LUATTN_OK;
}

/* Checks a tensor with rows of dim numbers, or (is_lse) with one number a row. */
static luattn_status take(checks *k, const char *name, const DLTensor *t, bool is_lse, luattn_dtype type,
                          bool is_output, LuattnTensor *out) {
  static const char *const axes[2][2] = {{"batch, heads, q_len, head_dim_v", "batch, heads, q_len"},
                                         {"total_q, heads, head_dim_v", "heads, total_q"}};
  const int ndim = (k->packed ? 3 : 4) - is_lse;
  long long stride[4];
  tensor_rule rule = {.name = name,
                      .axes = axes[k->packed][is_lse],
                      .ndim = ndim,
                      .dtype = kernel_dtype(type)->dl,
                      .is_output = is_output,
                      .is_row = !is_lse,
                      .is_single = true};
  memcpy(rule.shape, k->shape, sizeof k->shape);
  if (k->packed && is_lse) rule.shape[0] = k->shape[1], rule.shape[1] = k->shape[0];
  TRY(args_tensor(&k->c, &rule, t, stride, &out->data));
  const int seq = k->packed ? is_lse : 2, head = k->packed ? !is_lse : 1;
  out->batch = k->packed ? 0 : stride[0];
  out->head = stride[head];
  out->seq = stride[seq];
  char *own = k->name[k->count];
  snprintf(own, NAME_SIZE, "%s", name);
  k->item[k->count++] = (overlap_item){own, t, is_output};
  if (is_lse || out->data == NULL) return LUATTN_OK;
  const long long bytes = kernel_dtype(type)->dl.bits / 8;
  const uintptr_t all = (uintptr_t)out->data | (uintptr_t)((out->batch | out->head | out->seq) * bytes);
  if (all % 16 != 0) k->out->params.wide = 0;
  return LUATTN_OK;
}

/* Checks `number` numbers of each row. None: there may be no tensor. */
static luattn_status take_numbers(checks *k, const char *name, const DLTensor *t, int number, bool is_output,
                                  LuattnRowNumbers *out) {
  static const char *const axes[2] = {"rows of state, batch, heads, q_len", "rows of state, heads, total_q"};
  const luattn_dtype real = k->out->part == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32;
  long long stride[4];
  if (number == 0 && t != NULL && (t->ndim < 1 || t->shape == NULL || t->shape[0] != 0))
    return args_fail(
        &k->c,
        "%s: has numbers of rows, and rows of this spec have none; leave it out, or give the part that it belongs to",
        name);
  if (number == 0) return LUATTN_OK;
  if (t == NULL) return args_fail(&k->c, "%s: is missing", name);
  tensor_rule rule = {.name = name,
                      .axes = axes[k->packed],
                      .ndim = k->packed ? 3 : 4,
                      .dtype = kernel_dtype(real)->dl,
                      .is_output = is_output};
  const int64_t dense[4] = {number, k->shape[0], k->shape[1], k->shape[2]},
                packed[4] = {number, k->shape[1], k->shape[0]};
  memcpy(rule.shape, k->packed ? packed : dense, sizeof dense);
  TRY(args_tensor(&k->c, &rule, t, stride, &out->first.data));
  out->plane = stride[0];
  out->first.batch = k->packed ? 0 : stride[1];
  out->first.head = stride[k->packed ? 1 : 2];
  out->first.seq = stride[k->packed ? 2 : 3];
  char *own = k->name[k->count];
  snprintf(own, NAME_SIZE, "%s", name);
  k->item[k->count++] = (overlap_item){own, t, is_output};
  return LUATTN_OK;
}

/* Takes what a merge by state has beside. */
static luattn_status take_states(checks *k, const merge_rows *rows) {
  const luattn_merge_args *a = k->args;
  LuattnMergeParams *p = &k->out->params;
  if (a->spec == NULL) {
    const char *name = a->states != NULL ? "states" : a->state != NULL ? "state" : a->saved != NULL ? "saved" : NULL;
    if (name == NULL) return LUATTN_OK;
    return args_fail(
        &k->c,
        "%s: is given without a spec; give the one that luattn_spec_parts made, or leave it NULL to merge by lse",
        name);
  }
  if (rows->num_rows > 0 && a->states == NULL) return args_fail(&k->c, "states: is missing");
  for (int i = 0; i < p->count && a->states != NULL; ++i) {
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "states[%d]", i);
    TRY(take_numbers(k, name, a->states[i], rows->num_rows, false, &p->part[i].state));
  }
  if (a->state != NULL) TRY(take_numbers(k, "state", a->state, rows->num_rows, true, &p->state));
  if (a->saved != NULL) TRY(take_numbers(k, "saved", a->saved, rows->num_saved, true, &p->saved));
  return LUATTN_OK;
}

static luattn_status take_part(checks *k, int i, bool backward, luattn_dtype real) {
  const luattn_part *part = &k->args->parts[i];
  LuattnPart *out = &k->out->params.part[i];
  const struct {
    const char *name;
    const DLTensor *t;
    bool is_lse, is_output;
    LuattnTensor *to;
  } member[] = {{"o", part->o, false, false, &out->o},
                {"lse", part->lse, true, false, &out->lse},
                {"d_o", backward ? part->d_o : NULL, false, true, &out->d_o},
                {"d_lse", backward ? part->d_lse : NULL, true, true, &out->d_lse}};
  for (int j = 0; j < 4; ++j) {
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "parts[%d].%s", i, member[j].name);
    if (member[j].t == NULL && j < 2) return args_fail(&k->c, "%s: is missing", name);
    if (member[j].t == NULL) continue;
    TRY(take(k, name, member[j].t, member[j].is_lse, member[j].is_lse ? real : k->out->part, member[j].is_output,
             member[j].to));
  }
  return LUATTN_OK;
}

/* Reads the shape of the first part's o, which all others have. */
static luattn_status take_shape(checks *k) {
  LuattnMergeParams *p = &k->out->params;
  const DLTensor *o = k->args->parts[0].o;
  TRY(take_type(k, "parts[0].o", o, &k->out->part));
  if ((o->ndim != 4 && o->ndim != 3) || o->shape == NULL)
    return args_fail(
        &k->c,
        "parts[0].o: has %d axes, expected 4: [batch, heads, q_len, head_dim_v], or packed 3: [total_q, heads, "
        "head_dim_v]",
        o->ndim);
  k->packed = o->ndim == 3;
  int64_t rows = 1;
  for (int i = 0; i < o->ndim; ++i) {
    k->shape[i] = o->shape[i];
    const int least = i == o->ndim - 1; /* of channels there are some */
    if (o->shape[i] < least || o->shape[i] > INT32_MAX)
      return args_fail(&k->c, "parts[0].o: axis %d has size %" PRId64 ", expected %d to %d", i, o->shape[i], least,
                       INT32_MAX);
    if (i < o->ndim - 1 && (__builtin_mul_overflow(rows, o->shape[i], &rows) || rows > INT32_MAX / 2))
      return args_fail(&k->c, "parts[0].o: has more than %d rows; split the call", INT32_MAX / 2);
    k->out->is_empty = k->out->is_empty || o->shape[i] == 0;
  }
  if (!k->out->is_empty) { /* else they may be 0 */
    p->rows = (int)rows;
    p->heads = order_divisor(k->shape[1]);
    p->q_len = order_divisor(k->shape[k->packed ? 0 : 2]);
  }
  p->dim = (int)k->shape[o->ndim - 1];
  return LUATTN_OK;
}

/* Takes what both passes have beside the parts: `o` and `lse`, or their gradients. */
static luattn_status take_merged(checks *k, bool backward, luattn_dtype real) {
  const luattn_merge_args *a = k->args;
  LuattnMergeParams *p = &k->out->params;
  const char *name = backward ? "dout" : "o";
  const DLTensor *o = backward ? a->dout : a->o, *lse = backward ? a->dlse : a->lse;
  if (backward && o == NULL && lse == NULL)
    return args_fail(&k->c, "dout, dlse: both are missing, so all gradients are 0; give at least one");
  k->out->elem = k->out->part;
  if (o != NULL || !backward) {
    TRY(take_type(k, name, o, &k->out->elem));
    if ((k->out->elem == LUATTN_F64) != (k->out->part == LUATTN_F64))
      return args_fail(&k->c, "%s: has dtype %s, and the parts %s float64; convert it", name,
                       k->out->elem == LUATTN_F64 ? "float64" : "another than float64",
                       k->out->part == LUATTN_F64 ? "have" : "do not have");
    TRY(take(k, name, o, false, k->out->elem, !backward, backward ? &p->dout : &p->o));
  }
  if (lse == NULL) return LUATTN_OK;
  return take(k, backward ? "dlse" : "lse", lse, true, real, !backward, backward ? &p->dlse : &p->lse);
}

static void choose_lanes(merge_call *m) {
  const int width = m->params.wide ? 128 / kernel_dtype(m->part)->dl.bits : 1;
  m->params.lanes = 1;
  while (m->params.lanes < 32 && m->params.lanes * width < m->params.dim) m->params.lanes *= 2;
}

luattn_status merge_args_take(const luattn_merge_args *given, luattn_pass pass, luattn_merge_args *out,
                              luattn_error *err) {
  static const struct_rule rule = STRUCT_RULE(luattn_merge_args, dlse);
  return struct_take(&rule, pass == LUATTN_BACKWARD ? "luattn_merge_backward" : "luattn_merge", given, out, err);
}

luattn_status merge_args_fill(const luattn_merge_args *args, luattn_pass pass, int device, const merge_rows *rows,
                              merge_call *out, luattn_error *err) {
  const bool backward = pass == LUATTN_BACKWARD;
  checks k = {.args = args, .out = out};
  overlap_pair shared;
  char text[400];
  k.info.pass = (uint32_t)pass, k.info.family = LUATTN_SIMT, k.info.on_cpu = device == LUATTN_CPU;
  snprintf(k.info.spec_name, sizeof k.info.spec_name, "merge");
  k.c = (args_call){.info = &k.info, .device = device, .err = err};
  memset(out, 0, sizeof *out);
  if (args->num_parts < 1 || args->num_parts > LUATTN_MERGE_MAX || args->parts == NULL)
    return args_fail(&k.c, "num_parts: is %zu, expected 1 to %d and an array; merge more parts in turn",
                     args->num_parts, LUATTN_MERGE_MAX);
  out->params.count = (int)args->num_parts;
  out->size = args->num_parts <= 2 ? 0 : args->num_parts <= 4 ? 1 : 2;
  out->params.wide = 1;
  TRY(take_shape(&k));
  const luattn_dtype real = out->part == LUATTN_F64 ? LUATTN_F64 : LUATTN_F32;
  for (int i = 0; i < out->params.count; ++i) TRY(take_part(&k, i, backward, real));
  TRY(take_merged(&k, backward, real));
  TRY(take_states(&k, rows));
  if (overlap_find_among(k.item, k.count, &shared)) {
    overlap_text(&shared, text, sizeof text);
    return args_fail(&k.c, "%s", text);
  }
  if (out->params.dim % (128 / kernel_dtype(out->part)->dl.bits) != 0) out->params.wide = 0;
  choose_lanes(out);
  return LUATTN_OK;
}
