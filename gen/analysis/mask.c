/* mask.c: a block_mask prepared for skipping tiles: ranges in closed form, block statistics, classes by
 * interval arithmetic. */
#include "common/fail.h"
#include "gen/analysis/analysis.h"
#include "gen/analysis/range.h"
#include "gen/base/text.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

#define MAX_STATS ((int)(sizeof((mask_info *)0)->stat / sizeof(mask_stat)))

#define RANGE_MAX_LENGTH (INT64_C(1) << 30) /* range.c cuts real bounds here */
#define MANY 16                             /* comparisons */
#define MAX_PERIOD (1 << 20)
#define LEAST_PERIOD 16                /* for shorter ones `keep` costs less (fwd_sm90.cuh) */
#define LONG_ENOUGH (INT64_C(1) << 24) /* lengths that a range must not cost a spec */

typedef struct stat_search {
  const traced_spec *t;
  const uint8_t *level;
  uint8_t *seen;
  mask_info *out;
} stat_search;

/* Loads of 32-bit integers whose last index is a position itself and whose other indices are the same for a
 * whole head. */
static void find_stats(stat_search *s, ir_ref r) {
  if (s->seen[r]) return;
  s->seen[r] = 1;
  const ir_node n = *ir_get(s->t->g, r);
  for (int i = 0; i < n.nargs; i++) find_stats(s, n.arg[i]);
  if (n.op != IR_LOAD || n.type != IR_INT || s->out->num_stats == MAX_STATS) return;
  if (s->t->input[n.imm.integer].dtype != LUATTN_INPUT_I32) return;
  const ir_ref last = n.arg[n.nargs - 1];
  const bool along_q = ir_is_var(s->t->g, last, VAR_Q);
  if (!along_q && !ir_is_var(s->t->g, last, VAR_KV)) return;
  for (int i = 0; i < n.nargs - 1; i++) {
    if (s->level[n.arg[i]] != LEVEL_HEAD) return;
  }
  const mask_stat stat = {.input = (int)n.imm.integer, .axis = n.nargs - 1, .along_q = along_q};
  for (int i = 0; i < s->out->num_stats; i++) {
    const mask_stat *old = &s->out->stat[i];
    if (old->input == stat.input && old->axis == stat.axis && old->along_q == stat.along_q) return;
  }
  s->out->stat[s->out->num_stats++] = stat;
}

/* A bound that says no more than the length does is none. */
static ir_ref useful_lo(const ir *g, ir_ref lo) {
  double c;
  return lo != IR_NONE && ir_is_const(g, lo, &c) && c <= 0 ? IR_NONE : lo;
}
static ir_ref useful_hi(const ir *g, ir_ref hi, ir_var len) {
  return hi != IR_NONE && ir_is_var(g, hi, len) ? IR_NONE : hi;
}

/* Of several, some of which may be none. */
static void simplify(ir *g, ir_ref *const to[4]) {
  ir_ref root[4];
  int n = 0;
  for (int i = 0; i < 4; i++) {
    if (*to[i] != IR_NONE) root[n++] = *to[i];
  }
  ir_simplify(g, root, n);
  n = 0;
  for (int i = 0; i < 4; i++) {
    if (*to[i] != IR_NONE) *to[i] = root[n++];
  }
}

static void find_ranges(ir *g, mask_info *out) {
  const range kv = range_of(g, out->keep, VAR_KV), q = range_of(g, out->keep, VAR_Q);
  out->kv_lo = kv.lo, out->kv_hi = kv.hi, out->q_lo = q.lo, out->q_hi = q.hi;
  simplify(g, (ir_ref *[4]){&out->kv_lo, &out->kv_hi, &out->q_lo, &out->q_hi});
  out->kv_lo = useful_lo(g, out->kv_lo);
  out->kv_hi = useful_hi(g, out->kv_hi, VAR_KV_LEN);
  out->q_lo = useful_lo(g, out->q_lo);
  out->q_hi = useful_hi(g, out->q_hi, VAR_Q_LEN);
}

/* e = kv * VAR_KV + something linear in q with constant factors. Shared subexpressions are walked again, up
 * to `work` nodes. */
typedef struct linear_walk {
  const ir *g;
  int kv, work;
} linear_walk;

static bool is_linear(linear_walk *w, ir_ref e, int sign) {
  const ir_node *n = ir_get(w->g, e);
  const bool has_kv = ir_uses(w->g, e, VAR_KV);
  double c;
  if (--w->work < 0) return false;
  if (!has_kv && !ir_uses(w->g, e, VAR_Q)) return true;
  switch (n->op) {
    case IR_VAR:
      w->kv += has_kv ? sign : 0;
      return true;
    case IR_NEG:
      return is_linear(w, n->arg[0], -sign);
    case IR_ADD:
    case IR_SUB:
      return is_linear(w, n->arg[0], sign) && is_linear(w, n->arg[1], n->op == IR_ADD ? sign : -sign);
    case IR_MUL:
      return !has_kv && ir_is_const(w->g, n->arg[1], &c) && is_linear(w, n->arg[0], sign);
    default:
      return false;
  }
}

/* A comparison that bounds kv from one side. For one row range.c only moves its terms to the other side, so
 * that the bounds of a conjunction of them are exact. */
static bool bounds_kv(const ir *g, ir_ref p) {
  const ir_node *n = ir_get(g, p);
  linear_walk w = {.g = g, .work = 64};
  if ((n->op != IR_LE && n->op != IR_LT) || ir_typeof(g, n->arg[0]) != IR_INT) return false;
  return is_linear(&w, n->arg[0], 1) && is_linear(&w, n->arg[1], -1) && (w.kv == 1 || w.kv == -1);
}

static bool is_interval(const ir *g, ir_ref p) {
  for (int i = 0; i < MANY; i++) {
    const ir_node *n = ir_get(g, p);
    if (n->op != IR_AND) return bounds_kv(g, p);
    const int chain = ir_get(g, n->arg[0])->op == IR_AND ? 0 : 1;
    if (!bounds_kv(g, n->arg[1 - chain])) return false;
    p = n->arg[chain];
  }
  return false;
}

/* ---- a row of a grid in row-major order ---- */

/* sign * atom + rest, where atom is kv // c or kv mod c with a constant c, and rest is free of kv */
typedef struct grid_walk {
  ir *g;
  ir_op op;
  int c, sign, work;
  ir_ref rest;
} grid_walk;

static bool collect(grid_walk *w, ir_ref e, int sign) {
  const ir_node n = *ir_get(w->g, e);
  double c;
  if (--w->work < 0) return false;
  if (!ir_uses(w->g, e, VAR_KV)) {
    w->rest = ir_op2(w->g, sign > 0 ? IR_ADD : IR_SUB, w->rest, e);
    return true;
  }
  switch (n.op) {
    case IR_NEG:
      return collect(w, n.arg[0], -sign);
    case IR_ADD:
    case IR_SUB:
      return collect(w, n.arg[0], sign) && collect(w, n.arg[1], n.op == IR_ADD ? sign : -sign);
    case IR_FLOORDIV:
    case IR_MOD:
      if (w->c > 0 || !ir_is_var(w->g, n.arg[0], VAR_KV) || !ir_is_const(w->g, n.arg[1], &c)) return false;
      if (c < 1 || c > MAX_PERIOD) return false;
      w->c = (int)c, w->sign = sign, w->op = (ir_op)n.op;
      return true;
    default:
      return false;
  }
}

/* What range.c bounds by its very value where q is known; with a remainder, which it does not, if `mod`. */
static bool is_known(const ir *g, ir_ref e, bool mod, int *work) {
  const ir_node *n = ir_get(g, e);
  double c;
  if (--*work < 0 || ir_uses(g, e, VAR_KV)) return false;
  if (n->op == IR_VAR || !ir_uses(g, e, VAR_Q)) return true;
  const bool by_constant = n->nargs == 2 && ir_is_const(g, n->arg[1], &c) && c > 0;
  switch (n->op) {
    case IR_ADD:
    case IR_SUB:
    case IR_MIN:
    case IR_MAX:
      return is_known(g, n->arg[0], mod, work) && is_known(g, n->arg[1], mod, work);
    case IR_NEG:
      return is_known(g, n->arg[0], mod, work);
    case IR_MOD:
    case IR_FLOORDIV:
    case IR_MUL:
      return by_constant && (mod || n->op != IR_MOD) && is_known(g, n->arg[0], mod, work);
    default:
      return false;
  }
}

/* A bound of kv mod period joins those in m; one of kv or kv // period is in kv_lo and kv_hi already. */
static bool joins_period(ir *g, ir_ref p, mask_info *m) {
  const ir_node n = *ir_get(g, p);
  grid_walk w = {.g = g, .work = 64, .rest = ir_int(g, 0)};
  int work = 64;
  if (bounds_kv(g, p)) return true;
  if ((n.op != IR_LE && n.op != IR_LT) || ir_typeof(g, n.arg[0]) != IR_INT) return false;
  if (!collect(&w, n.arg[0], 1) || !collect(&w, n.arg[1], -1) || w.c == 0) return false;
  if (!is_known(g, w.rest, w.op == IR_MOD, &work)) return false;
  if (w.op == IR_FLOORDIV) return true;
  if (m->period != 0 && m->period != w.c) return false;
  if (m->period == 0) m->rest_lo = ir_int(g, 0), m->rest_hi = ir_int(g, w.c);
  m->period = w.c;
  if (w.sign < 0) { /* rest <= kv mod c, or < */
    const ir_ref first = n.op == IR_LT ? ir_op2(g, IR_ADD, w.rest, ir_int(g, 1)) : w.rest;
    m->rest_lo = ir_op2(g, IR_MAX, m->rest_lo, first);
  } else {
    const ir_ref end = ir_op2(g, IR_SUB, ir_int(g, n.op == IR_LE ? 1 : 0), w.rest);
    m->rest_hi = ir_op2(g, IR_MIN, m->rest_hi, end);
  }
  return true;
}

/* A conjunction of bounds of kv, of kv // c and of kv mod c: in each row of a grid, an interval. */
static void find_period(ir *g, mask_info *m) {
  ir_ref p = m->keep;
  bool all = true;
  for (int i = 0; i < MANY && all && ir_get(g, p)->op == IR_AND; i++) {
    const ir_node n = *ir_get(g, p);
    const int chain = ir_get(g, n.arg[0])->op == IR_AND ? 0 : 1;
    all = joins_period(g, n.arg[1 - chain], m);
    p = n.arg[chain];
  }
  if (!all || !joins_period(g, p, m) || m->period < LEAST_PERIOD) {
    m->period = 0;
    return;
  }
  const ir_ref q = ir_variable(g, VAR_Q, 0), q0 = ir_variable(g, VAR_TILE, VAR_Q0);
  ir_ref root[2] = {ir_substitute(g, m->rest_lo, &q, &q0, 1), ir_substitute(g, m->rest_hi, &q, &q0, 1)};
  ir_simplify(g, root, 2);
  m->rest_lo = root[0], m->rest_hi = root[1];
}

static ir_ref conjoin(ir *g, ir_ref p, ir_ref q) { return p == IR_NONE ? q : ir_op2(g, IR_AND, p, q); }

/* What a conjunction says besides bounds of kv, if it has some, and these. */
static void find_rest(ir *g, mask_info *m) {
  ir_ref rest = IR_NONE, bounds = IR_NONE, p = m->keep;
  for (int i = 0; i < MANY && p != IR_NONE; i++) {
    const ir_node n = *ir_get(g, p);
    const int chain = n.op != IR_AND ? -1 : ir_get(g, n.arg[0])->op == IR_AND ? 0 : 1;
    const ir_ref part = chain < 0 ? p : n.arg[1 - chain];
    if (bounds_kv(g, part))
      bounds = conjoin(g, bounds, part);
    else
      rest = conjoin(g, rest, part);
    p = chain < 0 ? IR_NONE : n.arg[chain];
  }
  if (bounds != IR_NONE && p == IR_NONE) m->rest = rest, m->bounds = bounds;
}

static const char *side_text(ir_ref lo, ir_ref hi) {
  if (lo != IR_NONE && hi != IR_NONE) return "bounded on both sides";
  return lo != IR_NONE ? "bounded below" : hi != IR_NONE ? "bounded above" : "not bounded";
}

static const char *describe(arena *a, const traced_spec *t, const mask_info *m) {
  text how;
  text_init(&how, a);
  if (m->keep == IR_NONE) {
    text_add(&how, "no mask: every tile is full");
    return text_get(&how);
  }
  text_add(&how,
           "kv of a q tile: %s; q of a kv tile: %s; tiles inside are classified by interval arithmetic%s",
           side_text(m->kv_lo, m->kv_hi), side_text(m->q_lo, m->q_hi),
           m->is_interval  ? "; kv of a row: an interval"
           : m->period > 0 ? "; kv of a row: an interval in each row of a grid"
                           : "");
  if (m->columns.known)
    text_add(&how, "; q of a column: an interval%s%s", m->columns.period > 0 ? " in each row of a grid" : "",
             m->columns.apart ? ", in tiles where the rest of the mask holds" : "");
  for (int i = 0; i < m->num_stats; i++) {
    text_add(&how, "%s '%s' along %s", i == 0 ? "; block minima and maxima of" : ",",
             t->input[m->stat[i].input].name, m->stat[i].along_q ? "q" : "kv");
  }
  return text_get(&how);
}

static void find_columns(ir *g, mask_info *out) {
  mask_columns *c = &out->columns;
  *c = mask_columns_of(g, out->keep, out->rest);
  if (!c->known) return;
  simplify(g, (ir_ref *[4]){&c->lo, &c->hi, &c->rest_lo, &c->rest_hi});
  c->lo = useful_lo(g, c->lo);
  c->hi = useful_hi(g, c->hi, VAR_Q_LEN);
}

/* The spec's own integer arithmetic sets max_len. A range that would overflow at lengths in use is given up
 * instead. */
static void limit_lengths(const traced_spec *t, mask_info *m) {
  const ir_ref candidate[] = {m->keep,      t->score_mod,   t->query_mod, t->key_mod,
                              t->value_mod, t->online.prob, t->online.out};
  ir_ref root[sizeof candidate / sizeof candidate[0]], *side[4] = {&m->kv_lo, &m->kv_hi, &m->q_lo, &m->q_hi};
  int n = 0;
  for (size_t i = 0; i < sizeof candidate / sizeof candidate[0]; i++) {
    if (candidate[i] != IR_NONE) root[n++] = candidate[i];
  }
  m->max_len = ir_int_limit(t->g, root, n);
  for (int i = 0; i < 4; i++) {
    if (*side[i] == IR_NONE || m->max_len < 0) continue;
    if (m->max_len > RANGE_MAX_LENGTH) m->max_len = RANGE_MAX_LENGTH;
    const int64_t limit = ir_int_limit(t->g, side[i], 1);
    if (limit < 0) m->max_len = -1; /* out of memory, as the caller sees */
    if (limit < m->max_len && limit < LONG_ENOUGH) {
      *side[i] = IR_NONE;
      m->is_interval = false;
      m->period = 0;
      m->rest = IR_NONE;
    } else if (limit < m->max_len) {
      m->max_len = limit;
    }
  }
  const ir_ref column[4] = {m->columns.lo, m->columns.hi, m->columns.rest_lo, m->columns.rest_hi};
  for (int i = 0; i < 4; i++) {
    if (column[i] == IR_NONE || m->max_len < 0 || !m->columns.known) continue;
    const int64_t limit = ir_int_limit(t->g, &column[i], 1);
    if (limit < 0) m->max_len = -1;
    if (limit < m->max_len) m->columns = (mask_columns){.known = false};
  }
}

luattn_status mask_analyse(arena *a, const traced_spec *t, mask_info *out, luattn_error *err) {
  ir *g = t->g;
  mask_info m = {.keep = t->block_mask};
  if (m.keep != IR_NONE) {
    ir_simplify(g, &m.keep, 1);
    const ir_node *n = ir_get(g, m.keep);
    if (n->op == IR_CONST_BOOL && n->imm.integer) m.keep = IR_NONE;
  }
  if (m.keep != IR_NONE) {
    stat_search search = {.t = t, .out = &m};
    uint8_t *level = arena_array(a, ir_count(g), 1);
    search.seen = arena_array(a, ir_count(g), 1);
    search.level = level;
    if (level == NULL || search.seen == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "%s: block_mask: out of memory", t->file);
    analyse_levels(g, level);
    find_stats(&search, m.keep);
    m.is_interval = is_interval(g, m.keep);
    find_ranges(g, &m);
    if (!m.is_interval) find_period(g, &m);
    if (!m.is_interval && m.period == 0) find_rest(g, &m);
    find_columns(g, &m);
  }
  limit_lengths(t, &m);
  m.how = describe(a, t, &m);
  if (ir_failed(g) || m.max_len < 0 || m.how == NULL) {
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: block_mask: out of memory", t->file);
  }
  *out = m;
  return LUATTN_OK;
}

int mask_tile_class(const ir *g, const mask_info *m, const ir_bounds_env *env, ir_bounds *scratch) {
  if (m->keep == IR_NONE) return 2;
  ir_bounds keep;
  ir_interval(g, &m->keep, 1, env, scratch, &keep);
  return !keep.boolean.can_be_true ? 0 : keep.boolean.can_be_false ? 1 : 2;
}
