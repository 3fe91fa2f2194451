/* normal_form.h: a normal form of real expressions, in which equality is a comparison.
 *
 * A form is a sum of terms c * a1^n1 * .. * exp(form), sorted. An atom is a symbol, a function of forms that
 * nothing is known of, or a sum that is divided by or has a root; form_is_zero multiplies by these. Equal
 * functions may have forms that differ, since no more is known of an atom than its powers and of exp and log
 * their rules: what is 0 as a form is 0 wherever it has a value, and what is not may be. Coefficients are
 * doubles, and those that cancel but for rounding do.
 */
#ifndef LUATTN_GEN_FORM_H
#define LUATTN_GEN_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "gen/base/arena.h"

enum { FORM_MAX_ATOMS = 240, FORM_MAX_TERMS = 160, FORM_MAX_FACTORS = 24 };

typedef struct form form;

typedef struct form_factor {
  int atom;
  double power;
} form_factor;

typedef struct form_term {
  double c;
  const form *e; /* exp of this; NULL: 1 */
  int n;
  form_factor *f; /* by atom */
} form_term;

struct form {
  int n;
  bool undefined; /* 1 / 0, log 0 */
  form_term *t;
};

/* Symbols have numbers that the caller gives; SUM is a form, LOG a logarithm of one, CALL some other
 * function. */
typedef enum form_kind { FORM_SYMBOL, FORM_SUM, FORM_LOG, FORM_CALL } form_kind;

/* What is known of a number: nothing; that it is at least 0; that it is above. */
typedef enum form_sign { FORM_ANY_SIGN, FORM_NOT_BELOW, FORM_ABOVE } form_sign;

typedef struct form_atom {
  form_kind kind;
  uint32_t number; /* of a symbol, or of what is called */
  const form *arg[2];
  bool element; /* reads an element of the row */
  form_sign sign;
  double least; /* FORM_ABOVE: it is at least this */
} form_atom;

typedef struct forms {
  arena *a;
  int num_atoms;
  form_atom atom[FORM_MAX_ATOMS];
  long work;    /* what is left to spend */
  bool gave_up; /* a form was too large, or work ran out: nothing is known */
} forms;

void forms_open(forms *F, arena *a, long work);
const form *form_number(forms *F, double x);
const form *form_symbol(forms *F, uint32_t number, bool element, form_sign sign, double least);
const form *form_call(forms *F, uint32_t op, const form *x, const form *y); /* y may be NULL */
const form *form_undefined(forms *F);
const form *form_of_atom(forms *F, int atom);

const form *form_add(forms *F, const form *x, const form *y, double scale); /* x + scale * y */
const form *form_mul(forms *F, const form *x, const form *y);
const form *form_pow(forms *F, const form *x, double power);
const form *form_exp(forms *F, const form *x);
const form *form_log(forms *F, const form *x);

bool form_is_zero(forms *F, const form *x); /* false where it gave up */
/* x by powers of sums that are above 0, so that it divides by none of them. */
const form *form_numerator(forms *F, const form *x);
bool form_is_number(const form *x, double *value);
bool form_equal(forms *F, const form *x, const form *y);
bool form_is_element(const forms *F, const form *x);
form_sign form_sign_of(const forms *F, const form *x, double *least);
bool form_is_positive(const forms *F, const form *x, double *least);
/* x with another form in place of a symbol. */
const form *form_with(forms *F, const form *x, const form *symbol, const form *by);
/* x where zero, another form, is 0: with the first symbol that is a term of zero by itself replaced. */
const form *form_given_zero(forms *F, const form *x, const form *zero);
/* Splits a term in what reads an element (with c = 1) and what does not. */
void form_split(forms *F, const form_term *t, const form **element, const form **row);

#endif
