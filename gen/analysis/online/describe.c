#include "gen/analysis/online/describe.h"

#include <string.h>

#include "common/fail.h"
#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/algebra/row_sums.h"
#include "gen/analysis/online/merge.h"
#include "gen/analysis/online/merge_proof.h"
#include "gen/analysis/online/steps.h"

#define WORK 100000L

static const char *plural(int n) { return n == 1 ? "" : "s"; }

/* x, of P, given that a sum of terms that are not below 0 is the element's own term and a rest. */
static const form *with_own_terms(arms *A, const form *x) {
  const derivation *d = A->d;
  forms *F = &A->F;
  for (int k = 0; k < d->num_red; k++) {
    double least;
    const form *term = arms_form(A, d->term[k]);
    if (d->step.kind[k] != IR_REDUCE_SUM || form_sign_of(F, term, &least) == FORM_ANY_SIGN) continue;
    const form *rest = form_symbol(F, (uint32_t)(NUM_ROLES * SPEC_MAX_RED + k), false, FORM_NOT_BELOW, 0);
    x = form_with(F, x, arms_reduction(A, WHOLE_ROW, k), form_add(F, term, rest, 1));
  }
  return x;
}

static bool weight_is_not_below(arms *A, void *what) {
  (void)what;
  return algebra_is_not_below(A, arms_form(A, A->d->p));
}

static bool weight_is_at_most_one(arms *A, void *what) {
  (void)what;
  const form *p = arms_form(A, A->d->p), *one = form_number(&A->F, 1);
  return algebra_is_not_below(A, with_own_terms(A, form_add(&A->F, one, p, -1)));
}

static void say_weights(derivation *d, text *out) {
  const bool low = algebra_proves(d, weight_is_not_below, NULL, WORK);
  const int arms_of_low = d->num_arms;
  const bool high = algebra_proves(d, weight_is_at_most_one, NULL, WORK);
  if (low && high)
    text_add(out, "# weights lie in [0, 1], on %d and %d arm%s\n", arms_of_low, d->num_arms, plural(d->num_arms));
  else if (low)
    text_add(out, "# weights are at least 0, on %d arm%s; not shown to be at most 1\n", arms_of_low,
             plural(arms_of_low));
  else
    text_add(out, "# weights are not shown to lie in [0, 1]\n");
}

static void say_merges(derivation *d, text *out) {
  luattn_error why;
  online_merge *m = arena_new(d->a, sizeof *m);
  if (m == NULL) return;
  const luattn_status status = merge_derive(d->a, d->t, m, &why);
  text_add(out, "# %s\n", status == LUATTN_OK ? "parts of a row merge by their state" : why.message);
  const luattn_status by_lse = d->o->lse < 0 ? LUATTN_UNSUPPORTED : merge_test_lse(d->a, d->t, &why);
  text_add(out, "# %s\n",
           by_lse == LUATTN_OK ? "finished parts merge by their lse"
           : d->o->lse < 0     ? "there is no lse to merge by"
                               : why.message);
  d->no_memory |= status == LUATTN_NO_MEMORY || by_lse == LUATTN_NO_MEMORY;
}

/* Names the term that keeps a maximum in, for which backward takes a row pass. */
static void say_remedy(derivation *d, const derived_spec *derived, text *out) {
  bool live = false;
  for (int i = 0; i < derived->num_sums; i++) live |= derived->sum[i].kind == PASS_PLACE;
  const char *remedy = live ? remedy_term(d) : ""; /* "; it is .., write ..., " */
  const size_t length = strlen(remedy);
  d->no_memory |= arena_failed(d->a); /* a search without it finds nothing */
  if (length > 4) text_add(out, "# without a row pass: %.*s\n", (int)length - 4, remedy + 2);
}

luattn_status derive_describe(arena *scratch, const traced_spec *t, const derived_spec *derived, struct text *out,
                              luattn_error *err) {
  derivation *d = arena_new(scratch, sizeof *d);
  sample *s = arena_new(scratch, sizeof *s);
  if (d == NULL || s == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  *d = (derivation){.a = scratch, .t = t, .o = &t->online, .g = t->g, .how = out, .err = err, .s = s};
  if (!sample_init(s, scratch, t)) return derivation_no_memory(d);
  text *unmet = arena_new(scratch, sizeof *unmet);
  if (unmet == NULL) return derivation_no_memory(d);
  text_init(unmet, scratch);
  d->how = unmet; /* derive_spec has said it */
  TRY(whole_run(d));
  text_add(out, "# steps over parts give what one over the row does, on %d arm%s\n", d->num_arms, plural(d->num_arms));
  say_weights(d, out);
  say_merges(d, out);
  say_remedy(d, derived, out);
  return derivation_failed(d) ? derivation_no_memory(d) : LUATTN_OK;
}
