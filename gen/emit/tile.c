/* tile.c: tile_class by interval arithmetic, the closed-form ranges, and the block statistics of integer
 * inputs. */
#include "gen/emit/parts.h"

#include <string.h>

#define P "const LuattnParams &p, const Site &s"

/* Stats lie along one position; a block as long as the walk's tiles makes one lookup a tile. */
static int stat_block(const writer *w, int stat) {
  return w->f->mask->stat[stat].along_q ? w->f->plan->tile_m : tiles_walk_columns(w->f->plan);
}

void emit_stat_tables(writer *w) {
  const mask_info *m = w->f->mask;
  const char *input[8], *axis[8], *block[8];
  for (int i = 0; i < m->num_stats; i++) {
    input[i] = writer_format(w, "%d", m->stat[i].input);
    axis[i] = writer_format(w, "%d", m->stat[i].axis);
    block[i] = writer_format(w, "%d", stat_block(w, i));
  }
  table_function(w, "int", "stat_input", input, m->num_stats, "0");
  table_function(w, "int", "stat_axis", axis, m->num_stats, "0");
  table_function(w, "int", "stat_block", block, m->num_stats, "1");
  text_add(&w->out, "static constexpr int walk_rows = %d, walk_columns = %d;\n", w->f->plan->tile_m,
           tiles_walk_columns(w->f->plan));
}

/* ---- tile_class
 * ------------------------------------------------------------------------------------------------------- */

static const char *bounds_type(const writer *w, ir_ref r) {
  const ir_type t = ir_typeof(w->f->g, r);
  return t == IR_REAL ? "iv" : t == IR_INT ? "ivi" : "tri";
}

/* The same for the whole head: computed as a plain value. */
static bool is_point(writer *w, ir_ref r) { return (deps_of(&w->f->deps, r) & ~DEP_SITE) == 0; }

static const char *bounds_of(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  if (is_point(w, r)) return writer_format(w, "%s_point(%s)", bounds_type(w, r), body_value(w, r));
  if (n->op == IR_VAR && ir_var_of(n) == VAR_Q) return "ivi_make(q0, q1)";
  if (n->op == IR_VAR && ir_var_of(n) == VAR_KV) return "ivi_make(kv0, kv1)";
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCORE) return "iv_make(least, most, !(most < IV_INF))";
  return writer_format(w, "b%d", w->temp[r]);
}

/* The statistics that cover a gather; -1: none. */
static int stat_of(writer *w, const ir_node *n) {
  const mask_info *m = w->f->mask;
  const int last = n->nargs - 1, along = deps_of(&w->f->deps, n->arg[last]) & (DEP_Q | DEP_KV);
  for (int i = 0; i < last; i++)
    if (!is_point(w, n->arg[i])) return -1;
  for (int i = 0; i < m->num_stats; i++)
    if (m->stat[i].input == (int)ir_index_of(n) && m->stat[i].axis == last &&
        along == (m->stat[i].along_q ? DEP_Q : DEP_KV))
      return i;
  return -1;
}

/* Does a tile have one block of statistics along this index? Blocks are as long as tiles (stat_block). */
static bool is_position(const writer *w, ir_ref r) {
  return ir_is_var(w->f->g, r, VAR_Q) || ir_is_var(w->f->g, r, VAR_KV);
}

static void load_bounds(writer *w, ir_ref r, const ir_node *n) {
  const int stat = n->type == IR_INT ? stat_of(w, n) : -1;
  if (stat < 0) {
    text_add(&w->out, "%s_all()", bounds_type(w, r));
    return;
  }
  const int last = n->nargs - 1;
  const unsigned input = ir_index_of(n);
  const char *function = is_position(w, n->arg[last]) ? "block_bounds" : "stat_bounds";
  text_add(&w->out, "%s(p.stats[%d], p.input[%u], %d, %d, grad_offset(p.input[%u]", function, stat, input,
           last, stat_block(w, stat), input);
  for (int i = 0; i < last; i++) text_add(&w->out, ", %s", body_value(w, n->arg[i]));
  text_add(&w->out, "), %s)", bounds_of(w, n->arg[last]));
}

/* By a number above 0, a quotient or remainder has a shorter function; to compile the other branches takes
 * time.
 */
static bool is_by_positive(const writer *w, const ir_node *n) {
  const ir_node *by = n->op == IR_FLOORDIV || n->op == IR_MOD ? ir_get(w->f->g, n->arg[1]) : NULL;
  return by != NULL && n->type == IR_INT && by->op == IR_CONST_INT && by->imm.integer > 0;
}

static void op_bounds(writer *w, const ir_node *n) {
  const char *prefix = ir_interval_prefix(ir_typeof(w->f->g, n->arg[n->nargs - 1])),
             *name = ir_op_interval((ir_op)n->op);
  if (n->op == IR_MUL && n->arg[0] == n->arg[1]) { /* the two factors vary together */
    text_add(&w->out, "%ssquare(%s)", prefix, bounds_of(w, n->arg[0]));
    return;
  }
  if (is_by_positive(w, n)) {
    const char *by = body_value(w, n->arg[1]);
    text_add(&w->out, "%s%s_positive(%s, %s, %s)", prefix, name, bounds_of(w, n->arg[0]), by, by);
    return;
  }
  text_add(&w->out, "%s%s(", prefix, name);
  for (int i = 0; i < n->nargs; i++) text_add(&w->out, i == 0 ? "%s" : ", %s", bounds_of(w, n->arg[i]));
  text_add(&w->out, ")");
}

/* Those that are bounded to bound the roots. */
static bool *bounded_nodes(writer *w, const ir_ref *roots, int n) {
  bool *need = arena_array(w->f->a, w->count, sizeof *need);
  if (need == NULL) return NULL;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = w->count; r-- > 1;) {
    const ir_node *node = ir_get(w->f->g, r);
    for (int i = 0; need[r] && i < node->nargs && !is_point(w, r); i++) need[node->arg[i]] = true;
  }
  return need;
}

/* A body that bounds what the roots are in a tile. */
static void bounds_lines(writer *w, const ir_ref *roots, int n) {
  const bool *need = bounded_nodes(w, roots, n);
  ir_ref *points = arena_array(w->f->a, w->count, sizeof *points);
  int num_points = 0;
  if (need == NULL || points == NULL) {
    w->failed = true;
    return;
  }
  for (uint32_t r = w->count; r-- > 1;)
    if (need[r] && is_point(w, r)) points[num_points++] = r;
  body_begin(w, 0, "");
  body_lines(w, points, num_points);
  for (uint32_t r = 1; r < w->count; r++) {
    const ir_node *node = ir_get(w->f->g, r);
    if (!need[r] || is_point(w, r) || node->op == IR_VAR) continue;
    w->temp[r] = ++w->num_temps;
    text_add(&w->out, "const %s b%d = ", bounds_type(w, r), w->temp[r]);
    if (node->op == IR_LOAD)
      load_bounds(w, r, node);
    else
      op_bounds(w, node);
    writer_line_end(w, node);
  }
}

/* Of a part of the mask; IR_NONE keeps everything. */
static void part_class(writer *w, const char *name, ir_ref keep) {
  open_function(w, writer_format(w, "TileClass %s(" P ", int q0, int q1, int kv0, int kv1)", name));
  if (keep == IR_NONE) {
    text_add(&w->out, "return TILE_FULL;\n");
    close_function(w);
    return;
  }
  bounds_lines(w, &keep, 1);
  const char *kept = bounds_of(w, keep);
  text_add(&w->out, "return !%s.can_be_true ? TILE_EMPTY : %s.can_be_false ? TILE_PARTIAL : TILE_FULL;\n",
           kept, kept);
  close_function(w);
}

/* A part that reads memory along positions is bounded by itself, so that it can be asked about once. */
static void tile_class(writer *w) {
  static const char *const args = "(p, s, q0, q1, kv0, kv1)";
  const mask_info *m = w->f->mask;
  const bool apart = m->rest != IR_NONE;
  part_class(w, "rest_class", m->rest);
  part_class(w, "bounds_class", apart ? m->bounds : w->f->keep);
  open_function(w, "TileClass tile_class(" P ", int q0, int q1, int kv0, int kv1)");
  if (apart) text_add(&w->out, "const TileClass rest = rest_class%s, bounds = bounds_class%s;\n", args, args);
  text_add(&w->out, apart ? "return rest < bounds ? rest : bounds;\n" : "return bounds_class%s;\n", args);
  close_function(w);
}

/* Where a place says more of q - kv than their sum, it may be one for all distances of a tile. Of a factor
 * that differs it would be of no use. The sm80 family does not ask. */
bool tiles_may_be_alike(writer *w) {
  const derived_terms *terms = &w->f->sum[SUM_DISTANCE];
  for (int i = 0; i < terms->count; i++)
    if (terms->term[i].num_index == 0 || !is_point(w, terms->term[i].factor)) return false;
  return terms->count > 0 && w->f->distance_step == 0 && w->f->plan->family == LUATTN_SM90;
}

/* The indices of what add_distance adds to. */
static int distance_indices(const writer *w, ir_ref index[4 * DERIVED_MAX_TERMS]) {
  const derived_terms *terms = &w->f->sum[SUM_DISTANCE];
  int n = 0;
  for (int i = 0; i < terms->count; i++)
    for (int j = 0; j < terms->term[i].num_index; j++) index[n++] = terms->term[i].index[j];
  return n;
}

static void alike(writer *w) {
  const derived_terms *terms = &w->f->sum[SUM_DISTANCE];
  ir_ref index[4 * DERIVED_MAX_TERMS];
  open_function(w, "bool alike(" P ", int q0, int q1, int kv0, int kv1)");
  if (!tiles_may_be_alike(w)) {
    text_add(&w->out, "return false;\n");
    close_function(w);
    return;
  }
  bounds_lines(w, index, distance_indices(w, index));
  const char *glue = "return ";
  for (int i = 0; i < terms->count; i++)
    for (int j = 0; j < terms->term[i].num_index; j++)
      if (!is_point(w, terms->term[i].index[j])) {
        text_add(&w->out, "%sis_one_place(%s, p.input[%d].size[%d])", glue,
                 bounds_of(w, terms->term[i].index[j]), terms->term[i].input, j);
        glue = " && ";
      }
  text_add(&w->out, ";\n");
  close_function(w);
}

static void score_bounds(writer *w) {
  const ir_ref score = w->f->score_bounds;
  if (score == IR_NONE) return;
  open_function(w, "iv score_bounds(" P ", int q0, int q1, int kv0, int kv1, double least, double most)");
  bounds_lines(w, &score, 1);
  text_add(&w->out, "return %s;\n", bounds_of(w, score));
  close_function(w);
}

/* What tiles' classes and places are from; and what is bounded at all. */
enum { MAX_BOUNDED = 3 + 4 * DERIVED_MAX_TERMS };
static int class_roots(writer *w, ir_ref root[MAX_BOUNDED]) {
  int n = 0;
  if (w->f->keep != IR_NONE) root[n++] = w->f->keep;
  if (w->f->mask->rest != IR_NONE) root[n++] = w->f->mask->rest;
  return n + (tiles_may_be_alike(w) ? distance_indices(w, root + n) : 0);
}

static int bounded_roots(writer *w, ir_ref root[MAX_BOUNDED]) {
  int n = class_roots(w, root);
  if (w->f->score_bounds != IR_NONE) root[n++] = w->f->score_bounds;
  return n;
}

static bool uses_reals(writer *w, const ir_ref *root, int n) {
  const bool *need = bounded_nodes(w, root, n);
  bool any = false;
  for (uint32_t r = 1; need != NULL && r < w->count; r++) any |= need[r] && ir_typeof(w->f->g, r) == IR_REAL;
  return any;
}

bool emit_bounds_reals(writer *w) {
  ir_ref root[MAX_BOUNDED];
  return uses_reals(w, root, bounded_roots(w, root));
}

/* A real number as an integer may be any. */
static bool is_rounded(const writer *w, const ir_node *n) {
  return n->type == IR_INT && n->nargs > 0 && n->op != IR_LOAD &&
         ir_typeof(w->f->g, n->arg[n->nargs - 1]) == IR_REAL;
}

bool emit_bounds_small(writer *w) {
  ir_ref root[MAX_BOUNDED];
  bool all = !uses_reals(w, root, class_roots(w, root));
  const int n = bounded_roots(w, root);
  const bool *need = bounded_nodes(w, root, n);
  all = all && need != NULL && ir_ints_fit(w->f->g, root, n, w->f->mask->max_len);
  for (uint32_t r = 1; all && r < w->count; r++) {
    const ir_node *node = ir_get(w->f->g, r);
    if (need[r] && !is_point(w, r) && is_rounded(w, node)) all = false;
    if (need[r] && node->op == IR_LOAD && node->type == IR_INT && !is_point(w, r))
      all = stat_of(w, node) >= 0;
  }
  return all;
}

/* ---- ranges
 * -----------------------------------------------------------------------------------------------------------
 */

static void range(writer *w, const char *signature, const char *len, ir_ref lo, ir_ref hi) {
  open_function(w, signature);
  if (lo == IR_NONE && hi == IR_NONE) {
    text_add(&w->out, "return {0, %s};\n", len);
    close_function(w);
    return;
  }
  const ir_ref roots[2] = {lo, hi};
  body_begin(w, 0, "");
  body_lines(w, roots, 2);
  text_add(&w->out, "return clip_range(%s, %s, %s);\n", lo == IR_NONE ? "0" : body_value(w, lo),
           hi == IR_NONE ? len : body_value(w, hi), len);
  close_function(w);
}

/* Of positions modulo a period. */
static void rest_range(writer *w, const char *signature, const mask_line *m) {
  const ir_ref roots[2] = {m->rest_lo, m->rest_hi};
  open_function(w, signature);
  if (m->period == 0) {
    text_add(&w->out, "return {0, 0};\n");
  } else {
    body_begin(w, 0, "");
    body_lines(w, roots, 2);
    text_add(&w->out, "return {%s, %s};\n", body_value(w, roots[0]), body_value(w, roots[1]));
  }
  close_function(w);
}

/* What a row, or a column, keeps: `name`_range, .._second and .._rest. */
static void line(writer *w, const char *name, const char *position, const char *len, const mask_line *m) {
  arena *a = w->f->a;
  range(w, arena_printf(a, "Range %s_range(" P ", int %s)", name, position), len, m->lo[0], m->hi[0]);
  range(w, arena_printf(a, "Range %s_second(" P ", int %s)", name, position), len, m->lo[1], m->hi[1]);
  rest_range(w, arena_printf(a, "Range %s_rest(" P ", int %s)", name, position), m);
}

void emit_tiles(writer *w) {
  const mask_info *m = w->f->mask;
  tile_class(w);
  alike(w);
  score_bounds(w);
  range(w, "Range kv_range(" P ", int q0, int q1)", "s.kv_len", m->kv_lo, m->kv_hi);
  range(w, "Range q_range(" P ", int kv0, int kv1)", "s.q_len", m->q_lo, m->q_hi);
  line(w, "row", "q0", "s.kv_len", &m->rows);
  line(w, "column", "kv0", "s.q_len", &m->columns);
}
