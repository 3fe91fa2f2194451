/* dependence.c: finds what an expression depends on: nothing, the row, the column, or each element. */
#include "gen/ir/passes.h"

/* A set of axes, so that the level of a node is the union of its arguments': ROW | COL is ELEMENT. */
static uint8_t leaf_level(ir_var v) {
  switch (v) {
    case VAR_Q:
    case VAR_STATE:
    case VAR_OTHER:
    case VAR_ROW:
    case VAR_FINAL:
    case VAR_RED:
    case VAR_DELTA:
    case VAR_DLSE:
    case VAR_PASS:
    case VAR_STATE_TANGENT:
    case VAR_RED_TANGENT:
    case VAR_DELTA_TANGENT:
    case VAR_DLSE_TANGENT:
    case VAR_FINAL_TANGENT:
    case VAR_ROW_TANGENT:
    case VAR_PASS_TANGENT:
      return LEVEL_ROW;
    case VAR_KV:
      return LEVEL_COL;
    case VAR_SCORE:
    case VAR_DOT:
    case VAR_DP:
    case VAR_P:
    case VAR_OUT:
    case VAR_X:
    case VAR_POS:
    case VAR_D:
    case VAR_GRAD:
    case VAR_READ:
    case VAR_READ_GRAD:
    case VAR_CHANNEL:
    case VAR_SCORE_TANGENT:
    case VAR_X_TANGENT:
    case VAR_READ_TANGENT:
    case VAR_DP_TANGENT:
    case VAR_GRAD_TANGENT:
    case VAR_READ_GRAD_TANGENT:
      return LEVEL_ELEMENT;
    default:
      return LEVEL_HEAD;
  }
}

void analyse_levels(const ir *g, uint8_t *level) {
  const uint32_t count = ir_count(g);
  level[IR_NONE] = LEVEL_HEAD;
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    level[r] = LEVEL_HEAD;
    if (n->op == IR_VAR)
      level[r] = leaf_level(ir_var_of(n));
    else if (n->op == IR_REDUCE_SUM || n->op == IR_REDUCE_MAX)
      level[r] = LEVEL_ROW;
    else
      for (int i = 0; i < n->nargs; i++) level[r] |= level[n->arg[i]];
  }
}
