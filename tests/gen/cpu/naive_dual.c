#include "tests/gen/cpu/naive_dual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/ir/passes.h"
#include "gen/spec.h"

typedef struct dual {
  double x, t;
} dual;

enum { INPUTS = 12 };

/* What the nodes are evaluated for: `n` elements, keys of a row or channels of a row. */
typedef struct place {
  const cli_problem *p;
  const dual_tangents *tan;
  const traced_spec *spec;
  int b, h, q, n;
  bool of_keys, is_mod;
  const int *kv;     /* [n] */
  const dual *score; /* [n] */
  const dual *row;   /* [n]: an input mod's */
  const dual *state;
  dual out;
  dual **memo; /* by node: [n] */
} place;

static const dual *eval(place *c, ir_ref r);

/* What has no tangent has none, whatever the slope. */
static double along(double t, double slope) { return t == 0 ? 0 : t * slope; }

static double tie(double x, double y, double a, double b, bool y_const) {
  return x < y ? a : y < x ? b : y_const ? a : (a + b) / 2;
}

/* Of a function of one number. */
static double slope_of_function(ir_op op, double x, double a) {
  static const double pi = 3.14159265358979323846;
  const double s = 1 / (1 + exp(-x));
  switch (op) {
    case IR_EXP:
      return along(a, exp(x));
    case IR_EXP2:
      return along(a, log(2.0) * exp2(x));
    case IR_EXPM1:
      return along(a, exp(x));
    case IR_LOG:
      return along(a, 1 / x);
    case IR_LOG2:
      return along(a, 1 / (x * log(2.0)));
    case IR_LOG1P:
      return along(a, 1 / (1 + x));
    case IR_SQRT:
      return along(a, 0.5 * pow(x, -0.5));
    case IR_RSQRT:
      return along(a, -0.5 * pow(x, -1.5));
    case IR_TANH:
      return along(a, pow(cosh(x), -2));
    case IR_SIGMOID:
      return along(a, s / (1 + exp(x)));
    case IR_SOFTPLUS:
      return along(a, s);
    case IR_RELU:
      return x > 0 ? a : 0;
    case IR_GELU:
      return along(a, 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2 * pi));
    case IR_SILU:
      return along(a, s + x * s / (1 + exp(x)));
    case IR_ERF:
      return along(a, 2 / sqrt(pi) * exp(-x * x));
    case IR_SIN:
      return along(a, cos(x));
    case IR_COS:
      return along(a, -sin(x));
    default:
      return 0; /* whole numbers, comparisons, STOP_GRADIENT */
  }
}

/* The tangent of an op with value r of x, y, z whose tangents are a, b, c. */
static double slope(ir_op op, double r, double x, double y, double z, double a, double b, double c, bool y_const) {
  switch (op) {
    case IR_ADD:
    case IR_SUM:
    case IR_SUM_APART:
      return a + b;
    case IR_SUB:
    case IR_DIFFERENCE:
      return a - b;
    case IR_MUL:
    case IR_PRODUCT:
      return along(a, y) + along(b, x);
    case IR_DIV:
    case IR_QUOTIENT:
      return along(a, 1 / y) - along(b, x / y / y);
    case IR_NEG:
      return -a;
    case IR_FMA:
      return along(a, y) + along(b, x) + c;
    case IR_MOD:
      return a - along(b, floor(x / y));
    case IR_MIN:
      return tie(x, y, a, b, y_const);
    case IR_MAX:
      return tie(-x, -y, a, b, y_const);
    case IR_CLAMP:
      return x < y ? (y <= z ? b : c) : x > z ? c : a;
    case IR_ABS:
      return x > 0 ? a : x < 0 ? -a : 0;
    case IR_ROUND_FLOAT:
    case IR_ROUND_COARSE:
      return a;
    case IR_POW:
      return (y == 0 ? 0 : along(a, y * pow(x, y - 1))) + (x > 0 ? along(b, r * log(x)) : 0);
    default:
      return slope_of_function(op, x, a);
  }
}

static int64_t clamped(double x, int64_t size) { return x > 0 ? (x < (double)size ? (int64_t)x : size - 1) : 0; }

static dual load(const place *c, const ir_node *n, const double *index) {
  const array *a = &c->p->input[n->imm.integer], *t = &c->tan->input[n->imm.integer];
  int64_t flat = 0;
  if (array_count(a) == 0) return (dual){0, 0};
  for (int i = 0; i < a->t.ndim; i++) flat = flat * a->shape[i] + clamped(index[i], a->shape[i]);
  const double x = array_is_integer(a) ? (double)array_integer(a, flat) : array_get(a, flat);
  return (dual){x, t->storage != NULL ? array_get(t, flat) : 0};
}

static dual variable(place *c, const ir_node *n, int i) {
  const uint32_t index = ir_index_of(n);
  const cli_problem *p = c->p;
  switch (ir_var_of(n)) {
    case VAR_SCORE:
      return c->score[i];
    case VAR_B:
      return (dual){c->b, 0};
    case VAR_H:
      return (dual){c->h, 0};
    case VAR_Q:
      return (dual){c->q, 0};
    case VAR_KV:
      return (dual){c->kv[i], 0};
    case VAR_POS:
      return (dual){c->q, 0};
    case VAR_D:
      return (dual){i, 0};
    case VAR_X:
      return c->row[i];
    case VAR_READ: {
      const dual at = eval(c, c->spec->read[index])[i];
      return c->row[(int)at.x];
    }
    case VAR_Q_LEN:
      return (dual){p->q_len, 0};
    case VAR_KV_LEN:
      return (dual){p->kv_len, 0};
    case VAR_HEADS:
      return (dual){p->heads, 0};
    case VAR_HEADS_KV:
      return (dual){p->heads_kv, 0};
    case VAR_HEAD_DIM:
      return (dual){p->dim, 0};
    case VAR_HEAD_DIM_V:
      return (dual){p->dim_v, 0};
    case VAR_SCALAR: {
      double x = c->spec->scalar_default[index];
      for (int s = 0; s < p->num_scalars; s++)
        if (strcmp(p->scalar[s].name, c->spec->scalar_name[index]) == 0) x = p->scalar[s].value;
      return (dual){x, c->tan->scalar[index]};
    }
    case VAR_STATE:
      return c->state[index];
    case VAR_OUT:
      return c->out;
    default:
      abort();
  }
}

static void reduce(const place *c, bool is_max, const dual *x, dual *y) {
  dual sum = {is_max ? -INFINITY : 0, 0};
  int ties = 0;
  for (int i = 0; i < c->n; i++) sum.x = is_max ? fmax(sum.x, x[i].x) : sum.x + x[i].x;
  for (int i = 0; i < c->n; i++)
    if (!is_max || (x[i].x == sum.x && isfinite(sum.x))) sum.t += x[i].t, ties++;
  if (is_max && ties > 0) sum.t /= ties;
  for (int i = 0; i < c->n; i++) y[i] = sum;
}

static const dual *eval(place *c, ir_ref r) {
  const ir *g = c->spec->g;
  if (c->memo[r] != NULL) return c->memo[r];
  const ir_node *n = ir_get(g, r);
  const dual *arg[4] = {NULL};
  dual *y = calloc((size_t)c->n + 1, sizeof *y), none = {0, 0};
  double v;
  for (int k = 0; k < n->nargs; k++) arg[k] = eval(c, n->arg[k]);
  if (n->op == IR_REDUCE_SUM || n->op == IR_REDUCE_MAX) reduce(c, n->op == IR_REDUCE_MAX, arg[0], y);
  for (int i = 0; i < c->n && n->op != IR_REDUCE_SUM && n->op != IR_REDUCE_MAX; i++) {
    const dual a = n->nargs > 0 ? arg[0][i] : none, b = n->nargs > 1 ? arg[1][i] : none,
               d = n->nargs > 2 ? arg[2][i] : none, e = n->nargs > 3 ? arg[3][i] : none;
    const double all[4] = {a.x, b.x, d.x, e.x};
    if (n->op == IR_CONST_REAL)
      y[i] = (dual){n->imm.real, 0};
    else if (n->op == IR_CONST_INT || n->op == IR_CONST_BOOL)
      y[i] = (dual){(double)n->imm.integer, 0};
    else if (n->op == IR_VAR)
      y[i] = variable(c, n, i);
    else if (n->op == IR_LOAD)
      y[i] = load(c, n, all);
    else if (n->op == IR_RANDOM)
      y[i] = (dual){ir_random_value(c->p->seed, 0, c->p->heads, all), 0};
    else if (n->op == IR_SELECT)
      y[i] = a.x != 0 ? b : d;
    else {
      const ir_type type = ir_typeof(g, n->arg[n->nargs - 1]);
      y[i].x = ir_value((ir_op)n->op, type, a.x, b.x, d.x);
      const bool y_const = n->nargs > 1 && ir_is_const(g, n->arg[1], &v);
      if (n->type == IR_REAL) y[i].t = slope((ir_op)n->op, y[i].x, a.x, b.x, d.x, a.t, b.t, d.t, y_const);
    }
  }
  return c->memo[r] = y;
}

static void forget(place *c) {
  for (uint32_t r = 0; r < ir_count(c->spec->g); r++) free(c->memo[r]), c->memo[r] = NULL;
}

/* The rows of a tensor after its mod: [batch][heads][len][dim]. */
static dual *modified(place *c, const array *x, const array *t, ir_ref mod, bool of_keys) {
  const int64_t *n = x->shape;
  dual *all = calloc((size_t)(n[0] * n[1] * n[2] * n[3]) + 1, sizeof *all);
  for (int64_t row = 0; row < n[0] * n[1] * n[2]; row++) {
    dual *to = all + row * n[3];
    for (int64_t d = 0; d < n[3]; d++)
      to[d] = (dual){array_get(x, row * n[3] + d), t->storage != NULL ? array_get(t, row * n[3] + d) : 0};
    if (mod == IR_NONE) continue;
    c->b = (int)(row / n[2] / n[1]), c->h = (int)(row / n[2] % n[1]), c->q = (int)(row % n[2]);
    c->n = (int)n[3], c->row = to, c->of_keys = of_keys;
    const dual *y = eval(c, mod);
    memcpy(to, y, (size_t)n[3] * sizeof *to);
    forget(c);
  }
  return all;
}

/* The row's keys that the mask keeps. */
static int kept_keys(place *c, int *kv) {
  int count = 0;
  c->n = c->p->kv_len;
  for (int i = 0; i < c->n; i++) kv[i] = i;
  c->kv = kv;
  if (c->spec->block_mask == IR_NONE) return c->n;
  const dual *keep = eval(c, c->spec->block_mask);
  for (int i = 0; i < c->n; i++)
    if (keep[i].x != 0) kv[count++] = i;
  forget(c);
  return count;
}

typedef struct rows {
  dual *q, *k, *v, *score;
} rows;

static void one_row(place *c, const rows *m, const unsigned char *dropped, int *kv, dual *o, dual *lse) {
  const cli_problem *p = c->p;
  const traced_online *on = &c->spec->online;
  const int kept = kept_keys(c, kv);
  const int64_t hk = c->h / (p->heads / p->heads_kv);
  const int64_t number = ((int64_t)c->b * p->heads + c->h) * p->q_len + c->q,
                head = (c->b * p->heads_kv + hk) * p->kv_len;
  const double scale = p->scale != 0 ? p->scale : 1 / sqrt(p->dim);
  const dual *q = m->q + number * p->dim;
  dual state[SPEC_MAX_STATE], next[SPEC_MAX_STATE];
  *lse = (dual){-INFINITY, 0};
  for (int d = 0; d < p->dim_v; d++) o[d] = (dual){0, 0};
  if (kept == 0) return;
  c->n = kept;
  for (int i = 0; i < kept; i++) {
    dual s = {0, 0};
    const dual *k = m->k + (head + kv[i]) * p->dim;
    for (int d = 0; d < p->dim; d++) s.x += q[d].x * k[d].x, s.t += q[d].t * k[d].x + q[d].x * k[d].t;
    m->score[i] = (dual){scale * s.x, scale * s.t};
  }
  c->score = m->score;
  const dual *x = eval(c, c->spec->score_mod);
  dual *score = malloc((size_t)kept * sizeof *score);
  memcpy(score, x, (size_t)kept * sizeof *score);
  forget(c);
  for (int i = 0; i < on->num_state; i++) state[i] = eval(c, on->init[i])[0];
  forget(c);
  c->score = score, c->state = state;
  const dual *w = eval(c, on->prob);
  for (int i = 0; i < kept; i++) {
    const int64_t at = number * p->kv_len + kv[i];
    const double factor = dropped == NULL ? 1 : dropped[at] ? 0 : 256.0 / on->keep;
    const dual *v = m->v + (head + kv[i]) * p->dim_v;
    for (int d = 0; factor != 0 && d < p->dim_v; d++) {
      o[d].x += factor * w[i].x * v[d].x;
      o[d].t += factor * (w[i].t * v[d].x + w[i].x * v[d].t);
    }
  }
  for (int i = 0; i < on->num_state; i++) next[i] = eval(c, on->next[i])[0];
  forget(c);
  c->state = next;
  if (on->lse >= 0) *lse = eval(c, on->final[on->lse])[0];
  forget(c);
  for (int d = 0; d < p->dim_v; d++) {
    c->out = o[d];
    o[d] = eval(c, on->out)[0];
    forget(c);
  }
  free(score);
}

void naive_dual(const cli_problem *p, const dual_tangents *t, const unsigned char *dropped, double *o, double *o_t,
                double *lse, double *lse_t) {
  const traced_spec *s = &p->spec->traced;
  place c = {.p = p, .tan = t, .spec = s, .memo = calloc(ir_count(s->g), sizeof(dual *))};
  const rows m = {modified(&c, &p->q, &t->q, s->query_mod, false), modified(&c, &p->k, &t->k, s->key_mod, true),
                  modified(&c, &p->v, &t->v, s->value_mod, true), calloc((size_t)p->kv_len + 1, sizeof(dual))};
  int *kv = calloc((size_t)p->kv_len + 1, sizeof *kv);
  dual *row = calloc((size_t)p->dim_v, sizeof *row), sum;
  c.of_keys = false;
  for (int64_t n = 0; n < (int64_t)p->batch * p->heads * p->q_len; n++) {
    c.b = (int)(n / p->q_len / p->heads), c.h = (int)(n / p->q_len % p->heads), c.q = (int)(n % p->q_len);
    one_row(&c, &m, dropped, kv, row, &sum);
    for (int d = 0; d < p->dim_v; d++) o[n * p->dim_v + d] = row[d].x, o_t[n * p->dim_v + d] = row[d].t;
    lse[n] = sum.x, lse_t[n] = sum.t;
  }
  free(m.q), free(m.k), free(m.v), free(m.score), free(kv), free(row), free(c.memo);
}
