/* grad.c: reverse mode: gradients of an expression, in reverse topological order. */
#include <math.h>

#include "gen/ir/derivative.h"
#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

/* ---- products with an adjoint, for callers ---- */

#define ORDINARY 1e6

static ir_bounds ordinary_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)user, (void)v, (void)index, (void)type;
  return (ir_bounds){
      .real = iv_make(-ORDINARY, ORDINARY, false), .integer = ivi_make(-1000000, 1000000), .boolean = tri_all()};
}

static ir_bounds ordinary_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)input, (void)n_index, (void)index;
  return ordinary_variable(user, VAR_SCORE, 0, type);
}

/* Whether r is finite for all ordinary values of what it reads, whichever arm is taken. */
static bool is_finite_everywhere(ir *g, ir_ref r) {
  ir_bounds *scratch = ir_push(g, g->count, sizeof *scratch);
  if (scratch == NULL) return false;
  const ir_bounds_env env = {.variable = ordinary_variable, .load = ordinary_load};
  ir_bounds b;
  ir_interval(g, &r, 1, &env, scratch, &b);
  ir_pop(g);
  return !b.real.nan && b.real.lo > -INFINITY && b.real.hi < INFINITY;
}

/* Computes d * x or d / x, guarded like the contribution of x * x or x / x to its first argument with adjoint
 * d. */
static ir_ref guarded_by(ir *g, ir_op op, ir_ref d, ir_ref x) {
  reach w, shown;
  if (d == IR_NONE || x == IR_NONE || !reach_open(&w, g) || !reach_open(&shown, g)) return IR_NONE;
  w.products = true;
  const ir_node n = {.op = (uint16_t)op, .type = IR_REAL, .nargs = 2, .arg = {x, x}};
  const ir_ref made = ir_contribution(&w, &shown, &n, 0, x, d);
  return made == IR_NONE && !g->failed ? ir_real(g, 0) : made;
}

ir_ref ir_grad_mul(ir *g, ir_ref d, ir_ref x) {
  const bool plain = d == IR_NONE || x == IR_NONE || !ir_uses_op(g, d, IR_SELECT) || is_finite_everywhere(g, x);
  return plain ? ir_op2(g, IR_MUL, d, x) : guarded_by(g, IR_MUL, d, x);
}

ir_ref ir_grad_div(ir *g, ir_ref d, ir_ref x) {
  bool plain = d == IR_NONE || x == IR_NONE || !ir_uses_op(g, d, IR_SELECT);
  if (!plain) plain = is_finite_everywhere(g, ir_op2(g, IR_DIV, ir_real(g, 1), x));
  return plain ? ir_op2(g, IR_DIV, d, x) : guarded_by(g, IR_DIV, d, x);
}

ir_ref ir_grad_factor(ir *g, ir_ref d, ir_ref factor) {
  reach w;
  if (d == IR_NONE || factor == IR_NONE || !ir_uses_op(g, d, IR_SELECT) || !reach_open(&w, g)) return factor;
  w.products = true;
  const ir_ref reached = reach_of(&w, d);
  static const ir_var later[] = {VAR_SCORE, VAR_RED, VAR_STATE, VAR_FINAL};
  for (size_t i = 0; i < sizeof later / sizeof *later; ++i)
    if (ir_uses(g, reached, later[i])) return factor;
  if (reached == w.always) return factor;
  return ir_op3(g, IR_SELECT, reached, factor, ir_real(g, 0));
}

/* active[r]: some wrt is reached from r through derivatives that are not identically zero. */
static void mark_active(const ir *g, uint8_t *active, ir_ref top, const ir_ref *wrt, int n_wrt) {
  for (int j = 0; j < n_wrt; ++j)
    if (wrt[j] != IR_NONE && wrt[j] <= top) active[wrt[j]] = 1;
  for (ir_ref r = 1; r <= top; ++r) {
    const ir_node *n = ir_get(g, r);
    if (n->type != IR_REAL || !ir_has_derivative((ir_op)n->op)) continue;
    for (int k = 0; k < n->nargs; ++k)
      if (active[n->arg[k]] && ir_typeof(g, n->arg[k]) == IR_REAL) active[r] = 1;
  }
}

static void add(ir *g, ir_ref *adjoint, ir_ref d) {
  if (ir_is_zero(g, d)) return;
  *adjoint = *adjoint == IR_NONE ? d : ir_sum_of(g, *adjoint, d);
}

/* Arguments always precede their users, so the order of the refs, backwards, is a reverse topological
 * order. */
static void walk(ir *g, const uint8_t *active, ir_ref *adjoint, ir_ref top) {
  reach w;
  if (!reach_open(&w, g)) return;
  for (ir_ref r = top; r > 0; --r) {
    if (!active[r] || adjoint[r] == IR_NONE) continue;
    const ir_node n = *ir_get(g, r);
    if (!ir_has_derivative((ir_op)n.op)) continue;
    ir_set_line(g, n.line);
    for (int k = 0; k < n.nargs; ++k)
      if (active[n.arg[k]] && ir_typeof(g, n.arg[k]) == IR_REAL)
        add(g, &adjoint[n.arg[k]], ir_contribution(&w, &w, &n, k, r, adjoint[r]));
  }
}

void ir_grad(ir *g, const ir_ref *y, const ir_ref *dy, int n_y, const ir_ref *wrt, ir_ref *out, int n_wrt) {
  for (int j = 0; j < n_wrt; ++j) out[j] = IR_NONE;
  if (g->failed) return;
  ir_ref top = 0;
  for (int i = 0; i < n_y; ++i)
    if (y[i] > top) top = y[i];
  ir_ref *adjoint = ir_push(g, (size_t)top + 1, sizeof *adjoint);
  if (adjoint == NULL) return;
  uint8_t *active = ir_push(g, (size_t)top + 1, sizeof *active);
  if (active != NULL) {
    const uint32_t line = g->line;
    mark_active(g, active, top, wrt, n_wrt);
    for (int i = 0; i < n_y; ++i)
      if (y[i] != IR_NONE && dy[i] != IR_NONE && ir_typeof(g, y[i]) == IR_REAL) add(g, &adjoint[y[i]], dy[i]);
    walk(g, active, adjoint, top);
    for (int j = 0; j < n_wrt; ++j)
      if (wrt[j] != IR_NONE && wrt[j] <= top && !ir_is_zero(g, adjoint[wrt[j]])) out[j] = adjoint[wrt[j]];
    g->line = line;
    ir_pop(g);
  }
  ir_pop(g);
}
