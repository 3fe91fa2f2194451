/* columns.c: the mask as a key sees it: which queries it is kept for, where they are an interval, or one in
 * each row of a grid. For backward, whose threads have a few keys each, and many queries. */
#include "gen/analysis/analysis.h"
#include "gen/analysis/range.h"

#define MAX_CONJUNCTS 32
#define MAX_WORK 256 /* visits of nodes a conjunct; shared ones are visited again */
#define MAX_PERIOD (1 << 20)
#define LEAST_PERIOD 16

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

/* A gather at q or kv, which a range would repeat for each tile. */
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

/* Whether q occurs, and only as q mod c with one constant c: *mod, IR_NONE so far or else the same. */
static bool is_of_remainder(const ir *g, ir_ref r, ir_ref *mod, int *work) {
  const ir_node *n = ir_get(g, r);
  double c;
  if (--*work < 0) return false;
  if (!ir_uses(g, r, VAR_Q)) return true;
  if (n->op == IR_MOD && ir_is_var(g, n->arg[0], VAR_Q) && ir_is_const(g, n->arg[1], &c)) {
    if (c < LEAST_PERIOD || c > MAX_PERIOD || (*mod != IR_NONE && *mod != r)) return false;
    *mod = r;
    return true;
  }
  for (int i = 0; i < n->nargs; i++)
    if (!is_of_remainder(g, n->arg[i], mod, work)) return false;
  return n->nargs > 0;
}

static void intersect(ir *g, ir_ref *lo, ir_ref *hi, range with) {
  if (with.lo != IR_NONE) *lo = *lo == IR_NONE ? with.lo : ir_op2(g, IR_MAX, *lo, with.lo);
  if (with.hi != IR_NONE) *hi = *hi == IR_NONE ? with.hi : ir_op2(g, IR_MIN, *hi, with.hi);
}

/* False: what p says of q is neither an interval nor one of q mod the period. */
static bool join(ir *g, ir_ref p, mask_columns *m) {
  const ir_ref q = ir_variable(g, VAR_Q, 0), kv = ir_variable(g, VAR_KV, 0),
               key = ir_variable(g, VAR_TILE, VAR_KV0);
  ir_ref mod = IR_NONE;
  int work = MAX_WORK;
  if (gathers(g, p, &work)) return false;
  work = MAX_WORK;
  const bool of_mod = is_of_remainder(g, p, &mod, &work) && mod != IR_NONE;
  if (of_mod && m->period != 0 && m->mod != mod) return false;
  const ir_ref at_key = ir_substitute(g, of_mod ? ir_substitute(g, p, &mod, &q, 1) : p, &kv, &key, 1);
  const range kept = range_of(g, at_key, VAR_Q);
  if (!kept.exact) return false;
  if (of_mod) {
    double c;
    ir_is_const(g, ir_get(g, mod)->arg[1], &c);
    m->period = (int)c;
    m->mod = mod;
    intersect(g, &m->rest_lo, &m->rest_hi, kept);
  } else {
    intersect(g, &m->lo, &m->hi, kept);
  }
  return true;
}

mask_columns mask_columns_of(ir *g, ir_ref keep, ir_ref rest) {
  mask_columns m = {.known = true}, none = {.known = false};
  conjuncts all = {.count = 0}, apart = {.count = 0};
  if (!take_apart(g, keep, &all) || (rest != IR_NONE && !take_apart(g, rest, &apart))) return none;
  for (int i = 0; i < all.count; i++) {
    if (join(g, all.part[i], &m)) continue;
    if (!is_part(&apart, all.part[i])) return none;
    m.apart = true;
  }
  if (m.period != 0) {
    if (m.rest_lo == IR_NONE) m.rest_lo = ir_int(g, 0);
    if (m.rest_hi == IR_NONE) m.rest_hi = ir_int(g, m.period);
  }
  return m;
}
