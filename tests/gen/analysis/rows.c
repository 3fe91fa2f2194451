#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rows.h"

static void declare_input(luattn_input_info *info, const char *name, int32_t axis) {
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "%s", name);
  info->dtype = LUATTN_INPUT_F32;
  info->num_axes = 1;
  info->axis[0] = axis;
  info->grad = 1;
}

void fixture_open(fixture *f) {
  memset(f, 0, sizeof *f);
  f->a = arena_open(NULL);
  f->seed = 12345;
  f->t = (traced_spec){.a = f->a, .g = ir_open(f->a), .file = "test.lua", .name = "test"};
  f->t.num_scalars = 2;
  f->t.scalar_name[0] = "tau";
  f->t.scalar_name[1] = "beta";
  f->t.scalar_default[0] = 1.3;
  f->t.scalar_default[1] = 0.7;
  f->t.num_inputs = 2;
  declare_input(&f->t.input[0], "slopes", LUATTN_AXIS_H);
  declare_input(&f->t.input[1], "table", LUATTN_AXIS_FREE);
  f->t.score_mod = ir_variable(f->t.g, VAR_SCORE, 0);
}

void fixture_close(fixture *f) { arena_close(f->a); }

double fixture_uniform(fixture *f, double lo, double hi) {
  f->seed = f->seed * 6364136223846793005u + 1442695040888963407u;
  uint64_t x = f->seed ^ (f->seed >> 29);
  x *= 0xbf58476d1ce4e5b9u;
  return lo + (hi - lo) * (double)(x >> 11) * 0x1p-53;
}

int fixture_int(fixture *f, int n) { return (int)fixture_uniform(f, 0, n); }

/* ---- online functions ---- */

#define ADD(x, y) ir_op2(g, IR_ADD, x, y)
#define SUB(x, y) ir_op2(g, IR_SUB, x, y)
#define MUL(x, y) ir_op2(g, IR_MUL, x, y)
#define DIV(x, y) ir_op2(g, IR_DIV, x, y)
#define MAX(x, y) ir_op2(g, IR_MAX, x, y)
#define EXP(x) ir_op1(g, IR_EXP, x)
#define LOG(x) ir_op1(g, IR_LOG, x)

static ir_ref head_slope(ir *g) {
  const ir_ref h = ir_variable(g, VAR_H, 0);
  return ir_load(g, 0, IR_REAL, &h, 1);
}

/* Builds a softmax with state m, l, of scores times `factor`. A row starts with maximum m0 and sum l0. */
static void build_softmax(ir *g, traced_online *o, ir_ref factor, ir_ref m0, ir_ref l0) {
  const ir_ref s = MUL(ir_variable(g, VAR_SCORE, 0), factor);
  const ir_ref m = ir_variable(g, VAR_STATE, 0), l = ir_variable(g, VAR_STATE, 1);
  const ir_ref next = MAX(m, ir_op1(g, IR_REDUCE_MAX, s));
  o->num_state = 2;
  o->state_name[0] = "m";
  o->state_name[1] = "l";
  o->init[0] = m0;
  o->init[1] = l0;
  o->prob = EXP(SUB(s, next));
  o->rescale = EXP(SUB(m, next));
  o->next[0] = next;
  o->next[1] = ADD(MUL(l, o->rescale), ir_op1(g, IR_REDUCE_SUM, o->prob));
  o->out = DIV(ir_variable(g, VAR_OUT, 0), l);
  o->num_final = 1;
  o->final_name[0] = "lse";
  o->final[0] = ADD(LOG(l), m);
  o->lse = 0;
}

/* Builds RetNet's row normaliser, r = max(sum |s|, 1). */
static void build_retention(ir *g, traced_online *o, bool detached) {
  const ir_ref s = ir_variable(g, VAR_SCORE, 0), c = ir_variable(g, VAR_STATE, 0), r = ir_variable(g, VAR_STATE, 1);
  const ir_ref sum = ADD(c, ir_op1(g, IR_REDUCE_SUM, ir_op1(g, IR_ABS, s)));
  ir_ref next = MAX(sum, ir_real(g, 1));
  if (detached) next = ir_op1(g, IR_STOP_GRADIENT, next);
  o->num_state = 2;
  o->state_name[0] = "c";
  o->state_name[1] = "r";
  o->init[0] = ir_real(g, 0);
  o->init[1] = ir_real(g, 1);
  o->prob = DIV(s, next);
  o->rescale = DIV(r, next);
  o->next[0] = sum;
  o->next[1] = next;
  o->out = ir_variable(g, VAR_OUT, 0);
  o->num_final = 1;
  o->final_name[0] = "r";
  o->final[0] = r;
}

static void build_elementwise(ir *g, traced_online *o, ir_ref prob) {
  o->prob = prob;
  o->rescale = ir_real(g, 1);
  o->out = ir_variable(g, VAR_OUT, 0);
}

/* Builds relu(s) / sqrt(sum relu(s)^2). */
static void build_relu_l2(ir *g, traced_online *o) {
  const ir_ref p = ir_op1(g, IR_RELU, ir_variable(g, VAR_SCORE, 0)), c = ir_variable(g, VAR_STATE, 0);
  build_elementwise(g, o, p);
  o->num_state = 1;
  o->state_name[0] = "c";
  o->init[0] = ir_real(g, 0);
  o->next[0] = ADD(c, ir_op1(g, IR_REDUCE_SUM, MUL(p, p)));
  o->out = DIV(ir_variable(g, VAR_OUT, 0), ir_op1(g, IR_SQRT, ADD(c, ir_real(g, 1e-3))));
}

void fixture_online(fixture *f, online_kind kind) {
  ir *g = f->t.g;
  traced_online *o = &f->t.online;
  const ir_ref one = ir_real(g, 1), zero = ir_real(g, 0), low = ir_real(g, -INFINITY), s = ir_variable(g, VAR_SCORE, 0);
  *o = (traced_online){.name = "online", .lse = -1};
  switch (kind) {
    case SOFTMAX:
    case SOFTMAX_FORWARD:
    case SOFTMAX_GIVEN:
      build_softmax(g, o, one, low, zero);
      break;
    case SOFTMAX_ONE:
      build_softmax(g, o, one, zero, one);
      break;
    case SINK:
      build_softmax(g, o, one, head_slope(g), one);
      break;
    case TEMPERATURE:
      build_softmax(g, o, ir_variable(g, VAR_SCALAR, 0), low, zero);
      break;
    case RETENTION:
      build_retention(g, o, false);
      break;
    case RETENTION_DETACHED:
      build_retention(g, o, true);
      break;
    case SIGMOID:
      build_elementwise(g, o, ir_op1(g, IR_SIGMOID, ADD(s, ir_variable(g, VAR_SCALAR, 1))));
      break;
    case RELU:
      build_elementwise(g, o, ir_op1(g, IR_RELU, s));
      break;
    case RELU_SQUARED:
      build_elementwise(g, o, MUL(ir_op1(g, IR_RELU, s), ir_op1(g, IR_RELU, s)));
      break;
    case IDENTITY:
      build_elementwise(g, o, s);
      break;
    case RELU_L2:
      build_relu_l2(g, o);
      break;
    case NUM_ONLINE:
      break;
  }
  if (kind == SOFTMAX_FORWARD || kind == SOFTMAX_GIVEN) o->forward = EXP(SUB(s, ir_variable(g, VAR_FINAL, 0)));
  if (kind == SOFTMAX_GIVEN) {
    o->backward = MUL(SUB(ir_variable(g, VAR_DP, 0), ir_variable(g, VAR_DELTA, 0)), ir_variable(g, VAR_P, 0));
  }
}

/* ---- evaluation ---- */

static void variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  const row_env *e = user;
  for (int i = 0; i < lanes; i++) {
    switch (v) {
      case VAR_STATE:
        out[i] = e->state[index];
        break;
      case VAR_OTHER:
        out[i] = e->other[index];
        break;
      case VAR_FINAL:
        out[i] = e->final[index];
        break;
      case VAR_ROW:
        out[i] = e->row[index];
        break;
      case VAR_RED:
        out[i] = e->red[index];
        break;
      case VAR_SCALAR:
        out[i] = e->scalar[index];
        break;
      default:
        out[i] = e->var[v];
        break;
    }
  }
}

static void load(void *user, uint32_t input, int n_index, const double *const *index, int lanes, double *out) {
  const row_env *e = user;
  assert_int_equal(n_index, 1);
  for (int i = 0; i < lanes; i++) {
    const int at = (int)index[0][i];
    assert_true(at >= 0 && at < (input == 0 ? 4 : 2 * MAX_ROW));
    out[i] = input == 0 ? e->slopes[at] : e->table[at];
  }
}

double row_eval(const fixture *f, ir_ref r, const row_env *e) {
  arena *a = arena_open(NULL);
  ir_program *p = ir_program_new(a, f->t.g, &r, 1);
  assert_non_null(p);
  row_env copy = *e;
  const ir_env env = {.user = &copy, .variable = variable, .load = load};
  double x, *out[1] = {&x};
  ir_program_run(p, &env, 1, arena_new(a, ir_program_scratch(p)), out);
  arena_close(a);
  return x;
}

void row_draw(fixture *f, row_case *c, int n, double size) {
  memset(c, 0, sizeof *c);
  c->n = n;
  for (int i = 0; i < n; i++) {
    c->t[i] = fixture_uniform(f, -size, size);
    c->v[i] = fixture_uniform(f, -1, 1);
  }
  c->g = fixture_uniform(f, 0.5, 2);
  c->dlse = fixture_uniform(f, -1, 1);
  row_env *e = &c->env;
  e->var[VAR_H] = fixture_int(f, 4);
  e->var[VAR_Q] = fixture_int(f, MAX_ROW);
  e->var[VAR_Q_LEN] = e->var[VAR_KV_LEN] = MAX_ROW;
  e->var[VAR_HEADS] = e->var[VAR_HEADS_KV] = 4;
  e->var[VAR_SCALE] = 1;
  e->scalar[0] = fixture_uniform(f, 0.5, 1.5);
  e->scalar[1] = fixture_uniform(f, -1, 1);
  for (int i = 0; i < 4; i++) e->slopes[i] = fixture_uniform(f, -1, 1);
  for (int i = 0; i < 2 * MAX_ROW; i++) e->table[i] = fixture_uniform(f, -1, 1);
}

static void add_term(const fixture *f, const derived_term *term, const row_env *e, row_gradient *out) {
  const double value = row_eval(f, term->value, e);
  if (term->input < 0) {
    out->scalar[term->scalar] += value;
    return;
  }
  assert_int_equal(term->num_index, 1);
  const int at = (int)row_eval(f, term->index[0], e);
  if (term->input == 0)
    out->slopes[at] += value;
  else
    out->table[at] += value;
}

void row_backward(const fixture *f, const derived_spec *d, const row_case *c, const row_result *r, row_gradient *out) {
  memset(out, 0, sizeof *out);
  row_env e = c->env;
  const bool has_lse = f->t.online.lse >= 0;
  memcpy(e.state, r->state, sizeof e.state);
  if (has_lse) e.final[0] = r->lse;
  double final[DERIVED_MAX_ROWS];
  for (int i = 0; i < d->num_saved; i++) final[i] = row_eval(f, d->saved[i], &e);
  for (int i = 0; i < d->num_saved; i++) e.final[i + has_lse] = final[i];
  memset(e.state, 0xff, sizeof e.state); /* NaN: backward must not read the state */
  e.var[VAR_DELTA] = c->g * r->out;
  e.var[VAR_DLSE] = has_lse ? c->dlse : NAN;
  for (int i = 0; i < d->num_rows; i++) out->table[i] = row_eval(f, d->row[i], &e);
  for (int i = 0; i < d->num_rows; i++) e.row[i] = out->table[i];
  memset(out->table, 0, sizeof out->table);
  for (int i = 0; i < d->row_terms.count; i++) add_term(f, &d->row_terms.term[i], &e, out);
  memset(e.final, 0xff, sizeof e.final); /* NaN: the backward of an element may read only VAR_ROW */
  e.var[VAR_DELTA] = e.var[VAR_DLSE] = NAN;
  for (int j = 0; j < c->n; j++) {
    e.var[VAR_SCORE] = c->t[j];
    e.var[VAR_KV] = j;
    e.var[VAR_DP] = c->g * c->v[j];
    out->p[j] = row_eval(f, d->prob, &e);
    out->dt[j] = row_eval(f, d->ds, &e);
    for (int i = 0; i < d->element_terms.count; i++) add_term(f, &d->element_terms.term[i], &e, out);
  }
}
