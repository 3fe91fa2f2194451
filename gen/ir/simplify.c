/* simplify.c: rewrites expressions from the leaves up.
 *
 * A REAL expression has two forms. Where its value only enters smoothly it may be rearranged (exact in real
 * arithmetic); where it feeds a comparison or a floor, a last bit decides, and only rewrites that keep every
 * bit are made. A node is rebuilt once for each form that is needed. INT and BOOL are exact and have one
 * form. */
#include "gen/ir/graph.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

enum { EXACT = 0, SMOOTH = 1 };

typedef struct simplifier {
  ir *g;
  ir_ref top;
  ir_ref *memo[2]; /* [top + 1] */
  uint8_t *wanted; /* [top + 1], a bit for each form */
} simplifier;

bool ir_is_sharp(const ir *g, const ir_node *n) {
  if (n->nargs == 0 || ir_operand_type(g, n) != IR_REAL) return false;
  const ir_rule rule = ir_op_rule((ir_op)n->op);
  return rule == COMPARES || rule == REAL_TO_INT || n->op == IR_FLOOR || n->op == IR_FLOORDIV || n->op == IR_MOD ||
         n->op == IR_SIGN;
}

static int face_of_arg(const ir *g, const ir_node *n, int face, ir_ref arg) {
  if (ir_typeof(g, arg) != IR_REAL) return SMOOTH;
  return ir_is_sharp(g, n) ? EXACT : face;
}

static void want(simplifier *s, const ir_ref *roots, int n) {
  for (int i = 0; i < n; ++i)
    if (roots[i] != IR_NONE) s->wanted[roots[i]] = 1 << SMOOTH;
  for (ir_ref r = s->top; r > 0; --r)
    for (int face = 0; face < 2; ++face) {
      if ((s->wanted[r] >> face & 1) == 0) continue;
      const ir_node *node = ir_get(s->g, r);
      for (int k = 0; k < node->nargs; ++k)
        s->wanted[node->arg[k]] |= (uint8_t)(1 << face_of_arg(s->g, node, face, node->arg[k]));
    }
}

/* ---- rules ---- */

static ir_bounds unknown_variable(void *user, ir_var v, uint32_t index, ir_type type) {
  (void)user, (void)v, (void)index, (void)type;
  return (ir_bounds){.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
}

static ir_bounds unknown_load(void *user, uint32_t input, ir_type type, int n_index, const ivi *index) {
  (void)user, (void)input, (void)type, (void)n_index, (void)index;
  return (ir_bounds){.real = iv_all(), .integer = ivi_all(), .boolean = tri_all()};
}

/* Rules that hold for all values of the variables. */
static bool never_zero(ir *g, ir_ref r) {
  ir_bounds *scratch = ir_push(g, g->count, sizeof *scratch);
  if (scratch == NULL) return false;
  const ir_bounds_env env = {.user = NULL, .variable = unknown_variable, .load = unknown_load};
  ir_bounds b;
  ir_interval(g, &r, 1, &env, scratch, &b);
  ir_pop(g);
  return b.real.lo > 0 || b.real.hi < 0;
}

/* x / x and (x * y) / x, where x provably is not 0. */
static ir_ref cancel_quotient(ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, r);
  const ir_ref a = n.arg[0], b = n.arg[1];
  const ir_node top = *ir_get(g, a);
  const bool times = top.op == IR_MUL && (top.arg[0] == b || top.arg[1] == b);
  if ((a != b && !times) || !never_zero(g, b)) return r;
  if (a == b) return ir_real(g, 1);
  return top.arg[top.arg[0] == b ? 1 : 0];
}

/* (y / x) * x */
static ir_ref cancel_product(ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, r);
  for (int k = 0; k < 2; ++k) {
    const ir_node q = *ir_get(g, n.arg[k]);
    if (q.op == IR_DIV && q.arg[1] == n.arg[1 - k] && never_zero(g, q.arg[1])) return q.arg[0];
  }
  return r;
}

/* not (a and b) is (not a) or (not b), so that negations end at comparisons and leaves. */
static ir_ref push_not(ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, ir_get(g, r)->arg[0]);
  if (n.op != IR_AND && n.op != IR_OR) return r;
  ir_ref a = ir_op1(g, IR_NOT, n.arg[0]), b = ir_op1(g, IR_NOT, n.arg[1]);
  if (ir_is_op(g, a, IR_NOT)) a = push_not(g, a);
  if (ir_is_op(g, b, IR_NOT)) b = push_not(g, b);
  return ir_op2(g, n.op == IR_AND ? IR_OR : IR_AND, a, b);
}

static ir_ref rewrite(ir *g, ir_ref r, int face) {
  if (r == IR_NONE || g->failed) return IR_NONE;
  const ir_node n = *ir_get(g, r);
  if (n.type == IR_REAL && face == EXACT) return r;
  switch (n.op) {
    case IR_ADD:
    case IR_SUB:
    case IR_NEG:
      return ir_collect_sum(g, r);
    case IR_MUL: {
      const ir_ref p = n.type == IR_REAL ? cancel_product(g, r) : r;
      if (p != r || g->failed) return p;
      const ir_ref q = ir_collect_product(g, r);
      return q == r ? ir_collect_sum(g, r) : q;
    }
    case IR_DIV:
      return cancel_quotient(g, r);
    case IR_LT:
    case IR_LE:
    case IR_EQ:
    case IR_NE:
      return ir_collect_compare(g, r);
    case IR_NOT:
      return push_not(g, r);
    case IR_AND:
    case IR_OR:
      return ir_collect_logic(g, r);
    default:
      return r;
  }
}

/* ---- the pass ---- */

static void rebuild(simplifier *s, ir_ref r, int face) {
  const ir_node n = *ir_get(s->g, r);
  ir_ref args[4] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
  for (int k = 0; k < n.nargs; ++k) args[k] = s->memo[face_of_arg(s->g, &n, face, n.arg[k])][n.arg[k]];
  const ir_ref made = ir_rebuild(s->g, r, args);
  ir_set_line(s->g, n.line);
  s->memo[face][r] = rewrite(s->g, made, face);
}

static bool pass(simplifier *s, ir_ref *roots, int n) {
  bool changed = false;
  want(s, roots, n);
  for (ir_ref r = 1; r <= s->top && !s->g->failed; ++r)
    for (int face = 0; face < 2; ++face)
      if ((s->wanted[r] >> face & 1) != 0) rebuild(s, r, face);
  if (s->g->failed) return false;
  for (int i = 0; i < n; ++i) {
    if (roots[i] == IR_NONE) continue;
    const ir_ref r = s->memo[SMOOTH][roots[i]];
    changed = changed || r != roots[i];
    roots[i] = r;
  }
  return changed;
}

static bool run_pass(ir *g, ir_ref *roots, int n) {
  simplifier s = {.g = g, .top = 0};
  for (int i = 0; i < n; ++i)
    if (roots[i] > s.top) s.top = roots[i];
  bool changed = false;
  const size_t count = (size_t)s.top + 1;
  s.memo[EXACT] = ir_push(g, 2 * count, sizeof(ir_ref));
  if (s.memo[EXACT] == NULL) return false;
  s.memo[SMOOTH] = s.memo[EXACT] + count;
  s.wanted = ir_push(g, count, sizeof *s.wanted);
  if (s.wanted != NULL) {
    changed = pass(&s, roots, n);
    ir_pop(g);
  }
  ir_pop(g);
  return changed;
}

void ir_simplify(ir *g, ir_ref *roots, int n) {
  /* One rewrite can enable another; more than a few rounds never pay. */
  enum { ROUNDS = 4 };
  const uint32_t line = g->line;
  for (int round = 0; round < ROUNDS && !g->failed && run_pass(g, roots, n);) ++round;
  ir_set_line(g, line);
}
