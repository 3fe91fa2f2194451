#include "gen/cpu/dual_rows.h"

#include <math.h>
#include <string.h>

static ir_ref or_zero(ir *g, ir_ref r) { return r != IR_NONE ? r : ir_real(g, 0); }

/* ---- programs ---- */

luattn_status dual_open(cpu_problem *p, const ir_ref *value, const ir_ref *tangent, int n, cpu_program *out,
                        luattn_error *err) {
  ir_ref root[2 * (1 + DERIVED_MAX_ROWS)];
  for (int i = 0; i < n; i++) root[i] = value[i], root[n + i] = or_zero(p->g, tangent[i]);
  return program_open(p, root, 2 * n, out, err);
}

static luattn_status open_step(dual_rows *f, luattn_error *err) {
  const spec_tangents *t = &f->tangents;
  ir_ref value[1 + SPEC_MAX_STATE] = {t->split.rescale}, tangent[1 + SPEC_MAX_STATE] = {t->rescale};
  memcpy(value + 1, t->split.next, sizeof t->split.next);
  memcpy(tangent + 1, t->next, sizeof t->next);
  return dual_open(&f->p, value, tangent, 1 + f->num_state, &f->step, err);
}

static luattn_status open_programs(dual_rows *f, const luattn_tangents *given, luattn_error *err) {
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
  TRY(dual_open(p, &s->score_mod, &t->score_mod, 1, &f->score_mod, err));
  TRY(dual_open(p, on->init, t->init, on->num_state, &f->init, err));
  for (int k = 0; k < t->split.num_red; k++) TRY(dual_open(p, &t->split.term[k], &t->term[k], 1, &f->term[k], err));
  TRY(dual_open(p, &t->split.prob, &t->prob, 1, &f->prob, err));
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
  const dual_rows *f;
  int which;
} rows_call;

/* Of row i of head h: `row` has the tangent that is given, which its tangent after the mod replaces. */
static void modify_row(const dual_rows *f, cpu_worker *w, int which, int b, int h, int i, double *row) {
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
  const dual_rows *f = c->f;
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

static void convert_tangents(dual_rows *f) {
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
    lanes->score = (of_x ? row->x : row->raw) + i0;
    lanes->score_tangent = (of_x ? row->x_t : row->raw_t) + i0;
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
static void score_tangents(const dual_rows *f, const cpu_lanes *lanes, int count, double *out) {
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
static void take_row(const dual_rows *f, cpu_lanes *lanes, const unsigned char *class_of_tile, dual_row *row) {
  const cpu_problem *p = &f->p;
  row->count = 0;
  for (int kv0 = 0, t = 0; kv0 < p->kv_len; kv0 += CPU_TILE, t++) {
    if (class_of_tile[t] == 0) continue;
    const int count = scores_kept(&f->scores, lanes, kv0, class_of_tile[t] == 1, row->raw + row->count);
    score_tangents(f, lanes, count, row->raw_t + row->count);
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

/* The one step: weights and their tangents, and the state after it. */
static void step(const dual_rows *f, cpu_lanes *lanes, dual_row *row, double *state, double *state_t) {
  const int n = f->num_state;
  double red[SPEC_MAX_RED] = {0}, red_t[SPEC_MAX_RED] = {0}, values[2 * (1 + SPEC_MAX_STATE)];
  double *out[2 * (1 + SPEC_MAX_STATE)];
  lanes->state = state, lanes->state_tangent = state_t;
  lanes->red = red, lanes->red_tangent = red_t;
  for (int k = 0; k < f->tangents.split.num_red; k++) {
    run_over(&f->term[k], lanes, row, true, row->prob, row->prob_t);
    reduce(row, row->prob, row->prob_t, f->tangents.split.kind[k] == IR_REDUCE_MAX, &red[k], &red_t[k]);
  }
  run_over(&f->prob, lanes, row, true, row->prob, row->prob_t);
  for (int i = 0; i < 2 * (1 + n); i++) out[i] = &values[i];
  program_run(&f->step, lanes, 1, out);
  memcpy(state, values + 1, (size_t)n * sizeof *state);
  memcpy(state_t, values + 1 + n + 1, (size_t)n * sizeof *state_t);
}

void dual_row_run(const dual_rows *f, int worker, cpu_lanes *lanes, const unsigned char *class_of_tile, row_end *end) {
  double *out[2 * SPEC_MAX_STATE];
  cpu_worker *w = &f->p.worker[worker];
  dual_row *row = &f->row[worker];
  const int n = f->num_state;
  end->A = w->row, end->B = w->row + f->p.dim_v;
  for (int i = 0; i < n; i++) out[i] = &end->state[i], out[n + i] = &end->state_t[i];
  program_run(&f->init, lanes, 1, out);
  take_row(f, lanes, class_of_tile, row);
  if (row->count > 0) step(f, lanes, row, end->state, end->state_t);
  lanes->state = end->state, lanes->state_tangent = end->state_t;
  lanes->out = 1;
  program_run(&f->finish, lanes, 1, (double *const[]){&end->last[0], &end->last[1], &end->last[2], &end->last[3]});
}

void dual_row_sum(const dual_rows *f, int worker, cpu_lanes *lanes, const row_end *end) {
  const cpu_problem *p = &f->p;
  dual_row *row = &f->row[worker];
  double *a = end->A, *b = end->B;
  const int dim_v = p->dim_v;
  memset(a, 0, (size_t)dim_v * sizeof *a), memset(b, 0, (size_t)dim_v * sizeof *b);
  for (int i0 = 0; i0 < row->count; i0 += IR_LANES) {
    const int count = row->count - i0 < IR_LANES ? row->count - i0 : IR_LANES;
    lanes->kv_idx = row->kv_idx + i0;
    dropout_apply(lanes, count, row->prob + i0), dropout_apply(lanes, count, row->prob_t + i0);
    problem_round(p, row->prob + i0, count), problem_round(p, row->prob_t + i0, count);
  }
  for (int i = 0; i < row->count; i++) {
    const size_t at = cpu_at(p->heads_kv, p->kv_len, dim_v, lanes->b, lanes->h / p->group, (int)row->kv_idx[i]);
    const double *v = p->v + at, *v_t = f->tangent[2] != NULL ? f->tangent[2] + at : NULL;
    const double prob = row->prob[i], prob_t = row->prob_t[i];
    for (int d = 0; d < dim_v; d++) a[d] += prob * v[d], b[d] += prob_t * v[d];
    for (int d = 0; v_t != NULL && d < dim_v; d++) b[d] += prob * v_t[d];
  }
}

/* ---- a call ---- */

static luattn_status open_tensors(dual_rows *f, const luattn_tangents *t, luattn_error *err) {
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
                             KV_ROWS(p, 2)}};
  const DLTensor *given[] = {t->q, t->k, t->v};
  for (int i = 0; i < 3; i++)
    if (given[i] != NULL) TRY(view_open(&rule[i], given[i], &f->given[i], err));
  return LUATTN_OK;
}

/* Room for q', k' and v', where these have any tangent. */
static luattn_status make_room(dual_rows *f, luattn_error *err) {
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

luattn_status dual_rows_open(dual_rows *f, const cpu_call *given, bool is_forward, const luattn_tangents *t, arena *a,
                             luattn_error *err) {
  TRY(problem_open(given, is_forward, a, &f->p, err));
  TRY(open_tensors(f, t, err));
  TRY(problem_open_tangents(t, is_forward, &f->p, err));
  TRY(open_programs(f, t, err));
  TRY(make_room(f, err));
  const int64_t most = (1 << 20) / (f->p.kv_len / CPU_TILE + 1);
  return blocks_open(&f->p, most > 4096 ? 4096 : most > 1 ? most : 1, &f->blocks, err);
}

luattn_status dual_rows_start(dual_rows *f, int threads, luattn_error *err) {
  cpu_problem *p = &f->p;
  const size_t dim = (size_t)(p->dim > p->dim_v ? p->dim : p->dim_v), len = (size_t)p->kv_len + 1;
  TRY(problem_start(p, threads, err));
  f->row = arena_array(p->a, (size_t)p->num_workers, sizeof *f->row);
  bool ok = f->row != NULL;
  for (int i = 0; ok && i < p->num_workers; i++) {
    double *of_row = arena_raw(p->a, 7 * len, sizeof *of_row);
    p->worker[i].given = arena_raw(p->a, 2 * dim, sizeof *of_row);
    ok = of_row != NULL && p->worker[i].given != NULL;
    if (ok)
      f->row[i] = (dual_row){0,
                             of_row,
                             of_row + len,
                             of_row + 2 * len,
                             of_row + 3 * len,
                             of_row + 4 * len,
                             of_row + 5 * len,
                             of_row + 6 * len};
  }
  if (ok) return LUATTN_OK;
  problem_stop(p);
  return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

void dual_rows_convert(dual_rows *f) {
  problem_convert(&f->p);
  convert_tangents(f);
}
