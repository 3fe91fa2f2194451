/* row_passes.c: what a row pass gives for a row (derived_pass of gen/spec.h): sums over all of its kept elements,
 * before the row's numbers are computed. */
#include <math.h>
#include <string.h>

#include "gen/cpu/backward.h"
#include "gen/cpu/running_maximum.h"

luattn_status passes_open(backward *w, luattn_error *err) {
  cpu_problem *p = &w->p;
  const derived_spec *derived = &p->spec->derived;
  ir_ref root[PASSES_MAX], factor[DERIVED_MAX_PASSES];
  int n = 0;
  for (int k = 0; k < derived->num_passes; k++)
    root[n++] = derived->pass[k].weight, factor[k] = derived->pass[k].factor;
  for (int i = 0; i < derived->num_sums; i++) {
    const bool is_maximum = derived->sum[i].kind == PASS_PLACE || derived->sum[i].kind == PASS_LEAST;
    root[n] = derived->sum[i].of;
    if (is_noise(w) && !is_maximum) TRY(magnitude_of(p->a, p->g, &root[n], 1, err));
    n++;
  }
  TRY(program_open(p, root, n, &w->passes, err));
  return program_open(p, factor, derived->num_passes, &w->factors, err);
}

/* dO . v of kept elements, through dropout; of noise the square root of the sum of squares, as roundings are
 * independent. */
static void products(const backward *w, const cpu_lanes *lanes, int count, double *dp) {
  const cpu_problem *p = &w->p;
  const double *dout = w->dout_rows + cpu_at(p->heads, p->q_len, p->dim_v, lanes->b, lanes->h, (int)lanes->q_idx);
  for (int i = 0; i < count; i++) {
    const double *v =
        p->v + cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    dp[i] = 0;
    for (int d = 0; d < p->dim_v; d++) dp[i] += is_noise(w) ? dout[d] * v[d] * dout[d] * v[d] : dout[d] * v[d];
    if (is_noise(w)) dp[i] = sqrt(dp[i]);
  }
  round_all(p->precision, dp, count);
  dropout_apply(lanes, count, dp);
}

/* Adds weight * v to O_k of a pass, which kernels round: worker.row has one after the other. */
static void add_output(const backward *w, const cpu_lanes *lanes, int count, const double *weight, int k) {
  const cpu_problem *p = &w->p;
  double kept[IR_LANES], *o = lanes->w->row + (size_t)k * (size_t)p->dim_v;
  memcpy(kept, weight, (size_t)count * sizeof *kept);
  dropout_apply(lanes, count, kept);
  for (int i = 0; i < count; i++) {
    const double *v =
        p->v + cpu_at(p->heads_kv, p->kv_len, p->dim_v, lanes->b, lanes->h / p->group, (int)lanes->kv_idx[i]);
    for (int d = 0; d < p->dim_v; d++) o[d] += kept[i] * v[d];
  }
}

/* What rounding O_k adds to the noise of its product with dO, squared. */
static double output_noise(const backward *w, const cpu_lanes *lanes, int k) {
  const cpu_problem *p = &w->p;
  const double *dout = w->dout_rows + cpu_at(p->heads, p->q_len, p->dim_v, lanes->b, lanes->h, (int)lanes->q_idx);
  const double *o = lanes->w->row + (size_t)k * (size_t)p->dim_v;
  double sum = 0;
  for (int d = 0; d < p->dim_v; d++) sum += dout[d] * o[d] * dout[d] * o[d];
  return sum;
}

/* Finds a maximum in a tile's kept elements, which come in ascending order. */
static void find_largest(const cpu_lanes *lanes, int count, const double *value, running_maximum *m) {
  for (int i = 0; i < count; i++)
    if (lanes->score[i] > -INFINITY) maximum_take(m, value[i], lane_key(lanes, i));
}

/* Adds a tile's kept elements. */
static void add_tile(const backward *w, cpu_lanes *lanes, int count, double *score, running_maximum *largest,
                     double *pass) {
  const derived_spec *derived = &w->p.spec->derived;
  const int num_passes = derived->num_passes, n = num_passes + derived->num_sums;
  double value[PASSES_MAX][IR_LANES], *out[PASSES_MAX], dp[IR_LANES];
  for (int k = 0; k < n; k++) out[k] = value[k];
  scores_mod(&w->scores, lanes, count, score);
  lanes->score = score;
  program_run(&w->passes, lanes, count, out);
  products(w, lanes, count, dp);
  for (int k = 0; k < n; k++) {
    const derived_kind kind = k < num_passes ? PASS_SUM : derived->sum[k - num_passes].kind;
    if (kind == PASS_PLACE) find_largest(lanes, count, value[k], &largest[k - num_passes]);
    if (kind == PASS_LEAST) largest[k - num_passes - 1].start = value[k][0];
    if (kind != PASS_SUM) continue;
    if (k < num_passes) round_all(w->p.precision, value[k], count);
    if (k < num_passes && is_noise(w)) add_output(w, lanes, count, value[k], k);
    for (int i = 0; i < count; i++) {
      const double x = k < num_passes ? value[k][i] * dp[i] : value[k][i];
      pass[k] += is_noise(w) && k < num_passes ? x * x : x;
    }
  }
}

void passes_run(const backward *w, cpu_lanes *lanes, const unsigned char *classes, double *pass) {
  const derived_spec *derived = &w->p.spec->derived;
  const int kv_tiles = w->stage.blocks.kv_tiles;
  double score[IR_LANES], factor[DERIVED_MAX_PASSES], *out[DERIVED_MAX_PASSES];
  running_maximum largest[DERIVED_MAX_SUMS];
  memset(pass, 0, PASSES_MAX * sizeof *pass);
  for (int k = 0; k < derived->num_sums; k++) largest[k] = maximum_of_none();
  if (derived->num_passes == 0) return;
  memset(lanes->w->row, 0, (size_t)(derived->num_passes * w->p.dim_v) * sizeof(double));
  for (int t = 0; t < kv_tiles; t++) {
    if (classes[t] == 0) continue;
    const int count = scores_kept(&w->scores, lanes, t * CPU_TILE, classes[t] == 1, score);
    if (count > 0) add_tile(w, lanes, count, score, largest, pass);
  }
  for (int k = 0; k < derived->num_sums; k++)
    if (derived->sum[k].kind == PASS_PLACE)
      maximum_write(&largest[k], w->purpose == KINKS, pass + derived->num_passes + k);
  for (int k = 0; k < derived->num_passes; k++) out[k] = &factor[k];
  lanes->pass = pass; /* of which factors read the sums */
  program_run(&w->factors, lanes, 1, out);
  for (int k = 0; k < derived->num_passes; k++)
    pass[k] = factor[k] * (is_noise(w) ? sqrt(pass[k] + output_noise(w, lanes, k)) : pass[k]);
}
