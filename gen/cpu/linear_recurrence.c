/* linear_recurrence.c: see linear_recurrence.h. Matrices are [k_dim][v_dim], row after row. */
#include "gen/cpu/linear_recurrence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/fail.h"

static luattn_status no_memory(luattn_error *err) {
  return luattn_fail(err, LUATTN_NO_MEMORY, "linear attention on the CPU: out of memory");
}

static size_t state_size(const linear_rows *r) { return (size_t)r->k_dim * (size_t)r->v_dim; }

static void start_state(const linear_rows *r, double *s) {
  if (r->state != NULL)
    memcpy(s, r->state, state_size(r) * sizeof *s);
  else
    memset(s, 0, state_size(r) * sizeof *s);
}

/* ---- vectors and matrices ---- */

/* y = x' m. */
static void row_times(const double *x, const double *m, int rows, int columns, double *y) {
  for (int j = 0; j < columns; ++j) y[j] = 0;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) y[j] += x[i] * m[(size_t)i * (size_t)columns + (size_t)j];
}

static double dot(const double *x, const double *y, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

/* y = factor * m x. */
static void times_column(const double *m, const double *x, int rows, int columns, double factor, double *y) {
  for (int i = 0; i < rows; ++i) y[i] = factor * dot(m + (size_t)i * (size_t)columns, x, columns);
}

/* m += factor * x y'. */
static void add_product(double *m, const double *x, const double *y, int rows, int columns, double factor) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) m[(size_t)i * (size_t)columns + (size_t)j] += factor * x[i] * y[j];
}

/* ---- one token ---- */

/* The rows of token t. */
typedef struct token {
  const double *q, *k, *b, *g, *r, *e;
} token;

static token token_at(const linear_rows *r, int t) {
  const size_t k = (size_t)t * (size_t)r->k_dim;
  return (token){.q = r->q + k,
                 .k = r->k + k,
                 .b = r->b + (size_t)t * (size_t)r->v_dim,
                 .g = r->g_width > 0 ? r->g + (size_t)t * (size_t)r->g_width : NULL,
                 .r = r->r != NULL ? r->r + k : NULL,
                 .e = r->e != NULL ? r->e + k : r->k + k};
}

static double decay_of(const linear_rows *r, const token *x, int channel) {
  if (r->g_width == 0) return 1;
  const double g = x->g[r->g_width == 1 ? 0 : channel];
  return exp(g < LINEAR_LEAST_LOG ? LINEAR_LEAST_LOG : g); /* a NaN stays one */
}

static void decay(const linear_rows *r, const token *x, double *s) {
  for (int i = 0; r->g_width > 0 && i < r->k_dim; ++i) {
    const double f = decay_of(r, x, i);
    for (int j = 0; j < r->v_dim; ++j) {
      double *at = &s[(size_t)i * (size_t)r->v_dim + (size_t)j];
      *at = f == 0 ? 0 : f * *at; /* what has decayed is gone, were it infinite */
    }
  }
}

/* Takes the state over token t. y [v_dim]: what r has read. */
static void step(const linear_rows *r, const token *x, double *s, double *y) {
  if (x->r != NULL && r->before) row_times(x->r, s, r->k_dim, r->v_dim, y);
  decay(r, x, s);
  if (x->r != NULL) {
    if (!r->before) row_times(x->r, s, r->k_dim, r->v_dim, y);
    add_product(s, x->e, y, r->k_dim, r->v_dim, -1);
  }
  add_product(s, x->k, x->b, r->k_dim, r->v_dim, 1);
}

void linear_forward_in(const linear_rows *r, double *o, double *state, double *room) {
  double *s = room, *y = s + state_size(r);
  start_state(r, s);
  for (int t = 0; t < r->tokens; ++t) {
    const token x = token_at(r, t);
    step(r, &x, s, y);
    if (o == NULL) continue;
    double *row = o + (size_t)t * (size_t)r->v_dim;
    row_times(x.q, s, r->k_dim, r->v_dim, row);
    for (int j = 0; j < r->v_dim; ++j) row[j] *= r->scale;
  }
  if (state != NULL) memcpy(state, s, state_size(r) * sizeof *s);
}

luattn_status linear_forward(const linear_rows *r, double *o, double *state, luattn_error *err) {
  double *room = malloc(linear_room(r, false) * sizeof *room);
  if (room == NULL) return no_memory(err);
  linear_forward_in(r, o, state, room);
  free(room);
  return LUATTN_OK;
}

/* ---- backward ---- */

/* What one token's reverse step needs. */
typedef struct reverse {
  const linear_rows *rows;
  const linear_gradients *out;
  double *ds;               /* gradient of the state after the token, then of that before it */
  double *decayed, *y, *dy; /* the state after the decay [k_dim][v_dim]; what r read, and its gradient [v_dim] */
  double *row;              /* [k_dim] */
} reverse;

/* Stores a gradient's row of token t, if it is wanted. */
static void store(double *to, int t, const double *row, int width) {
  if (to != NULL) memcpy(to + (size_t)t * (size_t)width, row, (size_t)width * sizeof *row);
}

/* The gradient of g, of ds after the decay, and ds before it. */
static void reverse_decay(const reverse *v, const token *x, int t) {
  const linear_rows *r = v->rows;
  for (int i = 0; i < r->k_dim; ++i)
    v->row[i] = dot(v->ds + (size_t)i * (size_t)r->v_dim, v->decayed + (size_t)i * (size_t)r->v_dim, r->v_dim);
  if (r->g_width == 1)
    for (int i = 1; i < r->k_dim; ++i) v->row[0] += v->row[i];
  store(v->out->g, t, v->row, r->g_width);
  decay(r, x, v->ds);
}

/* before, after: the state before the token, and after it. */
static void reverse_step(const reverse *v, int t, const double *before, const double *after, const double *grad_o) {
  const linear_rows *r = v->rows;
  const token x = token_at(r, t);
  times_column(after, grad_o, r->k_dim, r->v_dim, r->scale, v->row);
  store(v->out->q, t, v->row, r->k_dim);
  add_product(v->ds, x.q, grad_o, r->k_dim, r->v_dim, r->scale);
  memcpy(v->decayed, before, state_size(r) * sizeof *before);
  decay(r, &x, v->decayed);

  row_times(x.k, v->ds, r->k_dim, r->v_dim, v->dy);
  store(v->out->b, t, v->dy, r->v_dim);
  const double *read = r->before ? before : v->decayed;
  if (x.r != NULL) row_times(x.r, read, r->k_dim, r->v_dim, v->y);
  /* S gets k b' - e y': where e is k, k (b - y)'. */
  const bool shares = x.r != NULL && r->e == NULL;
  for (int i = 0; i < r->k_dim; ++i) {
    const double *ds = v->ds + (size_t)i * (size_t)r->v_dim;
    v->row[i] = dot(ds, x.b, r->v_dim) - (shares ? dot(ds, v->y, r->v_dim) : 0);
  }
  store(v->out->k, t, v->row, r->k_dim);
  if (x.r != NULL) {
    times_column(v->ds, v->y, r->k_dim, r->v_dim, -1, v->row);
    if (!shares) store(v->out->e, t, v->row, r->k_dim);
    row_times(x.e, v->ds, r->k_dim, r->v_dim, v->dy);
    for (int j = 0; j < r->v_dim; ++j) v->dy[j] = -v->dy[j];
    times_column(read, v->dy, r->k_dim, r->v_dim, 1, v->row);
    store(v->out->r, t, v->row, r->k_dim);
    if (!r->before) add_product(v->ds, x.r, v->dy, r->k_dim, r->v_dim, 1);
  }
  if (r->g_width > 0) reverse_decay(v, &x, t);
  if (x.r != NULL && r->before) add_product(v->ds, x.r, v->dy, r->k_dim, r->v_dim, 1);
}

/* States before the first token of each run of tokens, and those of one run, each before a token and one after the last. */
typedef struct history {
  int run, runs; /* tokens of a run; runs */
  double *starts, *states;
} history;

static double *nth(double *states, const linear_rows *r, int i) { return states + (size_t)i * state_size(r); }

static void fill_starts(const linear_rows *r, history *h, double *y) {
  start_state(r, h->starts);
  for (int i = 0; i + 1 < h->runs; ++i) {
    double *s = nth(h->starts, r, i + 1);
    memcpy(s, nth(h->starts, r, i), state_size(r) * sizeof *s);
    for (int t = i * h->run; t < (i + 1) * h->run; ++t) {
      const token x = token_at(r, t);
      step(r, &x, s, y);
    }
  }
}

static void reverse_run(const reverse *v, history *h, int i, const double *grad_o) {
  const linear_rows *r = v->rows;
  const int first = i * h->run, end = first + h->run < r->tokens ? first + h->run : r->tokens;
  memcpy(h->states, nth(h->starts, r, i), state_size(r) * sizeof *h->states);
  for (int t = first; t < end; ++t) {
    double *s = nth(h->states, r, t - first + 1);
    memcpy(s, nth(h->states, r, t - first), state_size(r) * sizeof *s);
    const token x = token_at(r, t);
    step(r, &x, s, v->y);
  }
  for (int t = end - 1; t >= first; --t)
    reverse_step(v, t, nth(h->states, r, t - first), nth(h->states, r, t - first + 1),
                 grad_o + (size_t)t * (size_t)r->v_dim);
}

/* Tokens of a run, and runs. */
static history plan_history(const linear_rows *r) {
  history h = {.run = (int)ceil(sqrt((double)r->tokens)) + (r->tokens == 0)};
  h.runs = (r->tokens + h.run - 1) / h.run;
  return h;
}

size_t linear_room(const linear_rows *r, bool backward) {
  const history h = plan_history(r);
  const size_t states = backward ? 2 + (size_t)h.runs + (size_t)h.run + 1 : 1;
  return states * state_size(r) + (backward ? 2 : 1) * (size_t)r->v_dim + (backward ? (size_t)r->k_dim : 0);
}

void linear_backward_in(const linear_rows *r, const double *grad_o, const double *grad_state,
                        const linear_gradients *out, double *room) {
  history h = plan_history(r);
  const size_t size = state_size(r);
  reverse v = {.rows = r, .out = out, .ds = room, .decayed = room + size};
  h.starts = room + 2 * size;
  h.states = h.starts + (size_t)h.runs * size;
  v.y = h.states + ((size_t)h.run + 1) * size;
  v.dy = v.y + r->v_dim;
  v.row = v.dy + r->v_dim;
  if (grad_state != NULL)
    memcpy(v.ds, grad_state, size * sizeof *v.ds);
  else
    memset(v.ds, 0, size * sizeof *v.ds);
  if (h.runs > 0) fill_starts(r, &h, v.y);
  for (int i = h.runs - 1; i >= 0; --i) reverse_run(&v, &h, i, grad_o);
  if (out->state != NULL) memcpy(out->state, v.ds, size * sizeof *v.ds);
}

luattn_status linear_backward(const linear_rows *r, const double *grad_o, const double *grad_state,
                              const linear_gradients *out, luattn_error *err) {
  double *room = malloc(linear_room(r, true) * sizeof *room);
  if (room == NULL) return no_memory(err);
  linear_backward_in(r, grad_o, grad_state, out, room);
  free(room);
  return LUATTN_OK;
}
