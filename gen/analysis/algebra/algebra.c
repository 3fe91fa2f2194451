#include "gen/analysis/algebra/algebra.h"

#include "gen/analysis/algebra/row_sums.h"

#define MOST_WORK 300000L /* of a row of four scores */
#define WORK 20000L       /* a few hundred suffice for a softmax */

/* First with few symbols, which is quick. */
bool algebra_proves(derivation *d, arms_claim *claim, void *what, long work) {
  bool ok = false;
  for (int whole = 1; whole >= 0 && !ok && !d->no_memory; whole--) {
    arena *scratch = arena_borrow(d->a);
    arms *A = scratch == NULL ? NULL : arms_open(d, scratch, whole != 0, work);
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
  return algebra_proves(d, is_multiple, &(multiple){x, r, y, c}, WORK);
}

bool algebra_equal(derivation *d, ir_ref x, ir_ref y) { return algebra_proportional(d, x, 1, IR_NONE, y); }

/* A derivation of which the states and the final numbers are symbols. */
static derivation *of_symbols(arena *a, const traced_spec *t) {
  derivation *d = arena_new(a, sizeof *d);
  if (d == NULL) return NULL;
  *d = (derivation){.a = a, .t = t, .o = &t->online, .g = t->g, .low_score = LOWEST};
  for (int i = 0; i < SPEC_MAX_STATE; i++) d->dropped[i] = true;
  return d;
}

/* Memory that runs out in a proof is no answer: `a`, which its owner asks, has failed then. */
static bool proves_of_symbols(arena *a, const traced_spec *t, arms_claim *claim, void *what) {
  derivation *d = of_symbols(a, t);
  const bool ok = d != NULL && algebra_proves(d, claim, what, MOST_WORK);
  if (d != NULL && d->no_memory) arena_fail(a);
  return ok;
}

bool algebra_same(arena *a, const traced_spec *t, ir_ref x, ir_ref y) {
  return x == y || proves_of_symbols(a, t, is_multiple, &(multiple){x, IR_NONE, y, 1});
}

bool algebra_is_not_below(arms *A, const form *x) {
  double least;
  if (x->undefined || A->undecided) return false;
  x = form_numerator(&A->F, x);
  if (form_sign_of(&A->F, x, &least) != FORM_ANY_SIGN) return true;
  const int sign = arms_sign(A, x);
  return !A->undecided && sign >= 0;
}

static bool is_not_below(arms *A, void *what) { return algebra_is_not_below(A, arms_form(A, *(const ir_ref *)what)); }

bool algebra_not_below(arena *a, const traced_spec *t, ir_ref x) { return proves_of_symbols(a, t, is_not_below, &x); }

bool algebra_is_zero(derivation *d, ir_ref x) { return algebra_proportional(d, x, 0, IR_NONE, x); }

/* ---- chains ---- */

/* x, the derivative of an element's term of reduction j, reduced over the row: of a maximum, at the element
 * where it is. */
static const form *reduced(arms *A, int j, ir_ref x, int serial) {
  if (x == IR_NONE) return form_number(&A->F, 0);
  if (A->d->step.kind[j] == IR_REDUCE_SUM) return row_sum(A, (row_sum_of){x, WHOLE_ROW, WHOLE_ROW}, serial);
  const form *of_element = arms_form(A, x);
  if (!form_is_element(&A->F, of_element)) return of_element;
  return row_sum_unknown(A, serial);
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
      if (x != IR_NONE && total[m]->n > 0)
        total[j] = form_add(F, total[j], form_mul(F, reduced(A, j, x, serial), total[m]), 1);
    }
    if (A->undecided || F->gave_up) return false;
  }
  const form *sum = arms_form(A, c->direct);
  for (int j = 0; j < n; j++)
    if (c->by_red[j] != IR_NONE && total[j]->n > 0)
      sum = form_add(F, sum, form_mul(F, arms_form(A, c->by_red[j]), total[j]), 1);
  return arms_is_zero(A, sum);
}

bool algebra_vanishes(derivation *d, const algebra_chain *c) {
  return algebra_proves(d, chain_is_zero, (void *)c, WORK);
}
