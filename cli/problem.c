/* problem.c: makes the tensors of one call, from .npy files or random numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/sequence_ends.h"
#include "common/call/choices.h"
#include "common/call/input_dtype.h"
#include "common/parallel.h"
#include "common/real.h"
#include "gen/analysis/specs/int_range.h"
#include "gen/spec.h"

/* ---- random numbers: splitmix64 (Steele, Lea, Flood 2014), normal by Box and Muller ---- */

#define SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t next_u64(uint64_t *state) {
  uint64_t z = (*state += SPLITMIX_STEP);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static double uniform(uint64_t *state) { return ((double)(next_u64(state) >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t *state) {
  const double r = sqrt(-2 * log(uniform(state)));
  return r * cos(6.283185307179586 * uniform(state));
}

/* Part of an array. The state before each number is known, so parts are filled in parallel. */
typedef struct normal_fill {
  array *a;
  double scale;
  uint64_t seed;
} normal_fill;

enum { FILLED_AT_ONCE = 1 << 18 };

static luattn_status fill_part(void *user, size_t part, luattn_error *err) {
  (void)err;
  const normal_fill *f = user;
  const int64_t first = (int64_t)part * FILLED_AT_ONCE, all = array_count(f->a);
  const int64_t last = all - first < FILLED_AT_ONCE ? all : first + FILLED_AT_ONCE;
  uint64_t state = f->seed + 2 * (uint64_t)first * SPLITMIX_STEP;
  for (int64_t i = first; i < last; i++) array_set(f->a, i, f->scale * normal(&state));
  return LUATTN_OK;
}

/* Advances the state as if the array had been filled, so that later arrays get the same numbers. */
static void skip_normal(const array *a, uint64_t *seed) { *seed += 2 * (uint64_t)array_count(a) * SPLITMIX_STEP; }

static void fill_normal(array *a, double scale, uint64_t *seed) {
  normal_fill f = {a, scale, *seed};
  const int64_t all = array_count(a);
  const size_t parts = (size_t)(all / FILLED_AT_ONCE + 1);
  const bool filled = parallel_run(parts, 0, fill_part, NULL, &f, NULL) == LUATTN_OK;
  for (size_t i = 0; !filled && i < parts; i++)
    (void)fill_part(&f, i, NULL); /* without a mutex, in this
                                   * thread */
  skip_normal(a, seed);
}

/* Integers that never fall along the last axis, in about four steps a row, like document ids. */
static void fill_ids(array *a, uint64_t *seed) {
  const int64_t last = a->t.ndim > 0 ? a->shape[a->t.ndim - 1] : 1;
  for (int64_t i = 0, n = array_count(a); i < n; i++) {
    const double before = i % last == 0 ? 0 : array_get(a, i - 1);
    array_set(a, i, before + (i % last != 0 && uniform(seed) < 4.0 / (double)last));
  }
}

/* ---- sizes ---- */

/* --head-dim, in place of D and Dv. */
static luattn_status head_dim_option(const cli_options *o, cli_problem *p, luattn_error *err) {
  int dim[2];
  if (o->head_dim == NULL) return LUATTN_OK;
  if (o->shape != NULL || o->q != NULL)
    return luattn_fail(err, LUATTN_INVALID, "%s: '%s' says what --head-dim '%s' says too; give one of them",
                       o->shape != NULL ? "--shape" : "--q", o->shape != NULL ? o->shape : o->q, o->head_dim);
  if (!parse_head_dim(o->head_dim, dim))
    return luattn_fail(err, LUATTN_INVALID, "--head-dim: '%s' is not D or D,Dv; give one or two positive sizes",
                       o->head_dim);
  p->dim = dim[0], p->dim_v = dim[1];
  return LUATTN_OK;
}

luattn_status shape_option(const cli_options *o, cli_problem *p, luattn_error *err) {
  static const char *const names[] = {"B", "H", "Hkv", "Sq", "Skv", "D", "Dv"};
  const char *text = o->shape != NULL ? o->shape : "1,2,2,256,256,64";
  int size[7];
  const int n = parse_sizes(text, 7, size);
  if (n < 6) {
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s' is not B,H,Hkv,Sq,Skv,D[,Dv]; give six or seven sizes such as "
                       "2,8,2,1024,1024,128",
                       text);
  }
  if (n == 6) size[6] = size[5];
  for (int i = 0; i < 7; i++) {
    if (size[i] == 0 && i != 3 && i != 4) {
      return luattn_fail(err, LUATTN_INVALID, "--shape: '%s': %s is 0; it must be at least 1", text, names[i]);
    }
  }
  if (size[1] % size[2] != 0) {
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s': H = %d is not a multiple of Hkv = %d; each kv head serves H / Hkv heads", text,
                       size[1], size[2]);
  }
  p->batch = size[0], p->heads = size[1], p->heads_kv = size[2], p->q_len = size[3], p->kv_len = size[4];
  p->dim = size[5], p->dim_v = size[6];
  return head_dim_option(o, p, err);
}

static int64_t axis_size(const cli_problem *p, const luattn_input_info *info, uint32_t j) {
  switch (info->axis[j]) {
    case LUATTN_AXIS_B:
      return p->batch;
    case LUATTN_AXIS_H:
      return p->heads;
    case LUATTN_AXIS_HKV:
      return p->heads_kv;
    case LUATTN_AXIS_Q:
    case LUATTN_AXIS_KV:
      return sequences_axis(p, info, j);
    case LUATTN_AXIS_FREE:
      return (int64_t)p->q_len + p->kv_len; /* long enough for a table over relative positions */
    default:
      return info->axis[j];
  }
}

/* ---- files ---- */

/* The expected axes of an option's file, for messages. */
typedef struct file_rule {
  const char *option, *path;
  int ndim;
  const char *axes;
  DLDataType type;
} file_rule;

/* Whether numbers of one type may be stored as another: floats are rounded, integers must fit, and booleans
 * may be bytes. */
static bool converts(const array *from, const array *to) {
  if (to->t.dtype.code == ARRAY_BOOL) return from->t.dtype.code == ARRAY_BOOL || from->t.dtype.code == kDLUInt;
  return !array_is_integer(to) || array_is_integer(from);
}

static const char *type_name(DLDataType type) {
  if (type.code == ARRAY_BOOL) return "bool";
  if (type.code == kDLUInt) return "uint8";
  return type.bits == 64 ? "int64" : type.bits == 32 ? "int32" : "int16";
}

static luattn_status convert_elements(const char *path, const array *from, array *to, luattn_error *err) {
  for (int64_t i = 0, n = array_count(to); i < n; i++) {
    if (!array_is_integer(to)) {
      array_set(to, i, array_get(from, i));
      continue;
    }
    const int64_t x = array_integer(from, i);
    if (array_set_integer(to, i, x)) continue;
    const bool is_32 = to->t.dtype.bits == 32;
    return luattn_fail(err, LUATTN_IO, "%s: element %lld is %lld, which %s %s not hold; use smaller integers", path,
                       (long long)i, (long long)x, is_32 ? "32 bits" : type_name(to->t.dtype), is_32 ? "do" : "does");
  }
  return LUATTN_OK;
}

/* Reads a [batch, heads, len, dim] tensor (or [batch, len, heads, dim] in a bshd file). */
static luattn_status read_tensor(const file_rule *rule, bool heads_last, array *out, luattn_error *err) {
  array raw;
  TRY(npy_read(rule->path, &raw, err));
  luattn_status status = LUATTN_OK;
  if (raw.t.ndim != rule->ndim) {
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: has %d dimensions, expected %d, %s; reshape it", rule->option,
                         rule->path, raw.t.ndim, rule->ndim, rule->axes);
  } else if (rule->type.bits == 0 && raw.t.dtype.code != kDLFloat) {
    status =
        luattn_fail(err, LUATTN_INVALID,
                    "%s: %s: holds %s, and dtype any in the spec stands for floats; save x.astype(numpy.float32), or "
                    "declare an integer's type",
                    rule->option, rule->path, type_name(raw.t.dtype));
  } else if (!converts(&raw, &(array){.t.dtype = rule->type})) {
    status = luattn_fail(err, LUATTN_INVALID,
                         "%s: %s: holds another type than %s, which the spec declares; save x.astype(numpy.%s)",
                         rule->option, rule->path, type_name(rule->type), type_name(rule->type));
  }
  for (int i = 0; i < raw.t.ndim && status == LUATTN_OK; i++) {
    if (raw.shape[i] > INT32_MAX) {
      status = luattn_fail(err, LUATTN_INVALID, "%s: %s: axis %d has size %lld, more than 2^31 - 1; cut it",
                           rule->option, rule->path, i, (long long)raw.shape[i]);
    }
  }
  if (status == LUATTN_OK && heads_last && rule->ndim == 4) {
    const int64_t shape = raw.shape[1], stride = raw.stride[1];
    raw.shape[1] = raw.shape[2], raw.stride[1] = raw.stride[2];
    raw.shape[2] = shape, raw.stride[2] = stride;
  }
  const DLDataType type = rule->type.bits > 0 ? rule->type : raw.t.dtype;
  if (status == LUATTN_OK) status = array_new(out, type, rule->ndim, raw.shape, heads_last, err);
  if (status == LUATTN_OK) {
    status = convert_elements(rule->path, &raw, out, err);
    if (status != LUATTN_OK) array_free(out);
  }
  array_free(&raw);
  return status;
}

/* `from`: the option that each expected size comes from. */
static luattn_status expect(const char *option, const array *a, const char *const *axis, const int64_t *shape,
                            const char *const *from, luattn_error *err) {
  for (int i = 0; i < a->t.ndim; i++) {
    if (a->shape[i] != shape[i]) {
      return luattn_fail(err, LUATTN_INVALID, "%s: %s is %lld, but %s has %lld; give arrays that agree%s", option,
                         axis[i], (long long)a->shape[i], from[i], (long long)shape[i],
                         strcmp(axis[0], "batch") == 0 ? " (and see --layout)" : "");
    }
  }
  return LUATTN_OK;
}

/* The shape of a tensor with this many heads and rows, and its number of axes. */
static int tensor_shape(const cli_problem *p, int heads, int rows, int dim, int64_t shape[4]) {
  if (p->sequences != NULL) return shape[0] = rows, shape[1] = heads, shape[2] = dim, 3;
  return shape[0] = p->batch, shape[1] = heads, shape[2] = rows, shape[3] = dim, 4;
}

/* The same of lse. */
static int lse_shape(const cli_problem *p, int64_t shape[4]) {
  if (p->sequences != NULL) return shape[0] = p->heads, shape[1] = p->q_len, 2;
  return shape[0] = p->batch, shape[1] = p->heads, shape[2] = p->q_len, 3;
}

static luattn_status check_heads(const cli_problem *p, luattn_error *err) {
  if (p->heads_kv >= 1 && p->heads % p->heads_kv == 0) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "--k: its %d heads do not divide the %d of --q; each kv head serves heads / heads_kv heads%s",
                     p->heads_kv, p->heads, p->sequences != NULL ? "" : " (and see --layout)");
}

static luattn_status read_packed(const cli_options *o, cli_problem *p, luattn_error *err) {
  static const char *const axis[] = {"rows", "heads", "head_dim"}, *const from[] = {"--cu-seqlens", "--k", "--q"};
  const char *const path[] = {o->q, o->k, o->v}, *const option[] = {"--q", "--k", "--v"};
  array *const to[] = {&p->q, &p->k, &p->v};
  const DLDataType type = dtype_dl(p->dtype);
  for (int i = 0; i < 3; i++)
    TRY(read_tensor(&(file_rule){option[i], path[i], 3, "rows of all sequences x heads x head_dim", type}, false, to[i],
                    err));
  p->heads = (int)p->q.shape[1], p->dim = (int)p->q.shape[2];
  p->heads_kv = (int)p->k.shape[1], p->dim_v = (int)p->v.shape[2];
  TRY(check_heads(p, err));
  TRY(expect("--q", &p->q, axis, (int64_t[]){p->q_len, p->heads, p->dim}, from, err));
  TRY(expect("--k", &p->k, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim}, from, err));
  return expect("--v", &p->v, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim_v}, from, err);
}

static luattn_status read_qkv(const cli_options *o, cli_problem *p, luattn_error *err) {
  static const char *const axis[] = {"batch", "heads_kv", "kv_len", "head_dim"};
  const char *axes = p->heads_last ? "batch x length x heads x head_dim" : "batch x heads x length x head_dim";
  const DLDataType type = dtype_dl(p->dtype);
  if (o->k == NULL || o->v == NULL || o->q == NULL) {
    return luattn_fail(err, LUATTN_INVALID, "%s: is missing; --q, --k and --v go together: give all three or none",
                       o->q == NULL   ? "--q"
                       : o->k == NULL ? "--k"
                                      : "--v");
  }
  if (p->sequences != NULL) return read_packed(o, p, err);
  TRY(read_tensor(&(file_rule){"--q", o->q, 4, axes, type}, p->heads_last, &p->q, err));
  TRY(read_tensor(&(file_rule){"--k", o->k, 4, axes, type}, p->heads_last, &p->k, err));
  TRY(read_tensor(&(file_rule){"--v", o->v, 4, axes, type}, p->heads_last, &p->v, err));
  p->batch = (int)p->q.shape[0], p->heads = (int)p->q.shape[1], p->q_len = (int)p->q.shape[2],
  p->dim = (int)p->q.shape[3];
  p->heads_kv = (int)p->k.shape[1], p->kv_len = (int)p->k.shape[2], p->dim_v = (int)p->v.shape[3];
  TRY(check_heads(p, err));
  TRY(expect("--k", &p->k, axis, (int64_t[]){p->batch, p->heads_kv, p->kv_len, p->dim},
             (const char *const[]){"--q", "--k", "--k", "--q"}, err));
  return expect("--v", &p->v, axis, (int64_t[]){p->batch, p->heads_kv, p->kv_len, p->dim_v},
                (const char *const[]){"--q", "--k", "--k", "--v"}, err);
}

static luattn_status random_qkv(cli_problem *p, bool fill, uint64_t *seed, luattn_error *err) {
  array *const qkv[] = {&p->q, &p->k, &p->v};
  const DLDataType type = dtype_dl(p->dtype);
  int64_t shape[4];
  int ndim = tensor_shape(p, p->heads, p->q_len, p->dim, shape);
  TRY(array_new(&p->q, type, ndim, shape, p->heads_last, err));
  ndim = tensor_shape(p, p->heads_kv, p->kv_len, p->dim, shape);
  TRY(array_new(&p->k, type, ndim, shape, p->heads_last, err));
  ndim = tensor_shape(p, p->heads_kv, p->kv_len, p->dim_v, shape);
  TRY(array_new(&p->v, type, ndim, shape, p->heads_last, err));
  for (int i = 0; i < 3; i++) {
    if (fill)
      fill_normal(qkv[i], 1, seed);
    else
      skip_normal(qkv[i], seed);
  }
  return LUATTN_OK;
}

static luattn_status read_gradients(const cli_options *o, cli_problem *p, uint64_t *seed, luattn_error *err) {
  static const char *const entries[] = {"batch", "heads", "q_len", "head_dim_v"},
                           *const packed[] = {"rows", "heads", "head_dim_v"},
                           *const from[] = {"--q", "--q", "--q", "--v"}, *const from_packed[] = {"--q", "--q", "--v"},
                           *const numbers[] = {"heads", "rows"};
  const bool is_packed = p->sequences != NULL;
  const char *const *axis = is_packed ? packed : entries;
  const char *axes = is_packed       ? "rows of all sequences x heads x head_dim_v"
                     : p->heads_last ? "batch x q_len x heads x head_dim_v"
                                     : "batch x heads x q_len x head_dim_v";
  int64_t shape[4], lse[4];
  const int ndim = tensor_shape(p, p->heads, p->q_len, p->dim_v, shape), lse_ndim = lse_shape(p, lse);
  const DLDataType type = dtype_dl(p->dtype),
                   real = p->dtype == LUATTN_F64 ? dtype_dl(LUATTN_F64) : dtype_dl(LUATTN_F32);
  if (o->dout != NULL) {
    TRY(read_tensor(&(file_rule){"--dout", o->dout, ndim, axes, type}, p->heads_last, &p->dout, err));
    TRY(expect("--dout", &p->dout, axis, shape, is_packed ? from_packed : from, err));
  } else {
    TRY(array_new(&p->dout, type, ndim, shape, p->heads_last, err));
    fill_normal(&p->dout, 1, seed);
  }
  if (o->dlse != NULL) {
    TRY(read_tensor(
        &(file_rule){"--dlse", o->dlse, lse_ndim, is_packed ? "heads x rows" : "batch x heads x q_len", real}, false,
        &p->dlse, err));
    TRY(expect("--dlse", &p->dlse, is_packed ? numbers : axis, lse, from, err));
  } else if (o->dout == NULL && p->info.has_lse) {
    TRY(array_new(&p->dlse, real, lse_ndim, lse, false, err));
    fill_normal(&p->dlse, 1, seed);
  }
  return LUATTN_OK;
}

/* Reports a name that the spec lacks. */
static luattn_status unknown(const char *option, const char *kind, const char *name, const cli_problem *p,
                             luattn_error *err) {
  char known[512] = "none";
  size_t used = 0, n = strcmp(kind, "input") == 0 ? p->info.num_inputs : p->info.num_scalars;
  for (size_t i = 0; i < n && used < sizeof known; i++) {
    const char *one = strcmp(kind, "input") == 0 ? p->info.inputs[i].name : p->info.scalar_names[i];
    used += (size_t)snprintf(known + used, sizeof known - used, "%s'%s'", i > 0 ? ", " : "", one);
  }
  return luattn_fail(err, LUATTN_INVALID, "%s: '%s' is no %s of the spec '%s'; it declares %s", option, name, kind,
                     p->info.name, known);
}

static luattn_status check_names(const cli_options *o, const cli_problem *p, luattn_error *err) {
  for (int j = 0; j < o->num_inputs; j++) {
    bool known = false;
    for (size_t i = 0; i < p->info.num_inputs; i++) known |= strcmp(o->input[j].name, p->info.inputs[i].name) == 0;
    if (!known) return unknown("--input", "input", o->input[j].name, p, err);
  }
  for (int j = 0; j < o->num_sets; j++) {
    bool known = false;
    for (size_t i = 0; i < p->info.num_scalars; i++) known |= strcmp(o->set[j].name, p->info.scalar_names[i]) == 0;
    if (!known) return unknown("--set", "scalar", o->set[j].name, p, err);
  }
  return LUATTN_OK;
}

/* The DLTensor of an array, with pointers into this very array. */
static const DLTensor *tensor(const array *a) {
  if (a->storage == NULL) return NULL;
  array *self = (array *)(uintptr_t)a; /* a view has pointers into the array, whose value stays the same */
  self->t.shape = self->shape;
  self->t.strides = self->stride;
  return &a->t;
}

/* Stands for the type that a file has. */
static const DLDataType any_float = {kDLFloat, 0, 1};

static luattn_status read_input(const luattn_input_info *info, const char *path, const cli_problem *p, array *out,
                                luattn_error *err) {
  char option[32 + LUATTN_NAME_SIZE];
  snprintf(option, sizeof option, "--input: %s", info->name);
  const file_rule rule = {option, path, (int)info->num_axes, "as the spec declares",
                          info->dtype == LUATTN_INPUT_ANY ? any_float : dtype_of_input(info->dtype)};
  TRY(read_tensor(&rule, false, out, err));
  for (uint32_t j = 0; j < info->num_axes; j++) {
    const int64_t have = out->shape[j], want = axis_size(p, info, j);
    const bool any = info->axis[j] == LUATTN_AXIS_FREE && have > 0;
    const bool broadcast = have == 1 && (info->axis[j] == LUATTN_AXIS_B || info->axis[j] == LUATTN_AXIS_H);
    if (have == want || any || broadcast) continue;
    return luattn_fail(err, LUATTN_INVALID,
                       "%s: %s: axis %u has size %lld, expected %lld as the spec declares; cut or pad it", option, path,
                       (unsigned)j, (long long)have, (long long)(info->axis[j] == LUATTN_AXIS_FREE ? 1 : want));
  }
  return LUATTN_OK;
}

/* An integer by itself, or for each batch entry or head, is a length, a prefix or a window. */
static bool counts_positions(const luattn_input_info *info) {
  bool all = true;
  for (uint32_t i = 0; i < info->num_axes; i++)
    all &= info->axis[i] == LUATTN_AXIS_B || info->axis[i] == LUATTN_AXIS_H || info->axis[i] == LUATTN_AXIS_HKV;
  return all;
}

static void fill_input(array *a, const luattn_input_info *info, const cli_problem *p, uint64_t *seed) {
  const int64_t n = array_count(a);
  if (input_is_integer(info->dtype) && counts_positions(info)) {
    const int most = info->dtype == LUATTN_INPUT_U8 && p->kv_len > UINT8_MAX ? UINT8_MAX : p->kv_len;
    for (int64_t i = 0; i < n; i++) array_set(a, i, floor(uniform(seed) * ((double)most + 1)));
  } else if (input_is_integer(info->dtype)) {
    fill_ids(a, seed);
  } else if (info->dtype == LUATTN_INPUT_BOOL) {
    for (int64_t i = 0; i < n; i++) array_set(a, i, uniform(seed) < 0.5);
  } else {
    fill_normal(a, 0.5, seed);
  }
}

/* Warns of integers beyond what kernels compute with, where the spec, or its mask alone, does so. */
static void warn_of_ints(const cli_problem *p, int input, bool mask_alone) {
  char warning[INT_RANGE_TEXT];
  if (int_range_warning(p->spec, input, mask_alone ? INT_RANGE_MASK : INT_RANGE_SPEC, tensor(&p->input[input]),
                        warning))
    fprintf(stderr, "luattn: warning: --input: %s: %s\n", p->info.inputs[input].name, warning);
}

static luattn_status read_inputs(const cli_options *o, cli_problem *p, uint64_t *seed, luattn_error *err) {
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    const luattn_input_info *info = &p->info.inputs[i];
    const char *path = NULL;
    for (int j = 0; j < o->num_inputs; j++) {
      if (strcmp(o->input[j].name, info->name) == 0) path = o->input[j].value;
    }
    if (path != NULL) {
      TRY(read_input(info, path, p, &p->input[i], err));
      warn_of_ints(p, (int)i, o->mask_only);
      continue;
    }
    int64_t shape[4];
    for (uint32_t j = 0; j < info->num_axes; j++) shape[j] = axis_size(p, info, j);
    const DLDataType type = info->dtype == LUATTN_INPUT_ANY ? dtype_dl(p->dtype) : dtype_of_input(info->dtype);
    TRY(array_new(&p->input[i], type, (int)info->num_axes, shape, false, err));
    fill_input(&p->input[i], info, p, seed);
  }
  return LUATTN_OK;
}

/* A number of float64, or infinity in so many letters: 1e400 is neither. */
static bool read_scalar(const char *text, double *x) {
  char *end;
  *x = real_read(text, &end);
  if (*end != 0 || end == text || isnan(*x)) return false;
  const char *letters = text + (*text == '-' || *text == '+');
  return isfinite(*x) || *letters == 'i' || *letters == 'I';
}

/* 1e400, which no float64 holds. */
static bool is_too_large(const char *text) {
  char *end;
  return isinf(real_read(text, &end)) && *end == 0 && end != text;
}

static luattn_status read_scalars(const cli_options *o, cli_problem *p, luattn_error *err) {
  for (int i = 0; i < o->num_sets; i++) {
    double x;
    if (!read_scalar(o->set[i].value, &x) && is_too_large(o->set[i].value))
      return luattn_fail(
          err, LUATTN_INVALID,
          "--set: %s: %s is larger than float64 holds, which is 1.8e308; give a smaller number, or %sinf",
          o->set[i].name, o->set[i].value, o->set[i].value[0] == '-' ? "-" : "");
    if (!read_scalar(o->set[i].value, &x))
      return luattn_fail(err, LUATTN_INVALID, "--set: %s: '%s' is not a number; give --set %s=1.5, or inf or -inf",
                         o->set[i].name, o->set[i].value, o->set[i].name);
    p->scalar[p->num_scalars++] = (luattn_scalar){o->set[i].name, x};
  }
  return LUATTN_OK;
}

static luattn_status read_options(const cli_options *o, cli_problem *p, luattn_error *err) {
  TRY(dtype_option(o, &p->dtype, err));
  if (o->layout != NULL && strcmp(o->layout, "bhsd") != 0 && strcmp(o->layout, "bshd") != 0) {
    return luattn_fail(err, LUATTN_INVALID, "--layout: '%s' is not a memory order; use bhsd or bshd", o->layout);
  }
  p->heads_last = o->layout != NULL && strcmp(o->layout, "bshd") == 0;
  if (o->has_scale && !(o->scale > 0 && isfinite(o->scale))) {
    return luattn_fail(err, LUATTN_INVALID, "--scale: %g is not a positive number; leave it out for head_dim^-1/2",
                       o->scale);
  }
  TRY(check_names(o, p, err));
  TRY(read_scalars(o, p, err));
  TRY(shape_option(o, p, err));
  return sequences_option(o, p, err);
}

static luattn_status skip_option(const cli_options *o, int *out, luattn_error *err) {
  static const char *const names[] = {
      [LUATTN_SKIP_AUTO] = "auto", [LUATTN_SKIP_ALWAYS] = "always", [LUATTN_SKIP_NEVER] = "never"};
  for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
    if (o->skip != NULL && strcmp(o->skip, names[i]) != 0) continue;
    *out = i;
    return LUATTN_OK;
  }
  return luattn_fail(err, LUATTN_INVALID, "--skip: '%s' is not a choice; use auto, always or never", o->skip);
}

luattn_status problem_read(const luattn_spec *spec, const cli_options *o, bool need_dout, cli_problem *p,
                           luattn_error *err) {
  uint64_t seed = (uint64_t)o->seed;
  *p = (cli_problem){
      .spec = spec,
      .dtype = LUATTN_F32,
      .scale = o->scale,
      .decode = o->decode,
      .no_decode = o->no_decode,
      .seed = seed,
#define CALL_CHOICE(name, serves_both, if_1, if_0, lacks) .name = o->name,
#include "abi/kernel_facts.def"
  };
  if (o->splits < 0 || o->splits > CHOICES_MAX_SPLITS)
    return luattn_fail(err, LUATTN_INVALID, "--splits: is %ld, expected 1 to %d, or 0 to leave it to the launch",
                       o->splits, CHOICES_MAX_SPLITS);
  if (o->decode && o->no_decode)
    return luattn_fail(err, LUATTN_INVALID,
                       "--no-decode: goes without --decode, which asks for the other kernel; give one of both");
  p->num_splits = (int)o->splits;
  TRY(skip_option(o, &p->skip, err));
  luattn_spec_get_info(spec, &p->info);
  if (o->keys_modified) p->info.has_backward = 0;
  luattn_status status = read_options(o, p, err);
  if (status == LUATTN_OK) {
    status =
        o->q != NULL || o->k != NULL || o->v != NULL ? read_qkv(o, p, err) : random_qkv(p, !o->mask_only, &seed, err);
  }
  if (status == LUATTN_OK) status = read_inputs(o, p, &seed, err);
  if (status == LUATTN_OK && need_dout) status = read_gradients(o, p, &seed, err);
  if (status != LUATTN_OK) problem_free(p);
  return status;
}

void problem_free(cli_problem *p) {
  array *const owned[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) array_free(owned[i]);
  for (int i = 0; i < 12; i++) array_free(&p->input[i]);
  sequences_free(p);
}

const char *problem_text(const cli_problem *p, char text[128]) {
  if (p->sequences != NULL)
    snprintf(text, 128, "%d sequences, H%d/%d Sq%d Skv%d in all, at most %d and %d, D%d Dv%d", p->batch, p->heads,
             p->heads_kv, p->q_len, p->kv_len, p->longest[0], p->longest[1], p->dim, p->dim_v);
  else
    snprintf(text, 128, "B%d H%d/%d Sq%d Skv%d D%d Dv%d", p->batch, p->heads, p->heads_kv, p->q_len, p->kv_len, p->dim,
             p->dim_v);
  const int keep = p->spec->traced.online.keep;
  const size_t used = strlen(text);
  if (keep != SPEC_KEEP_ALL)
    snprintf(text + used, 128 - used, ", %d of %d weights dropped", SPEC_KEEP_ALL - keep, SPEC_KEEP_ALL);
  return text;
}

/* ---- results ---- */

size_t problem_num_saved(const cli_problem *p) {
  return p->large_scores ? p->info.num_saved_large_scores : p->info.num_saved;
}

luattn_status result_new(const cli_problem *p, DLDataType storage, DLDataType real, bool backward, cli_result *r,
                         luattn_error *err) {
  int64_t rows[4], saved[5] = {(int64_t)problem_num_saved(p)};
  const int ndim = tensor_shape(p, p->heads, p->q_len, p->dim_v, rows), lse_ndim = lse_shape(p, saved + 1);
  *r = (cli_result){0};
  luattn_status s = array_new(&r->o, storage, ndim, rows, p->heads_last, err);
  if (s == LUATTN_OK && p->info.has_lse) s = array_new(&r->lse, real, lse_ndim, saved + 1, false, err);
  if (s == LUATTN_OK && problem_num_saved(p) > 0) s = array_new(&r->saved, real, 1 + lse_ndim, saved, false, err);
  if (s == LUATTN_OK && backward) {
    s = array_new(&r->dq, storage, ndim, p->q.shape, p->heads_last, err);
    if (s == LUATTN_OK) s = array_new(&r->dk, storage, ndim, p->k.shape, p->heads_last, err);
    if (s == LUATTN_OK) s = array_new(&r->dv, storage, ndim, p->v.shape, p->heads_last, err);
    for (size_t i = 0; i < p->info.num_inputs && s == LUATTN_OK; i++) {
      if (p->info.inputs[i].grad)
        s = array_new(&r->input_grad[i], real, p->input[i].t.ndim, p->input[i].shape, false, err);
    }
    const int64_t scalars[] = {(int64_t)p->info.num_scalars};
    if (s == LUATTN_OK && p->info.num_scalars > 0) s = array_new(&r->scalar_grads, real, 1, scalars, false, err);
  }
  if (s != LUATTN_OK) result_free(r);
  return s;
}

void result_free(cli_result *r) {
  array *const owned[] = {&r->o, &r->lse, &r->saved, &r->weights, &r->dq, &r->dk, &r->dv, &r->scalar_grads};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) array_free(owned[i]);
  for (int i = 0; i < 12; i++) array_free(&r->input_grad[i]);
}

luattn_lengths problem_decode_rows(const cli_problem *p) {
  return (int64_t)p->q_len * p->heads > (int64_t)LUATTN_DECODE_TILE * p->heads_kv ? LUATTN_LONG : LUATTN_SHORT;
}

bool problem_has_many_rows(const cli_problem *p) {
  return (int64_t)p->q_len * p->heads > (int64_t)LUATTN_DECODE_MANY * p->heads_kv;
}

luattn_args problem_args(const cli_problem *p, const cli_result *r, bool backward, cli_binding *bind) {
  for (size_t i = 0; i < p->info.num_inputs; i++) {
    bind->inputs[i] =
        (luattn_input){p->info.inputs[i].name, tensor(&p->input[i]), backward ? tensor(&r->input_grad[i]) : NULL};
  }
  luattn_args args = {
      .struct_size = sizeof args,
      .q = tensor(&p->q),
      .k = tensor(&p->k),
      .v = tensor(&p->v),
      .o = tensor(&r->o),
      .lse = tensor(&r->lse),
      .saved = tensor(&r->saved),
      .inputs = bind->inputs,
      .num_inputs = p->info.num_inputs,
      .scalars = p->scalar,
      .num_scalars = (size_t)p->num_scalars,
      .scale = p->scale,
      .skip = p->skip,
#define CALL_CHOICE(name, serves_both, if_1, if_0, lacks) .name = p->name,
#include "abi/kernel_facts.def"
      .decode = p->decode      ? LUATTN_DECODE_ALWAYS
                : p->no_decode ? LUATTN_DECODE_NEVER
                               : LUATTN_DECODE_AUTO,
      .random = &bind->random,
      .batch = p->sequences,
  };
  bind->random = (luattn_random){.struct_size = sizeof bind->random, .seed = p->seed};
  if (backward) {
    args.dout = tensor(&p->dout), args.dlse = tensor(&p->dlse);
    args.dq = tensor(&r->dq), args.dk = tensor(&r->dk), args.dv = tensor(&r->dv);
    args.scalar_grads = tensor(&r->scalar_grads);
    args.num_splits = p->decode ? 0 : p->num_splits;
  } else if (p->decode) {
    args.num_splits = p->num_splits;
  }
  return args;
}
