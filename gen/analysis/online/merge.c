/* merge.c: derives the merge of two online states, by letting a step of one part meet the other's state.
 *
 * A step turns the state and the reductions of new scores into the next state. Where the new scores are those of
 * another part, their reductions are known from that part's state: a maximum is the state that keeps it, a sum
 * the state that keeps it, or exp or exp2 of a state that keeps its logarithm. Where sums are of terms that read
 * a maximum, as softmax's, each part's is brought to the joint maximum as a step brings it, by next() with
 * sums of zero, and both are added. Each of these ways is tried on random rows, and what these do not refute is proved
 * (merge_proof.c).
 */
#include "gen/analysis/online/merge.h"

#include <math.h>

#include "common/fail.h"
#include "gen/analysis/online/merge_proof.h"
#include "gen/analysis/online/steps.h"
#include "gen/ir/passes.h"

enum { PARTS = 3 };

/* How the other part's sums are found. */
typedef enum way { BY_ADDING, KEPT, KEPT_LOG, KEPT_LOG2, NUM_WAYS } way;

typedef struct merger {
  derivation d;
  sample_lanes init[SPEC_MAX_STATE];
  int keeper[SPEC_MAX_RED];           /* the state that keeps reduction k; -1: none */
  bool is_fed[SPEC_MAX_STATE];        /* by a sum */
  sample_lanes state[SPEC_MAX_STATE]; /* of the parts merged so far */
  sample_lanes p;                     /* prob, with the factors of merges so far */
  bool any[SAMPLE_ROWS];              /* a part so far has scores of the row */
  const online_merge *merge;
} merger;

/* The sum of the new scores that leaves state i at `kept` after a step from the initial state. */
static ir_ref sum_of(merger *m, way how, int i, ir_ref kept) {
  ir *g = m->d.g;
  if (how == KEPT) return ir_op2(g, IR_SUB, kept, m->d.o->init[i]);
  return ir_op1(g, how == KEPT_LOG ? IR_EXP : IR_EXP2, kept);
}

/* Says whether reduction k is known from what state i is after a step. */
static bool keeps(merger *m, way how, int i, int k) {
  derivation *d = &m->d;
  if (d->step.kind[k] == IR_REDUCE_MAX) {
    const ir_ref old = ir_variable(d->g, VAR_STATE, (uint32_t)i);
    return separate_equal(d, d->step.next[i], ir_op2(d->g, IR_MAX, old, d->red[k]));
  }
  return how != BY_ADDING && separate_equal(d, sum_of(m, how, i, d->next[i]), d->red[k]);
}

static bool reads(derivation *d, ir_ref x, ir_ref leaf) {
  const ir_ref zero = ir_real(d->g, 0);
  return ir_substitute(d->g, x, &leaf, &zero, 1) != x;
}

static void find_keepers(merger *m, way how) {
  derivation *d = &m->d;
  for (int k = 0; k < d->num_red; k++) {
    m->keeper[k] = -1;
    for (int i = 0; i < d->o->num_state; i++) {
      if (!reads(d, d->step.next[i], d->red[k])) continue;
      m->is_fed[i] |= d->step.kind[k] == IR_REDUCE_SUM;
      if (m->keeper[k] < 0 && keeps(m, how, i, k)) m->keeper[k] = i;
    }
  }
}

/* x, an expression of a step of the part `mine`, where the new scores are those of the part `theirs`. */
static ir_ref met(merger *m, way how, ir_ref x, const ir_ref *mine, const ir_ref *theirs) {
  derivation *d = &m->d;
  ir *g = d->g;
  ir_ref from[SPEC_MAX_STATE + SPEC_MAX_RED], to[SPEC_MAX_STATE + SPEC_MAX_RED];
  int n = 0;
  for (int i = 0; i < d->o->num_state; i++) {
    from[n] = ir_variable(g, VAR_STATE, (uint32_t)i);
    to[n++] = mine[i];
  }
  for (int k = 0; k < d->num_red; k++) {
    const int i = m->keeper[k];
    from[n] = d->red[k];
    if (i < 0)
      to[n++] = ir_real(g, 0);
    else
      to[n++] = d->step.kind[k] == IR_REDUCE_MAX ? theirs[i] : sum_of(m, how, i, theirs[i]);
  }
  return ir_substitute(g, x, from, to, n);
}

/* Whether x is 0 on all rows that count. */
static bool is_zero(merger *m, ir_ref x) {
  const sample_lanes *value = derivation_eval(&m->d, &x, 1);
  for (int i = 0; value != NULL && i < m->d.s->lanes; i++)
    if (m->d.s->valid[m->d.s->row_of[i]] && (*value)[i] != 0) return false;
  return value != NULL;
}

/* Composes the merge in one way. What the initial state adds to a sum counts once, not twice. */
static void compose(merger *m, way how, online_merge *out) {
  find_keepers(m, how);
  derivation *d = &m->d;
  ir *g = d->g;
  const int n = d->o->num_state;
  ir_ref mine[SPEC_MAX_STATE], theirs[SPEC_MAX_STATE], larger[SPEC_MAX_STATE], root[SPEC_MAX_STATE + 2];
  for (int i = 0; i < n; i++) {
    mine[i] = ir_variable(g, VAR_STATE, (uint32_t)i);
    theirs[i] = ir_variable(g, VAR_OTHER, (uint32_t)i);
    larger[i] = ir_op2(g, IR_MAX, mine[i], theirs[i]);
  }
  for (int i = 0; i < n; i++) {
    const ir_ref next = d->step.next[i];
    root[i] = met(m, how, next, mine, theirs);
    if (!m->is_fed[i] || how != BY_ADDING) continue;
    root[i] = ir_op2(g, IR_ADD, root[i], met(m, how, next, theirs, mine));
    if (!is_zero(m, met(m, how, next, d->o->init, mine)))
      root[i] = ir_op2(g, IR_SUB, root[i], met(m, how, next, d->o->init, larger));
  }
  root[n] = met(m, how, d->step.rescale, mine, theirs);
  root[n + 1] = met(m, how, d->step.rescale, theirs, mine);
  derivation_simplify(d, root, n + 2);
  for (int i = 0; i < n; i++) out->state[i] = root[i];
  out->factor = root[n];
  out->other_factor = root[n + 1];
}

/* Computes a part of every row from the initial state: s->state after it, and prob of its scores into m->p. */
static bool take_part(merger *m, const uint8_t *part, int which) {
  derivation *d = &m->d;
  sample *s = d->s;
  const int n = d->o->num_state;
  for (int i = 0; i < n; i++) s->state[i] = m->init[i];
  if (!sample_reduce(s, d->step.kind, d->step.term, d->num_red, part, which)) return false;
  ir_ref root[1 + SPEC_MAX_STATE] = {d->step.prob};
  for (int i = 0; i < n; i++) root[1 + i] = d->step.next[i];
  const sample_lanes *x = derivation_eval(d, root, 1 + n);
  if (x == NULL) return false;
  for (int lane = 0; lane < s->lanes; lane++)
    if (part[lane] == which) m->p[lane] = x[0][lane];
  for (int i = 0; i < n; i++) s->state[i] = x[1 + i];
  return true;
}

/* Merges the part that was just taken with those before it. */
static bool merge_part(merger *m, const uint8_t *part, int which) {
  derivation *d = &m->d;
  sample *s = d->s;
  const int n = d->o->num_state;
  bool has[SAMPLE_ROWS] = {false};
  for (int lane = 0; lane < s->lanes; lane++) has[s->row_of[lane]] |= part[lane] == which;
  for (int i = 0; i < n; i++) {
    s->other[i] = s->state[i];
    s->state[i] = m->state[i];
  }
  ir_ref root[2 + SPEC_MAX_STATE] = {m->merge->factor, m->merge->other_factor};
  for (int i = 0; i < n; i++) root[2 + i] = m->merge->state[i];
  const sample_lanes *x = derivation_eval(d, root, 2 + n);
  if (x == NULL) return false;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (!has[r]) continue;
    for (int i = 0; i < n; i++) m->state[i][lane] = m->any[r] ? x[2 + i][lane] : s->other[i][lane];
    if (m->any[r] && part[lane] <= which) m->p[lane] *= part[lane] == which ? x[1][lane] : x[0][lane];
  }
  for (int r = 0; r < s->rows; r++) m->any[r] |= has[r];
  return true;
}

/* Rounding may leave nothing of what is added to an extreme scalar: such rows refute nothing that is proved. */
static bool is_compared(const sample *s, int row) {
  return s->valid[row] && !s->scaled[row] && !s->extreme[row] && (row < SAMPLE_FIRST_ROWS || row >= s->near_rows);
}

/* What a merged row gives, beside the whole row's. */
typedef struct difference {
  int lane; /* -1: none */
  const char *what;
  double whole, merged;
} difference;

static void compare(const merger *m, const sample_lanes *x, difference *out) {
  const derivation *d = &m->d;
  const sample *s = d->s;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (!is_compared(s, r)) continue;
    const double p = m->p[lane] * x[0][lane];
    if (!derivation_close(p, d->p_value[lane], s->slack[r])) {
      *out = (difference){lane, "prob", d->p_value[lane], p};
      return;
    }
    for (int i = 0; i < d->o->num_final; i++) {
      const double whole = s->final[i][lane], merged = x[1 + i][lane];
      if (derivation_close(merged, whole, s->slack[r]) || (merged - whole < 1e-9 && whole - merged < 1e-9)) continue;
      *out = (difference){lane, d->o->final_name[i], whole, merged};
      return;
    }
  }
}

/* Cuts every row in three: the part of each lane. NULL: out of memory. */
static uint8_t *cut_rows(merger *m) {
  derivation *d = &m->d;
  sample *s = d->s;
  uint8_t *part = arena_array(d->a, (size_t)s->lanes, 1);
  m->p = sample_buffer(s);
  if (part == NULL || m->p == NULL) return NULL;
  for (int r = 0; r < s->rows; r++) {
    m->any[r] = false;
    const int first = s->first[r], count = s->first[r + 1] - first;
    for (int i = 0; i < count; i++) part[first + i] = (uint8_t)(i * PARTS / count);
  }
  return part;
}

/* Merges three parts of every sampled row, and compares. False: out of memory. */
static bool try_merge(merger *m, const online_merge *merge, difference *out) {
  derivation *d = &m->d;
  sample *s = d->s, *whole = arena_new(d->a, sizeof *whole);
  if (whole == NULL) return false;
  *whole = *s;
  *out = (difference){.lane = -1};
  m->merge = merge;
  const uint8_t *part = cut_rows(m);
  bool ok = part != NULL;
  for (int i = 0; i < d->o->num_state; i++) ok = (m->state[i] = sample_buffer(s)) != NULL && ok;
  for (int which = 0; which < PARTS && ok; which++) ok = take_part(m, part, which) && merge_part(m, part, which);
  if (!ok) return false;
  for (int i = 0; i < d->o->num_state; i++) s->state[i] = m->state[i];
  const ir_ref scaled = ir_variable(d->g, VAR_OUT, 0), one = ir_real(d->g, 1);
  ir_ref root[1 + SPEC_MAX_FINAL];
  ir_grad(d->g, &d->o->out, &one, 1, &scaled, &root[0], 1);
  for (int i = 0; i < d->o->num_final; i++) root[1 + i] = d->o->final[i];
  const sample_lanes *x = derivation_eval(d, root, 1 + d->o->num_final);
  *s = *whole;
  if (x != NULL) compare(m, x, out);
  return x != NULL;
}

static luattn_status refuse(const merger *m, const difference *first) {
  const derivation *d = &m->d;
  const int r = d->s->row_of[first->lane];
  return luattn_fail(d->err, LUATTN_UNSUPPORTED,
                     "%s: online_func '%s': parts of a row cannot be merged: in a row of %.0f scores, the whole row "
                     "gives %s = %.9g for score %.6g, and its parts give %.9g; update each row scalar by max(old, "
                     "reduce_max(..)) or by old * factor + reduce_sum(..), where the factor is of maxima",
                     d->t->file, d->o->name, sample_row_length(d->s, r), first->what, first->whole,
                     d->s->score[first->lane], first->merged);
}

static luattn_status unproved(const derivation *d) {
  return luattn_fail(
      d->err, LUATTN_UNSUPPORTED,
      "%s: online_func '%s': parts of a row cannot be merged: no rule is proved to give what the whole row gives; "
      "update each row scalar by max(old, reduce_max(..)) or by old * factor + reduce_sum(..), where the factor is of "
      "maxima",
      d->t->file, d->o->name);
}

/* Evaluates whole rows, and the initial states. */
static luattn_status open_merger(arena *scratch, const traced_spec *t, merger **out, luattn_error *err) {
  merger *m = *out = arena_new(scratch, sizeof *m);
  sample *s = arena_new(scratch, sizeof *s);
  text *how = arena_new(scratch, sizeof *how);
  if (m == NULL || s == NULL || how == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  text_init(how, scratch);
  derivation *d = &m->d;
  *d = (derivation){.a = scratch, .t = t, .o = &t->online, .g = t->g, .how = how, .err = err, .s = s};
  if (!sample_init(s, scratch, t)) return derivation_no_memory(d);
  TRY(whole_run(d));
  TRY(whole_find_slack(d));
  const sample_lanes *init = derivation_eval(d, t->online.init, t->online.num_state);
  if (init == NULL) return derivation_no_memory(d);
  for (int i = 0; i < t->online.num_state; i++) {
    m->init[i] = init[i];
    s->other[i] = s->zeros;
  }
  return LUATTN_OK;
}

luattn_status merge_derive(arena *scratch, const traced_spec *t, online_merge *out, luattn_error *err) {
  merger *m;
  TRY(open_merger(scratch, t, &m, err));
  derivation *d = &m->d;
  difference first = {.lane = -1};
  for (int how_sums = BY_ADDING; how_sums < NUM_WAYS; how_sums++) {
    difference found;
    compose(m, (way)how_sums, out);
    if (derivation_failed(d) || !try_merge(m, out, &found)) return derivation_no_memory(d);
    if (found.lane < 0 && parts_merge_by_state(d, out)) return LUATTN_OK;
    if (derivation_failed(d)) return derivation_no_memory(d);
    if (first.lane < 0) first = found;
  }
  return first.lane < 0 ? unproved(d) : refuse(m, &first);
}

/* ---- finished ---- */

/* r without the factors that do not depend on the state. */
static ir_ref of_state(ir *g, ir_ref r) {
  const ir_node n = *ir_get(g, r);
  if (!ir_uses(g, r, VAR_STATE)) return ir_real(g, 1);
  if (n.op == IR_NEG) return of_state(g, n.arg[0]);
  if (n.op != IR_MUL && n.op != IR_DIV) return r;
  const ir_ref x = of_state(g, n.arg[0]), y = of_state(g, n.arg[1]);
  return ir_op2(g, (ir_op)n.op, x, y);
}

ir_ref merge_scale(ir *g, const traced_online *o) {
  const ir_ref sum = ir_variable(g, VAR_OUT, 0), one = ir_real(g, 1);
  ir_ref scale = ir_substitute(g, o->out, &sum, &one, 1);
  ir_simplify(g, &scale, 1);
  return of_state(g, scale);
}

/* A lane of the part whose factor is 0 or infinite; -1: none. */
static int lost_lane(const merger *m, const uint8_t *part, int which, const double *scale) {
  const sample *s = m->d.s;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (part[lane] != which || !s->valid[r] || s->scaled[r] || (r >= SAMPLE_FIRST_ROWS && r < s->near_rows)) continue;
    if (scale[lane] == 0 || !isfinite(scale[lane])) return lane;
  }
  return -1;
}

luattn_status merge_test_finished(arena *scratch, const traced_spec *t, luattn_error *err) {
  merger *m;
  TRY(open_merger(scratch, t, &m, err));
  derivation *d = &m->d;
  const uint8_t *part = cut_rows(m);
  const ir_ref factor = merge_scale(d->g, d->o);
  for (int which = 0; which < PARTS; which++) {
    const sample_lanes *scale = part != NULL && take_part(m, part, which) ? derivation_eval(d, &factor, 1) : NULL;
    if (scale == NULL) return derivation_no_memory(d);
    const int lane = lost_lane(m, part, which, *scale);
    if (lane < 0) continue;
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': finished parts of a row cannot be merged: online_fwd_epilogue gives %.9g "
                       "times the sum of a part whose first "
                       "score is %.6g, which leaves nothing to merge; give a factor that is neither 0 nor infinite",
                       t->file, t->online.name, (*scale)[lane], d->s->score[lane]);
  }
  const bool proved = parts_keep_sums(d, factor);
  if (derivation_failed(d)) return derivation_no_memory(d);
  if (proved) return LUATTN_OK;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "%s: online_func '%s': finished parts of a row cannot be merged: online_fwd_epilogue's factor of o is not shown "
      "to be neither 0 nor "
      "infinite, and where it is, nothing is left to merge; give a factor that is not, as 1 / (1 + abs(l))",
      t->file, t->online.name);
}

/* ---- by lse ---- */

/* What a part gives once it is finished: of each lane in it P, of each row its lse. */
typedef struct finished {
  double *p, lse[PARTS][SAMPLE_ROWS];
  bool has[PARTS][SAMPLE_ROWS];
} finished;

static bool finish_part(merger *m, const uint8_t *part, int which, finished *out) {
  derivation *d = &m->d;
  const sample *s = d->s;
  const ir_ref scaled = ir_variable(d->g, VAR_OUT, 0), one = ir_real(d->g, 1);
  ir_ref root[2] = {IR_NONE, d->o->final[d->o->lse]};
  if (!take_part(m, part, which)) return false;
  ir_grad(d->g, &d->o->out, &one, 1, &scaled, &root[0], 1);
  const sample_lanes *x = derivation_eval(d, root, 2);
  if (x == NULL) return false;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (part[lane] != which) continue;
    out->has[which][r] = true;
    out->p[lane] = m->p[lane] * x[0][lane];
    out->lse[which][r] = x[1][lane];
  }
  return true;
}

static double lse_of_row(const finished *f, int r) {
  double largest = -INFINITY, sum = 0;
  for (int which = 0; which < PARTS; which++)
    if (f->has[which][r]) largest = fmax(largest, f->lse[which][r]);
  for (int which = 0; which < PARTS; which++)
    if (f->has[which][r]) sum += exp(f->lse[which][r] - largest);
  return largest + log(sum);
}

static void compare_finished(const merger *m, const uint8_t *part, const finished *f, difference *out) {
  const derivation *d = &m->d;
  const sample *s = d->s;
  for (int lane = 0; lane < s->lanes; lane++) {
    const int r = s->row_of[lane];
    if (!is_compared(s, r)) continue;
    const double lse = lse_of_row(f, r), p = f->p[lane] * exp(f->lse[part[lane]][r] - lse),
                 whole = s->final[d->o->lse][lane];
    if (!derivation_close(p, d->p_value[lane], s->slack[r]))
      *out = (difference){lane, "P", d->p_value[lane], p};
    else if (!derivation_close(lse, whole, s->slack[r]) && !(lse - whole < 1e-9 && whole - lse < 1e-9))
      *out = (difference){lane, "lse", whole, lse};
    else
      continue;
    return;
  }
}

luattn_status merge_test_lse(arena *scratch, const traced_spec *t, luattn_error *err) {
  merger *m;
  difference found = {.lane = -1};
  if (t->online.lse < 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': has no lse, by which parts of a row could be merged", t->file,
                       t->online.name);
  TRY(open_merger(scratch, t, &m, err));
  derivation *d = &m->d;
  sample *s = d->s, *whole = arena_new(scratch, sizeof *whole);
  finished *f = arena_new(scratch, sizeof *f);
  if (whole == NULL || f == NULL) return derivation_no_memory(d);
  *whole = *s;
  const uint8_t *part = cut_rows(m);
  bool ok = part != NULL && (f->p = sample_buffer(s)) != NULL;
  for (int which = 0; which < PARTS && ok; which++) ok = finish_part(m, part, which, f);
  *s = *whole;
  if (!ok || derivation_failed(d)) return derivation_no_memory(d);
  compare_finished(m, part, f, &found);
  if (found.lane < 0 && parts_merge_by_lse(d)) return LUATTN_OK;
  if (derivation_failed(d)) return derivation_no_memory(d);
  if (found.lane < 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: online_func '%s': parts of a row do not merge by their lse: it is not proved that they "
                       "give what the whole row "
                       "gives; merge them by their state (luattn_spec_parts)",
                       t->file, t->online.name);
  const int r = s->row_of[found.lane];
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "%s: online_func '%s': parts of a row do not merge by their lse: in a row of %.0f scores, the whole row gives %s "
      "= "
      "%.9g for score %.6g, and its parts give %.9g; what a row has besides its scores, such as a sink, is in each "
      "part",
      t->file, t->online.name, sample_row_length(s, r), found.what, found.whole, s->score[found.lane], found.merged);
}
