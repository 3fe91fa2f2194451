/* forward_jvp.c: tangents of o and lse, a row at a time. o, lse and saved are those of forward, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/call/overlap.h"
#include "gen/cpu/dual_rows.h"

typedef struct forward_jvp {
  dual_rows rows;
  cpu_view o, lse; /* of luattn_tangents */
} forward_jvp;

static void write_row(const forward_jvp *f, const cpu_lanes *lanes, bool any, const row_end *end) {
  const int q = (int)lanes->q_idx;
  const double *last = end->last;
  for (int d = 0; f->o.data != NULL && d < f->rows.p.dim_v; d++)
    view_set(&f->o, (int64_t[]){lanes->b, lanes->h, q, d},
             any ? last[FACTOR] * end->B[d] + last[FACTOR_TANGENT] * end->A[d] : 0);
  const bool some = any && last[LSE] != -INFINITY; /* else the row has no weight, as if it kept nothing */
  if (f->lse.data != NULL) view_set(&f->lse, (int64_t[]){lanes->b, lanes->h, q}, some ? last[LSE_TANGENT] : 0);
}

static void jvp_row(const forward_jvp *f, int worker, int b, int h, int q, const unsigned char *class_of_tile) {
  const dual_rows *rows = &f->rows;
  cpu_lanes lanes = {.p = &rows->p, .w = &rows->p.worker[worker], .b = b, .h = h, .q_idx = q};
  row_end end;
  dual_row_run(rows, worker, &lanes, class_of_tile, &end);
  dual_row_sum(rows, worker, &lanes, &end);
  write_row(f, &lanes, rows->row[worker].count > 0, &end);
}

static void jvp_rows(void *of_jvp, int worker, int64_t unit) {
  const forward_jvp *f = of_jvp;
  int from, to;
  const block_place at = blocks_rows(&f->rows.blocks, unit, &from, &to);
  const unsigned char *classes = f->rows.blocks.classes + unit / UNITS_OF_BLOCK * f->rows.blocks.kv_tiles;
  for (int i = from; i < to; i++) jvp_row(f, worker, at.b, at.h, at.q0 + i, classes);
}

/* ---- a call ---- */

static luattn_status open_results(forward_jvp *f, const luattn_tangents *t, luattn_error *err) {
  cpu_problem *p = &f->rows.p;
  const view_rule o = {.name = "tangents.o",
                       .axes = CPU_O_AXES,
                       .ndim = 4,
                       .shape = {p->batch, p->heads, p->q_len, p->dim_v},
                       Q_ROWS(p, 2),
                       .is_output = true};
  const view_rule lse = {.name = "tangents.lse",
                         .axes = CPU_ROW_AXES,
                         .ndim = 3,
                         .shape = {p->batch, p->heads, p->q_len},
                         Q_ROWS(p, 2),
                         .is_output = true};
  if (t->o != NULL && t->o->data != NULL) TRY(view_open(&o, t->o, &f->o, err));
  if (t->lse == NULL || t->lse->data == NULL) return LUATTN_OK;
  if (p->spec->traced.online.lse < 0) return refuse_lse(p->spec, "tangents.lse", err);
  return view_open(&lse, t->lse, &f->lse, err);
}

/* Checks that what is written overlaps nothing else of the call. */
static luattn_status check_apart(const luattn_args *a, const luattn_tangents *t, luattn_error *err) {
  overlap_item item[11 + 4 * CHOICES_MAX_INPUTS] = {{"tangents.o", t->o, true},  {"tangents.lse", t->lse, true},
                                                    {"o", a->o, true},           {"lse", a->lse, true},
                                                    {"saved", a->saved, true},   {"q", a->q, false},
                                                    {"k", a->k, false},          {"v", a->v, false},
                                                    {"tangents.q", t->q, false}, {"tangents.k", t->k, false},
                                                    {"tangents.v", t->v, false}};
  overlap_pair pair;
  char message[400];
  int n = 11;
  for (size_t i = 0; i < a->num_inputs; i++) item[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
  for (size_t i = 0; i < t->num_inputs; i++) item[n++] = (overlap_item){t->inputs[i].name, t->inputs[i].tensor, false};
  if (!overlap_find_among(item, n, &pair)) return LUATTN_OK;
  overlap_text(&pair, message, sizeof message);
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", message);
}

static luattn_status jvp_open(forward_jvp *f, const cpu_call *given, const luattn_tangents *t, arena *a,
                              luattn_error *err) {
  TRY(dual_rows_open(&f->rows, given, true, t, a, err));
  TRY(open_results(f, t, err));
  return check_apart(given->args, t, err);
}

static void jvp_run(forward_jvp *f) {
  row_blocks *blocks = &f->rows.blocks;
  dual_rows_convert(&f->rows);
  while (blocks_next(blocks)) problem_run(&f->rows.p, jvp_rows, f, (int64_t)blocks->count * UNITS_OF_BLOCK);
}

typedef struct jvp_call {
  cpu_call given;
  const luattn_tangents *tangents;
} jvp_call;

/* o, lse and saved, if any is wanted. */
static luattn_status run_forward(const cpu_call *c, luattn_error *err) {
  const luattn_args *args = c->args;
  if (args->o == NULL && args->lse == NULL && args->saved == NULL) return LUATTN_OK;
  return c->entries > 0 ? cpu_forward_entry(c->spec, args, c->first_entry, c->entries, err)
                        : luattn_cpu_forward_in(c->spec, args, c->precision, err);
}

/* Nothing fails once something is written. */
static luattn_status jvp_within(void *arguments, luattn_error *err) {
  jvp_call *call = arguments;
  const cpu_call *given = &call->given;
  arena *a = arena_open(arena_allocator(given->spec->a));
  forward_jvp *f = a != NULL ? arena_new(a, sizeof *f) : NULL;
  luattn_status status = f != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  if (status == LUATTN_OK) status = jvp_open(f, given, call->tangents, a, err);
  if (status == LUATTN_OK) status = dual_rows_start(&f->rows, given->threads, err);
  const bool started = status == LUATTN_OK;
  if (started) status = run_forward(given, err);
  if (status == LUATTN_OK) jvp_run(f);
  if (started) problem_stop(&f->rows.p);
  arena_close(a);
  return status;
}

luattn_status luattn_cpu_forward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  luattn_args taken, used;
  luattn_tangents tangents;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  TRY(choices_take_tangents(args, "cpu", &taken, &tangents, err));
  TRY(choices_take_dense(&taken, "cpu", &used, err));
  jvp_call call = {.given = {.spec = spec, .args = &used, .precision = LUATTN_F64}, .tangents = &tangents};
  TRY(cpu_threads(&used, &call.given.threads, err));
  return host_run(jvp_within, &call, err);
}

luattn_status cpu_forward_jvp_entry(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                    int entry, int entries, luattn_error *err) {
  jvp_call call = {
      .given = {.spec = spec, .args = args, .precision = LUATTN_F64, .first_entry = entry, .entries = entries},
      .tangents = tangents};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(jvp_within, &call, err);
}
