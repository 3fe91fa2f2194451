/* logic.c: simplifies conjunctions and disjunctions as lists. */
#include "gen/ir/graph.h"

enum { MAX_MEMBERS = 24 };

typedef struct members {
  ir_ref m[MAX_MEMBERS];
  int n;
  bool failed;
} members;

/* Ascending, without repetitions. */
static void insert(members *l, ir_ref r) {
  int i = 0;
  while (i < l->n && l->m[i] < r) ++i;
  if (i < l->n && l->m[i] == r) return;
  if (l->n == MAX_MEMBERS) {
    l->failed = true;
    return;
  }
  for (int j = l->n++; j > i; --j) l->m[j] = l->m[j - 1];
  l->m[i] = r;
}

static void flatten(const ir *g, ir_op op, ir_ref r, members *l) {
  if (l->failed) return;
  const ir_node *n = ir_get(g, r);
  if (n->op != op) {
    insert(l, r);
  } else {
    flatten(g, op, n->arg[0], l);
    flatten(g, op, n->arg[1], l);
  }
}

static ir_ref join(ir *g, ir_op op, const members *l) {
  ir_ref r = l->m[0];
  for (int i = 1; i < l->n; ++i) r = ir_op2(g, op, r, l->m[i]);
  return r;
}

/* A member is redundant if another one implies it (in a conjunction), or if it implies another one (in a
 * disjunction). */
static bool makes_idle(const ir *g, ir_op op, ir_ref by, ir_ref r) {
  if (by == r) return true;
  ir_order o, p;
  if (!ir_order_of(g, by, &o) || !ir_order_of(g, r, &p) || o.low != p.low || o.high != p.high) return false;
  return op == IR_AND ? o.k <= p.k : o.k >= p.k;
}

/* Whether two members decide the whole: x and not x, or x < 3 and x > 5; in a disjunction x < 5 or x > 3. */
static bool decides(const ir *g, ir_op op, ir_ref x, ir_ref y) {
  if (ir_opposite(g, x, y)) return true;
  ir_order o, p;
  if (!ir_order_of(g, x, &o) || !ir_order_of(g, y, &p) || o.low != p.high || o.high != p.low) return false;
  return op == IR_AND ? o.k + p.k < 0 : o.k + p.k >= -1;
}

/* Of two equal conditions, such as 6 < x and 7 <= x, keeps the first. */
static bool is_idle(const ir *g, ir_op op, const members *l, ir_ref r, int self) {
  for (int i = 0; i < l->n; ++i)
    if (i != self && makes_idle(g, op, l->m[i], r) && (i < self || self < 0 || !makes_idle(g, op, r, l->m[i])))
      return true;
  return false;
}

static bool is_decided(const ir *g, ir_op op, const members *l, ir_ref r) {
  for (int i = 0; i < l->n; ++i)
    if (decides(g, op, l->m[i], r)) return true;
  return false;
}

/* Simplifies a member of the dual op by the others: `a and (a or b)` is a, `a and (not a or b)` is a and b.
 * IR_NONE: it adds nothing. */
static ir_ref reduce_member(ir *g, ir_op op, const members *l, ir_ref r) {
  const ir_op dual = op == IR_AND ? IR_OR : IR_AND;
  if (ir_get(g, r)->op != dual) return r;
  members inner = {.n = 0}, kept = {.n = 0};
  flatten(g, dual, r, &inner);
  if (inner.failed) return r;
  for (int i = 0; i < inner.n; ++i) {
    if (is_idle(g, op, l, inner.m[i], -1)) return IR_NONE;
    if (!is_decided(g, op, l, inner.m[i])) insert(&kept, inner.m[i]);
  }
  if (kept.n == 0) return ir_bool(g, op == IR_OR); /* every member is contradicted */
  return kept.n == inner.n ? r : join(g, dual, &kept);
}

ir_ref ir_collect_logic(ir *g, ir_ref r) {
  const ir_op op = (ir_op)ir_get(g, r)->op;
  members l = {.n = 0}, out = {.n = 0};
  flatten(g, op, r, &l);
  if (l.failed) return r;
  for (int i = 0; i < l.n; ++i) {
    if (is_decided(g, op, &l, l.m[i])) return ir_bool(g, op == IR_OR);
    if (is_idle(g, op, &l, l.m[i], i)) continue;
    const ir_ref m = reduce_member(g, op, &l, l.m[i]);
    if (g->failed) return IR_NONE;
    if (m != IR_NONE) flatten(g, op, m, &out);
  }
  if (out.failed) return r;
  return out.n == 0 ? r : join(g, op, &out);
}
