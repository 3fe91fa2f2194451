/* grad.c: reverse mode: the gradients of an expression, in reverse topological order. */
#include <assert.h>

#include "gen/ir/graph.h"
#include "gen/ir/passes.h"
#include "gen/ir/scalar.h"

/* The derivative column of ops.def is read in two ways: does any argument take part, and what adjoint does
 * argument k get.
 *
 * For the second a row's expression runs on a small stack, each part pushing its value: nested calls would
 * build their arguments in an order that C leaves open, and the numbering of nodes must not depend on who
 * compiled this. */
typedef struct maker {
  ir *g;
  ir_ref d, x, y, r, stack[16];
  int n;
} maker;

static void push(maker *m, ir_ref r) {
  assert(m->n < 16);
  m->stack[m->n++] = r;
}

static void apply1(maker *m, ir_op op) { m->stack[m->n - 1] = ir_op1(m->g, op, m->stack[m->n - 1]); }

static void apply2(maker *m, ir_op op) {
  m->n -= 1;
  m->stack[m->n - 1] = ir_op2(m->g, op, m->stack[m->n - 1], m->stack[m->n]);
}

static void apply3(maker *m, ir_op op) {
  m->n -= 2;
  m->stack[m->n - 1] = ir_op3(m->g, op, m->stack[m->n - 1], m->stack[m->n], m->stack[m->n + 1]);
}

#define N1(op, a) ((a), apply1(m, IR_##op))
#define N2(op, a, b) ((a), (b), apply2(m, IR_##op))
#define N3(op, a, b, c) ((a), (b), (c), apply3(m, IR_##op))
#define K(value) push(m, ir_real(m->g, value))
#define NIL push(m, IR_NONE)

static bool has_derivative(ir_op op) {
#define ZERO false
#define REFUSED true
#define GRAD1(a) true
#define GRAD2(a, b) true
#define GRAD3(a, b, c) true
  static const bool has[] = {
#define IR_OP(id, name, arity, types, cuda, value, derivative, interval, cost) derivative,
#include "gen/ir/ops.def"
#undef IR_OP
  };
#undef ZERO
#undef REFUSED
#undef GRAD1
#undef GRAD2
#undef GRAD3
  return has[op];
}

#define d push(m, m->d)
#define x push(m, m->x)
#define y push(m, m->y)
#define r push(m, m->r)
#define ZERO NIL
#define REFUSED (assert(!"a reduction cannot be differentiated here"), NIL)
#define GRAD1(a) (a)
#define GRAD2(a, b) (k == 0 ? (a) : (b))
#define GRAD3(a, b, c) (k == 0 ? (a) : k == 1 ? (b) : (c))
static void push_contribution(maker *m, ir_op op, int k) {
  switch (op) {
#define IR_OP(id, name, arity, types, cuda, value, derivative, interval, cost) \
  case IR_##id:                                                                \
    derivative;                                                                \
    break;
#include "gen/ir/ops.def"
#undef IR_OP
    case IR_OP_COUNT:
      break;
  }
}
#undef d
#undef x
#undef y
#undef r

static ir_ref contribution(ir *g, const ir_node *n, int k, ir_ref r, ir_ref d) {
  maker m = {.g = g, .d = d, .x = n->arg[0], .y = n->arg[1], .r = r};
  push_contribution(&m, (ir_op)n->op, k);
  return m.stack[0];
}

static bool is_zero(const ir *g, ir_ref r) {
  double v;
  return r == IR_NONE || (ir_const_value(g, r, &v) && v == 0);
}

/* Where the adjoint is `select(c, d, 0)`, the select goes outermost, which is the same since contributions
 * are linear in d. So an arm that was not taken contributes 0 even where its own derivative is infinite:
 * where(x > 0, log(x), 0) at 0. */
static ir_ref guarded(ir *g, const ir_node *n, int k, ir_ref r, ir_ref d) {
  if (ir_is_op(g, d, IR_SELECT)) {
    const ir_node s = *ir_get(g, d);
    const bool then = is_zero(g, s.arg[2]), otherwise = is_zero(g, s.arg[1]);
    if (then || otherwise) {
      const ir_ref inner = guarded(g, n, k, r, s.arg[then ? 1 : 2]);
      if (inner == IR_NONE) return IR_NONE;
      const ir_ref zero = ir_real(g, 0);
      return then ? ir_op3(g, IR_SELECT, s.arg[0], inner, zero) : ir_op3(g, IR_SELECT, s.arg[0], zero, inner);
    }
  }
  return contribution(g, n, k, r, d);
}

/* active[r]: some wrt is reached from r through derivatives that are not identically zero. */
static void mark_active(const ir *g, uint8_t *active, ir_ref top, const ir_ref *wrt, int n_wrt) {
  for (int j = 0; j < n_wrt; ++j)
    if (wrt[j] != IR_NONE && wrt[j] <= top) active[wrt[j]] = 1;
  for (ir_ref r = 1; r <= top; ++r) {
    const ir_node *n = ir_get(g, r);
    if (n->type != IR_REAL || !has_derivative((ir_op)n->op)) continue;
    for (int k = 0; k < n->nargs; ++k)
      if (active[n->arg[k]] && ir_typeof(g, n->arg[k]) == IR_REAL) active[r] = 1;
  }
}

/* a + b. What the arms of one select contribute apart comes together again: select(c, x, 0) + select(c, 0, y)
 * = select(c, x, y), which is x where both are. */
static ir_ref sum(ir *g, ir_ref a, ir_ref b) {
  if (ir_is_op(g, a, IR_SELECT) && ir_is_op(g, b, IR_SELECT)) {
    const ir_node x = *ir_get(g, a), y = *ir_get(g, b);
    const bool first = is_zero(g, x.arg[1]) && is_zero(g, y.arg[2]),
               second = is_zero(g, x.arg[2]) && is_zero(g, y.arg[1]);
    if (x.arg[0] == y.arg[0] && (first || second))
      return ir_op3(g, IR_SELECT, x.arg[0], first ? y.arg[1] : x.arg[1], first ? x.arg[2] : y.arg[2]);
  }
  return ir_op2(g, IR_ADD, a, b);
}

static void add(ir *g, ir_ref *adjoint, ir_ref d) {
  if (is_zero(g, d)) return;
  *adjoint = *adjoint == IR_NONE ? d : sum(g, *adjoint, d);
}

/* Arguments always precede their users, so the order of the refs, backwards, is a reverse topological order.
 */
static void walk(ir *g, const uint8_t *active, ir_ref *adjoint, ir_ref top) {
  for (ir_ref r = top; r > 0; --r) {
    if (!active[r] || adjoint[r] == IR_NONE) continue;
    const ir_node n = *ir_get(g, r);
    if (!has_derivative((ir_op)n.op)) continue;
    ir_set_line(g, n.line);
    for (int k = 0; k < n.nargs; ++k)
      if (active[n.arg[k]] && ir_typeof(g, n.arg[k]) == IR_REAL)
        add(g, &adjoint[n.arg[k]], guarded(g, &n, k, r, adjoint[r]));
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
      if (wrt[j] != IR_NONE && wrt[j] <= top && !is_zero(g, adjoint[wrt[j]])) out[j] = adjoint[wrt[j]];
    g->line = line;
    ir_pop(g);
  }
  ir_pop(g);
}
