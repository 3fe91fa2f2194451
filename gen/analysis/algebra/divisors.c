#include "gen/analysis/algebra/divisors.h"

#include <math.h>

enum { MAX_FACTORS = 32, MAX_DEPTH = 24, MAX_CONDITIONS = 4, MAX_STEPS = 4000 };

/* What is known of a sign. An exponential is above 0, but may underflow; in the sum of a row one of them does
 * not, but where all are the same. */
typedef enum sign { ANY_SIGN, NOT_BELOW, ABOVE } sign;

typedef struct prover {
  const derivation *d;
  bool in_sum; /* of a term of a reduction */
} prover;

static sign sign_of(const prover *p, ir_ref r, int depth);

static sign least(sign x, sign y) { return x < y ? x : y; }
static sign most(sign x, sign y) { return x > y ? x : y; }

static sign sign_of_reduction(const prover *p, uint32_t k, int depth) {
  const prover inner = {p->d, true};
  if (p->d->step.kind[k] != IR_REDUCE_SUM) return ANY_SIGN;
  return sign_of(&inner, p->d->term[k], depth);
}

static sign sign_of_variable(const prover *p, const ir_node *n, int depth) {
  switch (ir_var_of(n)) {
    case VAR_RED:
      return sign_of_reduction(p, ir_index_of(n), depth);
    case VAR_SCALE:
    case VAR_HEADS:
    case VAR_HEADS_KV:
    case VAR_HEAD_DIM:
    case VAR_HEAD_DIM_V:
      return ABOVE;
    case VAR_Q_LEN:
    case VAR_KV_LEN:
      return NOT_BELOW;
    default:
      return ANY_SIGN;
  }
}

/* Whether the sign of what the op makes follows from its arguments'. */
static bool asks_arguments(uint16_t op) {
  switch (op) {
    case IR_ADD:
    case IR_MUL:
    case IR_DIV:
    case IR_MIN:
    case IR_POW:
    case IR_MAX:
    case IR_CLAMP:
    case IR_SELECT:
    case IR_SQRT:
    case IR_RSQRT:
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
    case IR_LOG1P:
    case IR_ABS:
    case IR_RELU:
      return true;
    default:
      return false;
  }
}

static sign sign_of(const prover *p, ir_ref r, int depth) {
  const ir_node *n = ir_get(p->d->g, r);
  double c;
  if (ir_is_const(p->d->g, r, &c)) return c > 0 ? ABOVE : c == 0 ? NOT_BELOW : ANY_SIGN;
  if (depth == 0) return ANY_SIGN;
  sign of[3] = {ANY_SIGN, ANY_SIGN, ANY_SIGN};
  for (int i = n->op == IR_SELECT; asks_arguments(n->op) && i < n->nargs && i < 3; i++)
    of[i] = i > 0 && n->arg[i] == n->arg[i - 1] ? of[i - 1] : sign_of(p, n->arg[i], depth - 1);
  switch (n->op) {
    case IR_VAR:
      return sign_of_variable(p, n, depth - 1);
    case IR_ADD:
      return least(of[0], of[1]) == ANY_SIGN ? ANY_SIGN : most(of[0], of[1]);
    case IR_MUL:
      return n->arg[0] == n->arg[1] ? most(NOT_BELOW, of[0]) : least(of[0], of[1]);
    case IR_DIV:
    case IR_MIN:
    case IR_POW:
      return n->op == IR_POW ? of[0] : least(of[0], of[1]);
    case IR_MAX:
      return most(of[0], of[1]);
    case IR_CLAMP:
      return least(most(of[0], of[1]), of[2]);
    case IR_SELECT:
      return least(of[1], of[2]);
    case IR_SQRT:
    case IR_RSQRT:
      return most(NOT_BELOW, of[0]);
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
    case IR_EXPM1:
    case IR_LOG1P:
      return of[0];
    case IR_ABS:
    case IR_RELU:
      return most(NOT_BELOW, of[0]);
    case IR_EXP:
    case IR_EXP2:
    case IR_SIGMOID:
    case IR_SOFTPLUS:
      return p->in_sum && ir_uses(p->d->g, r, VAR_SCORE) ? ABOVE : NOT_BELOW;
    default:
      return ANY_SIGN;
  }
}

/* What holds on the way down to a node: conditions and whether they hold. */
typedef struct path {
  const divisors *of;
  ir_ref condition[MAX_CONDITIONS];
  bool holds[MAX_CONDITIONS];
  int num, steps;
} path;

/* Whether a condition on the way, as 0 < r, says that r is not 0, or above 0. */
static bool is_known(const path *w, ir_ref r, bool above) {
  const ir *g = w->of->d->g;
  for (int i = 0; i < w->num; i++) {
    const ir_node *n = ir_get(g, w->condition[i]);
    double c;
    if (n->op != IR_LT && n->op != IR_LE && n->op != IR_EQ && n->op != IR_NE) continue;
    const int at = n->arg[0] == r ? 0 : n->arg[1] == r ? 1 : -1;
    if (at < 0 || !ir_is_const(g, n->arg[1 - at], &c)) continue;
    const bool strict = n->op == IR_LT ? w->holds[i] : n->op == IR_LE ? !w->holds[i] : (n->op == IR_NE) == w->holds[i];
    if (strict && c == 0 && (!above || (n->op == IR_LT && at == 1) || (n->op == IR_LE && at == 0))) return true;
  }
  return false;
}

static bool cannot_be_zero(const path *w, ir_ref r, int depth) {
  const prover p = {w->of->d, false};
  const ir_node *n = ir_get(w->of->d->g, r);
  if ((r < w->of->count && w->of->divides[r] != 0) || is_known(w, r, false) || sign_of(&p, r, MAX_DEPTH) == ABOVE)
    return true;
  if (depth == 0) return false;
  switch (n->op) {
    case IR_CONST_REAL:
      return n->imm.real != 0;
    case IR_MUL:
      return cannot_be_zero(w, n->arg[0], depth - 1) && cannot_be_zero(w, n->arg[1], depth - 1);
    case IR_DIV:
    case IR_NEG:
    case IR_ABS:
      return cannot_be_zero(w, n->arg[0], depth - 1);
    case IR_RELU:
      return is_known(w, n->arg[0], true);
    case IR_SELECT:
      return cannot_be_zero(w, n->arg[1], depth - 1) && cannot_be_zero(w, n->arg[2], depth - 1);
    default:
      return false;
  }
}

/* Whether every division under r is by what cannot be 0 where it counts. */
static bool is_safe(path *w, ir_ref r) {
  const ir_node n = *ir_get(w->of->d->g, r);
  if (w->steps-- <= 0) return false;
  if (n.op == IR_DIV && !cannot_be_zero(w, n.arg[1], MAX_DEPTH)) return false;
  const bool known = n.op == IR_SELECT && w->num < MAX_CONDITIONS;
  for (int i = 0; i < n.nargs; i++) {
    if (known && i > 0) w->condition[w->num] = n.arg[0], w->holds[w->num++] = i == 1;
    const bool ok = is_safe(w, n.arg[i]);
    if (known && i > 0) w->num--;
    if (!ok) return false;
  }
  return true;
}

/* Marks what is under root. */
static void mark(const ir *g, ir_ref root, uint8_t *seen) {
  seen[root] = 1;
  for (ir_ref r = root; r > IR_NONE; r--) {
    if (!seen[r]) continue;
    const ir_node *n = ir_get(g, r);
    for (int i = 0; i < n->nargs; i++) seen[n->arg[i]] = 1;
  }
}

bool divisors_open(divisors *v, arena *a, const derivation *d, ir_ref x, ir_ref y) {
  const uint32_t count = ir_count(d->g);
  uint8_t *seen = arena_array(a, count, 1), *divides = arena_array(a, count, 1);
  *v = (divisors){d, divides, count};
  if (seen == NULL || divides == NULL) return false;
  mark(d->g, x, seen);
  mark(d->g, y, seen);
  for (ir_ref r = 1; r < count; r++)
    if (seen[r] && ir_get(d->g, r)->op == IR_DIV) divides[ir_get(d->g, r)->arg[1]] = 1;
  for (ir_ref r = count; r-- > 1;) /* each arm of a divisor */
    for (int i = 1; i < 3 && divides[r] && ir_get(d->g, r)->op == IR_SELECT; i++) divides[ir_get(d->g, r)->arg[i]] = 1;
  return true;
}

bool divisors_safe(const divisors *v, ir_ref ratio) {
  path w = {.of = v, .steps = MAX_STEPS};
  return !ir_failed(v->d->g) && is_safe(&w, ratio);
}

/* ---- common factors ---- */

typedef struct factors {
  ir_ref up[MAX_FACTORS], down[MAX_FACTORS];
  int num_up, num_down;
  bool negative, too_many;
} factors;

static void gather(const ir *g, ir_ref r, bool up, factors *f) {
  const ir_node *n = ir_get(g, r);
  int *count = up ? &f->num_up : &f->num_down;
  if (n->op == IR_MUL) {
    gather(g, n->arg[0], up, f);
    gather(g, n->arg[1], up, f);
  } else if (n->op == IR_DIV) {
    gather(g, n->arg[0], up, f);
    gather(g, n->arg[1], !up, f);
  } else if (n->op == IR_NEG) {
    f->negative = !f->negative;
    gather(g, n->arg[0], up, f);
  } else if (*count == MAX_FACTORS) {
    f->too_many = true;
  } else {
    (up ? f->up : f->down)[(*count)++] = r;
  }
}

static ir_ref product(ir *g, const ir_ref *factor, int n) {
  ir_ref x = ir_real(g, 1);
  for (int i = 0; i < n; i++) x = ir_op2(g, IR_MUL, x, factor[i]);
  return x;
}

static ir_ref cancel(ir *g, ir_ref r, int depth);

/* A select by c of both arms, each with its factors cancelled. */
static ir_ref by_arms(ir *g, ir_ref c, ir_ref then, ir_ref otherwise, int depth) {
  then = cancel(g, then, depth - 1);
  otherwise = cancel(g, otherwise, depth - 1);
  return ir_op3(g, IR_SELECT, c, then, otherwise);
}

/* Cancels in each arm of a select among the factors; IR_NONE: there is none. A condition below the line
 * decides above it, too; one above leaves what is below as it is, since backward may know that by its own
 * name alone. */
static ir_ref cancel_selects(ir *g, ir_ref r, const factors *f, int depth) {
  const ir_ref yes = ir_bool(g, true), no = ir_bool(g, false);
  for (int i = 0; i < f->num_down; i++) {
    const ir_node n = *ir_get(g, f->down[i]);
    if (n.op != IR_SELECT) continue;
    const ir_ref then = ir_substitute(g, r, &n.arg[0], &yes, 1), otherwise = ir_substitute(g, r, &n.arg[0], &no, 1);
    return by_arms(g, n.arg[0], then, otherwise, depth);
  }
  for (int i = 0; i < f->num_up; i++) {
    const ir_node n = *ir_get(g, f->up[i]);
    if (n.op != IR_SELECT) continue;
    const ir_ref then = ir_substitute(g, r, &f->up[i], &n.arg[1], 1);
    const ir_ref otherwise = ir_substitute(g, r, &f->up[i], &n.arg[2], 1);
    return by_arms(g, n.arg[0], then, otherwise, depth);
  }
  return IR_NONE;
}

static ir_ref cancel(ir *g, ir_ref r, int depth) {
  factors f = {.num_up = 0};
  double c;
  if (ir_failed(g)) return r; /* which the derivation reports */
  gather(g, r, true, &f);
  for (int i = 0; i < f.num_up; i++)
    if (ir_is_const(g, f.up[i], &c) && c == 0) return f.up[i];
  if (f.too_many) return r;
  const ir_ref selects = depth > 0 ? cancel_selects(g, r, &f, depth) : IR_NONE;
  if (selects != IR_NONE) return selects;
  for (int i = 0; i < f.num_up; i++) {
    for (int j = 0; j < f.num_down; j++) {
      if (f.up[i] != f.down[j]) continue;
      f.up[i--] = f.up[--f.num_up];
      f.down[j] = f.down[--f.num_down];
      break;
    }
  }
  const ir_ref above = product(g, f.up, f.num_up), below = product(g, f.down, f.num_down);
  const ir_ref quotient = ir_op2(g, IR_DIV, above, below);
  return f.negative ? ir_op1(g, IR_NEG, quotient) : quotient;
}

ir_ref divisors_cancel(ir *g, ir_ref r) { return cancel(g, r, MAX_CONDITIONS); }

static sign sign_of_sum(const derivation *d, int k) {
  const prover p = {d, true};
  return d->step.kind[k] == IR_REDUCE_SUM ? sign_of(&p, d->term[k], MAX_DEPTH) : ANY_SIGN;
}

bool divisors_sum_is_positive(const derivation *d, int k) { return sign_of_sum(d, k) == ABOVE; }
bool divisors_sum_is_not_below(const derivation *d, int k) { return sign_of_sum(d, k) != ANY_SIGN; }
