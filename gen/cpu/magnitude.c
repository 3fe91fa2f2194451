/* magnitude.c: builds the magnitude of an expression's parts before they cancel: |a| + |b| for a + b and a -
 * b, and so on upwards. A rounding error of a part is small relative to this, not to the result. */
#include "gen/cpu/cpu.h"

static ir_ref magnitude(ir *g, ir_ref r, ir_ref *done) {
  if (done[r] != IR_NONE) return done[r];
  const ir_node n = *ir_get(g, r);
  ir_ref a[3] = {IR_NONE}, out;
  const bool descends = n.type == IR_REAL && (n.op == IR_ADD || n.op == IR_SUB || n.op == IR_NEG || n.op == IR_MUL ||
                                              n.op == IR_DIV || n.op == IR_FMA || n.op == IR_SELECT);
  for (int i = n.op == IR_SELECT ? 1 : 0; descends && i < n.nargs; i++) a[i] = magnitude(g, n.arg[i], done);
  if (!descends)
    out = ir_op1(g, IR_ABS, r);
  else if (n.op == IR_ADD || n.op == IR_SUB)
    out = ir_op2(g, IR_ADD, a[0], a[1]);
  else if (n.op == IR_NEG)
    out = a[0];
  else if (n.op == IR_MUL)
    out = ir_op2(g, IR_MUL, a[0], a[1]);
  else if (n.op == IR_DIV)
    out = ir_op2(g, IR_DIV, a[0], ir_op1(g, IR_ABS, n.arg[1]));
  else if (n.op == IR_FMA)
    out = ir_op3(g, IR_FMA, a[0], a[1], a[2]);
  else
    out = ir_op3(g, IR_SELECT, n.arg[0], a[1], a[2]);
  return done[r] = out;
}

luattn_status magnitude_of(arena *a, ir *g, ir_ref *roots, int n, luattn_error *err) {
  ir_ref *done = arena_array(a, ir_count(g), sizeof *done); /* nodes built meanwhile are never looked up */
  if (done == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory");
  for (int i = 0; i < n; i++) roots[i] = magnitude(g, roots[i], done);
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "cpu: out of memory") : LUATTN_OK;
}

/* A function that is no root, which would halve an error. */
static bool magnifies(ir_op op) {
  if (op == IR_LOG || op == IR_POW) return true;
  return ir_op_called(op) && !ir_op_exact(op) && op != IR_SQRT && op != IR_RSQRT;
}

bool cpu_magnifies_scores(const luattn_spec *spec) {
  for (ir_op op = 0; op < IR_OP_COUNT; op++)
    if (magnifies(op) && ir_uses_op(spec->traced.g, spec->traced.online.prob, op)) return true;
  return false;
}
