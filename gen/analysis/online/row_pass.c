/* row_pass.c: adjoints of reductions that are no multiples of delta, by a pass over the row.
 *
 * Lambda_k = sum over j of dP_j dP_j/dR_k is rowsum(dO * O_k), O_k being the sum of dP_j/dR_k times v_j: a forward with
 * another weight. Reductions in descending order have A_k = Lambda_k + dlse dlse/dR_k + sum over m > k of A_m S_mk,
 * where S_mk, the sum of df_m/dR_k, may be one more sum over the row. A maximum passes its adjoint on to the elements that
 * are it, whose place is one more number of the row.
 */
#include <math.h>

#include "common/fail.h"
#include "gen/analysis/algebra/divisors.h"
#include "gen/analysis/algebra/limits_at.h"
#include "gen/analysis/online/partials.h"

enum { MOST_PLAIN = 4 };

typedef struct taker {
  derivation *d;
  const partials *p;
  const wanted_adjoints *want;
  ir_ref total[SPEC_MAX_RED]; /* A_k; IR_NONE: zero */
  int num_plain;              /* sums that say more than how large weights are */
  int place[SPEC_MAX_RED];    /* which of the row's numbers is a maximum's PASS_PLACE */
  const char *too_many;       /* what there is no room for */
} taker;

static ir_ref add(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE ? y : y == IR_NONE ? x : ir_op2(g, IR_ADD, x, y); }
static ir_ref mul(ir *g, ir_ref x, ir_ref y) { return x == IR_NONE || y == IR_NONE ? IR_NONE : ir_grad_mul(g, x, y); }

/* x, which moves with the row as `of` does, for a score of -inf, too: 0 where `of` is shown to be one number there,
 * and where x has no value. IR_NONE: `of` is not known. */
static ir_ref of_kept_scores(derivation *d, ir_ref x, ir_ref of) {
  ir *g = d->g;
  const ir_ref lowest = ir_real(g, -INFINITY), zero = ir_real(g, 0);
  const ir_ref kept = ir_op2(g, IR_LT, lowest, d->score);
  limits at;
  double c;
  if (!limits_open(&at, d->a, g, -INFINITY) || limits_is_finite(&at, x)) return x;
  if (of != IR_NONE && limits_is_number(&at, of, &c) && isfinite(c)) return ir_op3(g, IR_SELECT, kept, x, zero);
  const ir_ref has_value = ir_op2(g, IR_LT, ir_op1(g, IR_ABS, x), ir_real(g, INFINITY));
  return ir_op3(g, IR_SELECT, ir_op2(g, IR_OR, kept, has_value), x, zero);
}

/* Whether one more number finds room in the state of a pass, where a maximum's take two each (pass_spec.c). */
static bool has_room(const derivation *d, derived_kind kind) {
  int taken = kind == PASS_PLACE || kind == PASS_LEAST ? 2 : 1;
  for (int i = 0; i < d->num_sums; i++) taken += d->sum[i].kind == PASS_PLACE || d->sum[i].kind == PASS_LEAST ? 2 : 1;
  return d->num_sums < DERIVED_MAX_SUMS && taken <= SPEC_MAX_STATE && taken <= SPEC_MAX_RED;
}

/* A number of the row; if there is no room, any. They are numbered behind all passes that there may be, until these
 * are known. */
static ir_ref find_number(taker *t, derived_sum x) {
  derivation *d = t->d;
  int i = 0;
  while (i < d->num_sums && (x.kind != PASS_SUM || d->sum[i].kind != PASS_SUM || d->sum[i].of != x.of)) i++;
  if (i == d->num_sums) {
    if (!has_room(d, x.kind)) return t->too_many = "another sum over the row", ir_real(d->g, 0);
    d->sum[d->num_sums++] = x;
  }
  return ir_variable(d->g, VAR_PASS, (uint32_t)(DERIVED_MAX_PASSES + i));
}

/* The sum of an x that moves with the row as `of` does. */
static ir_ref summed(taker *t, ir_ref x, ir_ref of) {
  const int before = t->d->num_sums;
  const ir_ref sum = find_number(t, (derived_sum){.kind = PASS_SUM, .of = of_kept_scores(t->d, x, of)});
  t->num_plain += t->d->num_sums - before;
  if (t->num_plain > MOST_PLAIN) t->too_many = "another sum over the row";
  return sum;
}

/* A positive number of the row as large as the sum of weights, so that what a pass stores is as large as v: one that
 * forward keeps, or else a sum of the pass. */
static ir_ref size_of(taker *t, ir_ref weight) {
  derivation *d = t->d;
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1);
  for (int k = 0; k < d->num_red; k++) {
    if (d->term[k] != weight || !divisors_sum_is_positive(d, k)) continue;
    return d->from_one[k] ? d->red[k] : ir_op2(g, IR_ADD, one, d->red[k]);
  }
  const ir_ref sum = find_number(t, (derived_sum){.kind = PASS_SUM, .of = ir_op1(g, IR_ABS, weight)});
  return ir_op2(g, IR_ADD, one, sum);
}

/* rowsum(dO * sum of weight v). */
static ir_ref weighted(taker *t, ir_ref weight) {
  derivation *d = t->d;
  ir *g = d->g;
  int k = 0;
  while (k < d->num_passes && d->pass[k].weight != weight) k++;
  if (k == DERIVED_MAX_PASSES) return t->too_many = "another row pass", IR_NONE;
  const ir_ref size = size_of(t, weight);
  if (k == d->num_passes) d->pass[d->num_passes++] = (derived_pass){weight, ir_op2(g, IR_DIV, ir_real(g, 1), size)};
  const ir_ref pass = ir_variable(g, VAR_PASS, (uint32_t)k);
  return ir_op2(g, IR_MUL, pass, size);
}

/* What P is where prob is 0 for a score of -inf: 0 in every row that has a value; else P. */
static ir_ref p_of_lowest(derivation *d) {
  limits at;
  double c;
  const bool is_number = limits_open(&at, d->a, d->g, -INFINITY) && limits_is_number(&at, d->prob, &c);
  return is_number && c == 0 ? d->prob : d->p;
}

/* Lambda_k, the adjoint through prob alone. */
static ir_ref through_prob(taker *t, int k) {
  derivation *d = t->d;
  ir *g = d->g;
  const ir_ref one = ir_real(g, 1), whole = t->p->ref[P_RED + k];
  if (whole == IR_NONE) return IR_NONE;
  if (!d->by_passes) {
    const ir_ref slope = ir_grad_factor(g, whole, separate_log_slope(d, whole, d->red[k]));
    if (slope != IR_NONE) return ir_op2(g, IR_MUL, slope, ir_variable(g, VAR_DELTA, 0));
  }
  /* prob * norm: what reads no score is a factor of the row. */
  ir_ref of_prob = IR_NONE, of_norm = IR_NONE, ratio = IR_NONE;
  ir_grad(g, &d->prob, &one, 1, &d->red[k], &of_prob, 1);
  ir_grad(g, &d->norm, &one, 1, &d->red[k], &of_norm, 1);
  derivation_simplify(d, &of_prob, 1);
  if (of_prob != IR_NONE && (ratio = separate_ratio(d, of_prob, d->prob)) == IR_NONE)
    return weighted(t, of_kept_scores(d, whole, p_of_lowest(d)));
  ir_ref factor = add(g, of_norm, mul(g, ratio, d->norm));
  derivation_simplify(d, &factor, 1);
  return mul(g, factor, weighted(t, d->prob)); /* as forward has it, for any score */
}

/* How many elements share a maximum. */
static ir_ref count_of(const taker *t, int k) {
  ir *g = t->d->g;
  const ir_ref place = ir_variable(g, VAR_PASS, (uint32_t)(DERIVED_MAX_PASSES + t->place[k]));
  const ir_ref one = ir_real(g, 1);
  return ir_op2(g, IR_MAX, one, ir_op1(g, IR_NEG, place));
}

/* x of an element that is the maximum: x itself where it reads no score, or a multiple of what is the largest. */
static ir_ref at_largest(taker *t, int m, ir_ref x) {
  derivation *d = t->d;
  if (!ir_uses(d->g, x, VAR_SCORE)) return x;
  const ir_ref ratio = separate_ratio(d, x, d->term[m]);
  if (ratio == IR_NONE) t->too_many = "another number of the row";
  return mul(d->g, ratio, d->red[m]);
}

/* S_mk; of a maximum m, whose adjoint is for each of the elements that share it, their sum. */
static ir_ref reduced(taker *t, int m, int k) {
  derivation *d = t->d;
  const ir_ref of_term = t->p->ref[TERM_RED + m * SPEC_MAX_RED + k];
  ir_ref x;
  if (d->step.kind[m] == IR_REDUCE_MAX) {
    x = at_largest(t, m, of_term);
    return mul(d->g, count_of(t, m), x);
  }
  return separate_reduced_partial(d, t->p, m, k, &x) ? x : summed(t, of_term, d->term[m]);
}

/* The adjoint of a maximum over the number of elements that share it: the first that is largest, or several that are
 * so in all bits (derived_sum). */
static ir_ref shared(taker *t, int k, ir_ref sum) {
  derivation *d = t->d;
  ir *g = d->g;
  if (sum == IR_NONE) return IR_NONE;
  t->place[k] = d->num_sums;
  const ir_ref place = find_number(t, (derived_sum){PASS_PLACE, d->term[k]});
  const ir_ref least = find_number(t, (derived_sum){PASS_LEAST, d->start[k]});
  const ir_ref is_there = ir_op2(g, IR_EQ, ir_to_real(g, ir_linear_index(g, VAR_KV, VAR_KV_LEN)), place);
  const ir_ref is_among = ir_op2(g, IR_LE, least, d->term[k]);
  d->takes[k] = ir_op2(g, IR_OR, is_there, is_among);
  const ir_ref some = ir_op2(g, IR_LT, place, ir_real(g, INFINITY)), each = ir_op2(g, IR_DIV, sum, count_of(t, k));
  const ir_ref zero = ir_real(g, 0);
  d->at_start[k] = ir_op3(g, IR_SELECT, some, zero, sum);
  return ir_op3(g, IR_SELECT, some, each, zero);
}

/* A_k, once those of later reductions are known. */
static ir_ref adjoint(taker *t, int k) {
  derivation *d = t->d;
  ir *g = d->g;
  const ir_ref delta = ir_variable(g, VAR_DELTA, 0), dlse = ir_variable(g, VAR_DLSE, 0);
  if (t->want->gone[k]) return IR_NONE;
  const bool is_maximum = d->step.kind[k] == IR_REDUCE_MAX;
  if (d->live[k] && t->want->why[k] == NULL) {
    const ir_ref whole = add(g, mul(g, d->a_delta[k], delta), mul(g, d->b_dlse[k], dlse));
    return is_maximum ? shared(t, k, whole) : whole;
  }
  ir_ref sum = through_prob(t, k);
  sum = add(g, sum, mul(g, t->p->ref[LSE_RED + k], dlse));
  for (int m = k + 1; m < d->num_red; m++) {
    if (t->total[m] == IR_NONE || t->p->ref[TERM_RED + m * SPEC_MAX_RED + k] == IR_NONE) continue;
    sum = add(g, sum, mul(g, t->total[m], reduced(t, m, k)));
  }
  derivation_simplify(d, &sum, 1);
  return is_maximum ? shared(t, k, sum) : sum;
}

/* Numbers the sums behind the passes that there are. */
static void number_sums(derivation *d) {
  ir *g = d->g;
  const ir_ref zero = ir_real(g, 0), one = ir_real(g, 1);
  if (d->num_sums > 0 && d->num_passes == 0) d->pass[d->num_passes++] = (derived_pass){zero, one};
  ir_ref from[DERIVED_MAX_SUMS], to[DERIVED_MAX_SUMS];
  for (int i = 0; i < d->num_sums; i++) {
    from[i] = ir_variable(g, VAR_PASS, (uint32_t)(DERIVED_MAX_PASSES + i));
    to[i] = ir_variable(g, VAR_PASS, (uint32_t)(d->num_passes + i));
  }
  for (int k = 0; k < d->num_red; k++) {
    if (d->adjoint[k] != IR_NONE) d->adjoint[k] = ir_substitute(g, d->adjoint[k], from, to, d->num_sums);
    if (d->takes[k] == IR_NONE) continue;
    d->takes[k] = ir_substitute(g, d->takes[k], from, to, d->num_sums);
    d->at_start[k] = ir_substitute(g, d->at_start[k], from, to, d->num_sums);
  }
  for (int k = 0; k < d->num_passes; k++)
    d->pass[k].factor = ir_substitute(g, d->pass[k].factor, from, to, d->num_sums);
}

ir_ref row_pass_sum(derivation *d, int k) {
  const ir_ref zero = ir_real(d->g, 0), one = ir_real(d->g, 1);
  if (d->step.kind[k] != IR_REDUCE_SUM || !has_room(d, PASS_SUM)) return IR_NONE;
  if (d->num_passes == 0) d->pass[d->num_passes++] = (derived_pass){zero, one};
  d->sum[d->num_sums++] = (derived_sum){.kind = PASS_SUM, .of = d->term[k]};
  text_add(d->how, "; %s is held by no row scalar: it takes a row pass", reduction_name(d, k));
  return ir_variable(d->g, VAR_PASS, (uint32_t)(d->num_passes + d->num_sums - 1));
}

luattn_status row_pass_take(derivation *d, const wanted_adjoints *want) {
  taker *t = arena_new(d->a, sizeof *t);
  if (t == NULL) return derivation_no_memory(d);
  *t = (taker){.d = d, .p = want->partials, .want = want};
  for (int k = d->num_red; k-- > 0;) {
    t->total[k] = adjoint(t, k);
    if (derivation_failed(d)) return derivation_no_memory(d);
    if (t->too_many != NULL)
      return remedy_refuse(d, k, arena_printf(d->a, "its adjoint needs %s than backward can take", t->too_many));
    d->adjoint[k] = d->live[k] ? t->total[k] : IR_NONE;
    if (want->why[k] != NULL) text_add(d->how, "; %s takes a row pass: %s", reduction_name(d, k), want->why[k]);
    if (d->live[k] && d->takes[k] != IR_NONE)
      text_add(d->how, "; %s does not cancel, or is not shown to: a row pass finds which element takes its derivative",
               reduction_name(d, k));
  }
  d->has_passes = true;
  number_sums(d);
  return derivation_failed(d) ? derivation_no_memory(d) : LUATTN_OK;
}
