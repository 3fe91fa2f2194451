#include "gen/analysis/algebra.h"

#include <string.h>

#include "gen/analysis/arms.h"

enum { MAX_PARTS = 64, OPAQUE = 1 << 28 };

/* First with few symbols, which is quick. */
static bool on_all_arms(derivation *d, arms_claim *claim, void *what) {
  bool ok = false;
  for (int whole = 1; whole >= 0 && !ok && !d->no_memory; whole--) {
    arena *scratch = arena_open(arena_allocator(d->a));
    arms *A = scratch == NULL ? NULL : arms_open(d, scratch, whole != 0);
    ok = A != NULL && arms_all(A, claim, what);
    d->no_memory |= A == NULL || arena_failed(scratch);
    d->num_arms = A == NULL ? 0 : A->num_arms;
    d->too_long = A != NULL && A->F.gave_up;
    if (scratch != NULL) arena_close(scratch);
  }
  return ok && !d->no_memory;
}

/* ---- of one element ---- */

typedef struct multiple {
  ir_ref x, r, y;
  double c;
} multiple;

static bool is_multiple(arms *A, void *what) {
  const multiple *m = what;
  forms *F = &A->F;
  const form *y = arms_form(A, m->y), *x = arms_form(A, m->x);
  if (x->n == 0 && y->n == 0 && !x->undefined && !y->undefined) return true;
  const form *r = m->r == IR_NONE ? form_number(F, 1) : arms_form(A, m->r);
  return arms_is_zero(A, form_add(F, x, form_mul(F, r, y), -m->c));
}

bool algebra_proportional(derivation *d, ir_ref x, double c, ir_ref r, ir_ref y) {
  return on_all_arms(d, is_multiple, &(multiple){x, r, y, c});
}

bool algebra_equal(derivation *d, ir_ref x, ir_ref y) { return algebra_proportional(d, x, 1, IR_NONE, y); }

bool algebra_is_zero(derivation *d, ir_ref x) { return algebra_proportional(d, x, 0, IR_NONE, x); }

/* ---- sums over the row ---- */

/* A sum over the row is one of symbols: an element's part of a term, on one arm of the element, each with a coefficient of the
 * row. */
typedef struct parts {
  const form *of[SPEC_MAX_RED + 1][MAX_PARTS]; /* the coefficients of each term, then of x */
  const form *element[MAX_PARTS];
  int count, arm; /* arm: the first part of the arm at hand */
  const ir_ref *root;
  int num_roots;
} parts;

static int part_of(arms *A, parts *p, const form *element) {
  int i = p->arm;
  while (i < p->count && !form_equal(&A->F, p->element[i], element)) i++;
  if (i == MAX_PARTS) return A->F.gave_up = true, -1;
  if (i < p->count) return i;
  p->element[p->count++] = element;
  for (int k = 0; k < p->num_roots; k++) p->of[k][i] = form_number(&A->F, 0);
  return i;
}

static bool take_parts(arms *A, void *what) {
  parts *p = what;
  const form *x[SPEC_MAX_RED + 1];
  for (int k = 0; k < p->num_roots; k++) x[k] = arms_form(A, p->root[k]);
  if (A->undecided || A->F.gave_up) return false;
  p->arm = p->count;
  for (int k = 0; k < p->num_roots; k++) {
    if (x[k]->undefined) return false;
    for (int i = 0; i < x[k]->n; i++) {
      const form *element, *row;
      form_split(&A->F, &x[k]->t[i], &element, &row);
      const int at = part_of(A, p, element);
      if (at < 0) return false;
      p->of[k][at] = form_add(&A->F, p->of[k][at], row, 1);
    }
  }
  return true;
}

/* Subtracts from line `to` a multiple of line `from` so that its part `at` is 0; both have their sums beside them. */
static void eliminate(arms *A, parts *p, int to, int from, int at, const form **sum) {
  forms *F = &A->F;
  const form *ratio = form_mul(F, p->of[to][at], form_pow(F, p->of[from][at], -1));
  for (int i = 0; i < p->count; i++)
    p->of[to][i] = i == at ? form_number(F, 0) : form_add(F, p->of[to][i], form_mul(F, ratio, p->of[from][i]), -1);
  sum[to] = form_add(F, sum[to], form_mul(F, ratio, sum[from]), -1);
}

static int first_part(arms *A, parts *p, int line) {
  for (int i = 0; i < p->count; i++)
    if (!form_is_zero(&A->F, p->of[line][i])) return i;
  return -1;
}

/* The sum of x over the row, where the sums of terms are known; what is left of it is a new symbol. */
static const form *sum_of_row(arms *A, ir_ref x, int serial) {
  const derivation *d = A->d;
  forms *F = &A->F;
  ir_ref root[SPEC_MAX_RED + 1];
  const form *sum[SPEC_MAX_RED + 1];
  int n = 0, pivot[SPEC_MAX_RED];
  for (int k = 0; k < d->num_red; k++)
    if (d->step.kind[k] == IR_REDUCE_SUM) sum[n] = arms_reduction(A, k), root[n++] = d->term[k];
  root[n] = x;
  sum[n] = form_number(F, 0);
  parts *p = arena_new(F->a, sizeof *p);
  if (p == NULL) return A->F.gave_up = true, sum[n];
  p->root = root, p->num_roots = n + 1;
  if (!arms_each_element(A, take_parts, p)) {
    if (!A->undecided) F->gave_up = true;
    return form_number(F, 0);
  }
  for (int k = 0; k < n; k++) {
    for (int j = 0; j < k; j++)
      if (pivot[j] >= 0) eliminate(A, p, k, j, pivot[j], sum);
    pivot[k] = first_part(A, p, k);
  }
  for (int j = 0; j < n; j++)
    if (pivot[j] >= 0) eliminate(A, p, n, j, pivot[j], sum);
  const form *whole = form_mul(F, sum[n], form_number(F, -1));
  if (first_part(A, p, n) < 0) return whole;
  return form_add(F, whole, form_symbol(F, OPAQUE + (uint32_t)serial, false, false, 0), 1);
}

/* x, the derivative of an element's term of reduction j, reduced over the row: of a maximum, at the element where it is. */
static const form *reduced(arms *A, int j, ir_ref x, int serial) {
  if (x == IR_NONE) return form_number(&A->F, 0);
  if (A->d->step.kind[j] == IR_REDUCE_SUM) return sum_of_row(A, x, serial);
  const form *of_element = arms_form(A, x);
  if (!form_is_element(&A->F, of_element)) return of_element;
  return form_symbol(&A->F, OPAQUE + (uint32_t)serial, false, false, 0);
}

static bool chain_is_zero(arms *A, void *what) {
  const algebra_chain *c = what;
  const int n = A->d->num_red;
  forms *F = &A->F;
  const form *total[SPEC_MAX_RED];
  int serial = 0;
  for (int j = 0; j < n; j++) {
    total[j] = c->of_term != NULL ? reduced(A, j, c->of_term[j], serial++) : form_number(F, j == c->k ? 1 : 0);
    for (int m = c->of_term != NULL ? 0 : c->k; m < j; m++, serial++) {
      const ir_ref x = c->between[j * SPEC_MAX_RED + m];
      if (x != IR_NONE && total[m]->n > 0) total[j] = form_add(F, total[j], form_mul(F, reduced(A, j, x, serial), total[m]), 1);
    }
    if (A->undecided || F->gave_up) return false;
  }
  const form *sum = arms_form(A, c->direct);
  for (int j = 0; j < n; j++)
    if (c->by_red[j] != IR_NONE && total[j]->n > 0) sum = form_add(F, sum, form_mul(F, arms_form(A, c->by_red[j]), total[j]), 1);
  return arms_is_zero(A, sum);
}

bool algebra_vanishes(derivation *d, const algebra_chain *c) { return on_all_arms(d, chain_is_zero, (void *)c); }
