#include "cli/one_sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/call/packed_axis.h"
#include "gen/spec.h"

/* ---- one sequence ---- */

/* Rows of a sequence: of queries (side 0) or of keys. */
typedef struct span {
  int64_t first, count;
} span;

static span span_of(const cli_problem *p, int side, int i) {
  const int64_t first = array_integer(&p->ends[side], i);
  return (span){first, array_integer(&p->ends[side], i + 1) - first};
}

bool sequence_is_empty(const cli_problem *p, int i) {
  return span_of(p, 0, i).count == 0 && span_of(p, 1, i).count == 0;
}

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
        copy_element(all, ((s.first + i) * heads + h) * dim + d, out,
                     (((batch - 1) * heads + h) * s.count + i) * dim + d);
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
        array_set(all, ((s.first + i) * heads + h) * dim + d,
                  array_get(one, (((batch - 1) * heads + h) * s.count + i) * dim + d));
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
        array_set(all, (m * heads + h) * total + s.first + i,
                  array_get(one, ((m * batch + batch - 1) * heads + h) * s.count + i));
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
  for (int64_t at = 0, n = all->scalar_grads.storage != NULL && one->scalar_grads.storage != NULL
                               ? array_count(&all->scalar_grads)
                               : 0;
       at < n; at++)
    add_to(&all->scalar_grads, at, array_get(&one->scalar_grads, at), as_squares);
}
