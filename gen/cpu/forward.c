/* forward.c: runs the online function over tiles of kept scores, one row of a tile at a time, in double. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/call/need_attention.h"
#include "common/call/choices.h"
#include "common/call/overlap.h"
#include "gen/cpu/row_blocks.h"
#include "gen/cpu/score_row.h"

typedef struct forward {
  cpu_problem p;
  cpu_scores scores;
  online_split split;
  cpu_program init, term[SPEC_MAX_RED], prob, step, finish;
  int num_state, num_out;
  cpu_view o, lse, saved;
  bool is_noise, magnifies; /* for cpu_forward_score_noise */
  cpu_view weights;         /* data NULL: not wanted */
  double *row_weights;      /* [threads][kv_len], of each thread's row; NULL: not wanted */
  row_blocks blocks;
} forward;

static luattn_status open_programs(forward *f, luattn_error *err) {
  const luattn_spec *spec = f->p.spec;
  const traced_online *on = &spec->traced.online;
  const derived_spec *derived = &spec->derived;
  cpu_problem *p = &f->p;
  TRY(split_online(p->g, on, spec->traced.file, &f->split, err));
  TRY(program_open(p, on->init, on->num_state, &f->init, err));
  for (int k = 0; k < f->split.num_red; k++) TRY(program_open(p, &f->split.term[k], 1, &f->term[k], err));
  TRY(program_open(p, &f->split.prob, 1, &f->prob, err));
  ir_ref roots[1 + SPEC_MAX_STATE];
  roots[0] = f->split.rescale;
  memcpy(roots + 1, f->split.next, sizeof f->split.next);
  f->num_state = on->num_state;
  TRY(program_open(p, roots, 1 + on->num_state, &f->step, err));
  ir_ref last[2 + DERIVED_MAX_ROWS];
  f->num_out = 0;
  last[f->num_out++] = on->out; /* linear in VAR_OUT: its value at 1 is the factor of O */
  if (on->lse >= 0) last[f->num_out++] = on->final[on->lse];
  for (int i = 0; i < derived->num_saved; i++) last[f->num_out++] = derived->saved[i];
  return program_open(p, last, f->num_out, &f->finish, err);
}

/* One tile of a row: reductions over the kept scores, then probabilities in place, the new state, and the
 * factor of O. */
static double online_step(const forward *f, cpu_lanes *lanes, int count, double *score, double *state) {
  double red[SPEC_MAX_RED] = {0}, x[IR_LANES], values[1 + SPEC_MAX_STATE], *out[1 + SPEC_MAX_STATE];
  lanes->red = red;
  lanes->state = state;
  lanes->score = score;
  for (int k = 0; k < f->split.num_red; k++) {
    const bool is_max = f->split.kind[k] == IR_REDUCE_MAX;
    program_run(&f->term[k], lanes, count, (double *const[]){x});
    red[k] = is_max ? -INFINITY : 0;
    for (int i = 0; i < count; i++) red[k] = is_max ? fmax(red[k], x[i]) : red[k] + x[i];
  }
  program_run(&f->prob, lanes, count, (double *const[]){x});
  for (int i = 0; i <= f->num_state; i++) out[i] = &values[i];
  program_run(&f->step, lanes, 1, out);
  memcpy(state, values + 1, (size_t)f->num_state * sizeof *state);
  memcpy(score, x, (size_t)count * sizeof *score);
  return values[0];
}

/* A row's sums of the effects of rounded scores. */
typedef struct row_noise {
  double size[IR_LANES]; /* of the tile's scores */
  double weight, moved;  /* sums of |p| and of |s| |p| */
} row_noise;

static void take_sizes(const forward *f, row_noise *n, const double *score, int count) {
  for (int i = 0; i < count; i++) n->size[i] = f->magnifies && isfinite(score[i]) ? fabs(score[i]) : 0;
}

/* Adds the tile's weights, and squares of what they add to o. */
static void add_noise(const forward *f, row_noise *n, const cpu_lanes *lanes, const double *prob, int count,
                      double scale, double *o) {
  const cpu_problem *p = &f->p;
  n->weight *= fabs(scale), n->moved *= fabs(scale);
  for (int d = 0; d < p->dim_v; d++) o[d] *= scale * scale;
  for (int i = 0; i < count; i++) {
    const double *v =
        p->v + cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    const double moved = n->size[i] * fabs(prob[i]);
    n->weight += fabs(prob[i]), n->moved += moved;
    for (int d = 0; d < p->dim_v; d++) o[d] += moved * v[d] * (moved * v[d]);
  }
}

static void finish_noise(const forward *f, const row_noise *n, cpu_worker *w) {
  for (int d = 0; d < f->p.dim_v; d++) w->row[d] = sqrt(w->row[d]);
  if (n->weight > 0 && isfinite(n->moved)) w->exponent = fmax(w->exponent, n->moved / n->weight);
}

/* A maximum that float32 cannot hold is rounded, and log l makes up for it. */
static void round_maximum(double pair[2]) {
  const double rounded = (double)(float)pair[0];
  if (isfinite(rounded)) pair[1] += pair[0] - rounded, pair[0] = rounded;
}

/* Returns the factor of O. */
static double finish_row(const forward *f, cpu_lanes *lanes, bool any, const double *state, double *o, int q) {
  const int dim_v = f->p.dim_v;
  double values[2 + DERIVED_MAX_ROWS] = {0}, *out[2 + DERIVED_MAX_ROWS];
  for (int i = 0; i < f->num_out; i++) out[i] = &values[i];
  lanes->state = state;
  lanes->out = 1;
  /* A row that keeps nothing still has row numbers, those of the initial state: backward may read them. */
  program_run(&f->finish, lanes, 1, out);
  for (int d = 0; f->o.data != NULL && d < dim_v; d++)
    view_set(&f->o, (int64_t[]){lanes->b, lanes->h, q, d},
             !any          ? 0
             : f->is_noise ? o[d] * fabs(values[0])
                           : o[d] * values[0]);
  if (f->p.spec->derived.has_large_scores && f->saved.bits == 32) round_maximum(&values[f->num_out - 2]);
  int next = 1;
  if (f->p.spec->traced.online.lse >= 0) {
    if (f->lse.data != NULL) view_set(&f->lse, (int64_t[]){lanes->b, lanes->h, q}, any ? values[next] : -INFINITY);
    next++;
  }
  for (int i = 0; f->saved.data != NULL && next < f->num_out; i++, next++) {
    view_set(&f->saved, (int64_t[]){i, lanes->b, lanes->h, q}, values[next]);
  }
  return any ? values[0] : 0;
}

/* ---- weights ---- */

/* Adds a tile's weights to those of the row's tiles before, which its step scales, and turns the sign of what dropout
 * drops. */
static void keep_weights(const cpu_lanes *lanes, int count, const double *prob, double scale, double *row) {
  double kept[IR_LANES];
  const int end = (int)lanes->kv_idx[count - 1] + 1;
  for (int i = 0; i < count; i++) kept[i] = 1;
  dropout_apply(lanes, count, kept);
  for (int kv = 0; kv < end; kv++) row[kv] *= scale;
  for (int i = 0; i < count; i++) row[(int)lanes->kv_idx[i]] = kept[i] > 0 ? prob[i] : -prob[i];
}

/* `factor`: of O in the epilogue. */
static void write_weights(const forward *f, const cpu_lanes *lanes, int q, double factor, const double *row) {
  for (int kv = 0; kv < f->p.kv_len; kv++)
    view_set(&f->weights, (int64_t[]){lanes->b, lanes->h, q, kv}, row[kv] != 0 ? row[kv] * factor : row[kv]);
}

static double *weights_of(const forward *f, const cpu_worker *w) {
  double *row = f->row_weights != NULL ? f->row_weights + (size_t)(w - f->p.worker) * (size_t)f->p.kv_len : NULL;
  if (row != NULL) memset(row, 0, (size_t)f->p.kv_len * sizeof *row);
  return row;
}

static luattn_status weights_open(forward *f, const cpu_call *given, const DLTensor *weights, luattn_error *err) {
  const cpu_problem *p = &f->p;
  const view_rule rule = {.name = "weights",
                          .axes = CPU_ROW_AXES ", kv_len",
                          .ndim = 4,
                          .shape = {p->batch, p->heads, p->q_len, p->kv_len},
                          .is_output = true};
  luattn_args beside = *given->args; /* as if they were a gradient, which no other tensor of the call may overlap */
  overlap_pair pair;
  char message[400];
  TRY(view_open(&rule, weights, &f->weights, err));
  beside.dq = weights, beside.dk = beside.dv = beside.dout = beside.dlse = beside.scalar_grads = NULL,
  beside.workspace = NULL;
  if (overlap_find(&beside, false, &pair)) {
    snprintf(pair.output, sizeof pair.output, "weights");
    overlap_text(&pair, message, sizeof message);
    return luattn_fail(err, LUATTN_INVALID, "cpu: %s", message);
  }
  f->row_weights = arena_raw(p->a, (size_t)given->threads, (size_t)p->kv_len * sizeof *f->row_weights + 1);
  return f->row_weights != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

static void forward_row(const forward *f, cpu_worker *w, int b, int h, int q, const unsigned char *class_of_tile) {
  const cpu_problem *p = &f->p;
  const int dim_v = p->dim_v;
  double state[SPEC_MAX_STATE], *out[SPEC_MAX_STATE], *o = w->row, *weights = weights_of(f, w);
  bool any = false;
  row_noise noise = {.weight = 0};
  cpu_lanes lanes = {.p = p, .w = w, .b = b, .h = h, .q_idx = q};
  for (int i = 0; i < f->num_state; i++) out[i] = &state[i];
  program_run(&f->init, &lanes, 1, out);
  memset(o, 0, (size_t)dim_v * sizeof *o);
  for (int kv0 = 0, t = 0; kv0 < p->kv_len; kv0 += CPU_TILE, t++) {
    if (class_of_tile[t] == 0) continue;
    double score[IR_LANES];
    const int count = scores_kept(&f->scores, &lanes, kv0, class_of_tile[t] == 1, score);
    if (count == 0) continue;
    scores_mod(&f->scores, &lanes, count, score);
    take_sizes(f, &noise, score, count);
    const double scale = online_step(f, &lanes, count, score, state);
    if (weights != NULL) keep_weights(&lanes, count, score, any ? scale : 0, weights);
    dropout_apply(&lanes, count, score);
    if (f->is_noise) {
      add_noise(f, &noise, &lanes, score, count, any ? scale : 0, o);
      any = true;
      continue;
    }
    problem_round(p, score, count);
    for (int d = 0; any && d < dim_v; d++) o[d] *= scale;
    for (int i = 0; i < count; i++) {
      const double *v = p->v + cpu_at(p->heads_kv, p->kv_len, dim_v, b, h / p->group, (int)w->kv_idx[i]);
      for (int d = 0; d < dim_v; d++) o[d] += score[i] * v[d];
    }
    any = true;
  }
  if (f->is_noise) finish_noise(f, &noise, w);
  const double factor = finish_row(f, &lanes, any, state, o, q);
  if (weights != NULL) write_weights(f, &lanes, q, factor, weights);
}

static void forward_rows(void *of_forward, int worker, int64_t unit) {
  const forward *f = of_forward;
  int from, to;
  const block_place at = blocks_rows(&f->blocks, unit, &from, &to);
  const unsigned char *classes = f->blocks.classes + unit / UNITS_OF_BLOCK * f->blocks.kv_tiles;
  for (int i = from; i < to; i++) forward_row(f, &f->p.worker[worker], at.b, at.h, at.q0 + i, classes);
}

static void forward_run(forward *f) {
  problem_convert(&f->p);
  while (blocks_next(&f->blocks)) problem_run(&f->p, forward_rows, f, (int64_t)f->blocks.count * UNITS_OF_BLOCK);
}

/* Blocks per run: the classes of their tiles take a megabyte, and a run has enough blocks for any number of
 * threads. */
static int64_t blocks_at_once(const cpu_problem *p) {
  const int64_t most = (1 << 20) / (p->kv_len / CPU_TILE + 1);
  return most > 4096 ? 4096 : most > 1 ? most : 1;
}

static luattn_status forward_open(forward *f, const cpu_call *given, const DLTensor *weights, arena *a,
                                  luattn_error *err) {
  const luattn_args *args = given->args;
  TRY(problem_open(given, true, a, &f->p, err));
  const luattn_spec *spec = f->p.spec; /* for these arguments */
  TRY(scores_open(&f->p, &f->scores, err));
  TRY(open_programs(f, err));
  cpu_problem *p = &f->p;
  const view_rule o = {.name = "o",
                       .axes = CPU_O_AXES,
                       .ndim = 4,
                       .shape = {p->batch, p->heads, p->q_len, p->dim_v},
                       Q_ROWS(p, 2),
                       .is_output = true};
  const view_rule lse = {.name = "lse",
                         .axes = CPU_ROW_AXES,
                         .ndim = 3,
                         .shape = {p->batch, p->heads, p->q_len},
                         Q_ROWS(p, 2),
                         .is_output = true};
  const view_rule saved = {.name = "saved",
                           .axes = CPU_SAVED_AXES,
                           .ndim = 4,
                           .shape = {spec->derived.num_saved, p->batch, p->heads, p->q_len},
                           Q_ROWS(p, 3),
                           .is_output = true};
  if (weights == NULL || args->o != NULL) TRY(view_open(&o, args->o, &f->o, err));
  if (args->lse != NULL && args->lse->data != NULL) {
    if (spec->traced.online.lse < 0) return refuse_lse(spec, "lse", err);
    TRY(view_open(&lse, args->lse, &f->lse, err));
  }
  if (spec->derived.num_saved > 0 && args->saved != NULL && args->saved->data != NULL)
    TRY(view_open(&saved, args->saved, &f->saved, err));
  TRY(problem_apart(p, args, true, err));
  if (weights != NULL) TRY(weights_open(f, given, weights, err));
  return blocks_open(p, blocks_at_once(p), &f->blocks, err);
}

typedef struct forward_call {
  cpu_call given;
  const DLTensor *weights; /* NULL: not wanted */
  bool is_noise;
  double exponent; /* of noise */
} forward_call;

static luattn_status forward_within(void *arguments, luattn_error *err) {
  forward_call *call = arguments;
  const cpu_call *given = &call->given;
  arena *a = arena_open(arena_allocator(given->spec->a));
  forward *f = a != NULL ? arena_new(a, sizeof *f) : NULL;
  luattn_status status = f != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  if (status == LUATTN_OK) status = forward_open(f, given, call->weights, a, err);
  if (status == LUATTN_OK) {
    f->is_noise = call->is_noise, f->magnifies = call->is_noise && cpu_magnifies_scores(given->spec);
    status = problem_start(&f->p, given->threads, err);
  }
  if (status == LUATTN_OK) {
    forward_run(f);
    problem_stop(&f->p);
    for (int i = 0; i < f->p.num_workers; i++) call->exponent = fmax(call->exponent, f->p.worker[i].exponent);
  }
  arena_close(a);
  return status;
}

luattn_status luattn_cpu_forward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                    luattn_error *err) {
  luattn_args used;
  forward_call call = {.given = {.spec = spec, .args = &used, .precision = precision}};
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  TRY(choices_take_dense(args, "cpu", &used, err));
  TRY(cpu_threads(&used, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status luattn_cpu_forward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  return luattn_cpu_forward_in(spec, args, LUATTN_F64, err);
}

luattn_status luattn_cpu_weights(const luattn_spec *spec, const luattn_args *args, const DLTensor *weights,
                                 luattn_error *err) {
  luattn_args used;
  forward_call call = {.given = {.spec = spec, .args = &used, .precision = LUATTN_F64}, .weights = weights};
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  NEED(weights);
  TRY(choices_take_dense(args, "cpu", &used, err));
  TRY(cpu_threads(&used, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status cpu_forward_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                luattn_error *err) {
  forward_call call = {
      .given = {.spec = spec, .args = args, .precision = LUATTN_F64, .first_entry = entry, .entries = entries}};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status cpu_weights_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                const DLTensor *weights, luattn_error *err) {
  forward_call call = {
      .given = {.spec = spec, .args = args, .precision = LUATTN_F64, .first_entry = entry, .entries = entries},
      .weights = weights};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status cpu_forward_coarse(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  forward_call call = {.given = {.spec = spec, .args = args, .precision = LUATTN_F64, .coarse = true}};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status cpu_forward_merged(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                 luattn_error *err) {
  const cpu_call given = {
      .spec = spec, .args = args, .precision = precision, .coarse = precision == LUATTN_F64, .merges = true};
  forward_call call = {.given = given};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(forward_within, &call, err);
}

luattn_status cpu_forward_score_noise(const luattn_spec *spec, const luattn_args *args, double *exponent,
                                      luattn_error *err) {
  forward_call call = {.given = {.spec = spec, .args = args, .precision = LUATTN_F64}, .is_noise = true};
  TRY(cpu_threads(args, &call.given.threads, err));
  TRY(host_run(forward_within, &call, err));
  if (exponent != NULL) *exponent = call.exponent;
  return LUATTN_OK;
}
