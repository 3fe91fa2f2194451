#include "gen/analysis/algebra/arms.h"

#include <math.h>
#include <stdlib.h>

#include "gen/analysis/algebra/divisors.h"
#include "gen/ir/scalar.h"

enum { MAX_ARMS = 3000, NOT_DECIDED = 2, SYMBOL_OF_NODE = 1 << 20 };

static uint8_t what_variable_reads(ir_var v) {
  switch (v) {
    case VAR_SCORE:
    case VAR_KV:
    case VAR_DOT:
    case VAR_DP:
      return ARMS_READS_ELEMENT;
    case VAR_RED:
    case VAR_STATE:
    case VAR_FINAL:
      return ARMS_READS_ROW;
    default:
      return 0;
  }
}

static bool make_room(arms *A) {
  const ir *g = A->d->g;
  const uint32_t count = ir_count(g);
  if (count <= A->size) return true;
  A->size = count;
  A->memo = arena_array(A->F.a, (size_t)A->size * NUM_ROLES, sizeof *A->memo);
  A->reads = arena_raw(A->F.a, A->size, sizeof *A->reads);
  if (A->memo == NULL || A->reads == NULL) return false;
  for (ir_ref r = 1; r < count; r++) {
    const ir_node *n = ir_get(g, r);
    A->reads[r] = n->op == IR_VAR ? what_variable_reads(ir_var_of(n)) : 0;
    for (int i = 0; i < n->nargs; i++) A->reads[r] |= A->reads[n->arg[i]];
  }
  return true;
}

arms *arms_open(const derivation *d, arena *a, bool whole_elements, long work) {
  arms *A = arena_new(a, sizeof *A);
  if (A == NULL) return NULL;
  A->d = d;
  A->whole_elements = whole_elements;
  A->left = MAX_ARMS;
  forms_open(&A->F, a, work);
  return make_room(A) ? A : NULL;
}

/* ---- what was made before ---- */

/* Enters an arm, on which what the arms around it know holds, too. */
static bool enter(arms *A) {
  if (A->level + 1 == ARMS_MAX_LEVELS) return A->F.gave_up = true, false;
  A->path[++A->level] = ++A->serial;
  return true;
}

bool arms_remembers(const arms *A, const arm_memo *m, bool reads_element) {
  return m->serial != 0 && m->level <= A->level && A->path[m->level] == m->serial &&
         (!reads_element || m->level >= A->element_level);
}

arm_memo arms_note(const arms *A, const form *x) { return (arm_memo){x, A->path[A->level], A->level}; }

/* ---- conditions ---- */

static bool is_visible(const arms *A, int i) { return !A->known[i].element || i >= A->first_of_element; }

static int side_known(arms *A, const form *key, double at) {
  for (int i = 0; i < A->num_known; i++) {
    const arm *k = &A->known[i];
    if (k->key == NULL || !is_visible(A, i) || !form_equal(&A->F, k->key, key)) continue;
    if (k->side == 0) return (k->at > at) - (k->at < at);
    if (k->side < 0 && at >= k->at) return -1;
    if (k->side > 0 && at <= k->at) return 1;
  }
  return NOT_DECIDED;
}

/* The side of what is further from a number than a key that is known, by what is above 0. */
static int side_beyond(arms *A, const form *key, double at) {
  double least;
  for (int i = 0; i < A->num_known; i++) {
    const arm *k = &A->known[i];
    if (k->key == NULL || !is_visible(A, i)) continue;
    const form *more = form_add(&A->F, key, k->key, -1);
    if (k->side >= 0 && form_is_positive(&A->F, more, &least) && at <= k->at + least) return 1;
    if (k->side > 0 || at < k->at) continue;
    if (form_is_positive(&A->F, form_mul(&A->F, more, form_number(&A->F, -1)), &least) && at >= k->at - least)
      return -1;
  }
  return NOT_DECIDED;
}

/* The side of what is c + sign[0] * of[0] + sign[1] * of[1], by what is known of these two. */
static int side_of_two(const arm *const *of, const int *sign, double c, double at) {
  int side = 0;
  for (int i = 0; i < 2; i++) {
    const int one = sign[i] * of[i]->side;
    if (one * side < 0) return NOT_DECIDED;
    if (one != 0) side = one;
    c += sign[i] * of[i]->at;
  }
  if (side == 0) return (c > at) - (c < at);
  if (side < 0) return c <= at ? -1 : NOT_DECIDED;
  return c >= at ? 1 : NOT_DECIDED;
}

/* The side that follows from a comparison and another one before it, as a < c from a < b and b < c. */
static int side_with(arms *A, const form *key, int i, double at) {
  for (int signs = 0; signs < 2; signs++) {
    const int first = signs == 0 ? 1 : -1;
    const form *rest = form_add(&A->F, key, A->known[i].key, -first);
    for (int j = 0; j < i; j++) {
      const arm *const of[2] = {&A->known[i], &A->known[j]};
      if (of[1]->key == NULL || !is_visible(A, j)) continue;
      if (abs(rest->n - of[1]->key->n) > 1) continue; /* the difference is no number */
      for (int second = 1; second >= -1; second -= 2) {
        double c;
        const arena_place mark = arena_mark(A->F.a);
        const bool is_number = form_is_number(form_add(&A->F, rest, of[1]->key, -second), &c);
        arena_rewind(A->F.a, mark);
        if (!is_number) continue;
        const int side = side_of_two(of, (const int[2]){first, second}, c, at);
        if (side != NOT_DECIDED) return side;
      }
    }
  }
  return NOT_DECIDED;
}

static int side_by_two(arms *A, const form *key, double at) {
  for (int i = 1; i < A->num_known; i++) {
    if (A->known[i].key == NULL || !is_visible(A, i)) continue;
    const arena_place mark = arena_mark(A->F.a);
    const int side = side_with(A, key, i, at);
    arena_rewind(A->F.a, mark);
    if (side != NOT_DECIDED) return side;
  }
  return NOT_DECIDED;
}

static int ask(arms *A, arm next) {
  A->undecided = true;
  A->next = next;
  return NOT_DECIDED;
}

/* What a form that is one maximum lies above in rows that have scores, or one score; 0: it is none. */
static double low_of(const arms *A, const form *x) {
  const derivation *d = A->d;
  if (x->n != 1 || x->t[0].n != 1 || x->t[0].e != NULL || x->t[0].f[0].power != 1) return 0;
  const form_atom *a = &A->F.atom[x->t[0].f[0].atom];
  if (a->kind != FORM_SYMBOL) return 0;
  if (a->number < NUM_ROLES * SPEC_MAX_RED) return d->low_red[a->number % SPEC_MAX_RED];
  if (a->number < SYMBOL_OF_NODE || a->number - SYMBOL_OF_NODE >= ir_count(d->g)) return 0;
  const ir_node *n = ir_get(d->g, a->number - SYMBOL_OF_NODE);
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCORE) return d->low_score;
  return n->op == IR_VAR && ir_var_of(n) == VAR_STATE ? d->low_state[ir_index_of(n)] : 0;
}

/* The power of an atom that all terms have, with the least magnitude; 0: there is none. */
static double common_power(const form *x, int atom) {
  double common = 0;
  for (int i = 0; i < x->n; i++) {
    double power = 0;
    for (int k = 0; k < x->t[i].n; k++)
      if (x->t[i].f[k].atom == atom) power = x->t[i].f[k].power;
    if (i > 0 && power * common <= 0) return 0;
    if (i == 0 || fabs(power) < fabs(common)) common = power;
  }
  return common;
}

/* x without what all of its terms have and is above 0, which leaves its sign. */
static const form *without_positive(arms *A, const form *x) {
  forms *F = &A->F;
  for (int k = 0; x->n > 0 && k < x->t[0].n;) {
    const int atom = x->t[0].f[k].atom;
    const double power = common_power(x, atom);
    const form *of = form_of_atom(F, atom);
    if (power == 0 || !(F->atom[atom].sign == FORM_ABOVE || side_known(A, of, 0) == 1))
      k++;
    else
      x = form_mul(F, x, form_pow(F, of, -power));
    if (F->gave_up) return x;
  }
  return x;
}

/* The sign of what is not a number by itself. Its number apart, it is a multiple of what arms compare; of an
 * exponential, the exponent is. */
static int sign_of_key(arms *A, const form *x, int depth) {
  forms *F = &A->F;
  double c = 0, least;
  int first = -1;
  if (x->t[0].e != NULL) x = form_mul(F, x, form_exp(F, form_mul(F, x->t[0].e, form_number(F, -1))));
  x = without_positive(A, x);
  for (int i = 0; i < x->n; i++) {
    const bool is_number = x->t[i].n == 0 && x->t[i].e == NULL;
    if (is_number) c = x->t[i].c;
    if (!is_number && first < 0) first = i;
  }
  if (first < 0) return (c > 0) - (c < 0);
  const double scale = x->t[first].c, at = -c / scale;
  const form *key = form_mul(F, form_add(F, x, form_number(F, c), -1), form_number(F, 1 / scale));
  const form_sign sign = form_sign_of(F, key, &least);
  int side =
      sign != FORM_ANY_SIGN && (at < least || at < 0 || (sign == FORM_ABOVE && at == 0)) ? 1 : side_known(A, key, at);
  if (side == NOT_DECIDED) side = side_by_two(A, key, at);
  if (side == NOT_DECIDED) side = side_beyond(A, key, at);
  const double low = low_of(A, key);
  if (low < 0 && at <= low) side = 1;
  if (key->n == 1 && key->t[0].n == 0 && depth == 0 && at > 0)
    side = sign_of_key(A, form_add(F, key->t[0].e, form_number(F, log(at)), -1), 1);
  else if (side == NOT_DECIDED)
    return ask(A, (arm){.key = key, .at = at, .element = form_is_element(F, key)});
  return side == NOT_DECIDED || scale > 0 ? side : -side;
}

int arms_sign(arms *A, const form *x) {
  double c, least;
  if (A->undecided || A->F.gave_up) return NOT_DECIDED;
  if (x->undefined)
    return A->F.gave_up = true, NOT_DECIDED; /* 1 / 0 may be infinite, and infinity is above something */
  if (form_is_number(x, &c)) return (c > 0) - (c < 0);
  return form_is_positive(&A->F, x, &least) ? 1 : sign_of_key(A, x, 0);
}

int arms_knows_side(arms *A, const form *x, double at) {
  const int side = side_known(A, x, at);
  return side == NOT_DECIDED ? 0 : side;
}

/* The sign of x - y. */
static int compare(arms *A, ir_ref x, ir_ref y) {
  double c;
  if (ir_is_const(A->d->g, x, &c) && isinf(c)) return c > 0 ? 1 : -1;
  if (ir_is_const(A->d->g, y, &c) && isinf(c)) return c > 0 ? -1 : 1;
  const form *left = arms_form(A, x), *right = arms_form(A, y);
  return arms_sign(A, form_add(&A->F, left, right, -1));
}

bool arms_reads_element(const arms *A, ir_ref r) { return (A->reads[r] & ARMS_READS_ELEMENT) != 0; }

static int holds(arms *A, ir_ref r);

static int holds_compared(arms *A, const ir_node *n) {
  const int side = compare(A, n->arg[0], n->arg[1]);
  if (side == NOT_DECIDED) return side;
  if (n->op == IR_LT) return side < 0;
  if (n->op == IR_LE) return side <= 0;
  return (side == 0) == (n->op == IR_EQ);
}

static int holds_by_itself(arms *A, ir_ref r) {
  for (int i = 0; i < A->num_known; i++)
    if (A->known[i].key == NULL && A->known[i].condition == r && is_visible(A, i)) return A->known[i].side > 0;
  return ask(A, (arm){.condition = r, .element = arms_reads_element(A, r)});
}

/* 1, 0 or NOT_DECIDED. */
static int holds(arms *A, ir_ref r) {
  const ir_node n = *ir_get(A->d->g, r);
  if (A->undecided) return NOT_DECIDED;
  if (n.op == IR_CONST_BOOL) return n.imm.integer != 0;
  if (n.op == IR_LT || n.op == IR_LE || ((n.op == IR_EQ || n.op == IR_NE) && ir_typeof(A->d->g, n.arg[0]) != IR_BOOL))
    return holds_compared(A, &n);
  if (n.op != IR_NOT && n.op != IR_AND && n.op != IR_OR && n.op != IR_SELECT) return holds_by_itself(A, r);
  const int x = holds(A, n.arg[0]);
  if (x == NOT_DECIDED) return x;
  if (n.op == IR_NOT) return !x;
  if (n.op == IR_SELECT) return holds(A, n.arg[x ? 1 : 2]);
  return x == (n.op == IR_OR) ? x : holds(A, n.arg[1]);
}

/* ---- forms of nodes ---- */

static const form *number(arms *A, double x) { return form_number(&A->F, x); }
static const form *plus(arms *A, const form *x, const form *y) { return form_add(&A->F, x, y, 1); }
static const form *minus(arms *A, const form *x, const form *y) { return form_add(&A->F, x, y, -1); }
static const form *times(arms *A, const form *x, const form *y) { return form_mul(&A->F, x, y); }
static const form *inverse(arms *A, const form *x) { return form_pow(&A->F, x, -1); }
static const form *scaled(arms *A, const form *x, double c) { return times(A, x, number(A, c)); }
static const form *exp_of(arms *A, const form *x, double c) { return form_exp(&A->F, scaled(A, x, c)); }

/* 1 / (1 + exp(-c * x)) */
static const form *logistic(arms *A, const form *x, double c) {
  return inverse(A, plus(A, number(A, 1), exp_of(A, x, -c)));
}

static const form *signed_leaf(arms *A, ir_ref r, form_sign sign) {
  return form_symbol(&A->F, SYMBOL_OF_NODE + r, arms_reads_element(A, r), sign, 0);
}
static const form *leaf(arms *A, ir_ref r, bool positive) {
  return signed_leaf(A, r, positive ? FORM_ABOVE : FORM_ANY_SIGN);
}

const form *arms_reduction(arms *A, arms_role role, int k) {
  const derivation *d = A->d;
  if (role == BOTH) return A->both[k];
  if (role == STEPPED) return A->stepped[k];
  const form_sign sign = divisors_sum_is_positive(d, k)    ? FORM_ABOVE
                         : divisors_sum_is_not_below(d, k) ? FORM_NOT_BELOW
                                                           : FORM_ANY_SIGN;
  return form_symbol(&A->F, (uint32_t)role * SPEC_MAX_RED + (uint32_t)k, false, sign, d->from_one[k] ? 1 : 0);
}

static const form *variable(arms *A, ir_ref r, const ir_node *n) {
  const derivation *d = A->d;
  const uint32_t i = ir_index_of(n);
  switch (ir_var_of(n)) {
    case VAR_STATE:
      if (A->role == MERGED || A->role == STEPPED) return arms_form_as(A, MINE, d->next[i]);
      return d->dropped[i] ? leaf(A, r, false) : arms_form(A, d->next[i]);
    case VAR_OTHER:
      return arms_form_as(A, THEIRS, d->next[i]);
    case VAR_FINAL:
      return d->final[i] == IR_NONE ? leaf(A, r, false) : arms_form(A, d->final[i]);
    case VAR_RED:
      return arms_reduction(A, A->role, (int)i);
    case VAR_B:
    case VAR_H:
    case VAR_Q:
    case VAR_KV:
    case VAR_Q_LEN:
    case VAR_KV_LEN:
      return signed_leaf(A, r, FORM_NOT_BELOW);
    default:
      return leaf(A, r, ir_var_of(n) == VAR_SCALE);
  }
}

/* A node that is one of its arguments, up to a sign, by the sides of comparisons. */
static const form *piece(arms *A, const ir_node *n) {
  const ir_ref x = n->arg[0], y = n->arg[1];
  const form *v = n->op == IR_ABS || n->op == IR_SIGN || n->op == IR_RELU ? arms_form(A, x) : NULL;
  const int side = n->op == IR_SELECT ? holds(A, x) : v != NULL ? arms_sign(A, v) : compare(A, x, y);
  if (side == NOT_DECIDED) return number(A, 0);
  switch (n->op) {
    case IR_SELECT:
      return arms_form(A, n->arg[side ? 1 : 2]);
    case IR_MIN:
      return arms_form(A, side <= 0 ? x : y);
    case IR_MAX:
      return arms_form(A, side >= 0 ? x : y);
    case IR_SIGN:
      return number(A, side);
    case IR_RELU:
      return side > 0 ? v : number(A, 0);
    case IR_ABS:
      return scaled(A, v, side);
    default: { /* IR_CLAMP */
      const ir_ref inner = side < 0 ? y : x;
      const int high = compare(A, inner, n->arg[2]);
      return high == NOT_DECIDED ? number(A, 0) : arms_form(A, high > 0 ? n->arg[2] : inner);
    }
  }
}

static const form *power(arms *A, const ir_node *n) {
  double c;
  const form *x = arms_form(A, n->arg[0]);
  if (ir_is_const(A->d->g, n->arg[1], &c)) return form_pow(&A->F, x, c);
  return form_exp(&A->F, times(A, arms_form(A, n->arg[1]), form_log(&A->F, x)));
}

static const form *erf_of(arms *A, const form *x) { return form_call(&A->F, IR_ERF, x, NULL); }

/* A function of x; NULL: it has no form of its own. */
static const form *function(arms *A, ir_op op, const form *x) {
  forms *F = &A->F;
  switch (op) {
    case IR_EXP:
      return form_exp(F, x);
    case IR_EXP2:
      return exp_of(A, x, SCALAR_LN_2);
    case IR_EXPM1:
      return minus(A, form_exp(F, x), number(A, 1));
    case IR_LOG:
      return form_log(F, x);
    case IR_LOG2:
      return scaled(A, form_log(F, x), SCALAR_LOG2_E);
    case IR_LOG1P:
      return form_log(F, plus(A, number(A, 1), x));
    case IR_SQRT:
      return form_pow(F, x, 0.5);
    case IR_RSQRT:
      return form_pow(F, x, -0.5);
    case IR_TANH:
    case IR_ROUGH_TANH:
      return minus(A, scaled(A, logistic(A, x, 2), 2), number(A, 1));
    case IR_SIGMOID:
      return logistic(A, x, 1);
    case IR_SIGMOID2:
    case IR_SIGMOID2_ALTERNATING:
      return logistic(A, x, SCALAR_LN_2);
    case IR_SOFTPLUS:
      return form_log(F, plus(A, number(A, 1), form_exp(F, x)));
    case IR_SILU:
      return times(A, x, logistic(A, x, 1));
    case IR_GELU:
      return times(A, scaled(A, x, 0.5), plus(A, number(A, 1), erf_of(A, scaled(A, x, SCALAR_SQRT_1_2))));
    default:
      return NULL;
  }
}

static const form *arithmetic(arms *A, ir_ref r, const ir_node *n) {
  const form *x = n->nargs > 0 ? arms_form(A, n->arg[0]) : NULL, *y = n->nargs > 1 ? arms_form(A, n->arg[1]) : NULL;
  const form *made;
  if (n->type == IR_INT && ir_is_wide(A->d->g, r)) return leaf(A, r, false); /* it may wrap around */
  switch (n->op) {
    case IR_ADD:
    case IR_SUM:
    case IR_REAL_SUM:
    case IR_SUM_APART:
      return plus(A, x, y);
    case IR_SUB:
    case IR_DIFFERENCE:
      return minus(A, x, y);
    case IR_MUL:
    case IR_PRODUCT:
      return times(A, x, y);
    case IR_DIV:
    case IR_QUOTIENT:
      return times(A, x, inverse(A, y));
    case IR_NEG:
      return scaled(A, x, -1);
    case IR_FMA:
      return plus(A, times(A, x, y), arms_form(A, n->arg[2]));
    case IR_TO_REAL:
    case IR_STOP_GRADIENT:
      return x;
    case IR_MOD:
      if (n->type != IR_REAL) return leaf(A, r, false);
      return minus(A, x, times(A, y, form_call(&A->F, IR_FLOORDIV, x, y)));
    default:
      break;
  }
  if (n->type != IR_REAL || n->nargs > 2) return leaf(A, r, false);
  made = n->nargs == 1 ? function(A, (ir_op)n->op, x) : NULL;
  return made != NULL ? made : form_call(&A->F, n->op, x, y);
}

static bool is_whole(const arms *A, ir_ref r) { return A->whole_elements && A->reads[r] == ARMS_READS_ELEMENT; }

static const form *make(arms *A, ir_ref r) {
  const ir_node n = *ir_get(A->d->g, r);
  if (is_whole(A, r)) return leaf(A, r, false);
  switch (n.op) {
    case IR_CONST_REAL:
      return isfinite(n.imm.real) ? number(A, n.imm.real) : form_undefined(&A->F);
    case IR_CONST_INT:
      return number(A, (double)n.imm.integer);
    case IR_VAR:
      return variable(A, r, &n);
    case IR_LOAD:
    case IR_RANDOM:
      return leaf(A, r, false);
    case IR_SELECT:
    case IR_MIN:
    case IR_MAX:
    case IR_CLAMP:
    case IR_ABS:
    case IR_SIGN:
    case IR_RELU:
      return piece(A, &n);
    case IR_POW:
      return power(A, &n);
    default:
      return arithmetic(A, r, &n);
  }
}

const form *arms_form(arms *A, ir_ref r) {
  if (r == IR_NONE || A->undecided || A->F.gave_up) return number(A, 0);
  if (!make_room(A)) A->F.gave_up = true;
  if (A->F.gave_up) return number(A, 0);
  const size_t at = (size_t)r * NUM_ROLES + (size_t)A->role;
  if (arms_remembers(A, &A->memo[at], arms_reads_element(A, r))) return A->memo[at].x;
  const form *x = make(A, r);
  if (!A->undecided && !A->F.gave_up) A->memo[at] = arms_note(A, x);
  return x;
}

const form *arms_form_as(arms *A, arms_role role, ir_ref r) {
  const arms_role before = A->role;
  A->role = role;
  const form *x = arms_form(A, r);
  A->role = before;
  return x;
}

/* Where two numbers are equal, each takes half of a gradient, and only that equality makes them one. */
bool arms_is_zero(arms *A, const form *x) {
  forms *F = &A->F;
  for (int i = 0; i < A->num_zero; i++) x = form_given_zero(F, x, A->zero[i]);
  for (int i = 0; i < A->num_known; i++) {
    const arm *k = &A->known[i];
    if (form_is_zero(F, x)) return true;
    if (k->key != NULL && k->side == 0 && is_visible(A, i))
      x = form_given_zero(F, x, form_add(F, k->key, form_number(F, k->at), -1));
  }
  return form_is_zero(F, x);
}

/* ---- all arms ---- */

/* Takes the claim to each side of what it was undecided about. */
static bool on_sides(arms *A, arms_claim *claim, void *what, bool (*walk)(arms *, arms_claim *, void *)) {
  const arm next = A->next;
  bool ok = A->num_known < ARMS_MAX_KNOWN;
  for (int side = -1; side <= 1 && ok; side++) {
    if (side == 0 && next.key == NULL) continue;
    A->known[A->num_known] = next;
    A->known[A->num_known++].side = side;
    ok = walk(A, claim, what);
    A->num_known--;
  }
  return ok;
}

static bool is_over(const arms *A) { return A->F.gave_up || A->left <= 0; }

static bool walk_all(arms *A, arms_claim *claim, void *what) {
  const int num_zero = A->num_zero;
  if (!enter(A)) return false;
  A->undecided = false;
  A->left--;
  bool ok = claim(A, what);
  if (is_over(A))
    ok = false;
  else if (A->undecided)
    ok = on_sides(A, claim, what, walk_all);
  else
    A->num_arms += ok;
  A->level--;
  A->num_zero = num_zero;
  return ok;
}

bool arms_all(arms *A, arms_claim *claim, void *what) {
  A->num_known = A->first_of_element = A->level = A->element_level = A->num_zero = 0;
  return walk_all(A, claim, what);
}

static bool walk_element(arms *A, arms_claim *visit, void *what) {
  if (!enter(A)) return false;
  A->undecided = false;
  A->left--;
  bool ok = visit(A, what);
  if (is_over(A))
    ok = false;
  else if (A->undecided)
    ok = A->next.element && on_sides(A, visit, what, walk_element);
  A->level--;
  return ok;
}

bool arms_each_element(arms *A, arms_claim *visit, void *what) {
  const int before = A->first_of_element, level = A->element_level;
  A->first_of_element = A->num_known;
  A->element_level = A->level + 1;
  const bool ok = walk_element(A, visit, what);
  A->first_of_element = before;
  A->element_level = level;
  return ok;
}
