/* problem.c: makes the tensors of one call, from .npy files or random numbers. */
#include <math.h>
#include <string.h>

#include "cli/extents.h"
#include "cli/problem.h"
#include "cli/random_array.h"
#include "cli/read_array.h"
#include "cli/sequence_ends.h"
#include "common/call/choices.h"
#include "common/real.h"
#include "gen/spec.h"

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
  static const char *const names[] = {"B", "H", "Hkv", "D", "Dv"};
  const char *text = o->shape != NULL ? o->shape : "1,2,2,256,256,64";
  TRY(extents_parse(text, p, err));
  const int size[] = {p->batch, p->heads, p->heads_kv, p->dim, p->dim_v};
  for (int i = 0; i < 5; i++) {
    if (size[i] == 0)
      return luattn_fail(err, LUATTN_INVALID, "--shape: '%s': %s is 0; it must be at least 1", text, names[i]);
  }
  if (p->heads % p->heads_kv != 0) {
    return luattn_fail(err, LUATTN_INVALID,
                       "--shape: '%s': H = %d is not a multiple of Hkv = %d; each kv head serves H / Hkv heads", text,
                       p->heads, p->heads_kv);
  }
  return head_dim_option(o, p, err);
}

/* Writes the extents of a side, of a line its length, and returns how many there are. */
static int put_rows(const cli_problem *p, int side, int64_t *to) {
  if (p->axes <= 1) return to[0] = side == 0 ? p->q_len : p->kv_len, 1;
  for (int a = 0; a < p->axes; a++) to[a] = p->extent[side][a];
  return p->axes;
}

int problem_tensor_shape(const cli_problem *p, int heads, int side, int dim, int64_t shape[ARRAY_MAX_AXES]) {
  int n = 0;
  if (p->sequences != NULL) {
    n += put_rows(p, side, shape);
    shape[n++] = heads;
  } else {
    shape[n++] = p->batch, shape[n++] = heads;
    n += put_rows(p, side, shape + n);
  }
  return shape[n++] = dim, n;
}

int problem_lse_shape(const cli_problem *p, int64_t shape[ARRAY_MAX_AXES]) {
  int n = 0;
  if (p->sequences == NULL) shape[n++] = p->batch;
  shape[n++] = p->heads;
  return n + put_rows(p, 0, shape + n);
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
    TRY(read_array(&(file_rule){option[i], path[i], 3, "rows of all sequences x heads x head_dim", type}, false, to[i],
                   err));
  p->heads = (int)p->q.shape[1], p->dim = (int)p->q.shape[2];
  p->heads_kv = (int)p->k.shape[1], p->dim_v = (int)p->v.shape[2];
  TRY(check_heads(p, err));
  TRY(expect_shape("--q", &p->q, axis, (int64_t[]){p->q_len, p->heads, p->dim}, from, err));
  TRY(expect_shape("--k", &p->k, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim}, from, err));
  return expect_shape("--v", &p->v, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim_v}, from, err);
}

/* The axes of a tensor with batch entries, and where their expected sizes come from, for messages. */
typedef struct axis_texts {
  const char *name[ARRAY_MAX_AXES], *from[ARRAY_MAX_AXES];
  char order[128]; /* as files have them */
} axis_texts;

static void name_axes(const cli_problem *p, const char *const name[4], const char *const from[4], axis_texts *out) {
  const char *const *grid = NULL;
  const int rows = p->axes > 1 ? luattn_spec_grid(p->spec, &grid) : 1;
  size_t used = 0;
  for (int i = 0; i < rows + 3; i++) {
    const int of = i < 2 ? i : i < 2 + rows ? 2 : 3;
    out->name[i] = of == 2 && grid != NULL ? grid[i - 2] : name[of], out->from[i] = from[of];
  }
  for (int i = 0; i < rows + 3 && used < sizeof out->order; i++) {
    const int axis = !p->heads_last || i == 0 || i == rows + 2 ? i : i == rows + 1 ? 1 : i + 1;
    used += (size_t)snprintf(out->order + used, sizeof out->order - used, "%s%s", i > 0 ? " x " : "", out->name[axis]);
  }
}

static luattn_status read_qkv(const cli_options *o, cli_problem *p, luattn_error *err) {
  static const char *const axis[] = {"batch", "heads", "length", "head_dim"}, *const of_k[] = {"batch", "heads_kv",
                                                                                               "kv_len", "head_dim"};
  const DLDataType type = dtype_dl(p->dtype);
  axis_texts texts;
  int64_t shape[ARRAY_MAX_AXES];
  if (o->k == NULL || o->v == NULL || o->q == NULL) {
    return luattn_fail(err, LUATTN_INVALID, "%s: is missing; --q, --k and --v go together: give all three or none",
                       o->q == NULL   ? "--q"
                       : o->k == NULL ? "--k"
                                      : "--v");
  }
  if (p->sequences != NULL) return read_packed(o, p, err);
  const int ndim = problem_tensor_shape(p, 1, 0, 1, shape);
  name_axes(p, axis, axis, &texts);
  TRY(read_array(&(file_rule){"--q", o->q, ndim, texts.order, type}, p->heads_last, &p->q, err));
  TRY(read_array(&(file_rule){"--k", o->k, ndim, texts.order, type}, p->heads_last, &p->k, err));
  TRY(read_array(&(file_rule){"--v", o->v, ndim, texts.order, type}, p->heads_last, &p->v, err));
  extents_take(p, 0, &p->q), extents_take(p, 1, &p->k);
  p->batch = (int)p->q.shape[0], p->heads = (int)p->q.shape[1], p->dim = (int)p->q.shape[ndim - 1];
  p->heads_kv = (int)p->k.shape[1], p->dim_v = (int)p->v.shape[ndim - 1];
  TRY(check_heads(p, err));
  name_axes(p, of_k, (const char *const[]){"--q", "--k", "--k", "--q"}, &texts);
  (void)problem_tensor_shape(p, p->heads_kv, 1, p->dim, shape);
  TRY(expect_shape("--k", &p->k, texts.name, shape, texts.from, err));
  name_axes(p, of_k, (const char *const[]){"--q", "--k", "--k", "--v"}, &texts);
  (void)problem_tensor_shape(p, p->heads_kv, 1, p->dim_v, shape);
  return expect_shape("--v", &p->v, texts.name, shape, texts.from, err);
}

static luattn_status random_qkv(cli_problem *p, bool fill, uint64_t *seed, luattn_error *err) {
  array *const qkv[] = {&p->q, &p->k, &p->v};
  const DLDataType type = dtype_dl(p->dtype);
  int64_t shape[ARRAY_MAX_AXES];
  int ndim = problem_tensor_shape(p, p->heads, 0, p->dim, shape);
  TRY(array_new(&p->q, type, ndim, shape, p->heads_last, err));
  ndim = problem_tensor_shape(p, p->heads_kv, 1, p->dim, shape);
  TRY(array_new(&p->k, type, ndim, shape, p->heads_last, err));
  ndim = problem_tensor_shape(p, p->heads_kv, 1, p->dim_v, shape);
  TRY(array_new(&p->v, type, ndim, shape, p->heads_last, err));
  for (int i = 0; i < 3; i++) {
    if (fill)
      random_normal(qkv[i], 1, seed);
    else
      random_skip_normal(qkv[i], seed);
  }
  return LUATTN_OK;
}

static luattn_status read_gradients(const cli_options *o, cli_problem *p, uint64_t *seed, luattn_error *err) {
  static const char *const entries[] = {"batch", "heads", "q_len", "head_dim_v"},
                           *const packed[] = {"rows", "heads", "head_dim_v"},
                           *const from[] = {"--q", "--q", "--q", "--v"}, *const from_packed[] = {"--q", "--q", "--v"},
                           *const numbers[] = {"heads", "rows"};
  const bool is_packed = p->sequences != NULL;
  axis_texts texts;
  int64_t shape[ARRAY_MAX_AXES], lse[ARRAY_MAX_AXES];
  name_axes(p, entries, from, &texts);
  const char *axes = is_packed ? "rows of all sequences x heads x head_dim_v" : texts.order;
  const int ndim = problem_tensor_shape(p, p->heads, 0, p->dim_v, shape), lse_ndim = problem_lse_shape(p, lse);
  const DLDataType type = dtype_dl(p->dtype),
                   real = p->dtype == LUATTN_F64 ? dtype_dl(LUATTN_F64) : dtype_dl(LUATTN_F32);
  if (o->dout != NULL) {
    TRY(read_array(&(file_rule){"--dout", o->dout, ndim, axes, type}, p->heads_last, &p->dout, err));
    TRY(expect_shape("--dout", &p->dout, is_packed ? packed : texts.name, shape, is_packed ? from_packed : texts.from,
                     err));
  } else {
    TRY(array_new(&p->dout, type, ndim, shape, p->heads_last, err));
    random_normal(&p->dout, 1, seed);
  }
  if (o->dlse != NULL) {
    const char *const rows = p->axes > 1 ? "batch x heads x the axes of the grid" : "batch x heads x q_len";
    TRY(read_array(&(file_rule){"--dlse", o->dlse, lse_ndim, is_packed ? "heads x rows" : rows, real}, false, &p->dlse,
                   err));
    TRY(expect_shape("--dlse", &p->dlse, is_packed ? numbers : texts.name, lse, texts.from, err));
  } else if (o->dout == NULL && p->info.has_lse) {
    TRY(array_new(&p->dlse, real, lse_ndim, lse, false, err));
    random_normal(&p->dlse, 1, seed);
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

/* --out-f32, --grad-f32: of half types; results of others have the type of q, k and v. */
static luattn_status check_results_in_f32(const cli_options *o, luattn_dtype dtype, luattn_error *err) {
  const char *asked = o->out_f32 ? "--out-f32" : o->grad_f32 ? "--grad-f32" : NULL;
  if (asked == NULL || dtype == LUATTN_BF16 || dtype == LUATTN_F16) return LUATTN_OK;
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: is for --dtype bf16 and f16, and results of %s have its own type; leave it out", asked,
                     kernel_dtype(dtype)->text);
}

static luattn_status read_options(const cli_options *o, cli_problem *p, luattn_error *err) {
  TRY(dtype_option(o, &p->dtype, err));
  TRY(check_results_in_f32(o, p->dtype, err));
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
  TRY(extents_check(o, p, err));
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

const char *problem_lacks_backward(const cli_options *o) {
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) \
  if (o->name && (lacks)[0] != 0) return lacks;
#include "abi/kernel_facts.def"
  return NULL;
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
#define CALL_CHOICE(name, matters, serves_both, if_1, if_0, lacks) .name = o->name,
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
  TRY(box_options(o, &p->query_tile_size, &p->key_tile_size, err));
  luattn_spec_get_info(spec, &p->info);
  if (problem_lacks_backward(o) != NULL) p->info.has_backward = 0;
  luattn_status status = read_options(o, p, err);
  if (status == LUATTN_OK) {
    status =
        o->q != NULL || o->k != NULL || o->v != NULL ? read_qkv(o, p, err) : random_qkv(p, !o->mask_only, &seed, err);
  }
  if (status == LUATTN_OK) status = problem_read_inputs(o, p, &seed, err);
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

const char *problem_text(const cli_problem *p, char text[PROBLEM_TEXT]) {
  char rows[2][64];
  if (p->sequences != NULL)
    snprintf(text, PROBLEM_TEXT, "%d sequences, H%d/%d Sq%d Skv%d in all, at most %d and %d, D%d Dv%d", p->batch,
             p->heads, p->heads_kv, p->q_len, p->kv_len, p->longest[0], p->longest[1], p->dim, p->dim_v);
  else
    snprintf(text, PROBLEM_TEXT, "B%d H%d/%d Sq%s Skv%s D%d Dv%d", p->batch, p->heads, p->heads_kv,
             extents_text(p, 0, rows[0]), extents_text(p, 1, rows[1]), p->dim, p->dim_v);
  const int keep = p->spec->traced.online.keep;
  const size_t used = strlen(text);
  if (keep != SPEC_KEEP_ALL)
    snprintf(text + used, PROBLEM_TEXT - used, ", %d of %d weights dropped", SPEC_KEEP_ALL - keep, SPEC_KEEP_ALL);
  return text;
}
