/* join.c: joins the two results of a comparison, for true and for false, into one expression. */
#include "gen/lua/replay.h"

#include <math.h>

enum { SINK_MAX = 64, TERMS_MAX = 16 };

static ir_ref rebuild(ir *g, const ir_node *n, const ir_ref *arg) {
  const ir_op op = (ir_op)n->op;
  ir_set_line(g, n->line);
  if (op == IR_LOAD) return ir_load(g, (uint32_t)n->imm.integer, (ir_type)n->type, arg, n->nargs);
  if (n->nargs == 1) return ir_op1(g, op, arg[0]);
  return n->nargs == 2 ? ir_op2(g, op, arg[0], arg[1]) : ir_op3(g, op, arg[0], arg[1], arg[2]);
}

/* Which argument differs where the two nodes are alike but for one; -1: they are not. */
static int only_difference(const ir_node *a, const ir_node *b) {
  if (a->op != b->op || a->nargs != b->nargs || (a->op == IR_LOAD && a->imm.integer != b->imm.integer)) return -1;
  int differ = 0, at = -1;
  for (int i = 0; i < a->nargs; i++) {
    if (a->arg[i] == b->arg[i]) continue;
    differ++;
    at = i;
  }
  return differ == 1 ? at : -1;
}

/* Lets a product or sum have its shared operand in the same place as `like` has it. */
static void align(ir_node *n, const ir_node *like) {
  if (n->op != like->op || (n->op != IR_ADD && n->op != IR_MUL)) return;
  if (n->arg[0] != like->arg[1] && n->arg[1] != like->arg[0]) return;
  const ir_ref first = n->arg[0];
  n->arg[0] = n->arg[1];
  n->arg[1] = first;
}

/* What x op y is with nothing done: x - 0 and x * 1 are x, and so is x + -0.0, where -0.0 + 0.0 is not. */
static ir_ref neutral(ir *g, ir_op op, ir_type type) {
  if (type == IR_INT) return ir_int(g, op == IR_MUL);
  return ir_real(g, op == IR_MUL ? 1 : op == IR_SUB ? 0 : -0.0);
}

static ir_ref join_at(ir *g, ir_ref condition, ir_ref yes, ir_ref no, bool factors, int depth);

/* c ? x + y : x is x + (c ? y : -0.0), exactly. So is c ? x : x + y, with `more` as the first. IR_NONE: it
 * has another form. */
static ir_ref factor(ir *g, ir_ref condition, ir_ref more, ir_ref x, bool more_is_yes, int depth) {
  const ir_node n = *ir_get(g, more);
  const ir_type type = ir_typeof(g, more);
  if (n.op != IR_ADD && n.op != IR_SUB && n.op != IR_MUL) return IR_NONE;
  const bool first = n.arg[0] == x;
  if (!first && (n.op == IR_SUB || n.arg[1] != x)) return IR_NONE;
  const ir_ref y = n.arg[first ? 1 : 0], nothing = neutral(g, (ir_op)n.op, type);
  ir_set_line(g, n.line);
  const ir_ref sometimes = join_at(g, condition, more_is_yes ? y : nothing, more_is_yes ? nothing : y, false, depth);
  return ir_op2(g, (ir_op)n.op, x, sometimes);
}

/* c ? 3 : 2 is 2 + (c ? 1 : 0), so that counts stay sums. */
static ir_ref join_counts(ir *g, ir_ref condition, ir_ref yes, ir_ref no) {
  double a, b;
  if (ir_typeof(g, yes) != IR_INT || !ir_is_const(g, yes, &a) || !ir_is_const(g, no, &b)) return IR_NONE;
  const ir_ref zero = ir_int(g, 0), more = ir_int(g, (int64_t)fabs(a - b));
  const ir_ref sometimes = ir_op3(g, IR_SELECT, condition, a > b ? more : zero, a > b ? zero : more);
  return ir_op2(g, IR_ADD, sometimes, a > b ? no : yes);
}

/* Moves the select down to where the two differ: c ? f(x, a) : f(x, b) becomes f(x, c ? a : b), one f instead
 * of two. */
static ir_ref join_at(ir *g, ir_ref condition, ir_ref yes, ir_ref no, bool factors, int depth) {
  if (yes == IR_NONE || no == IR_NONE) return IR_NONE;
  if (yes == no) return yes;
  if (ir_typeof(g, yes) == IR_BOOL) return join_masks(g, condition, yes, no);
  if (ir_typeof(g, yes) != ir_typeof(g, no)) {
    yes = ir_to_real(g, yes);
    no = ir_to_real(g, no);
    return join_at(g, condition, yes, no, factors, depth);
  }
  if (depth == SINK_MAX) return ir_op3(g, IR_SELECT, condition, yes, no);
  ir_ref factored = IR_NONE;
  if (factors) factored = join_counts(g, condition, yes, no);
  if (factors && factored == IR_NONE) factored = factor(g, condition, yes, no, true, depth);
  if (factors && factored == IR_NONE) factored = factor(g, condition, no, yes, false, depth);
  if (factored != IR_NONE) return factored;
  ir_node a = *ir_get(g, yes);
  const ir_node b = *ir_get(g, no);
  if (factors) align(&a, &b);
  const int at = only_difference(&a, &b);
  if (at < 0) return ir_op3(g, IR_SELECT, condition, yes, no);
  ir_ref arg[4];
  for (int i = 0; i < a.nargs; i++) arg[i] = a.arg[i];
  arg[at] = join_at(g, condition, a.arg[at], b.arg[at], factors, depth + 1);
  return rebuild(g, &a, arg);
}

ir_ref join_values(ir *g, ir_ref condition, ir_ref yes, ir_ref no, bool factors) {
  return join_at(g, condition, yes, no, factors, 0);
}

/* Negates a condition, without a node if the opposite comparison exists. For REALs it would differ for
 * NaN. */
static ir_ref negate(ir *g, ir_ref c) {
  if (c == IR_NONE) return IR_NONE;
  const ir_node n = *ir_get(g, c);
  const bool ints = n.nargs == 2 && ir_typeof(g, n.arg[0]) == IR_INT;
  if (n.op == IR_LT && ints) return ir_op2(g, IR_LE, n.arg[1], n.arg[0]);
  if (n.op == IR_LE && ints) return ir_op2(g, IR_LT, n.arg[1], n.arg[0]);
  if (n.op == IR_EQ) return ir_op2(g, IR_NE, n.arg[0], n.arg[1]);
  if (n.op == IR_NE) return ir_op2(g, IR_EQ, n.arg[0], n.arg[1]);
  return n.op == IR_NOT ? n.arg[0] : ir_op1(g, IR_NOT, c);
}

/* The terms of a chain of `op` (AND or OR), or just r. False: more than TERMS_MAX. */
static bool terms_of(const ir *g, ir_op op, ir_ref r, ir_ref *terms, int *count) {
  const ir_node *n = ir_get(g, r);
  if (n->op == op) {
    const ir_ref left = n->arg[0], right = n->arg[1];
    return terms_of(g, op, left, terms, count) && terms_of(g, op, right, terms, count);
  }
  if (*count == TERMS_MAX) return false;
  terms[(*count)++] = r;
  return true;
}

/* If the chain `whole` contains every term of `part`: the chain of its other terms, else IR_NONE. */
static ir_ref remainder_of(ir *g, ir_op op, ir_ref whole, ir_ref part) {
  ir_ref w[TERMS_MAX], p[TERMS_MAX], rest = IR_NONE;
  int num_w = 0, num_p = 0, matched = 0;
  if (!terms_of(g, op, whole, w, &num_w) || !terms_of(g, op, part, p, &num_p) || num_w <= num_p) return IR_NONE;
  for (int i = 0; i < num_w; i++) {
    bool found = false;
    for (int j = 0; j < num_p && !found; j++) found = w[i] == p[j];
    matched += found;
    if (!found) rest = rest == IR_NONE ? w[i] : ir_op2(g, op, rest, w[i]);
  }
  return matched == num_p ? rest : IR_NONE;
}

/* c ? yes : no in and/or/not, in the form that the spec's own and/or/not would have: interval analysis of a
 * mask is exact for that form and not for (c and yes) or (not c and no). */
ir_ref join_masks(ir *g, ir_ref c, ir_ref yes, ir_ref no) {
  if (c == IR_NONE || yes == IR_NONE || no == IR_NONE) return IR_NONE;
  if (yes == no) return yes;
  const ir_ref true_ = ir_bool(g, true), false_ = ir_bool(g, false);
  if (yes == true_) return no == false_ ? c : ir_op2(g, IR_OR, c, no);
  if (no == false_) return ir_op2(g, IR_AND, c, yes);
  if (yes == false_) return no == true_ ? negate(g, c) : ir_op2(g, IR_AND, negate(g, c), no);
  if (no == true_) return ir_op2(g, IR_OR, negate(g, c), yes);
  ir_ref rest;
  if ((rest = remainder_of(g, IR_OR, yes, no)) != IR_NONE) return ir_op2(g, IR_OR, ir_op2(g, IR_AND, c, rest), no);
  if ((rest = remainder_of(g, IR_OR, no, yes)) != IR_NONE)
    return ir_op2(g, IR_OR, ir_op2(g, IR_AND, negate(g, c), rest), yes);
  if ((rest = remainder_of(g, IR_AND, no, yes)) != IR_NONE) return ir_op2(g, IR_AND, ir_op2(g, IR_OR, c, rest), yes);
  if ((rest = remainder_of(g, IR_AND, yes, no)) != IR_NONE)
    return ir_op2(g, IR_AND, ir_op2(g, IR_OR, negate(g, c), rest), no);
  return ir_op2(g, IR_OR, ir_op2(g, IR_AND, c, yes), ir_op2(g, IR_AND, negate(g, c), no));
}
