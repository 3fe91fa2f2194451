/* substitute.c: replaces nodes in an expression. */
#include "gen/ir/graph.h"

/* Marks what must be rebuilt, from the top down, stopping at replaced nodes. */
static void mark(const ir *g, ir_ref r, ir_ref *memo, uint8_t *reached) {
  reached[r] = 1;
  for (ir_ref i = r; i > 0; --i) {
    if (!reached[i] || memo[i] != IR_NONE) continue;
    const ir_node *n = ir_get(g, i);
    for (int k = 0; k < n->nargs; ++k) reached[n->arg[k]] = 1;
  }
}

static ir_ref substitute(ir *g, ir_ref r, ir_ref *memo, const uint8_t *reached) {
  for (ir_ref i = 1; i <= r; ++i) {
    if (!reached[i] || memo[i] != IR_NONE) continue;
    ir_ref args[4] = {IR_NONE, IR_NONE, IR_NONE, IR_NONE};
    const ir_node *n = ir_get(g, i);
    for (int k = 0; k < n->nargs; ++k) args[k] = memo[n->arg[k]];
    memo[i] = ir_rebuild(g, i, args);
    if (memo[i] == IR_NONE) return IR_NONE;
  }
  return memo[r];
}

ir_ref ir_substitute(ir *g, ir_ref r, const ir_ref *from, const ir_ref *to, int n) {
  if (r == IR_NONE || g->failed) return IR_NONE;
  ir_ref *memo = ir_push(g, r + 1, sizeof *memo);
  if (memo == NULL) return IR_NONE;
  uint8_t *reached = ir_push(g, r + 1, sizeof *reached);
  ir_ref result = IR_NONE;
  if (reached != NULL) {
    for (int i = 0; i < n; ++i)
      if (from[i] != IR_NONE && from[i] <= r) memo[from[i]] = to[i];
    mark(g, r, memo, reached);
    result = substitute(g, r, memo, reached);
    ir_pop(g);
  }
  ir_pop(g);
  return result;
}
