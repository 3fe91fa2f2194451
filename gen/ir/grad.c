/* grad.c: reverse mode: gradients of an expression, in reverse topological order. */
#include <assert.h>
#include <math.h>

#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
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

static bool is_zero(const ir *g, ir_ref r) {
  double v;
  return r == IR_NONE || (ir_const_value(g, r, &v) && v == 0);
}

/* ---- where adjoints are nonzero ----
 *
 * A node of an arm that is not taken has the adjoint 0, and its derivative may be infinite or NaN there: it
 * must not be multiplied by that 0. So contributions stay below the selects that guard them. The condition
 * under which a node is used, the OR over all its uses, is read off its adjoint, whose selects say where it
 * is 0. */

typedef struct reach {
  ir *g;
  ir_ref always, never;
  ir_ref *memo; /* [capacity], IR_NONE: unknown */
  uint32_t capacity;
  bool products; /* factors of an adjoint are finite, so that its selects also say where the product is 0 */
} reach;

static bool reach_open(reach *w, ir *g) {
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

/* Returns a condition for where adjoint d may differ from 0, derived from its selects and from sums and
 * multiples of them. */
static ir_ref reach_of(reach *w, ir_ref d) {
  ir *g = w->g;
  if (d == IR_NONE || g->failed || is_zero(g, d)) return w->never;
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

/* The contribution of node r with adjoint d to its argument k. Where d is `select(c, d', 0)` the select moves
 * outermost; the result is the same since contributions are linear in d. Where d is a sum of such, the
 * contribution is guarded by the condition of d, unless it shows that condition itself, as -d does. */
static ir_ref guarded(reach *w, reach *shown, const ir_node *n, int k, ir_ref r, ir_ref d) {
  ir *g = w->g;
  if (ir_is_op(g, d, IR_SELECT)) {
    const ir_node s = *ir_get(g, d);
    const bool then = is_zero(g, s.arg[2]), otherwise = is_zero(g, s.arg[1]);
    if (then || otherwise) {
      const ir_ref inner = guarded(w, shown, n, k, r, s.arg[then ? 1 : 2]);
      if (inner == IR_NONE) return IR_NONE;
      const ir_ref zero = ir_real(g, 0);
      return then ? ir_op3(g, IR_SELECT, s.arg[0], inner, zero) : ir_op3(g, IR_SELECT, s.arg[0], zero, inner);
    }
  }
  const ir_ref c = contribution(g, n, k, r, d), reached = reach_of(w, d);
  if (is_zero(g, c) || reached == w->always || reach_of(shown, c) != w->always) return c;
  return ir_op3(g, IR_SELECT, reached, c, ir_real(g, 0));
}

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
  const ir_ref made = guarded(&w, &shown, &n, 0, x, d);
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
    if (n->type != IR_REAL || !has_derivative((ir_op)n->op)) continue;
    for (int k = 0; k < n->nargs; ++k)
      if (active[n->arg[k]] && ir_typeof(g, n->arg[k]) == IR_REAL) active[r] = 1;
  }
}

static ir_ref sum(ir *g, ir_ref a, ir_ref b);

/* Adds two selects by one condition as one select, if each arm is nonzero in at most one of them: select(c,
 * x, 0) + select(c, 0, y) = select(c, x, y), or x where both have it. IR_NONE: another form. */
static ir_ref sum_of_arms(ir *g, ir_ref a, ir_ref b) {
  if (!ir_is_op(g, a, IR_SELECT) || !ir_is_op(g, b, IR_SELECT)) return IR_NONE;
  const ir_node x = *ir_get(g, a), y = *ir_get(g, b);
  const bool then = is_zero(g, x.arg[1]) || is_zero(g, y.arg[1]),
             otherwise = is_zero(g, x.arg[2]) || is_zero(g, y.arg[2]);
  if (x.arg[0] != y.arg[0] || (!then && !otherwise)) return IR_NONE;
  const ir_ref first = sum(g, x.arg[1], y.arg[1]), second = sum(g, x.arg[2], y.arg[2]);
  return ir_op3(g, IR_SELECT, x.arg[0], first, second);
}

/* a + b. Merges what the arms of one select contribute separately, also where a is a sum already. */
static ir_ref sum(ir *g, ir_ref a, ir_ref b) {
  if (is_zero(g, a)) return b;
  if (is_zero(g, b)) return a;
  ir_ref joined = sum_of_arms(g, a, b);
  if (joined != IR_NONE || g->failed) return joined;
  if (ir_is_op(g, a, IR_ADD) && ir_is_op(g, b, IR_SELECT)) {
    const ir_node s = *ir_get(g, a);
    for (int k = 0; k < 2; ++k)
      if ((joined = sum_of_arms(g, s.arg[k], b)) != IR_NONE) return sum(g, s.arg[1 - k], joined);
  }
  return ir_op2(g, IR_ADD, a, b);
}

static void add(ir *g, ir_ref *adjoint, ir_ref d) {
  if (is_zero(g, d)) return;
  *adjoint = *adjoint == IR_NONE ? d : sum(g, *adjoint, d);
}

/* Arguments always precede their users, so the order of the refs, backwards, is a reverse topological
 * order. */
static void walk(ir *g, const uint8_t *active, ir_ref *adjoint, ir_ref top) {
  reach w;
  if (!reach_open(&w, g)) return;
  for (ir_ref r = top; r > 0; --r) {
    if (!active[r] || adjoint[r] == IR_NONE) continue;
    const ir_node n = *ir_get(g, r);
    if (!has_derivative((ir_op)n.op)) continue;
    ir_set_line(g, n.line);
    for (int k = 0; k < n.nargs; ++k)
      if (active[n.arg[k]] && ir_typeof(g, n.arg[k]) == IR_REAL)
        add(g, &adjoint[n.arg[k]], guarded(&w, &w, &n, k, r, adjoint[r]));
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
