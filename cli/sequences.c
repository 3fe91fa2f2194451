/* sequences.c: packed sequences, and each of them as a problem of its own. */
#include "cli/sequences.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "common/packed_axis.h"
#include "gen/spec.h"

/* ---- the options ---- */

static bool is_list(const char *text) { return text[0] != 0 && text[strspn(text, "0123456789,")] == 0; }

/* Numbers with commas between them, as an int32 array. */
static luattn_status read_list(const char *option, const char *text, array *out, luattn_error *err) {
  int64_t count = 1;
  for (const char *at = text; *at != 0; at++) count += *at == ',';
  TRY(array_new(out, dtype_of_input(LUATTN_INPUT_I32), 1, &count, false, err));
  if (parse_sizes(text, (int)count, out->storage) == count) return LUATTN_OK;
  array_free(out);
  return luattn_fail(err, LUATTN_INVALID,
                     "%s: '%s' is not a list of sequences' ends, each at most %d; give 0 and the ends as in 0,100,356", option, text,
                     INT32_MAX);
}

static luattn_status read_file(const char *option, const char *path, array *out, luattn_error *err) {
  array raw;
  TRY(npy_read(path, &raw, err));
  luattn_status status = LUATTN_OK;
  if (!array_is_integer(&raw))
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: holds no integers; save x.astype(numpy.int32): 0, and where each sequence ends", option, path);
  else if (raw.t.ndim != 1)
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: has %d dimensions, expected 1: 0, and where each sequence ends; reshape it", option, path,
                         raw.t.ndim);
  if (status == LUATTN_OK) status = array_new(out, dtype_of_input(LUATTN_INPUT_I32), 1, raw.shape, false, err);
  for (int64_t i = 0, n = array_count(&raw); i < n && status == LUATTN_OK; i++) {
    if (array_set_integer(out, i, array_integer(&raw, i))) continue;
    status = luattn_fail(err, LUATTN_INVALID, "%s: %s: element %lld is %lld, more than 32 bits hold", option, path, (long long)i,
                         (long long)array_integer(&raw, i));
    array_free(out);
  }
  array_free(&raw);
  return status;
}

static luattn_status read_ends(const char *option, const char *text, array *out, luattn_error *err) {
  TRY(is_list(text) ? read_list(option, text, out, err) : read_file(option, text, out, err));
  const int64_t n = array_count(out);
  luattn_status status = LUATTN_OK;
  if (n < 2)
    status = luattn_fail(err, LUATTN_INVALID, "%s: '%s' has %lld number%s, and one sequence takes two; give 0 and its end, as in 0,100", option,
                         text, (long long)n, n == 1 ? "" : "s");
  else if (array_integer(out, 0) != 0)
    status = luattn_fail(err, LUATTN_INVALID, "%s: '%s' begins with %lld, expected 0, where the first sequence starts", option, text,
                         (long long)array_integer(out, 0));
  for (int64_t i = 1; i < n && status == LUATTN_OK; i++) {
    const long long before = array_integer(out, i - 1), end = array_integer(out, i);
    if (end < before)
      status = luattn_fail(err, LUATTN_INVALID,
                           "%s: '%s' falls from %lld to %lld at sequence %lld; give where each sequence ends, counted over all rows", option, text,
                           before, end, (long long)i);
  }
  if (status == LUATTN_OK && array_integer(out, n - 1) > LUATTN_MAX_TOTAL)
    status = luattn_fail(err, LUATTN_INVALID, "%s: '%s' ends at %lld, more than 2^30 rows; give fewer sequences", option, text,
                         (long long)array_integer(out, n - 1));
  if (status != LUATTN_OK) array_free(out);
  return status;
}

static int longest(const array *ends) {
  int64_t most = 0;
  for (int64_t i = 1, n = array_count(ends); i < n; i++) {
    const int64_t rows = array_integer(ends, i) - array_integer(ends, i - 1);
    if (rows > most) most = rows;
  }
  return (int)most;
}

/* The DLTensor of an array of ends, with pointers into this very array. */
static const DLTensor *ends_tensor(array *a) {
  a->t.shape = a->shape;
  a->t.strides = a->stride;
  return &a->t;
}

static luattn_status open_batch(cli_problem *p, luattn_error *err) {
  array *const ends = p->ends;
  p->batch = (int)array_count(&ends[0]) - 1;
  p->q_len = (int)array_integer(&ends[0], p->batch), p->kv_len = (int)array_integer(&ends[1], p->batch);
  p->longest[0] = longest(&ends[0]), p->longest[1] = longest(&ends[1]);
  const luattn_batch_options options = {
      .struct_size = sizeof options, .cu_seqlens_q = ends_tensor(&ends[0]), .cu_seqlens_k = ends_tensor(&ends[1])};
  return luattn_batch_open(&options, &p->sequences, err);
}

static luattn_status check_shape(const cli_options *o, const cli_problem *p, const int shape[3], luattn_error *err) {
  static const char *const names[] = {"B", "Sq", "Skv"}, *const what[] = {"sequences", "queries in all", "keys in all"};
  const int have[] = {p->batch, p->q_len, p->kv_len};
  for (int i = 0; i < 3 && o->shape != NULL; i++)
    if (shape[i] != have[i])
      return luattn_fail(err, LUATTN_INVALID,
                         "--shape: '%s': %s is %d, and the sequences of --cu-seqlens have %d %s; give %d,%d,%d,%d,%d,%d", o->shape, names[i],
                         shape[i], have[i], what[i], p->batch, p->heads, p->heads_kv, p->q_len, p->kv_len, p->dim);
  return LUATTN_OK;
}

luattn_status sequences_option(const cli_options *o, cli_problem *p, luattn_error *err) {
  const char *const q = o->cu_seqlens != NULL ? o->cu_seqlens : o->cu_seqlens_q,
                    *const k = o->cu_seqlens != NULL ? o->cu_seqlens : o->cu_seqlens_k;
  const char *const name_q = o->cu_seqlens != NULL ? "--cu-seqlens" : "--cu-seqlens-q",
                    *const name_k = o->cu_seqlens != NULL ? "--cu-seqlens" : "--cu-seqlens-k";
  const int shape[] = {p->batch, p->q_len, p->kv_len};
  if (q == NULL && k == NULL) return LUATTN_OK;
  if (o->cu_seqlens != NULL && (o->cu_seqlens_q != NULL || o->cu_seqlens_k != NULL))
    return luattn_fail(err, LUATTN_INVALID, "--cu-seqlens: '%s' is for q and k, and %s '%s' is given too; give one of them", o->cu_seqlens,
                       o->cu_seqlens_q != NULL ? "--cu-seqlens-q" : "--cu-seqlens-k", o->cu_seqlens_q != NULL ? o->cu_seqlens_q : o->cu_seqlens_k);
  if (q == NULL || k == NULL)
    return luattn_fail(err, LUATTN_INVALID, "%s: is missing; packed sequences have ends of queries and of keys, --cu-seqlens if they are the same",
                       q == NULL ? name_q : name_k);
  if (o->layout != NULL)
    return luattn_fail(err, LUATTN_INVALID, "--layout: '%s' is an order of entries of equal lengths; packed q, k and v are rows x heads x head_dim: leave it out",
                       o->layout);
  TRY(read_ends(name_q, q, &p->ends[0], err));
  TRY(read_ends(name_k, k, &p->ends[1], err));
  if (array_count(&p->ends[0]) != array_count(&p->ends[1]))
    return luattn_fail(err, LUATTN_INVALID, "--cu-seqlens-k: '%s' has %lld sequences, and --cu-seqlens-q has %lld; give as many", k,
                       (long long)array_count(&p->ends[1]) - 1, (long long)array_count(&p->ends[0]) - 1);
  TRY(open_batch(p, err));
  return check_shape(o, p, shape, err);
}

void sequences_free(cli_problem *p) {
  luattn_batch_close(p->sequences);
  p->sequences = NULL;
  array_free(&p->ends[0]), array_free(&p->ends[1]);
}

int64_t sequences_axis(const cli_problem *p, const luattn_input_info *info, uint32_t j) {
  const bool is_q = info->axis[j] == LUATTN_AXIS_Q;
  const bool packed = p->sequences == NULL || (int)j == packed_axis(info);
  return packed ? (is_q ? p->q_len : p->kv_len) : p->longest[is_q ? 0 : 1];
}

/* ---- one sequence ---- */

/* Rows of a sequence: of queries (side 0) or of keys. */
typedef struct span {
  int64_t first, count;
} span;

static span span_of(const cli_problem *p, int side, int i) {
  const int64_t first = array_integer(&p->ends[side], i);
  return (span){first, array_integer(&p->ends[side], i + 1) - first};
}

bool sequence_is_empty(const cli_problem *p, int i) { return span_of(p, 0, i).count == 0 && span_of(p, 1, i).count == 0; }

/* Whether b is more than the index of an axis b: its number matters then, as to the draws of dropout. */
static bool computes_with_b(const traced_spec *t) {
  if (t->online.keep != SPEC_KEEP_ALL) return true;
  for (uint32_t r = 1; r < ir_count(t->g); r++) {
    const ir_node *n = ir_get(t->g, r);
    for (int i = 0; i < n->nargs; i++) {
      if (!ir_is_var(t->g, n->arg[i], VAR_B)) continue;
      if (n->op != IR_LOAD || t->input[ir_index_of(n)].axis[i] != LUATTN_AXIS_B) return true;
    }
  }
  return false;
}

static void copy_element(const array *from, int64_t at, array *to, int64_t to_at) {
  memcpy((void *)(uintptr_t)array_at(to, to_at), array_at(from, at), from->t.dtype.bits / 8u);
}

/* [rows, heads, dim] to the last entry of [batch, heads, rows, dim]. */
static luattn_status take_rows(const array *all, span s, int batch, array *out, luattn_error *err) {
  if (all->storage == NULL) return LUATTN_OK;
  const int64_t heads = all->shape[1], dim = all->shape[2], shape[] = {batch, heads, s.count, dim};
  TRY(array_new(out, all->t.dtype, 4, shape, false, err));
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < s.count; i++)
      for (int64_t d = 0; d < dim; d++)
        copy_element(all, ((s.first + i) * heads + h) * dim + d, out, (((batch - 1) * heads + h) * s.count + i) * dim + d);
  return LUATTN_OK;
}

/* [heads, rows] to the last entry of [batch, heads, rows]. */
static luattn_status take_numbers(const array *all, span s, int batch, array *out, luattn_error *err) {
  if (all->storage == NULL) return LUATTN_OK;
  const int64_t heads = all->shape[0], shape[] = {batch, heads, s.count};
  TRY(array_new(out, all->t.dtype, 3, shape, false, err));
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < s.count; i++)
      copy_element(all, h * all->shape[1] + s.first + i, out, ((batch - 1) * heads + h) * s.count + i);
  return LUATTN_OK;
}

/* Which part of an input belongs to a sequence. */
static void input_part(const cli_problem *p, int input, int i, int batch, int64_t first[4], int64_t shape[4]) {
  const luattn_input_info *info = &p->info.inputs[input];
  for (int j = 0; j < (int)info->num_axes; j++) {
    first[j] = 0, shape[j] = p->input[input].shape[j];
    if (info->axis[j] == LUATTN_AXIS_B && shape[j] > 1) first[j] = i + 1 - batch, shape[j] = batch;
    if (info->axis[j] != LUATTN_AXIS_Q && info->axis[j] != LUATTN_AXIS_KV) continue;
    const span s = span_of(p, info->axis[j] == LUATTN_AXIS_Q ? 0 : 1, i);
    first[j] = j == packed_axis(info) ? s.first : 0, shape[j] = s.count;
  }
}

/* The flat index in an array of `whole`, of element `at` of a part. */
static int64_t in_whole(int ndim, const int64_t *whole, const int64_t *first, const int64_t *shape, int64_t at) {
  int64_t index = 0, stride = 1;
  for (int j = ndim - 1; j >= 0; j--) {
    index += (first[j] + at % shape[j]) * stride;
    at /= shape[j], stride *= whole[j];
  }
  return index;
}

static luattn_status take_inputs(const cli_problem *p, int i, cli_problem *one, luattn_error *err) {
  for (int input = 0; input < (int)p->info.num_inputs; input++) {
    const array *all = &p->input[input];
    array *out = &one->input[input];
    int64_t first[4], shape[4];
    input_part(p, input, i, one->batch, first, shape);
    TRY(array_new(out, all->t.dtype, all->t.ndim, shape, false, err));
    for (int64_t at = 0, n = array_count(out); at < n; at++)
      copy_element(all, in_whole(all->t.ndim, all->shape, first, shape, at), out, at);
  }
  return LUATTN_OK;
}

luattn_status sequence_take(const cli_problem *p, int i, cli_problem *one, luattn_error *err) {
  const span q = span_of(p, 0, i), k = span_of(p, 1, i);
  const int batch = computes_with_b(&p->spec->traced) ? i + 1 : 1;
  *one = *p;
  array *const own[] = {&one->q, &one->k, &one->v, &one->dout, &one->dlse, &one->ends[0], &one->ends[1]};
  for (size_t j = 0; j < sizeof own / sizeof *own; j++) *own[j] = (array){0};
  for (int j = 0; j < 12; j++) one->input[j] = (array){0};
  one->sequences = NULL;
  one->batch = batch, one->q_len = (int)q.count, one->kv_len = (int)k.count;
  luattn_status s = take_rows(&p->q, q, batch, &one->q, err);
  if (s == LUATTN_OK) s = take_rows(&p->k, k, batch, &one->k, err);
  if (s == LUATTN_OK) s = take_rows(&p->v, k, batch, &one->v, err);
  if (s == LUATTN_OK) s = take_rows(&p->dout, q, batch, &one->dout, err);
  if (s == LUATTN_OK) s = take_numbers(&p->dlse, q, batch, &one->dlse, err);
  if (s == LUATTN_OK) s = take_inputs(p, i, one, err);
  if (s != LUATTN_OK) problem_free(one);
  return s;
}

/* ---- results of one sequence ---- */

static void put_rows(const array *one, span s, array *all) {
  if (one->storage == NULL || all->storage == NULL) return;
  const int64_t batch = one->shape[0], heads = one->shape[1], dim = one->shape[3];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < s.count; i++)
      for (int64_t d = 0; d < dim; d++)
        array_set(all, ((s.first + i) * heads + h) * dim + d, array_get(one, (((batch - 1) * heads + h) * s.count + i) * dim + d));
}

/* lse, or `saved`, which has another axis before the batch. */
static void put_numbers(const array *one, span s, array *all) {
  if (one->storage == NULL || all->storage == NULL) return;
  const bool has_more = one->t.ndim == 4;
  const int64_t more = has_more ? one->shape[0] : 1, batch = one->shape[has_more], heads = one->shape[has_more + 1];
  const int64_t total = all->shape[all->t.ndim - 1];
  for (int64_t m = 0; m < more; m++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < s.count; i++)
        array_set(all, (m * heads + h) * total + s.first + i, array_get(one, ((m * batch + batch - 1) * heads + h) * s.count + i));
}

static void add_to(array *all, int64_t at, double x, bool as_squares) {
  const double before = array_get(all, at);
  array_set(all, at, as_squares ? hypot(before, x) : before + x);
}

void sequence_put(const cli_problem *p, int i, const cli_result *one, bool as_squares, cli_result *all) {
  const span q = span_of(p, 0, i), k = span_of(p, 1, i);
  put_rows(&one->o, q, &all->o), put_rows(&one->dq, q, &all->dq);
  put_rows(&one->dk, k, &all->dk), put_rows(&one->dv, k, &all->dv);
  put_numbers(&one->lse, q, &all->lse), put_numbers(&one->saved, q, &all->saved);
  for (int input = 0; input < (int)p->info.num_inputs; input++) {
    const array *from = &one->input_grad[input];
    array *to = &all->input_grad[input];
    int64_t first[4], shape[4];
    if (from->storage == NULL || to->storage == NULL) continue;
    input_part(p, input, i, computes_with_b(&p->spec->traced) ? i + 1 : 1, first, shape);
    for (int64_t at = 0, n = array_count(from); at < n; at++)
      add_to(to, in_whole(to->t.ndim, to->shape, first, shape, at), array_get(from, at), as_squares);
  }
  for (int64_t at = 0, n = all->scalar_grads.storage != NULL && one->scalar_grads.storage != NULL ? array_count(&all->scalar_grads) : 0; at < n; at++)
    add_to(&all->scalar_grads, at, array_get(&one->scalar_grads, at), as_squares);
}

/* ---- all of them on the CPU ---- */

static luattn_status as_double(const array *from, array *to, luattn_error *err) {
  if (from->storage == NULL) return LUATTN_OK;
  TRY(array_new(to, dtype_dl(LUATTN_F64), from->t.ndim, from->shape, false, err));
  for (int64_t i = 0, n = array_count(from); i < n; i++) array_set(to, i, array_get(from, i));
  return LUATTN_OK;
}

static luattn_status run_in_double(luattn_engine *engine, const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  cli_problem wide = *p; /* an engine takes tensors of one type; inputs have the spec's */
  array *const to[] = {&wide.q, &wide.k, &wide.v, &wide.dout, &wide.dlse};
  const array *const from[] = {&p->q, &p->k, &p->v, &p->dout, &p->dlse};
  cli_binding bind;
  luattn_status s = LUATTN_OK;
  for (int i = 0; i < 5; i++) *to[i] = (array){0};
  for (int i = 0; i < 5 && s == LUATTN_OK; i++) s = as_double(from[i], to[i], err);
  const luattn_args forward = problem_args(&wide, r, false, &bind);
  if (s == LUATTN_OK) s = luattn_forward(engine, p->spec, &forward, NULL, err);
  if (s == LUATTN_OK && r->weights.storage != NULL) s = luattn_weights(engine, p->spec, &forward, &r->weights.t, NULL, err);
  const luattn_args both = problem_args(&wide, r, backward, &bind);
  if (s == LUATTN_OK && backward) s = luattn_backward(engine, p->spec, &both, NULL, err);
  for (int i = 0; i < 5; i++) array_free(to[i]);
  return s;
}

luattn_status sequences_run_cpu(const cli_problem *p, bool backward, cli_result *r, luattn_error *err) {
  const luattn_engine_options options = {.struct_size = sizeof options, .device = LUATTN_CPU};
  luattn_engine *engine;
  TRY(luattn_engine_open(&options, &engine, err));
  const luattn_status s = run_in_double(engine, p, backward, r, err);
  luattn_engine_close(engine);
  return s;
}
