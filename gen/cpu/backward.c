/* backward.c: computes gradients row by row from the derived expressions, in double. */
#include <math.h>
#include <string.h>

#include "common/choices.h"
#include "gen/cpu/score_row.h"

/* Gradients of parameters: for each term a value and its indices. */
typedef struct term_program {
  const derived_terms *terms;
  cpu_program program;   /* for each term its value, then its indices */
  ir_lane_block *values; /* of the roots */
  int num_roots;
} term_program;

/* Computes gradients, or what cpu_gradient_noise, cpu_gradient_kinks or cpu_backward_score_noise writes in
 * their place. */
typedef enum purpose { GRADIENTS, PARAMETER_NOISE, TENSOR_NOISE, KINKS, SCORE_NOISE } purpose;

typedef struct backward {
  cpu_problem p;
  purpose purpose; /* noise: sums of squares of magnitudes instead of values */
  double unit;     /* KINKS */
  bool magnifies;  /* SCORE_NOISE: cpu_magnifies_scores */
  double row_size; /* |lse| of the row */
  cpu_scores scores;
  cpu_program rows, element; /* row numbers; prob and ds */
  term_program row_terms, element_terms;
  cpu_view o, lse, saved, dout, dlse;
  cpu_view dq_out, dk_out, dv_out, scalars_out; /* the caller's; data NULL: not wanted */
  double *dq, *dk, *dv;                         /* with respect to q', k', v' */
  double *input_grad[12]; /* NULL: not wanted, or without elements, though a row gathers even from such */
  double scalar_grad[32];
} backward;

#define MAX_ROOTS (DERIVED_MAX_TERMS * 5)

static bool is_noise(const backward *w) {
  return w->purpose == PARAMETER_NOISE || w->purpose == TENSOR_NOISE;
}

static bool has_parameters(const backward *w) {
  return w->purpose == GRADIENTS || w->purpose == PARAMETER_NOISE || w->purpose == SCORE_NOISE;
}

/* Whether gradients of q, k and v are written as sums of squares. */
static bool squares_tensors(const backward *w) {
  return w->purpose == TENSOR_NOISE || w->purpose == SCORE_NOISE;
}

static bool squares_parameters(const backward *w) {
  return w->purpose == PARAMETER_NOISE || w->purpose == SCORE_NOISE;
}

static luattn_status terms_open(const backward *w, const derived_terms *terms, term_program *out,
                                luattn_error *err) {
  const cpu_problem *p = &w->p;
  ir_ref roots[MAX_ROOTS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    const derived_term *t = &terms->term[i];
    roots[n] = t->value;
    if (w->purpose == PARAMETER_NOISE) TRY(magnitude_of(p->a, p->g, &roots[n], 1, err));
    n++;
    for (int j = 0; j < t->num_index; j++) roots[n++] = t->index[j];
  }
  *out = (term_program){.terms = terms, .num_roots = n};
  out->values = arena_array(p->a, (size_t)n, sizeof *out->values);
  if (out->values == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  return program_open(p->a, p->g, roots, n, &out->program, err);
}

static luattn_status rows_open(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  const derived_spec *derived = &p->spec->derived;
  ir_ref row[DERIVED_MAX_ROWS];
  for (int i = 0; i < derived->num_rows; i++) {
    row[i] = derived->row[i];
    const bool cancels = ir_uses(p->g, row[i], VAR_DELTA) || ir_uses(p->g, row[i], VAR_DLSE);
    if (is_noise(w) && cancels) TRY(magnitude_of(p->a, p->g, &row[i], 1, err));
  }
  return program_open(p->a, p->g, row, derived->num_rows, &w->rows, err);
}

static size_t input_offset(const cpu_view *t, int n_index, const double *const *index, int lane) {
  size_t at = 0;
  for (int j = 0; j < n_index; j++) {
    const double x = index[j][lane], last = (double)(t->shape[j] - 1);
    at = at * (size_t)t->shape[j] + (size_t)(x > 0 ? (x < last ? x : last) : 0);
  }
  return at;
}

/* weight: factors of the values, one a lane; NULL: 1. */
static void terms_add(backward *w, const term_program *t, cpu_lanes *lanes, int count, const double *weight) {
  if (t->num_roots == 0 || !has_parameters(w)) return;
  double *out[MAX_ROOTS];
  for (int i = 0; i < t->num_roots; i++) out[i] = t->values[i];
  program_run(&t->program, lanes, count, out);
  int at = 0;
  for (int i = 0; i < t->terms->count; i++) {
    const derived_term *term = &t->terms->term[i];
    const double *value = out[at], *const *index = (const double *const *)(out + at + 1);
    at += 1 + term->num_index;
    for (int lane = 0; lane < count; lane++) {
      const double y = weight != NULL ? weight[lane] * value[lane] : value[lane];
      const double x = squares_parameters(w) ? y * y : y;
      if (term->input < 0) {
        w->scalar_grad[term->scalar] += x;
      } else if (w->input_grad[term->input] != NULL) {
        w->input_grad[term->input][input_offset(&w->p.input[term->input], term->num_index, index, lane)] += x;
      }
    }
  }
}

/* Row numbers from what forward saved; returns false if the row kept nothing. */
static bool open_row(backward *w, cpu_lanes *lanes, int q, double *row) {
  const cpu_problem *p = &w->p;
  const derived_spec *derived = &p->spec->derived;
  double final[1 + DERIVED_MAX_ROWS], *out[DERIVED_MAX_ROWS], delta = 0;
  const int64_t at[] = {lanes->b, lanes->h, q};
  int n = 0;
  if (p->spec->traced.online.lse >= 0) {
    final[n++] = view_get(&w->lse, at);
    if (final[0] == -INFINITY) return false;
  }
  for (int i = 0; i < derived->num_saved; i++)
    final[n++] = view_get(&w->saved, (int64_t[]){i, at[0], at[1], at[2]});
  for (int d = 0; d < p->dim_v; d++) {
    const int64_t element[] = {at[0], at[1], at[2], d};
    const double part = view_get(&w->dout, element) * view_get(&w->o, element);
    delta += is_noise(w) ? part * part : part;
  }
  if (is_noise(w)) delta = sqrt(delta); /* each product has a rounding of o of its own */
  lanes->final = final;
  lanes->delta = delta;
  lanes->dlse = w->dlse.data != NULL ? view_get(&w->dlse, at) : 0;
  for (int i = 0; i < derived->num_rows; i++) out[i] = &row[i];
  program_run(&w->rows, lanes, 1, out);
  w->row_size = w->magnifies && p->spec->traced.online.lse >= 0 ? fabs(final[0]) : 0;
  terms_add(w, &w->row_terms, lanes, 1, w->purpose == SCORE_NOISE ? &w->row_size : NULL);
  return true;
}

/* How far three values of a function are apart, where the relative error `unit` of a score grows a
 * hundredfold: at a jump, or where it is steep, as a square root is next to 0. Smaller effects are within the
 * general tolerance. */
static double jump(double low, double middle, double high, double unit) {
  const double least = fmin(fmin(low, middle), high), most = fmax(fmax(low, middle), high);
  return most - least > 100 * unit * (fabs(least) + fabs(most)) ? most - least : 0;
}

/* Replaces the kept elements' values by how far they jump when their score moves by its rounding error:
 * w->unit of the products that it is a sum of. */
static void run_kinks(backward *w, cpu_lanes *lanes, int count, const double *score, double *prob,
                      double *ds) {
  const cpu_problem *p = &w->p;
  const double *q = p->q + cpu_at(p->heads, p->q_len, p->dim, lanes->b, lanes->h, (int)lanes->q_idx);
  double low[IR_LANES], high[IR_LANES], p_low[IR_LANES], ds_low[IR_LANES], p_high[IR_LANES],
      ds_high[IR_LANES];
  for (int i = 0; i < count; i++) {
    const double *k =
        p->k + cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    double sum = 0;
    for (int d = 0; d < p->dim; d++) sum += fabs(q[d] * k[d]);
    const double error = w->unit * p->scale * sum;
    low[i] = score[i] - error, high[i] = score[i] + error;
  }
  lanes->score = low;
  program_run(&w->element, lanes, count, (double *const[]){p_low, ds_low});
  lanes->score = high;
  program_run(&w->element, lanes, count, (double *const[]){p_high, ds_high});
  lanes->score = score;
  program_run(&w->element, lanes, count, (double *const[]){prob, ds});
  for (int i = 0; i < count; i++) {
    prob[i] = jump(p_low[i], prob[i], p_high[i], w->unit);
    ds[i] = jump(ds_low[i], ds[i], ds_high[i], w->unit);
  }
}

/* Multiplies the elements' values by sqrt(s^2 + lse^2), s being the argument of the online function. */
static void run_score_noise(backward *w, cpu_lanes *lanes, int count, double *size, double *prob,
                            double *ds) {
  const double *score = lanes->score;
  program_run(&w->element, lanes, count, (double *const[]){prob, ds});
  memcpy(size, score, (size_t)count * sizeof *size);
  scores_mod(&w->scores, lanes, count, size);
  lanes->score = score;
  for (int i = 0; i < count; i++) {
    size[i] = w->magnifies && isfinite(size[i]) ? hypot(size[i], w->row_size) : 0;
    prob[i] *= size[i], ds[i] *= size[i];
  }
}

/* What the element adds to a gradient: a product; with KINKS its largest magnitude; or its square. */
static double product(const backward *w, double a, double b) {
  const double x = a * b;
  return w->purpose == KINKS ? fabs(x) : squares_tensors(w) ? x * x : x;
}

static void backward_row(backward *w, int b, int h, int q, const unsigned char *class_of_tile, double *dout) {
  cpu_problem *p = &w->p;
  double row[DERIVED_MAX_ROWS], score[IR_LANES], dp[IR_LANES], prob[IR_LANES], ds[IR_LANES], size[IR_LANES];
  cpu_lanes lanes = {.p = p, .b = b, .h = h, .q_idx = q};
  if (!open_row(w, &lanes, q, row)) return;
  lanes.row = row;
  const double *qr = p->q + cpu_at(p->heads, p->q_len, p->dim, b, h, q);
  double *dq = w->dq + cpu_at(p->heads, p->q_len, p->dim, b, h, q);
  for (int d = 0; d < p->dim_v; d++) dout[d] = view_get(&w->dout, (int64_t[]){b, h, q, d});
  for (int kv0 = 0, t = 0; kv0 < p->kv_len; kv0 += CPU_TILE, t++) {
    if (class_of_tile[t] == 0) continue;
    const int count = scores_kept(&w->scores, &lanes, kv0, class_of_tile[t] == 1, score);
    if (count == 0) continue;
    for (int i = 0; i < count; i++) {
      const double *v =
          p->v + cpu_at(p->heads_kv, p->kv_len, p->dim_v, b, h / p->group, (int)w->scores.kv_idx[i]);
      dp[i] = 0;
      for (int d = 0; d < p->dim_v; d++) dp[i] += dout[d] * v[d];
    }
    round_all(p->precision, dp, count);
    lanes.score = score;
    lanes.dp = dp;
    if (w->purpose == KINKS)
      run_kinks(w, &lanes, count, score, prob, ds);
    else if (w->purpose == SCORE_NOISE)
      run_score_noise(w, &lanes, count, size, prob, ds);
    else
      program_run(&w->element, &lanes, count, (double *const[]){prob, ds});
    round_all(p->precision, prob, count);
    round_all(p->precision, ds, count);
    terms_add(w, &w->element_terms, &lanes, count, w->purpose == SCORE_NOISE ? size : NULL);
    for (int i = 0; i < count; i++) {
      const int kv = (int)w->scores.kv_idx[i];
      const size_t at = cpu_at(p->heads_kv, p->kv_len, 1, b, h / p->group, kv);
      const double *k = p->k + at * (size_t)p->dim, g = p->scale * ds[i];
      double *dk = w->dk + at * (size_t)p->dim, *dv = w->dv + at * (size_t)p->dim_v;
      for (int d = 0; d < p->dim; d++) dq[d] += product(w, g, k[d]), dk[d] += product(w, g, qr[d]);
      for (int d = 0; d < p->dim_v; d++) dv[d] += product(w, prob[i], dout[d]);
    }
  }
}

static luattn_status backward_run(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  double *dout = arena_array(p->a, (size_t)p->dim_v, sizeof *dout);
  unsigned char *classes = arena_new(p->a, (size_t)(p->kv_len / CPU_TILE + 1));
  if (dout == NULL || classes == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < p->heads; h++) {
      for (int q0 = 0; q0 < p->q_len; q0 += CPU_TILE) {
        const int q1 = q0 + CPU_TILE < p->q_len ? q0 + CPU_TILE - 1 : p->q_len - 1;
        tile_row_classes(p, b, h, q0, q1, classes);
        for (int q = q0; q <= q1; q++) backward_row(w, b, h, q, classes, dout);
      }
    }
  }
  return LUATTN_OK;
}

/* Writes one gradient through its input mod into the caller's tensor, which may be absent: the mod's
 * parameters take theirs all the same. */
typedef struct finish_rule {
  const cpu_view *from, *to;
  ir_ref mod;
  const derived_mod *derivative;
  double *grad;
} finish_rule;

static luattn_status finish_tensor(backward *w, const finish_rule *f, luattn_error *err) {
  cpu_problem *p = &w->p;
  const int heads = (int)f->from->shape[1], len = (int)f->from->shape[2], dim = (int)f->from->shape[3];
  const bool is_wanted = f->to->data != NULL && w->purpose != PARAMETER_NOISE;
  double *g = f->grad;
  cpu_program dx = {0};
  term_program terms = {0};
  if (f->mod != IR_NONE) {
    TRY(program_open(p->a, p->g, &f->derivative->dx, 1, &dx, err));
    TRY(terms_open(w, &f->derivative->terms, &terms, err));
  }
  for (int64_t row = 0, rows = (int64_t)p->batch * heads * len; row < rows; row++, g += dim) {
    const int b = (int)(row / len / heads), h = (int)(row / len % heads), i = (int)(row % len);
    for (int d0 = 0; d0 < dim; d0 += IR_LANES) {
      const int count = dim - d0 < IR_LANES ? dim - d0 : IR_LANES;
      double x[IR_LANES], channel[IR_LANES], result[IR_LANES];
      for (int d = d0; squares_tensors(w) && d < d0 + count; d++) g[d] = sqrt(g[d]);
      memcpy(result, g + d0, (size_t)count * sizeof *g);
      if (f->mod != IR_NONE) {
        for (int d = 0; d < count; d++)
          x[d] = view_get(f->from, (int64_t[]){b, h, i, d0 + d}), channel[d] = d0 + d;
        cpu_lanes lanes = {.p = p, .b = b, .h = h, .pos0 = i, .d = channel, .x = x, .grad = g + d0};
        program_run(&dx, &lanes, count, (double *const[]){result});
        terms_add(w, &terms, &lanes, count, NULL);
      }
      for (int d = 0; is_wanted && d < count; d++)
        view_set(f->to, (int64_t[]){b, h, i, d0 + d}, w->purpose == GRADIENTS ? result[d] : fabs(result[d]));
    }
  }
  return LUATTN_OK;
}

static void write_parameters(backward *w) {
  const traced_spec *t = &w->p.spec->traced;
  for (int i = 0; i < t->num_inputs; i++) {
    const cpu_view *to = &w->p.input_grad[i];
    if (to->data == NULL) continue;
    int64_t size = 1;
    for (int j = 0; j < to->ndim; j++) size *= to->shape[j];
    for (int64_t at = 0; at < size; at++) {
      int64_t index[4], rest = at;
      for (int j = to->ndim - 1; j >= 0; j--) index[j] = rest % to->shape[j], rest /= to->shape[j];
      view_set(to, index, squares_parameters(w) ? sqrt(w->input_grad[i][at]) : w->input_grad[i][at]);
    }
  }
  for (int64_t i = 0; w->scalars_out.data != NULL && i < t->num_scalars; i++)
    view_set(&w->scalars_out, &i, w->scalar_grad[i]);
}

static luattn_status open_arrays(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  const size_t rows = (size_t)p->batch * (size_t)p->heads * (size_t)p->q_len + 1;
  const size_t columns = (size_t)p->batch * (size_t)p->heads_kv * (size_t)p->kv_len + 1;
  w->dq = arena_array(p->a, rows, (size_t)p->dim * sizeof(double));
  w->dk = arena_array(p->a, columns, (size_t)p->dim * sizeof(double));
  w->dv = arena_array(p->a, columns, (size_t)p->dim_v * sizeof(double));
  bool ok = w->dq != NULL && w->dk != NULL && w->dv != NULL;
  for (int i = 0; i < p->spec->traced.num_inputs && ok; i++) {
    if (p->input_grad[i].data == NULL || view_is_empty(&p->input[i])) continue;
    size_t size = 1;
    for (int j = 0; j < p->input[i].ndim; j++) size *= (size_t)p->input[i].shape[j];
    w->input_grad[i] = arena_array(p->a, size, sizeof(double));
    ok = w->input_grad[i] != NULL;
  }
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

/* Opens forward's results and the incoming gradients. */
static luattn_status open_rows(backward *w, const luattn_args *args, luattn_error *err) {
  const cpu_problem *p = &w->p;
  const luattn_spec *spec = p->spec;
  view_rule o = {
      .name = "o", .axes = CPU_O_AXES, .ndim = 4, .shape = {p->batch, p->heads, p->q_len, p->dim_v}};
  view_rule lse = {.name = "lse", .axes = CPU_ROW_AXES, .ndim = 3, .shape = {p->batch, p->heads, p->q_len}};
  const view_rule saved = {.name = "saved",
                           .axes = CPU_SAVED_AXES,
                           .ndim = 4,
                           .shape = {spec->derived.num_saved, p->batch, p->heads, p->q_len}};
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
  memcpy(rule.shape, like->shape, sizeof rule.shape);
  return t == NULL || t->data == NULL ? LUATTN_OK : view_open(&rule, t, out, err);
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

static luattn_status backward_open(backward *w, const luattn_spec *spec, const luattn_args *args,
                                   luattn_dtype precision, arena *a, luattn_error *err) {
  const derived_spec *derived = &spec->derived;
  TRY(problem_open(spec, args, false, precision, a, &w->p, err));
  cpu_problem *p = &w->p;
  TRY(scores_open(p, &w->scores, err));
  TRY(rows_open(w, err));
  ir_ref element[] = {derived->prob, derived->ds};
  if (w->purpose == TENSOR_NOISE) TRY(magnitude_of(a, p->g, element, 2, err));
  TRY(program_open(a, p->g, element, 2, &w->element, err));
  TRY(terms_open(w, &derived->row_terms, &w->row_terms, err));
  TRY(terms_open(w, &derived->element_terms, &w->element_terms, err));
  TRY(open_rows(w, args, err));
  TRY(open_outputs(w, args, err));
  return open_arrays(w, err);
}

/* Writes the gradients of q', k' and v' through their mods, then those of the parameters. */
static luattn_status backward_finish(backward *w, luattn_error *err) {
  const cpu_problem *p = &w->p;
  const traced_spec *t = &p->spec->traced;
  const derived_spec *d = &p->spec->derived;
  const finish_rule all[] = {
      {&p->q_given, &w->dq_out, t->query_mod, &d->query_mod, w->dq},
      {&p->k_given, &w->dk_out, t->key_mod, &d->key_mod, w->dk},
      {&p->v_given, &w->dv_out, t->value_mod, &d->value_mod, w->dv},
  };
  for (int i = 0; i < 3; i++) TRY(finish_tensor(w, &all[i], err));
  for (int i = 0; squares_parameters(w) && i < t->num_scalars; i++)
    w->scalar_grad[i] = sqrt(w->scalar_grad[i]);
  if (has_parameters(w)) write_parameters(w);
  return LUATTN_OK;
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
    s = backward_open(w, given->spec, given->args, given->precision, a, err);
  }
  if (s == LUATTN_OK) s = backward_run(w, err);
  if (s == LUATTN_OK) s = backward_finish(w, err);
  arena_close(a);
  return s;
}

static luattn_status run(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                         purpose why, double unit, luattn_error *err) {
  luattn_args used;
  TRY(choices_take_dense(args, "cpu", &used, err));
  return host_run(backward_within, &(backward_call){{spec, &used, precision}, why, unit}, err);
}

luattn_status luattn_cpu_backward_in(const luattn_spec *spec, const luattn_args *args, luattn_dtype precision,
                                     luattn_error *err) {
  fail_clear(err);
  NEED(spec);
  NEED(args);
  return run(spec, args, precision, GRADIENTS, 0, err);
}

luattn_status luattn_cpu_backward(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  fail_clear(err);
  NEED(spec);
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
