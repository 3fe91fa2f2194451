/* row_shift.c: hoists terms of a score that are constant per (thread, row, tile).
 *
 * ALiBi's score is dot + slope * (kv - q). With kv = base + offset (contract/contract.cuh), slope * (base -
 * q) is one number per row of a thread in a tile, the shift, and each element costs one multiply-add with a
 * constant, dot + slope * offset. The online function applies a shift at the cost of a row: the maximum of
 * shifted scores is the shifted maximum, and in expressions that are linear in a score it joins the terms of
 * the row.
 */
#include "gen/lower/lowering.h"

/* Large scores have none: backward has to round them as forward does. */
static bool kernel_has_shift(const plan *p) { return plan_kernel(p)->shifts_rows && !p->large_scores; }

/* Under a causal mask a distance needs no abs, and is linear. */
ir_ref row_shift_source(const lowered *f) {
  const ir_ref score = f->spec->traced.score_mod;
  return kernel_has_shift(f->plan) ? mask_implied(f->g, f->mask->keep, score) : score;
}

void row_shift_score(lowered *f) {
  if (kernel_has_shift(f->plan)) f->row_shift = multiply_add_shift(f, &f->score);
  if (f->row_shift == IR_NONE) multiply_add_roots(f, &f->score, 1);
}

void row_shift_step(lowered *f) {
  ir *g = f->g;
  online_split *s = &f->step;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), shifted = ir_op2(g, IR_ADD, score, ir_variable(g, VAR_SHIFT, 0));
  if (f->row_shift == IR_NONE) return;
  for (int k = 0; k < s->num_red; k++) {
    f->red_shifted[k] = s->kind[k] == IR_REDUCE_MAX && s->term[k] == score;
    if (!f->red_shifted[k]) s->term[k] = ir_substitute(g, s->term[k], &score, &shifted, 1);
  }
  s->prob = ir_substitute(g, s->prob, &score, &shifted, 1);
}
