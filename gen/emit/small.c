/* small.c: weights that cost less where dot products are small.
 *
 * tanh and 1 / (1 + 2^-x) take a number of the unit of exp2, or four multiply-adds, for each score. But a
 * capped score is nearly always far below its cap, and a weight of sigmoid attention, whose bias is about
 * -log(length), far below 1. There a polynomial does, and a kernel asks first whether all dots of its tile
 * are of that kind: by the sign of small_test, which costs one multiply-add.
 */
#include "gen/emit/form.h"

static bool of_site(emit_form *f, ir_ref r) { return (deps_of(&f->deps, r) & ~DEP_SITE) == 0; }

/* r = x op other, either way round. */
static bool takes_apart(const emit_form *f, ir_ref r, ir_op op, ir_op with, ir_ref *x, ir_ref *other) {
  const ir_node n = *ir_get(f->g, r);
  if (n.op != op) return false;
  for (int i = 0; i < 2; i++) {
    if (ir_get(f->g, n.arg[i])->op != with) continue;
    *x = n.arg[i];
    *other = n.arg[1 - i];
    return true;
  }
  return false;
}

/* As measured (bench/journal.md): where the unit of exp2 binds, and not the products of large head dims, or
 * the order of two consumers. */
static bool pays_for_tanh(const plan *p) { return p->head_dim + p->head_dim_v <= 256; }
static bool pays_for_sigmoid(const plan *p) { return p->tile_m > 128; }

/* 1 / (1 + 2^-x) below x = -5. With e = 2^(x + 5), at most 1, it is e / 32 / (1 + e / 32); the quotient's
 * best line is off by 2^-13, a quarter of f16's rounding. The test asks for a little more than that: were its
 * multiply-add the weight's, too, ptxas would keep some of its results, and spill. */
static void small_sigmoid(emit_form *f) {
  ir *g = f->g;
  ir_ref x[2] = {ir_op2(g, IR_ADD, f->score, ir_real(g, 5)), ir_op2(g, IR_ADD, f->score, ir_real(g, 5.0625))};
  fold_roots(f, x, 2);
  const ir_ref e = ir_op1(g, IR_EXP2, x[0]), slope = ir_op2(g, IR_MUL, e, ir_real(g, -0.969 / 1024));
  f->small_test = x[1];
  f->small_weight = ir_op2(g, IR_MUL, e, ir_op2(g, IR_ADD, ir_real(g, 0.99988 / 32), slope));
}

/* a tanh(m dot) + b, where |m dot| < 1/3: tanh(u) = u (0.9998 - 0.319 u^2) within 2^-12.3, better than
 * op_rough_tanh. */
static void small_tanh(emit_form *f) {
  ir *g = f->g;
  const ir_ref dot = ir_variable(g, VAR_DOT, 0), square = ir_op2(g, IR_MUL, dot, dot),
               score = ir_variable(g, VAR_SCORE, 0);
  ir_ref scaled, a, b, tanh, m, is_dot;
  if (!takes_apart(f, f->score, IR_ADD, IR_MUL, &scaled, &b) || !of_site(f, b) ||
      !takes_apart(f, scaled, IR_MUL, IR_ROUGH_TANH, &tanh, &a) || !of_site(f, a) ||
      !takes_apart(f, ir_get(g, tanh)->arg[0], IR_MUL, IR_VAR, &is_dot, &m) || is_dot != dot ||
      !of_site(f, m))
    return;
  const ir_ref last = ir_op2(g, IR_DIV, ir_real(g, 1.0 / 3), m), am = ir_op2(g, IR_MUL, a, m),
               cubic = ir_op2(g, IR_MUL, ir_op2(g, IR_MUL, am, ir_op2(g, IR_MUL, m, m)), ir_real(g, -0.319)),
               linear = ir_op2(g, IR_MUL, am, ir_real(g, 0.9998));
  const ir_ref factor = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, square, cubic), linear);
  const ir_ref small = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, dot, factor), b);
  f->small_test = ir_op2(g, IR_SUB, square, ir_op2(g, IR_MUL, last, last));
  f->small_weight = ir_substitute(g, f->step.prob, &score, &small, 1);
}

/* Of the kernels the sm90 forward knows them. Its only reduction may be the sum of weights. */
void small_choose(emit_form *f) {
  const ir_ref score = ir_variable(f->g, VAR_SCORE, 0);
  const bool sums = f->step.num_red == 1 && f->prob_term == 0 && f->red_deferred[0];
  f->small_test = f->small_weight = IR_NONE;
  if (f->plan->family != LUATTN_SM90 || f->plan->pass != LUATTN_FORWARD || !f->plan->fast_math ||
      f->has_rescale || f->lags || !f->mask_by_inf || (f->step.num_red > 0 && !sums) ||
      (deps_of(&f->deps, f->score) & ~(DEP_SITE | DEP_ELEMENT)) != 0)
    return;
  if (f->step.prob == ir_op1(f->g, IR_SIGMOID2_IN_TURN, score) && pays_for_sigmoid(f->plan))
    small_sigmoid(f);
  else if (f->step.prob == ir_op1(f->g, IR_EXP2, score) && pays_for_tanh(f->plan))
    small_tanh(f);
}
