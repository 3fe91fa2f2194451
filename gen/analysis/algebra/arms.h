/* arms.h: forms (normal_form.h) of a derivation's nodes on one arm of each condition, and a walk over all
 * arms. Internal to algebra.c. */
#ifndef LUATTN_GEN_ARMS_H
#define LUATTN_GEN_ARMS_H

#include "gen/analysis/algebra/derivation.h"
#include "gen/analysis/algebra/normal_form.h"

enum { ARMS_MAX_KNOWN = 48, ARMS_MAX_ZERO = 16, ARMS_MAX_LEVELS = 2 * ARMS_MAX_KNOWN, ARMS_MAX_SUMS = 64 };
enum { ARMS_READS_ELEMENT = 1, ARMS_READS_ROW = 2 };

/* What an arm knows: that key is below, at or above a number, or that a condition holds (side 1) or does not
 * (-1). */
typedef struct arm {
  const form *key; /* NULL: a condition */
  double at;
  ir_ref condition;
  int side;
  bool element; /* of one element of the row */
} arm;

/* Whose reductions a form reads: the row's; those of one part of it, of the other, or of both as one row. In
 * MERGED, a state is that of the one part, and VAR_OTHER that of the other. In STEPPED, an expression is that
 * of a step over the other part, from the state of the one. */
typedef enum arms_role { WHOLE_ROW, MINE, THEIRS, BOTH, MERGED, STEPPED, NUM_ROLES } arms_role;

/* What was made of something, and on which arm: it holds on all arms that know more than that one. */
typedef struct arm_memo {
  const form *x;
  uint32_t serial; /* 0: nothing was made */
  int level;
} arm_memo;

typedef struct arms {
  const derivation *d;
  forms F;
  arm known[ARMS_MAX_KNOWN];
  int num_known;
  int first_of_element; /* what is known of other elements than the one at hand comes before it */
  bool undecided;       /* a form needs to know `next` first, and what was made of it means nothing */
  arm next;
  int num_arms;        /* on which the claim held */
  int left;            /* arms that may still be visited */
  bool whole_elements; /* what reads an element and no number of the row is a symbol: what holds of that holds
                        */
  arms_role role;
  const form *both[SPEC_MAX_RED], *stepped[SPEC_MAX_RED]; /* the reductions of BOTH and STEPPED: merge_proof.c */
  const form *zero[ARMS_MAX_ZERO]; /* 0 on this arm: what the sums of terms say of each other, as that of a
                                      term that is 0 */
  int num_zero;
  uint32_t path[ARMS_MAX_LEVELS], serial; /* the serials of the arm at hand, and of those that it is a part of */
  int level, element_level;               /* the first level that knows the element at hand */
  arm_memo *memo, sum[ARMS_MAX_SUMS];     /* of nodes by role; of sums over the row by serial: row_sums.c */
  uint8_t *reads;                         /* of each node: ARMS_READS_ELEMENT, ARMS_READS_ROW */
  uint32_t size;
} arms;

arms *arms_open(const derivation *d, arena *a, bool whole_elements, long work); /* NULL: out of memory */
const form *arms_form(arms *A, ir_ref r);                                       /* IR_NONE: 0 */
bool arms_reads_element(const arms *A, ir_ref r);
bool arms_remembers(const arms *A, const arm_memo *m, bool reads_element); /* whether it holds on the arm at hand */
arm_memo arms_note(const arms *A, const form *x);
const form *arms_form_as(arms *A, arms_role role, ir_ref r);
const form *arms_reduction(arms *A, arms_role role, int k);
int arms_sign(arms *A, const form *x); /* 2: undecided */
/* The side of x, a symbol or the like, that is known; 0: none, or it is `at`. */
int arms_knows_side(arms *A, const form *x, double at);

/* Whether x is 0 on this arm. */
bool arms_is_zero(arms *A, const form *x);

/* Whether `claim` holds on every arm. It is asked again with more known where it was undecided. */
typedef bool arms_claim(arms *A, void *what);
bool arms_all(arms *A, arms_claim *claim, void *what);
/* Calls `visit` on each arm of one element, for what it makes of that; false: it said so, or a condition of
 * the row is undecided. */
bool arms_each_element(arms *A, arms_claim *visit, void *what);

#endif
