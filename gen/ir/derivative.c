/* derivative.c: reads the derivative column of ops.def, for both modes. */
#include "gen/ir/derivative.h"

#include <assert.h>

#include "gen/ir/graph.h"
#include "gen/ir/passes.h"
#include "gen/ir/scalar.h"

/* The derivative column of ops.def is read in two ways: whether any argument takes part, and the adjoint of
 * argument k.
 *
 * For the second a row's expression runs on a small stack, each part pushing its value: nested calls would
 * build their arguments in an order that C leaves open, and node numbers must not depend on the compiler. */
typedef struct maker {
  ir *g;
  ir_ref d, x, y, z, r, stack[16];
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

static bool y_is_const(const maker *m) {
  double value;
  return ir_is_const(m->g, m->y, &value);
}

#define N1(op, a) ((a), apply1(m, IR_##op))
#define N2(op, a, b) ((a), (b), apply2(m, IR_##op))
#define N3(op, a, b, c) ((a), (b), (c), apply3(m, IR_##op))
#define K(value) push(m, ir_real(m->g, value))
#define NIL push(m, IR_NONE)
#define IF_Y_CONST(then, otherwise) (y_is_const(m) ? (then) : (otherwise))

bool ir_has_derivative(ir_op op) {
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
#define z push(m, m->z)
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
#undef z
#undef r

static ir_ref contribution(ir *g, const ir_node *n, int k, ir_ref r, ir_ref d) {
  maker m = {.g = g, .d = d, .x = n->arg[0], .y = n->arg[1], .z = n->arg[2], .r = r};
  push_contribution(&m, (ir_op)n->op, k);
  return m.stack[0];
}

bool ir_is_zero(const ir *g, ir_ref r) {
  double v;
  return r == IR_NONE || (ir_const_value(g, r, &v) && v == 0);
}

/* ---- where adjoints are nonzero ---- */

bool reach_open(reach *w, ir *g) {
  *w = (reach){.g = g, .always = ir_bool(g, true), .never = ir_bool(g, false)};
  return !g->failed;
}

static bool reach_remember(reach *w, ir_ref d, ir_ref condition) {
  if (d >= w->capacity) {
    const uint32_t capacity = 2 * w->g->count;
    ir_ref *memo = arena_array(w->g->a, capacity, sizeof *memo);
    if (memo == NULL) return w->g->failed = true, false;
    for (uint32_t i = 0; i < w->capacity; ++i) memo[i] = w->memo[i];
    w->memo = memo;
    w->capacity = capacity;
  }
  w->memo[d] = condition;
  return true;
}

/* The condition under which c ? a : b holds, for BOOLs. */
static ir_ref either_arm(ir *g, ir_ref c, ir_ref a, ir_ref b) {
  if (a == b) return a;
  const ir_ref then = ir_op2(g, IR_AND, c, a), opposite = ir_op1(g, IR_NOT, c);
  return ir_op2(g, IR_OR, then, ir_op2(g, IR_AND, opposite, b));
}

ir_ref reach_of(reach *w, ir_ref d) {
  ir *g = w->g;
  if (d == IR_NONE || g->failed || ir_is_zero(g, d)) return w->never;
  if (d < w->capacity && w->memo[d] != IR_NONE) return w->memo[d];
  const ir_node n = *ir_get(g, d);
  double c;
  ir_ref condition = w->always;
  if (n.op == IR_SELECT) {
    const ir_ref then = reach_of(w, n.arg[1]), otherwise = reach_of(w, n.arg[2]);
    condition = either_arm(g, n.arg[0], then, otherwise);
  } else if (n.op == IR_ADD || n.op == IR_SUB) {
    const ir_ref left = reach_of(w, n.arg[0]), right = reach_of(w, n.arg[1]);
    condition = ir_op2(g, IR_OR, left, right);
  } else if (n.op == IR_NEG || (n.op == IR_MUL && (ir_is_const(g, n.arg[1], &c) || ir_is_op(g, n.arg[1], IR_SIGN)))) {
    condition = reach_of(w, n.arg[0]);
  } else if (n.op == IR_MUL && w->products) {
    const ir_ref left = reach_of(w, n.arg[0]), right = reach_of(w, n.arg[1]);
    condition = ir_op2(g, IR_AND, left, right);
  }
  if (g->failed || condition == IR_NONE || !reach_remember(w, d, condition)) return w->never;
  return condition;
}

ir_ref ir_contribution(reach *w, reach *shown, const ir_node *n, int k, ir_ref r, ir_ref d) {
  ir *g = w->g;
  if (ir_is_op(g, d, IR_SELECT)) {
    const ir_node s = *ir_get(g, d);
    const bool then = ir_is_zero(g, s.arg[2]), otherwise = ir_is_zero(g, s.arg[1]);
    if (then || otherwise) {
      const ir_ref inner = ir_contribution(w, shown, n, k, r, s.arg[then ? 1 : 2]);
      if (inner == IR_NONE) return IR_NONE;
      const ir_ref zero = ir_real(g, 0);
      return then ? ir_op3(g, IR_SELECT, s.arg[0], inner, zero) : ir_op3(g, IR_SELECT, s.arg[0], zero, inner);
    }
  }
  const ir_ref c = contribution(g, n, k, r, d), reached = reach_of(w, d);
  if (ir_is_zero(g, c) || reached == w->always || reach_of(shown, c) != w->always) return c;
  return ir_op3(g, IR_SELECT, reached, c, ir_real(g, 0));
}

/* ---- sums ---- */

/* Adds two selects by one condition as one select, if each arm is nonzero in at most one of them: select(c,
 * x, 0) + select(c, 0, y) = select(c, x, y), or x where both have it. IR_NONE: another form. */
static ir_ref sum_of_arms(ir *g, ir_ref a, ir_ref b) {
  if (!ir_is_op(g, a, IR_SELECT) || !ir_is_op(g, b, IR_SELECT)) return IR_NONE;
  const ir_node x = *ir_get(g, a), y = *ir_get(g, b);
  const bool then = ir_is_zero(g, x.arg[1]) || ir_is_zero(g, y.arg[1]),
             otherwise = ir_is_zero(g, x.arg[2]) || ir_is_zero(g, y.arg[2]);
  if (x.arg[0] != y.arg[0] || (!then && !otherwise)) return IR_NONE;
  const ir_ref first = ir_sum_of(g, x.arg[1], y.arg[1]), second = ir_sum_of(g, x.arg[2], y.arg[2]);
  return ir_op3(g, IR_SELECT, x.arg[0], first, second);
}

ir_ref ir_sum_of(ir *g, ir_ref a, ir_ref b) {
  if (ir_is_zero(g, a)) return b;
  if (ir_is_zero(g, b)) return a;
  ir_ref joined = sum_of_arms(g, a, b);
  if (joined != IR_NONE || g->failed) return joined;
  if (ir_is_op(g, a, IR_ADD) && ir_is_op(g, b, IR_SELECT)) {
    const ir_node s = *ir_get(g, a);
    for (int k = 0; k < 2; ++k)
      if ((joined = sum_of_arms(g, s.arg[k], b)) != IR_NONE) return ir_sum_of(g, s.arg[1 - k], joined);
  }
  return ir_op2(g, IR_ADD, a, b);
}
