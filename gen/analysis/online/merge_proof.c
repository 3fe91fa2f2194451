#include "gen/analysis/online/merge_proof.h"

#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/algebra/row_sums.h"

enum { STEP_SERIAL = 2 * SPEC_MAX_RED };
#define WORK 300000L /* 20000 suffice for a softmax with a sink */

/* The larger of two parts' maxima. A term that reads other reductions is another one in the row. */
static const form *larger(arms *A, int k) {
  if (ir_uses(A->d->g, A->d->term[k], VAR_RED)) return row_sum_unknown(A, k);
  const form *mine = arms_reduction(A, MINE, k), *theirs = arms_reduction(A, THEIRS, k);
  return arms_sign(A, form_add(&A->F, mine, theirs, -1)) >= 0 ? mine : theirs;
}

/* Reductions over both parts, in terms of those over each. */
static bool reduce_both(arms *A) {
  const derivation *d = A->d;
  for (int k = 0; k < d->num_red; k++) {
    if (d->step.kind[k] == IR_REDUCE_MAX) {
      A->both[k] = larger(A, k);
    } else if ((A->reads[d->term[k]] & ARMS_READS_ROW) == 0) {
      A->both[k] = form_add(&A->F, arms_reduction(A, MINE, k), arms_reduction(A, THEIRS, k), 1);
    } else {
      const form *mine = row_sum(A, (row_sum_of){d->term[k], BOTH, MINE}, k);
      const form *theirs = row_sum(A, (row_sum_of){d->term[k], BOTH, THEIRS}, SPEC_MAX_RED + k);
      A->both[k] = form_add(&A->F, mine, theirs, 1);
    }
    if (A->undecided || A->F.gave_up) return false;
  }
  return true;
}

static bool is_same(arms *A, const form *x, const form *y) { return arms_is_zero(A, form_add(&A->F, x, y, -1)); }

static const form *times(arms *A, const form *x, const form *y) { return form_mul(&A->F, x, y); }

/* Marks the states that are under root. */
static void mark_states(const derivation *d, ir_ref root, uint8_t *seen, bool *read) {
  for (ir_ref r = 0; r <= root; r++) seen[r] = r == root;
  for (ir_ref r = root; r > IR_NONE; r--) { /* users before arguments */
    if (!seen[r]) continue;
    const ir_node *n = ir_get(d->g, r);
    if (n->op == IR_VAR && ir_var_of(n) == VAR_STATE) read[ir_index_of(n)] = true;
    for (int i = 0; i < n->nargs; i++) seen[n->arg[i]] = 1;
  }
}

/* Finds the states that count: those that the epilogue, prob or the terms of reductions read, or other states
 * that count. */
static bool find_needed(const derivation *d, bool *needed) {
  const traced_online *o = d->o;
  uint8_t *seen = arena_array(d->a, ir_count(d->g), 1);
  if (seen == NULL) return false;
  mark_states(d, o->out, seen, needed);
  mark_states(d, d->step.prob, seen, needed);
  mark_states(d, d->step.rescale, seen, needed);
  for (int k = 0; k < d->num_red; k++) mark_states(d, d->step.term[k], seen, needed);
  for (int i = 0; i < o->num_final; i++) mark_states(d, o->final[i], seen, needed);
  for (int round = 0; round < o->num_state; round++) {
    for (int i = 0; i < o->num_state; i++) {
      bool read[SPEC_MAX_STATE] = {false};
      mark_states(d, d->step.next[i], seen, read);
      for (int k = 0; k < o->num_state; k++) needed[k] |= needed[i] && read[k];
    }
  }
  return true;
}

typedef struct rule {
  const online_merge *merge;
  online_split step; /* simplified, as the expressions of the whole row are */
  bool needed[SPEC_MAX_STATE];
  const char *what; /* is not shown to be the row's */
} rule;

/* States first: they ask where each part's maximum is before they ask whose is larger. */
static bool merges_by_state(arms *A, void *what) {
  const rule *r = what;
  const online_merge *m = r->merge;
  const derivation *d = A->d;
  const form *state[SPEC_MAX_STATE];
  for (int i = 0; i < d->o->num_state; i++) state[i] = arms_form_as(A, MERGED, m->state[i]);
  if (A->undecided || !reduce_both(A)) return false;
  for (int i = 0; i < d->o->num_state; i++)
    if (r->needed[i] && !is_same(A, state[i], arms_form_as(A, BOTH, d->next[i]))) return false;
  const form *prob = arms_form_as(A, BOTH, d->prob);
  const form *mine = times(A, arms_form_as(A, MINE, d->prob), arms_form_as(A, MERGED, m->factor));
  const form *theirs = times(A, arms_form_as(A, THEIRS, d->prob), arms_form_as(A, MERGED, m->other_factor));
  return is_same(A, mine, prob) && is_same(A, theirs, prob);
}

static bool merges_by_lse(arms *A, void *what) {
  (void)what;
  const derivation *d = A->d;
  forms *F = &A->F;
  const ir_ref lse = d->final[d->o->lse];
  const form *of[2] = {form_exp(F, arms_form_as(A, MINE, lse)), form_exp(F, arms_form_as(A, THEIRS, lse))};
  if (A->undecided || !reduce_both(A)) return false;
  const form *row = form_exp(F, arms_form_as(A, BOTH, lse)), *p = times(A, arms_form_as(A, BOTH, d->p), row);
  if (!is_same(A, form_add(F, of[0], of[1], 1), row)) return false;
  return is_same(A, times(A, arms_form_as(A, MINE, d->p), of[0]), p) &&
         is_same(A, times(A, arms_form_as(A, THEIRS, d->p), of[1]), p);
}

/* The reductions of a step over THEIRS from the state of MINE. */
static bool reduce_step(arms *A, const online_split *step) {
  const derivation *d = A->d;
  for (int k = 0; k < d->num_red; k++) {
    if (step->term[k] == d->term[k] && (A->reads[step->term[k]] & ARMS_READS_ROW) == 0)
      A->stepped[k] = arms_reduction(A, THEIRS, k);
    else if (step->kind[k] == IR_REDUCE_SUM)
      A->stepped[k] = row_sum(A, (row_sum_of){step->term[k], STEPPED, THEIRS}, STEP_SERIAL + k);
    else
      A->stepped[k] = row_sum_unknown(A, STEP_SERIAL + k);
    if (A->undecided || A->F.gave_up) return false;
  }
  return true;
}

static bool steps_as_row(arms *A, void *what) {
  rule *r = what;
  const derivation *d = A->d;
  const online_split *step = &r->step;
  if (!reduce_step(A, step) || !reduce_both(A)) return false;
  for (int i = 0; i < d->o->num_state; i++) {
    if (!r->needed[i]) continue;
    r->what = d->o->state_name[i];
    if (!is_same(A, arms_form_as(A, STEPPED, step->next[i]), arms_form_as(A, BOTH, d->next[i]))) return false;
  }
  const form *prob = arms_form_as(A, BOTH, d->prob);
  const form *mine = times(A, arms_form_as(A, MINE, d->prob), arms_form_as(A, STEPPED, step->rescale));
  r->what = "prob times o_scale of later steps";
  if (!is_same(A, mine, prob)) return false;
  r->what = "prob";
  return is_same(A, arms_form_as(A, STEPPED, step->prob), prob);
}

static void simplify_step(derivation *d, online_split *step) {
  ir_ref root[SPEC_MAX_RED + SPEC_MAX_STATE + 2];
  int n = 0;
  *step = d->step;
  for (int k = 0; k < d->num_red; k++) root[n++] = step->term[k];
  for (int i = 0; i < d->o->num_state; i++) root[n++] = step->next[i];
  root[n++] = step->prob;
  root[n++] = step->rescale;
  derivation_simplify(d, root, n);
  n = 0;
  for (int k = 0; k < d->num_red; k++) step->term[k] = root[n++];
  for (int i = 0; i < d->o->num_state; i++) step->next[i] = root[n++];
  step->prob = root[n++];
  step->rescale = root[n];
}

bool parts_step_as_row(derivation *d, const char **what) {
  rule r = {.what = "the new state"};
  simplify_step(d, &r.step);
  const bool ok = find_needed(d, r.needed) && algebra_proves(d, steps_as_row, &r, WORK);
  *what = r.what;
  return ok;
}

bool parts_merge_by_state(derivation *d, const online_merge *merge) {
  rule r = {.merge = merge};
  return find_needed(d, r.needed) && algebra_proves(d, merges_by_state, &r, WORK);
}

bool parts_merge_by_lse(derivation *d) { return algebra_proves(d, merges_by_lse, d, WORK); }

/* ---- finished ---- */

static bool is_not_zero(arms *A, int atom) {
  const form *x = form_of_atom(&A->F, atom);
  return A->F.atom[atom].sign == FORM_ABOVE || arms_knows_side(A, x, 0) != 0;
}

/* Whether each factor of a product is shown not to be 0, or all terms of a sum are above 0 or below. */
static bool is_lasting(arms *A, const form *x) {
  forms *F = &A->F;
  double least;
  if (x->undefined || x->n == 0) return false;
  if (x->n > 1 && !form_is_positive(F, x, &least) && !form_is_positive(F, form_mul(F, x, form_number(F, -1)), &least))
    return false;
  for (int i = 0; i < x->n; i++)
    for (int k = 0; k < x->t[i].n; k++)
      if (!is_not_zero(A, x->t[i].f[k].atom)) return false;
  return true;
}

static bool keeps_sum(arms *A, void *what) {
  const form *scale = arms_form(A, *(const ir_ref *)what);
  return !A->undecided && is_lasting(A, scale);
}

bool parts_keep_sums(derivation *d, ir_ref scale) { return algebra_proves(d, keeps_sum, &scale, WORK); }
