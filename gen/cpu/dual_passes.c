#include "gen/cpu/dual_passes.h"

#include <string.h>

#include "gen/cpu/running_maximum.h"

luattn_status dual_passes_open(cpu_problem *p, const backward_tangents *b, dual_passes *out, luattn_error *err) {
  const derived_spec *d = &p->spec->derived;
  ir_ref value[DUAL_PASSES_MAX], tangent[DUAL_PASSES_MAX], factor[DERIVED_MAX_PASSES];
  int n = 0;
  *out = (dual_passes){.derived = d};
  for (int k = 0; k < d->num_passes; k++) {
    value[n] = d->pass[k].weight, tangent[n++] = b->weight[k];
    factor[k] = d->pass[k].factor;
  }
  for (int i = 0; i < d->num_sums; i++) value[n] = d->sum[i].of, tangent[n++] = b->sum[i];
  TRY(dual_open(p, value, tangent, n, &out->element, err));
  return dual_open(p, factor, b->factor, d->num_passes, &out->factors, err);
}

static double dot(const double *a, const double *b, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

void dual_products(const dual_rows *f, const dual_dout *dout, const cpu_lanes *lanes, int count, double *dp,
                   double *dp_t) {
  const cpu_problem *p = &f->p;
  for (int i = 0; i < count; i++) {
    const size_t v = cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    dp[i] = dot(dout->x, p->v + v, p->dim_v), dp_t[i] = dot(dout->x_t, p->v + v, p->dim_v);
    if (f->tangent[2] != NULL) dp_t[i] += dot(dout->x, f->tangent[2] + v, p->dim_v);
  }
  dropout_apply(lanes, count, dp), dropout_apply(lanes, count, dp_t);
}

typedef double lane_array[IR_LANES];

/* Adds `count` elements, whose values and then tangents are `of`. */
static void add_elements(const derived_spec *d, const cpu_lanes *lanes, int count, lane_array *of, const double *dp,
                         const double *dp_t, running_maximum *largest, double *pass) {
  const int n = d->num_passes + d->num_sums;
  for (int k = 0; k < n; k++) {
    const double *x = of[k], *x_t = of[n + k];
    running_maximum *m = &largest[k];
    const derived_kind kind = k < d->num_passes ? PASS_SUM : d->sum[k - d->num_passes].kind;
    if (kind == PASS_LEAST) largest[k - 1].start = x[0];
    for (int i = 0; i < count; i++) {
      const bool is_product = k < d->num_passes;
      if (kind == PASS_PLACE && lanes->score[i] > -INFINITY) maximum_take(m, x[i], lane_key(lanes, i));
      if (kind != PASS_SUM) continue;
      pass[k] += is_product ? x[i] * dp[i] : x[i];
      pass[n + k] += is_product ? x_t[i] * dp[i] + x[i] * dp_t[i] : x_t[i];
    }
  }
}

/* Multiplies products by their factors, which read the sums. */
static void multiply(const dual_passes *w, cpu_lanes *lanes, double *pass) {
  const int passes = w->derived->num_passes, n = passes + w->derived->num_sums;
  double factor[2 * DERIVED_MAX_PASSES], *out[2 * DERIVED_MAX_PASSES];
  for (int k = 0; k < 2 * passes; k++) out[k] = &factor[k];
  program_run(&w->factors, lanes, 1, out);
  for (int k = 0; k < passes; k++) {
    pass[n + k] = factor[k] * pass[n + k] + factor[passes + k] * pass[k];
    pass[k] *= factor[k];
  }
}

void dual_passes_run(const dual_passes *w, const dual_rows *f, const dual_row *row, const dual_dout *dout,
                     cpu_lanes *lanes, double pass[2 * DUAL_PASSES_MAX]) {
  const derived_spec *d = w->derived;
  const int n = d->num_passes + d->num_sums;
  lane_array value[2 * DUAL_PASSES_MAX], dp, dp_t;
  double *out[2 * DUAL_PASSES_MAX];
  running_maximum largest[DUAL_PASSES_MAX];
  for (int k = 0; k < 2 * n; k++) out[k] = value[k];
  for (int k = 0; k < n; k++) largest[k] = maximum_of_none();
  memset(pass, 0, 2 * DUAL_PASSES_MAX * sizeof *pass);
  lanes->pass = pass, lanes->pass_tangent = pass + n;
  if (n == 0) return;
  for (int i0 = 0; i0 < row->count; i0 += IR_LANES) {
    const int count = row->count - i0 < IR_LANES ? row->count - i0 : IR_LANES;
    lanes->kv_idx = row->kv_idx + i0;
    lanes->score = row->x + i0, lanes->score_tangent = row->x_t + i0;
    program_run(&w->element, lanes, count, out);
    dual_products(f, dout, lanes, count, dp, dp_t);
    add_elements(d, lanes, count, value, dp, dp_t, largest, pass);
  }
  for (int i = 0, k = d->num_passes; i < d->num_sums; i++, k++)
    if (d->sum[i].kind == PASS_PLACE) maximum_write(&largest[k], false, pass + k);
  multiply(w, lanes, pass);
}
