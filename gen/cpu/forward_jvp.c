/* forward_jvp.c: tangents of o and lse, a row at a time, in double.
 *
 * A row is one step of the online function over all that it keeps, which is what backward differentiates: so a maximum
 * is one of the whole row, whose ties share alike in both modes. o, lse and saved are those of forward, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/batch.h"
#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/call/overlap.h"
#include "gen/analysis/specs/spec_tangents.h"
#include "gen/cpu/row_blocks.h"
#include "gen/cpu/score_row.h"

/* What a row keeps: of its elements, one after the other. */
typedef struct dual_row {
  int count;
  double *kv_idx, *score, *score_t, *x, *x_t;
} dual_row;

typedef struct forward_jvp {
  cpu_problem p;
  cpu_scores scores;
  spec_tangents tangents;
  int num_state;
  cpu_program mod[3]; /* tangents of q, k and v after their mods; without one where there is none */
  cpu_program score_mod, init, term[SPEC_MAX_RED], prob, step, finish; /* each its values, then their tangents */
  cpu_view given[3], o, lse;                                           /* of luattn_tangents */
  double *tangent[3];                                                  /* of q, k and v; NULL: 0 */
  dual_row *row;                                                       /* of each thread */
  row_blocks blocks;
} forward_jvp;

enum { FACTOR, FACTOR_TANGENT, LSE, LSE_TANGENT, NUM_LAST }; /* numbers of a row's end: the factor of O */

static ir_ref or_zero(ir *g, ir_ref r) { return r != IR_NONE ? r : ir_real(g, 0); }

/* ---- programs ---- */

/* A program of n values and their tangents. */
static luattn_status open_dual(cpu_problem *p, const ir_ref *value, const ir_ref *tangent, int n, cpu_program *out,
                               luattn_error *err) {
  ir_ref root[2 * (1 + SPEC_MAX_STATE)];
  for (int i = 0; i < n; i++) root[i] = value[i], root[n + i] = or_zero(p->g, tangent[i]);
  return program_open(p, root, 2 * n, out, err);
}

static luattn_status open_step(forward_jvp *f, luattn_error *err) {
  const spec_tangents *t = &f->tangents;
  ir_ref value[1 + SPEC_MAX_STATE] = {t->split.rescale}, tangent[1 + SPEC_MAX_STATE] = {t->rescale};
  memcpy(value + 1, t->split.next, sizeof t->split.next);
  memcpy(tangent + 1, t->next, sizeof t->next);
  return open_dual(&f->p, value, tangent, 1 + f->num_state, &f->step, err);
}

static luattn_status open_programs(forward_jvp *f, const luattn_tangents *given, luattn_error *err) {
  cpu_problem *p = &f->p;
  const traced_spec *s = &p->spec->traced;
  const traced_online *on = &s->online;
  tangent_sources of = {.q = given->q != NULL, .k = given->k != NULL, .v = given->v != NULL};
  of.scalars = p->scalar_tangents;
  for (int i = 0; i < s->num_inputs; i++)
    if (p->input_tangent[i].data != NULL) of.inputs |= UINT32_C(1) << i;
  TRY(spec_tangents_of(p->a, s, &of, &f->tangents, err));
  const spec_tangents *t = &f->tangents;
  const ir_ref mod[] = {t->query_mod, t->key_mod, t->value_mod};
  for (int i = 0; i < 3; i++) {
    TRY(program_open(p, &mod[i], mod[i] != IR_NONE, &f->mod[i], err));
    f->mod[i].rows = s->rows[i];
  }
  f->num_state = on->num_state;
  TRY(scores_open(p, &f->scores, err));
  TRY(open_dual(p, &s->score_mod, &t->score_mod, 1, &f->score_mod, err));
  TRY(open_dual(p, on->init, t->init, on->num_state, &f->init, err));
  for (int k = 0; k < t->split.num_red; k++) TRY(open_dual(p, &t->split.term[k], &t->term[k], 1, &f->term[k], err));
  TRY(open_dual(p, &t->split.prob, &t->prob, 1, &f->prob, err));
  TRY(open_step(f, err));
  const ir_ref lse = on->lse >= 0 ? on->final[on->lse] : IR_NONE;
  const ir_ref last[NUM_LAST] = {[FACTOR] = on->out, /* VAR_OUT is 1: linear in it */
                                 [FACTOR_TANGENT] = or_zero(p->g, t->out),
                                 [LSE] = or_zero(p->g, lse),
                                 [LSE_TANGENT] = or_zero(p->g, t->lse)};
  return program_open(p, last, NUM_LAST, &f->finish, err);
}

/* ---- tangents of q, k and v, after their mods ---- */

enum { ROWS_OF_CHUNK = 64 };

typedef struct rows_call {
  const forward_jvp *f;
  int which;
} rows_call;

/* Of row i of head h: `row` has the tangent that is given, which its tangent after the mod replaces. */
static void modify_row(const forward_jvp *f, cpu_worker *w, int which, int b, int h, int i, double *row) {
  const cpu_problem *p = &f->p;
  const cpu_view *from = which == 0 ? &p->q_given : which == 1 ? &p->k_given : &p->v_given;
  const int dim = (int)from->shape[3];
  double *x = w->given, *x_t = w->given + dim; /* the worker has room for both: jvp_start */
  for (int d = 0; d < dim; d++) x[d] = view_get(from, (int64_t[]){b, h, i, d});
  memcpy(x_t, row, (size_t)dim * sizeof *row);
  for (int d0 = 0; d0 < dim; d0 += IR_LANES) {
    const int count = dim - d0 < IR_LANES ? dim - d0 : IR_LANES;
    double channel[IR_LANES];
    for (int d = 0; d < count; d++) channel[d] = d0 + d;
    cpu_lanes lanes = {.p = p,
                       .w = w,
                       .b = b,
                       .h = h,
                       .pos0 = i,
                       .d = channel,
                       .x = x + d0,
                       .x_tangent = x_t + d0,
                       .of_keys = which > 0,
                       .row_of = {f->mod[which].rows, d0, x, NULL, x_t}};
    program_run(&f->mod[which], &lanes, count, (double *const[]){row + d0});
    problem_round(p, row + d0, count);
  }
}

static void convert_chunk(void *of_call, int worker, int64_t chunk) {
  const rows_call *c = of_call;
  const forward_jvp *f = c->f;
  const cpu_view *like = c->which == 0 ? &f->p.q_given : c->which == 1 ? &f->p.k_given : &f->p.v_given;
  const cpu_view *given = &f->given[c->which];
  const int64_t heads = like->shape[1], len = like->shape[2], dim = like->shape[3], all = like->shape[0] * heads * len;
  const int64_t first = chunk * ROWS_OF_CHUNK, end = all - first < ROWS_OF_CHUNK ? all : first + ROWS_OF_CHUNK;
  for (int64_t n = first; n < end; n++) {
    const int b = (int)(n / len / heads), h = (int)(n / len % heads), i = (int)(n % len);
    double *row = f->tangent[c->which] + n * dim;
    for (int d = 0; d < dim; d++) row[d] = given->data != NULL ? view_get(given, (int64_t[]){b, h, i, d}) : 0;
    modify_row(f, &f->p.worker[worker], c->which, b, h, i, row);
  }
}

static void convert_tangents(forward_jvp *f) {
  const cpu_problem *p = &f->p;
  const int64_t rows[] = {(int64_t)p->batch * p->heads * p->q_len, (int64_t)p->batch * p->heads_kv * p->kv_len,
                          (int64_t)p->batch * p->heads_kv * p->kv_len};
  for (int i = 0; i < 3; i++) {
    rows_call c = {f, i};
    if (f->tangent[i] != NULL) problem_run(p, convert_chunk, &c, (rows[i] + ROWS_OF_CHUNK - 1) / ROWS_OF_CHUNK);
  }
}

/* ---- a row ---- */

/* Runs a program of a value and its tangent over the row's elements: `to` may be what `lanes` reads. */
static void run_over(const cpu_program *program, cpu_lanes *lanes, const dual_row *row, bool of_x, double *to,
                     double *to_t) {
  for (int i0 = 0; i0 < row->count; i0 += IR_LANES) {
    const int count = row->count - i0 < IR_LANES ? row->count - i0 : IR_LANES;
    double y[IR_LANES], y_t[IR_LANES];
    lanes->kv_idx = row->kv_idx + i0;
    lanes->score = (of_x ? row->x : row->score) + i0;
    lanes->score_tangent = (of_x ? row->x_t : row->score_t) + i0;
    program_run(program, lanes, count, (double *const[]){y, y_t});
    memcpy(to + i0, y, (size_t)count * sizeof *y);
    memcpy(to_t + i0, y_t, (size_t)count * sizeof *y_t);
  }
}

static double dot(const double *a, const double *b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; d++) sum += a[d] * b[d];
  return sum;
}

/* Of row (b, h, q_idx) of `lanes`: scale * (q'.k + q.k'). */
static void score_tangents(const forward_jvp *f, const cpu_lanes *lanes, int count, double *out) {
  const cpu_problem *p = &f->p;
  const size_t at = cpu_at(p->heads, p->q_len, p->dim, lanes->b, lanes->h, (int)lanes->q_idx);
  for (int i = 0; i < count; i++) {
    const size_t from = cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    double sum = 0;
    if (f->tangent[0] != NULL) sum += dot(f->tangent[0] + at, p->k + from, p->dim);
    if (f->tangent[1] != NULL) sum += dot(p->q + at, f->tangent[1] + from, p->dim);
    out[i] = p->scale * sum;
  }
  problem_round(p, out, count);
}

/* Finds what the row keeps: its scores after score_mod, and their tangents. */
static void take_row(const forward_jvp *f, cpu_lanes *lanes, const unsigned char *class_of_tile, dual_row *row) {
  const cpu_problem *p = &f->p;
  row->count = 0;
  for (int kv0 = 0, t = 0; kv0 < p->kv_len; kv0 += CPU_TILE, t++) {
    if (class_of_tile[t] == 0) continue;
    const int count = scores_kept(&f->scores, lanes, kv0, class_of_tile[t] == 1, row->score + row->count);
    score_tangents(f, lanes, count, row->score_t + row->count);
    memcpy(row->kv_idx + row->count, lanes->kv_idx, (size_t)count * sizeof *row->kv_idx);
    row->count += count;
  }
  run_over(&f->score_mod, lanes, row, false, row->x, row->x_t);
}

/* The sum of the row's terms, or the largest, and its tangent: of several that are the largest, the mean. */
static void reduce(const dual_row *row, const double *y, const double *y_t, bool is_max, double *red, double *red_t) {
  int ties = 0;
  *red = is_max ? -INFINITY : 0, *red_t = 0;
  for (int i = 0; i < row->count; i++) *red = is_max ? fmax(*red, y[i]) : *red + y[i];
  for (int i = 0; i < row->count; i++) {
    if (is_max && (y[i] != *red || isinf(y[i]))) continue;
    *red_t += y_t[i], ties++;
  }
  if (is_max && ties > 1) *red_t /= ties;
}

/* The one step: weights and their tangents in place of the row's raw scores, and the state after it. */
static void step(const forward_jvp *f, cpu_lanes *lanes, dual_row *row, double *state, double *state_t) {
  const int n = f->num_state;
  double red[SPEC_MAX_RED] = {0}, red_t[SPEC_MAX_RED] = {0}, values[2 * (1 + SPEC_MAX_STATE)];
  double *out[2 * (1 + SPEC_MAX_STATE)];
  lanes->state = state, lanes->state_tangent = state_t;
  lanes->red = red, lanes->red_tangent = red_t;
  for (int k = 0; k < f->tangents.split.num_red; k++) {
    run_over(&f->term[k], lanes, row, true, row->score, row->score_t);
    reduce(row, row->score, row->score_t, f->tangents.split.kind[k] == IR_REDUCE_MAX, &red[k], &red_t[k]);
  }
  run_over(&f->prob, lanes, row, true, row->score, row->score_t);
  for (int i = 0; i < 2 * (1 + n); i++) out[i] = &values[i];
  program_run(&f->step, lanes, 1, out);
  memcpy(state, values + 1, (size_t)n * sizeof *state);
  memcpy(state_t, values + 1 + n + 1, (size_t)n * sizeof *state_t);
}

/* Writes A = sum p v and B = sum (p' v + p v'). */
static void accumulate(const forward_jvp *f, cpu_lanes *lanes, dual_row *row, double *a, double *b) {
  const cpu_problem *p = &f->p;
  const int dim_v = p->dim_v;
  memset(a, 0, (size_t)dim_v * sizeof *a), memset(b, 0, (size_t)dim_v * sizeof *b);
  for (int i0 = 0; i0 < row->count; i0 += IR_LANES) {
    const int count = row->count - i0 < IR_LANES ? row->count - i0 : IR_LANES;
    lanes->kv_idx = row->kv_idx + i0;
    dropout_apply(lanes, count, row->score + i0), dropout_apply(lanes, count, row->score_t + i0);
    problem_round(p, row->score + i0, count), problem_round(p, row->score_t + i0, count);
  }
  for (int i = 0; i < row->count; i++) {
    const size_t at = cpu_at(p->heads_kv, p->kv_len, dim_v, lanes->b, lanes->h / p->group, (int)row->kv_idx[i]);
    const double *v = p->v + at, *v_t = f->tangent[2] != NULL ? f->tangent[2] + at : NULL;
    const double prob = row->score[i], prob_t = row->score_t[i];
    for (int d = 0; d < dim_v; d++) a[d] += prob * v[d], b[d] += prob_t * v[d];
    for (int d = 0; v_t != NULL && d < dim_v; d++) b[d] += prob * v_t[d];
  }
}

static void write_row(const forward_jvp *f, const cpu_lanes *lanes, bool any, const double *last, const double *a,
                      const double *b) {
  const int q = (int)lanes->q_idx;
  for (int d = 0; f->o.data != NULL && d < f->p.dim_v; d++)
    view_set(&f->o, (int64_t[]){lanes->b, lanes->h, q, d}, any ? last[FACTOR] * b[d] + last[FACTOR_TANGENT] * a[d] : 0);
  const bool some = any && last[LSE] != -INFINITY; /* else the row has no weight, as if it kept nothing */
  if (f->lse.data != NULL) view_set(&f->lse, (int64_t[]){lanes->b, lanes->h, q}, some ? last[LSE_TANGENT] : 0);
}

static void jvp_row(const forward_jvp *f, int worker, int b, int h, int q, const unsigned char *class_of_tile) {
  double state[2 * SPEC_MAX_STATE], *out[2 * SPEC_MAX_STATE], last[NUM_LAST];
  cpu_worker *w = &f->p.worker[worker];
  dual_row *row = &f->row[worker];
  cpu_lanes lanes = {.p = &f->p, .w = w, .b = b, .h = h, .q_idx = q, .out = 1};
  double *A = w->row, *B = w->row + f->p.dim_v, *state_t = state + f->num_state;
  for (int i = 0; i < 2 * f->num_state; i++) out[i] = &state[i];
  program_run(&f->init, &lanes, 1, out);
  take_row(f, &lanes, class_of_tile, row);
  if (row->count > 0) {
    step(f, &lanes, row, state, state_t);
    accumulate(f, &lanes, row, A, B);
    program_run(&f->finish, &lanes, 1, (double *const[]){&last[0], &last[1], &last[2], &last[3]});
  }
  write_row(f, &lanes, row->count > 0, last, A, B);
}

static void jvp_rows(void *of_jvp, int worker, int64_t unit) {
  const forward_jvp *f = of_jvp;
  int from, to;
  const block_place at = blocks_rows(&f->blocks, unit, &from, &to);
  const unsigned char *classes = f->blocks.classes + unit / UNITS_OF_BLOCK * f->blocks.kv_tiles;
  for (int i = from; i < to; i++) jvp_row(f, worker, at.b, at.h, at.q0 + i, classes);
}

/* ---- a call ---- */

static luattn_status open_tensors(forward_jvp *f, const luattn_tangents *t, luattn_error *err) {
  cpu_problem *p = &f->p;
  const view_rule rule[] = {{.name = "tangents.q",
                             .axes = CPU_Q_AXES,
                             .ndim = 4,
                             .shape = {p->batch, p->heads, p->q_len, p->dim},
                             Q_ROWS(p, 2)},
                            {.name = "tangents.k",
                             .axes = CPU_K_AXES,
                             .ndim = 4,
                             .shape = {p->batch, p->heads_kv, p->kv_len, p->dim},
                             KV_ROWS(p, 2)},
                            {.name = "tangents.v",
                             .axes = CPU_V_AXES,
                             .ndim = 4,
                             .shape = {p->batch, p->heads_kv, p->kv_len, p->dim_v},
                             KV_ROWS(p, 2)},
                            {.name = "tangents.o",
                             .axes = CPU_O_AXES,
                             .ndim = 4,
                             .shape = {p->batch, p->heads, p->q_len, p->dim_v},
                             Q_ROWS(p, 2),
                             .is_output = true},
                            {.name = "tangents.lse",
                             .axes = CPU_ROW_AXES,
                             .ndim = 3,
                             .shape = {p->batch, p->heads, p->q_len},
                             Q_ROWS(p, 2),
                             .is_output = true}};
  const DLTensor *given[] = {t->q, t->k, t->v};
  for (int i = 0; i < 3; i++)
    if (given[i] != NULL) TRY(view_open(&rule[i], given[i], &f->given[i], err));
  if (t->o != NULL && t->o->data != NULL) TRY(view_open(&rule[3], t->o, &f->o, err));
  if (t->lse == NULL || t->lse->data == NULL) return LUATTN_OK;
  if (p->spec->traced.online.lse < 0) return refuse_lse(p->spec, "tangents.lse", err);
  return view_open(&rule[4], t->lse, &f->lse, err);
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

/* Room for q', k' and v', where these have any tangent. */
static luattn_status make_room(forward_jvp *f, luattn_error *err) {
  cpu_problem *p = &f->p;
  const ir_ref has[] = {f->tangents.query_mod, f->tangents.key_mod, f->tangents.value_mod};
  const cpu_view *like[] = {&p->q_given, &p->k_given, &p->v_given};
  for (int i = 0; i < 3; i++) {
    const int64_t *n = like[i]->shape;
    if (has[i] == IR_NONE) continue;
    f->tangent[i] = arena_raw(p->a, (size_t)(n[0] * n[1] * n[2]), (size_t)n[3] * sizeof **f->tangent + 1);
    if (f->tangent[i] == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  }
  return LUATTN_OK;
}

static luattn_status jvp_open(forward_jvp *f, const cpu_call *given, const luattn_tangents *t, arena *a,
                              luattn_error *err) {
  TRY(problem_open(given, true, a, &f->p, err));
  TRY(open_tensors(f, t, err));
  TRY(problem_open_tangents(t, &f->p, err));
  TRY(check_apart(given->args, t, err));
  TRY(open_programs(f, t, err));
  TRY(make_room(f, err));
  const int64_t most = (1 << 20) / (f->p.kv_len / CPU_TILE + 1);
  return blocks_open(&f->p, most > 4096 ? 4096 : most > 1 ? most : 1, &f->blocks, err);
}

/* Starts threads, each with room for a row and its tangents. */
static luattn_status jvp_start(forward_jvp *f, int threads, luattn_error *err) {
  cpu_problem *p = &f->p;
  const size_t dim = (size_t)(p->dim > p->dim_v ? p->dim : p->dim_v), len = (size_t)p->kv_len + 1;
  TRY(problem_start(p, threads, err));
  f->row = arena_array(p->a, (size_t)p->num_workers, sizeof *f->row);
  bool ok = f->row != NULL;
  for (int i = 0; ok && i < p->num_workers; i++) {
    double *of_row = arena_raw(p->a, 5 * len, sizeof *of_row);
    p->worker[i].given = arena_raw(p->a, 2 * dim, sizeof *of_row);
    ok = of_row != NULL && p->worker[i].given != NULL;
    if (ok) f->row[i] = (dual_row){0, of_row, of_row + len, of_row + 2 * len, of_row + 3 * len, of_row + 4 * len};
  }
  if (ok) return LUATTN_OK;
  problem_stop(p);
  return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

static void jvp_run(forward_jvp *f) {
  problem_convert(&f->p);
  convert_tangents(f);
  while (blocks_next(&f->blocks)) problem_run(&f->p, jvp_rows, f, (int64_t)f->blocks.count * UNITS_OF_BLOCK);
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
  if (status == LUATTN_OK) status = jvp_start(f, given->threads, err);
  const bool started = status == LUATTN_OK;
  if (started) status = run_forward(given, err);
  if (status == LUATTN_OK) jvp_run(f);
  if (started) problem_stop(&f->p);
  arena_close(a);
  return status;
}

luattn_status luattn_cpu_forward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  luattn_args used;
  luattn_tangents tangents;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  TRY(choices_take_tangents(args, "cpu", &used, &tangents, err));
  if (batch_is_packed(used.batch)) return choices_take_dense(&used, "cpu", &used, err);
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
