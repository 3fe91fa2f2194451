/* assume.c: simplifies a mask by its own conditions: in `a and b`, b is read where a holds, and in `if a then
 * b else c`, c where it does not. A mask with cases repeats the same condition for each of its values. */
#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"

enum { MAX_FACTS = 8, MAX_WORK = 128 };

typedef struct facts {
  ir *g;
  ir_ref from[MAX_FACTS], to[MAX_FACTS];
  int n, work;
} facts;

/* Bounds the walk: shared nodes are visited once per path. The walk ends when the list is full; it holds no
 * node twice. */
static void add(facts *f, ir_ref p, bool value) {
  const ir_node n = *ir_get(f->g, p);
  for (int i = 0; i < f->n; i++)
    if (f->from[i] == p) return;
  if (--f->work < 0 || f->n == MAX_FACTS) return;
  if (n.op == IR_NOT) {
    add(f, n.arg[0], !value);
  } else if (n.op == (value ? IR_AND : IR_OR)) {
    add(f, n.arg[0], value);
    add(f, n.arg[1], value);
  } else if (n.op != IR_CONST_BOOL) {
    f->from[f->n] = p;
    f->to[f->n++] = ir_bool(f->g, value);
  }
}

static ir_ref given(ir *g, ir_ref r, ir_ref p, bool value) {
  facts f = {.g = g, .work = MAX_WORK};
  add(&f, p, value);
  return ir_substitute(g, r, f.from, f.to, f.n);
}

static ir_ref assume(ir *g, ir_ref p, int *work) {
  const ir_node n = *ir_get(g, p);
  if (--*work < 0 || ir_failed(g)) return p;
  if (n.op == IR_AND || n.op == IR_OR) {
    const ir_ref a = assume(g, n.arg[0], work), b = assume(g, given(g, n.arg[1], a, n.op == IR_AND), work);
    return ir_op2(g, (ir_op)n.op, given(g, a, b, n.op == IR_AND), b);
  }
  if (n.op != IR_SELECT) return p;
  const ir_ref x = assume(g, given(g, n.arg[1], n.arg[0], true), work),
               y = assume(g, given(g, n.arg[2], n.arg[0], false), work);
  return ir_op3(g, IR_SELECT, n.arg[0], x, y);
}

ir_ref mask_assume(ir *g, ir_ref keep) {
  int work = MAX_WORK;
  ir_ref r = assume(g, keep, &work);
  ir_simplify(g, &r, 1);
  return r;
}
