#include "tests/branches/attention.h"

#include <math.h>
#include <string.h>

static void add_parameters(attention *r, int h, branches_dual f, double adjoint) {
  if (adjoint == 0) return;
  r->dw[h] += adjoint * f.by_w;
  r->dc[h] += adjoint * f.by_c;
}

/* ---- elements of q, k and v ---- */

static void apply_mods(const attention *r, const double *x, int length, branches_dual *out) {
  for (int n = 0; n < BATCH * HEADS * length * DIM; n++) {
    const int b = n / (HEADS * length * DIM), h = n / (length * DIM) % HEADS, pos = n / DIM % length;
    out[n] = r->kind == BRANCHES_MODS ? r->f(r, x[n], b, h, pos, n % DIM) : (branches_dual){x[n], 1, 0, 0};
  }
}

static void pull_mods(attention *r, const branches_dual *f, int length, double *grad) {
  for (int i = 0; i < BATCH * HEADS * length * DIM; i++) {
    add_parameters(r, i / (length * DIM) % HEADS, f[i], grad[i]);
    grad[i] *= f[i].by_x;
  }
}

/* ---- one row ---- */

/* Computes P of a row of scores by softmax. */
static void softmax(const branches_dual *f, double *p) {
  double m = -INFINITY, l = 0;
  for (int j = 0; j < KV_LEN; j++) m = fmax(m, f[j].value);
  for (int j = 0; j < KV_LEN; j++) l += p[j] = exp(f[j].value - m);
  for (int j = 0; j < KV_LEN; j++) p[j] /= l;
}

static void row_weights(const attention *r, const branches_dual *f, double *p, double *norm, double *by_rho) {
  double rho = 0;
  *norm = 1, *by_rho = 0;
  if (r->kind != BRANCHES_ONLINE) {
    softmax(f, p);
    return;
  }
  for (int j = 0; j < KV_LEN; j++) rho += f[j].value * f[j].value;
  branches_norm(r->program, rho, norm, by_rho);
  for (int j = 0; j < KV_LEN; j++) p[j] = f[j].value * *norm;
}

static void row(attention *r, const branches_dual *q, const branches_dual *k, const branches_dual *v, int b, int h,
                int i, double *dk, double *dv) {
  const double scale = 1 / sqrt((double)DIM);
  const int n = (b * HEADS + h) * Q_LEN + i, keys = (b * HEADS + h) * KV_LEN;
  branches_dual f[KV_LEN];
  double p[KV_LEN], dp[KV_LEN], norm, by_rho, delta = 0;
  for (int j = 0; j < KV_LEN; j++) {
    double s = 0;
    for (int d = 0; d < DIM; d++) s += q[n * DIM + d].value * k[(keys + j) * DIM + d].value;
    f[j] = r->kind == BRANCHES_MODS ? (branches_dual){scale * s, 1, 0, 0} : r->f(r, scale * s, b, h, i, j);
  }
  row_weights(r, f, p, &norm, &by_rho);
  for (int d = 0; d < DIM; d++) r->o[n * DIM + d] = 0;
  for (int j = 0; j < KV_LEN; j++) {
    dp[j] = 0;
    for (int d = 0; d < DIM; d++) {
      r->o[n * DIM + d] += p[j] * v[(keys + j) * DIM + d].value;
      dv[(keys + j) * DIM + d] += p[j] * r->dout[n * DIM + d];
      dp[j] += r->dout[n * DIM + d] * v[(keys + j) * DIM + d].value;
    }
    delta += dp[j] * p[j];
  }
  for (int j = 0; j < KV_LEN; j++) {
    const double ds = r->kind == BRANCHES_ONLINE ? dp[j] * norm + 2 * f[j].value * by_rho * delta / norm
                                                 : p[j] * (dp[j] - delta + r->dlse[n]);
    if (r->kind != BRANCHES_MODS) add_parameters(r, h, f[j], ds);
    for (int d = 0; d < DIM; d++) {
      r->dq[n * DIM + d] += scale * ds * f[j].by_x * k[(keys + j) * DIM + d].value;
      dk[(keys + j) * DIM + d] += scale * ds * f[j].by_x * q[n * DIM + d].value;
    }
  }
}

static void compute(attention *r) {
  static branches_dual q[BATCH * HEADS * Q_LEN * DIM], k[BATCH * HEADS * KV_LEN * DIM], v[BATCH * HEADS * KV_LEN * DIM];
  apply_mods(r, r->q, Q_LEN, q), apply_mods(r, r->k, KV_LEN, k), apply_mods(r, r->v, KV_LEN, v);
  for (int n = 0; n < BATCH * HEADS * Q_LEN; n++)
    row(r, q, k, v, n / (HEADS * Q_LEN), n / Q_LEN % HEADS, n % Q_LEN, r->dk, r->dv);
  pull_mods(r, q, Q_LEN, r->dq), pull_mods(r, k, KV_LEN, r->dk), pull_mods(r, v, KV_LEN, r->dv);
}

/* ---- comparison with the library ---- */

static void take(const tensor *t, double *to) {
  for (int64_t i = 0; i < tensor_count(t); i++) to[i] = tensor_get(t, i);
}

static void assert_all(const char *lua, const char *what, const tensor *got, const double *want) {
  double largest = 1;
  for (int64_t i = 0; i < tensor_count(got); i++) largest = fmax(largest, fabs(want[i]));
  for (int64_t i = 0; i < tensor_count(got); i++)
    if (!(fabs(tensor_get(got, i) - want[i]) <= 1e-9 * largest))
      fail_msg("%s[%d] is %.17g, the reference says %.17g, in\n%s", what, (int)i, tensor_get(got, i), want[i], lua);
}

/* A spec's inputs and scalars, with memory for their gradients. */
typedef struct parameters {
  tensor w, u, group, dw, du, dc;
  luattn_input input[3];
  luattn_scalar scalar;
} parameters;

static void parameters_new(parameters *p, const attention *r, const luattn_spec_info *info, luattn_args *args) {
  const int64_t heads[] = {HEADS}, rows[] = {BATCH, KV_LEN}, one[] = {1};
  tensor *const of_heads[] = {&p->w, &p->u, &p->dw, &p->du};
  for (int i = 0; i < 4; i++) tensor_new(of_heads[i], F64, 1, heads, DENSE), of_heads[i]->t.shape = of_heads[i]->shape;
  tensor_new(&p->group, I32, 2, rows, DENSE), tensor_new(&p->dc, F64, 1, one, DENSE);
  p->group.t.shape = p->group.shape, p->dc.t.shape = p->dc.shape;
  for (int h = 0; h < HEADS; h++) tensor_set(&p->w, h, r->w[h]), tensor_set(&p->u, h, r->c[h]);
  for (int i = 0; i < BATCH * KV_LEN; i++) tensor_set(&p->group, i, r->group[i]);
  const luattn_input all[] = {{"w", &p->w.t, &p->dw.t}, {"u", &p->u.t, &p->du.t}, {"group", &p->group.t, NULL}};
  args->inputs = p->input;
  for (size_t i = 0; i < info->num_inputs; i++)
    for (int k = 0; k < 3; k++)
      if (strcmp(info->inputs[i].name, all[k].name) == 0) p->input[args->num_inputs++] = all[k];
  p->scalar = (luattn_scalar){"c", r->c[0]};
  args->scalars = &p->scalar, args->num_scalars = info->num_scalars;
  if (info->num_scalars > 0) args->scalar_grads = &p->dc.t;
}

static void assert_parameters(const char *lua, const parameters *p, const attention *r, const luattn_args *args) {
  const double dc = r->dc[0] + r->dc[1];
  for (size_t i = 0; i < args->num_inputs; i++) {
    if (args->inputs[i].grad == &p->dw.t) assert_all(lua, "dw", &p->dw, r->dw);
    if (args->inputs[i].grad == &p->du.t) assert_all(lua, "du", &p->du, r->dc);
  }
  if (args->num_scalars > 0) assert_all(lua, "dc", &p->dc, &dc);
}

static void parameters_free(parameters *p) {
  tensor *const all[] = {&p->w, &p->u, &p->group, &p->dw, &p->du, &p->dc};
  for (int i = 0; i < 6; i++) tensor_free(all[i]);
}

void attention_compare(attention *r, const luattn_spec *spec, const char *lua) {
  luattn_error err;
  luattn_spec_info info;
  call c;
  parameters p;
  luattn_spec_get_info(spec, &info);
  call_new(&c, spec, (int[]){BATCH, HEADS, HEADS, Q_LEN, KV_LEN, DIM, DIM}, DENSE, F64, F64);
  parameters_new(&p, r, &info, &c.args);
  take(&c.q, r->q), take(&c.k, r->k), take(&c.v, r->v), take(&c.dout, r->dout), take(&c.dlse, r->dlse);
  compute(r);
  if (luattn_cpu_forward(spec, &c.args, &err) != LUATTN_OK || luattn_cpu_backward(spec, &c.args, &err) != LUATTN_OK)
    fail_msg("%s in\n%s", err.message, lua);
  assert_all(lua, "o", &c.o, r->o);
  assert_all(lua, "dq", &c.dq, r->dq), assert_all(lua, "dk", &c.dk, r->dk), assert_all(lua, "dv", &c.dv, r->dv);
  assert_parameters(lua, &p, r, &c.args);
  call_free(&c);
  parameters_free(&p);
}
