/* separate.c: finds which reductions carry gradient, and their adjoints as a(R) * delta + b(R) * dlse. */
#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/online/partials.h"

#include <math.h>
#include <stdio.h>

#include "common/fail.h"

#define VANISHED 1e-10 /* relative to the sum of magnitudes: an adjoint that cancels */
#define ROUNDING \
  1e-13 /* relative to P, or to 1 for lse: the residue of a single partial that already cancels in itself */
#define NOTHING 1e-250
#define LOW -1e3     /* at least so low starts a maximum that is to be below all scores */
#define LOST 0x1p-60 /* beside 1 */

static bool row_valid(const derivation *d, int row) { return d->s->valid[row] && !d->s->extreme[row]; }
static bool lane_valid(const derivation *d, int lane) { return row_valid(d, d->s->row_of[lane]); }

/* N * dprob/ds, which is dP/ds where N does not read the score. */
static ir_ref factored_slope(derivation *d) {
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1);
  ir_ref slope = IR_NONE;
  if (d->p_s == IR_NONE || d->norm == IR_NONE || ir_uses(g, d->norm, VAR_SCORE)) return d->p_s;
  ir_grad(g, &d->prob, &one, 1, &d->score, &slope, 1);
  derivation_simplify(d, &slope, 1);
  return slope == IR_NONE ? d->p_s : ir_op2(g, IR_MUL, slope, d->norm);
}

static bool differentiate(derivation *d, partials *p) {
  ir *g = d->g;
  const int n = d->num_red;
  const ir_ref one = ir_real(g, 1);
  const ir_ref lse = d->o->lse < 0 ? IR_NONE : d->final[d->o->lse];
  ir_grad(g, &d->p, &one, 1, &d->score, &d->p_s, 1);
  ir_grad(g, &d->p, &one, 1, d->red, p->ref + P_RED, n);
  if (lse != IR_NONE) ir_grad(g, &lse, &one, 1, d->red, p->ref + LSE_RED, n);
  for (int k = 0; k < n; k++) {
    ir_grad(g, &d->term[k], &one, 1, &d->score, &p->ref[TERM_S + k], 1);
    ir_grad(g, &d->term[k], &one, 1, d->red, p->ref + TERM_RED + k * SPEC_MAX_RED, k);
    p->ref[TERM + k] = d->term[k];
  }
  derivation_simplify(d, &d->p_s, 1);
  d->p_s_factored = factored_slope(d);
  derivation_simplify(d, p->ref, NUM_PARTIALS);
  for (int k = 0; k < n; k++) d->term_s[k] = p->ref[TERM_S + k];
  p->value = derivation_eval(d, p->ref, NUM_PARTIALS);
  return p->value != NULL;
}

/* total[j][k] = sum over m of S_jm total[m][k], where S_jm reduces df_j/dR_m over the row (taken at the
 * maximum's index for a maximum). */
static void chain_values(derivation *d, partials *p) {
  const sample *s = d->s;
  for (int r = 0; r < s->rows; r++) {
    for (int k = 0; k < d->num_red; k++) {
      p->total[k][k][r] = 1;
      for (int j = k + 1; j < d->num_red; j++) {
        double sum = 0;
        for (int m = k; m < j; m++) {
          const double *x = p->value[TERM_RED + j * SPEC_MAX_RED + m];
          double direct = 0;
          if (d->step.kind[j] == IR_REDUCE_MAX)
            direct = x[s->argmax[j][r]];
          else
            for (int i = s->first[r]; i < s->first[r + 1]; i++) direct += s->count[i] * x[i];
          sum += direct * p->total[m][k][r];
        }
        p->total[j][k][r] = sum;
      }
    }
  }
}

/* Whether samples say so; `root`: the derivatives by x of P, lse and the reductions' terms. */
static bool drops_out_of_samples(derivation *d, const partials *p, const ir_ref *root) {
  const sample *s = d->s;
  sample_lanes *v = derivation_eval(d, root, 2 + d->num_red);
  if (v == NULL) return false;
  for (int lane = 0; lane < d->s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (!row_valid(d, r)) continue;
    double sum[2] = {v[0][lane], v[1][lane]};
    double magnitude[2] = {NOTHING + fabs(sum[0]), fabs(sum[1])};
    for (int k = 0; k < d->num_red; k++) {
      double direct = 0; /* dR_k/dx, excluding other reductions, which `total` covers */
      if (d->step.kind[k] == IR_REDUCE_MAX)
        direct = v[2 + k][s->argmax[k][r]];
      else
        for (int i = s->first[r]; i < s->first[r + 1]; i++) direct += s->count[i] * v[2 + k][i];
      for (int j = k; j < d->num_red; j++) {
        for (int of = 0; of < 2; of++) {
          const double y = p->value[(of == 0 ? P_RED : LSE_RED) + j][lane] * p->total[j][k][r] * direct;
          sum[of] += y;
          magnitude[of] += fabs(y);
        }
      }
    }
    if (!isfinite(magnitude[0]) || !isfinite(magnitude[1])) continue; /* an overflow on the way says nothing */
    const double vanished = VANISHED + s->slack[r], rounding = ROUNDING + s->slack[r];
    if (!(fabs(sum[0]) <= vanished * magnitude[0] + rounding * fabs(d->p_value[lane]))) return false;
    if (!(fabs(sum[1]) <= vanished * magnitude[1] + rounding)) return false;
  }
  return true;
}

/* Whether the derivative of the whole-row function by a row number x, which the reductions' terms may read,
 * vanishes for P and lse. */
static bool drops_out(derivation *d, const partials *p, ir_ref x) {
  const ir_ref one = ir_real(d->g, 1);
  ir_ref root[2 + SPEC_MAX_RED] = {IR_NONE};
  ir_grad(d->g, &d->p, &one, 1, &x, &root[0], 1);
  if (d->o->lse >= 0) ir_grad(d->g, &d->final[d->o->lse], &one, 1, &x, &root[1], 1);
  for (int j = 0; j < d->num_red; j++) ir_grad(d->g, &d->term[j], &one, 1, &x, &root[2 + j], 1);
  if (!drops_out_of_samples(d, p, root)) return false;
  for (int of = 0; of < (d->o->lse >= 0 ? 2 : 1); of++) {
    const algebra_chain c = {root[of], p->ref + (of == 0 ? P_RED : LSE_RED), p->ref + TERM_RED, root + 2, 0};
    if (!algebra_vanishes(d, &c)) return false;
  }
  return true;
}

/* What x starts at if it is the larger of that and of `red`; IR_NONE: it is not. */
static ir_ref start_of(const ir *g, ir_ref x, ir_ref red) {
  const ir_node *n = ir_get(g, x);
  if (n->op != IR_MAX || (n->arg[0] != red && n->arg[1] != red)) return IR_NONE;
  const ir_ref start = n->arg[n->arg[0] == red];
  const bool of_row = ir_uses(g, start, VAR_RED) || ir_uses(g, start, VAR_STATE) || ir_uses(g, start, VAR_SCORE);
  return of_row ? IR_NONE : start;
}

/* Whether x is `red`, or the larger of that and of a number *start that is below all scores. */
static bool is_maximum(const ir *g, ir_ref x, ir_ref red, double *start) {
  *start = -INFINITY;
  if (x == red) return true;
  const ir_ref from = start_of(g, x, red);
  return from != IR_NONE && ir_is_const(g, from, start) && *start <= LOW;
}

/* A maximum that starts at a low number says by staying near it that its row has no scores. A condition on that is
 * there for such rows, and scores as low as that count as none. */
static void find_low(derivation *d) {
  for (int i = 0; i < d->o->num_state; i++) {
    for (int k = 0; k < d->num_red; k++) {
      double start;
      if (d->step.kind[k] != IR_REDUCE_MAX || !is_maximum(d->g, d->next[i], d->red[k], &start)) continue;
      const double low = fmax(LOWEST, start / NEAR_START);
      d->low_state[i] = d->low_red[k] = isfinite(start) ? low : LOWEST;
    }
  }
}

/* Finds the sums of exp(x - m), where state i is m, the maximum of x: a term of theirs is 1. */
static void find_sums_from_one(derivation *d, int i) {
  const ir *g = d->g;
  const ir_ref m = ir_variable(d->g, VAR_STATE, (uint32_t)i);
  double start;
  for (int k = 0; k < d->num_red; k++) {
    if (d->step.kind[k] != IR_REDUCE_MAX || !is_maximum(g, d->next[i], d->red[k], &start)) continue;
    for (int j = 0; j < d->num_red; j++) {
      const ir_node *n = ir_get(g, d->term[j]);
      if (d->step.kind[j] != IR_REDUCE_SUM || (n->op != IR_EXP && n->op != IR_EXP2)) continue;
      const ir_node *x = ir_get(g, n->arg[0]);
      if (x->op == IR_SUB && x->arg[0] == d->term[k]) d->from_one[j] |= is_maximum(g, x->arg[1], m, &start);
    }
  }
}

/* Replaces a number of the row in the whole function, but for state i, which it is; -1: in all states. */
static void replace_number(derivation *d, int i, ir_ref from, ir_ref to) {
  ir_ref *root[3 + SPEC_MAX_RED + SPEC_MAX_FINAL + SPEC_MAX_STATE];
  int n = 0;
  root[n++] = &d->p;
  root[n++] = &d->prob;
  root[n++] = &d->norm;
  for (int k = 0; k < d->num_red; k++) root[n++] = &d->term[k];
  for (int k = 0; k < d->o->num_final; k++) root[n++] = &d->final[k];
  for (int k = 0; k < d->o->num_state; k++) {
    if (k != i) root[n++] = &d->next[k];
  }
  for (int k = 0; k < n; k++) *root[k] = ir_substitute(d->g, *root[k], &from, &to, 1);
}

/* Leaves out numbers beside sums of at least 1 that are below the last bit of 1 in every type, as the 1e-30 of l +
 * 1e-30: the sum is the same without. */
static void drop_lost_addends(derivation *d) {
  ir *g = d->g;
  for (ir_ref r = 1, count = ir_count(g); r < count; r++) {
    const ir_node n = *ir_get(g, r);
    double c;
    for (int i = 0; i < 2 && n.op == IR_ADD && n.type == IR_REAL; i++) {
      const ir_node x = *ir_get(g, n.arg[i]);
      if (x.op != IR_VAR || ir_var_of(&x) != VAR_RED || !d->from_one[ir_index_of(&x)]) continue;
      if (ir_is_const(g, n.arg[1 - i], &c) && fabs(c) <= LOST) replace_number(d, -1, r, n.arg[i]);
    }
  }
}

/* Tries the new value of state i as a stabiliser: a number made of a maximum on which the result does not
 * depend, provided that the sums are rescaled with it. Then the derivative treats it as a constant
 * (VAR_STATE[i], as forward keeps it) wherever it appears. */
static bool try_stabiliser(derivation *d, partials *p, int i) {
  const derivation before = *d;
  const ir_ref to = ir_variable(d->g, VAR_STATE, (uint32_t)i);
  replace_number(d, i, d->next[i], to);
  d->dropped[i] = true;
  find_sums_from_one(d, i);
  drop_lost_addends(d);
  if (differentiate(d, p)) {
    chain_values(d, p);
    if (drops_out(d, p, to)) return true;
  }
  *d = before;
  return false;
}

static void drop_stabilisers(derivation *d, partials *p) {
  for (int i = 0; i < d->o->num_state; i++) {
    bool of_max = false;
    for (int k = 0; k < d->num_red && !of_max; k++) {
      const ir_ref zero = ir_real(d->g, 0);
      of_max = d->step.kind[k] == IR_REDUCE_MAX && ir_substitute(d->g, d->next[i], &d->red[k], &zero, 1) != d->next[i];
    }
    if (d->dropped[i] || !of_max || !try_stabiliser(d, p, i)) continue;
    text_add(d->how, "; stabiliser '%s' drops out", d->o->state_name[i]);
  }
}

/* Whether P or lse, by `base`, read R_k, themselves or through later reductions. */
static bool reads(const derivation *d, const partials *p, int base, int k) {
  bool depends[SPEC_MAX_RED] = {false}, found = false;
  depends[k] = true;
  for (int j = k; j < d->num_red; j++) {
    for (int m = k; m < j; m++) depends[j] |= depends[m] && p->ref[TERM_RED + j * SPEC_MAX_RED + m] != IR_NONE;
    found |= depends[j] && p->ref[base + j] != IR_NONE;
  }
  return found;
}

/* Whether no sample contradicts that the sum over j of value[base + j] * total[j][k] is zero. */
static bool vanishes_in_samples(const derivation *d, const partials *p, int base, int k) {
  for (int i = 0; i < d->s->lanes; i++) {
    if (!lane_valid(d, i)) continue;
    double sum = 0, magnitude = NOTHING;
    for (int j = k; j < d->num_red; j++) {
      const double x = p->value[base + j][i] * p->total[j][k][d->s->row_of[i]];
      sum += x;
      magnitude += fabs(x);
    }
    if (!isfinite(magnitude)) continue;
    const double slack = d->s->slack[d->s->row_of[i]], one = base == P_RED ? fabs(d->p_value[i]) : 1;
    if (!(fabs(sum) <= (VANISHED + slack) * magnitude + (ROUNDING + slack) * one)) return false;
  }
  return true;
}

static bool vanishes(derivation *d, const partials *p, int base, int k) {
  const algebra_chain c = {IR_NONE, p->ref + base, p->ref + TERM_RED, NULL, k};
  return !reads(d, p, base, k) || (vanishes_in_samples(d, p, base, k) && algebra_vanishes(d, &c));
}

bool separate_reduced_partial(derivation *d, const partials *p, int j, int k, ir_ref *out) {
  const ir_ref x = p->ref[TERM_RED + j * SPEC_MAX_RED + k];
  *out = IR_NONE;
  if (x == IR_NONE) return true;
  if (d->step.kind[j] == IR_REDUCE_MAX) {
    *out = ir_uses(d->g, x, VAR_SCORE) ? separate_ratio(d, x, ir_real(d->g, 1)) : x;
  } else {
    const ir_ref ratio = separate_ratio(d, x, d->term[j]);
    if (ratio != IR_NONE) *out = ir_op2(d->g, IR_MUL, ratio, d->red[j]);
  }
  return *out != IR_NONE;
}

static ir_ref add(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(g, IR_ADD, x, y); }
static ir_ref mul(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE || y == IR_NONE ? IR_NONE : ir_grad_mul(g, x, y); }

/* The full adjoint of R_k: through P and lse, directly and through later reductions. Returns why it is no multiple of
 * delta and dlse; NULL: it is. */
static const char *element_adjoint(derivation *d, const partials *p, int k, bool of_p, bool of_lse) {
  ir *g = d->g;
  ir_ref total[SPEC_MAX_RED] = {IR_NONE}, of_prob = IR_NONE, of_final = IR_NONE;
  total[k] = ir_real(g, 1);
  for (int j = k; j < d->num_red; j++) {
    for (int m = k; m < j; m++) {
      ir_ref partial;
      if (total[m] == IR_NONE) continue;
      if (!separate_reduced_partial(d, p, j, m, &partial))
        return "a later reduction depends on this one and its derivative needs one more sum over the row";
      total[j] = add(g, total[j], mul(g, partial, total[m]));
    }
    of_prob = add(g, of_prob, mul(g, p->ref[P_RED + j], total[j]));
    of_final = add(g, of_final, mul(g, p->ref[LSE_RED + j], total[j]));
  }
  if (of_lse) {
    derivation_simplify(d, &of_final, 1);
    d->b_dlse[k] = of_final;
  }
  if (!of_p) return NULL;
  if (d->by_passes) return "asked for";
  derivation_simplify(d, &of_prob, 1);
  /* Where P is 0 any ratio holds, also in an arm of the row in which R_k does not occur and its terms are
   * NaN. */
  d->a_delta[k] = ir_grad_factor(g, of_prob, separate_log_slope(d, of_prob, d->red[k]));
  if (d->a_delta[k] != IR_NONE) return proof_of_factor(d, k), NULL;
  return separate_log_slope_divides(d, of_prob, d->red[k])
             ? "the derivative of log prob by this reduction divides by a factor of prob that may be 0"
             : "the derivative of log prob by this reduction depends on the score, or is not shown not to";
}

/* Whether any requested derivative depends on f_k. */
static bool term_matters(derivation *d, int k, const ir_ref *leaf, int num_leaves) {
  const ir_ref one = ir_real(d->g, 1);
  if (d->term_s[k] != IR_NONE) return true;
  for (int i = 0; i < num_leaves; i++) {
    ir_ref x = IR_NONE;
    ir_grad(d->g, &d->term[k], &one, 1, &leaf[i], &x, 1);
    if (x != IR_NONE) return true;
  }
  return false;
}

/* Finds which reductions carry gradient. Returns the first maximum of them; -1: there is none. */
static int find_live(derivation *d, const partials *p, wanted_adjoints *want, const ir_ref *leaf, int num_leaves,
                     bool want_delta, bool want_dlse) {
  int maximum = -1;
  for (int k = 0; k < d->num_red; k++) {
    const bool matters = term_matters(d, k, leaf, num_leaves);
    want->of_p[k] = matters && want_delta && !vanishes(d, p, P_RED, k);
    want->of_lse[k] = matters && want_dlse && !vanishes(d, p, LSE_RED, k);
    d->live[k] = want->of_p[k] || want->of_lse[k];
    if (d->live[k] && d->step.kind[k] == IR_REDUCE_MAX && maximum < 0) maximum = k;
  }
  return maximum;
}

/* The state that holds the maximum k, of several the one that starts lowest: the others are the larger of it and what
 * they start at. -1: none does, one holds the maximum alone, or which is the lowest depends on the call. */
static int state_of_maximum(const derivation *d, int k) {
  int lowest = -1;
  double least = 0, start = 0;
  for (int i = 0; i < d->o->num_state && d->step.kind[k] == IR_REDUCE_MAX; i++) {
    if (d->dropped[i]) continue;
    if (d->next[i] == d->red[k]) return -1;
    const ir_ref from = start_of(d->g, d->next[i], d->red[k]);
    const bool is_number = from != IR_NONE && ir_is_const(d->g, from, &start);
    if (from == IR_NONE || (lowest >= 0 && d->next[i] == d->next[lowest])) continue;
    if (lowest >= 0 && !(is_number && ir_is_const(d->g, start_of(d->g, d->next[lowest], d->red[k]), &least))) return -1;
    if (lowest < 0 || start < least) lowest = i;
  }
  return lowest;
}

/* Takes maxima with the number that their state starts at as one reduction, which is that state: nothing of the row
 * says what the maximum alone was. */
static luattn_status hold_maxima(derivation *d, partials *p) {
  for (int k = 0; k < d->num_red; k++) {
    const int i = state_of_maximum(d, k);
    if (i < 0) continue;
    d->start[k] = start_of(d->g, d->next[i], d->red[k]);
    replace_number(d, i, d->next[i], d->red[k]);
    d->next[i] = d->red[k];
    d->s->red[k] = d->s->state[i];
  }
  if (!differentiate(d, p)) return derivation_no_memory(d);
  chain_values(d, p);
  return LUATTN_OK;
}

static luattn_status adjoints_of(derivation *d, partials *p, wanted_adjoints *want, bool want_delta, bool want_dlse,
                                 const ir_ref *leaf, int num_leaves) {
  if (!differentiate(d, p)) return derivation_no_memory(d);
  chain_values(d, p);
  want->first = find_live(d, p, want, leaf, num_leaves, want_delta, want_dlse);
  if (want->first >= 0 && d->elements_only) {
    want->why[want->first] = SEPARATE_LIVE_MAXIMUM;
    return LUATTN_OK;
  }
  if (want->first >= 0) TRY(hold_maxima(d, p));
  if (want->first >= 0) want->first = find_live(d, p, want, leaf, num_leaves, want_delta, want_dlse);
  for (int k = 0; k < d->num_red; k++) {
    if (!d->live[k]) continue;
    want->why[k] = element_adjoint(d, p, k, want->of_p[k], want->of_lse[k]);
    if (want->first < 0 && want->why[k] != NULL) want->first = k;
  }
  if (want->first >= 0 && !d->elements_only)
    for (int k = 0; k < d->num_red; k++)
      want->gone[k] = !d->live[k] && vanishes(d, p, P_RED, k) && vanishes(d, p, LSE_RED, k);
  return derivation_failed(d) ? derivation_no_memory(d) : LUATTN_OK;
}

luattn_status separate_reductions(derivation *d, bool want_delta, bool want_dlse, const ir_ref *leaf, int num_leaves,
                                  wanted_adjoints **out) {
  partials *p = arena_raw(d->a, 1, sizeof *p); /* most of `total` is never read */
  wanted_adjoints *want = arena_new(d->a, sizeof *want);
  if (p == NULL || want == NULL) return derivation_no_memory(d);
  *out = want;
  want->partials = p;
  for (int i = 0; i < NUM_PARTIALS; i++) p->ref[i] = IR_NONE;
  find_low(d);
  drop_stabilisers(d, p);
  for (int k = 0; k < d->num_red; k++) d->a_delta[k] = d->b_dlse[k] = d->takes[k] = d->at_start[k] = IR_NONE;
  for (int k = 0; k < d->num_red; k++) d->start[k] = ir_real(d->g, -INFINITY);
  return adjoints_of(d, p, want, want_delta, want_dlse, leaf, num_leaves);
}
