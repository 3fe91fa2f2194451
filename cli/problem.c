/* problem.c: makes the tensors of one call, from .npy files or random numbers. */
#include <math.h>
#include <string.h>

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

int problem_tensor_shape(const cli_problem *p, int heads, int rows, int dim, int64_t shape[4]) {
  if (p->sequences != NULL) return shape[0] = rows, shape[1] = heads, shape[2] = dim, 3;
  return shape[0] = p->batch, shape[1] = heads, shape[2] = rows, shape[3] = dim, 4;
}

int problem_lse_shape(const cli_problem *p, int64_t shape[4]) {
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
    TRY(read_array(&(file_rule){option[i], path[i], 3, "rows of all sequences x heads x head_dim", type}, false, to[i],
                   err));
  p->heads = (int)p->q.shape[1], p->dim = (int)p->q.shape[2];
  p->heads_kv = (int)p->k.shape[1], p->dim_v = (int)p->v.shape[2];
  TRY(check_heads(p, err));
  TRY(expect_shape("--q", &p->q, axis, (int64_t[]){p->q_len, p->heads, p->dim}, from, err));
  TRY(expect_shape("--k", &p->k, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim}, from, err));
  return expect_shape("--v", &p->v, axis, (int64_t[]){p->kv_len, p->heads_kv, p->dim_v}, from, err);
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
  TRY(read_array(&(file_rule){"--q", o->q, 4, axes, type}, p->heads_last, &p->q, err));
  TRY(read_array(&(file_rule){"--k", o->k, 4, axes, type}, p->heads_last, &p->k, err));
  TRY(read_array(&(file_rule){"--v", o->v, 4, axes, type}, p->heads_last, &p->v, err));
  p->batch = (int)p->q.shape[0], p->heads = (int)p->q.shape[1], p->q_len = (int)p->q.shape[2],
  p->dim = (int)p->q.shape[3];
  p->heads_kv = (int)p->k.shape[1], p->kv_len = (int)p->k.shape[2], p->dim_v = (int)p->v.shape[3];
  TRY(check_heads(p, err));
  TRY(expect_shape("--k", &p->k, axis, (int64_t[]){p->batch, p->heads_kv, p->kv_len, p->dim},
                   (const char *const[]){"--q", "--k", "--k", "--q"}, err));
  return expect_shape("--v", &p->v, axis, (int64_t[]){p->batch, p->heads_kv, p->kv_len, p->dim_v},
                      (const char *const[]){"--q", "--k", "--k", "--v"}, err);
}

static luattn_status random_qkv(cli_problem *p, bool fill, uint64_t *seed, luattn_error *err) {
  array *const qkv[] = {&p->q, &p->k, &p->v};
  const DLDataType type = dtype_dl(p->dtype);
  int64_t shape[4];
  int ndim = problem_tensor_shape(p, p->heads, p->q_len, p->dim, shape);
  TRY(array_new(&p->q, type, ndim, shape, p->heads_last, err));
  ndim = problem_tensor_shape(p, p->heads_kv, p->kv_len, p->dim, shape);
  TRY(array_new(&p->k, type, ndim, shape, p->heads_last, err));
  ndim = problem_tensor_shape(p, p->heads_kv, p->kv_len, p->dim_v, shape);
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
  const char *const *axis = is_packed ? packed : entries;
  const char *axes = is_packed       ? "rows of all sequences x heads x head_dim_v"
                     : p->heads_last ? "batch x q_len x heads x head_dim_v"
                                     : "batch x heads x q_len x head_dim_v";
  int64_t shape[4], lse[4];
  const int ndim = problem_tensor_shape(p, p->heads, p->q_len, p->dim_v, shape), lse_ndim = problem_lse_shape(p, lse);
  const DLDataType type = dtype_dl(p->dtype),
                   real = p->dtype == LUATTN_F64 ? dtype_dl(LUATTN_F64) : dtype_dl(LUATTN_F32);
  if (o->dout != NULL) {
    TRY(read_array(&(file_rule){"--dout", o->dout, ndim, axes, type}, p->heads_last, &p->dout, err));
    TRY(expect_shape("--dout", &p->dout, axis, shape, is_packed ? from_packed : from, err));
  } else {
    TRY(array_new(&p->dout, type, ndim, shape, p->heads_last, err));
    random_normal(&p->dout, 1, seed);
  }
  if (o->dlse != NULL) {
    TRY(read_array(
        &(file_rule){"--dlse", o->dlse, lse_ndim, is_packed ? "heads x rows" : "batch x heads x q_len", real}, false,
        &p->dlse, err));
    TRY(expect_shape("--dlse", &p->dlse, is_packed ? numbers : axis, lse, from, err));
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
  TRY(spec_needs_line(spec, err));
  if (o->splits < 0 || o->splits > CHOICES_MAX_SPLITS)
    return luattn_fail(err, LUATTN_INVALID, "--splits: is %ld, expected 1 to %d, or 0 to leave it to the launch",
                       o->splits, CHOICES_MAX_SPLITS);
  if (o->decode && o->no_decode)
    return luattn_fail(err, LUATTN_INVALID,
                       "--no-decode: goes without --decode, which asks for the other kernel; give one of both");
  p->num_splits = (int)o->splits;
  TRY(skip_option(o, &p->skip, err));
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
