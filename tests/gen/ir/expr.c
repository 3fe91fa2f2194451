#include "tests/gen/ir/expr.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "gen/ir/graph.h"

const ir_var point_int_var[POINT_INTS] = {VAR_Q, VAR_KV, VAR_H, VAR_Q_LEN};

uint64_t rng_next(rng *r) {
  r->state += 0x9e3779b97f4a7c15u;
  uint64_t z = r->state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int rng_below(rng *r, int n) { return (int)(rng_next(r) % (uint64_t)n); }

double rng_between(rng *r, double lo, double hi) { return lo + (hi - lo) * ((double)(rng_next(r) >> 11) * 0x1p-53); }

double point_get(const point *p, ir_var v, uint32_t index) {
  if (v == VAR_SCALAR) return p->real[index];
  for (int i = 0; i < POINT_INTS; ++i)
    if (point_int_var[i] == v) return p->integer[i];
  abort();
}

/* ---- evaluation ---- */

static double to_float(double x, rounding how) {
  if (how == IN_DOUBLE) return x;
  const double f = (double)(float)x;
  return how == IN_FAST && fabs(f) < 1.1754943508222875e-38 ? copysign(0, f) : f;
}

static double with_error(ir_op op, double x, rng *noise) {
  const double e = rng_between(noise, -0x1p-22, 0x1p-22);
  if (!(fabs(x) < HUGE_VAL)) return x;
  switch (op) {
    case IR_DIV:
    case IR_EXP2:
    case IR_SQRT:
    case IR_RSQRT:
    case IR_SIGMOID:
      return x * (1 + e);
    case IR_EXP:
      return x * (1 + 32 * e); /* includes the rounding of the product with log2(e) */
    case IR_LOG:
    case IR_LOG2:
    case IR_TANH:
    case IR_SOFTPLUS:
    case IR_ERF:
    case IR_GELU:
    case IR_SILU:
      return x + e * (1 + fabs(x));
    default:
      return x;
  }
}

static double evaluate(const ir *g, const ir_node *n, const point *p, rounding how, rng *noise, const double *value) {
  double v;
  if (n->op == IR_VAR) return point_get(p, ir_var_of(n), ir_index_of(n));
  if (n->op == IR_CONST_REAL) return to_float(n->imm.real, how);
  if (n->op == IR_CONST_INT || n->op == IR_CONST_BOOL) return (double)n->imm.integer;
  assert(n->op != IR_LOAD && n->nargs <= 3);
  const double x = value[n->arg[0]], y = value[n->arg[1]], z = value[n->arg[2]];
  if (n->op == IR_FLOORDIV && n->type == IR_REAL && how != IN_DOUBLE) return floor(to_float(x / y, how));
  v = ir_value((ir_op)n->op, ir_operand_type(g, n), x, y, z);
  if (n->type != IR_REAL) return v;
  if (how == IN_FAST) v = with_error((ir_op)n->op, v, noise);
  return to_float(v, how);
}

void plain_eval(const ir *g, const point *p, rounding how, rng *noise, double *value) {
  value[0] = 0;
  for (ir_ref r = 1; r < ir_count(g); ++r) value[r] = evaluate(g, ir_get(g, r), p, how, noise, value);
}

double largest_value(const ir *g, const ir_ref *roots, int n, const double *value) {
  double most = 0;
  bool *reached = calloc(ir_count(g), sizeof *reached);
  for (int i = 0; i < n; ++i) reached[roots[i]] = true;
  for (ir_ref r = ir_count(g) - 1; r > 0; --r) {
    if (!reached[r]) continue;
    for (int k = 0; k < ir_get(g, r)->nargs; ++k) reached[ir_get(g, r)->arg[k]] = true;
    const double x = fabs(value[r]);
    if (!(x <= most)) most = x < HUGE_VAL ? x : HUGE_VAL;
  }
  free(reached);
  return most;
}

static void fill_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  for (int i = 0; i < lanes; ++i) out[i] = point_get(user, v, index);
}

double program_eval(arena *a, const ir *g, ir_ref root, const point *p) {
  const ir_program *program = ir_program_new(a, g, &root, 1);
  assert(program != NULL);
  void *scratch = malloc(ir_program_scratch(program));
  point copy = *p;
  const ir_env env = {.user = &copy, .variable = fill_variable};
  double result = 0, *out = &result;
  ir_program_run(program, &env, 1, scratch, &out);
  free(scratch);
  return result;
}

/* ---- random graphs ---- */

int op_accepts(ir_op op, ir_type type) {
  switch (ir_op_rule(op)) {
    case REALS:
    case REAL_TO_INT:
      return type == IR_REAL;
    case INT_TO_REAL:
    case INTS:
      return type == IR_INT;
    case NUMS:
    case COMPARES:
      return type != IR_BOOL;
    case BOOLS:
      return type == IR_BOOL;
    case SELECTS:
      return 1;
    default:
      return 0;
  }
}

enum { POOL = 64 };
typedef struct pool {
  ir_ref node[3][POOL];
  int count[3];
  ir_ref last[3];
} pool; /* last: the latest node that is not a leaf */

static void put(pool *p, ir_type type, ir_ref r) {
  if (p->count[type] < POOL) p->node[type][p->count[type]++] = r;
}

/* Prefers recent nodes, so that graphs grow deep. */
static ir_ref draw(pool *p, rng *r, ir_type type) {
  const int n = p->count[type], window = rng_below(r, 4) != 0 && n > 5 ? 5 : n;
  return p->node[type][n - 1 - rng_below(r, window)];
}

static ir_ref random_leaf(ir *g, rng *r, ir_type type) {
  static const double reals[] = {0, 1, -1, 0.5, 2, 3, 0.1, -2.5, 64, 1e-3};
  static const int ints[] = {0, 1, -1, 2, 3, 7, 8, -3, 16, 100};
  const int k = rng_below(r, 10);
  if (type == IR_REAL)
    return k < 5 ? ir_variable(g, VAR_SCALAR, (uint32_t)(k % POINT_REALS)) : ir_real(g, reals[rng_below(r, 10)]);
  if (type == IR_INT)
    return k < 5 ? ir_variable(g, point_int_var[k % POINT_INTS], 0) : ir_int(g, ints[rng_below(r, 10)]);
  return ir_op2(g, IR_LT, ir_variable(g, VAR_KV, 0), ir_variable(g, VAR_Q, 0));
}

static ir_ref random_op(ir *g, rng *r, pool *p, ir_op op) {
  ir_type type = (ir_type)rng_below(r, 3);
  while (!op_accepts(op, type)) type = (ir_type)rng_below(r, 3);
  ir_ref arg[3];
  const int n = ir_op_arity(op);
  for (int k = 0; k < n; ++k) arg[k] = draw(p, r, ir_op_rule(op) == SELECTS && k == 0 ? IR_BOOL : type);
  return n == 1   ? ir_op1(g, op, arg[0])
         : n == 2 ? ir_op2(g, op, arg[0], arg[1])
                  : ir_op3(g, op, arg[0], arg[1], arg[2]);
}

random_expr random_build(ir *g, rng *r, int size, op_set avoid) {
  pool p = {.count = {0, 0, 0}};
  for (int t = 0; t < 3; ++t)
    for (int i = 0; i < 3; ++i) put(&p, (ir_type)t, random_leaf(g, r, (ir_type)t));
  while (size > 0) {
    if (rng_below(r, 5) == 0) {
      const ir_type type = (ir_type)rng_below(r, 2) == IR_BOOL ? IR_INT : IR_REAL;
      put(&p, type, random_leaf(g, r, type));
    }
    const ir_op op = (ir_op)rng_below(r, IR_OP_COUNT);
    const ir_rule rule = ir_op_rule(op);
    if (rule == LEAF || rule == GATHERS || rule == REDUCES || (avoid >> op & 1) != 0) continue;
    const ir_ref made = random_op(g, r, &p, op);
    put(&p, ir_typeof(g, made), made);
    if (ir_get(g, made)->nargs > 0) p.last[ir_typeof(g, made)] = made;
    --size;
  }
  random_expr e = {.real = p.last[IR_REAL], .integer = p.last[IR_INT], .boolean = p.last[IR_BOOL]};
  if (e.real == IR_NONE) e.real = p.node[IR_REAL][0];
  if (e.integer == IR_NONE) e.integer = p.node[IR_INT][0];
  if (e.boolean == IR_NONE) e.boolean = p.node[IR_BOOL][0];
  return e;
}
