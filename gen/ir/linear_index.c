/* linear_index.c: the row-major number of a position of a grid. */
#include "gen/ir/graph.h"

ir_ref ir_linear_index(ir *g, ir_var position, ir_var length) {
  ir_ref place = ir_variable(g, position, 0);
  for (uint32_t a = 1; a < (uint32_t)g->axes; a++) {
    const ir_ref row = ir_op2(g, IR_MUL, place, ir_variable(g, length, a));
    place = ir_op2(g, IR_ADD, row, ir_variable(g, position, a));
  }
  return place;
}
