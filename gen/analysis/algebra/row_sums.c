#include "gen/analysis/algebra/row_sums.h"

enum { MAX_PARTS = 64, UNKNOWN = 1 << 28 };

/* A sum over the row is one of symbols: an element's part of a term, on one arm of the element, each with a
 * coefficient of the row. */
typedef struct parts {
  const form *of[SPEC_MAX_RED + 1][MAX_PARTS]; /* the coefficients of each term, then of x */
  const form *element[MAX_PARTS];
  int count, arm; /* arm: the first part of the arm at hand */
  const ir_ref *root;
  const arms_role *role; /* of each root */
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
  for (int k = 0; k < p->num_roots; k++) x[k] = arms_form_as(A, p->role[k], p->root[k]);
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

/* Subtracts from line `to` a multiple of line `from` so that its part `at` is 0; both have their sums beside
 * them. */
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

const form *row_sum_unknown(arms *A, int serial) {
  return form_symbol(&A->F, UNKNOWN + (uint32_t)serial, false, FORM_ANY_SIGN, 0);
}

static const form *sum_parts(arms *A, row_sum_of x, int serial) {
  const derivation *d = A->d;
  forms *F = &A->F;
  ir_ref root[SPEC_MAX_RED + 1];
  arms_role role[SPEC_MAX_RED + 1];
  const form *sum[SPEC_MAX_RED + 1];
  int n = 0, pivot[SPEC_MAX_RED];
  for (int k = 0; k < d->num_red; k++)
    if (d->step.kind[k] == IR_REDUCE_SUM)
      sum[n] = arms_reduction(A, x.part, k), role[n] = x.part, root[n++] = d->term[k];
  root[n] = x.value, role[n] = x.role, sum[n] = form_number(F, 0);
  parts *p = arena_new(F->a, sizeof *p);
  if (p == NULL) return F->gave_up = true, sum[n];
  p->root = root, p->role = role, p->num_roots = n + 1;
  if (!arms_each_element(A, take_parts, p)) {
    if (!A->undecided) F->gave_up = true;
    return form_number(F, 0);
  }
  for (int k = 0; k < n; k++) {
    for (int j = 0; j < k; j++)
      if (pivot[j] >= 0) eliminate(A, p, k, j, pivot[j], sum);
    pivot[k] = first_part(A, p, k);
    if (pivot[k] < 0 && A->num_zero < ARMS_MAX_ZERO) A->zero[A->num_zero++] = sum[k];
  }
  for (int j = 0; j < n; j++)
    if (pivot[j] >= 0) eliminate(A, p, n, j, pivot[j], sum);
  const form *whole = form_mul(F, sum[n], form_number(F, -1));
  return first_part(A, p, n) < 0 ? whole : form_add(F, whole, row_sum_unknown(A, serial), 1);
}

/* What is made of a sum on one arm holds on all of its parts, and so does what is then known to be 0. */
const form *row_sum(arms *A, row_sum_of x, int serial) {
  arm_memo *m = serial < ARMS_MAX_SUMS ? &A->sum[serial] : NULL;
  if (m != NULL && arms_remembers(A, m, false)) return m->x;
  const form *sum = sum_parts(A, x, serial);
  if (m != NULL && !A->undecided && !A->F.gave_up) *m = arms_note(A, sum);
  return sum;
}
