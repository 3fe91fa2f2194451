/* softcap_poly.c: chooses the soft cap's polynomial fast path, and the fast path for P that are sigmoids.
 *
 * tanh takes an operation of the exp2 unit for each score. But a capped score is nearly always far below its
 * cap, where a polynomial is accurate. A kernel first tests whether all q.k of its tile are small enough:
 * whether their squares, or sums of squares, are below softcap_poly_limit. The test costs one multiply-add
 * for each q.k.
 *
 * 1 / (1 + 2^-x) takes one more such operation, or four multiply-adds. If scores are used only for P, which
 * are rounded to a half type, a kernel computes P from 2^x in that type, after the same test:
 * templates/ops/half_sigmoid.cuh.
 */
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

static bool of_site(lowered *f, ir_ref r) { return (deps_of(&f->deps, r) & ~DEP_SITE) == 0; }

/* r = x op other, in either order. */
static bool takes_apart(const lowered *f, ir_ref r, ir_op op, ir_op with, ir_ref *x, ir_ref *other) {
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

/* a tanh(m dot) + b, where |m dot| < 1/3: tanh(u) = u (0.9998 - 0.319 u^2) within 2^-12.3, better than
 * op_rough_tanh. */
static void tanh_polynomial(lowered *f) {
  ir *g = f->g;
  const ir_ref dot = ir_variable(g, VAR_DOT, 0), square = ir_op2(g, IR_MUL, dot, dot),
               score = ir_variable(g, VAR_SCORE, 0);
  ir_ref scaled, a, b, tanh, m, is_dot;
  if (!takes_apart(f, f->score, IR_ADD, IR_MUL, &scaled, &b) || !of_site(f, b) ||
      !takes_apart(f, scaled, IR_MUL, IR_ROUGH_TANH, &tanh, &a) || !of_site(f, a) ||
      !takes_apart(f, ir_get(g, tanh)->arg[0], IR_MUL, IR_VAR, &is_dot, &m) || is_dot != dot || !of_site(f, m))
    return;
  const ir_ref last = ir_op2(g, IR_DIV, ir_real(g, 1.0 / 3), m), am = ir_op2(g, IR_MUL, a, m),
               cubic = ir_op2(g, IR_MUL, ir_op2(g, IR_MUL, am, ir_op2(g, IR_MUL, m, m)), ir_real(g, -0.319)),
               linear = ir_op2(g, IR_MUL, am, ir_real(g, 0.9998));
  const ir_ref term = ir_variable(g, VAR_TERM, 0);
  const bool late = policy_softcap_factors_early(f->plan);
  const ir_ref factor =
      ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, square, cubic), late ? linear : ir_op2(g, IR_ADD, linear, term));
  const ir_ref capped = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, dot, factor), late ? ir_op2(g, IR_ADD, b, term) : b);
  f->softcap_limit = ir_op2(g, IR_MUL, last, last);
  f->softcap_prob = ir_substitute(g, f->step.prob, &score, &capped, 1);
}

/* Whether P are 1 / (1 + 2^-score), and scores are used for nothing else. */
static bool is_sigmoid(const lowered *f) {
  return plan_kernel(f->plan)->has_polynomials && f->mask_by_inf && !f->has_rescale && f->step.num_red == 0 &&
         f->step.prob == ir_op1(f->g, IR_SIGMOID2_ALTERNATING, ir_variable(f->g, VAR_SCORE, 0));
}

/* The only reduction may be the sum of P. */
void softcap_poly_choose(lowered *f) {
  const ir_ref score = ir_variable(f->g, VAR_SCORE, 0);
  const bool sums = f->step.num_red == 1 && f->prob_term == 0 && f->red_deferred[0];
  f->softcap_limit = f->softcap_prob = IR_NONE;
  f->prob_is_sigmoid = is_sigmoid(f);
  if (!plan_kernel(f->plan)->has_polynomials || f->has_rescale || f->lazy_rescale || !f->mask_by_inf ||
      (f->step.num_red > 0 && !sums) || (deps_of(&f->deps, f->score) & ~(DEP_SITE | DEP_ELEMENT)) != 0)
    return;
  if (f->step.prob == ir_op1(f->g, IR_EXP2, score) && policy_softcap_poly(f->plan)) tanh_polynomial(f);
}
