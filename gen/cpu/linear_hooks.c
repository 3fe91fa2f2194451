/* linear_hooks.c: runs the hooks of linear attention, and their derivatives, over the channels of several tokens at once. */
#include <math.h>
#include <string.h>

#include "gen/cpu/linear_problem.h"

/* What the lanes of one run read: lane i is number first + i of the site's tokens times `width` channels. */
typedef struct lanes {
  const linear_site *site;
  const linear_programs *hook;
  int first, width;
  const double *x, *grad; /* [count][channels], [count][hook width] */
  const double *red, *row;
} lanes;

static double shared_value(const lanes *l, ir_var v, uint32_t index) {
  const linear_problem *p = l->site->p;
  switch (v) {
    case VAR_B:
      return l->site->entry;
    case VAR_H:
      return l->site->head;
    case VAR_HEADS:
      return p->heads;
    case VAR_HEADS_KV:
      return p->heads_v;
    case VAR_HEAD_DIM:
      return p->k_dim;
    case VAR_HEAD_DIM_V:
      return p->v_dim;
    case VAR_SCALAR:
      return p->scalar[index];
    default:
      return NAN; /* exposes a variable that hooks do not have */
  }
}

static void fill_variable(void *user, ir_var v, uint32_t index, int count, double *out) {
  const lanes *l = user;
  const int channels = l->hook->channels, width = l->hook->width;
  const double same = shared_value(l, v, index);
  for (int i = 0; i < count; i++) {
    const int token = (l->first + i) / l->width, d = (l->first + i) % l->width;
    out[i] = v == VAR_POS    ? (double)(l->site->first + token)
             : v == VAR_D    ? d
             : v == VAR_X    ? l->x[token * channels + d]
             : v == VAR_GRAD ? l->grad[token * width + (width > 1 ? d : 0)]
             : v == VAR_RED  ? l->red[token * CHANNEL_SUMS_MAX + (int)index]
             : v == VAR_ROW  ? l->row[token * CHANNEL_SUMS_MAX + (int)index]
                             : same;
  }
}

/* The element of an axis that an index is of. Axes of one element broadcast. */
static int64_t place_on(const linear_site *s, uint32_t input, int axis, double x) {
  const int64_t size = s->p->input[input].shape[axis];
  if (s->p->spec->traced.input[input].axis[axis] == LUATTN_AXIS_T) x += (double)linear_start(s->p, s->entry);
  if (!(x > 0)) return 0;
  return x >= (double)(size - 1) ? size - 1 : (int64_t)x;
}

static void fill_load(void *user, uint32_t input, int n_index, const double *const *index, int count, double *out) {
  const lanes *l = user;
  int64_t at[4] = {0};
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < n_index; j++) at[j] = place_on(l->site, input, j, index[j][i]);
    out[i] = view_get(&l->site->p->input[input], at);
  }
}

static void fill_load_wide(void *user, uint32_t input, int n_index, const double *const *index, int count,
                           int64_t *out) {
  const lanes *l = user;
  int64_t at[4] = {0};
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < n_index; j++) at[j] = place_on(l->site, input, j, index[j][i]);
    out[i] = view_get_wide(&l->site->p->input[input], at);
  }
}

static int run_lanes(lanes *l, const ir_program *program, double *const *out) {
  const int all = l->site->count * l->width, count = all - l->first < IR_LANES ? all - l->first : IR_LANES;
  const ir_env env = {.user = l, .variable = fill_variable, .load = fill_load, .load_wide = fill_load_wide};
  ir_program_run(program, &env, count, l->site->scratch, out);
  return count;
}

static void root_pointers(const linear_site *s, int n, double **out) {
  for (int i = 0; i < n; i++) out[i] = s->roots + i * IR_LANES;
}

/* Adds up `n` roots of a program by token: into to [count][CHANNEL_SUMS_MAX]. */
static void add_by_token(lanes *l, const ir_program *program, int n, double *to) {
  double *out[CHANNEL_SUMS_MAX];
  root_pointers(l->site, n, out);
  memset(to, 0, (size_t)l->site->count * CHANNEL_SUMS_MAX * sizeof *to);
  for (l->first = 0; program != NULL && l->first < l->site->count * l->width; l->first += IR_LANES) {
    const int count = run_lanes(l, program, out);
    for (int i = 0; i < count; i++)
      for (int k = 0; k < n; k++) to[(l->first + i) / l->width * CHANNEL_SUMS_MAX + k] += out[k][i];
  }
}

void linear_hook_run(const linear_site *s, linear_hook_id id, const double *x, double *red, double *out) {
  const linear_programs *hook = &s->p->hook[id];
  const channel_sums *sums = &s->p->derived->hook[id].sums;
  lanes l = {.site = s, .hook = hook, .x = x, .red = red};
  l.width = hook->channels;
  if (sums->count > 0) add_by_token(&l, hook->sums, sums->count, red);
  l.width = hook->width;
  for (l.first = 0; l.first < s->count * l.width; l.first += IR_LANES)
    run_lanes(&l, hook->value, (double *const[]){out + l.first});
}

/* ---- derivatives ---- */

/* Whether a lane gets any gradient. What is multiplied by 0 may be infinite: where a gate has closed. */
static bool is_reached(const lanes *l, int lane, bool by_value, bool by_sums) {
  const int token = (l->first + lane) / l->width, d = (l->first + lane) % l->width;
  const double *row = l->row + token * CHANNEL_SUMS_MAX;
  bool is = by_value && l->grad[token * l->hook->width + (l->hook->width > 1 ? d : 0)] != 0;
  for (int k = 0; by_sums && k < CHANNEL_SUMS_MAX; k++) is |= row[k] != 0;
  return is;
}

static void add_term(const lanes *l, const derived_term *t, int lane, double *const *root, const linear_sums *sums) {
  const double x = root[0][lane];
  if (t->input < 0) {
    if (sums->scalar != NULL) sums->scalar[t->scalar] += x;
    return;
  }
  double *to = sums->input[t->input];
  const cpu_view *view = &l->site->p->input[t->input];
  size_t at = 0;
  for (int j = 0; to != NULL && j < t->num_index; j++)
    at = at * (size_t)view->shape[j] + (size_t)place_on(l->site, (uint32_t)t->input, j, root[1 + j][lane]);
  if (to != NULL) to[at] += x;
}

static void add_terms(lanes *l, const ir_program *program, const derived_terms *terms, bool by_sums,
                      const linear_sums *sums) {
  double *out[5 * DERIVED_MAX_TERMS];
  int n = 0;
  for (int i = 0; i < terms->count; i++) n += 1 + terms->term[i].num_index;
  root_pointers(l->site, n, out);
  for (l->first = 0; program != NULL && l->first < l->site->count * l->width; l->first += IR_LANES) {
    const int count = run_lanes(l, program, out);
    for (int i = 0, root = 0; i < terms->count; root += 1 + terms->term[i++].num_index)
      for (int lane = 0; lane < count; lane++)
        if (is_reached(l, lane, !by_sums, by_sums)) add_term(l, &terms->term[i], lane, out + root, sums);
  }
}

void linear_hook_back(const linear_site *s, linear_hook_id id, const double *x, const double *red, const double *grad,
                      double *row, double *dx, const linear_sums *sums) {
  const linear_programs *hook = &s->p->hook[id];
  const linear_hook *derived = &s->p->derived->hook[id];
  lanes l = {.site = s, .hook = hook, .x = x, .red = red, .grad = grad, .row = row, .width = hook->width};
  add_by_token(&l, hook->weights, derived->sums.count, row);
  add_terms(&l, hook->by_value, &derived->grad.by_value, false, sums);
  l.width = hook->channels;
  add_terms(&l, hook->by_sums, &derived->grad.by_sums, true, sums);
  for (l.first = 0; dx != NULL && hook->dx != NULL && l.first < s->count * l.width; l.first += IR_LANES) {
    const int count = run_lanes(&l, hook->dx, (double *const[]){s->roots});
    for (int i = 0; i < count; i++)
      if (is_reached(&l, i, true, true)) dx[l.first + i] += s->roots[i];
  }
}
