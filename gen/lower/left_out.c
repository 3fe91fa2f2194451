#include "gen/lower/left_out.h"

#include <math.h>

#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/algebra/limits_at.h"
#include "gen/ir/passes.h"

/* Whether a step over scores that are all left out leaves a row as it is: states `now`, with reductions over
 * nothing. */
static bool step_is_nothing(lowered *f, limits *l, const ir_ref *state, const ir_ref *now, int num_state) {
  ir *g = f->g;
  ir_ref from[SPEC_MAX_RED + SPEC_MAX_STATE], to[SPEC_MAX_RED + SPEC_MAX_STATE], root[SPEC_MAX_STATE + 1];
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) {
    from[n] = ir_variable(g, VAR_RED, (uint32_t)k);
    to[n++] = ir_real(g, f->step.kind[k] == IR_REDUCE_MAX ? -INFINITY : 0);
  }
  for (int i = 0; i < num_state; i++) from[n] = state[i], to[n++] = now[i];
  for (int i = 0; i <= num_state; i++) {
    const ir_ref x = ir_substitute(g, i < num_state ? f->step.next[i] : f->step.rescale, from, to, n);
    root[i] = limits_with_infinities(l, x);
  }
  ir_simplify(g, root, num_state + 1);
  if (ir_failed(g)) return false;
  for (int i = 0; i <= num_state; i++)
    if (!algebra_same(f->a, &f->spec->traced, root[i], i == num_state ? ir_real(g, 1) : now[i])) return false;
  return true;
}

static bool is_number(limits *l, ir_ref r, double x) {
  double at;
  return limits_is_number(l, r, &at) && at == x;
}

static bool is_left_out(lowered *f, limits *l, const ir_ref *from, const ir_ref *to, int n) {
  ir *g = f->g;
  for (int k = 0; k < f->step.num_red; k++)
    if (!is_number(l, ir_substitute(g, f->step.term[k], from, to, n), f->step.kind[k] == IR_REDUCE_MAX ? -INFINITY : 0))
      return false;
  return is_number(l, ir_substitute(g, f->step.prob, from, to, n), 0);
}

bool left_out_by_score(lowered *f, double score) {
  ir *g = f->g;
  const int num_state = lowered_traced(f)->online.num_state, num_red = f->step.num_red;
  ir_ref state[SPEC_MAX_STATE], red[SPEC_MAX_RED], before[SPEC_MAX_RED], stepped[SPEC_MAX_STATE], empty[SPEC_MAX_RED];
  limits l;
  if (!limits_open(&l, f->a, g, score)) return false;
  for (int i = 0; i < num_state; i++) state[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  for (int k = 0; k < num_red; k++) {
    red[k] = ir_variable(g, VAR_RED, (uint32_t)k);
    before[k] = ir_variable(g, VAR_ROW, (uint32_t)k); /* any number: no step reads one */
    empty[k] = ir_real(g, f->step.kind[k] == IR_REDUCE_MAX ? -INFINITY : 0);
  }
  /* After a step, a state is one that a step makes: a number of it may imply another. */
  for (int i = 0; i < num_state; i++)
    stepped[i] = score == 0 ? ir_substitute(g, f->step.next[i], red, before, num_red) : state[i];
  if (!is_left_out(f, &l, red, red, num_red) || !is_left_out(f, &l, red, empty, num_red)) return false;
  return step_is_nothing(f, &l, state, f->init, num_state) && step_is_nothing(f, &l, state, stepped, num_state);
}
