/* edges.c: draws sample points near the edges of a function's conditions, so that both arms are reached
 * however narrow they are. */
#include <math.h>

#include "gen/analysis/algebra/sample.h"

enum { MAX_CONDITIONS = 24, GRID = 32, HALVINGS = 24 };
#define REACH 8.0 /* the rows with large scores cover what lies beyond */

typedef struct conditions {
  ir_ref by_score[MAX_CONDITIONS], other[MAX_CONDITIONS];
  int num_by_score, num_other;
  bool some; /* some condition holds for more than isolated real values */
} conditions;

static bool is_condition(const ir *g, ir_ref r) {
  const uint16_t op = ir_get(g, r)->op;
  return op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE;
}

/* Whether the condition is true, or false, only at a single real value, such as l == 0. */
static bool is_single(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  return (n->op == IR_EQ || n->op == IR_NE) && ir_typeof(g, n->arg[0]) == IR_REAL;
}

/* Skips conditions on reductions: one score does not decide them. */
static void find_conditions(const ir *g, const uint8_t *under, ir_ref top, conditions *c) {
  for (ir_ref r = 1; r <= top; r++) {
    if (!under[r] || !is_condition(g, r)) continue;
    c->some = c->some || !is_single(g, r);
    if (ir_uses(g, r, VAR_RED) || ir_uses(g, r, VAR_STATE) || ir_uses(g, r, VAR_FINAL)) continue;
    if (!ir_uses(g, r, VAR_SCORE)) {
      if (c->num_other < MAX_CONDITIONS) c->other[c->num_other++] = r;
    } else if (c->num_by_score < MAX_CONDITIONS) {
      c->by_score[c->num_by_score++] = r;
    }
  }
}

static void mark(const ir *g, uint8_t *under, ir_ref top) {
  for (ir_ref r = top; r > IR_NONE; r--) {
    const ir_node *n = ir_get(g, r);
    for (int i = 0; under[r] && i < n->nargs; i++) under[n->arg[i]] = 1;
  }
}

static void note_constants(sample *s, const ir *g, ir_ref r, int depth) {
  double x;
  const ir_node n = *ir_get(g, r);
  if (ir_is_const(g, r, &x)) {
    for (int i = 0; i < s->num_edges; i++)
      if (s->edge[i] == x) return;
    if (s->num_edges < SAMPLE_EDGES && isfinite(x)) s->edge[s->num_edges++] = x;
  }
  for (int i = 0; i < n.nargs && depth > 0; i++) note_constants(s, g, n.arg[i], depth - 1);
}

/* Assigns each lane to a condition; leaves one lane in three as drawn. */
static int condition_of(int lane, int count) {
  const uint64_t h = sample_hash(77, (uint64_t)lane);
  return h % 3 == 0 ? -1 : (int)(h / 3 % (uint64_t)count);
}

typedef struct bracket {
  double lo, hi, at_lo;
  int changes;
} bracket;

/* Picks one grid interval in which the difference changes sign. */
static void search(sample *s, const sample_program *p, int which, int count, bracket *b, double *at) {
  const sample_lanes out[1] = {at};
  static const double step = 2 * REACH / GRID;
  for (int i = 0; i <= GRID; i++) {
    for (int lane = 0; lane < s->lanes; lane++)
      if (condition_of(lane, count) == which)
        s->score[lane] = -REACH + step * (i + (double)(sample_hash(3, (uint64_t)lane) % 64) / 64);
    sample_run(s, p, out);
    for (int lane = 0; lane < s->lanes; lane++) {
      if (condition_of(lane, count) != which) continue;
      bracket *x = &b[lane];
      const bool changed = i > 0 && (x->at_lo > 0) != (at[lane] > 0);
      if (changed && sample_hash((uint64_t)lane, (uint64_t)i) % (uint64_t)++x->changes == 0) {
        x->lo = s->score[lane] - step;
        x->hi = s->score[lane];
      }
      x->at_lo = at[lane];
    }
  }
}

static void halve(sample *s, const sample_program *p, int which, int count, bracket *b, double *at) {
  const sample_lanes out[1] = {at};
  for (int i = 0; i <= HALVINGS; i++) {
    for (int lane = 0; lane < s->lanes; lane++)
      if (condition_of(lane, count) == which && b[lane].changes > 0)
        s->score[lane] = i == 0 ? b[lane].lo : 0.5 * (b[lane].lo + b[lane].hi);
    sample_run(s, p, out);
    for (int lane = 0; lane < s->lanes; lane++) {
      bracket *x = &b[lane];
      if (condition_of(lane, count) != which || x->changes == 0) continue;
      if (i == 0)
        x->at_lo = at[lane];
      else if ((x->at_lo > 0) == (at[lane] > 0))
        x->lo = s->score[lane];
      else
        x->hi = s->score[lane];
    }
  }
}

/* From far to near: 0.5 to 0.0005 on either side. */
static double next_to(int lane, double edge) {
  const uint64_t h = sample_hash(5, (uint64_t)lane);
  const double away = 0.5 * pow(10, -3.0 * (double)(h >> 8 & 255) / 255);
  return h & 1 ? edge + away : edge - away;
}

static bool seek(sample *s, ir *g, ir_ref condition, int which, int count) {
  const ir_node n = *ir_get(g, condition);
  const ir_ref left = ir_to_real(g, n.arg[0]), difference = ir_op2(g, IR_SUB, left, ir_to_real(g, n.arg[1]));
  bracket *b = arena_array(s->a, (size_t)s->lanes, sizeof *b);
  double *at = arena_array(s->a, (size_t)s->lanes, sizeof *at), *old = arena_array(s->a, (size_t)s->lanes, sizeof *old);
  sample_program p;
  if (difference == IR_NONE || b == NULL || at == NULL || old == NULL || !sample_compile(s, &difference, 1, &p))
    return false;
  for (int lane = 0; lane < s->lanes; lane++) old[lane] = s->score[lane];
  search(s, &p, which, count, b, at);
  halve(s, &p, which, count, b, at);
  for (int lane = 0; lane < s->lanes; lane++) {
    if (condition_of(lane, count) != which) continue;
    s->score[lane] = b[lane].changes > 0 ? next_to(lane, 0.5 * (b[lane].lo + b[lane].hi)) : old[lane];
  }
  return true;
}

static uint8_t *mark_under(sample *s, const ir *g, const ir_ref *roots, int n, ir_ref *top) {
  uint8_t *under = arena_array(s->a, ir_count(g), 1);
  *top = IR_NONE;
  for (int i = 0; under != NULL && i < n; i++) {
    if (roots[i] == IR_NONE) continue;
    under[roots[i]] = 1;
    if (roots[i] > *top) *top = roots[i];
  }
  if (under != NULL) mark(g, under, *top);
  return under;
}

bool sample_at_edges(sample *s, ir *g, const ir_ref *roots, int n) {
  conditions c = {.num_other = 0};
  ir_ref top;
  const uint8_t *under = mark_under(s, g, roots, n, &top);
  if (under == NULL) return false;
  find_conditions(g, under, top, &c);
  if (c.some && !sample_grow(s)) return false;
  for (int i = 0; i < c.num_other; i++) note_constants(s, g, c.other[i], 3);
  for (int i = 0; i < c.num_by_score; i++) note_constants(s, g, c.by_score[i], 3);
  for (int i = 0; i < c.num_by_score; i++)
    if (!seek(s, g, c.by_score[i], i, c.num_by_score)) return false;
  return true;
}

/* Whether a condition has the same answer on all valid rows. */
static bool has_one_answer(const sample *s, const double *answer) {
  int first = -1;
  for (int lane = 0; lane < s->lanes; lane++) {
    if (!s->valid[s->row_of[lane]]) continue;
    if (first < 0) first = lane;
    if (answer[lane] != answer[first]) return false;
  }
  return true;
}

bool sample_unmet(sample *s, const ir *g, const ir_ref *roots, int n, text *how) {
  ir_ref top, condition[SAMPLE_EDGES];
  sample_lanes answer[SAMPLE_EDGES];
  const uint8_t *under = mark_under(s, g, roots, n, &top);
  int count = 0;
  if (under == NULL) return false;
  for (ir_ref r = 1; r <= top && count < SAMPLE_EDGES; r++)
    if (under[r] && is_condition(g, r) && !is_single(g, r)) condition[count++] = r;
  if (!sample_eval(s, condition, count, answer)) return false;
  for (int i = 0; i < count; i++)
    if (has_one_answer(s, answer[i]))
      text_add(how, "; no sample meets both sides of the condition in line %u",
               (unsigned)ir_get(g, condition[i])->line);
  return true;
}
