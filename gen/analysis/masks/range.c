/* range.c: solves the comparisons of a predicate for one position.
 *
 * A comparison is brought into the form f(main) <= U, where U bounds everything else over the interval of the
 * other position (symbolic interval arithmetic). f is then inverted from outside in: sums, products by
 * constants, floor divisions, min, max, abs and select. An expression that cannot be inverted gives no bound,
 * which is always sound. `and` intersects; `or` takes the hull or, for a single row or column, two
 * intervals. */
#include "gen/analysis/masks/range.h"

#include "gen/analysis/masks/mask.h"
#include "gen/ir/passes.h"

#define MAX_ATOMS 16
#define MAX_WORK 4000           /* calls; beyond it there is no bound, so that no predicate takes long */
#define MAX_CONSTANT 0x40000000 /* of a linear form */
#define WIDE_LIMIT (INT64_C(1) << 40)
#define REAL_LIMIT 1073741824.0 /* a REAL bound is clamped here before it becomes an INT, far beyond any length */

typedef struct ranger {
  ir *g;
  ir_var main, other;
  ir_ref len;                /* of main */
  ir_ref other_lo, other_hi; /* inclusive */
  int work;
  bool near;      /* no sum of 64 bits wraps around */
  bool may_split; /* into two intervals */
  bool lost;      /* a part of the predicate was dropped */
} ranger;

/* sum of coef[i] * atom[i] + constant */
typedef struct linear {
  int count;
  ir_ref atom[MAX_ATOMS];
  int64_t coef[MAX_ATOMS], constant;
  bool failed;
} linear;

static const range everything = {.lo = IR_NONE, .hi = IR_NONE}, nothing = {.lo = IR_NONE, .hi = IR_NONE, .never = true};

static range predicate(ranger *r, ir_ref p, bool want);
static range int_at_most(ranger *r, ir_ref e, ir_ref bound);
static range int_at_least(ranger *r, ir_ref e, ir_ref bound);
static range real_at_most(ranger *r, ir_ref e, ir_ref bound, bool strict, bool rounded);
static range real_at_least(ranger *r, ir_ref e, ir_ref bound, bool strict, bool rounded);

static bool out_of_work(ranger *r) { return ++r->work > MAX_WORK || ir_failed(r->g); }
static bool has_main(const ranger *r, ir_ref e) { return ir_uses(r->g, e, r->main); }
static bool has_other(const ranger *r, ir_ref e) { return ir_uses(r->g, e, r->other); }

/* Returns the sound answer if no bound is found. */
static range unknown(ranger *r) {
  r->lost = true;
  return everything;
}

static ir_ref binary(ranger *r, ir_op op, ir_ref x, ir_ref y) {
  return x == IR_NONE || y == IR_NONE ? IR_NONE : ir_op2(r->g, op, x, y);
}
static ir_ref negated(ranger *r, ir_ref x) { return x == IR_NONE ? IR_NONE : ir_op1(r->g, IR_NEG, x); }
static ir_ref plus(ranger *r, ir_ref x, int64_t c) { return ir_op2(r->g, IR_ADD, x, ir_int(r->g, c)); }

static ir_ref larger(ir *g, ir_ref x, ir_ref y) {
  return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(g, IR_MAX, x, y);
}
static ir_ref smaller(ir *g, ir_ref x, ir_ref y) {
  return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(g, IR_MIN, x, y);
}

static range first(range a) { return (range){.lo = a.lo, .hi = a.hi, .gate = a.gate}; }
static range second(range a) { return (range){.lo = a.lo2, .hi = a.hi2}; }
static range pair(range a, range b) { return (range){.lo = a.lo, .hi = a.hi, .lo2 = b.lo, .hi2 = b.hi, .two = true}; }
static range hull(ranger *r, range a, range b) {
  return (range){.lo = binary(r, IR_MIN, a.lo, b.lo), .hi = binary(r, IR_MAX, a.hi, b.hi), .gate = a.gate && b.gate};
}
static range whole(ranger *r, range a) { return a.two ? hull(r, first(a), second(a)) : a; }

static range common(ir *g, range a, range b) {
  const ir_ref lo = larger(g, a.lo, b.lo);
  return (range){.lo = lo, .hi = smaller(g, a.hi, b.hi)};
}

/* Whether b is one interval. */
static range both_of_one(ir *g, range a, range b) {
  range x = common(g, a, b);
  if (a.two) x = pair(x, common(g, second(a), b));
  x.only = a.only != IR_NONE ? a.only : b.only;
  return x;
}

static range both(ranger *r, range a, range b) {
  if (a.never || b.never) return nothing;
  if (!b.two) return both_of_one(r->g, a, b);
  if (a.two) r->lost = true;
  return both_of_one(r->g, b, whole(r, a));
}

/* Whether, for every row or column, at least one of the two is empty. */
static bool exclude(ir *g, range a, range b) {
  double c;
  if (a.only == IR_NONE || b.only == IR_NONE) return false;
  ir_ref sum = ir_op2(g, IR_ADD, a.only, b.only);
  ir_simplify(g, &sum, 1);
  return ir_is_const(g, sum, &c) && c < 0;
}

/* The union. For a tile, or beyond two intervals, the hull, which may be larger than the union. It is equal
 * where one is everything or empty, where both reach the same end, or where of two exclusive ones one is
 * empty in each row or column. */
static range either(ranger *r, range a, range b) {
  if (a.never) return b;
  if (b.never) return a;
  if (a.two && b.gate) return pair(hull(r, first(a), b), hull(r, second(a), b));
  if (b.two && a.gate) return pair(hull(r, a, first(b)), hull(r, a, second(b)));
  const bool upward = a.hi == IR_NONE && b.hi == IR_NONE, downward = a.lo == IR_NONE && b.lo == IR_NONE;
  const bool one = !a.two && !b.two;
  if (one && (upward || downward || a.gate || b.gate)) return hull(r, a, b);
  if (exclude(r->g, a, b)) {
    const range x = hull(r, first(a), first(b));
    if (one) return x;
    return pair(x, a.two && b.two ? hull(r, second(a), second(b)) : second(a.two ? a : b));
  }
  if (one && r->may_split) return pair(a, b);
  r->lost = true;
  return hull(r, whole(r, a), whole(r, b));
}

/* An expression that is at least 0 exactly where p, a comparison of integers, holds. */
static ir_ref margin(ir *g, ir_ref p) {
  const bool negated = ir_get(g, p)->op == IR_NOT;
  const ir_node n = *ir_get(g, negated ? ir_get(g, p)->arg[0] : p);
  if ((n.op != IR_LE && n.op != IR_LT) || ir_typeof(g, n.arg[0]) != IR_INT || ir_is_wide(g, n.arg[0]) ||
      ir_is_wide(g, n.arg[1]))
    return IR_NONE;
  const ir_ref gap = ir_op2(g, IR_SUB, n.arg[negated ? 0 : 1], n.arg[negated ? 1 : 0]);
  return negated == (n.op == IR_LE) ? ir_op2(g, IR_SUB, gap, ir_int(g, 1)) : gap;
}

/* Everything where `possible` (free of positions) holds, else empty. */
static range gate(ranger *r, ir_ref possible) {
  if (possible == IR_NONE) return unknown(r);
  const ir_node *n = ir_get(r->g, possible);
  if (n->op == IR_CONST_BOOL) return n->imm.integer ? everything : nothing;
  const ir_ref zero = ir_int(r->g, 0);
  return (range){.lo = ir_op3(r->g, IR_SELECT, possible, zero, r->len),
                 .hi = ir_op3(r->g, IR_SELECT, possible, r->len, zero),
                 .gate = true,
                 .only = r->may_split ? margin(r->g, possible) : IR_NONE};
}

/* ---- bounds of expressions free of main, over the interval of the other position ---- */

static ir_ref bound(ranger *r, ir_ref e, bool upper);

/* Bounds a * b, one of them free of positions. */
static ir_ref bound_product(ranger *r, ir_ref a, ir_ref b, bool upper) {
  double c;
  if (has_other(r, a)) {
    const ir_ref t = a;
    a = b;
    b = t;
  }
  if (has_other(r, a)) return IR_NONE;
  if (ir_is_const(r->g, a, &c)) return binary(r, IR_MUL, a, bound(r, b, upper == (c >= 0)));
  const ir_ref x = binary(r, IR_MUL, a, bound(r, b, true)), y = binary(r, IR_MUL, a, bound(r, b, false));
  return binary(r, upper ? IR_MAX : IR_MIN, x, y);
}

static ir_ref bound_min_max(ranger *r, const ir_node *n, bool upper) {
  const ir_ref x = bound(r, n->arg[0], upper), y = bound(r, n->arg[1], upper);
  if (x != IR_NONE && y != IR_NONE) return ir_op2(r->g, (ir_op)n->op, x, y);
  /* min(x, y) <= x for any y. */
  return upper == (n->op == IR_MIN) ? (x != IR_NONE ? x : y) : IR_NONE;
}

static ir_ref zero_like(ranger *r, ir_ref e) {
  return ir_typeof(r->g, e) == IR_INT ? ir_int(r->g, 0) : ir_real(r->g, 0);
}

static ir_ref bound_abs(ranger *r, ir_ref e, bool upper) {
  const ir_ref hi = bound(r, e, true), minus_lo = negated(r, bound(r, e, false));
  if (upper) return binary(r, IR_MAX, hi, minus_lo);
  const ir_ref below = negated(r, hi);
  const ir_ref zero = zero_like(r, e);
  if (minus_lo == IR_NONE || below == IR_NONE) return zero;
  return ir_op2(r->g, IR_MAX, zero, ir_op2(r->g, IR_MAX, negated(r, minus_lo), below));
}

static ir_ref bound_select(ranger *r, const ir_node *n, bool upper) {
  const ir_ref x = bound(r, n->arg[1], upper), y = bound(r, n->arg[2], upper);
  if (x == IR_NONE || y == IR_NONE) return IR_NONE;
  if (!has_other(r, n->arg[0])) return ir_op3(r->g, IR_SELECT, n->arg[0], x, y);
  return ir_op2(r->g, upper ? IR_MAX : IR_MIN, x, y);
}

static ir_ref bound_quotient(ranger *r, const ir_node *n, bool upper) {
  double c;
  if (!ir_is_const(r->g, n->arg[1], &c) || c == 0) return IR_NONE;
  return binary(r, (ir_op)n->op, bound(r, n->arg[0], upper == (c > 0)), n->arg[1]);
}

static ir_ref bound_mod(ranger *r, const ir_node *n, bool upper) {
  double c;
  if (!ir_is_const(r->g, n->arg[1], &c) || c == 0) return IR_NONE;
  const bool integer = n->type == IR_INT;
  if (upper != (c > 0)) return integer ? ir_int(r->g, 0) : ir_real(r->g, 0);
  return integer ? ir_int(r->g, (int64_t)c + (c > 0 ? -1 : 1)) : n->arg[1];
}

/* A number of 64 bits as near to 0 as compares alike with all that has 32, so that what follows does not wrap
 * around. */
static ir_ref nearest(ranger *r, ir_ref e) {
  if (r->near || ir_typeof(r->g, e) != IR_INT || !ir_is_wide(r->g, e)) return e;
  const ir_ref above = ir_op2(r->g, IR_MAX, e, ir_int(r->g, -WIDE_LIMIT));
  return ir_op2(r->g, IR_MIN, above, ir_int(r->g, WIDE_LIMIT));
}

/* An upper or lower bound of e (free of main) as an expression free of positions; IR_NONE if none is
 * found. */
static ir_ref bound(ranger *r, ir_ref e, bool upper) {
  if (out_of_work(r) || has_main(r, e)) return IR_NONE;
  if (!has_other(r, e)) return nearest(r, e);
  const ir_node n = *ir_get(r->g, e);
  switch (n.op) {
    case IR_VAR:
      return upper ? r->other_hi : r->other_lo;
    case IR_ADD:
      return binary(r, IR_ADD, bound(r, n.arg[0], upper), bound(r, n.arg[1], upper));
    case IR_SUB:
      return binary(r, IR_SUB, bound(r, n.arg[0], upper), bound(r, n.arg[1], !upper));
    case IR_NEG:
      return negated(r, bound(r, n.arg[0], !upper));
    case IR_MUL:
      return bound_product(r, n.arg[0], n.arg[1], upper);
    case IR_DIV:
    case IR_FLOORDIV:
      return bound_quotient(r, &n, upper);
    case IR_MOD:
      return bound_mod(r, &n, upper);
    case IR_MIN:
    case IR_MAX:
      return bound_min_max(r, &n, upper);
    case IR_ABS:
      return bound_abs(r, n.arg[0], upper);
    case IR_SELECT:
      return bound_select(r, &n, upper);
    case IR_TO_REAL:
    case IR_TO_INT:
    case IR_FLOOR_INT:
    case IR_FLOOR: {
      const ir_ref x = bound(r, n.arg[0], upper);
      return x == IR_NONE ? IR_NONE : ir_op1(r->g, (ir_op)n.op, x);
    }
    default:
      return IR_NONE;
  }
}

/* ---- linear forms ---- */

static void linear_add(ranger *r, linear *l, ir_ref e, int64_t coef) {
  if (l->failed || out_of_work(r)) {
    l->failed = true;
    return;
  }
  const ir_node n = *ir_get(r->g, e);
  double c;
  switch (n.op) {
    case IR_CONST_INT:
      l->failed = n.imm.integer > MAX_CONSTANT || n.imm.integer < -MAX_CONSTANT;
      if (!l->failed) l->constant += coef * n.imm.integer;
      if (l->constant > MAX_CONSTANT || l->constant < -MAX_CONSTANT) l->failed = true;
      return;
    case IR_ADD:
    case IR_SUB:
      linear_add(r, l, n.arg[0], coef);
      linear_add(r, l, n.arg[1], n.op == IR_ADD ? coef : -coef);
      return;
    case IR_NEG:
      linear_add(r, l, n.arg[0], -coef);
      return;
    case IR_MUL:
      for (int i = 0; i < 2; i++) {
        if (!ir_is_const(r->g, n.arg[i], &c)) continue;
        l->failed = c > MAX_CONSTANT || c < -MAX_CONSTANT;
        if (!l->failed) coef *= (int64_t)c;
        if (coef > MAX_CONSTANT || coef < -MAX_CONSTANT) l->failed = true;
        linear_add(r, l, n.arg[1 - i], coef);
        return;
      }
      break;
    default:
      break;
  }
  int i = 0;
  while (i < l->count && l->atom[i] != e) i++;
  if (i == MAX_ATOMS) {
    l->failed = true;
    return;
  }
  if (i == l->count) {
    l->atom[l->count] = e;
    l->coef[l->count++] = 0;
  }
  l->coef[i] += coef;
}

/* The largest value of -(l without atom `skip`) over the interval of the other position; IR_NONE if not
 * found. */
static ir_ref largest_of_minus(ranger *r, const linear *l, int skip) {
  ir_ref sum = ir_int(r->g, -l->constant);
  for (int i = 0; i < l->count && sum != IR_NONE; i++) {
    if (i == skip || l->coef[i] == 0) continue;
    const ir_ref x = bound(r, l->atom[i], l->coef[i] < 0);
    if (x == IR_NONE) return IR_NONE;
    /* writes a - b instead of a + -1 * b, as simplify would. */
    if (l->coef[i] == 1)
      sum = ir_op2(r->g, IR_SUB, sum, x);
    else
      sum = ir_op2(r->g, IR_ADD, sum, ir_op2(r->g, IR_MUL, x, ir_int(r->g, -l->coef[i])));
  }
  return sum;
}

/* ---- inverting an integer expression ---- */

static ir_ref times(ranger *r, ir_ref x, int64_t c) { return ir_op2(r->g, IR_MUL, x, ir_int(r->g, c)); }

/* a // c <= bound, or >= bound */
static range invert_quotient(ranger *r, ir_ref a, int64_t c, ir_ref limit, bool at_most) {
  if (c > MAX_CONSTANT || c < -MAX_CONSTANT || c == 0) return unknown(r);
  if (at_most) {
    return c > 0 ? int_at_most(r, a, plus(r, times(r, limit, c), c - 1))
                 : int_at_least(r, a, plus(r, times(r, limit, c), c + 1));
  }
  return c > 0 ? int_at_least(r, a, times(r, limit, c)) : int_at_most(r, a, times(r, limit, c));
}

static range invert_select(ranger *r, const ir_node *n, ir_ref limit, bool at_most, bool integer, bool strict,
                           bool rounded) {
  range arm[2];
  for (int i = 0; i < 2; i++) {
    const ir_ref e = n->arg[1 + i];
    if (integer)
      arm[i] = at_most ? int_at_most(r, e, limit) : int_at_least(r, e, limit);
    else
      arm[i] = at_most ? real_at_most(r, e, limit, strict, rounded) : real_at_least(r, e, limit, strict, rounded);
    arm[i] = both(r, predicate(r, n->arg[0], i == 0), arm[i]);
  }
  return either(r, arm[0], arm[1]);
}

/* Solves for an atom of a linear form that contains main, compared with a limit that is free of positions. */
static range invert_atom(ranger *r, ir_ref atom, ir_ref limit, bool at_most) {
  if (out_of_work(r)) return unknown(r);
  const ir_node n = *ir_get(r->g, atom);
  range (*const compare)(ranger *, ir_ref, ir_ref) = at_most ? int_at_most : int_at_least;
  double c;
  switch (n.op) {
    case IR_VAR:
      return at_most ? (range){.lo = IR_NONE, .hi = plus(r, limit, 1)} : (range){.lo = limit, .hi = IR_NONE};
    case IR_FLOORDIV:
      if (!ir_is_const(r->g, n.arg[1], &c)) return unknown(r);
      return invert_quotient(r, n.arg[0], (int64_t)c, limit, at_most);
    case IR_MIN:
    case IR_MAX: {
      const range x = compare(r, n.arg[0], limit), y = compare(r, n.arg[1], limit);
      return (n.op == IR_MAX) == at_most ? both(r, x, y) : either(r, x, y);
    }
    case IR_ABS: {
      const ir_ref minus = ir_op1(r->g, IR_NEG, limit);
      const range x = compare(r, n.arg[0], limit);
      return at_most ? both(r, x, int_at_least(r, n.arg[0], minus)) : either(r, x, int_at_most(r, n.arg[0], minus));
    }
    case IR_SELECT:
      return invert_select(r, &n, limit, at_most, true, false, false);
    case IR_FLOOR_INT:
    case IR_TO_INT: {
      /* floor(x) <= n and trunc(x) <= n both imply x < n + 1; floor(x) >= n means x >= n, trunc(x) >= n
       * implies x > n - 1. */
      if (at_most) return real_at_most(r, n.arg[0], ir_to_real(r->g, plus(r, limit, 1)), true, false);
      if (n.op == IR_FLOOR_INT) return real_at_least(r, n.arg[0], ir_to_real(r->g, limit), false, false);
      return real_at_least(r, n.arg[0], ir_to_real(r->g, plus(r, limit, -1)), true, false);
    }
    default:
      return unknown(r);
  }
}

/* l <= 0 for some value of the other position */
static range solve(ranger *r, const linear *l) {
  int at = -1;
  if (l->failed) return unknown(r);
  for (int i = 0; i < l->count; i++) {
    if (l->coef[i] == 0 || !has_main(r, l->atom[i])) continue;
    if (at >= 0) return unknown(r);
    at = i;
  }
  const ir_ref rest = largest_of_minus(r, l, at);
  if (rest == IR_NONE) return unknown(r);
  if (at < 0) return gate(r, ir_op2(r->g, IR_LE, ir_int(r->g, 0), rest));
  /* c * atom <= rest */
  const int64_t c = l->coef[at];
  if (c > 0) return invert_atom(r, l->atom[at], ir_op2(r->g, IR_FLOORDIV, rest, ir_int(r->g, c)), true);
  return invert_atom(r, l->atom[at], negated(r, ir_op2(r->g, IR_FLOORDIV, rest, ir_int(r->g, -c))), false);
}

static range int_at_most(ranger *r, ir_ref e, ir_ref limit) {
  linear l = {.count = 0};
  linear_add(r, &l, e, 1);
  linear_add(r, &l, limit, -1);
  return solve(r, &l);
}

static range int_at_least(ranger *r, ir_ref e, ir_ref limit) {
  linear l = {.count = 0};
  linear_add(r, &l, e, -1);
  linear_add(r, &l, limit, 1);
  return solve(r, &l);
}

/* ---- inverting a real expression ----
 * `rounded`: something other than a conversion was moved across the comparison. Rounding may then put the
 * limit on the wrong side of an integer, so the integer bound gets one position of slack. */

static ir_ref to_int_below(ranger *r, ir_ref limit) {
  const ir_ref low = ir_op2(r->g, IR_MAX, limit, ir_real(r->g, -REAL_LIMIT));
  return ir_op1(r->g, IR_FLOOR_INT, ir_op2(r->g, IR_MIN, low, ir_real(r->g, REAL_LIMIT)));
}

/* The side of a sum or difference that is free of main; IR_NONE if both contain it. */
static int free_side(const ranger *r, const ir_node *n) {
  if (!has_main(r, n->arg[1])) return 1;
  return has_main(r, n->arg[0]) ? -1 : 0;
}

static range real_sum(ranger *r, const ir_node *n, ir_ref limit, bool at_most, bool strict) {
  const int side = free_side(r, n);
  if (side < 0) return unknown(r);
  const bool minus = n->op == IR_SUB;
  /* x + y <= u: x <= u - y.  x - y <= u: x <= u + y.  y - x <= u: x >= y - u. */
  const bool flips = minus && side == 0;
  const bool upper = flips ? !at_most : minus ? at_most : !at_most;
  const ir_ref y = bound(r, n->arg[side], upper), x = n->arg[1 - side];
  const ir_ref moved = flips ? binary(r, IR_SUB, y, limit) : binary(r, minus ? IR_ADD : IR_SUB, limit, y);
  if (moved == IR_NONE) return unknown(r);
  return at_most != flips ? real_at_most(r, x, moved, strict, true) : real_at_least(r, x, moved, strict, true);
}

static range real_product(ranger *r, const ir_node *n, ir_ref limit, bool at_most, bool strict) {
  double c = 0;
  int at = ir_is_const(r->g, n->arg[1], &c) ? 1 : 0;
  if (n->op == IR_DIV ? at != 1 : at == 0 && !ir_is_const(r->g, n->arg[0], &c)) return unknown(r);
  if (!(c > 1e-9 || c < -1e-9) || !(c < 1e9 && c > -1e9)) return unknown(r);
  const ir_ref moved = ir_op2(r->g, n->op == IR_DIV ? IR_MUL : IR_DIV, limit, ir_real(r->g, c));
  return at_most == (c > 0) ? real_at_most(r, n->arg[1 - at], moved, strict, true)
                            : real_at_least(r, n->arg[1 - at], moved, strict, true);
}

static range invert_real(ranger *r, ir_ref e, ir_ref limit, bool at_most, bool strict, bool rounded) {
  if (out_of_work(r)) return unknown(r);
  r->lost = true; /* by rounding */
  if (!has_main(r, e)) {
    const ir_ref x = bound(r, e, !at_most);
    if (x == IR_NONE) return unknown(r);
    return gate(r, at_most ? ir_op2(r->g, IR_LE, x, limit) : ir_op2(r->g, IR_LE, limit, x));
  }
  const ir_node n = *ir_get(r->g, e);
  range (*const compare)(ranger *, ir_ref, ir_ref, bool, bool) = at_most ? real_at_most : real_at_least;
  switch (n.op) {
    case IR_TO_REAL: {
      const int64_t slack = rounded ? 1 : 0;
      if (at_most) { /* x < u: x <= ceil(u) - 1 = -floor(-u) - 1 */
        const ir_ref u =
            strict ? plus(r, negated(r, to_int_below(r, ir_op1(r->g, IR_NEG, limit))), -1) : to_int_below(r, limit);
        return int_at_most(r, n.arg[0], plus(r, u, slack));
      }
      const ir_ref u =
          strict ? plus(r, to_int_below(r, limit), 1) : negated(r, to_int_below(r, ir_op1(r->g, IR_NEG, limit)));
      return int_at_least(r, n.arg[0], plus(r, u, -slack));
    }
    case IR_ADD:
    case IR_SUB:
      return real_sum(r, &n, limit, at_most, strict);
    case IR_NEG: {
      const ir_ref minus = ir_op1(r->g, IR_NEG, limit);
      return at_most ? real_at_least(r, n.arg[0], minus, strict, rounded)
                     : real_at_most(r, n.arg[0], minus, strict, rounded);
    }
    case IR_MUL:
    case IR_DIV:
      return real_product(r, &n, limit, at_most, strict);
    case IR_MIN:
    case IR_MAX: {
      const range x = compare(r, n.arg[0], limit, strict, rounded), y = compare(r, n.arg[1], limit, strict, rounded);
      return (n.op == IR_MAX) == at_most ? both(r, x, y) : either(r, x, y);
    }
    case IR_ABS: {
      const ir_ref minus = ir_op1(r->g, IR_NEG, limit);
      const range x = compare(r, n.arg[0], limit, strict, rounded);
      return at_most ? both(r, x, real_at_least(r, n.arg[0], minus, strict, rounded))
                     : either(r, x, real_at_most(r, n.arg[0], minus, strict, rounded));
    }
    case IR_SELECT:
      return invert_select(r, &n, limit, at_most, false, strict, rounded);
    case IR_FLOOR:
      return at_most ? real_at_most(r, n.arg[0], ir_op2(r->g, IR_ADD, limit, ir_real(r->g, 1)), true, true)
                     : real_at_least(r, n.arg[0], limit, false, rounded);
    default:
      return unknown(r);
  }
}

static range real_at_most(ranger *r, ir_ref e, ir_ref limit, bool strict, bool rounded) {
  return invert_real(r, e, limit, true, strict, rounded);
}

static range real_at_least(ranger *r, ir_ref e, ir_ref limit, bool strict, bool rounded) {
  return invert_real(r, e, limit, false, strict, rounded);
}

/* ---- comparisons and logic ---- */

/* x <= y, or x < y, where no sum wraps around */
static range ordered_near(ranger *r, ir_ref x, ir_ref y, bool strict) {
  if (ir_typeof(r->g, x) == IR_INT) {
    linear l = {.constant = strict ? 1 : 0};
    linear_add(r, &l, x, 1);
    linear_add(r, &l, y, -1);
    return solve(r, &l);
  }
  if (has_main(r, x) && has_main(r, y)) return unknown(r);
  if (has_main(r, y)) {
    const ir_ref limit = bound(r, x, false);
    return limit == IR_NONE ? unknown(r) : real_at_least(r, y, limit, strict, false);
  }
  const ir_ref limit = bound(r, y, true);
  return limit == IR_NONE ? unknown(r) : real_at_most(r, x, limit, strict, false);
}

static ir_ref where(ranger *r, ir_ref near, ir_ref end, ir_ref other) {
  return end == IR_NONE ? IR_NONE : ir_op3(r->g, IR_SELECT, near, end, other);
}

/* x <= y, or x < y. What an integer of 64 bits may make wrap around is unknown where it does. */
static range ordered(ranger *r, ir_ref x, ir_ref y, bool strict) {
  const bool was_near = r->near;
  const ir_ref zero = ir_int(r->g, 0);
  ir_ref near = IR_NONE;
  const wide_use use = range_wide_use(r->g, x, y, &near);
  if (use == WIDE_UNKNOWN) return unknown(r);
  r->near = use == WIDE_SUMS;
  range a = ordered_near(r, x, y, strict);
  r->near = was_near;
  if (use != WIDE_SUMS) return a;
  if (a.never) a = (range){.lo = r->len, .hi = zero};
  r->lost = true;
  return (range){.lo = where(r, near, a.lo, zero),
                 .hi = where(r, near, a.hi, r->len),
                 .lo2 = where(r, near, a.lo2, zero),
                 .hi2 = where(r, near, a.hi2, r->len),
                 .two = a.two};
}

static range predicate(ranger *r, ir_ref p, bool want) {
  if (out_of_work(r)) return unknown(r);
  const ir_node n = *ir_get(r->g, p);
  if (!has_main(r, p) && !has_other(r, p)) return gate(r, want ? p : ir_op1(r->g, IR_NOT, p));
  switch (n.op) {
    case IR_NOT:
      return predicate(r, n.arg[0], !want);
    case IR_AND:
    case IR_OR: {
      const range x = predicate(r, n.arg[0], want), y = predicate(r, n.arg[1], want);
      return (n.op == IR_AND) == want ? both(r, x, y) : either(r, x, y);
    }
    case IR_SELECT: {
      const range x = both(r, predicate(r, n.arg[0], true), predicate(r, n.arg[1], want));
      const range y = both(r, predicate(r, n.arg[0], false), predicate(r, n.arg[2], want));
      return either(r, x, y);
    }
    case IR_LT:
      return want ? ordered(r, n.arg[0], n.arg[1], true) : ordered(r, n.arg[1], n.arg[0], false);
    case IR_LE:
      return want ? ordered(r, n.arg[0], n.arg[1], false) : ordered(r, n.arg[1], n.arg[0], true);
    case IR_EQ:
    case IR_NE:
      if ((n.op == IR_EQ) == want)
        return both(r, ordered(r, n.arg[0], n.arg[1], false), ordered(r, n.arg[1], n.arg[0], false));
      if (!r->may_split) return unknown(r);
      return either(r, ordered(r, n.arg[0], n.arg[1], true), ordered(r, n.arg[1], n.arg[0], true));
    default:
      return unknown(r);
  }
}

static range solved(ir *g, ir_ref p, ir_var main, bool may_split) {
  const bool of_kv = main == VAR_KV;
  ranger r = {.g = g, .main = main, .other = of_kv ? VAR_Q : VAR_KV, .may_split = may_split};
  r.len = ir_variable(g, of_kv ? VAR_KV_LEN : VAR_Q_LEN, 0);
  r.other_lo = ir_variable(g, VAR_TILE, of_kv ? VAR_Q0 : VAR_KV0);
  r.other_hi = ir_variable(g, VAR_TILE, of_kv ? VAR_Q1 : VAR_KV1);
  range x = predicate(&r, p, true);
  if (x.never) x = (range){.lo = r.len, .hi = ir_int(g, 0), .never = true};
  x.exact = !r.lost;
  return x;
}

range range_of(ir *g, ir_ref p, ir_var main) { return solved(g, p, main, false); }

range ranges_of(ir *g, ir_ref p, ir_var main) { return solved(g, p, main, true); }

range range_both(ir *g, range a, range b) {
  range x = b.two ? both_of_one(g, b, a) : both_of_one(g, a, b);
  x.never = a.never || b.never;
  x.exact = a.exact && b.exact && !(a.two && b.two);
  return x;
}
