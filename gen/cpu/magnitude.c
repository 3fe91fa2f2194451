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

bool cpu_magnifies_scores(const luattn_spec *spec) {
  static const ir_op ops[] = {IR_EXP,  IR_EXP2, IR_LOG, IR_LOG2,     IR_LOG1P, IR_TANH, IR_SIGMOID,
                              IR_GELU, IR_SILU, IR_ERF, IR_SOFTPLUS, IR_SIN,   IR_COS,  IR_POW};
  const ir *g = spec->traced.g;
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (ir_uses_op(g, spec->traced.online.prob, ops[i])) return true;
  return false;
}
