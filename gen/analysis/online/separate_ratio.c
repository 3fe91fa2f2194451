/* separate_ratio.c: finds the quotient of two expressions that is free of the score. Samples say which candidates are worth
 * a proof, few of them first. */
#include <math.h>

#include "gen/analysis/algebra/algebra.h"
#include "gen/analysis/algebra/divisors.h"
#include "gen/analysis/online/steps.h"

#define SAME 1e-9 /* relative: two forms of the same value */
#define NOTHING 1e-250

static bool lane_valid(const derivation *d, int lane) {
  const int row = d->s->row_of[lane];
  return d->s->valid[row] && !d->s->extreme[row];
}

static bool is_zero_on(const derivation *d, const double *x, int lanes) {
  for (int i = 0; i < lanes; i++)
    if (lane_valid(d, i) && isfinite(x[i]) && fabs(x[i]) > NOTHING) return false;
  return true;
}

/* The lane of the largest y, of those on which rounding is least; -1: y is 0. */
static int largest(const derivation *d, const double *x, const double *y, int lanes) {
  int best = -1;
  for (int i = 0; i < lanes; i++) {
    if (!lane_valid(d, i) || !isfinite(x[i]) || !(fabs(y[i]) > NOTHING) || !isfinite(y[i])) continue;
    const double slack = d->s->slack[d->s->row_of[i]], least = best < 0 ? 0 : d->s->slack[d->s->row_of[best]];
    if (best < 0 || slack < least || (slack == least && fabs(y[i]) > fabs(y[best]))) best = i;
  }
  return best;
}

/* Whether none of the first samples contradicts x = c * y. c is what the samples say, a multiple of a quarter if it is one up to
 * rounding, and 1 if they say nothing. What they do not contradict is for algebra.h to prove. */
static bool proportional(const derivation *d, const double *x, const double *y, int lanes, double *c) {
  const int best = largest(d, x, y, lanes);
  *c = best < 0 ? 1 : x[best] / y[best];
  const double quarter = nearbyint(*c * 4) / 4;
  if (best >= 0 && fabs(quarter - *c) <= (SAME + d->s->slack[d->s->row_of[best]]) * fabs(*c)) *c = quarter;
  for (int i = 0; i < lanes; i++) {
    const double same = SAME + d->s->slack[d->s->row_of[i]];
    if (lane_valid(d, i) && !(fabs(x[i] - *c * y[i]) <= same * (fabs(x[i]) + fabs(*c * y[i])) + NOTHING)) return false;
  }
  return *c != 0 || is_zero_on(d, y, lanes);
}

static int few_blocks(const derivation *d) {
  return d->s->blocks < SAMPLE_FEW_BLOCKS ? d->s->blocks : SAMPLE_FEW_BLOCKS;
}

/* Whether no sample contradicts x = c * y, of which the first ones are asked before the others. */
static bool is_proposed(derivation *d, ir_ref x, ir_ref y, double *c) {
  const int few = few_blocks(d);
  arena *a = arena_borrow(d->a);
  sample_lanes v[2];
  bool evaluated = a != NULL, ok = true;
  for (int blocks = few; evaluated && ok; blocks = d->s->blocks) {
    evaluated = sample_eval_first(d->s, a, blocks, (const ir_ref[2]){x, y}, 2, v);
    ok = evaluated && proportional(d, v[0], v[1], blocks * IR_LANES, c);
    if (blocks == d->s->blocks) break;
  }
  d->no_memory |= !evaluated;
  arena_close(a);
  return ok && evaluated;
}

bool separate_equal(derivation *d, ir_ref x, ir_ref y) {
  double c = 0;
  return is_proposed(d, x, y, &c) && c == 1 && algebra_equal(d, x, y);
}

/* Lists simple row numbers; a ratio is likely to be a multiple of one. */
static int simple_rows(derivation *d, ir_ref x, ir_ref *row, int max) {
  ir *g = d->g;
  int n = 0;
  row[n++] = ir_real(g, 1);
  if (d->norm != IR_NONE) row[n++] = d->norm;
  for (int k = 0; k < d->num_red && n < max; k++) row[n++] = ir_op2(g, IR_DIV, ir_real(g, 1), d->red[k]);
  /* A state differs from its reduction if it starts at some value, such as a sink. */
  for (int i = 0; i < d->o->num_state && n < max; i++) row[n++] = ir_op2(g, IR_DIV, ir_real(g, 1), d->next[i]);
  for (int i = 0; i < d->t->num_scalars && n < max; i++) {
    const ir_ref scalar = ir_variable(g, VAR_SCALAR, (uint32_t)i);
    const ir_ref zero = ir_real(g, 0);
    if (ir_substitute(g, x, &scalar, &zero, 1) != x) row[n++] = scalar;
  }
  return n;
}

/* Scores at which y is unlikely to be zero: the row's maximum (where exp neither overflows nor vanishes),
 * then constants. */
static int trial_scores(derivation *d, ir_ref *score, int max) {
  static const double constants[] = {1, 0, -1, 0.5, 3};
  int n = 0;
  for (int i = 0; i < d->o->num_state && n < max; i++) {
    const ir_ref state = ir_variable(d->g, VAR_STATE, (uint32_t)i);
    const ir_ref zero = ir_real(d->g, 0);
    if (ir_substitute(d->g, d->p, &state, &zero, 1) != d->p) score[n++] = state; /* a stabiliser */
  }
  for (int k = 0; k < d->num_red; k++) {
    if (d->step.kind[k] == IR_REDUCE_MAX && d->term[k] == d->score && n < max) score[n++] = d->red[k];
  }
  for (size_t i = 0; i < sizeof constants / sizeof constants[0] && n < max; i++)
    score[n++] = ir_real(d->g, constants[i]);
  return n;
}

enum {
  MAX_ROWS = 2 + SPEC_MAX_RED + SPEC_MAX_STATE + 32,
  MAX_TRIALS = SPEC_MAX_STATE + SPEC_MAX_RED + 5,
  MAX_TOO_LONG = 2
};

/* A search for x / y among candidates. */
typedef struct search {
  arena *a; /* for what is evaluated */
  ir_ref x, y;
  divisors both;    /* of x and y */
  bool divides;     /* looks for those that divide by what may be 0, of which backward can take none */
  ir_ref cancelled; /* the first ratio that is safe after what both share has been cancelled; IR_NONE: none is */
  int too_long;
} search;

/* The ratio without what both share. */
static ir_ref cancelled(derivation *d, ir_ref ratio) {
  ir_ref rest = divisors_cancel(d->g, ratio);
  derivation_simplify(d, &rest, 1);
  return rest;
}

/* Whether no sample contradicts x = c * scaled, given what both are of the first ones. */
static bool is_candidate(derivation *d, const search *of, ir_ref scaled, const sample_lanes first[2], double *c) {
  const ir_ref both[2] = {of->x, scaled};
  const int few = few_blocks(d);
  sample_lanes v[2];
  if (!proportional(d, first[0], first[1], few * IR_LANES, c)) return false;
  if (few == d->s->blocks) return true;
  if (sample_eval_first(d->s, of->a, d->s->blocks, both, 2, v)) return proportional(d, v[0], v[1], d->s->lanes, c);
  d->no_memory = true;
  return false;
}

/* The ratio that a proved candidate is, if backward may divide so; IR_NONE: it may not, or after cancelling alone. */
static ir_ref take_ratio(derivation *d, search *of, double c, ir_ref candidate) {
  ir_ref ratio = ir_op2(d->g, IR_MUL, ir_real(d->g, c), candidate);
  derivation_simplify(d, &ratio, 1);
  if (of->divides || divisors_safe(&of->both, ratio)) return ratio;
  if (of->cancelled == IR_NONE && divisors_safe(&of->both, cancelled(d, ratio))) of->cancelled = cancelled(d, ratio);
  return IR_NONE;
}

/* Leaves the candidates whose divisions are safe, or those whose are not. Returns how many they are. */
static int choose(derivation *d, const search *of, ir_ref *candidate, int n) {
  int count = 0;
  for (int i = 0; i < n; i++) {
    const bool safe = divisors_safe(&of->both, candidate[i]) || divisors_safe(&of->both, cancelled(d, candidate[i]));
    if (safe != of->divides) candidate[count++] = candidate[i];
  }
  return count;
}

/* The first of n candidates that is x / y, up to a factor where `exact` is not asked; IR_NONE: none is. */
static ir_ref first_ratio(derivation *d, search *of, ir_ref *candidate, int n, bool exact) {
  ir_ref scaled[1 + MAX_ROWS + MAX_TRIALS] = {of->x};
  sample_lanes first[1 + MAX_ROWS + MAX_TRIALS];
  if ((n = choose(d, of, candidate, n)) == 0) return IR_NONE;
  for (int i = 0; i < n; i++) scaled[1 + i] = ir_op2(d->g, IR_MUL, of->y, candidate[i]);
  if (ir_failed(d->g) || !sample_eval_first(d->s, of->a, few_blocks(d), scaled, 1 + n, first)) {
    d->no_memory = true;
    return IR_NONE;
  }
  for (int i = 0; i < n && of->too_long < MAX_TOO_LONG; i++) {
    double c = 0;
    const sample_lanes both[2] = {first[0], first[1 + i]};
    if (!is_candidate(d, of, scaled[1 + i], both, &c) || (exact && c != 1)) continue;
    const bool proved = algebra_proportional(d, of->x, c, candidate[i], of->y);
    const ir_ref ratio = proved ? take_ratio(d, of, c, candidate[i]) : IR_NONE;
    if (ratio != IR_NONE) return ratio;
    of->too_long += !proved && d->too_long;
  }
  return IR_NONE;
}

static ir_ref search_ratio(derivation *d, search *of) {
  ir *g = d->g;
  ir_ref candidate[MAX_ROWS + MAX_TRIALS], trial[MAX_TRIALS];
  if (of->a == NULL || !divisors_open(&of->both, of->a, d, of->x, of->y)) return d->no_memory = true, IR_NONE;
  const ir_ref simple = first_ratio(d, of, candidate, simple_rows(d, of->x, candidate, MAX_ROWS), false);
  if (simple != IR_NONE || of->too_long >= MAX_TOO_LONG) return simple;
  const int num_trials = trial_scores(d, trial, MAX_TRIALS);
  for (int i = 0; i < num_trials; i++) {
    const ir_ref top = ir_substitute(g, of->x, &d->score, &trial[i], 1);
    candidate[i] = ir_grad_div(g, top, ir_substitute(g, of->y, &d->score, &trial[i], 1));
    derivation_simplify(d, &candidate[i], 1);
  }
  return first_ratio(d, of, candidate, num_trials, true);
}

/* *rest: the ratio after what both share has been cancelled, where there is none before. */
static ir_ref find_ratio(derivation *d, ir_ref x, ir_ref y, ir_ref *rest) {
  search of = {.a = arena_borrow(d->a), .x = x, .y = y, .cancelled = IR_NONE};
  const ir_ref ratio = x == y ? ir_real(d->g, 1) : search_ratio(d, &of);
  *rest = of.cancelled;
  arena_close(of.a);
  return ratio;
}

ir_ref separate_ratio(derivation *d, ir_ref x, ir_ref y) {
  ir_ref rest;
  const ir_ref ratio = find_ratio(d, x, y, &rest);
  return ratio != IR_NONE ? ratio : rest;
}

/* The slope of the epilogue's factor over that factor: the ratio where prob itself does not depend on `wrt`. `divides`:
 * only if it divides by what may be 0; else only if it does not. */
static ir_ref slope_of_factor(derivation *d, ir_ref x, ir_ref wrt, bool divides) {
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1), zero = ir_real(g, 0);
  ir_ref slope = IR_NONE;
  double c = 0;
  if (ir_substitute(g, d->prob, &wrt, &zero, 1) != d->prob) return IR_NONE;
  ir_grad(g, &d->norm, &one, 1, &wrt, &slope, 1);
  if (slope == IR_NONE) return IR_NONE;
  ir_ref ratio = divisors_cancel(g, ir_op2(g, IR_DIV, slope, d->norm));
  derivation_simplify(d, &ratio, 1);
  divisors both;
  if (!divisors_open(&both, d->a, d, slope, d->norm)) return d->no_memory = true, IR_NONE;
  if (divisors_safe(&both, ratio) == divides) return IR_NONE;
  const bool proposed = is_proposed(d, x, ir_op2(g, IR_MUL, d->p, ratio), &c) && c == 1;
  return proposed && algebra_proportional(d, x, 1, ratio, d->p) ? ratio : IR_NONE;
}

ir_ref separate_log_slope(derivation *d, ir_ref x, ir_ref wrt) {
  ir_ref rest, ratio = find_ratio(d, x, d->p, &rest);
  if (ratio == IR_NONE) ratio = slope_of_factor(d, x, wrt, false);
  return ratio != IR_NONE ? ratio : rest;
}

bool separate_log_slope_divides(derivation *d, ir_ref x, ir_ref wrt) {
  search of = {.a = arena_borrow(d->a), .x = x, .y = d->p, .divides = true, .cancelled = IR_NONE};
  const bool found = search_ratio(d, &of) != IR_NONE;
  arena_close(of.a);
  return found || slope_of_factor(d, x, wrt, true) != IR_NONE;
}
