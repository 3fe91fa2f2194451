/* far_rows.c: draws sample rows near the large numbers of a function. A softmax whose maximum starts at 1e9
 * has weights of 0 for all scores that are not near 1e9: claims about them hold there for want of anything to
 * refute them. */
#include <math.h>

#include "gen/analysis/algebra/sample.h"

enum { MAX_NUMBERS = 8, MAX_FACTORS = 3, MAX_PLACES = 2 * MAX_NUMBERS * (1 + MAX_FACTORS) + MAX_FACTORS + 1 };
/* A factor of scores within 1 / MODERATE and MODERATE needs no scores of another size. */
#define MODERATE 64.0
/* Numbers as large as x are known to eps * x: the error of an exponent, and so the relative one of a weight.
 * A row on which that is more than MOST_SLACK shows nothing: one near 1e12 and more. */
#define SLACK (64 * 0x1p-53)
#define MOST_SLACK 1e-2

typedef struct far {
  ir_ref number[MAX_NUMBERS], factor[MAX_FACTORS];
  bool divides[MAX_FACTORS];
  int num_numbers, num_factors;
  bool large_scalar;
} far;

/* Where the scores of a row lie: at sign * number / factor. -1: 0 and 1. */
typedef struct place {
  int number, factor, sign;
} place;

/* Whether a variable is the same for all scores of a row, and for all that may be in it. */
static bool is_given(ir_var v) {
  switch (v) {
    case VAR_B:
    case VAR_H:
    case VAR_Q:
    case VAR_Q_LEN:
    case VAR_KV_LEN:
    case VAR_HEADS:
    case VAR_HEADS_KV:
    case VAR_HEAD_DIM:
    case VAR_HEAD_DIM_V:
    case VAR_SCALE:
    case VAR_SCALAR:
      return true;
    default:
      return false;
  }
}

static void find_given(const ir *g, bool *given, ir_ref top) {
  for (ir_ref r = 1; r <= top; r++) {
    const ir_node *n = ir_get(g, r);
    given[r] = n->op == IR_VAR ? is_given(ir_var_of(n)) : n->op != IR_REDUCE_SUM && n->op != IR_REDUCE_MAX;
    for (int i = 0; i < n->nargs; i++) given[r] &= given[n->arg[i]];
  }
}

static void note(ir_ref *list, int *count, int max, ir_ref r) {
  for (int i = 0; i < *count; i++)
    if (list[i] == r) return;
  if (*count < max) list[(*count)++] = r;
}

/* Notes the given numbers that others are added to or compared with, and those that they are multiplied
 * by. */
static void find_numbers(const sample *s, const ir *g, const bool *under, const bool *given, ir_ref top, far *f) {
  for (ir_ref r = 1; r <= top; r++) {
    const ir_node *n = ir_get(g, r);
    if (!under[r]) continue;
    if (n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR)
      f->large_scalar |= fabs(s->t->scalar_default[ir_index_of(n)]) > SAMPLE_LARGE;
    for (int i = 0; i < n->nargs && !given[r]; i++) {
      if (!given[n->arg[i]] || ir_typeof(g, n->arg[i]) != IR_REAL) continue;
      const int before = f->num_factors;
      if (n->op == IR_MUL || (n->op == IR_DIV && i == 1))
        note(f->factor, &f->num_factors, MAX_FACTORS, n->arg[i]);
      else
        note(f->number, &f->num_numbers, MAX_NUMBERS, n->arg[i]);
      if (f->num_factors > before) f->divides[before] = n->op == IR_DIV;
    }
  }
}

static int list_places(const far *f, place *p) {
  int n = 0;
  if (f->large_scalar) p[n++] = (place){-1, -1, 1};
  for (int k = -1; k < f->num_factors; k++) {
    if (k >= 0) p[n++] = (place){-1, k, 1};
    for (int i = 0; i < f->num_numbers; i++) {
      p[n++] = (place){i, k, 1};
      p[n++] = (place){i, k, -1};
    }
  }
  return n;
}

/* Values of the numbers and factors, at each lane. */
typedef struct values {
  sample_lanes number[MAX_NUMBERS], factor[MAX_FACTORS];
} values;

/* The place of a lane's row: scores are centre + size * x, for x of ordinary size. False: ordinary rows cover
 * it. */
static bool place_of(const far *f, const values *v, place p, int lane, double *centre, double *size, double *slack) {
  const double number = p.number < 0 ? 0 : v->number[p.number][lane];
  *size = 1;
  if (p.factor >= 0) {
    const double c = v->factor[p.factor][lane], x = fabs(c);
    if (!(x > 0) || !isfinite(x) || (x <= MODERATE && x >= 1 / MODERATE)) return false;
    *size = f->divides[p.factor] ? c : 1 / c;
  } else if (p.number >= 0 && !(fabs(number) > SAMPLE_LARGE)) {
    return false;
  }
  *centre = p.sign * number * *size;
  *slack = SLACK * fabs(number);
  return isfinite(*centre) && isfinite(*size);
}

static bool evaluate(sample *s, const far *f, values *v) {
  return sample_eval(s, f->number, f->num_numbers, v->number) && sample_eval(s, f->factor, f->num_factors, v->factor);
}

/* The places of a row that ordinary rows do not cover, in `at`. Returns how many there are. */
static int places_of_row(const sample *s, const far *f, const values *v, const place *all, int n, int row, place *at) {
  double centre, size, slack;
  int count = 0;
  for (int i = 0; i < n; i++)
    if (place_of(f, v, all[i], s->first[row], &centre, &size, &slack)) at[count++] = all[i];
  return count;
}

static void draw_row(sample *s, const far *f, const values *v, place p, int row) {
  double centre, size, slack;
  (void)place_of(f, v, p, s->first[row], &centre, &size, &slack);
  for (int lane = s->first[row]; lane < s->first[row + 1]; lane++)
    s->score[lane] = centre + size * sample_draw_score(row, lane);
  s->slack[row] = slack;
  s->scaled[row] = p.factor >= 0;
  s->valid[row] = slack <= MOST_SLACK;
}

static bool *mark_under(sample *s, const ir *g, const ir_ref *roots, int n, ir_ref *top) {
  *top = IR_NONE;
  for (int i = 0; i < n; i++) *top = roots[i] > *top ? roots[i] : *top;
  bool *under = arena_array(s->a, (size_t)*top + 1, sizeof *under);
  for (int i = 0; under != NULL && i < n; i++) under[roots[i]] = true;
  for (ir_ref r = *top; under != NULL && r > IR_NONE; r--)
    for (int i = 0; under[r] && i < ir_get(g, r)->nargs; i++) under[ir_get(g, r)->arg[i]] = true;
  return under;
}

bool sample_far(sample *s, const ir *g, const ir_ref *roots, int n) {
  far f = {.num_numbers = 0};
  ir_ref top;
  const bool *under = mark_under(s, g, roots, n, &top);
  bool *given = arena_array(s->a, (size_t)top + 1, sizeof *given);
  if (under == NULL || given == NULL) return false;
  find_given(g, given, top);
  find_numbers(s, g, under, given, top, &f);

  place all[MAX_PLACES], at[MAX_PLACES];
  values v;
  const int num_places = list_places(&f, all);
  bool any = f.large_scalar;
  if (!evaluate(s, &f, &v)) return false;
  for (int r = 0; r < s->rows && !any; r++) any = places_of_row(s, &f, &v, all, num_places, r, at) > 0;
  if (!any) return true;
  if (!sample_extend(s, s->blocks + SAMPLE_FAR_BLOCKS) || !evaluate(s, &f, &v)) return false;
  for (int r = s->near_rows; r < s->rows; r++) {
    const int count = places_of_row(s, &f, &v, all, num_places, r, at);
    draw_row(s, &f, &v, count > 0 ? at[(r - s->near_rows) % count] : (place){-1, -1, 1}, r);
  }
  return true;
}

/* A row all of whose scores are that low. */
static bool is_low(const sample *s, int row) {
  for (int lane = s->first[row]; lane < s->first[row + 1]; lane++)
    if (s->score[lane] > -SAMPLE_LARGE) return false;
  return true;
}

/* Leaves out low rows on which a condition, of which near rows give one answer only, has the other one. */
static void leave_out(sample *s, const double *answer) {
  int first = -1;
  for (int lane = 0; lane < s->first[s->near_rows]; lane++) {
    if (!s->valid[s->row_of[lane]]) continue;
    if (first < 0) first = lane;
    if (answer[lane] != answer[first]) return;
  }
  for (int lane = s->first[s->near_rows]; lane < s->lanes && first >= 0; lane++)
    if (answer[lane] != answer[first] && is_low(s, s->row_of[lane])) s->valid[s->row_of[lane]] = false;
}

bool sample_leave_out_guards(sample *s, const ir *g, const ir_ref *roots, int n) {
  ir_ref top, condition[SAMPLE_EDGES];
  sample_lanes answer[SAMPLE_EDGES];
  const bool *under = mark_under(s, g, roots, n, &top);
  int count = 0;
  if (under == NULL) return false;
  for (ir_ref r = 1; r <= top && count < SAMPLE_EDGES && s->near_rows < s->rows; r++) {
    const uint16_t op = ir_get(g, r)->op;
    if (under[r] && (op == IR_LT || op == IR_LE || op == IR_EQ || op == IR_NE) && ir_uses(g, r, VAR_RED))
      condition[count++] = r;
  }
  if (!sample_eval(s, condition, count, answer)) return false;
  for (int i = 0; i < count; i++) leave_out(s, answer[i]);
  return true;
}
