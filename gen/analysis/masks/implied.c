/* implied.c: derives facts that a mask implies for the scores that it keeps. */
#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"

enum { MAX_FACTS = 8, MAX_ABS = 8 };

/* Integers that are at least 0 for all scores that the mask keeps. */
typedef struct facts {
  ir *g;
  ir_ref x[MAX_FACTS];
  int n;
} facts;

static void collect(facts *f, ir_ref keep) {
  for (;;) {
    const ir_node n = *ir_get(f->g, keep);
    const bool both = n.op == IR_AND;
    const ir_ref p = both ? n.arg[1] : keep;
    const ir_node c = *ir_get(f->g, p);
    if (f->n == MAX_FACTS) return;
    if ((c.op == IR_LE || c.op == IR_LT) && ir_typeof(f->g, c.arg[0]) == IR_INT &&
        !ir_compares_wide(f->g, p)) { /* these wrap */
      const ir_ref gap = ir_op2(f->g, IR_SUB, c.arg[1], c.arg[0]);
      f->x[f->n++] = c.op == IR_LE ? gap : ir_op2(f->g, IR_SUB, gap, ir_int(f->g, 1));
    }
    if (!both) return;
    keep = n.arg[0];
  }
}

/* Whether x is a known fact, or a fact plus a positive constant. */
static bool is_implied(const facts *f, ir_ref x) {
  for (int i = 0; i < f->n; i++) {
    double c;
    ir_ref above = ir_op2(f->g, IR_SUB, x, f->x[i]);
    ir_simplify(f->g, &above, 1);
    if (ir_is_const(f->g, above, &c) && c >= 0) return true;
  }
  return false;
}

ir_ref mask_implied(ir *g, ir_ref keep, ir_ref r) {
  facts f = {.g = g};
  ir_ref from[MAX_ABS], to[MAX_ABS];
  int n = 0;
  if (keep == IR_NONE || !ir_uses_op(g, r, IR_ABS)) return r;
  collect(&f, keep);
  for (ir_ref at = 1; at <= r && n < MAX_ABS && !ir_failed(g); at++) {
    const ir_node node = *ir_get(g, at);
    if (node.op != IR_ABS || node.type != IR_INT || ir_is_wide(g, at)) continue;
    const ir_ref minus = ir_op1(g, IR_NEG, node.arg[0]);
    const bool positive = is_implied(&f, node.arg[0]);
    if (!positive && !is_implied(&f, minus)) continue;
    from[n] = at;
    to[n++] = positive ? node.arg[0] : minus;
  }
  return n == 0 ? r : ir_substitute(g, r, from, to, n);
}
