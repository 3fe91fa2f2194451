/* head_factors.c: moves factors that are constant per head out of sums of gradients.
 *
 * A factor or a condition that is constant per head (such as: a learned temperature was not clamped) need not
 * be applied to each score: a block sums without it, and flush applies it to the sum. A sum of two such terms
 * is not split: in a soft cap's gradient the two nearly cancel within each element, but would not cancel in
 * two separate sums.
 */
#include "gen/lower/lowering.h"

static bool is_uniform(lowered *f, ir_ref r) { return (deps_of(&f->deps, r) & ~DEP_SITE) == 0; }

static bool is_zero(const ir *g, ir_ref r) {
  double x;
  return ir_is_const(g, r, &x) && x == 0;
}

/* The argument in which r is linear, if all others are constant per head; -1: none. */
static int argument_of_linear(lowered *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const ir_ref *arg = n->arg;
  switch (n->op) {
    case IR_NEG:
      return 0;
    case IR_MUL:
      return is_uniform(f, arg[0]) ? 1 : is_uniform(f, arg[1]) ? 0 : -1;
    case IR_DIV:
      return is_uniform(f, arg[1]) ? 0 : -1;
    case IR_SELECT:
      if (!is_uniform(f, arg[0])) return -1;
      return is_zero(f->g, arg[2]) ? 1 : is_zero(f->g, arg[1]) ? 2 : -1;
    default:
      return -1;
  }
}

void head_factors_take(lowered *f) {
  ir *g = f->g;
  const ir_ref sum = f->whole_sum = ir_variable(g, VAR_GRAD, 0);
  for (int i = 0; i < f->element_terms.count; i++) {
    derived_term *t = &f->element_terms.term[i];
    ir_ref of_sum = sum;
    if (!lowered_has_one_place(f, t)) continue;
    for (int at; !is_uniform(f, t->value) && (at = argument_of_linear(f, t->value)) >= 0;) {
      const ir_node n = *ir_get(g, t->value);
      ir_ref arg[3] = {n.arg[0], n.arg[1], n.arg[2]};
      arg[at] = sum;
      const ir_ref outer = ir_rebuild(g, t->value, arg);
      of_sum = ir_substitute(g, of_sum, &sum, &outer, 1);
      t->value = n.arg[at];
    }
    t->of_sum = of_sum != sum ? of_sum : IR_NONE;
  }
}
