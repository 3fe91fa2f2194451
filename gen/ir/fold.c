/* fold.c: builds ops, and folds constants and identities at construction, as far as they need no search. All rules are
 * exact for real numbers; only x * 0 = 0 differs for infinities. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gen/ir/graph.h"

#define EXACT_INT 9007199254740992.0 /* 2^53: up to here a double is an exact integer */

static ir_ref fold_constants(ir *g, const ir_node *n) {
  double v[3] = {0, 0, 0};
  if (n->nargs == 0 || n->nargs > 3 || ir_op_rule((ir_op)n->op) == REDUCES) return IR_NONE;
  for (int i = 0; i < n->nargs; ++i)
    if (!ir_const_value(g, n->arg[i], &v[i])) return IR_NONE;
  const double x = ir_value((ir_op)n->op, ir_operand_type(g, n), v[0], v[1], v[2]);
  if (x != x) return IR_NONE; /* keeps 0/0 as the user wrote it */
  if (n->type == IR_INT && fabs(x) > EXACT_INT) return IR_NONE;
  return ir_const_of(g, (ir_type)n->type, x);
}

static bool is_value(const ir *g, ir_ref r, double value) {
  double v;
  return ir_const_value(g, r, &v) && v == value;
}

static ir_ref arg_of(const ir *g, ir_ref r, int i) { return ir_get(g, r)->arg[i]; }

static ir_ref fold_add(ir *g, ir_type type, ir_ref a, ir_ref b) {
  (void)type;
  if (is_value(g, b, 0)) return a;
  if (ir_is_op(g, b, IR_NEG)) return ir_op2(g, IR_SUB, a, arg_of(g, b, 0));
  if (ir_is_op(g, a, IR_NEG)) return ir_op2(g, IR_SUB, b, arg_of(g, a, 0));
  return IR_NONE;
}

static ir_ref fold_sub(ir *g, ir_type type, ir_ref a, ir_ref b) {
  if (is_value(g, b, 0)) return a;
  if (is_value(g, a, 0)) return ir_op1(g, IR_NEG, b);
  if (a == b && type == IR_INT) return ir_int(g, 0);
  if (ir_is_op(g, b, IR_NEG)) return ir_op2(g, IR_ADD, a, arg_of(g, b, 0));
  return IR_NONE;
}

static ir_ref fold_mul(ir *g, ir_type type, ir_ref a, ir_ref b) {
  double c;
  if (is_value(g, b, 1)) return a;
  if (is_value(g, b, 0)) return ir_zero(g, type);
  if (is_value(g, b, -1)) return ir_op1(g, IR_NEG, a);
  if (ir_is_op(g, a, IR_NEG) && ir_const_value(g, b, &c))
    return ir_op2(g, IR_MUL, arg_of(g, a, 0), ir_const_of(g, type, -c));
  if (ir_is_op(g, a, IR_NEG)) return ir_op1(g, IR_NEG, ir_op2(g, IR_MUL, arg_of(g, a, 0), b));
  if (ir_is_op(g, b, IR_NEG)) return ir_op1(g, IR_NEG, ir_op2(g, IR_MUL, a, arg_of(g, b, 0)));
  return IR_NONE;
}

static ir_ref fold_div(ir *g, ir_ref a, ir_ref b) {
  double c;
  if (is_value(g, b, 1)) return a;
  if (is_value(g, a, 0)) return IR_NONE; /* 0 / 0 is not 0 */
  int exponent;
  if (ir_is_const(g, b, &c) && fabs(frexp(c, &exponent)) == 0.5 && exponent > -60 && exponent < 60)
    return ir_op2(g, IR_MUL, a, ir_real(g, 1 / c)); /* a power of two: the product is exact too */
  if (ir_is_op(g, a, IR_NEG) && ir_is_op(g, b, IR_NEG)) return ir_op2(g, IR_DIV, arg_of(g, a, 0), arg_of(g, b, 0));
  return IR_NONE;
}

static ir_ref fold_neg(ir *g, ir_type type, ir_ref a) {
  double c;
  if (ir_is_op(g, a, IR_NEG)) return arg_of(g, a, 0);
  if (ir_is_op(g, a, IR_SUB)) return ir_op2(g, IR_SUB, arg_of(g, a, 1), arg_of(g, a, 0));
  if (ir_is_op(g, a, IR_MUL) && ir_const_value(g, arg_of(g, a, 1), &c))
    return ir_op2(g, IR_MUL, arg_of(g, a, 0), ir_const_of(g, type, -c));
  return IR_NONE;
}

static ir_ref fold_bits(ir *g, ir_op op, ir_ref a, ir_ref b) {
  if (op == IR_BAND) return a == b || is_value(g, b, -1) ? a : is_value(g, b, 0) ? b : IR_NONE;
  if (op == IR_BXOR && a == b) return ir_int(g, 0);
  return (op == IR_BOR && a == b) || is_value(g, b, 0) ? a : IR_NONE; /* of shifts, too */
}

static ir_ref fold_min_max(ir *g, ir_op op, ir_ref a, ir_ref b) {
  if (a == b) return a;
  return is_value(g, b, op == IR_MIN ? INFINITY : -INFINITY) ? a : IR_NONE;
}

/* floor(i / c) of an integer i and an integral constant c becomes integer division: exact at any size, and
 * best for interval arithmetic. IR_NONE if x has another form. */
static ir_ref integer_floor(ir *g, ir_ref x) {
  double c;
  if (ir_is_op(g, x, IR_TO_REAL)) return arg_of(g, x, 0);
  const bool div = ir_is_op(g, x, IR_DIV), mul = ir_is_op(g, x, IR_MUL);
  if ((!div && !mul) || !ir_is_op(g, arg_of(g, x, 0), IR_TO_REAL) || !ir_is_const(g, arg_of(g, x, 1), &c))
    return IR_NONE;
  const double divisor = div ? c : 1 / c;
  if (divisor != floor(divisor) || divisor == 0 || fabs(divisor) > 2147483647.0 || (mul && 1 / divisor != c))
    return IR_NONE;
  if (mul) { /* only a power of two has an exact reciprocal */
    int exponent;
    if (fabs(frexp(divisor, &exponent)) != 0.5) return IR_NONE;
  }
  return ir_op2(g, IR_FLOORDIV, arg_of(g, arg_of(g, x, 0), 0), ir_int(g, (int64_t)divisor));
}

static ir_ref fold_floor(ir *g, ir_op op, ir_ref a) {
  if (op == IR_FLOOR && ir_is_op(g, a, IR_FLOOR)) return a;
  if (op != IR_FLOOR && ir_is_op(g, a, IR_FLOOR)) return ir_op1(g, IR_FLOOR_INT, arg_of(g, a, 0));
  if (op == IR_TO_INT) return ir_is_op(g, a, IR_TO_REAL) ? arg_of(g, a, 0) : IR_NONE;
  const ir_ref i = integer_floor(g, a);
  return i == IR_NONE ? IR_NONE : op == IR_FLOOR ? ir_to_real(g, i) : i;
}

static ir_ref fold_pow(ir *g, ir_ref a, ir_ref b) {
  double c;
  if (!ir_is_const(g, b, &c)) return IR_NONE;
  if (c == 0) return ir_real(g, 1);
  if (c == 1) return a;
  if (c == 0.5) return ir_op1(g, IR_SQRT, a);
  if (c != 2 && c != 3 && c != 4) return IR_NONE;
  const ir_ref square = ir_op2(g, IR_MUL, a, a);
  return c == 2 ? square : ir_op2(g, IR_MUL, square, c == 3 ? a : square);
}

/* Compares a converted INT with a constant or another converted INT as INT. */
static ir_ref compare_as_int(ir *g, ir_op op, ir_ref a, ir_ref b) {
  const bool ia = ir_is_op(g, a, IR_TO_REAL), ib = ir_is_op(g, b, IR_TO_REAL);
  if (ia && ib) return ir_op2(g, op, arg_of(g, a, 0), arg_of(g, b, 0));
  double c;
  if ((!ia && !ib) || !ir_is_const(g, ia ? b : a, &c) || !(fabs(c) < EXACT_INT / 2)) return IR_NONE;
  if (op == IR_EQ || op == IR_NE) {
    if (c != floor(c)) return ir_bool(g, op == IR_NE);
  } else {
    /* i < c is i < ceil(c), i <= c is i <= floor(c); c < i is floor(c) < i, c <= i is ceil(c) <= i */
    c = (op == IR_LT) == ia ? ceil(c) : floor(c);
  }
  const ir_ref constant = ir_int(g, (int64_t)c);
  return ia ? ir_op2(g, op, arg_of(g, a, 0), constant) : ir_op2(g, op, constant, arg_of(g, b, 0));
}

static ir_ref fold_compare(ir *g, ir_op op, ir_ref a, ir_ref b) {
  const bool integer = ir_typeof(g, a) == IR_INT;
  if (a == b && op == IR_LT) return ir_bool(g, false);
  if (a == b && integer) return ir_bool(g, op == IR_LE || op == IR_EQ); /* a NaN differs from itself */
  return integer ? IR_NONE : compare_as_int(g, op, a, b);
}

/* A sum of 64 bits, which wraps around, is not taken apart. */
static void split_constant(const ir *g, ir_ref r, ir_ref *base, double *constant) {
  *base = r;
  *constant = 0;
  if (ir_const_value(g, r, constant))
    *base = IR_NONE;
  else if (ir_is_op(g, r, IR_ADD) && !ir_is_wide(g, r) && ir_const_value(g, arg_of(g, r, 1), constant))
    *base = arg_of(g, r, 0);
}

bool ir_order_of(const ir *g, ir_ref r, ir_order *o) {
  const ir_node *n = ir_get(g, r);
  if ((n->op != IR_LT && n->op != IR_LE) || ir_typeof(g, n->arg[0]) != IR_INT) return false;
  double left, right;
  split_constant(g, n->arg[0], &o->low, &left);
  split_constant(g, n->arg[1], &o->high, &right);
  o->k = right - left - (n->op == IR_LT);
  return true;
}

bool ir_opposite(const ir *g, ir_ref x, ir_ref y) {
  const ir_node *a = ir_get(g, x), *b = ir_get(g, y);
  if (a->op == IR_NOT && a->arg[0] == y) return true;
  if (b->op == IR_NOT && b->arg[0] == x) return true;
  if ((a->op == IR_EQ && b->op == IR_NE) || (a->op == IR_NE && b->op == IR_EQ))
    return a->arg[0] == b->arg[0] && a->arg[1] == b->arg[1];
  ir_order o, p; /* for REALs, a NaN makes both x < y and y <= x false */
  return ir_order_of(g, x, &o) && ir_order_of(g, y, &p) && o.low == p.high && o.high == p.low && p.k == -o.k - 1;
}

static ir_ref fold_logic(ir *g, ir_op op, ir_ref a, ir_ref b) {
  const bool neutral = op == IR_AND; /* a and true = a, a or false = a */
  if (a == b || is_value(g, b, neutral)) return a;
  if (is_value(g, b, !neutral) || ir_opposite(g, a, b)) return ir_bool(g, !neutral);
  return IR_NONE;
}

static ir_ref fold_not(ir *g, ir_ref a) {
  const ir_node n = *ir_get(g, a);
  if (n.op == IR_NOT) return n.arg[0];
  if (n.op == IR_EQ) return ir_op2(g, IR_NE, n.arg[0], n.arg[1]);
  if (n.op == IR_NE) return ir_op2(g, IR_EQ, n.arg[0], n.arg[1]);
  if ((n.op == IR_LT || n.op == IR_LE) && ir_typeof(g, n.arg[0]) == IR_INT)
    return ir_op2(g, n.op == IR_LT ? IR_LE : IR_LT, n.arg[1], n.arg[0]);
  return IR_NONE;
}

static ir_ref fold_select(ir *g, ir_ref c, ir_ref a, ir_ref b) {
  double v;
  if (a == b) return a;
  if (ir_const_value(g, c, &v)) return v != 0 ? a : b;
  if (ir_is_op(g, c, IR_NOT)) return ir_op3(g, IR_SELECT, arg_of(g, c, 0), b, a);
  if (ir_is_op(g, a, IR_SELECT) && arg_of(g, a, 0) == c) return ir_op3(g, IR_SELECT, c, arg_of(g, a, 1), b);
  if (ir_is_op(g, b, IR_SELECT) && arg_of(g, b, 0) == c) return ir_op3(g, IR_SELECT, c, a, arg_of(g, b, 2));
  if (ir_typeof(g, a) != IR_BOOL) return IR_NONE;
  if (ir_const_value(g, a, &v)) return v != 0 ? ir_op2(g, IR_OR, c, b) : ir_op2(g, IR_AND, ir_op1(g, IR_NOT, c), b);
  if (ir_const_value(g, b, &v)) return v != 0 ? ir_op2(g, IR_OR, ir_op1(g, IR_NOT, c), a) : ir_op2(g, IR_AND, c, a);
  return IR_NONE;
}

static ir_ref fold_fma(ir *g, ir_ref a, ir_ref b, ir_ref c) {
  double x, y;
  const bool ca = ir_is_const(g, a, &x), cb = ir_is_const(g, b, &y);
  if ((ca && (x == 0 || x == 1)) || (cb && (y == 0 || y == 1)) || (ca && cb) || is_value(g, c, 0))
    return ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, a, b), c);
  return IR_NONE;
}

/* Returns the node that n folds to, or IR_NONE if n does not fold. */
static ir_ref fold(ir *g, const ir_node *n) {
  const ir_ref constant = fold_constants(g, n);
  if (constant != IR_NONE || g->failed) return constant;
  const ir_op op = (ir_op)n->op;
  const ir_type type = (ir_type)n->type;
  const ir_ref a = n->arg[0], b = n->arg[1];
  switch (op) {
    case IR_ADD:
      return fold_add(g, type, a, b);
    case IR_SUB:
      return fold_sub(g, type, a, b);
    case IR_MUL:
      return fold_mul(g, type, a, b);
    case IR_DIV:
      return fold_div(g, a, b);
    case IR_NEG:
      return fold_neg(g, type, a);
    case IR_FMA:
      return fold_fma(g, a, b, n->arg[2]);
    case IR_MIN:
    case IR_MAX:
      return fold_min_max(g, op, a, b);
    case IR_BAND:
    case IR_BOR:
    case IR_BXOR:
    case IR_SHL:
    case IR_SHR:
      return fold_bits(g, op, a, b);
    case IR_FLOORDIV:
      return type == IR_INT && is_value(g, b, 1) ? a : IR_NONE;
    case IR_MOD:
      return type == IR_INT && is_value(g, b, 1) ? ir_int(g, 0) : IR_NONE;
    case IR_FLOOR:
    case IR_FLOOR_INT:
    case IR_TO_INT:
      return fold_floor(g, op, a);
    case IR_POW:
      return fold_pow(g, a, b);
    case IR_LT:
    case IR_LE:
    case IR_EQ:
    case IR_NE:
      return fold_compare(g, op, a, b);
    case IR_AND:
    case IR_OR:
      return fold_logic(g, op, a, b);
    case IR_NOT:
      return fold_not(g, a);
    case IR_SELECT:
      return fold_select(g, a, b, n->arg[2]);
    case IR_STOP_GRADIENT:
      return type == IR_INT ? a : IR_NONE;
    default:
      return IR_NONE;
  }
}

/* ---- ops ---- */

/* Converts arguments to the types that the rule asks for. */
static void convert(ir *g, ir_rule rule, ir_ref *arg, int n) {
  const int first = rule == SELECTS ? 1 : 0;
  bool real = rule == REALS || rule == REDUCES;
  if (rule == NUMS || rule == COMPARES || rule == SELECTS)
    for (int i = first; i < n; ++i) real = real || ir_typeof(g, arg[i]) == IR_REAL;
  for (int i = 0; (rule == INTS || rule == GATHERS) && i < n; ++i) assert(ir_typeof(g, arg[i]) == IR_INT);
  if (real)
    for (int i = first; i < n; ++i) arg[i] = ir_to_real(g, arg[i]);
}

static bool is_commutative(ir_op op) {
  return op == IR_ADD || op == IR_SUM || op == IR_MUL || op == IR_PRODUCT || op == IR_MIN || op == IR_MAX ||
         op == IR_EQ || op == IR_NE || op == IR_AND || op == IR_OR || op == IR_BAND || op == IR_BOR || op == IR_BXOR;
}

/* Orders operands: constants last, otherwise the older node first. */
static void order(const ir *g, ir_ref *arg) {
  double unused;
  const bool c0 = ir_const_value(g, arg[0], &unused), c1 = ir_const_value(g, arg[1], &unused);
  if (c0 != c1 ? c0 : arg[0] > arg[1]) {
    const ir_ref t = arg[0];
    arg[0] = arg[1];
    arg[1] = t;
  }
}

static ir_ref make(ir *g, ir_op op, const ir_ref *args, int n) {
  assert((unsigned)op < IR_OP_COUNT && ir_op_arity(op) == n);
  ir_node node = {.op = (uint16_t)op, .nargs = (uint8_t)n};
  for (int i = 0; i < n; ++i) {
    if (args[i] == IR_NONE) return ir_fail(g);
    node.arg[i] = args[i];
  }
  const ir_rule rule = ir_op_rule(op);
  if (rule == INT_TO_REAL && ir_typeof(g, args[0]) == IR_REAL) return args[0];
  if (rule == REAL_TO_INT && ir_typeof(g, args[0]) == IR_INT) return args[0];
  convert(g, rule, node.arg, n);
  if (g->failed) return IR_NONE;
  if (is_commutative(op)) order(g, node.arg);
  node.type = (uint8_t)ir_result_type(g, op, node.arg);
  const ir_ref folded = fold(g, &node);
  if (folded != IR_NONE) return folded;
  return g->failed ? IR_NONE : ir_intern(g, &node);
}

ir_ref ir_op1(ir *g, ir_op op, ir_ref a) { return make(g, op, &a, 1); }

ir_ref ir_op2(ir *g, ir_op op, ir_ref a, ir_ref b) { return make(g, op, (const ir_ref[]){a, b}, 2); }

ir_ref ir_op3(ir *g, ir_op op, ir_ref a, ir_ref b, ir_ref c) { return make(g, op, (const ir_ref[]){a, b, c}, 3); }

ir_ref ir_random(ir *g, const ir_ref at[4]) { return make(g, IR_RANDOM, at, 4); }

ir_ref ir_to_real(ir *g, ir_ref a) {
  if (a == IR_NONE) return ir_fail(g);
  const ir_type type = ir_typeof(g, a);
  assert(type != IR_BOOL);
  return type == IR_INT ? ir_op1(g, IR_TO_REAL, a) : a;
}

ir_ref ir_rebuild(ir *g, ir_ref r, const ir_ref *args) {
  if (r == IR_NONE) return ir_fail(g);
  const ir_node node = *ir_get(g, r);
  if (node.nargs == 0) return r;
  if (memcmp(args, node.arg, node.nargs * sizeof *args) == 0) return r;
  const uint32_t line = g->line;
  g->line = node.line;
  ir_list list = {.count = 0};
  if (node.op == IR_LISTED) {
    list = ir_list_of(&node);
    list.x = args[0];
    for (int i = 1; i < node.nargs; ++i) list.index[i - 1] = args[i];
  }
  const ir_ref made = node.op == IR_LOAD ? ir_load(g, (uint32_t)node.imm.integer, (ir_type)node.type, args, node.nargs)
                      : node.op == IR_LISTED ? ir_listed(g, &list)
                                             : make(g, (ir_op)node.op, args, node.nargs);
  g->line = line;
  return made;
}
