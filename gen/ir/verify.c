/* verify.c: checks types, arities and order of nodes, between passes. */
#include <inttypes.h>

#include "common/fail.h"
#include "gen/ir/graph.h"
#include "gen/ir/passes.h"

#define EXACT_INT (INT64_C(1) << 53)

typedef struct checker {
  const ir *g;
  const char *pass;
  ir_ref r;
  luattn_error *err;
} checker;

static luattn_status wrong(const checker *c, const char *what) {
  const ir_node *n = &c->g->node[c->r];
  return luattn_fail(c->err, LUATTN_INTERNAL,
                     "%s: node %" PRIu32 " ('%s', spec line %" PRIu32 "): %s; please report this spec", c->pass, c->r,
                     ir_op_name((ir_op)n->op), n->line, what);
}

static luattn_status check_leaf(const checker *c, const ir_node *n) {
  switch (n->op) {
    case IR_CONST_REAL:
      return n->type == IR_REAL ? LUATTN_OK : wrong(c, "a real constant must have type real");
    case IR_CONST_INT:
      if (n->type != IR_INT) return wrong(c, "an integer constant must have type int");
      if (n->imm.integer > EXACT_INT || n->imm.integer < -EXACT_INT)
        return wrong(c, "the integer constant exceeds 2^53");
      return LUATTN_OK;
    case IR_CONST_BOOL:
      if (n->type != IR_BOOL) return wrong(c, "a boolean constant must have type bool");
      return n->imm.integer == 0 || n->imm.integer == 1 ? LUATTN_OK : wrong(c, "a boolean constant must be 0 or 1");
    default:
      break;
  }
  const uint64_t v = (uint64_t)n->imm.integer >> 32;
  if (v >= VAR_COUNT) return wrong(c, "there is no such variable");
  if (n->type != ir_var_type((ir_var)v)) return wrong(c, "the type is not the variable's");
  const bool along_axis = ir_var_is_along_axis((ir_var)v) && !ir_is_line(c->g);
  if (along_axis && ir_index_of(n) >= (uint32_t)ir_axes(c->g)) return wrong(c, "positions have no such axis");
  const bool indexed = along_axis || (ir_var_indexed((ir_var)v) && !ir_var_is_along_axis((ir_var)v));
  return indexed || ir_index_of(n) == 0 ? LUATTN_OK : wrong(c, "this variable has no index");
}

static luattn_status check_args(const checker *c, const ir_node *n) {
  for (int k = 0; k < 4; ++k) {
    if (k >= n->nargs && n->arg[k] != IR_NONE) return wrong(c, "an argument beyond the arity is set");
    if (k < n->nargs && n->arg[k] == IR_NONE) return wrong(c, "an argument is missing");
    if (k < n->nargs && n->arg[k] >= c->r) return wrong(c, "an argument does not precede its user");
  }
  return LUATTN_OK;
}

static bool all_of_type(const ir *g, const ir_node *n, int first, ir_type type) {
  for (int k = first; k < n->nargs; ++k)
    if (g->node[n->arg[k]].type != type) return false;
  return true;
}

static luattn_status check_types(const checker *c, const ir_node *n) {
  const ir *g = c->g;
  const ir_type last = ir_operand_type(g, n);
  bool args = true;
  switch (ir_op_rule((ir_op)n->op)) {
    case LEAF:
      return check_leaf(c, n);
    case GATHERS:
      return all_of_type(g, n, 0, IR_INT) ? LUATTN_OK : wrong(c, "an index is not an integer");
    case REALS:
    case REDUCES:
    case REAL_TO_INT:
      args = all_of_type(g, n, 0, IR_REAL);
      break;
    case INTS:
    case INT_TO_REAL:
      args = all_of_type(g, n, 0, IR_INT);
      break;
    case NUMS:
    case COMPARES:
      args = last != IR_BOOL && all_of_type(g, n, 0, last);
      break;
    case BOOLS:
      args = all_of_type(g, n, 0, IR_BOOL);
      break;
    case SELECTS:
      args = g->node[n->arg[0]].type == IR_BOOL && all_of_type(g, n, 1, last);
      break;
  }
  if (!args) return wrong(c, "an argument has the wrong type");
  return n->type == ir_result_type(g, (ir_op)n->op, n->arg) ? LUATTN_OK : wrong(c, "the result type does not follow");
}

static luattn_status check_node(const checker *c) {
  const ir_node *n = &c->g->node[c->r];
  if (n->op >= IR_OP_COUNT) return wrong(c, "there is no such op");
  if (n->type > IR_REAL) return wrong(c, "there is no such type");
  const int arity = ir_op_arity((ir_op)n->op);
  if (arity >= 0 ? n->nargs != arity : n->nargs < 1 || n->nargs > 4) return wrong(c, "wrong number of arguments");
  TRY(check_args(c, n));
  return check_types(c, n);
}

luattn_status ir_check(const ir *g, const ir_ref *roots, int n, const char *pass, luattn_error *err) {
  if (g->failed) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", pass);
  for (ir_ref r = 1; r < g->count; ++r) TRY(check_node(&(checker){.g = g, .pass = pass, .r = r, .err = err}));
  for (int i = 0; i < n; ++i)
    if (roots[i] >= g->count)
      return luattn_fail(err, LUATTN_INTERNAL, "%s: root %d: there is no node %" PRIu32 "; please report this spec",
                         pass, i, roots[i]);
  return LUATTN_OK;
}
