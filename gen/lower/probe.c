/* probe.c: proves properties of the emitted expressions, and tests them with random numbers, which refute alone: what
 * is not proved does not hold.
 *
 * mask_by_inf: whether a score of -inf leaves an element out by itself. mask_by_zero: whether a score of 0
 * does. bounded_scores: whether a softmax needs its running maximum, which only keeps exponentials in range.
 * Where interval arithmetic proves that the scores stay within bounds, any number between these serves, and
 * the maximum, its exchange between threads and the rescaling of O disappear. lazy_rescale: whether a step
 * may keep the running maximum as it is while scores do not exceed it by much. softmax: whether P far below a
 * row's largest may be left out.
 *
 * Numbers are of ordinary size in some rounds, and near the large ones of a function in others: what a step
 * does beyond a maximum of 50 shows there alone.
 */
#include <math.h>
#include <string.h>

#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"
#include "gen/analysis/algebra/algebra.h"
#include "gen/lower/left_out.h"
#include "gen/lower/prob_range.h"

/* Rows of random numbers. In every fourth lane scalars and inputs are at most 0, because such a factor turns
 * -inf into NaN or +inf. */
typedef struct probe {
  uint64_t random;
  const ir_op *empty; /* ops of the reductions, if they reduce over no score; NULL: they reduce over some */
  double lo, hi;      /* of scores; if equal, all are -inf */
  bool bounded;       /* there are no others */
  bool zero;          /* all are 0 */
  double slack;       /* values count as equal if |got - want| <= slack * (1 + |want|) */
  double centre;      /* added to scores and to the row's numbers */
} probe;

static double next_random(probe *p) {
  p->random = p->random * 6364136223846793005u + 1442695040888963407u;
  return (double)(p->random >> 11) / 9007199254740992.0;
}

static double uniform_value(probe *p, int lane) {
  const double x = next_random(p);
  return lane % 8 == 0 ? 0 : lane % 8 == 4 ? -2 * x : 3 * x + 0.1;
}

static void probe_variable(void *user, ir_var v, uint32_t index, int lanes, double *out) {
  probe *p = user;
  for (int i = 0; i < lanes; i++) {
    if (v == VAR_SCORE)
      out[i] = p->zero ? 0 : p->lo < p->hi ? p->centre + p->lo + next_random(p) * (p->hi - p->lo) : -INFINITY;
    else if (v == VAR_SCALE)
      out[i] = next_random(p) + 0.01;
    else if (v == VAR_SCALAR)
      out[i] = uniform_value(p, i);
    else if (v == VAR_RED && p->empty != NULL)
      out[i] = p->empty[index] == IR_REDUCE_MAX ? -INFINITY : 0;
    else if (v == VAR_STATE || v == VAR_RED)
      out[i] = p->centre + (i % 2 == 0 ? next_random(p) * 4 + 0.1 : next_random(p) * 20 - 10);
    else if (v == VAR_FINAL)
      out[i] = p->centre + floor(next_random(p) * 64);
    else
      out[i] = floor(next_random(p) * 64) + (v == VAR_Q_LEN || v == VAR_KV_LEN ? 1 : 0); /* no step has zero
                                                                                          * keys */
  }
}

static void probe_load(void *user, uint32_t input, int n, const double *const *index, int lanes, double *out) {
  (void)input, (void)n, (void)index;
  for (int i = 0; i < lanes; i++) out[i] = uniform_value(user, i);
}

/* Pairs of expressions that must be equal in every probe. */
enum { MAX_EQUATIONS = 2 * (SPEC_MAX_RED + SPEC_MAX_STATE + 2) };
typedef struct equations {
  ir_ref root[2 * MAX_EQUATIONS]; /* got, want, got, want .. */
  int n;
} equations;

static void equate(equations *c, ir_ref got, ir_ref want) {
  c->root[c->n++] = got;
  c->root[c->n++] = want;
}

static bool holds(const probe *p, double got, double want) {
  return got == want || fabs(got - want) <= p->slack * (1 + fabs(want));
}

enum { MAX_CENTRES = 16, MAX_CONDITIONS = 16, ROUNDS = 8, FAR_ROUNDS = 4 };
#define FAR_LEAST 8.0 /* scores of ordinary rounds are within this, */
#define FAR_MOST 1e12 /* and those near larger numbers are rounded by too much to show anything */
#define FAR_SLACK (64 * 0x1p-53)

/* What a probe's equations read: numbers that a row's are added to or compared with, and conditions. */
typedef struct probed {
  double centre[MAX_CENTRES];
  ir_ref condition[MAX_CONDITIONS];
  int num_centres, num_conditions;
  double answer[MAX_CONDITIONS]; /* in all ordinary rounds; NAN: both occur */
} probed;

static bool is_condition(uint16_t op) { return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE; }

static void add_centre(probed *x, double c) {
  if (!(fabs(c) > FAR_LEAST && fabs(c) <= FAR_MOST)) return;
  for (int i = 0; i < x->num_centres; i++)
    if (x->centre[i] == c) return;
  if (x->num_centres < MAX_CENTRES) x->centre[x->num_centres++] = c;
}

/* False: out of memory. */
static bool find_probed(lowered *f, const equations *c, probed *x) {
  const double ln2 = 0.69314718055994530942; /* exponents in base 2 have numbers larger by 1 / ln2 */
  ir_ref top = IR_NONE;
  for (int k = 0; k < c->n; k++) top = c->root[k] > top ? c->root[k] : top;
  bool *under = arena_array(f->a, (size_t)top + 1, sizeof *under);
  if (under == NULL) return false;
  for (int k = 0; k < c->n; k++) under[c->root[k]] = true;
  for (ir_ref r = top; r > IR_NONE; r--) { /* users before arguments */
    const ir_node n = *ir_get(f->g, r);
    double v;
    if (!under[r]) continue;
    if (is_condition(n.op) && x->num_conditions < MAX_CONDITIONS) x->condition[x->num_conditions++] = r;
    for (int i = 0; i < n.nargs; i++) {
      under[n.arg[i]] = true;
      if (n.op == IR_MUL || n.op == IR_DIV || !ir_is_const(f->g, n.arg[i], &v)) continue;
      for (int sign = -1; sign <= 1; sign += 2) add_centre(x, sign * v), add_centre(x, sign * v * ln2);
    }
  }
  return true;
}

/* A lane near a large negative number on which a condition has an answer that no ordinary lane has: it is
 * written for rows that the mask leaves nothing of. */
static bool is_guarded(const probed *x, ir_lane_block *answer, int lane) {
  for (int k = 0; k < x->num_conditions; k++)
    if (!isnan(x->answer[k]) && answer[k][lane] != x->answer[k]) return true;
  return false;
}

static void note_answers(probed *x, ir_lane_block *answer, bool first) {
  for (int k = 0; k < x->num_conditions; k++)
    for (int i = 0; i < IR_LANES; i++) {
      if (first && i == 0) x->answer[k] = answer[k][i];
      if (answer[k][i] != x->answer[k]) x->answer[k] = (double)NAN;
    }
}

/* One round. Where numbers are large, what is NaN on both sides shows nothing. */
static void compare(const probe *p, const probed *x, const equations *c, ir_lane_block *value, bool *hold) {
  const bool far = p->centre != 0;
  for (int i = 0; i < IR_LANES; i++) {
    if (p->centre < 0 && is_guarded(x, value + c->n, i)) continue;
    for (int k = 0; k < c->n; k += 2)
      *hold &= holds(p, value[k][i], value[k + 1][i]) || (far && isnan(value[k][i]) && isnan(value[k + 1][i]));
  }
}

static luattn_status run_probe(lowered *f, const equations *c, probe *p, bool *hold, luattn_error *err) {
  enum { MAX_ROOTS = 2 * MAX_EQUATIONS + MAX_CONDITIONS };
  probed x = {.num_centres = 0};
  double *out[MAX_ROOTS];
  ir_ref root[MAX_ROOTS];
  const bool found = find_probed(f, c, &x);
  if (p->bounded) x.num_centres = 0;
  const int n = c->n + x.num_conditions;
  for (int k = 0; k < n; k++) root[k] = k < c->n ? c->root[k] : x.condition[k - c->n];
  ir_lane_block *value = arena_array(f->a, (size_t)n, sizeof *value);
  const ir_program *program = ir_program_new(f->a, f->g, root, n);
  void *scratch = program == NULL ? NULL : arena_new(f->a, ir_program_scratch(program));
  if (!found || value == NULL || scratch == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", lowered_traced(f)->name);
  for (int k = 0; k < n; k++) out[k] = value[k];
  const double slack = p->slack;
  for (int round = 0; round < ROUNDS + FAR_ROUNDS * x.num_centres; round++) {
    const ir_env env = {.user = p, .variable = probe_variable, .load = probe_load};
    p->centre = round < ROUNDS ? 0 : x.centre[(round - ROUNDS) / FAR_ROUNDS];
    p->slack = slack == 0 ? 0 : slack + FAR_SLACK * fabs(p->centre);
    ir_program_run(program, &env, IR_LANES, scratch, out);
    if (round < ROUNDS) note_answers(&x, value + c->n, round == 0);
    compare(p, &x, c, value, hold);
  }
  return LUATTN_OK;
}

static bool prove(lowered *f, const equations *c) {
  for (int k = 0; k < c->n; k += 2)
    if (!algebra_same(f->a, lowered_traced(f), c->root[k], c->root[k + 1])) return false;
  return true;
}

/* Whether the equations are proved, and numbers do not refute them. */
static luattn_status settle(lowered *f, const equations *c, probe *p, bool *hold, luattn_error *err) {
  *hold = *hold && prove(f, c);
  return *hold ? run_probe(f, c, p, hold, err) : LUATTN_OK;
}

/* ---- mask_by_inf ---- */

static void equate_left_out(equations *c, lowered *f, const ir_ref *from, const ir_ref *to, int n) {
  ir *g = f->g;
  for (int k = 0; k < f->step.num_red; k++)
    equate(c, ir_substitute(g, f->step.term[k], from, to, n),
           ir_real(g, f->step.kind[k] == IR_REDUCE_MAX ? -INFINITY : 0));
  equate(c, ir_substitute(g, f->step.prob, from, to, n), ir_real(g, 0));
}

/* Whether a score of -inf leaves an element out of every reduction and of prob by itself, and whether a step
 * over only such scores changes nothing, whether it is a row's first or a later one. */
luattn_status probe_mask_by_inf(lowered *f, bool *hold, luattn_error *err) {
  ir *g = f->g;
  ir_ref state[SPEC_MAX_STATE];
  const int num_state = lowered_traced(f)->online.num_state;
  for (int i = 0; i < num_state; i++) state[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  equations some = {.n = 0}, none = {.n = 0};
  equate_left_out(&some, f, state, state, num_state);
  for (int first = 0; first < 2; first++) {
    const ir_ref *now = first ? f->init : state;
    equate_left_out(&none, f, state, now, num_state);
    equate(&none, ir_substitute(g, f->step.rescale, state, now, num_state), ir_real(g, 1));
    for (int i = 0; i < num_state; i++) equate(&none, ir_substitute(g, f->step.next[i], state, now, num_state), now[i]);
  }
  *hold = left_out_by_score(f, -INFINITY);
  TRY(run_probe(f, &some, &(probe){.random = 12345}, hold, err));
  return run_probe(f, &none, &(probe){.random = 54321, .empty = f->step.kind}, hold, err);
}

/* The same for a score of 0. After a row's first step, the equations need to hold only for states that a step
 * can produce, in which one number may imply another. */
luattn_status probe_mask_by_zero(lowered *f, bool *hold, luattn_error *err) {
  ir *g = f->g;
  const int num_state = lowered_traced(f)->online.num_state, num_red = f->step.num_red;
  ir_ref state[SPEC_MAX_STATE], red[SPEC_MAX_RED], before[SPEC_MAX_RED], stepped[SPEC_MAX_STATE];
  for (int i = 0; i < num_state; i++) state[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  for (int k = 0; k < num_red; k++) {
    red[k] = ir_variable(g, VAR_RED, (uint32_t)k);
    before[k] = ir_variable(g, VAR_STATE, (uint32_t)(SPEC_MAX_STATE + k)); /* random numbers, as for a
                                                                            * state */
  }
  for (int i = 0; i < num_state; i++) stepped[i] = ir_substitute(g, f->step.next[i], red, before, num_red);
  equations some = {.n = 0}, none = {.n = 0};
  equate_left_out(&some, f, state, state, num_state);
  for (int first = 0; first < 2; first++) {
    const ir_ref *now = first ? f->init : stepped;
    equate_left_out(&none, f, state, now, num_state);
    equate(&none, ir_substitute(g, f->step.rescale, state, now, num_state), ir_real(g, 1));
    for (int i = 0; i < num_state; i++) equate(&none, ir_substitute(g, f->step.next[i], state, now, num_state), now[i]);
  }
  *hold = left_out_by_score(f, 0);
  TRY(run_probe(f, &some, &(probe){.random = 2345, .zero = true}, hold, err));
  return run_probe(f, &none, &(probe){.random = 5432, .zero = true, .empty = f->step.kind}, hold, err);
}

/* ---- bounded_scores ---- */

/* x of rows that have scores: a maximum that starts at a low number then lies above it, and conditions that ask whether
 * it does are there for rows without any. */
static ir_ref of_rows_with_scores(lowered *f, ir_ref x, int max) {
  enum { MOST = 8 };
  ir *g = f->g;
  const ir_ref state = ir_variable(g, VAR_STATE, (uint32_t)max);
  ir_ref from[MOST], to[MOST];
  double start, c;
  int n = 0;
  if (!ir_is_const(g, f->init[max], &start) || start > -1e3) return x;
  for (ir_ref r = 1; r <= x && n < MOST; r++) {
    const ir_node node = *ir_get(g, r);
    if (node.op != IR_LT && node.op != IR_LE && node.op != IR_EQ && node.op != IR_NE) continue;
    const int at = node.arg[0] == state ? 0 : node.arg[1] == state ? 1 : -1;
    if (at < 0 || !ir_is_const(g, node.arg[1 - at], &c) || c > fmax(LOWEST, start / NEAR_START)) continue;
    from[n] = r;
    to[n++] = ir_bool(g, node.op == IR_NE || (node.op != IR_EQ && at == 1));
  }
  return ir_substitute(g, x, from, to, n);
}

/* Returns the state that is the running maximum of reduction *red; -1: there is no such state, or more than
 * one. */
static int running_maximum(lowered *f, const online_split *s, int *red) {
  int found = -1;
  *red = -1;
  for (int k = 0; k < s->num_red; k++) {
    if (s->kind[k] != IR_REDUCE_MAX) continue;
    if (*red >= 0 || s->term[k] != ir_variable(f->g, VAR_SCORE, 0)) return -1;
    *red = k;
  }
  if (*red < 0) return -1;
  const ir_ref r = ir_variable(f->g, VAR_RED, (uint32_t)*red);
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++)
    if (s->next[i] == ir_op2(f->g, IR_MAX, ir_variable(f->g, VAR_STATE, (uint32_t)i), r)) found = i;
  return found;
}

/* The step with a constant in place of state `max` and of reduction `red`, which is removed. */
static void without_maximum(lowered *f, const online_split *s, int max, int red, ir_ref constant, online_split *out) {
  ir *g = f->g;
  ir_ref from[1 + SPEC_MAX_RED], to[1 + SPEC_MAX_RED], root[SPEC_MAX_RED + SPEC_MAX_STATE + 2];
  const int num_state = lowered_traced(f)->online.num_state;
  int n = 0, roots = 0;
  from[n] = ir_variable(g, VAR_STATE, (uint32_t)max);
  to[n++] = constant;
  for (int k = red; k < s->num_red; k++) {
    from[n] = ir_variable(g, VAR_RED, (uint32_t)k);
    to[n++] = k == red ? constant : ir_variable(g, VAR_RED, (uint32_t)k - 1);
  }
  *out = (online_split){.num_red = 0};
  for (int k = 0; k < s->num_red; k++) {
    if (k == red) continue;
    out->kind[out->num_red++] = s->kind[k];
    root[roots++] = ir_substitute(g, s->term[k], from, to, n);
  }
  root[roots++] = ir_substitute(g, s->prob, from, to, n);
  root[roots++] = ir_substitute(g, s->rescale, from, to, n);
  for (int i = 0; i < num_state; i++)
    root[roots++] = i == max ? ir_variable(g, VAR_STATE, (uint32_t)i) : ir_substitute(g, s->next[i], from, to, n);
  ir_simplify(g, root, roots);
  roots = 0;
  for (int k = 0; k < out->num_red; k++) out->term[k] = root[roots++];
  out->prob = root[roots++];
  out->rescale = root[roots++];
  for (int i = 0; i < num_state; i++) out->next[i] = root[roots++];
}

/* Builds the epilogue of a row of three scores in two steps, with values of 1 and 3, and of 1. */
static void run_row(lowered *f, const online_split *first, const online_split *second, const ir_ref *tail, int n,
                    ir_ref *result) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  enum { OUT, SCORE, STATE, RED = STATE + SPEC_MAX_STATE, NAMES = RED + SPEC_MAX_RED };
  ir_ref from[NAMES], to[2][NAMES], next[SPEC_MAX_STATE], sum = ir_real(g, 0);
  from[OUT] = ir_variable(g, VAR_OUT, 0);
  from[SCORE] = ir_variable(g, VAR_SCORE, 0);
  for (int i = 0; i < SPEC_MAX_STATE; i++) from[STATE + i] = ir_variable(g, VAR_STATE, (uint32_t)i);
  for (int k = 0; k < SPEC_MAX_RED; k++) from[RED + k] = ir_variable(g, VAR_RED, (uint32_t)k);
  memcpy(to[0], from, sizeof from);
  for (int i = 0; i < o->num_state; i++) to[0][STATE + i] = o->init[i];
  for (uint32_t step = 0; step < 2; step++) {
    const online_split *s = step == 0 ? first : second;
    memcpy(to[1], to[0], sizeof to[0]);
    for (uint32_t e = 0; e < 2; e++) to[e][SCORE] = ir_variable(g, VAR_SCORE, 2 * step + e);
    for (int k = 0; k < s->num_red; k++) {
      ir_ref a = ir_substitute(g, s->term[k], from, to[0], NAMES);
      if (step == 0)
        a = ir_op2(g, s->kind[k] == IR_REDUCE_MAX ? IR_MAX : IR_ADD, a,
                   ir_substitute(g, s->term[k], from, to[1], NAMES));
      to[0][RED + k] = to[1][RED + k] = a;
    }
    ir_ref p = ir_substitute(g, s->prob, from, to[0], NAMES);
    if (step == 0)
      p = ir_op2(g, IR_ADD, p, ir_op2(g, IR_MUL, ir_real(g, 3), ir_substitute(g, s->prob, from, to[1], NAMES)));
    sum = ir_op2(g, IR_MUL, sum, ir_substitute(g, s->rescale, from, to[0], NAMES));
    sum = ir_op2(g, IR_ADD, sum, p);
    for (int i = 0; i < o->num_state; i++) next[i] = ir_substitute(g, s->next[i], from, to[0], NAMES);
    for (int i = 0; i < o->num_state; i++) to[0][STATE + i] = next[i];
  }
  to[0][OUT] = sum;
  for (int i = 0; i < n; i++) result[i] = ir_substitute(g, tail[i], from, to[0], NAMES);
}

static bool reads(lowered *f, ir_ref r, ir_ref var) {
  const ir_ref marker = ir_variable(f->g, VAR_DELTA, 0); /* never occurs in an epilogue */
  return ir_substitute(f->g, r, &var, &marker, 1) != r;
}

luattn_status probe_bounded_scores(lowered *f, luattn_error *err) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  int red;
  const int max = f->plan->family->fast_math ? running_maximum(f, &f->step, &red) : -1;
  if (max < 0) return LUATTN_OK;
  const iv score = prob_bounds(f, lowered_traced(f)->score_mod, iv_all());
  if (iv_unbounded(score)) return LUATTN_OK;
  const ir_ref state = ir_variable(g, VAR_STATE, (uint32_t)max);
  const int num_saved = f->spec->derived.num_saved;
  for (int i = 0; i < num_saved; i++)
    if (f->spec->parts == NULL && reads(f, f->saved[i], state)) return LUATTN_OK;

  const double depth = -log(2 * prob_range_of(f->plan).least),
               middle = score.hi - score.lo <= depth ? score.hi : score.lo + depth;
  const ir_ref constant = ir_real(g, middle);
  online_split bounded;
  without_maximum(f, &f->step, max, red, constant, &bounded);
  ir_ref before[2] = {o->out, o->lse >= 0 ? o->final[o->lse] : o->out}, after[2], result[4];
  for (int i = 0; i < 2; i++) after[i] = ir_substitute(g, before[i], &state, &constant, 1);
  ir_simplify(g, after, 2);
  if (!prob_in_range(f, &bounded, score) || prob_exp_unbounded(f, after[0]) || prob_exp_unbounded(f, after[1]))
    return LUATTN_OK;
  run_row(f, &f->step, &f->step, before, 2, result);
  run_row(f, &bounded, &bounded, after, 2, result + 2);
  equations same = {.n = 0};
  for (int i = 0; i < 2; i++) equate(&same, result[2 + i], result[i]);
  bool hold = true;
  TRY(settle(f, &same, &(probe){.random = 777, .lo = score.lo, .hi = score.hi, .bounded = true, .slack = 1e-9}, &hold,
             err));
  if (!hold) return LUATTN_OK;
  f->step = bounded;
  f->bounded = true;
  f->bounded_state = max;
  f->bounded_max = middle;
  f->score_lo = score.lo;
  f->score_hi = score.hi;
  f->tail[0] = after[0];
  f->tail[1] = after[1];
  for (int i = 0; i < num_saved; i++)
    f->saved[i] = ir_substitute(g, f->saved[i], &state, &constant, 1); /* of a part: any number serves in a merge */
  return LUATTN_OK;
}

/* ---- lazy_rescale ---- */

/* A softmax step that keeps its maximum: with the state in place of the new one. */
static void without_rescale(lowered *f, int max, online_split *out) {
  ir *g = f->g;
  const ir_ref red = ir_variable(g, VAR_RED, 0), state = ir_variable(g, VAR_STATE, (uint32_t)max),
               sum = ir_variable(g, VAR_STATE, (uint32_t)(1 - max));
  *out = f->step;
  out->term[1] = out->prob = ir_substitute(g, f->step.prob, &red, &state, 1);
  out->rescale = ir_real(g, 1);
  out->next[max] = state;
  out->next[1 - max] = ir_op2(g, IR_ADD, sum, ir_variable(g, VAR_RED, 1));
}

/* A softmax step has a maximum of scores and a sum of P = exp(score - maximum), and can be split in two:
 * update the maximum and rescale, then sum. Any number within range may replace the maximum if the row's
 * results agree. Returns false if the step is certainly not a softmax. Otherwise it is one if the equations
 * hold, and *max is its maximum. */
static bool equate_softmax(lowered *f, equations *same, int *max) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  int red;
  *max = running_maximum(f, &f->step, &red);
  if (*max < 0 || red != 0 || f->step.num_red != 2 || o->num_state != 2 || f->step.term[1] != f->step.prob)
    return false;
  const ir_ref state = ir_variable(g, VAR_STATE, (uint32_t)*max), none = ir_real(g, 0),
               old = ir_variable(g, VAR_STATE, (uint32_t)(1 - *max)), to_none = ir_variable(g, VAR_RED, 1);
  /* Any number serves as the maximum that is saved with log l, too, or with the sum, for a merge. */
  const derived_spec *derived = &f->spec->derived;
  const int num_saved = f->spec->parts != NULL ? 0 : derived->num_saved - (derived->has_large_scores ? 2 : 0);
  for (int i = 0; i < num_saved; i++)
    if (reads(f, derived->saved[i], state)) return false;
  online_split kept;
  without_rescale(f, *max, &kept);
  ir_ref tail[2] = {o->out, o->lse >= 0 ? o->final[o->lse] : o->out}, result[4];
  for (int i = 0; i < 2; i++) tail[i] = of_rows_with_scores(f, tail[i], *max);
  run_row(f, &f->step, &f->step, tail, 2, result);
  run_row(f, &f->step, &kept, tail, 2, result + 2);
  for (int i = 0; i < 2; i++) equate(same, result[2 + i], result[i]);
  equate(same, kept.prob, ir_op1(g, IR_EXP, ir_op2(g, IR_SUB, ir_variable(g, VAR_SCORE, 0), state)));
  equate(same, ir_substitute(g, f->step.next[1 - *max], &(ir_ref){ir_variable(g, VAR_RED, 0)}, &state, 1),
         kept.next[1 - *max]);
  equate(same, ir_substitute(g, f->step.next[1 - *max], &to_none, &none, 1), ir_op2(g, IR_MUL, old, f->step.rescale));
  return true;
}

luattn_status probe_lazy_rescale(lowered *f, luattn_error *err) {
  equations same = {.n = 0};
  int max;
  if (!plan_kernel(f->plan)->rescales_lazily || !equate_softmax(f, &same, &max)) return LUATTN_OK;
  f->lazy_rescale = true;
  f->max_state = max;
  return settle(f, &same, &(probe){.random = 999, .lo = -8, .hi = 8, .slack = 1e-9}, &f->lazy_rescale, err);
}

/* ---- softmax ---- */

/* Whether 0 <= x <= 1 and the like, for a row of scores: that none of these is below 0. */
static bool are_not_below(lowered *f, const ir_ref *x, int n) {
  ir_ref of_row[4];
  run_row(f, &f->step, &f->step, x, n, of_row);
  for (int i = 0; i < n; i++)
    if (!algebra_not_below(f->a, lowered_traced(f), of_row[i])) return false;
  return true;
}

/* Whether a relative error of the sum causes none that is larger of the epilogue's factor, and of lse none that is
 * larger by itself. */
static bool is_steady(lowered *f, ir_ref sum) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  const ir_ref one = ir_real(g, 1), out = ir_variable(g, VAR_OUT, 0);
  ir_ref factor = ir_substitute(g, o->out, &out, &one, 1), slope = IR_NONE, of_lse = IR_NONE, x[4];
  int n = 0;
  ir_simplify(g, &factor, 1);
  ir_grad(g, &factor, &one, 1, &sum, &slope, 1);
  if (o->lse >= 0) ir_grad(g, &o->final[o->lse], &one, 1, &sum, &of_lse, 1);
  if (slope != IR_NONE) {
    slope = ir_op2(g, IR_MUL, sum, slope);
    x[n++] = ir_op1(g, IR_NEG, slope);
    x[n++] = ir_op2(g, IR_ADD, factor, slope);
  }
  if (of_lse != IR_NONE) {
    x[n++] = of_lse = ir_op2(g, IR_MUL, sum, of_lse);
    x[n++] = ir_op2(g, IR_SUB, one, of_lse);
  }
  ir_simplify(g, x, n);
  return are_not_below(f, x, n);
}

/* Proves that a small relative error of the sum causes an equally small error of the row's results, and tests it. */
static luattn_status try_steady(lowered *f, int max, bool *hold, luattn_error *err) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  const ir_ref sum = ir_variable(g, VAR_STATE, (uint32_t)(1 - max)), off = ir_op2(g, IR_MUL, sum, ir_real(g, 1 + 1e-6));
  ir_ref tail[2] = {o->out, o->lse >= 0 ? o->final[o->lse] : o->out}, other[2], result[4];
  for (int i = 0; i < 2; i++) other[i] = ir_substitute(g, tail[i], &sum, &off, 1);
  run_row(f, &f->step, &f->step, tail, 2, result);
  run_row(f, &f->step, &f->step, other, 2, result + 2);
  equations same = {.n = 0};
  for (int i = 0; i < 2; i++) equate(&same, result[2 + i], result[i]);
  *hold = *hold && is_steady(f, sum);
  return run_probe(f, &same, &(probe){.random = 31, .lo = -8, .hi = 8, .slack = 4e-6}, hold, err);
}

/* Proves the equations for any number in place of the score, which may be -inf. */
static bool prove_of_any_score(lowered *f, const equations *c, ir_ref score) {
  const ir_ref any = ir_variable(f->g, VAR_X, 0);
  equations of_any = *c;
  for (int k = 0; k < c->n; k++) of_any.root[k] = ir_substitute(f->g, c->root[k], &score, &any, 1);
  return prove(f, &of_any);
}

/* Proves and tests that P is exp(score - lse), and that an element's gradient is a multiple of P. */
static luattn_status try_backward(lowered *f, bool *hold, luattn_error *err) {
  ir *g = f->g;
  const derived_spec *d = &f->spec->derived;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), one = ir_real(g, 1);
  ir_ref row[DERIVED_MAX_ROWS], mod = lowered_traced(f)->score_mod, by_score = IR_NONE;
  *hold = lowered_traced(f)->online.lse >= 0 && d->prob != IR_NONE && d->ds != IR_NONE;
  if (!*hold) return LUATTN_OK;
  for (int i = 0; i < d->num_rows; i++) row[i] = ir_variable(g, VAR_ROW, (uint32_t)i);
  ir_grad(g, &mod, &one, 1, &score, &by_score, 1);
  const ir_ref prob = ir_op1(g, IR_EXP, ir_op2(g, IR_SUB, mod, ir_variable(g, VAR_FINAL, 0)));
  ir_ref sum = ir_op2(g, IR_SUB, ir_variable(g, VAR_DP, 0), ir_variable(g, VAR_DELTA, 0));
  sum = ir_op2(g, IR_MUL, ir_op2(g, IR_ADD, sum, ir_variable(g, VAR_DLSE, 0)), prob);
  equations same = {.n = 0};
  equate(&same, ir_substitute(g, d->prob, row, d->row, d->num_rows), prob);
  equate(&same, ir_substitute(g, d->ds, row, d->row, d->num_rows),
         by_score == IR_NONE ? ir_real(g, 0) : ir_op2(g, IR_MUL, sum, by_score));
  *hold = prove_of_any_score(f, &same, mod);
  return *hold ? run_probe(f, &same, &(probe){.random = 73, .lo = -8, .hi = 8, .slack = 1e-9}, hold, err) : LUATTN_OK;
}

luattn_status probe_softmax(lowered *f, bool *hold, luattn_error *err) {
  equations same = {.n = 0};
  int max;
  if (f->plan->pass == LUATTN_BACKWARD) return try_backward(f, hold, err);
  *hold = equate_softmax(f, &same, &max);
  if (!*hold) return LUATTN_OK;
  TRY(settle(f, &same, &(probe){.random = 999, .lo = -8, .hi = 8, .slack = 1e-9}, hold, err));
  return try_steady(f, max, hold, err);
}
