/* backward_jvp.c: tangents of gradients, in double: forward mode of backward, which is at once the product of the Hessian
 * with the tangents, and the backward of forward's tangents. Rows are computed anew, one after the other. */
#include <math.h>
#include <string.h>

#include "common/call/choices.h"
#include "common/call/need_attention.h"
#include "common/call/overlap.h"
#include "gen/cpu/dual_passes.h"

/* Gradients of q', k' and v', and of parameters: a value, where a mod reads it, and its tangent. */
typedef struct dual_sums {
  double *x, *x_t;
} dual_sums;

/* Tangents of the gradients that arise in one place: of each term its value's tangent, then its indices. */
typedef struct term_tangents {
  const derived_terms *terms;
  cpu_program program;
  int num_roots;
} term_tangents;

typedef struct backward_jvp {
  dual_rows f;
  backward_tangents tangents;
  cpu_program finals, rows, element; /* each its values, then their tangents */
  dual_passes passes;
  cpu_program dx[3];
  term_tangents row_terms, element_terms, mod_terms[3];
  cpu_view dout, dlse, dout_t, dlse_t, out[3], scalars_out; /* out: tangents of dq, dk, dv */
  dual_sums grad[3];
  double *input_grad[12]; /* tangents; NULL: not wanted */
  double scalar_grad[32];
  dual_dout row; /* of dO */
} backward_jvp;

/* ---- opening ---- */

static luattn_status open_terms(backward_jvp *w, const derived_terms *terms, const ir_ref *tangent, term_tangents *out,
                                luattn_error *err) {
  cpu_problem *p = &w->f.p;
  ir_ref *root = arena_array(p->a, 5 * DERIVED_MAX_TERMS, sizeof *root);
  int n = 0;
  if (root == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  for (int i = 0; i < terms->count; i++) {
    root[n++] = tangent[i] != IR_NONE ? tangent[i] : ir_real(p->g, 0);
    for (int j = 0; j < terms->term[i].num_index; j++) root[n++] = terms->term[i].index[j];
  }
  *out = (term_tangents){.terms = terms, .num_roots = n};
  if (n > p->most_values) p->most_values = n;
  return program_open(p, root, n, &out->program, err);
}

/* Numbers of a row that backward reads: lse, then what forward saves. */
static luattn_status open_finals(backward_jvp *w, luattn_error *err) {
  const traced_online *on = &w->f.p.spec->traced.online;
  const derived_spec *d = &w->f.p.spec->derived;
  ir_ref value[1 + DERIVED_MAX_ROWS], tangent[1 + DERIVED_MAX_ROWS];
  int n = 0;
  if (on->lse >= 0) value[n] = on->final[on->lse], tangent[n++] = w->f.tangents.lse;
  for (int i = 0; i < d->num_saved; i++) value[n] = d->saved[i], tangent[n++] = w->tangents.saved[i];
  return dual_open(&w->f.p, value, tangent, n, &w->finals, err);
}

static luattn_status open_programs(backward_jvp *w, luattn_error *err) {
  cpu_problem *p = &w->f.p;
  const traced_spec *t = &p->spec->traced;
  const derived_spec *d = &p->spec->derived;
  const backward_tangents *b = &w->tangents;
  const derived_mod *mod[] = {&d->query_mod, &d->key_mod, &d->value_mod};
  const bool has[] = {t->query_mod != IR_NONE, t->key_mod != IR_NONE, t->value_mod != IR_NONE};
  TRY(backward_tangents_of(p->a, t, d, &w->f.tangents, &w->tangents, err));
  TRY(open_finals(w, err));
  TRY(dual_passes_open(p, b, &w->passes, err));
  TRY(dual_open(p, d->row, b->row, d->num_rows, &w->rows, err));
  TRY(dual_open(p, (const ir_ref[]){d->prob, d->ds}, (const ir_ref[]){b->prob, b->ds}, 2, &w->element, err));
  TRY(open_terms(w, &d->row_terms, b->row_terms, &w->row_terms, err));
  TRY(open_terms(w, &d->element_terms, b->element_terms, &w->element_terms, err));
  for (int i = 0; i < 3; i++) {
    if (!has[i]) continue;
    const ir_ref dx = b->dx[i] != IR_NONE ? b->dx[i] : ir_real(p->g, 0);
    TRY(program_open(p, &dx, 1, &w->dx[i], err));
    w->dx[i].rows = t->rows[i];
    TRY(open_terms(w, &mod[i]->terms, b->mod_terms[i], &w->mod_terms[i], err));
  }
  return LUATTN_OK;
}

static luattn_status open_like(const char *name, const char *axes, const cpu_view *like, bool is_output,
                               const DLTensor *t, cpu_view *out, luattn_error *err) {
  view_rule rule = {.name = name, .axes = axes, .ndim = like->ndim, .is_output = is_output};
  cpu_side side = {0};
  if (like->side != NULL) side = *like->side, rule.side = &side, rule.row_axis = like->row_axis;
  memcpy(rule.shape, like->shape, sizeof like->shape);
  if (t == NULL || t->data == NULL) return LUATTN_OK;
  TRY(view_open(&rule, t, out, err));
  out->side = like->side;
  return LUATTN_OK;
}

static luattn_status open_tensors(backward_jvp *w, const luattn_args *args, const luattn_tangents *t,
                                  luattn_error *err) {
  const cpu_problem *p = &w->f.p;
  const bool has_lse = p->spec->traced.online.lse >= 0;
  cpu_view o = p->q_given, lse = p->q_given;
  const cpu_view scalars = {.ndim = 1, .shape = {p->spec->traced.num_scalars}};
  o.shape[3] = p->dim_v, lse.ndim = 3;
  if (args->dout == NULL)
    return luattn_fail(err, LUATTN_INVALID, "cpu: dout: is missing; give a tensor [%s]", CPU_O_AXES);
  TRY(open_like("dout", CPU_O_AXES, &o, false, args->dout, &w->dout, err));
  TRY(open_like("tangents.dout", CPU_O_AXES, &o, false, t->dout, &w->dout_t, err));
  if (!has_lse && args->dlse != NULL) return refuse_lse(p->spec, "dlse", err);
  if (!has_lse && t->dlse != NULL) return refuse_lse(p->spec, "tangents.dlse", err);
  TRY(open_like("dlse", CPU_ROW_AXES, &lse, false, args->dlse, &w->dlse, err));
  TRY(open_like("tangents.dlse", CPU_ROW_AXES, &lse, false, t->dlse, &w->dlse_t, err));
  TRY(open_like("tangents.dq", CPU_Q_AXES, &p->q_given, true, t->dq, &w->out[0], err));
  TRY(open_like("tangents.dk", CPU_K_AXES, &p->k_given, true, t->dk, &w->out[1], err));
  TRY(open_like("tangents.dv", CPU_V_AXES, &p->v_given, true, t->dv, &w->out[2], err));
  return open_like("tangents.scalar_grads", "number of scalars", &scalars, true, t->scalar_grads, &w->scalars_out, err);
}

/* Checks that what is written overlaps nothing else of the call. */
static luattn_status check_apart(const luattn_args *a, const luattn_tangents *t, luattn_error *err) {
  overlap_item item[15 + 3 * CHOICES_MAX_INPUTS] = {{"tangents.dq", t->dq, true},
                                                    {"tangents.dk", t->dk, true},
                                                    {"tangents.dv", t->dv, true},
                                                    {"tangents.scalar_grads", t->scalar_grads, true},
                                                    {"q", a->q, false},
                                                    {"k", a->k, false},
                                                    {"v", a->v, false},
                                                    {"dout", a->dout, false},
                                                    {"dlse", a->dlse, false},
                                                    {"tangents.q", t->q, false},
                                                    {"tangents.k", t->k, false},
                                                    {"tangents.v", t->v, false},
                                                    {"tangents.dout", t->dout, false},
                                                    {"tangents.dlse", t->dlse, false}};
  overlap_pair pair;
  char message[400];
  int n = 14;
  for (size_t i = 0; i < a->num_inputs; i++) item[n++] = (overlap_item){a->inputs[i].name, a->inputs[i].tensor, false};
  for (size_t i = 0; i < t->num_inputs; i++) {
    item[n++] = (overlap_item){t->inputs[i].name, t->inputs[i].tensor, false};
    item[n++] = (overlap_item){"grad of an input's tangent", t->inputs[i].grad, true};
  }
  if (!overlap_find_among(item, n, &pair)) return LUATTN_OK;
  overlap_text(&pair, message, sizeof message);
  return luattn_fail(err, LUATTN_INVALID, "cpu: %s", message);
}

static int64_t elements(const cpu_view *t) {
  int64_t count = 1;
  for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
  return count;
}

static luattn_status make_room(backward_jvp *w, luattn_error *err) {
  cpu_problem *p = &w->f.p;
  const cpu_view *like[] = {&p->q_given, &p->k_given, &p->v_given};
  bool ok = true;
  for (int i = 0; i < 3; i++) {
    const size_t n = (size_t)elements(like[i]) + 1;
    w->grad[i] = (dual_sums){arena_array(p->a, n, sizeof(double)), arena_array(p->a, n, sizeof(double))};
    ok &= w->grad[i].x != NULL && w->grad[i].x_t != NULL;
  }
  for (int i = 0; i < p->spec->traced.num_inputs; i++) {
    if (p->input_tangent_grad[i].data == NULL || view_is_empty(&p->input[i])) continue;
    w->input_grad[i] = arena_array(p->a, (size_t)elements(&p->input[i]) + 1, sizeof(double));
    ok &= w->input_grad[i] != NULL;
  }
  w->row.x = arena_array(p->a, (size_t)p->dim_v, sizeof(double));
  w->row.x_t = arena_array(p->a, (size_t)p->dim_v, sizeof(double));
  ok &= w->row.x != NULL && w->row.x_t != NULL;
  return ok ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
}

/* ---- parameters ---- */

static void add_terms(backward_jvp *w, const term_tangents *t, cpu_lanes *lanes, int count) {
  double *out[5 * DERIVED_MAX_TERMS];
  if (t->num_roots == 0) return;
  for (int i = 0; i < t->num_roots; i++) out[i] = lanes->w->values[i];
  program_run(&t->program, lanes, count, out);
  for (int i = 0, root = 0; i < t->terms->count; i++) {
    const derived_term *term = &t->terms->term[i];
    double *sum = term->input < 0 ? w->scalar_grad + term->scalar : w->input_grad[term->input];
    for (int lane = 0; sum != NULL && lane < count; lane++) {
      size_t at = 0;
      for (int j = 0; term->input >= 0 && j < term->num_index; j++)
        at = at * (size_t)lanes->p->input[term->input].shape[j] +
             (size_t)lane_index(lanes, (uint32_t)term->input, j, lane, out[root + 1 + j][lane]);
      sum[at] += out[root][lane];
    }
    root += 1 + term->num_index;
  }
}

/* ---- a row ---- */

typedef struct row_numbers {
  double final[2 * (1 + DERIVED_MAX_ROWS)], number[2 * DERIVED_MAX_ROWS]; /* values, then tangents */
  double pass[2 * DUAL_PASSES_MAX];
} row_numbers;

/* As backward's open_row: a row with an lse of -inf has the numbers of one of +inf. */
static void take_numbers(backward_jvp *w, cpu_lanes *lanes, const dual_row *elements_of, const row_end *row,
                         row_numbers *n) {
  const cpu_problem *p = &w->f.p;
  const derived_spec *d = &p->spec->derived;
  const bool has_lse = p->spec->traced.online.lse >= 0;
  const bool any = elements_of->count > 0;
  const int finals = (has_lse ? 1 : 0) + d->num_saved;
  const int64_t at[] = {lanes->b, lanes->h, (int64_t)lanes->q_idx};
  double *out[2 * (1 + DERIVED_MAX_ROWS)], delta = 0, delta_t = 0;
  for (int i = 0; i < 2 * finals; i++) out[i] = &n->final[i];
  lanes->state = row->state, lanes->state_tangent = row->state_t;
  program_run(&w->finals, lanes, 1, out);
  const bool no_lse = has_lse && (!any || n->final[0] == -INFINITY);
  if (no_lse) n->final[0] = INFINITY, n->final[finals] = 0;
  for (int k = 0; any && k < p->dim_v; k++) {
    const double o = row->last[FACTOR] * row->A[k],
                 o_t = row->last[FACTOR] * row->B[k] + row->last[FACTOR_TANGENT] * row->A[k];
    delta += w->row.x[k] * o, delta_t += w->row.x_t[k] * o + w->row.x[k] * o_t;
  }
  lanes->final = n->final, lanes->final_tangent = n->final + finals;
  lanes->delta = delta, lanes->delta_tangent = delta_t;
  lanes->dlse = w->dlse.data != NULL && !no_lse ? view_get(&w->dlse, at) : 0;
  lanes->dlse_tangent = w->dlse_t.data != NULL && !no_lse ? view_get(&w->dlse_t, at) : 0;
  dual_passes_run(&w->passes, &w->f, elements_of, &w->row, lanes, n->pass);
  for (int i = 0; i < 2 * d->num_rows; i++) out[i] = &n->number[i];
  program_run(&w->rows, lanes, 1, out);
  for (int i = 0; i < 2 * d->num_rows && no_lse; i++)
    if (isnan(n->number[i])) n->number[i] = 0;
  if (!no_lse) add_terms(w, &w->row_terms, lanes, 1);
  lanes->row = n->number, lanes->row_tangent = n->number + d->num_rows;
}

/* y += a x, and its tangent. x_t NULL: 0. */
static void add_product(double *y, double *y_t, double a, double a_t, const double *x, const double *x_t, int n) {
  for (int i = 0; i < n; i++) y[i] += a * x[i], y_t[i] += a_t * x[i];
  for (int i = 0; x_t != NULL && i < n; i++) y_t[i] += a * x_t[i];
}

/* Adds what kept elements [i0, i0 + count) of the row add to all gradients. */
static void add_elements(backward_jvp *w, cpu_lanes *lanes, const dual_row *row, int i0, int count) {
  const cpu_problem *p = &w->f.p;
  double *const *t = w->f.tangent;
  double dp[IR_LANES], dp_t[IR_LANES], prob[IR_LANES], ds[IR_LANES], prob_t[IR_LANES], ds_t[IR_LANES];
  const size_t q = cpu_at(p->heads, p->q_len, p->dim, lanes->b, lanes->h, (int)lanes->q_idx);
  const int h = lanes->h / p->group;
  lanes->kv_idx = row->kv_idx + i0;
  dual_products(&w->f, &w->row, lanes, count, dp, dp_t);
  lanes->score = row->raw + i0, lanes->score_tangent = row->raw_t + i0;
  lanes->dp = dp, lanes->dp_tangent = dp_t;
  program_run(&w->element, lanes, count, (double *const[]){prob, ds, prob_t, ds_t});
  add_terms(w, &w->element_terms, lanes, count);
  dropout_apply(lanes, count, prob), dropout_apply(lanes, count, prob_t);
  for (int i = 0; i < count; i++) {
    const int kv = (int)lanes->kv_idx[i];
    const size_t k = cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, h, kv),
                 v = cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, h, kv);
    const double g = p->scale * ds[i], g_t = p->scale * ds_t[i];
    add_product(w->grad[0].x + q, w->grad[0].x_t + q, g, g_t, p->k + k, t[1] != NULL ? t[1] + k : NULL, p->dim);
    add_product(w->grad[1].x + k, w->grad[1].x_t + k, g, g_t, p->q + q, t[0] != NULL ? t[0] + q : NULL, p->dim);
    add_product(w->grad[2].x + v, w->grad[2].x_t + v, prob[i], prob_t[i], w->row.x, w->row.x_t, p->dim_v);
  }
}

static void backward_row(backward_jvp *w, int b, int h, int q, const unsigned char *classes) {
  const cpu_problem *p = &w->f.p;
  const dual_row *elements_of = &w->f.row[0];
  cpu_lanes lanes = {.p = p, .w = &p->worker[0], .b = b, .h = h, .q_idx = q};
  row_end row;
  row_numbers numbers;
  for (int d = 0; d < p->dim_v; d++) {
    const int64_t at[] = {b, h, q, d};
    w->row.x[d] = view_get(&w->dout, at), w->row.x_t[d] = w->dout_t.data != NULL ? view_get(&w->dout_t, at) : 0;
  }
  dual_row_run(&w->f, 0, &lanes, classes, &row);
  dual_row_sum(&w->f, 0, &lanes, &row);
  take_numbers(w, &lanes, elements_of, &row, &numbers);
  for (int i0 = 0; i0 < elements_of->count; i0 += IR_LANES) {
    const int left = elements_of->count - i0;
    add_elements(w, &lanes, elements_of, i0, left < IR_LANES ? left : IR_LANES);
  }
}

/* ---- through the mods of q, k and v ---- */

/* x: the row before the mod and its tangent; g: its gradient after the mod, and its tangent, which becomes the one before
 * it. */
static void finish_row(backward_jvp *w, int which, const int64_t at[3], int dim, const double *x, const double *x_t,
                       const double *g, double *g_t) {
  double result[IR_LANES];
  double *const whole = w->f.p.worker[0].row; /* not in place: a mod reads other channels */
  for (int d0 = 0; d0 < dim; d0 += IR_LANES) {
    const int count = dim - d0 < IR_LANES ? dim - d0 : IR_LANES;
    double channel[IR_LANES];
    for (int d = 0; d < count; d++) channel[d] = d0 + d;
    cpu_lanes lanes = {.p = &w->f.p,
                       .w = &w->f.p.worker[0],
                       .b = (int)at[0],
                       .h = (int)at[1],
                       .pos0 = (double)at[2],
                       .d = channel,
                       .x = x + d0,
                       .x_tangent = x_t + d0,
                       .grad = g + d0,
                       .grad_tangent = g_t + d0,
                       .of_keys = which > 0,
                       .row_of = {w->dx[which].rows, d0, x, g, x_t, g_t}};
    program_run(&w->dx[which], &lanes, count, (double *const[]){result});
    add_terms(w, &w->mod_terms[which], &lanes, count);
    memcpy(whole + d0, result, (size_t)count * sizeof *result);
  }
  memcpy(g_t, whole, (size_t)dim * sizeof *whole);
}

static void finish_tensor(backward_jvp *w, int which) {
  const cpu_problem *p = &w->f.p;
  const cpu_view *from = which == 0 ? &p->q_given : which == 1 ? &p->k_given : &p->v_given;
  const int64_t heads = from->shape[1], len = from->shape[2], dim = from->shape[3];
  double *x = p->worker[0].given, *x_t = x + dim;
  for (int64_t n = 0; n < from->shape[0] * heads * len; n++) {
    const int64_t at[] = {n / len / heads, n / len % heads, n % len, 0};
    double *g_t = w->grad[which].x_t + n * dim;
    for (int64_t d = 0; w->dx[which].program != NULL && d < dim; d++) {
      const int64_t place[] = {at[0], at[1], at[2], d};
      x[d] = view_get(from, place);
      x_t[d] = w->f.given[which].data != NULL ? view_get(&w->f.given[which], place) : 0;
    }
    if (w->dx[which].program != NULL) finish_row(w, which, at, (int)dim, x, x_t, w->grad[which].x + n * dim, g_t);
    for (int64_t d = 0; w->out[which].data != NULL && d < dim; d++)
      view_set(&w->out[which], (int64_t[]){at[0], at[1], at[2], d}, g_t[d]);
  }
}

static void write_parameters(const backward_jvp *w) {
  const cpu_problem *p = &w->f.p;
  for (int i = 0; i < p->spec->traced.num_inputs; i++) {
    const cpu_view *to = &p->input_tangent_grad[i];
    for (int64_t n = 0; w->input_grad[i] != NULL && n < elements(&p->input[i]); n++) {
      int64_t index[4], rest = n;
      for (int j = to->ndim - 1; j >= 0; j--) index[j] = rest % to->shape[j], rest /= to->shape[j];
      view_set(to, index, w->input_grad[i][n]);
    }
  }
  for (int64_t i = 0; w->scalars_out.data != NULL && i < p->spec->traced.num_scalars; i++)
    view_set(&w->scalars_out, &i, w->scalar_grad[i]);
}

/* ---- a call ---- */

static luattn_status open_call(backward_jvp *w, const cpu_call *given, const luattn_tangents *t, arena *a,
                               luattn_error *err) {
  TRY(dual_rows_open(&w->f, given, false, t, a, err));
  TRY(open_tensors(w, given->args, t, err));
  TRY(check_apart(given->args, t, err));
  TRY(open_programs(w, err));
  return make_room(w, err);
}

static void run_call(backward_jvp *w) {
  row_blocks *blocks = &w->f.blocks;
  dual_rows_convert(&w->f);
  while (blocks_next(blocks))
    for (int i = 0; i < blocks->count; i++) {
      const block_place at = blocks_place(blocks, i);
      const unsigned char *classes = blocks->classes + (size_t)i * (size_t)blocks->kv_tiles;
      for (int r = 0; r < at.rows; r++) backward_row(w, at.b, at.h, at.q0 + r, classes);
    }
  for (int i = 0; i < 3; i++) finish_tensor(w, i);
  write_parameters(w);
}

typedef struct jvp_call {
  cpu_call given;
  const luattn_tangents *tangents;
} jvp_call;

static luattn_status within(void *arguments, luattn_error *err) {
  const jvp_call *call = arguments;
  const luattn_spec *spec = call->given.spec;
  if (spec->derived.missing != NULL) return luattn_fail(err, LUATTN_UNSUPPORTED, "%s", spec->derived.missing);
  arena *a = arena_open(arena_allocator(spec->a));
  backward_jvp *w = a != NULL ? arena_new(a, sizeof *w) : NULL;
  luattn_status status = w != NULL ? LUATTN_OK : luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  if (status == LUATTN_OK) status = open_call(w, &call->given, call->tangents, a, err);
  if (status == LUATTN_OK) status = dual_rows_start(&w->f, 1, err);
  if (status == LUATTN_OK) {
    run_call(w);
    problem_stop(&w->f.p);
  }
  arena_close(a);
  return status;
}

luattn_status luattn_cpu_backward_jvp(const luattn_spec *spec, const luattn_args *args, luattn_error *err) {
  luattn_args taken, used;
  luattn_tangents tangents;
  int threads;
  fail_clear(err);
  NEED_ATTENTION(spec);
  NEED(args);
  TRY(choices_take_tangents(args, "cpu", &taken, &tangents, err));
  TRY(choices_take_dense(&taken, "cpu", &used, err));
  TRY(cpu_threads(&used, &threads, err));
  jvp_call call = {.given = {.spec = spec, .args = &used, .precision = LUATTN_F64, .threads = 1},
                   .tangents = &tangents};
  return host_run(within, &call, err);
}

luattn_status cpu_backward_jvp_entry(const luattn_spec *spec, const luattn_args *args, const luattn_tangents *tangents,
                                     int entry, int entries, luattn_error *err) {
  jvp_call call = {
      .given =
          {.spec = spec, .args = args, .precision = LUATTN_F64, .threads = 1, .first_entry = entry, .entries = entries},
      .tangents = tangents};
  return host_run(within, &call, err);
}
