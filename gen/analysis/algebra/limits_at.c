#include "gen/analysis/algebra/limits_at.h"

#include <math.h>

#include "gen/ir/passes.h"

typedef enum limit_kind { UNKNOWN, FINITE, POSITIVE, NUMBER } limit_kind;

struct limit {
  limit_kind kind;
  double x; /* NUMBER; of a condition, 0 or 1 */
  bool known;
};

static const limit unknown = {UNKNOWN, 0, true}, finite = {FINITE, 0, true}, positive = {POSITIVE, 0, true};
static limit number(double x) { return isnan(x) ? unknown : (limit){NUMBER, x, true}; }

static bool is_number(limit a, double x) { return a.kind == NUMBER && a.x == x; }
static bool is_finite(limit a) { return a.kind == FINITE || a.kind == POSITIVE || (a.kind == NUMBER && isfinite(a.x)); }
static bool is_infinite(limit a) { return a.kind == NUMBER && isinf(a.x); }
static bool is_above(limit a) { return a.kind == POSITIVE || (a.kind == NUMBER && a.x > 0); }
static bool is_not_zero(limit a) { return a.kind == POSITIVE || (a.kind == NUMBER && a.x != 0); }

static limit of_sum(limit a, limit b) {
  if (a.kind == NUMBER && b.kind == NUMBER) return number(a.x + b.x);
  if (is_infinite(a) && is_finite(b)) return a;
  if (is_infinite(b) && is_finite(a)) return b;
  if (is_above(a) && is_above(b)) return positive;
  return is_finite(a) && is_finite(b) ? finite : unknown;
}

static limit negated(limit a) { return a.kind == NUMBER ? number(-a.x) : is_finite(a) ? finite : unknown; }

static limit of_product(limit a, limit b) {
  if (a.kind == NUMBER && b.kind == NUMBER) return number(a.x * b.x);
  if ((is_number(a, 0) && is_finite(b)) || (is_number(b, 0) && is_finite(a))) return number(0);
  if (is_infinite(a) && b.kind == POSITIVE) return a;
  if (is_infinite(b) && a.kind == POSITIVE) return b;
  if (is_above(a) && is_above(b)) return positive;
  return is_finite(a) && is_finite(b) ? finite : unknown;
}

static limit of_quotient(limit a, limit b) {
  if (a.kind == NUMBER && b.kind == NUMBER) return number(a.x / b.x);
  if (is_infinite(b) && is_finite(a)) return number(0);
  if (!is_not_zero(b) || is_infinite(b)) return unknown;
  if (is_number(a, 0)) return a;
  if (is_infinite(a)) return b.kind == POSITIVE ? a : unknown;
  if (is_above(a) && is_above(b)) return positive;
  return is_finite(a) ? finite : unknown;
}

/* sign: 1 for the larger, -1 for the smaller. */
static limit of_extremum(limit a, limit b, double sign) {
  if (a.kind == NUMBER && b.kind == NUMBER) return number(sign > 0 ? fmax(a.x, b.x) : fmin(a.x, b.x));
  for (int i = 0; i < 2; i++) {
    const limit one = i == 0 ? a : b, other = i == 0 ? b : a;
    if (is_infinite(one) && is_finite(other)) return one.x * sign > 0 ? one : other;
  }
  if (!is_finite(a) || !is_finite(b)) return unknown;
  return (sign > 0 && (is_above(a) || is_above(b))) || (is_above(a) && is_above(b)) ? positive : finite;
}

/* A function of one number that is finite for finite ones. */
static limit of_function(limits *l, ir_op op, ir_ref r, limit a) {
  ir *g = l->g;
  const bool above = op == IR_EXP || op == IR_EXP2 || op == IR_SIGMOID || op == IR_SIGMOID2 ||
                     op == IR_SIGMOID2_ALTERNATING || op == IR_SOFTPLUS;
  if (is_number(a, -INFINITY) && (above || op == IR_RELU)) return number(0);
  if (is_number(a, INFINITY) && (op == IR_EXP || op == IR_EXP2 || op == IR_SOFTPLUS || op == IR_RELU)) return a;
  if (op == IR_ABS && is_infinite(a)) return number(INFINITY);
  if (op == IR_STOP_GRADIENT || op == IR_TO_REAL) return a;
  if (a.kind == NUMBER && isfinite(a.x) && ir_typeof(g, ir_get(g, r)->arg[0]) == IR_REAL) {
    double x;
    const ir_ref made = ir_op1(g, op, ir_real(g, a.x));
    if (ir_is_const(g, made, &x)) return number(x);
  }
  if (!is_finite(a)) return unknown;
  if (above) return positive;
  return op == IR_TANH || op == IR_ROUGH_TANH || op == IR_RELU || op == IR_SILU || op == IR_GELU || op == IR_ERF ||
                 op == IR_SIN || op == IR_COS || op == IR_FLOOR || op == IR_SIGN || op == IR_ABS
             ? finite
             : unknown;
}

static limit of_comparison(ir_op op, limit a, limit b) {
  double x = a.x, y = b.x;
  if (a.kind != NUMBER && is_infinite(b) && is_finite(a))
    x = 0;
  else if (b.kind != NUMBER && is_infinite(a) && is_finite(b))
    y = 0;
  else if (a.kind != NUMBER || b.kind != NUMBER)
    return unknown;
  return number(op == IR_LT ? x < y : op == IR_LE ? x <= y : op == IR_EQ ? x == y : x != y);
}

static limit limit_of(limits *l, ir_ref r);

static limit of_condition(limits *l, const ir_node *n) {
  const limit a = limit_of(l, n->arg[0]);
  if (n->op == IR_NOT) return a.kind == NUMBER ? number(a.x == 0) : unknown;
  if (n->op == IR_SELECT) {
    if (a.kind == NUMBER) return limit_of(l, n->arg[a.x != 0 ? 1 : 2]);
    const limit b = limit_of(l, n->arg[1]), c = limit_of(l, n->arg[2]);
    if (b.kind == NUMBER && is_number(c, b.x)) return b;
    return is_above(b) && is_above(c) && is_finite(b) && is_finite(c) ? positive
           : is_finite(b) && is_finite(c)                             ? finite
                                                                      : unknown;
  }
  if (a.kind == NUMBER && (a.x != 0) == (n->op == IR_OR)) return a;
  const limit b = limit_of(l, n->arg[1]);
  if (b.kind == NUMBER && (b.x != 0) == (n->op == IR_OR)) return b;
  return a.kind == NUMBER && b.kind == NUMBER ? b : unknown;
}

static limit of_variable(const limits *l, const ir_node *n) {
  switch (ir_var_of(n)) {
    case VAR_SCORE:
      return number(l->score);
    case VAR_SCALE:
    case VAR_HEADS:
    case VAR_HEADS_KV:
    case VAR_HEAD_DIM:
    case VAR_HEAD_DIM_V:
    case VAR_Q_LEN:
    case VAR_KV_LEN:
      return positive;
    default:
      return finite;
  }
}

static limit make(limits *l, ir_ref r) {
  const ir_node n = *ir_get(l->g, r);
  double x;
  if (ir_is_const(l->g, r, &x)) return number(x);
  if (n.op == IR_CONST_BOOL) return number(n.imm.integer != 0);
  if (n.op == IR_VAR) return of_variable(l, &n);
  if (n.op == IR_LOAD || n.op == IR_RANDOM) return n.type == IR_BOOL ? unknown : finite;
  if (n.op == IR_SELECT || n.op == IR_AND || n.op == IR_OR || n.op == IR_NOT) return of_condition(l, &n);
  const limit a = limit_of(l, n.arg[0]), b = n.nargs > 1 ? limit_of(l, n.arg[1]) : unknown;
  switch (n.op) {
    case IR_ADD:
      return of_sum(a, b);
    case IR_SUB:
    case IR_DIFFERENCE:
      return of_sum(a, negated(b));
    case IR_MUL:
      return n.arg[0] == n.arg[1] && is_infinite(a) ? number(INFINITY) : of_product(a, b);
    case IR_FMA:
      return of_sum(of_product(a, b), limit_of(l, n.arg[2]));
    case IR_DIV:
      return of_quotient(a, b);
    case IR_NEG:
      return negated(a);
    case IR_MAX:
    case IR_MIN:
      return of_extremum(a, b, n.op == IR_MAX ? 1 : -1);
    case IR_CLAMP:
      return of_extremum(of_extremum(a, b, 1), limit_of(l, n.arg[2]), -1);
    case IR_LT:
    case IR_LE:
    case IR_EQ:
    case IR_NE:
      return of_comparison((ir_op)n.op, a, b);
    default:
      return n.nargs == 1 ? of_function(l, (ir_op)n.op, r, a) : unknown;
  }
}

static limit limit_of(limits *l, ir_ref r) {
  if (r == IR_NONE) return unknown; /* out of memory, which lowering reports */
  if (r < l->count && l->memo[r].known) return l->memo[r];
  const limit made = make(l, r);
  if (r < l->count) l->memo[r] = made;
  return made;
}

bool limits_open(limits *l, arena *a, ir *g, double score) {
  *l = (limits){.a = a, .g = g, .score = score, .count = ir_count(g)};
  l->memo = arena_array(a, l->count, sizeof *l->memo);
  return l->memo != NULL;
}

bool limits_is_number(limits *l, ir_ref r, double *x) {
  const limit at = limit_of(l, r);
  *x = at.x;
  return at.kind == NUMBER;
}

bool limits_is_finite(limits *l, ir_ref r) { return is_finite(limit_of(l, r)); }

ir_ref limits_with_infinities(limits *l, ir_ref root) {
  enum { MOST = 8 };
  ir *g = l->g;
  ir_ref from[MOST], to[MOST];
  int n = 0;
  if (root == IR_NONE) return root;
  bool *under = arena_array(l->a, (size_t)root + 1, sizeof *under);
  if (under == NULL) return root;
  under[root] = true;
  for (ir_ref r = root; r > IR_NONE && n < MOST; r--) { /* users before arguments */
    double x;
    if (!under[r]) continue;
    const ir_node node = *ir_get(g, r);
    for (int i = 0; i < node.nargs; i++) under[node.arg[i]] = true;
    if (node.type != IR_REAL || ir_is_const(g, r, &x)) continue;
    const limit value = limit_of(l, r);
    if (!is_infinite(value)) continue;
    from[n] = r;
    to[n++] = ir_real(g, value.x);
  }
  return ir_substitute(g, root, from, to, n);
}
