#include "gen/analysis/algebra/normal_form.h"

#include <math.h>
#include <string.h>

#define CANCELS 1e-12      /* relative */
#define MOST_EXPONENT 64.0 /* of numbers whose exp is one, to much less than CANCELS */
enum { MAX_WHOLE_POWER = 4 };

static const form nothing = {0, false, NULL}, without_value = {0, true, NULL};
static const form unit = {1, false, (form_term[]){{1, NULL, 0, NULL}}};

void forms_open(forms *F, arena *a, long work) { *F = (forms){.a = a, .work = work}; }

const form *form_undefined(forms *F) { return (void)F, &without_value; }

static const form *give_up(forms *F) {
  F->gave_up = true;
  return &nothing;
}

static form *new_form(forms *F, int n) {
  F->work -= 1 + n;
  if (n > FORM_MAX_TERMS || F->work < 0) return give_up(F), NULL;
  form *x = arena_raw(F->a, 1, sizeof *x + (size_t)n * sizeof *x->t);
  if (x == NULL) return give_up(F), NULL;
  *x = (form){n, false, n == 0 ? NULL : (form_term *)(x + 1)};
  return x;
}

/* ---- sums ---- */

/* The order of two terms' products without their coefficients, which a common factor leaves as it is. */
static int order(forms *F, const form_term *x, const form_term *y) {
  int i = 0, j = 0;
  while (i < x->n || j < y->n) {
    const int at = j == y->n || (i < x->n && x->f[i].atom < y->f[j].atom) ? x->f[i].atom : y->f[j].atom;
    const double p = i < x->n && x->f[i].atom == at ? x->f[i++].power : 0;
    const double q = j < y->n && y->f[j].atom == at ? y->f[j++].power : 0;
    if (p != q) return p > q ? -1 : 1;
  }
  if (x->e == y->e) return 0;
  const arena_place mark = arena_mark(F->a);
  const form *rest = form_add(F, x->e == NULL ? &nothing : x->e, y->e == NULL ? &nothing : y->e, -1);
  const int found = rest->n == 0 ? 0 : rest->t[0].c > 0 ? -1 : 1;
  arena_rewind(F->a, mark);
  return found;
}

/* A copy of x by a number, which leaves the order of its terms. */
static const form *multiplied(forms *F, const form *x, double c) {
  if (x->n == 0) return x;
  if (c == 0 || F->gave_up) return &nothing;
  form *y = new_form(F, x->n);
  if (y == NULL) return &nothing;
  for (int i = 0; i < x->n; i++) {
    y->t[i] = x->t[i];
    y->t[i].c *= c;
    if (!isfinite(y->t[i].c) || y->t[i].c == 0) return give_up(F);
  }
  return y;
}

const form *form_add(forms *F, const form *x, const form *y, double scale) {
  if (x->undefined || y->undefined) return &without_value;
  if (y->n == 0 || F->gave_up) return x;
  if (x->n == 0) return multiplied(F, y, scale);
  form *sum = new_form(F, x->n + y->n);
  if (sum == NULL) return &nothing;
  int i = 0, j = 0, n = 0;
  while (i < x->n || j < y->n) {
    const int which = i == x->n ? 1 : j == y->n ? -1 : order(F, &x->t[i], &y->t[j]);
    form_term t = which <= 0 ? x->t[i++] : y->t[j];
    if (which > 0) t.c *= scale;
    if (which == 0) {
      const double left = t.c, right = scale * y->t[j].c;
      t.c = left + right;
      if (fabs(t.c) <= CANCELS * (fabs(left) + fabs(right))) t.c = 0;
    }
    if (which >= 0) j++;
    if (t.c != 0) sum->t[n++] = t;
    if (!isfinite(t.c)) return give_up(F);
  }
  sum->n = n;
  return sum;
}

static const form *single(forms *F, double c, const form *e, const form_factor *f, int n) {
  if (c == 0) return &nothing;
  if (!isfinite(c)) return give_up(F);
  form *x = new_form(F, 1);
  if (x == NULL) return &nothing;
  x->t[0] = (form_term){c, e != NULL && e->n == 0 ? NULL : e, n, NULL};
  x->t[0].f = n == 0 ? NULL : arena_raw(F->a, (size_t)n, sizeof *f);
  if (n > 0 && x->t[0].f == NULL) return give_up(F);
  if (n > 0) memcpy(x->t[0].f, f, (size_t)n * sizeof *f);
  return x;
}

const form *form_number(forms *F, double x) { return x == 1 ? &unit : single(F, x, NULL, NULL, 0); }

bool form_is_number(const form *x, double *value) {
  *value = x->n == 0 ? 0 : x->t[0].c;
  return !x->undefined && (x->n == 0 || (x->n == 1 && x->t[0].n == 0 && x->t[0].e == NULL));
}

bool form_equal(forms *F, const form *x, const form *y) {
  if (x == y || x->n != y->n || x->undefined || y->undefined) return x == y;
  const arena_place mark = arena_mark(F->a);
  const bool equal = form_add(F, x, y, -1)->n == 0;
  arena_rewind(F->a, mark);
  return equal;
}

/* ---- products ---- */

static const form *multiply_terms(forms *F, const form_term *x, const form_term *y) {
  form_factor f[2 * FORM_MAX_FACTORS];
  int i = 0, j = 0, n = 0;
  while (i < x->n || j < y->n) {
    const int at = j == y->n || (i < x->n && x->f[i].atom < y->f[j].atom) ? x->f[i].atom : y->f[j].atom;
    const double p = i < x->n && x->f[i].atom == at ? x->f[i++].power : 0;
    const double q = j < y->n && y->f[j].atom == at ? y->f[j++].power : 0;
    if (fabs(p + q) > CANCELS) f[n++] = (form_factor){at, p + q};
  }
  if (n > FORM_MAX_FACTORS) return give_up(F);
  const form *e = x->e == NULL ? y->e : y->e == NULL ? x->e : form_add(F, x->e, y->e, 1);
  return single(F, x->c * y->c, e, f, n);
}

static bool is_number_term(const form_term *t) { return t->n == 0 && t->e == NULL; }

const form *form_mul(forms *F, const form *x, const form *y) {
  if (x->undefined || y->undefined) return &without_value;
  if (x->n == 0 || y->n == 0) return &nothing;
  if (x->n == 1 && is_number_term(&x->t[0])) return x->t[0].c == 1 ? y : multiplied(F, y, x->t[0].c);
  if (y->n == 1 && is_number_term(&y->t[0])) return y->t[0].c == 1 ? x : multiplied(F, x, y->t[0].c);
  if (x->n == 1 && y->n == 1) return multiply_terms(F, &x->t[0], &y->t[0]);
  const form *sum = &nothing;
  for (int i = 0; i < x->n; i++)
    for (int j = 0; j < y->n && !F->gave_up; j++) sum = form_add(F, sum, multiply_terms(F, &x->t[i], &y->t[j]), 1);
  return sum;
}

/* ---- atoms ---- */

static bool is_same_atom(forms *F, const form_atom *x, const form_atom *y) {
  if (x->kind != y->kind || x->number != y->number) return false;
  for (int i = 0; i < 2; i++) {
    if ((x->arg[i] == NULL) != (y->arg[i] == NULL)) return false;
    if (x->arg[i] != NULL && !form_equal(F, x->arg[i], y->arg[i])) return false;
  }
  return true;
}

static const form *atom_form(forms *F, form_atom x) {
  int at = 0;
  while (at < F->num_atoms && !is_same_atom(F, &F->atom[at], &x)) at++;
  if (at == FORM_MAX_ATOMS || F->gave_up) return give_up(F);
  for (int i = 0; i < 2 && at == F->num_atoms; i++) x.element |= x.arg[i] != NULL && form_is_element(F, x.arg[i]);
  if (at == F->num_atoms) F->atom[F->num_atoms++] = x;
  return single(F, 1, NULL, &(form_factor){at, 1}, 1);
}

const form *form_of_atom(forms *F, int atom) { return single(F, 1, NULL, &(form_factor){atom, 1}, 1); }

const form *form_symbol(forms *F, uint32_t number, bool element, form_sign sign, double least) {
  return atom_form(F, (form_atom){FORM_SYMBOL, number, {NULL, NULL}, element, sign, least});
}

const form *form_call(forms *F, uint32_t op, const form *x, const form *y) {
  if (x->undefined || (y != NULL && y->undefined)) return &without_value;
  return atom_form(F, (form_atom){FORM_CALL, op, {x, y}, false, FORM_ANY_SIGN, 0});
}

static const form *sum_atom(forms *F, const form *x) {
  double least;
  const form_sign sign = form_sign_of(F, x, &least);
  return atom_form(F, (form_atom){FORM_SUM, 0, {x, NULL}, false, sign, least});
}

static const form *log_atom(forms *F, const form *x) {
  return atom_form(F, (form_atom){FORM_LOG, 0, {x, NULL}, false, FORM_ANY_SIGN, 0});
}

bool form_is_element(const forms *F, const form *x) {
  for (int i = 0; i < x->n; i++) {
    if (x->t[i].e != NULL && form_is_element(F, x->t[i].e)) return true;
    for (int k = 0; k < x->t[i].n; k++)
      if (F->atom[x->t[i].f[k].atom].element) return true;
  }
  return false;
}

static bool is_even(double power) { return fmod(power, 2) == 0; }

static form_sign sign_of_term(const forms *F, const form_term *t) {
  form_sign sign = t->c > 0 ? FORM_ABOVE : FORM_ANY_SIGN;
  for (int k = 0; k < t->n && sign != FORM_ANY_SIGN; k++) {
    const form_sign of = F->atom[t->f[k].atom].sign;
    if (of == FORM_ABOVE) continue;
    sign = of == FORM_NOT_BELOW || is_even(t->f[k].power) ? FORM_NOT_BELOW : FORM_ANY_SIGN;
    if (t->f[k].power < 0 && sign == FORM_NOT_BELOW) sign = FORM_ABOVE; /* wherever it has a value */
  }
  return sign;
}

form_sign form_sign_of(const forms *F, const form *x, double *least) {
  form_sign sum = FORM_NOT_BELOW;
  *least = 0;
  for (int i = 0; i < x->n; i++) {
    const form_term *t = &x->t[i];
    const form_sign sign = sign_of_term(F, t);
    if (sign == FORM_ANY_SIGN) return sign;
    if (sign == FORM_ABOVE) sum = sign;
    if (t->e == NULL && t->n == 0) *least += t->c;
    if (t->e == NULL && t->n == 1 && t->f[0].power == 1) *least += t->c * F->atom[t->f[0].atom].least;
  }
  return sum;
}

bool form_is_positive(const forms *F, const form *x, double *least) { return form_sign_of(F, x, least) == FORM_ABOVE; }

/* ---- powers ---- */

/* Whether (c a^n ..)^power is c^power a^(n power) .. wherever it has a value. */
static bool distributes(const forms *F, const form_term *t, double power) {
  int unknown = 0;
  if (power == nearbyint(power)) return true;
  if (t->c < 0) return false;
  for (int k = 0; k < t->n; k++) {
    if (F->atom[t->f[k].atom].sign != FORM_ANY_SIGN) continue;
    if (is_even(t->f[k].power)) return false; /* sqrt(x^2) is |x| */
    unknown++;
  }
  return unknown <= 1;
}

static const form *pow_of_term(forms *F, const form_term *t, double power) {
  form_factor f[FORM_MAX_FACTORS];
  const form *e = t->e == NULL ? NULL : multiplied(F, t->e, power);
  for (int k = 0; k < t->n; k++) f[k] = (form_factor){t->f[k].atom, t->f[k].power * power};
  const double c = pow(t->c, power);
  return c == 0 ? give_up(F) : single(F, c, e, f, t->n);
}

/* x without the coefficient (but for its sign) and the exponential of its first term, which is *out. */
static const form *without_first(forms *F, const form *x, bool keep_sign, form_term *out) {
  *out = (form_term){keep_sign ? fabs(x->t[0].c) : x->t[0].c, x->t[0].e, 0, NULL};
  return form_mul(F, x, pow_of_term(F, out, -1));
}

const form *form_pow(forms *F, const form *x, double power) {
  if (x->undefined || (x->n == 0 && power < 0)) return &without_value;
  if (power == 0) return form_number(F, 1);
  if (x->n == 0 || power == 1 || F->gave_up) return x;
  if (x->n == 1 && distributes(F, &x->t[0], power)) return pow_of_term(F, &x->t[0], power);
  if (power == nearbyint(power) && power > 0 && power <= MAX_WHOLE_POWER) {
    const form *product = x;
    for (int i = 1; i < (int)power; i++) product = form_mul(F, product, x);
    return product;
  }
  form_term first;
  const form *rest = without_first(F, x, power != nearbyint(power), &first), *atom = sum_atom(F, rest);
  if (F->gave_up) return &nothing;
  const form *root = single(F, 1, NULL, &(form_factor){atom->t[0].f[0].atom, power}, 1);
  return form_mul(F, pow_of_term(F, &first, power), root);
}

const form *form_exp(forms *F, const form *x) {
  if (x->undefined) return x;
  const form *product = form_number(F, 1), *rest = &nothing;
  for (int i = 0; i < x->n && !F->gave_up; i++) {
    const form_term *t = &x->t[i];
    const form_atom *a = t->n == 1 && t->e == NULL && t->f[0].power == 1 ? &F->atom[t->f[0].atom] : NULL;
    if (t->n == 0 && t->e == NULL && fabs(t->c) <= MOST_EXPONENT) {
      product = form_mul(F, product, form_number(F, exp(t->c)));
    } else if (a != NULL && a->kind == FORM_LOG) {
      product = form_mul(F, product, form_pow(F, a->arg[0], t->c));
    } else {
      const form one = {1, false, (form_term *)t};
      rest = form_add(F, rest, &one, 1);
    }
  }
  return form_mul(F, product, single(F, 1, rest, NULL, 0));
}

/* The logarithm of a product, of which at most one factor may be below 0 where the product is above. */
static const form *log_of_term(forms *F, const form_term *t) {
  const form *sum = t->e == NULL ? &nothing : t->e;
  sum = form_add(F, sum, form_number(F, log(t->c)), 1);
  for (int k = 0; k < t->n; k++) {
    const form_atom *a = &F->atom[t->f[k].atom];
    const form *x = a->kind == FORM_SUM ? a->arg[0] : single(F, 1, NULL, &(form_factor){t->f[k].atom, 1}, 1);
    sum = form_add(F, sum, log_atom(F, x), t->f[k].power);
  }
  return sum;
}

const form *form_log(forms *F, const form *x) {
  if (x->undefined || x->n == 0) return &without_value;
  if (x->n == 1 && distributes(F, &x->t[0], 0.5)) return log_of_term(F, &x->t[0]);
  form_term first;
  const form *rest = without_first(F, x, true, &first);
  if (F->gave_up) return &nothing;
  const form *sum = form_add(F, first.e == NULL ? &nothing : first.e, form_number(F, log(first.c)), 1);
  return form_add(F, sum, log_atom(F, rest), 1);
}

/* ---- zero ---- */

static double power_of(const form_term *t, int atom) {
  for (int k = 0; k < t->n; k++)
    if (t->f[k].atom == atom) return t->f[k].power;
  return 0;
}

/* The last atom before `before` that is a sum; -1: none. */
static int sum_to_clear(const forms *F, const form *x, int before) {
  int last = -1;
  for (int i = 0; i < x->n; i++) {
    for (int k = 0; k < x->t[i].n; k++) {
      const int atom = x->t[i].f[k].atom;
      if (F->atom[atom].kind == FORM_SUM && atom > last && atom < before) last = atom;
    }
  }
  return last;
}

/* x by such a power of the atom that none is below 0, with whole powers multiplied out. */
static const form *clear(forms *F, const form *x, int atom) {
  double least = power_of(&x->t[0], atom);
  for (int i = 1; i < x->n; i++) least = fmin(least, power_of(&x->t[i], atom));
  const form *by = single(F, 1, NULL, &(form_factor){atom, -least}, 1), *sum = &nothing;
  if (least != 0) x = form_mul(F, x, by);
  for (int i = 0; i < x->n && !F->gave_up; i++) {
    const double whole = floor(power_of(&x->t[i], atom) + CANCELS);
    const form one = {1, false, (form_term *)&x->t[i]};
    const form *part = &one;
    if (whole > 0) {
      part = form_mul(F, part, single(F, 1, NULL, &(form_factor){atom, -whole}, 1));
      for (double k = 0; k < whole; k++) part = form_mul(F, part, F->atom[atom].arg[0]);
    }
    sum = form_add(F, sum, part, 1);
  }
  return sum;
}

/* A sum's atoms come before it, so that each is cleared once. */
bool form_is_zero(forms *F, const form *x) {
  int atom = FORM_MAX_ATOMS;
  while (x->n > 0 && !x->undefined && !F->gave_up && (atom = sum_to_clear(F, x, atom)) >= 0) x = clear(F, x, atom);
  return x->n == 0 && !x->undefined && !F->gave_up;
}

const form *form_numerator(forms *F, const form *x) {
  int atom = FORM_MAX_ATOMS;
  while (x->n > 0 && !x->undefined && !F->gave_up && (atom = sum_to_clear(F, x, atom)) >= 0)
    if (F->atom[atom].sign == FORM_ABOVE) x = clear(F, x, atom);
  return x;
}

static bool reads(const form *x, int atom) {
  for (int i = 0; i < x->n; i++)
    if (power_of(&x->t[i], atom) != 0 || (x->t[i].e != NULL && reads(x->t[i].e, atom))) return true;
  return false;
}

/* x with an atom replaced, but inside of other functions than exp. */
static const form *replaced(forms *F, const form *x, int atom, const form *by) {
  const form *sum = &nothing;
  for (int i = 0; i < x->n && !F->gave_up; i++) {
    form_term t = x->t[i];
    const form one = {1, false, &t};
    const double power = power_of(&t, atom);
    const form *e = t.e, *part = &one;
    if (e != NULL && reads(e, atom)) t.e = NULL;
    if (power != 0) {
      part = form_mul(F, part, single(F, 1, NULL, &(form_factor){atom, -power}, 1));
      part = form_mul(F, part, form_pow(F, by, power));
    }
    if (e != t.e) part = form_mul(F, part, form_exp(F, replaced(F, e, atom, by)));
    sum = form_add(F, sum, part, 1);
  }
  return sum;
}

const form *form_with(forms *F, const form *x, const form *symbol, const form *by) {
  return F->gave_up ? x : replaced(F, x, symbol->t[0].f[0].atom, by);
}

const form *form_given_zero(forms *F, const form *x, const form *zero) {
  for (int i = 0; i < zero->n; i++) {
    const form_term *t = &zero->t[i];
    if (t->n != 1 || t->e != NULL || t->f[0].power != 1 || F->atom[t->f[0].atom].kind != FORM_SYMBOL) continue;
    bool alone = true;
    for (int j = 0; j < zero->n; j++) alone &= j == i || power_of(&zero->t[j], t->f[0].atom) == 0;
    if (!alone) continue;
    const form *rest = form_add(F, zero, single(F, t->c, NULL, t->f, 1), -1);
    return replaced(F, x, t->f[0].atom, multiplied(F, rest, -1 / t->c));
  }
  return x;
}

void form_split(forms *F, const form_term *t, const form **element, const form **row) {
  form_factor of[2][FORM_MAX_FACTORS];
  int n[2] = {0, 0};
  const form *e[2] = {&nothing, &nothing};
  for (int k = 0; k < t->n; k++) {
    const int which = F->atom[t->f[k].atom].element;
    of[which][n[which]++] = t->f[k];
  }
  for (int i = 0; t->e != NULL && i < t->e->n; i++) {
    const form one = {1, false, &t->e->t[i]};
    const int which = form_is_element(F, &one);
    e[which] = form_add(F, e[which], &one, 1);
  }
  *row = single(F, t->c, e[0], of[0], n[0]);
  *element = single(F, 1, e[1], of[1], n[1]);
}
