#include "gen/cpu/score_row.h"

#include <math.h>
#include <string.h>

luattn_status scores_open(cpu_problem *p, cpu_scores *out, luattn_error *err) {
  const traced_spec *t = &p->spec->traced;
  *out = (cpu_scores){.p = p};
  TRY(program_open(p, &t->block_mask, t->block_mask != IR_NONE, &out->keep, err));
  return program_open(p, &t->score_mod, !ir_is_var(p->g, t->score_mod, VAR_SCORE), &out->mod, err);
}

/* The rounding of a kernel's q.k, whose sum has another order: a unit roundoff of the sum of magnitudes, to either
 * side. */
static double rounding_of_dot(const cpu_problem *p, const double *q, const double *k, int q_idx, int kv_idx) {
  const double unit = p->precision == LUATTN_F64 ? CPU_COARSENESS * 0x1p-53 : 0x1p-24;
  const uint32_t mixed = ((uint32_t)q_idx * 0x9e3779b9u ^ (uint32_t)kv_idx) * 0x85ebca6bu;
  double sum = 0;
  for (int d = 0; d < p->dim; d++) sum += fabs(q[d] * k[d]);
  return (mixed >> 31 ? -unit : unit) * p->scale * sum;
}

int scores_kept(const cpu_scores *s, cpu_lanes *lanes, int kv0, bool partial, double *score) {
  const cpu_problem *p = s->p;
  double keep[IR_LANES], *kv_idx = lanes->w->kv_idx;
  int count = p->kv_len - kv0 < CPU_TILE ? p->kv_len - kv0 : CPU_TILE;
  for (int i = 0; i < count; i++) kv_idx[i] = kv0 + i;
  lanes->kv_idx = kv_idx;
  if (partial) {
    program_run(&s->keep, lanes, count, (double *const[]){keep});
    int kept = 0;
    for (int i = 0; i < count; i++) {
      if (keep[i] != 0) kv_idx[kept++] = kv0 + i;
    }
    count = kept;
  }
  const double *q = p->q + cpu_at(p->heads, p->q_len, p->dim, lanes->b, lanes->h, (int)lanes->q_idx);
  for (int i = 0; i < count; i++) {
    const double *k = p->k + cpu_at(p->heads_kv, p->kv_len, p->dim, lanes->b, lanes->h / p->group, (int)kv_idx[i]);
    double dot = 0;
    for (int d = 0; d < p->dim; d++) dot += q[d] * k[d];
    score[i] = p->scale * dot;
    if (p->merges) score[i] += rounding_of_dot(p, q, k, (int)lanes->q_idx, (int)kv_idx[i]);
  }
  problem_round(p, score, count);
  return count;
}

void scores_mod(const cpu_scores *s, cpu_lanes *lanes, int count, double *score) {
  double out[IR_LANES];
  if (s->mod.program == NULL) return;
  lanes->score = score;
  program_run(&s->mod, lanes, count, (double *const[]){out});
  memcpy(score, out,
         (size_t)count * sizeof *score); /* not rounded: backward, which has its derivative, does not see it */
}
