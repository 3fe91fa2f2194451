/* grid_mask.c: a mask over a grid, axis by axis: which keys a box of queries may keep along each, and the reverse.
 *
 * Along an axis a mask is what remains of it where everything that reads positions of other axes may hold. That is a
 * predicate of one query and one key along a line, and range.c and mask_intervals.c find its bounds. They know the
 * variables of index 0, so an axis' own change places with those meanwhile.
 *
 * A conjunct (kv - q) % d == 0 is a dilation: boxes of every d-th place need not ask it, and all of a box' places have
 * the remainder of its first one. */
#include "gen/analysis/masks/mask.h"
#include "gen/analysis/masks/range.h"
#include "gen/ir/passes.h"

typedef struct axis_search {
  ir *g;
  int axis;
  const uint8_t *reads; /* [nodes]: the axes whose positions each reads, a bit each */
} axis_search;

/* ---- dilation ---- */

/* Adds sign * e to the coefficients of q and kv of an axis, and to a constant. false: e is no such sum. */
static bool add_places(const ir *g, ir_ref e, int axis, int sign, int64_t sum[3]) {
  const ir_node n = *ir_get(g, e);
  switch (n.op) {
    case IR_CONST_INT:
      sum[2] += sign * n.imm.integer;
      return true;
    case IR_VAR:
      if ((ir_var_of(&n) != VAR_Q && ir_var_of(&n) != VAR_KV) || (int)ir_index_of(&n) != axis) return false;
      sum[ir_var_of(&n) == VAR_KV] += sign;
      return true;
    case IR_NEG:
      return add_places(g, n.arg[0], axis, -sign, sum);
    case IR_ADD:
    case IR_SUB:
      return add_places(g, n.arg[0], axis, sign, sum) &&
             add_places(g, n.arg[1], axis, n.op == IR_ADD ? sign : -sign, sum);
    default:
      return false;
  }
}

/* The divisor of a remainder by a constant that boxes can step by; 0: r is none. */
static int divisor_of(const ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, r);
  double d;
  if (n.op != IR_MOD || n.type != IR_INT || ir_is_wide(g, n.arg[0]) || !ir_is_const(g, n.arg[1], &d)) return 0;
  return d >= 2 && d <= MASK_STEP_MAX ? (int)d : 0;
}

/* The d of p, if p says that the distance of q and kv along the axis is a multiple of d; else 0. */
static int step_of(const ir *g, ir_ref p, int axis) {
  const ir_node eq = *ir_get(g, p);
  int64_t sum[3] = {0};
  int d = 0;
  if (eq.op != IR_EQ || ir_typeof(g, eq.arg[0]) != IR_INT) return 0;
  for (int i = 0; i < 2; i++) {
    double c;
    const int sign = i == 0 ? 1 : -1, by = divisor_of(g, eq.arg[i]);
    const bool zero = ir_is_const(g, eq.arg[i], &c) && c == 0;
    if ((by == 0 && !zero) || (by > 0 && d > 0 && by != d)) return 0;
    if (by > 0) d = by;
    if (by > 0 && !add_places(g, ir_get(g, eq.arg[i])->arg[0], axis, sign, sum)) return 0;
  }
  return d > 0 && sum[0] * sum[1] == -1 && sum[2] % d == 0 ? d : 0;
}

/* Whether p asks for a remainder of the distance of q and kv by what is no constant, but the same for all of a head. */
static bool asks_step(const axis_search *s, ir_ref p, int axis) {
  const ir_node eq = *ir_get(s->g, p);
  bool asks = false;
  if (eq.op != IR_EQ || s->reads[p] != 1u << axis) return false;
  for (int i = 0; i < 2; i++) {
    double c;
    const ir_node r = *ir_get(s->g, eq.arg[i]);
    asks |= r.op == IR_MOD && s->reads[eq.arg[i]] != 0 && s->reads[r.arg[1]] == 0 && !ir_is_const(s->g, r.arg[1], &c);
  }
  return asks;
}

/* keep without the conjuncts that say steps, which are taken for their axes; IR_NONE: nothing is left. */
static ir_ref take_steps(const axis_search *s, ir_ref p, mask_info *m) {
  const ir_node n = *ir_get(s->g, p);
  if (n.op == IR_AND) {
    const ir_ref x = take_steps(s, n.arg[0], m), y = take_steps(s, n.arg[1], m);
    return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(s->g, IR_AND, x, y);
  }
  for (int axis = 0; axis < m->num_axes; axis++) {
    const int d = s->reads[p] == 1u << axis ? step_of(s->g, p, axis) : 0;
    m->axis[axis].asks_step |= asks_step(s, p, axis);
    if (d == 0 || (m->axis[axis].step > 1 && m->axis[axis].step != d)) continue;
    m->axis[axis].step = d;
    return IR_NONE;
  }
  return p;
}

/* A predicate of axis 0, where q and kv have the remainder of `place` by the step. */
static ir_ref in_group(ir *g, ir_ref p, int step, ir_ref place) {
  if (p == IR_NONE || step == 1) return p;
  const ir_ref by = ir_int(g, step), to = ir_op2(g, IR_MOD, place, by);
  const ir_ref from[] = {ir_op2(g, IR_MOD, ir_variable(g, VAR_Q, 0), by),
                         ir_op2(g, IR_MOD, ir_variable(g, VAR_KV, 0), by)};
  ir_ref changed = ir_substitute(g, p, from, (const ir_ref[]){to, to}, 2);
  ir_simplify(g, &changed, 1);
  return changed;
}

bool mask_steps(const mask_info *m) {
  for (int a = 0; a < m->num_axes; a++)
    if (m->axis[a].step > 1) return true;
  return false;
}

/* ---- ranges ---- */

/* What p is where positions of other axes may be any: at least what it keeps if `most`, else at most. */
static ir_ref along_axis(const axis_search *s, ir_ref p, bool most) {
  ir *g = s->g;
  const ir_node n = *ir_get(g, p);
  if ((s->reads[p] & ~(1u << s->axis)) == 0) return p;
  switch (n.op) {
    case IR_AND:
    case IR_OR: {
      const ir_ref x = along_axis(s, n.arg[0], most), y = along_axis(s, n.arg[1], most);
      return ir_op2(g, (ir_op)n.op, x, y);
    }
    case IR_NOT:
      return ir_op1(g, IR_NOT, along_axis(s, n.arg[0], !most));
    case IR_SELECT: {
      const ir_ref yes = along_axis(s, n.arg[0], most), no = ir_op1(g, IR_NOT, along_axis(s, n.arg[0], !most));
      const ir_ref x = along_axis(s, n.arg[1], most), y = along_axis(s, n.arg[2], most);
      const ir_ref first = ir_op2(g, IR_AND, yes, x), second = ir_op2(g, IR_AND, no, y);
      return ir_op2(g, IR_OR, first, second);
    }
    default:
      return ir_bool(g, most);
  }
}

static bool find_axes_read(arena *a, const ir *g, uint8_t **reads) {
  const uint32_t count = ir_count(g);
  *reads = arena_array(a, count, sizeof **reads);
  if (*reads == NULL) return false;
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    const bool is_place = n->op == IR_VAR && (ir_var_of(n) == VAR_Q || ir_var_of(n) == VAR_KV);
    if (is_place) (*reads)[r] = (uint8_t)(1u << ir_index_of(n));
    for (int i = 0; i < n->nargs; i++) (*reads)[r] |= (*reads)[n->arg[i]];
  }
  return true;
}

enum { SWAPPED = 4 };

/* The variables of the axis and those of axis 0 in each other's places. */
static ir_ref swapped(ir *g, ir_ref r, int axis) {
  static const ir_var of[SWAPPED] = {VAR_Q, VAR_KV, VAR_Q_LEN, VAR_KV_LEN};
  ir_ref from[2 * SWAPPED], to[2 * SWAPPED];
  if (r == IR_NONE || axis == 0) return r;
  for (int i = 0; i < SWAPPED; i++) {
    from[i] = to[SWAPPED + i] = ir_variable(g, of[i], 0);
    from[SWAPPED + i] = to[i] = ir_variable(g, of[i], (uint32_t)axis);
  }
  return ir_substitute(g, r, from, to, 2 * SWAPPED);
}

/* A bound that was found for axis 0, as one of the axis: of the ends of a box along it. */
static void take_bound(ir *g, ir_ref *bound, int axis) {
  ir_ref from[4], to[4];
  if (*bound == IR_NONE) return;
  ir_simplify(g, bound, 1);
  for (uint32_t i = 0; i < 4; i++) {
    from[i] = ir_variable(g, VAR_TILE, i);
    to[i] = ir_variable(g, VAR_TILE, MASK_AXIS_ENDS * (uint32_t)axis + i);
  }
  *bound = swapped(g, ir_substitute(g, *bound, from, to, 4), axis);
}

static void take_intervals(ir *g, mask_intervals *m, int axis) {
  ir_ref *const all[] = {&m->lo[0], &m->hi[0], &m->lo[1], &m->hi[1], &m->rest_lo, &m->rest_hi};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) take_bound(g, all[i], axis);
}

static void find_bounds(const axis_search *s, ir_ref keep, mask_axis *out) {
  ir *g = s->g;
  ir_ref along = along_axis(s, keep, true);
  ir_simplify(g, &along, 1);
  along = swapped(g, along, s->axis);
  const ir_ref of_q = in_group(g, along, out->step, ir_variable(g, VAR_TILE, VAR_Q0)),
               of_kv = in_group(g, along, out->step, ir_variable(g, VAR_TILE, VAR_KV0));
  const range kv = range_of(g, of_q, VAR_KV), q = range_of(g, of_kv, VAR_Q);
  out->kv_lo = kv.lo, out->kv_hi = kv.hi, out->q_lo = q.lo, out->q_hi = q.hi;
  ir_ref *const all[] = {&out->kv_lo, &out->kv_hi, &out->q_lo, &out->q_hi};
  for (int i = 0; i < 4; i++) take_bound(g, all[i], s->axis);
}

/* Gives the axis each conjunct that reads it alone, and axis 0 those that read none. False: one reads several. */
static bool take_conjuncts(const axis_search *s, ir_ref p, ir_ref *own) {
  const ir_node n = *ir_get(s->g, p);
  if (n.op == IR_AND) return take_conjuncts(s, n.arg[0], own) && take_conjuncts(s, n.arg[1], own);
  const uint8_t reads = s->reads[p];
  if ((reads & (reads - 1)) != 0) return false;
  if (reads == 1u << s->axis || (reads == 0 && s->axis == 0))
    *own = *own == IR_NONE ? p : ir_op2(s->g, IR_AND, *own, p);
  return true;
}

/* The intervals of a row and a column along the axis, exact: what the mask keeps is their product. */
static bool find_intervals(const axis_search *s, ir_ref keep, mask_axis *out) {
  ir *g = s->g;
  ir_ref own = IR_NONE, bounds, rest;
  if (!take_conjuncts(s, keep, &own)) return false;
  out->rows = out->columns = (mask_intervals){.count = 1};
  if (own == IR_NONE) return true;
  own = swapped(g, own, s->axis);
  out->rows = mask_rows_of(g, in_group(g, own, out->step, ir_variable(g, VAR_Q, 0)), &bounds, &rest);
  if (rest != IR_NONE) out->rows = (mask_intervals){.count = 0};
  out->columns = mask_columns_of(g, in_group(g, own, out->step, ir_variable(g, VAR_KV, 0)), IR_NONE);
  take_intervals(g, &out->rows, s->axis);
  take_intervals(g, &out->columns, s->axis);
  return true;
}

bool mask_find_axes(arena *a, const traced_spec *t, mask_info *m) {
  ir *g = t->g;
  uint8_t *reads;
  m->num_axes = ir_axes(g);
  m->is_product = true;
  for (int axis = 0; axis < m->num_axes; axis++)
    m->axis[axis].rows.count = m->axis[axis].columns.count = m->axis[axis].step = 1;
  if (m->keep == IR_NONE) return true;
  if (!find_axes_read(a, g, &reads)) return false;
  m->within = take_steps(&(axis_search){g, 0, reads}, m->keep, m);
  if (!find_axes_read(a, g, &reads)) return false; /* of nodes that within has, too */
  for (int axis = 0; axis < m->num_axes && m->within != IR_NONE; axis++) {
    const axis_search s = {g, axis, reads};
    find_bounds(&s, m->within, &m->axis[axis]);
    m->is_product &= find_intervals(&s, m->within, &m->axis[axis]);
  }
  for (int axis = 0; axis < m->num_axes && !m->is_product; axis++)
    m->axis[axis].rows.count = m->axis[axis].columns.count = 0;
  return true;
}
