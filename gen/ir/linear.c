/* linear.c: writes sums as linear combinations, products with one constant, and integer comparisons in normal
 * form. */
#include <math.h>

#include "gen/ir/graph.h"

/* Walks end at this length, without a result: a spec's sum may be so long that recursion over it would
 * overflow a thread's stack. */
enum { MAX_TERMS = 24, MAX_FACTORS = 16, MAX_WALK = 512 };

#define EXACT_INT 9007199254740992.0 /* 2^53 */

typedef struct term {
  ir_ref key;
  double coef;
} term;

typedef struct linear {
  term t[MAX_TERMS]; /* ascending keys, no zero coefficient once tidied */
  int n;
  int seen;   /* terms and constants seen so far: fewer left means that something cancelled or merged */
  int walked; /* nodes */
  double constant;
  bool failed; /* too long, or beyond exact integers: leaves the expression as it is */
} linear;

/* ---- products ---- */

typedef struct product {
  ir_ref f[MAX_FACTORS];
  int n, constants, walked;
  double coef;
  bool failed;
} product;

static void factor(const ir *g, ir_ref r, product *p) {
  double c;
  const ir_node *n = ir_get(g, r);
  if (p->failed) return;
  if (++p->walked > MAX_WALK) {
    p->failed = true;
  } else if (ir_is_const(g, r, &c)) {
    p->coef *= c;
    ++p->constants;
  } else if (n->op == IR_MUL) {
    factor(g, n->arg[0], p);
    factor(g, n->arg[1], p);
  } else if (n->op == IR_NEG) {
    p->coef = -p->coef;
    factor(g, n->arg[0], p);
  } else if (p->n == MAX_FACTORS) {
    p->failed = true;
  } else {
    int i = p->n++;
    for (; i > 0 && p->f[i - 1] > r; --i) p->f[i] = p->f[i - 1];
    p->f[i] = r;
  }
}

static ir_ref multiply(ir *g, const product *p) {
  ir_ref r = p->f[0];
  for (int i = 1; i < p->n; ++i) r = ir_op2(g, IR_MUL, r, p->f[i]);
  return r;
}

ir_ref ir_collect_product(ir *g, ir_ref r) {
  product p = {.coef = 1};
  factor(g, r, &p);
  const ir_type type = ir_typeof(g, r);
  if (p.failed || p.constants < 2 || p.n == 0 || (type == IR_INT && fabs(p.coef) > EXACT_INT)) return r;
  const ir_ref rest = multiply(g, &p);
  return ir_op2(g, IR_MUL, rest, ir_const_of(g, type, p.coef));
}

/* ---- sums ---- */

static void add_term(linear *l, ir_ref key, double coef) {
  int i = 0;
  while (i < l->n && l->t[i].key < key) ++i;
  if (i < l->n && l->t[i].key == key) {
    l->t[i].coef += coef;
    return;
  }
  if (l->n == MAX_TERMS) {
    l->failed = true;
    return;
  }
  for (int j = l->n++; j > i; --j) l->t[j] = l->t[j - 1];
  l->t[i] = (term){key, coef};
}

static void collect(ir *g, ir_ref r, double scale, linear *l) {
  if (l->failed || g->failed) return;
  const ir_node n = *ir_get(g, r);
  double c;
  if (++l->walked > MAX_WALK || ++l->seen > 4 * MAX_TERMS) { /* sharing can make the expanded sum exponentially long */
    l->failed = true;
  } else if (ir_is_const(g, r, &c)) {
    l->constant += scale * c;
  } else if (n.op == IR_ADD || n.op == IR_SUB) {
    --l->seen;
    collect(g, n.arg[0], scale, l);
    collect(g, n.arg[1], n.op == IR_ADD ? scale : -scale, l);
  } else if (n.op == IR_NEG) {
    --l->seen;
    collect(g, n.arg[0], -scale, l);
  } else if (n.op == IR_MUL && ir_is_const(g, n.arg[1], &c)) {
    --l->seen;
    collect(g, n.arg[0], scale * c, l);
  } else if (n.op == IR_MUL) {
    product p = {.coef = 1};
    factor(g, r, &p);
    if (p.failed || p.n == 0)
      add_term(l, r, scale);
    else
      add_term(l, multiply(g, &p), scale * p.coef); /* one key for a product, however it is bracketed */
  } else {
    add_term(l, r, scale);
  }
}

static void tidy(linear *l, ir_type type) {
  int kept = 0;
  for (int i = 0; i < l->n; ++i) {
    if (type == IR_INT && fabs(l->t[i].coef) > EXACT_INT) l->failed = true;
    if (l->t[i].coef != 0) l->t[kept++] = l->t[i];
  }
  l->n = kept;
  if (type == IR_INT && fabs(l->constant) > EXACT_INT) l->failed = true;
}

static bool linear_of(ir *g, ir_ref a, ir_ref minus_b, linear *l) {
  *l = (linear){.n = 0};
  collect(g, a, 1, l);
  if (minus_b != IR_NONE) collect(g, minus_b, -1, l);
  tidy(l, ir_typeof(g, a));
  return !l->failed && !g->failed;
}

/* The sum of the terms whose coefficient has the given sign, times that sign; IR_NONE if there are none. */
static ir_ref sum_of(ir *g, const linear *l, ir_type type, double sign) {
  ir_ref sum = IR_NONE;
  for (int i = 0; i < l->n; ++i) {
    if (l->t[i].coef * sign <= 0) continue;
    const ir_ref t = ir_op2(g, IR_MUL, l->t[i].key, ir_const_of(g, type, l->t[i].coef * sign));
    sum = sum == IR_NONE ? t : ir_op2(g, IR_ADD, sum, t);
  }
  return sum;
}

ir_ref ir_collect_sum(ir *g, ir_ref r) {
  linear l;
  if (!linear_of(g, r, IR_NONE, &l)) return r;
  if (l.n + (l.constant != 0) >= l.seen) return r;
  const ir_type type = ir_typeof(g, r);
  const ir_ref plus = sum_of(g, &l, type, 1);
  const ir_ref minus = sum_of(g, &l, type, -1);
  ir_ref sum = plus;
  if (plus == IR_NONE)
    sum = minus == IR_NONE ? ir_zero(g, type) : ir_op1(g, IR_NEG, minus);
  else if (minus != IR_NONE)
    sum = ir_op2(g, IR_SUB, plus, minus);
  return l.constant == 0 ? sum : ir_op2(g, IR_ADD, sum, ir_const_of(g, type, l.constant));
}

/* ---- integer comparisons ---- */

static double common_divisor(const linear *l) {
  double d = 0;
  for (int i = 0; i < l->n; ++i)
    for (double a = fabs(l->t[i].coef); a != 0;) {
      const double rest = fmod(d, a);
      d = a;
      a = rest;
    }
  return d;
}

/* plus <= minus + k, without sides that are empty or a k of zero. */
static ir_ref ordered(ir *g, ir_ref plus, ir_ref minus, double k) {
  if (plus == IR_NONE) return ir_op2(g, IR_LE, ir_const_of(g, IR_INT, -k), minus);
  if (minus == IR_NONE) return ir_op2(g, IR_LE, plus, ir_const_of(g, IR_INT, k));
  if (k == -1) return ir_op2(g, IR_LT, plus, minus);
  if (k < 0) return ir_op2(g, IR_LE, ir_op2(g, IR_ADD, plus, ir_const_of(g, IR_INT, -k)), minus);
  return ir_op2(g, IR_LE, plus, ir_op2(g, IR_ADD, minus, ir_const_of(g, IR_INT, k)));
}

ir_ref ir_collect_compare(ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, r);
  linear l;
  const bool equality = n.op == IR_EQ || n.op == IR_NE, wraps = ir_compares_wide(g, r);
  if (ir_typeof(g, n.arg[0]) != IR_INT || (wraps && !equality) || !linear_of(g, n.arg[0], n.arg[1], &l)) return r;
  if (l.n == 0) {
    const double zero = 0;
    return ir_bool(g, ir_value((ir_op)n.op, IR_INT, l.constant, zero, zero) != 0);
  }
  /* sum + constant (< <= == !=) 0, divided by the common divisor of its coefficients; for equality with the
   * term of the lowest key positive. Modulo 2^64 only equality is that of the difference with 0, undivided. */
  const double d = (wraps ? 1 : common_divisor(&l)) * (equality && l.t[0].coef < 0 ? -1 : 1);
  for (int i = 0; i < l.n; ++i) l.t[i].coef /= d;
  const double k = -(l.constant + (n.op == IR_LT)) / d; /* sum <= k, or sum == k */
  if (equality && k != floor(k)) return ir_bool(g, n.op == IR_NE);
  const ir_ref plus = sum_of(g, &l, IR_INT, 1);
  const ir_ref minus = sum_of(g, &l, IR_INT, -1);
  if (!equality) return ordered(g, plus, minus, floor(k));
  const ir_ref constant = ir_const_of(g, IR_INT, k);
  return ir_op2(g, (ir_op)n.op, plus, minus == IR_NONE ? constant : ir_op2(g, IR_ADD, minus, constant));
}
