/* backward.c: runs a backward pass: opens its tensors, walks their tiles (gradient_walk.c), writes
 * gradients. */
#include "gen/cpu/backward.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/call/need_attention.h"
#include "common/call/choices.h"

static luattn_status rows_open(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  const derived_spec *derived = &p->spec->derived;
  ir_ref row[DERIVED_MAX_ROWS];
  for (int i = 0; i < derived->num_rows; i++) {
    row[i] = derived->row[i];
    const bool cancels =
        ir_uses(p->g, row[i], VAR_DELTA) || ir_uses(p->g, row[i], VAR_DLSE) || ir_uses(p->g, row[i], VAR_PASS);
    const bool is_place = ir_is_var(p->g, row[i], VAR_PASS); /* or a maximum: what is compared has no noise */
    if (is_noise(w) && cancels && !is_place) TRY(magnitude_of(p->a, p->g, &row[i], 1, err));
  }
  return program_open(p, row, derived->num_rows, &w->rows, err);
}

/* Writes one gradient through its input mod into the caller's tensor, which may be absent: the gradients of
 * the mod's parameters are computed in any case. */
typedef struct finish_rule {
  const backward *w;
  const cpu_view *from, *to;
  bool of_keys;
  const cpu_program *dx; /* of the mod, if any */
  const term_program *terms;
  double *grad;
} finish_rule;

static void finish_part(const finish_rule *f, cpu_worker *worker, const int64_t at[4], int count, double *g) {
  const backward *w = f->w;
  double channel[IR_LANES], result[IR_LANES];
  const int d0 = (int)at[3];
  memcpy(result, g + d0, (size_t)count * sizeof *g);
  if (f->dx->program != NULL) {
    for (int d = 0; d < count; d++) channel[d] = d0 + d;
    cpu_lanes lanes = {.p = &w->p,
                       .w = worker,
                       .b = (int)at[0],
                       .h = (int)at[1],
                       .pos0 = (double)at[2],
                       .d = channel,
                       .x = worker->given + d0,
                       .grad = g + d0,
                       .of_keys = f->of_keys,
                       .row_of = {f->dx->rows, d0, worker->given, g}};
    program_run(f->dx, &lanes, count, (double *const[]){result});
    terms_add(w, f->terms, &lanes, count);
  }
  if (f->to->data == NULL || w->purpose == PARAMETER_NOISE) return;
  for (int d = 0; d < count; d++)
    view_set(f->to, (int64_t[]){at[0], at[1], at[2], d0 + d}, w->purpose == GRADIENTS ? result[d] : fabs(result[d]));
}

/* g: of the whole row, which a mod may read at other channels. */
static void finish_row(const finish_rule *f, cpu_worker *worker, int64_t at[4], double *g) {
  const int dim = (int)f->from->shape[3];
  for (int d = 0; squares_tensors(f->w) && d < dim; d++) g[d] = sqrt(g[d]);
  for (int d = 0; f->dx->program != NULL && d < dim; d++)
    worker->given[d] = view_get(f->from, (int64_t[]){at[0], at[1], at[2], d});
  for (at[3] = 0; at[3] < dim; at[3] += IR_LANES)
    finish_part(f, worker, at, (int)(dim - at[3] < IR_LANES ? dim - at[3] : IR_LANES), g);
}

enum { CHUNK = 64 }; /* rows of a tensor per work unit */

static void finish_chunk(void *of_rule, int worker, int64_t chunk) {
  const finish_rule *f = of_rule;
  const int64_t heads = f->from->shape[1], len = f->from->shape[2], dim = f->from->shape[3];
  const int64_t rows = f->from->shape[0] * heads * len, end = rows - chunk * CHUNK < CHUNK ? rows : (chunk + 1) * CHUNK;
  for (int64_t row = chunk * CHUNK; row < end; row++) {
    int64_t at[] = {row / len / heads, row / len % heads, row % len, 0};
    finish_row(f, &f->w->p.worker[worker], at, f->grad + row * dim);
  }
}

/* Sums of a mod's parameters are added up by one thread, in the order of rows. */
static void finish_tensor(backward *w, finish_rule *f) {
  const int64_t rows = f->from->shape[0] * f->from->shape[1] * f->from->shape[2], chunks = (rows + CHUNK - 1) / CHUNK;
  crew_run(f->terms->num_wanted > 0 ? NULL : w->p.crew, finish_chunk, f, chunks);
}

typedef struct parameter_rule {
  const backward *w;
  const cpu_view *to;
  const double *grad;
  int64_t size;
} parameter_rule;

enum { PARAMETERS = 4096 }; /* written together */

static void write_chunk(void *of_rule, int worker, int64_t chunk) {
  const parameter_rule *f = of_rule;
  const int64_t end = f->size - chunk * PARAMETERS < PARAMETERS ? f->size : (chunk + 1) * PARAMETERS;
  (void)worker;
  for (int64_t at = chunk * PARAMETERS; at < end; at++) {
    int64_t index[4], rest = at;
    for (int j = f->to->ndim - 1; j >= 0; j--) index[j] = rest % f->to->shape[j], rest /= f->to->shape[j];
    view_set(f->to, index, squares_parameters(f->w) ? sqrt(f->grad[at]) : f->grad[at]);
  }
}

static void write_parameters(backward *w) {
  const traced_spec *t = &w->p.spec->traced;
  for (int i = 0; i < t->num_inputs; i++) {
    parameter_rule f = {w, &w->p.input_grad[i], w->input_grad[i], 1};
    if (f.to->data == NULL) continue;
    for (int j = 0; j < f.to->ndim; j++) f.size *= f.to->shape[j];
    problem_run(&w->p, write_chunk, &f, (f.size + PARAMETERS - 1) / PARAMETERS);
  }
  for (int64_t i = 0; w->scalars_out.data != NULL && i < t->num_scalars; i++)
    view_set(&w->scalars_out, &i, w->scalar_grad[i]);
}

static luattn_status open_arrays(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  const size_t rows = (size_t)p->batch * (size_t)p->heads * (size_t)p->q_len + 1;
  const size_t columns = (size_t)p->batch * (size_t)p->heads_kv * (size_t)p->kv_len + 1;
  w->dq = arena_raw(p->a, rows, (size_t)p->dim * sizeof(double));
  w->dk = arena_raw(p->a, columns, (size_t)p->dim * sizeof(double));
  w->dv = arena_raw(p->a, columns, (size_t)p->dim_v * sizeof(double));
  w->dout_rows = arena_raw(p->a, rows, (size_t)p->dim_v * sizeof(double));
  bool ok = w->dq != NULL && w->dk != NULL && w->dv != NULL && w->dout_rows != NULL;
  for (int i = 0; i < p->spec->traced.num_inputs && ok; i++) {
    if (p->input_grad[i].data == NULL || view_is_empty(&p->input[i])) continue;
    size_t size = 1;
    for (int j = 0; j < p->input[i].ndim; j++) size *= (size_t)p->input[i].shape[j];
    w->input_grad[i] = arena_raw(p->a, size, sizeof(double));
    ok = w->input_grad[i] != NULL;
  }
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

/* Opens forward's results and the incoming gradients. */
static luattn_status open_rows(backward *w, const luattn_args *args, luattn_error *err) {
  cpu_problem *p = &w->p;
  const luattn_spec *spec = p->spec;
  view_rule o = {
      .name = "o", .axes = CPU_O_AXES, .ndim = 4, .shape = {p->batch, p->heads, p->q_len, p->dim_v}, Q_ROWS(p, 2)};
  view_rule lse = {
      .name = "lse", .axes = CPU_ROW_AXES, .ndim = 3, .shape = {p->batch, p->heads, p->q_len}, Q_ROWS(p, 2)};
  const view_rule saved = {.name = "saved",
                           .axes = CPU_SAVED_AXES,
                           .ndim = 4,
                           .shape = {spec->derived.num_saved, p->batch, p->heads, p->q_len},
                           Q_ROWS(p, 3)};
  TRY(view_open(&o, args->o, &w->o, err));
  o.name = "dout";
  TRY(view_open(&o, args->dout, &w->dout, err));
  if (spec->traced.online.lse >= 0) TRY(view_open(&lse, args->lse, &w->lse, err));
  if (spec->derived.num_saved > 0) TRY(view_open(&saved, args->saved, &w->saved, err));
  if (args->dlse == NULL || args->dlse->data == NULL) return LUATTN_OK;
  if (spec->traced.online.lse < 0) return refuse_lse(spec, "dlse", err);
  lse.name = "dlse";
  return view_open(&lse, args->dlse, &w->dlse, err);
}

static luattn_status open_output(const char *name, const char *axes, const cpu_view *like, const DLTensor *t,
                                 cpu_view *out, luattn_error *err) {
  view_rule rule = {.name = name, .axes = axes, .ndim = like->ndim, .is_output = true};
  cpu_side side = {0}; /* its extents are known: the same ones come back */
  if (like->side != NULL) side = *like->side, rule.side = &side, rule.row_axis = like->row_axis;
  memcpy(rule.shape, like->shape, sizeof like->shape);
  if (t == NULL || t->data == NULL) return LUATTN_OK;
  TRY(view_open(&rule, t, out, err));
  out->side = like->side;
  return LUATTN_OK;
}

static luattn_status open_outputs(backward *w, const luattn_args *args, luattn_error *err) {
  const cpu_problem *p = &w->p;
  const cpu_view scalars = {.ndim = 1, .shape = {p->spec->traced.num_scalars}};
  TRY(open_output("dq", CPU_Q_AXES, &p->q_given, args->dq, &w->dq_out, err));
  TRY(open_output("dk", CPU_K_AXES, &p->k_given, args->dk, &w->dk_out, err));
  TRY(open_output("dv", CPU_V_AXES, &p->v_given, args->dv, &w->dv_out, err));
  TRY(open_output("scalar_grads", "number of scalars", &scalars, args->scalar_grads, &w->scalars_out, err));
  return problem_apart(p, args, false, err);
}

static luattn_status open_mods(backward *w, luattn_error *err) {
  const traced_spec *t = &w->p.spec->traced;
  const derived_spec *d = &w->p.spec->derived;
  const ir_ref mod[] = {t->query_mod, t->key_mod, t->value_mod};
  const derived_mod *derivative[] = {&d->query_mod, &d->key_mod, &d->value_mod};
  for (int i = 0; i < 3; i++) {
    if (mod[i] == IR_NONE) continue;
    ir_ref dx = derivative[i]->dx;
    /* Contributions of several channels to one element may cancel, but their noise does not. */
    if (t->rows[i] != NULL && w->purpose != GRADIENTS) TRY(magnitude_of(w->p.a, w->p.g, &dx, 1, err));
    TRY(program_open(&w->p, &dx, 1, &w->mod_dx[i], err));
    w->mod_dx[i].rows = t->rows[i];
    TRY(terms_open(w, &derivative[i]->terms, &w->mod_terms[i], err));
  }
  return LUATTN_OK;
}

/* A row pass sums over the keys of a call, so these have to be the row's. */
static luattn_status need_whole_rows(const cpu_problem *p, luattn_error *err) {
  if (p->spec->derived.num_passes == 0) return LUATTN_OK;
  for (int b = 0; b < p->batch; b++) {
    const int64_t whole = problem_length(p, LUATTN_AXIS_KV, b);
    if (whole == p->kv_len) continue;
    return luattn_fail(
        err, LUATTN_UNSUPPORTED,
        "cpu: k: has %d of %" PRId64
        " keys, and backward of %s takes a row pass, which needs all keys of a row in one call; give all, or "
        "write backward = function(dp, p, final_rowscales, doosum, b, h, q_idx, kv_idx, scores) .. end",
        p->kv_len, whole, p->spec->traced.name);
  }
  return LUATTN_OK;
}

static luattn_status backward_open(backward *w, const cpu_call *given, arena *a, luattn_error *err) {
  TRY(problem_open(given, false, a, &w->p, err));
  cpu_problem *p = &w->p;
  const luattn_args *args = given->args;
  const derived_spec *derived = &p->spec->derived; /* for these head dims */
  TRY(need_whole_rows(p, err));
  TRY(scores_open(p, &w->scores, err));
  TRY(passes_open(w, err));
  TRY(rows_open(w, err));
  ir_ref element[] = {derived->prob, derived->ds};
  if (w->purpose == TENSOR_NOISE) TRY(magnitude_of(a, p->g, element, 2, err));
  TRY(program_open(p, element, 2, &w->element, err));
  TRY(terms_open(w, &derived->row_terms, &w->row_terms, err));
  TRY(terms_open(w, &derived->element_terms, &w->element_terms, err));
  TRY(open_mods(w, err));
  TRY(open_rows(w, args, err));
  TRY(open_outputs(w, args, err));
  TRY(open_arrays(w, err));
  for (int i = 0; i < 3; i++) terms_want(w, &w->mod_terms[i]);
  return stage_open(w, err);
}

/* Writes the gradients of q', k' and v' through their mods, then those of the parameters. */
static void backward_finish(backward *w) {
  const cpu_problem *p = &w->p;
  finish_rule all[] = {
      {w, &p->q_given, &w->dq_out, false, &w->mod_dx[0], &w->mod_terms[0], w->dq},
      {w, &p->k_given, &w->dk_out, true, &w->mod_dx[1], &w->mod_terms[1], w->dk},
      {w, &p->v_given, &w->dv_out, true, &w->mod_dx[2], &w->mod_terms[2], w->dv},
  };
  for (int i = 0; i < 3; i++) finish_tensor(w, &all[i]);
  for (int i = 0; squares_parameters(w) && i < p->spec->traced.num_scalars; i++)
    w->scalar_grad[i] = sqrt(w->scalar_grad[i]);
  if (has_parameters(w)) write_parameters(w);
}

typedef struct backward_call {
  cpu_call given;
  purpose why;
  double unit;
} backward_call;

static luattn_status backward_within(void *arguments, luattn_error *err) {
  const backward_call *call = arguments;
  const cpu_call *given = &call->given;
  if (given->spec->derived.missing != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "%s", given->spec->derived.missing);
  arena *a = arena_open(arena_allocator(given->spec->a));
  backward *w = a != NULL ? arena_new(a, sizeof *w) : NULL;
  luattn_status s = w != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  if (s == LUATTN_OK) {
    w->purpose = call->why, w->unit = call->unit, w->magnifies = cpu_magnifies_scores(given->spec);
    s = backward_open(w, given, a, err);
  }
  if (s == LUATTN_OK) s = problem_start(&w->p, given->threads, err);
  if (s == LUATTN_OK) {
    gradient_walk(w);
    backward_finish(w);
    problem_stop(&w->p);
  }
  arena_close(a);
  return s;
}

static luattn_status run(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision, purpose why,
                         double unit, luattn_error *err) {
  luattn_args used;
  backward_call call = {{.spec = spec, .args = &used, .precision = precision}, why, unit};
  TRY(choices_take_dense(args, "cpu", &used, err));
  TRY(cpu_threads(&used, &call.given.threads, err));
  return host_run(backward_within, &call, err);
}

luattn_status cpu_backward_entry(const luattn_spec *spec, const luattn_args *args, int entry, int entries,
                                 luattn_error *err) {
  backward_call call = {
      {.spec = spec, .args = args, .precision = LUATTN_F64, .first_entry = entry, .entries = entries}, GRADIENTS, 0};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(backward_within, &call, err);
}

luattn_status cpu_backward_coarse(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  backward_call call = {{.spec = spec, .args = args, .precision = LUATTN_F64, .coarse = true}, GRADIENTS, 0};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(backward_within, &call, err);
}

luattn_status cpu_backward_merged(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                  luattn_error *err) {
  const cpu_call given = {
      .spec = spec, .args = args, .precision = precision, .coarse = precision == LUATTN_F64, .merges = true};
  backward_call call = {given, GRADIENTS, 0};
  TRY(cpu_threads(args, &call.given.threads, err));
  return host_run(backward_within, &call, err);
}

luattn_status luattn_cpu_backward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                     luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  return run(spec, args, precision, GRADIENTS, 0, err);
}

luattn_status luattn_cpu_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  return run(spec, args, LUATTN_F64, GRADIENTS, 0, err);
}

luattn_status cpu_gradient_noise(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  TRY(run(spec, args, LUATTN_F64, PARAMETER_NOISE, 0, err));
  return run(spec, args, LUATTN_F64, TENSOR_NOISE, 0, err);
}

/* Whether anything that is not continuous, or has unbounded slopes, reads a score. */
static bool has_kinks(const ir *g) {
  static const ir_op steps[] = {IR_LT,  IR_LE,   IR_EQ,    IR_NE,  IR_SIGN, IR_FLOOR, IR_FLOORDIV,
                                IR_MOD, IR_SQRT, IR_RSQRT, IR_LOG, IR_LOG2, IR_POW};
  for (ir_ref r = 1; r < ir_count(g); r++)
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
      if (ir_get(g, r)->op == steps[i] && ir_uses(g, r, VAR_SCORE)) return true;
  return false;
}

luattn_status cpu_gradient_kinks(const luattn_spec *spec, const luattn_args *args, double unit, bool *some,
                                 luattn_error *err) {
  *some = has_kinks(spec->traced.g);
  return *some ? run(spec, args, LUATTN_F64, KINKS, unit, err) : LUATTN_OK;
}

luattn_status cpu_backward_score_noise(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  return run(spec, args, LUATTN_F64, SCORE_NOISE, 0, err);
}
