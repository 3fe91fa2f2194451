/* arms.h: forms (form.h) of a derivation's nodes on one arm of each condition, and a walk over all arms. Internal to algebra.c. */
#ifndef LUATTN_GEN_ARMS_H
#define LUATTN_GEN_ARMS_H

#include "gen/analysis/derivation.h"
#include "gen/analysis/form.h"

enum { ARMS_MAX_KNOWN = 48 };

/* What an arm knows: that key is below, at or above a number, or that a condition holds (side 1) or does not (-1). */
typedef struct arm {
  const form *key; /* NULL: a condition */
  double at;
  ir_ref condition;
  int side;
  bool element; /* of one element of the row */
} arm;

typedef struct arms {
  const derivation *d;
  forms F;
  arm known[ARMS_MAX_KNOWN];
  int num_known;
  int first_of_element; /* what is known of other elements than the one at hand comes before it */
  bool undecided;       /* a form needs to know `next` first, and what was made of it means nothing */
  arm next;
  int num_arms; /* on which the claim held */
  int left;     /* arms that may still be visited */
  bool whole_elements; /* what reads an element and no number of the row is a symbol: what holds of that holds */
  const form **memo;
  uint32_t *stamp, generation, size;
} arms;

arms *arms_open(const derivation *d, arena *a, bool whole_elements); /* NULL: out of memory */
const form *arms_form(arms *A, ir_ref r); /* IR_NONE: 0 */
bool arms_reads_element(const arms *A, ir_ref r);
const form *arms_reduction(arms *A, int k);

/* Whether x is 0 on this arm. */
bool arms_is_zero(arms *A, const form *x);

/* Whether `claim` holds on every arm. It is asked again with more known where it was undecided. */
typedef bool arms_claim(arms *A, void *what);
bool arms_all(arms *A, arms_claim *claim, void *what);
/* Calls `visit` on each arm of one element, for what it makes of that; false: it said so, or a condition of the row is undecided. */
bool arms_each_element(arms *A, arms_claim *visit, void *what);

#endif
