/* multiply_add.c: rewrites element expressions into chains of multiply-adds.
 *
 * A real expression becomes a linear combination: sum of coefficient * atom, plus a part that is uniform
 * along the row, plus a part that is uniform along the column. Atoms differ from element to element,
 * coefficients do not. Written out again, it is a chain of multiply-adds, and each coefficient is one
 * subexpression that hoist.c moves to the head, row or column. exp and log become exp2 and log2, and the
 * factor log2(e) merges into the coefficients. The same holds for sigmoid and tanh if they are computed with
 * exp2.
 *
 * The exception is c * (kv - q), which stays a product. In c * kv - c * q, each product would have a rounding
 * error relative to the position, and the difference, which decides the score, would keep that error.
 *
 * The Real of an integer that is linear in positions needs no conversion per column. A position is a base,
 * shared by many elements, plus an offset, a constant of the kernel's unrolled loop (contract/contract.cuh),
 * and so is any linear function of positions. IR_REAL_SUM converts the two separately and adds them: one
 * addition per element, and nothing that has to stay in registers. It is an atom here.
 */
#include <math.h>
#include <string.h>

#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"

#define LOG2E 1.4426950408889634
#define LN2 0.6931471805599453
#define LIN_MAX 6

typedef struct lin {
  int n;
  ir_ref atom[LIN_MAX], coef[LIN_MAX]; /* IR_NONE: one */
  ir_ref row, col;                     /* IR_NONE: zero */
} lin;

typedef struct fold {
  lowered *f;
  ir *g;
  lin *lin;     /* per REAL node of the input */
  bool *linear; /* per node of the input: see is_linear */
  ir_ref *done; /* per node: rewritten, or IR_NONE if not yet */
} fold;

static ir_ref mul(ir *g, ir_ref a, ir_ref b) { return a == IR_NONE ? b : b == IR_NONE ? a : ir_op2(g, IR_MUL, a, b); }
static ir_ref add(ir *g, ir_ref a, ir_ref b) { return a == IR_NONE ? b : b == IR_NONE ? a : ir_op2(g, IR_ADD, a, b); }
static bool uniform(fold *w, ir_ref r) { return !deps_element(deps_of(&w->f->deps, r)); }
/* Whether a node of the input is uniform and kept as a number of the row or the column. */
static bool fixed(fold *w, ir_ref r) { return uniform(w, r) && !w->linear[r]; }

static lin lin_of_atom(ir_ref atom) {
  lin l = {0};
  l.n = 1;
  l.atom[0] = atom;
  return l;
}

static lin lin_of_uniform(fold *w, ir_ref r) {
  lin l = {0};
  double x;
  if (ir_is_const(w->g, r, &x) && x == 0) return l;
  if (deps_of(&w->f->deps, r) & DEP_KV)
    l.col = r;
  else
    l.row = r;
  return l;
}

/* Writes a combination out: the uniform parts innermost, so that each atom costs one multiply-add. */
static ir_ref lin_write(fold *w, const lin *l) {
  ir *g = w->g;
  ir_ref sum = add(g, l->col, l->row);
  for (int i = l->n - 1; i >= 0; i--) {
    double c;
    if (l->coef[i] == IR_NONE)
      sum = add(g, l->atom[i], sum);
    else if (sum != IR_NONE && ir_is_const(g, l->coef[i], &c) && c == -1)
      sum = ir_op2(g, IR_SUB, sum, l->atom[i]);
    else if (sum != IR_NONE && w->f->plan->large_scores) /* products merge with nothing by themselves there */
      sum = ir_op3(g, IR_FMA, l->coef[i], l->atom[i], sum);
    else
      sum = add(g, ir_op2(g, IR_MUL, l->coef[i], l->atom[i]), sum);
  }
  return sum == IR_NONE ? ir_real(g, 0) : sum;
}

/* c * (position + col + row) stays a product: see the file's head. */
static void lin_close(fold *w, lin *l) {
  for (int i = 0; i < l->n; i++)
    if (l->atom[i] == IR_NONE || ir_get(w->g, l->atom[i])->op != IR_REAL_SUM) return;
  if (l->n + (l->row != IR_NONE) + (l->col != IR_NONE) > 1) *l = lin_of_atom(lin_write(w, l));
}

static bool lin_add(fold *w, lin *l, lin b) {
  lin_close(w, l);
  if (l->n > 0 || b.n > 0) lin_close(w, &b);
  for (int i = 0; i < b.n; i++) {
    int at = 0;
    while (at < l->n && l->atom[at] != b.atom[i]) at++;
    if (at == LIN_MAX) return false;
    if (at == l->n) {
      l->atom[l->n] = b.atom[i];
      l->coef[l->n++] = b.coef[i];
      continue;
    }
    const ir_ref one = ir_real(w->g, 1);
    const ir_ref sum = ir_op2(w->g, IR_ADD, l->coef[at] ? l->coef[at] : one, b.coef[i] ? b.coef[i] : one);
    if (!uniform(w, sum)) return false;
    l->coef[at] = sum;
  }
  l->row = add(w->g, l->row, b.row);
  l->col = add(w->g, l->col, b.col);
  return true;
}

/* l * c, c uniform. False: a product would differ from element to element, or must stay a product. */
static bool lin_scale(fold *w, lin *l, ir_ref c) {
  lin out = *l;
  lin_close(w, &out);
  if (out.row != IR_NONE && out.col != IR_NONE) return false;
  for (int i = 0; i < out.n; i++) {
    out.coef[i] = mul(w->g, c, out.coef[i]);
    if (!uniform(w, out.coef[i])) return false;
  }
  const ir_ref part = out.row != IR_NONE ? out.row : out.col;
  if (part != IR_NONE) {
    const ir_ref scaled = mul(w->g, c, part);
    const bool in_col = (deps_of(&w->f->deps, scaled) & DEP_KV) != 0;
    if (!uniform(w, scaled)) return false;
    out.row = in_col ? IR_NONE : scaled;
    out.col = in_col ? scaled : IR_NONE;
  }
  *l = out;
  return true;
}

static lin scaled(fold *w, lin l, ir_ref c) {
  if (lin_scale(w, &l, c)) return l;
  lin product = lin_of_atom(lin_write(w, &l));
  product.coef[0] = c;
  return product;
}

static lin sum_of(fold *w, lin a, lin b) {
  lin sum = a;
  if (lin_add(w, &sum, b)) return sum;
  lin pair = lin_of_atom(lin_write(w, &a));
  lin_add(w, &pair, lin_of_atom(lin_write(w, &b))); /* two atoms always fit */
  return pair;
}

static ir_ref written(fold *w, ir_ref r) {
  if (w->done[r] == IR_NONE) w->done[r] = lin_write(w, &w->lin[r]);
  return w->done[r];
}

static ir_ref rebuilt(fold *w, ir_ref r, const ir_node *n) {
  ir_ref arg[4] = {IR_NONE};
  for (int i = 0; i < n->nargs; i++) arg[i] = written(w, n->arg[i]);
  return n->nargs == 0 ? r : ir_rebuild(w->g, r, arg);
}

/* Splits an integer into base + offset. */
typedef struct position_split {
  ir_ref base, offset;
} position_split;

/* Returns false if r is not linear in positions with constant coefficients. */
static bool take_apart(fold *w, ir_ref r, position_split *out) {
  ir *g = w->g;
  const ir_node n = *ir_get(g, r);
  position_split a, b;
  if ((deps_of(&w->f->deps, r) & (DEP_Q | DEP_KV)) == 0) {
    *out = (position_split){r, ir_int(g, 0)};
    return true;
  }
  if (n.op == IR_VAR && !ir_is_line(g)) return false;
  if (n.op == IR_VAR) {
    const bool q = ir_var_of(&n) == VAR_Q;
    *out = (position_split){ir_variable(g, VAR_PART, q ? PART_Q_BASE : PART_KV_BASE),
                            ir_variable(g, VAR_PART, q ? PART_Q_OFFSET : PART_KV_OFFSET)};
    return true;
  }
  if (n.op == IR_NEG && take_apart(w, n.arg[0], &a)) {
    *out = (position_split){ir_op1(g, IR_NEG, a.base), ir_op1(g, IR_NEG, a.offset)};
    return true;
  }
  const bool sum = n.op == IR_ADD || n.op == IR_SUB;
  double factor;
  if (!sum && !(n.op == IR_MUL && ir_is_const(g, n.arg[1], &factor))) return false;
  if (!take_apart(w, n.arg[0], &a) || !take_apart(w, n.arg[1], &b)) return false;
  *out = (position_split){ir_op2(g, (ir_op)n.op, a.base, b.base),
                          ir_op2(g, (ir_op)n.op, a.offset, sum ? b.offset : b.base)};
  return true;
}

/* A gather for each element: an index that is linear in positions is written base + offset, so that elements
 * at one distance share a load, and the rest of its address is constant. */
static ir_ref gather(fold *w, ir_ref r, const ir_node *n) {
  ir_ref arg[4] = {IR_NONE};
  for (int i = 0; i < n->nargs; i++) {
    position_split p;
    const bool varies = deps_element(deps_of(&w->f->deps, n->arg[i]));
    const bool linear = varies && take_apart(w, n->arg[i], &p);
    arg[i] = linear ? ir_op2(w->g, IR_SUM_APART, p.base, p.offset) : written(w, n->arg[i]);
  }
  return ir_rebuild(w->g, r, arg);
}

/* The Real of an integer expression. Positions are converted before they are compared or clipped, because a
 * conversion for each element is slow. */
static ir_ref real_of_int(fold *w, ir_ref r) {
  const ir_node n = *ir_get(w->g, r);
  position_split p;
  if ((deps_of(&w->f->deps, r) & DEP_KV) != 0 && take_apart(w, r, &p)) {
    w->f->positions_as_real = true;
    return ir_op2(w->g, IR_REAL_SUM, p.base, p.offset);
  }
  /* Integers of an input may be large, and close to one another: their difference is one of integers. */
  if (uniform(w, r) || ir_uses_op(w->g, r, IR_LOAD)) return ir_to_real(w->g, r);
  if (n.op != IR_ADD && n.op != IR_SUB && n.op != IR_NEG && n.op != IR_ABS && n.op != IR_MIN && n.op != IR_MAX)
    return ir_to_real(w->g, r);
  w->f->positions_as_real = true;
  const ir_ref a = real_of_int(w, n.arg[0]);
  return n.nargs == 1 ? ir_op1(w->g, (ir_op)n.op, a) : ir_op2(w->g, (ir_op)n.op, a, real_of_int(w, n.arg[1]));
}

/* Folds an expression that was built after the pass began. */
static lin lin_of_new(fold *w, ir_ref r) {
  const ir_node n = *ir_get(w->g, r);
  if (uniform(w, r)) return lin_of_uniform(w, r);
  if (n.op == IR_ADD) return sum_of(w, lin_of_new(w, n.arg[0]), lin_of_new(w, n.arg[1]));
  if (n.op == IR_SUB) return sum_of(w, lin_of_new(w, n.arg[0]), scaled(w, lin_of_new(w, n.arg[1]), ir_real(w->g, -1)));
  if (n.op == IR_NEG) return scaled(w, lin_of_new(w, n.arg[0]), ir_real(w->g, -1));
  return lin_of_atom(r);
}

static ir_ref pull_coef(fold *w, ir_ref r) {
  const lin *l = &w->lin[r];
  return l->n == 1 && l->row == IR_NONE && l->col == IR_NONE ? l->coef[0] : IR_NONE;
}

/* (c a) * (d b) = (c d) * (a b): one factor instead of two. */
static lin product_of(fold *w, ir_ref r, const ir_node *n) {
  const ir_ref a = n->arg[0], b = n->arg[1], c = pull_coef(w, a), d = pull_coef(w, b);
  if (c == IR_NONE && d == IR_NONE) return lin_of_atom(rebuilt(w, r, n));
  const ir_ref factor = mul(w->g, c, d);
  const ir_ref x = c == IR_NONE ? written(w, a) : w->lin[a].atom[0],
               y = d == IR_NONE ? written(w, b) : w->lin[b].atom[0];
  if (!uniform(w, factor)) return lin_of_atom(rebuilt(w, r, n));
  lin product = lin_of_atom(ir_op2(w->g, IR_MUL, x, y));
  product.coef[0] = factor;
  return product;
}

static ir_ref sigmoid_of(fold *w, ir_op op, ir_ref x, double factor) {
  const lin power = scaled(w, w->lin[x], ir_real(w->g, factor));
  return ir_op1(w->g, op, lin_write(w, &power));
}

/* Its relative error, 2^-12.9, is a quarter of f16's rounding of a weight, and a fifteenth of bf16's of a score
 * (docs/numerics.md). */
static bool sigmoid_is_coarse(const lowered *f) {
  return f->approximate == APPROXIMATE_WEIGHT || (f->approximate == APPROXIMATE_SCORE && f->plan->dtype == LUATTN_BF16);
}

/* 2^-10.9: a quarter of bf16's rounding. */
static bool tanh_is_coarse(const lowered *f) {
  return f->approximate != APPROXIMATE_NOWHERE && f->plan->dtype == LUATTN_BF16 && f->plan->pass == LUATTN_FORWARD &&
         !f->plan->large_scores;
}

static lin fold_node(fold *w, ir_ref r, const ir_node *n) {
  ir *g = w->g;
  if (ir_is_wide(g, r) && n->op != IR_LOAD) return lin_of_atom(rebuilt(w, r, n)); /* rounded once, not term by term */
  const ir_ref a = n->nargs > 0 ? n->arg[0] : IR_NONE, b = n->nargs > 1 ? n->arg[1] : IR_NONE;
  switch (n->op) {
    case IR_ADD:
      return sum_of(w, w->lin[a], w->lin[b]);
    case IR_SUB:
      return sum_of(w, w->lin[a], scaled(w, w->lin[b], ir_real(g, -1)));
    case IR_NEG:
      return scaled(w, w->lin[a], ir_real(g, -1));
    case IR_MUL:
      if (fixed(w, a)) return scaled(w, w->lin[b], written(w, a));
      if (fixed(w, b)) return scaled(w, w->lin[a], written(w, b));
      return product_of(w, r, n);
    case IR_DIV:
      if (fixed(w, b)) return scaled(w, w->lin[a], ir_op2(g, IR_DIV, ir_real(g, 1), written(w, b)));
      break;
    case IR_EXP: {
      const lin power = scaled(w, w->lin[a], ir_real(g, LOG2E));
      return lin_of_atom(ir_op1(g, IR_EXP2, lin_write(w, &power)));
    }
    case IR_SIGMOID: /* only with fast math: the accurate function does not use exp2 */
      if (!w->f->plan->family->fast_math) break;
      return lin_of_atom(sigmoid_of(w, sigmoid_is_coarse(w->f) ? IR_SIGMOID2_ALTERNATING : IR_SIGMOID2, a, LOG2E));
    case IR_TANH: { /* 2 / (1 + e^-2x) - 1; with fast math, its absolute error near 0 is small enough */
      if (!w->f->plan->family->fast_math) break;
      if (tanh_is_coarse(w->f)) return lin_of_atom(ir_op1(g, IR_ROUGH_TANH, written(w, a)));
      lin l = lin_of_atom(sigmoid_of(w, IR_SIGMOID2, a, 2 * LOG2E));
      l.coef[0] = ir_real(g, 2);
      l.row = ir_real(g, -1);
      return l;
    }
    case IR_LOG:
      return scaled(w, lin_of_atom(ir_op1(g, IR_LOG2, written(w, a))), ir_real(g, LN2));
    case IR_TO_REAL:
      return lin_of_new(w, real_of_int(w, written(w, a)));
    case IR_LOAD:
      return lin_of_atom(gather(w, r, n));
    default:
      break;
  }
  return lin_of_atom(rebuilt(w, r, n));
}

/* Step-level values (a row's new maximum, its rescale) are computed once per row: only their exp and log
 * change. */
static ir_ref fold_uniform(fold *w, ir_ref r, const ir_node *n) {
  if (n->nargs == 0 || !(deps_of(&w->f->deps, r) & DEP_STEP)) return r;
  if (n->op == IR_EXP) return ir_op1(w->g, IR_EXP2, ir_op2(w->g, IR_MUL, written(w, n->arg[0]), ir_real(w->g, LOG2E)));
  if (n->op == IR_LOG) return ir_op2(w->g, IR_MUL, ir_op1(w->g, IR_LOG2, written(w, n->arg[0])), ir_real(w->g, LN2));
  return rebuilt(w, r, n);
}

/* Whether r is linear in the key position, with one coefficient per row: a multiply-add of the position is
 * cheaper than a number for each column. */
static bool is_linear(fold *w, ir_ref r, const ir_node *n) {
  const ir_ref a = n->nargs > 0 ? n->arg[0] : IR_NONE, b = n->nargs > 1 ? n->arg[1] : IR_NONE;
  const int positions = DEP_Q | DEP_KV;
  position_split unused;
  if (n->type != IR_REAL || !uniform(w, r) || (deps_of(&w->f->deps, r) & DEP_KV) == 0) return false;
  switch (n->op) {
    case IR_TO_REAL:
      return take_apart(w, a, &unused);
    case IR_NEG:
      return w->linear[a];
    case IR_ADD:
    case IR_SUB:
      return w->linear[a] || w->linear[b];
    case IR_MUL:
      return (w->linear[a] && (deps_of(&w->f->deps, b) & positions) == 0) ||
             (w->linear[b] && (deps_of(&w->f->deps, a) & positions) == 0);
    case IR_DIV:
      return w->linear[a] && (deps_of(&w->f->deps, b) & positions) == 0;
    default:
      return false;
  }
}

/* Marks what the roots need; nodes are in order, so one downward sweep suffices. */
static void mark(const ir *g, const ir_ref *roots, int n, uint32_t count, bool *need) {
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = count; r-- > 1;) {
    if (!need[r]) continue;
    const ir_node *node = ir_get(g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
}

static bool fold_run(fold *w, const ir_ref *roots, int n) {
  const uint32_t count = ir_count(w->g);
  bool *need = arena_array(w->f->a, count, sizeof *need);
  w->lin = arena_array(w->f->a, count, sizeof *w->lin);
  w->linear = arena_array(w->f->a, count, sizeof *w->linear);
  w->done = arena_array(w->f->a, count, sizeof *w->done);
  if (need == NULL || w->lin == NULL || w->linear == NULL || w->done == NULL) return false;
  mark(w->g, roots, n, count, need);
  for (uint32_t r = 1; r < count && !ir_failed(w->g); r++) {
    if (!need[r]) continue;
    const ir_node node = *ir_get(w->g, r);
    ir_set_line(w->g, node.line);
    w->linear[r] = is_linear(w, r, &node);
    if (fixed(w, r)) {
      w->done[r] = fold_uniform(w, r, &node);
      if (node.type == IR_REAL) w->lin[r] = lin_of_uniform(w, w->done[r]);
    } else if (node.type == IR_REAL) {
      w->lin[r] = fold_node(w, r, &node);
    } else {
      w->done[r] = rebuilt(w, r, &node);
    }
  }
  return true;
}

void multiply_add_roots(lowered *f, ir_ref *roots, int n) {
  fold w = {.f = f, .g = f->g};
  if (!fold_run(&w, roots, n)) return;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) roots[i] = written(&w, roots[i]);
  ir_set_line(f->g, 0);
}

/* c * (base + offset), c constant per row: all but the offset of kv goes to the shift. */
static void take_shift(fold *w, ir_ref *atom, ir_ref coef, ir_ref *shift) {
  ir *g = w->g;
  const ir_node n = *ir_get(g, *atom);
  const ir_ref zero = ir_int(g, 0), of_q = ir_variable(g, VAR_PART, PART_Q_OFFSET),
               of_kv = ir_variable(g, VAR_PART, PART_KV_OFFSET);
  if (n.op != IR_REAL_SUM || (deps_of(&w->f->deps, coef) & DEP_KV) != 0) return;
  const ir_ref rest = ir_op2(g, IR_REAL_SUM, n.arg[0], ir_substitute(g, n.arg[1], &of_kv, &zero, 1));
  ir_ref offset = ir_substitute(g, n.arg[1], &of_q, &zero, 1);
  ir_simplify(g, &offset, 1);
  *shift = add(g, mul(g, coef, rest), *shift);
  *atom = ir_to_real(g, offset);
}

ir_ref multiply_add_shift(lowered *f, ir_ref *score) {
  fold w = {.f = f, .g = f->g};
  ir_ref shift = IR_NONE;
  if (!fold_run(&w, score, 1)) return IR_NONE;
  lin l = w.lin[*score];
  for (int i = 0; i < l.n; i++) take_shift(&w, &l.atom[i], l.coef[i], &shift);
  if (shift != IR_NONE) {
    shift = add(w.g, shift, l.row);
    l.row = IR_NONE;
    *score = lin_write(&w, &l);
  }
  ir_set_line(f->g, 0);
  return shift;
}

bool multiply_add_rest(lowered *f, ir_ref r, ir_ref x, ir_ref *rest) {
  fold w = {.f = f, .g = f->g};
  if (!fold_run(&w, &r, 1)) return false;
  lin l = w.lin[r];
  int at = -1;
  for (int i = 0; i < l.n; i++) {
    if (l.atom[i] == x && l.coef[i] == IR_NONE && at < 0)
      at = i;
    else if (ir_uses(f->g, l.atom[i], ir_var_of(ir_get(f->g, x))))
      return false;
  }
  if (at < 0) return false;
  l.n--;
  memmove(&l.atom[at], &l.atom[at + 1], (size_t)(l.n - at) * sizeof l.atom[0]);
  memmove(&l.coef[at], &l.coef[at + 1], (size_t)(l.n - at) * sizeof l.coef[0]);
  *rest = l.n == 0 && l.row == IR_NONE && l.col == IR_NONE ? IR_NONE : lin_write(&w, &l);
  ir_set_line(f->g, 0);
  return true;
}
