/* mask_intervals.c: finds the mask intervals of one query or one key: a row's kv, or a column's q, where
 * these are one or two intervals, possibly restricted to some remainders. A kernel then need not evaluate the
 * predicate for each element. */
#include "gen/analysis/masks/mask.h"
#include "gen/analysis/masks/range.h"

#define MAX_CONJUNCTS 32
#define MAX_WORK 256 /* nodes visited per conjunct; shared ones are visited again */
#define MAX_PERIOD (1 << 20)

/* The position whose intervals are sought, and the variable of the other, which is constant in a row or
 * column. */
typedef struct line_search {
  ir *g;
  ir_var main, other;
  ir_ref at;
  range kept;
  mask_intervals out;
} line_search;

typedef struct conjuncts {
  int count;
  ir_ref part[MAX_CONJUNCTS];
} conjuncts;

static bool take_apart(const ir *g, ir_ref p, conjuncts *out) {
  const ir_node *n = ir_get(g, p);
  if (n->op == IR_AND) return take_apart(g, n->arg[0], out) && take_apart(g, n->arg[1], out);
  if (out->count == MAX_CONJUNCTS) return false;
  out->part[out->count++] = p;
  return true;
}

static bool is_part(const conjuncts *of, ir_ref p) {
  for (int i = 0; i < of->count; i++)
    if (of->part[i] == p) return true;
  return false;
}

/* A gather at q or kv, which each tile would repeat. */
static bool gathers(const ir *g, ir_ref r, int *work) {
  const ir_node *n = ir_get(g, r);
  if (--*work < 0) return true;
  if (!ir_uses_op(g, r, IR_LOAD)) return false;
  for (int i = 0; i < n->nargs; i++) {
    if (n->op == IR_LOAD && (ir_uses(g, n->arg[i], VAR_Q) || ir_uses(g, n->arg[i], VAR_KV))) return true;
    if (gathers(g, n->arg[i], work)) return true;
  }
  return false;
}

/* ---- remainders ---- */

static bool is_period(const ir *g, ir_ref r, int *c) {
  double value;
  if (!ir_is_const(g, r, &value) || value < 2 || value > MAX_PERIOD) return false;
  *c = (int)value;
  return true;
}

/* Whether main occurs, and only as main mod c with one constant c: *mod, IR_NONE before the first or equal to
 * it. */
static bool is_of_remainder(const line_search *s, ir_ref r, ir_ref *mod, int *work) {
  const ir_node *n = ir_get(s->g, r);
  int c;
  if (--*work < 0) return false;
  if (!ir_uses(s->g, r, s->main)) return true;
  if (n->op == IR_MOD && ir_is_var(s->g, n->arg[0], s->main)) {
    if (!is_period(s->g, n->arg[1], &c) || (*mod != IR_NONE && *mod != r)) return false;
    *mod = r;
    return true;
  }
  for (int i = 0; i < n->nargs; i++)
    if (!is_of_remainder(s, n->arg[i], mod, work)) return false;
  return n->nargs > 0;
}

/* Adds sign * e to *of_main * main + *rest, *rest free of main. False: e is no such sum. */
static bool is_shifted(const line_search *s, ir_ref e, int sign, int *of_main, ir_ref *rest, int *work) {
  const ir_node n = *ir_get(s->g, e);
  if (--*work < 0) return false;
  if (!ir_uses(s->g, e, s->main)) {
    *rest = ir_op2(s->g, sign > 0 ? IR_ADD : IR_SUB, *rest, e);
    return true;
  }
  switch (n.op) {
    case IR_VAR:
      *of_main += sign;
      return true;
    case IR_NEG:
      return is_shifted(s, n.arg[0], -sign, of_main, rest, work);
    case IR_ADD:
    case IR_SUB:
      return is_shifted(s, n.arg[0], sign, of_main, rest, work) &&
             is_shifted(s, n.arg[1], n.op == IR_ADD ? sign : -sign, of_main, rest, work);
    default:
      return false;
  }
}

/* The remainder of main mod c where (main + rest) mod c == k or (rest - main) mod c == k. IR_NONE: p has
 * neither form. */
static ir_ref find_residue(const line_search *s, ir_ref p, int *period) {
  ir *g = s->g;
  const ir_node eq = *ir_get(g, p);
  double k;
  if (eq.op != IR_EQ || ir_typeof(g, eq.arg[0]) != IR_INT) return IR_NONE;
  const int side = ir_is_const(g, eq.arg[1], &k) ? 0 : 1;
  const ir_node mod = *ir_get(g, eq.arg[side]);
  int sign = 0, work = MAX_WORK;
  ir_ref rest = ir_int(g, 0);
  if (mod.op != IR_MOD || !is_period(g, mod.arg[1], period) || !ir_is_const(g, eq.arg[1 - side], &k)) return IR_NONE;
  if (ir_is_wide(g, mod.arg[0]) && (*period & (*period - 1)) != 0) return IR_NONE; /* the sum is one modulo 2^64 */
  if (k < 0 || k >= *period || !is_shifted(s, mod.arg[0], 1, &sign, &rest, &work)) return IR_NONE;
  if (sign != 1 && sign != -1) return IR_NONE;
  const ir_ref gap = ir_op2(g, IR_SUB, ir_int(g, (int64_t)k), rest);
  return ir_op2(g, IR_MOD, sign > 0 ? gap : ir_op1(g, IR_NEG, gap), mod.arg[1]);
}

static ir_ref of_line(const line_search *s, ir_ref r) {
  const ir_ref other = ir_variable(s->g, s->other, 0);
  return ir_substitute(s->g, r, &other, &s->at, 1);
}

/* Restricts main mod period to [lo, hi); IR_NONE: no bound. */
static bool join_period(line_search *s, int period, ir_ref lo, ir_ref hi) {
  mask_intervals *m = &s->out;
  if (m->period != 0 && m->period != period) return false;
  if (m->period == 0) m->rest_lo = ir_int(s->g, 0), m->rest_hi = ir_int(s->g, period);
  m->period = period;
  if (lo != IR_NONE) m->rest_lo = ir_op2(s->g, IR_MAX, m->rest_lo, lo);
  if (hi != IR_NONE) m->rest_hi = ir_op2(s->g, IR_MIN, m->rest_hi, hi);
  return true;
}

/* ---- */

/* False: p restricts main neither to intervals nor to one of its remainders modulo the period. */
static bool join(line_search *s, ir_ref p) {
  const ir_ref main = ir_variable(s->g, s->main, 0);
  ir_ref mod = IR_NONE;
  int work = MAX_WORK, period = 0;
  if (gathers(s->g, p, &work)) return false;
  const ir_ref residue = find_residue(s, p, &period);
  if (residue != IR_NONE) {
    const ir_ref lo = of_line(s, residue);
    return join_period(s, period, lo, ir_op2(s->g, IR_ADD, lo, ir_int(s->g, 1)));
  }
  work = MAX_WORK;
  const bool of_mod = is_of_remainder(s, p, &mod, &work) && mod != IR_NONE;
  if (of_mod) p = ir_substitute(s->g, p, &mod, &main, 1);
  const range kept = ranges_of(s->g, of_line(s, p), s->main);
  if (!kept.exact) return false;
  if (of_mod) {
    is_period(s->g, ir_get(s->g, mod)->arg[1], &period);
    return !kept.two && join_period(s, period, kept.lo, kept.hi);
  }
  const range all = range_both(s->g, s->kept, kept);
  if (!all.exact) return false;
  s->kept = all;
  return true;
}

static line_search search(ir *g, ir_var main) {
  line_search s = {.g = g, .main = main, .other = main == VAR_KV ? VAR_Q : VAR_KV, .kept = {.exact = true}};
  s.at = ir_variable(g, VAR_TILE, main == VAR_KV ? VAR_Q0 : VAR_KV0);
  return s;
}

static mask_intervals found(line_search *s) {
  mask_intervals m = s->out;
  m.count = s->kept.two ? 2 : 1;
  m.lo[0] = s->kept.lo, m.hi[0] = s->kept.hi;
  m.lo[1] = s->kept.lo2, m.hi[1] = s->kept.hi2;
  return m;
}

static ir_ref conjoin(ir *g, ir_ref p, ir_ref q) { return p == IR_NONE ? q : ir_op2(g, IR_AND, p, q); }

mask_intervals mask_rows_of(ir *g, ir_ref keep, ir_ref *bounds, ir_ref *rest) {
  line_search s = search(g, VAR_KV);
  conjuncts all = {.count = 0};
  *bounds = *rest = IR_NONE;
  if (!take_apart(g, keep, &all)) return (mask_intervals){.count = 0};
  for (int i = 0; i < all.count; i++) {
    ir_ref *to = join(&s, all.part[i]) ? bounds : rest;
    *to = conjoin(g, *to, all.part[i]);
  }
  if (*bounds == IR_NONE) *rest = IR_NONE;
  s.out.apart = *rest != IR_NONE;
  if (*bounds == IR_NONE) return (mask_intervals){.count = 0};
  return found(&s);
}

mask_intervals mask_columns_of(ir *g, ir_ref keep, ir_ref rest) {
  line_search s = search(g, VAR_Q);
  const mask_intervals none = {.count = 0};
  conjuncts all = {.count = 0}, apart = {.count = 0};
  if (!take_apart(g, keep, &all) || (rest != IR_NONE && !take_apart(g, rest, &apart))) return none;
  for (int i = 0; i < all.count; i++) {
    if (join(&s, all.part[i])) continue;
    if (!is_part(&apart, all.part[i])) return none;
    s.out.apart = true;
  }
  return found(&s);
}
