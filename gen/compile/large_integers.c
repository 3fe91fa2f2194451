#include "gen/compile/large_integers.h"

#include "common/fail.h"
#include "common/call/limits.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

static const char *name_of(ir_op op) {
  switch (op) {
    case IR_ADD:
      return "+";
    case IR_SUB:
      return "-";
    case IR_MUL:
      return "*";
    case IR_BAND:
    case IR_SHR_BAND:
      return "&";
    case IR_BOR:
      return "|";
    case IR_BXOR:
      return "~";
    case IR_SHL:
      return "<<";
    case IR_SHR:
      return ">>";
    default:
      return ir_op_name(op);
  }
}

/* Suggests how to rewrite an op that exceeds 32 bits. */
static const char *way_out(ir_op op) {
  if (op == IR_SHR || op == IR_SHR_BAND)
    return "where a number may be negative, zeros come down before the ones above its 32 bits: write (x >> "
           "n) & mask "
           "for some of its bits, max(x, 0) >> n, or x // 2 for x >> 1, which keeps the sign";
  if (op == IR_SHL) return "bound the shift, as clamp(n, 0, 16) does; to ask for a bit, write (x >> n) & 1";
  return "bound what it is made of, as clamp(x, lo, hi) does, or make it a float, as x + 0.0";
}

luattn_status large_integers_refuse(const traced_spec *t, const ir_node *n, double reach, luattn_error *err) {
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s:%u: an integer '%s' may reach %.10g, and kernels compute in 32 bits; inputs count as "
                     "less than 2^24 from 0, batch numbers as up to 65535, heads as up to %d; %s",
                     t->file, n->line, name_of((ir_op)n->op), reach, LUATTN_MAX_HEADS, way_out((ir_op)n->op));
}

/* Simplified as a kernel's hooks are, in a copy: the numbers of a spec's nodes are part of its kernels. */
luattn_status large_integers_check(arena *a, const traced_spec *t, luattn_error *err) {
  const ir_ref candidate[] = {t->block_mask, t->score_mod,   t->query_mod, t->key_mod,
                              t->value_mod,  t->online.prob, t->online.out};
  ir_ref root[sizeof candidate / sizeof candidate[0]], r;
  double reach;
  int n = 0;
  for (size_t i = 0; i < sizeof candidate / sizeof candidate[0]; i++)
    if (candidate[i] != IR_NONE) root[n++] = candidate[i];
  if (ir_ints_fit(t->g, root, n, 1)) return LUATTN_OK;
  ir *g = ir_clone(a, t->g);
  if (g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  ir_simplify(g, root, n);
  if (ir_failed(g)) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  r = ir_int_overflow(g, root, n, 1, &reach);
  return r == IR_NONE ? LUATTN_OK : large_integers_refuse(t, ir_get(g, r), reach, err);
}
