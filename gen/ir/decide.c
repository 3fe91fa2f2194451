/* decide.c: evaluates what a comparison reads in the type that kernels compare it in, one rounding an operation.
 *
 * A node that is sharp (ir_is_sharp) reads a cone of REAL operations. A last bit of it decides, so every evaluator has
 * to round it alike: the CPU path, which computes in double, kernels of each type, and torch, whose rule this is.
 * Values that no such node reads are left as they are: a node of both is built twice. Conditions in gradients are sharp
 * nodes, too. */
#include "gen/ir/graph.h"
#include "gen/ir/passes.h"

/* What the REAL operations under a node read. */
enum { READS_DOUBLE = 1, READS_FLOAT = 2, READS_INEXACT = 4 };

/* CONTRACTED: ROUNDED with fused multiply-adds. */
typedef enum style { AS_IS, ROUNDED, EXACT, COARSE, CONTRACTED, NUM_STYLES } style;

typedef struct decider {
  ir *g;
  const ir_decisions *rule;
  ir_ref top;
  uint8_t *reads;           /* [top + 1] */
  uint8_t *wanted;          /* [top + 1], a bit for each style */
  ir_ref *memo[NUM_STYLES]; /* [top + 1], by style */
} decider;

/* Whether it returns one of its REAL arguments, or a whole number below them: nothing to round. */
static bool keeps_type(ir_op op) {
  return op == IR_NEG || op == IR_MIN || op == IR_MAX || op == IR_CLAMP || op == IR_ABS || op == IR_SIGN ||
         op == IR_FLOOR || op == IR_RELU || op == IR_SELECT || op == IR_STOP_GRADIENT || op == IR_RANDOM ||
         op == IR_ROUND_FLOAT || op == IR_ROUND_COARSE;
}

static uint8_t reads_of(const decider *d, const ir_node *n) {
  uint8_t all = ir_op_exact((ir_op)n->op) || n->op == IR_VAR ? 0 : READS_INEXACT;
  if (n->op == IR_LOAD) return d->rule->double_inputs >> n->imm.integer & 1 ? READS_DOUBLE : READS_FLOAT;
  if (n->op == IR_VAR && ir_var_of(n) != VAR_SCALAR) all |= READS_INEXACT | (d->rule->doubles ? READS_DOUBLE : 0);
  for (int k = 0; k < n->nargs; ++k)
    if (ir_typeof(d->g, n->arg[k]) == IR_REAL) all |= d->reads[n->arg[k]];
  return all;
}

/* The style of the cone that a sharp node reads. Constants, scalars and positions take the type of what they are
 * compared with, and where there is nothing else, the call's. */
static style style_of(const decider *d, const ir_node *n) {
  const ir_decisions *rule = d->rule;
  uint8_t all = 0;
  for (int k = 0; k < n->nargs; ++k)
    if (ir_typeof(d->g, n->arg[k]) == IR_REAL) all |= d->reads[n->arg[k]];
  const bool in_double = (all & READS_DOUBLE) != 0 || (rule->doubles && (all & READS_FLOAT) == 0);
  if (!in_double && (rule->doubles || !rule->of_kernel)) return ROUNDED;
  return rule->of_kernel && (all & READS_INEXACT) == 0 ? EXACT : AS_IS;
}

static style style_of_arg(const decider *d, const ir_node *n, style face, ir_ref arg) {
  if (ir_typeof(d->g, arg) != IR_REAL) return AS_IS;
  if (d->rule->values && ir_is_wide(d->g, arg)) return AS_IS; /* kernels compute that in double, too */
  if (!ir_is_sharp(d->g, n) || face == ROUNDED || face == EXACT) return face;
  return style_of(d, n);
}

static style style_of_root(const decider *d, ir_ref r) {
  if (d->rule->coarse) return ir_typeof(d->g, r) == IR_REAL ? COARSE : AS_IS;
  if (!d->rule->values || ir_typeof(d->g, r) != IR_REAL || ir_is_wide(d->g, r)) return AS_IS;
  return d->rule->contracts ? CONTRACTED : ROUNDED;
}

static void want(decider *d, const ir_ref *roots, int n) {
  for (int i = 0; i < n; ++i)
    if (roots[i] != IR_NONE) d->wanted[roots[i]] = (uint8_t)(1 << style_of_root(d, roots[i]));
  for (ir_ref r = 1; r <= d->top; ++r)
    if (ir_typeof(d->g, r) == IR_REAL) d->reads[r] = reads_of(d, ir_get(d->g, r));
  for (ir_ref r = d->top; r > 0; --r)
    for (int face = AS_IS; face < NUM_STYLES; ++face) {
      if ((d->wanted[r] >> face & 1) == 0) continue;
      const ir_node *node = ir_get(d->g, r);
      for (int k = 0; k < node->nargs; ++k) {
        d->wanted[node->arg[k]] |= (uint8_t)(1 << style_of_arg(d, node, (style)face, node->arg[k]));
        if (node->op == IR_MOD) d->wanted[node->arg[k]] |= 1 << AS_IS; /* see whole_period */
      }
    }
}

static ir_ref rounded(ir *g, ir_op op, ir_ref r) { return keeps_type(op) ? r : ir_op1(g, IR_ROUND_FLOAT, r); }

/* What is given, or an integer, is exact in double; not constants that others were merged into. */
static ir_ref coarse(const decider *d, ir_op op, ir_ref r) {
  const bool given = op == IR_LOAD || op == IR_VAR || op == IR_TO_REAL || (op == IR_CONST_REAL && !d->rule->contracts);
  return given || keeps_type(op) ? r : ir_op1(d->g, IR_ROUND_COARSE, r);
}

/* op_floordiv of float rounds the quotient before it takes the whole number below it. */
static ir_ref rounded_floordiv(ir *g, ir_ref x, ir_ref y) {
  return ir_op1(g, IR_FLOOR, ir_op1(g, IR_ROUND_FLOAT, ir_op2(g, IR_DIV, x, y)));
}

/* x % y as a value: the remainder in double whose number of whole periods is that of the rounded arguments. */
static ir_ref whole_period(ir *g, ir_ref value, ir_ref y, ir_ref in_float) {
  const ir_ref part = ir_op2(g, IR_DIV, ir_op2(g, IR_SUB, in_float, value), y);
  const ir_ref periods = ir_op1(g, IR_FLOOR, ir_op2(g, IR_ADD, part, ir_real(g, 0.5)));
  const ir_ref moved = ir_op2(g, IR_ADD, value, ir_op2(g, IR_MUL, y, periods));
  return ir_op3(g, IR_SELECT, ir_op2(g, IR_EQ, periods, ir_real(g, 0)), value, moved);
}

static ir_op exact_op(ir_op op) {
  return op == IR_ADD   ? IR_SUM
         : op == IR_SUB ? IR_DIFFERENCE
         : op == IR_MUL ? IR_PRODUCT
         : op == IR_DIV ? IR_QUOTIENT
                        : op;
}

/* The product that is number k of a sum's arguments, without its rounding. */
static ir_ref product_of(const decider *d, const ir_node *sum, style face, int k) {
  const ir_node *n = ir_get(d->g, sum->arg[k]);
  const style own = style_of_arg(d, sum, face, sum->arg[k]);
  if (n->op != IR_MUL || n->type != IR_REAL || own == AS_IS) return IR_NONE; /* of 64 bits it is as it is */
  const ir_ref x = n->arg[0], y = n->arg[1];
  return ir_op2(d->g, IR_MUL, d->memo[style_of_arg(d, n, own, x)][x], d->memo[style_of_arg(d, n, own, y)][y]);
}

static void contract(decider *d, const ir_node *n, style face, ir_ref args[4]) {
  if (n->type != IR_REAL || (n->op != IR_ADD && n->op != IR_SUB)) return;
  for (int k = 0; k < 2; ++k) {
    const ir_ref product = product_of(d, n, face, k);
    if (product == IR_NONE) continue;
    args[k] = product;
    return;
  }
}

static ir_ref made_of(decider *d, ir_ref r, const ir_node *n, style face) {
  ir *g = d->g;
  ir_ref args[4] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
  style of_args = face;
  for (int k = 0; k < n->nargs; ++k) {
    const style s = style_of_arg(d, n, face, n->arg[k]);
    if (ir_typeof(g, n->arg[k]) == IR_REAL) of_args = s;
    args[k] = d->memo[s][n->arg[k]];
  }
  const bool real = n->type == IR_REAL;
  if (face == CONTRACTED || (face == COARSE && d->rule->contracts)) contract(d, n, face, args);
  if (real && n->op == IR_FLOORDIV && of_args == ROUNDED) return rounded_floordiv(g, args[0], args[1]);
  if (real && n->op == IR_MOD && of_args == ROUNDED && (face == AS_IS || face == COARSE))
    return whole_period(g, ir_op2(g, IR_MOD, d->memo[AS_IS][n->arg[0]], d->memo[AS_IS][n->arg[1]]),
                        d->memo[AS_IS][n->arg[1]], ir_op2(g, IR_MOD, args[0], args[1]));
  if (real && face == EXACT && exact_op((ir_op)n->op) != (ir_op)n->op)
    return ir_op2(g, exact_op((ir_op)n->op), args[0], args[1]);
  const ir_ref made = ir_rebuild(g, r, args);
  if (!real || face == AS_IS || face == EXACT) return made;
  return face == COARSE ? coarse(d, (ir_op)n->op, made) : rounded(g, (ir_op)n->op, made);
}

static void run(decider *d, ir_ref *roots, int n) {
  want(d, roots, n);
  for (ir_ref r = 1; r <= d->top && !d->g->failed; ++r)
    for (int face = AS_IS; face < NUM_STYLES; ++face) {
      if ((d->wanted[r] >> face & 1) == 0) continue;
      const ir_node node = *ir_get(d->g, r);
      ir_set_line(d->g, node.line);
      d->memo[face][r] = made_of(d, r, &node, (style)face);
    }
  for (int i = 0; i < n && !d->g->failed; ++i)
    if (roots[i] != IR_NONE) roots[i] = d->memo[style_of_root(d, roots[i])][roots[i]];
}

void ir_decide(ir *g, ir_ref *roots, int n, const ir_decisions *rule) {
  decider d = {.g = g, .rule = rule};
  const uint32_t line = g->line;
  for (int i = 0; i < n; ++i)
    if (roots[i] > d.top) d.top = roots[i];
  const size_t count = (size_t)d.top + 1;
  d.memo[0] = ir_push(g, NUM_STYLES * count, sizeof(ir_ref));
  if (d.memo[0] == NULL) return;
  for (int i = 1; i < NUM_STYLES; ++i) d.memo[i] = d.memo[i - 1] + count;
  d.reads = ir_push(g, 2 * count, 1);
  if (d.reads != NULL) {
    d.wanted = d.reads + count;
    run(&d, roots, n);
    ir_pop(g);
  }
  ir_pop(g);
  ir_set_line(g, line);
}
