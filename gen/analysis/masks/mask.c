/* mask.c: prepares a block_mask for tile skipping: ranges in closed form, block statistics, classes by
 * interval arithmetic. */
#include "common/fail.h"
#include "gen/analysis/masks/mask.h"
#include "gen/analysis/masks/range.h"
#include "gen/base/text.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

#define MAX_BOUNDS 6 /* per row or column */
#define MAX_STATS ((int)(sizeof((mask_info *)0)->stat / sizeof(mask_stat)))

#define RANGE_MAX_LENGTH (INT64_C(1) << 30) /* range.c cuts real bounds here */
#define LONG_ENOUGH (INT64_C(1) << 24)      /* a range must not limit lengths below this */

typedef struct stat_search {
  const traced_spec *t;
  const uint8_t *level;
  uint8_t *seen;
  mask_info *out;
} stat_search;

int mask_find_stat(const mask_info *m, mask_stat like) {
  for (int i = 0; i < m->num_stats; i++) {
    const mask_stat *s = &m->stat[i];
    if (s->input == like.input && s->axis == like.axis && s->along_q == like.along_q && s->is_set == like.is_set)
      return i;
  }
  return -1;
}

static void add_stat(mask_info *m, mask_stat stat) {
  if (m->num_stats < MAX_STATS && mask_find_stat(m, stat) < 0) m->stat[m->num_stats++] = stat;
}

/* Whether r loads integers or flags, with a position as the last index and others that are constant per head. */
static bool is_stat(const stat_search *s, ir_ref r, mask_stat *out) {
  const ir_node *n = ir_get(s->t->g, r);
  if (n->op != IR_LOAD || n->type == IR_REAL) return false;
  const ir_ref last = n->arg[n->nargs - 1];
  const bool along_q = ir_is_var(s->t->g, last, VAR_Q);
  if (!along_q && !ir_is_var(s->t->g, last, VAR_KV)) return false;
  for (int i = 0; i < n->nargs - 1; i++)
    if (s->level[n->arg[i]] != LEVEL_HEAD) return false;
  *out = (mask_stat){.input = (int)ir_index_of(n), .axis = n->nargs - 1, .along_q = along_q};
  return true;
}

static void find_stats(stat_search *s, ir_ref r) {
  if (s->seen[r]) return;
  s->seen[r] = 1;
  const ir_node n = *ir_get(s->t->g, r);
  mask_stat stat;
  for (int i = 0; i < n.nargs; i++) find_stats(s, n.arg[i]);
  if (is_stat(s, r, &stat)) add_stat(s->out, stat);
}

/* Sets of the integers of queries that are compared with those of keys; both, or neither. */
static void find_sets(stat_search *s) {
  const ir *g = s->t->g;
  for (ir_ref r = 1; r <= s->out->keep; r++) {
    const ir_node *n = ir_get(g, r);
    mask_stat x, y;
    if (!s->seen[r] || n->op != IR_EQ || ir_typeof(g, n->arg[0]) != IR_INT) continue;
    if (!is_stat(s, n->arg[0], &x) || !is_stat(s, n->arg[1], &y) || x.along_q == y.along_q) continue;
    x.is_set = y.is_set = true;
    if (s->out->num_stats + 2 > MAX_STATS) continue;
    add_stat(s->out, x), add_stat(s->out, y);
  }
}

/* Drops bounds no tighter than the length. */
static ir_ref useful_lo(const ir *g, ir_ref lo) {
  double c;
  return lo != IR_NONE && ir_is_const(g, lo, &c) && c <= 0 ? IR_NONE : lo;
}
static ir_ref useful_hi(const ir *g, ir_ref hi, ir_var len) {
  return hi != IR_NONE && ir_is_var(g, hi, len) ? IR_NONE : hi;
}

/* The tightest of several bounds, some of which may be IR_NONE. */
static void simplify(ir *g, int count, ir_ref *const to[]) {
  ir_ref root[MAX_BOUNDS];
  int n = 0;
  for (int i = 0; i < count; i++) {
    if (*to[i] != IR_NONE) root[n++] = *to[i];
  }
  ir_simplify(g, root, n);
  n = 0;
  for (int i = 0; i < count; i++) {
    if (*to[i] != IR_NONE) *to[i] = root[n++];
  }
}

static void find_ranges(ir *g, mask_info *out) {
  const range kv = range_of(g, out->keep, VAR_KV), q = range_of(g, out->keep, VAR_Q);
  out->kv_lo = kv.lo, out->kv_hi = kv.hi, out->q_lo = q.lo, out->q_hi = q.hi;
  simplify(g, 4, (ir_ref *[]){&out->kv_lo, &out->kv_hi, &out->q_lo, &out->q_hi});
  out->kv_lo = useful_lo(g, out->kv_lo);
  out->kv_hi = useful_hi(g, out->kv_hi, VAR_KV_LEN);
  out->q_lo = useful_lo(g, out->q_lo);
  out->q_hi = useful_hi(g, out->q_hi, VAR_Q_LEN);
}

static const char *side_text(ir_ref lo, ir_ref hi) {
  if (lo != IR_NONE && hi != IR_NONE) return "bounded on both sides";
  return lo != IR_NONE ? "bounded below" : hi != IR_NONE ? "bounded above" : "not bounded";
}

static void describe_intervals(text *how, const char *name, const mask_intervals *m) {
  static const char *const kept[2] = {"an interval", "two intervals"};
  if (m->count == 0) return;
  text_add(how, "; %s: %s", name, kept[m->count - 1]);
  if (m->period > 0) text_add(how, ", of that an interval modulo %d", m->period);
  if (m->apart) text_add(how, ", in tiles where the rest of the mask holds");
}

static void describe_evaluated(text *how, const traced_spec *t, const mask_info *m) {
  const mask_evaluated *e = &m->evaluated;
  if (!e->is) return;
  const char *what = "arithmetic on positions";
  if (e->why != IR_NONE)
    text_add(how, "; '%s'", t->input[ir_index_of(ir_get(t->g, e->why))].name), what = "";
  else
    text_add(how, "; ");
  text_add(how, "%s does not decide tiles: evaluated %s for cells of %d x %d%s%s", what,
           e->rows * e->columns > 1 ? "in blocks" : "element by element", MASK_CELL, MASK_CELL,
           e->by_batch ? ", for each batch entry" : "", e->by_head ? ", for each head" : "");
  if (e->rows * e->columns > 1) text_add(how, ", constant on %d x %d", e->rows, e->columns);
  if (e->cell != IR_NONE) text_add(how, ", unless what it reads once a cell decides that");
}

static void describe_axes(text *how, const traced_spec *t, const mask_info *m) {
  bool exact = m->is_product;
  for (int i = 0; i < m->num_axes; i++) {
    const mask_axis *axis = &m->axis[i];
    text_add(how, "%s: kv of a q box: %s, q of a kv box: %s; ", t->grid_axis[i], side_text(axis->kv_lo, axis->kv_hi),
             side_text(axis->q_lo, axis->q_hi));
    if (axis->step > 1) text_add(how, "boxes take every %d-th place along %s; ", axis->step, t->grid_axis[i]);
    exact &= axis->rows.count > 0;
  }
  text_add(how, "boxes inside are classified by interval arithmetic; %s",
           exact           ? "of a query an interval along each axis"
           : m->is_product ? "a product of axes"
                           : "no product of axes");
}

static const char *describe(arena *a, const traced_spec *t, const mask_info *m) {
  text how;
  text_init(&how, a);
  if (m->num_axes > 0 && m->keep != IR_NONE) {
    describe_axes(&how, t, m);
    return text_get(&how);
  }
  if (m->keep == IR_NONE) {
    text_add(&how, "no mask: every tile is full");
    return text_get(&how);
  }
  text_add(&how, "kv of a q tile: %s; q of a kv tile: %s; tiles inside are classified by interval arithmetic",
           side_text(m->kv_lo, m->kv_hi), side_text(m->q_lo, m->q_hi));
  describe_intervals(&how, "kv of a row", &m->rows);
  describe_intervals(&how, "q of a column", &m->columns);
  for (int i = 0; i < m->num_stats; i++) {
    if (m->stat[i].is_set) continue;
    text_add(&how, "%s '%s' along %s", i == 0 ? "; block minima and maxima of" : ",", t->input[m->stat[i].input].name,
             m->stat[i].along_q ? "q" : "kv");
  }
  for (int i = 0; i < m->num_stats; i++)
    if (m->stat[i].is_set)
      text_add(&how, "; sets of '%s' along %s", t->input[m->stat[i].input].name, m->stat[i].along_q ? "q" : "kv");
  describe_evaluated(&how, t, m);
  return text_get(&how);
}

static void tidy(ir *g, mask_intervals *m, ir_var len) {
  if (m->count == 0) return;
  simplify(g, 6, (ir_ref *[]){&m->lo[0], &m->hi[0], &m->lo[1], &m->hi[1], &m->rest_lo, &m->rest_hi});
  for (int i = 0; i < m->count; i++) {
    m->lo[i] = useful_lo(g, m->lo[i]);
    m->hi[i] = useful_hi(g, m->hi[i], len);
  }
}

/* Whether this bound is usable. If it is, lengths are limited by what it computes; a bound that would exclude
 * lengths in use is dropped. */
static bool fits(const ir *g, mask_info *m, ir_ref side) {
  if (side == IR_NONE || m->max_len < 0) return true;
  if (m->max_len > RANGE_MAX_LENGTH) m->max_len = RANGE_MAX_LENGTH;
  const int64_t limit = ir_int_limit(g, &side, 1);
  if (limit >= 0 && limit < m->max_len && limit < LONG_ENOUGH) return false;
  if (limit < m->max_len) m->max_len = limit; /* below 0: out of memory, which the caller sees */
  return true;
}

/* A kernel adds rest_lo to the start of a grid row, which may lie in a tile that extends beyond the
 * length. */
static void limit_intervals(ir *g, mask_info *m, mask_intervals *kept, ir_var len) {
  enum { WIDEST = 512 }; /* at least a tile */
  const ir_ref ends = ir_op2(g, IR_ADD, ir_variable(g, len, 0), ir_int(g, WIDEST));
  const ir_ref rest_lo = kept->rest_lo == IR_NONE ? IR_NONE : ir_op2(g, IR_ADD, kept->rest_lo, ends);
  const ir_ref side[] = {kept->lo[0], kept->hi[0], kept->lo[1], kept->hi[1], rest_lo, kept->rest_hi};
  for (size_t i = 0; i < sizeof side / sizeof side[0] && kept->count > 0; i++)
    if (!fits(g, m, side[i])) *kept = (mask_intervals){.count = 0};
}

/* The spec's own integer arithmetic sets max_len. A range that would overflow at lengths in use is dropped
 * instead; column intervals under `rest` are then dropped as well if row intervals, which evaluate `rest`,
 * are unknown. */
static void limit_lengths(const traced_spec *t, mask_info *m) {
  const ir_ref candidate[] = {m->keep,          t->score_mod,     t->query_mod,   t->key_mod,   t->value_mod,
                              t->append_mod[0], t->append_mod[1], t->online.prob, t->online.out};
  ir_ref root[sizeof candidate / sizeof candidate[0]], *side[4] = {&m->kv_lo, &m->kv_hi, &m->q_lo, &m->q_hi};
  int n = 0;
  for (size_t i = 0; i < sizeof candidate / sizeof candidate[0]; i++) {
    if (candidate[i] != IR_NONE) root[n++] = candidate[i];
  }
  m->max_len = ir_int_limit(t->g, root, n);
  if (t->most_len > 0 && t->most_len < m->max_len) m->max_len = t->most_len;
  if (m->max_len == 0) m->too_large = ir_int_overflow(t->g, root, n, 1, &m->largest);
  for (int i = 0; i < 4; i++)
    if (!fits(t->g, m, *side[i])) *side[i] = IR_NONE;
  for (int i = 0; i < m->num_axes; i++) {
    mask_axis *axis = &m->axis[i];
    ir_ref *const along[] = {&axis->kv_lo, &axis->kv_hi, &axis->q_lo, &axis->q_hi};
    for (size_t k = 0; k < sizeof along / sizeof *along; k++)
      if (!fits(t->g, m, *along[k])) *along[k] = IR_NONE;
    limit_intervals(t->g, m, &axis->rows, VAR_KV_LEN);
    limit_intervals(t->g, m, &axis->columns, VAR_Q_LEN);
  }
  limit_intervals(t->g, m, &m->rows, VAR_KV_LEN);
  limit_intervals(t->g, m, &m->columns, VAR_Q_LEN);
  if (m->rows.count > 0) return;
  m->rest = m->bounds = IR_NONE;
  if (m->columns.apart) m->columns = (mask_intervals){.count = 0};
}

luattn_status mask_analyse(arena *a, const traced_spec *t, mask_info *out, luattn_error *err) {
  ir *g = t->g;
  mask_info m = {.keep = t->block_mask};
  if (m.keep != IR_NONE) {
    ir_simplify(g, &m.keep, 1);
    m.keep = mask_assume(g, m.keep);
    const ir_node *n = ir_get(g, m.keep);
    if (n->op == IR_CONST_BOOL && n->imm.integer) m.keep = IR_NONE;
  }
  if (!ir_is_line(g)) {
    if (!mask_find_axes(a, t, &m)) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: block_mask: out of memory", t->file);
  } else if (m.keep != IR_NONE) {
    stat_search search = {.t = t, .out = &m};
    uint8_t *level = arena_array(a, ir_count(g), 1);
    search.seen = arena_array(a, ir_count(g), 1);
    search.level = level;
    if (level == NULL || search.seen == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "%s: block_mask: out of memory", t->file);
    analyse_levels(g, level);
    find_stats(&search, m.keep);
    find_sets(&search);
    find_ranges(g, &m);
    m.rows = mask_rows_of(g, m.keep, &m.bounds, &m.rest);
    m.columns = mask_columns_of(g, m.keep, m.rest);
    tidy(g, &m.rows, VAR_KV_LEN);
    tidy(g, &m.columns, VAR_Q_LEN);
  }
  limit_lengths(t, &m);
  if (m.keep != IR_NONE && ir_is_line(g) && !mask_find_evaluated(a, t, &m))
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: block_mask: out of memory", t->file);
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
