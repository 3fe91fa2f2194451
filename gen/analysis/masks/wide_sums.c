/* wide_sums.c: how a comparison uses integers of 64 bits, whose sums wrap around, and where these do not. */
#include <math.h>

#include "gen/analysis/masks/range.h"

enum { MAX_LOADS = 8, MAX_WORK = 256 };
#define NEAR (INT64_C(1) << 31)
#define WRAPS 0x1p62

typedef struct wide_walk {
  ir *g;
  ir_ref load[MAX_LOADS];
  int num_loads, work;
  bool sums, at_position;
} wide_walk;

static bool is_wide_int(const ir *g, ir_ref r) { return ir_typeof(g, r) == IR_INT && ir_is_wide(g, r); }

static void note_load(wide_walk *w, ir_ref r) {
  w->at_position |= ir_uses(w->g, r, VAR_Q) || ir_uses(w->g, r, VAR_KV);
  for (int i = 0; i < w->num_loads; i++)
    if (w->load[i] == r) return;
  if (w->num_loads == MAX_LOADS)
    w->work = 0;
  else
    w->load[w->num_loads++] = r;
}

/* The largest magnitude of r, if wide inputs are up to NEAR from 0. Conditions have comparisons of their own. */
static double reach(wide_walk *w, ir_ref r) {
  const ir_node n = *ir_get(w->g, r);
  const bool wide = is_wide_int(w->g, r);
  if (--w->work < 0) return INFINITY;
  if (n.op == IR_CONST_INT) return fabs((double)n.imm.integer);
  if (n.op == IR_LOAD && wide) note_load(w, r);
  if (n.op == IR_LOAD || n.nargs == 0) return (double)NEAR;
  w->sums |= wide && n.op != IR_MIN && n.op != IR_MAX && n.op != IR_SELECT;
  double x[4] = {0, 0, 0, 0};
  for (int i = 0; i < n.nargs; i++)
    if (ir_typeof(w->g, n.arg[i]) != IR_BOOL) x[i] = reach(w, n.arg[i]);
  if (!wide) return (double)NEAR;
  switch (n.op) {
    case IR_ADD:
    case IR_SUB:
      return x[0] + x[1];
    case IR_MUL:
      return x[0] * x[1];
    case IR_NEG:
    case IR_ABS:
    case IR_MIN:
    case IR_MAX:
    case IR_SELECT:
    case IR_FLOORDIV:
    case IR_MOD:
      return fmax(fmax(x[0], x[1]), x[2]);
    default:
      return INFINITY;
  }
}

static ir_ref near_zero(ir *g, ir_ref load) {
  const ir_ref above = ir_op2(g, IR_LE, ir_int(g, -NEAR), load);
  return ir_op2(g, IR_AND, above, ir_op2(g, IR_LE, load, ir_int(g, NEAR)));
}

wide_use range_wide_use(ir *g, ir_ref x, ir_ref y, ir_ref *near) {
  wide_walk w = {.g = g, .work = MAX_WORK};
  if (!ir_any_wide(g)) return WIDE_NONE;
  const double most = reach(&w, x) + reach(&w, y);
  if (w.work <= 0) return WIDE_UNKNOWN;
  if (w.num_loads == 0) return WIDE_NONE;
  if (!w.sums) return is_wide_int(g, x) && is_wide_int(g, y) ? WIDE_UNKNOWN : WIDE_PLAIN;
  if (w.at_position || !(most < WRAPS)) return WIDE_UNKNOWN;
  *near = ir_bool(g, true);
  for (int i = 0; i < w.num_loads; i++) *near = ir_op2(g, IR_AND, *near, near_zero(g, w.load[i]));
  return WIDE_SUMS;
}
