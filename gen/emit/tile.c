/* tile.c: tile_class by interval arithmetic, the closed-form ranges, and the block statistics of integer
 * inputs. */
#include "gen/emit/parts.h"

#include <string.h>

#define P "const LuattnParams &p, const Site &s"

/* Stats lie along one position; a block as long as the tile makes one lookup a tile. */
static int stat_block(const writer *w, int stat) {
  return w->f->mask->stat[stat].along_q ? w->f->plan->tile_m : w->f->plan->tile_n;
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

static void load_bounds(writer *w, ir_ref r, const ir_node *n) {
  const int stat = n->type == IR_INT ? stat_of(w, n) : -1;
  if (stat < 0) {
    text_add(&w->out, "%s_all()", bounds_type(w, r));
    return;
  }
  const int last = n->nargs - 1;
  const unsigned input = ir_index_of(n);
  text_add(&w->out, "stat_bounds(p.stats[%d], p.input[%u], %d, %d, grad_offset(p.input[%u]", stat, input,
           last, stat_block(w, stat), input);
  for (int i = 0; i < last; i++) text_add(&w->out, ", %s", body_value(w, n->arg[i]));
  text_add(&w->out, "), %s)", bounds_of(w, n->arg[last]));
}

static void op_bounds(writer *w, const ir_node *n) {
  const char *prefix = ir_interval_prefix(ir_typeof(w->f->g, n->arg[n->nargs - 1])),
             *name = ir_op_interval((ir_op)n->op);
  if (n->op == IR_MUL && n->arg[0] == n->arg[1]) { /* the two factors vary together */
    text_add(&w->out, "%ssquare(%s)", prefix, bounds_of(w, n->arg[0]));
    return;
  }
  text_add(&w->out, "%s%s(", prefix, name);
  for (int i = 0; i < n->nargs; i++) text_add(&w->out, i == 0 ? "%s" : ", %s", bounds_of(w, n->arg[i]));
  text_add(&w->out, ")");
}

/* Those that tile_class needs the bounds of. */
static bool *bounded_nodes(writer *w) {
  bool *need = arena_array(w->f->a, w->count, sizeof *need);
  if (need == NULL) return NULL;
  need[w->f->keep] = true;
  for (uint32_t r = w->count; r-- > 1;) {
    const ir_node *n = ir_get(w->f->g, r);
    for (int i = 0; need[r] && i < n->nargs && !is_point(w, r); i++) need[n->arg[i]] = true;
  }
  return need;
}

bool emit_bounds_reals(writer *w) {
  bool any = false;
  const bool *need = w->f->keep == IR_NONE ? NULL : bounded_nodes(w);
  for (uint32_t r = 1; need != NULL && r < w->count; r++) any |= need[r] && ir_typeof(w->f->g, r) == IR_REAL;
  return any;
}

static void tile_class(writer *w) {
  const ir_ref keep = w->f->keep;
  open_function(w, "TileClass tile_class(" P ", int q0, int q1, int kv0, int kv1)");
  if (keep == IR_NONE) {
    text_add(&w->out, "return TILE_FULL;\n");
    close_function(w);
    return;
  }
  const bool *need = bounded_nodes(w);
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
    const ir_node *n = ir_get(w->f->g, r);
    if (!need[r] || is_point(w, r) || n->op == IR_VAR) continue;
    w->temp[r] = ++w->num_temps;
    text_add(&w->out, "const %s b%d = ", bounds_type(w, r), w->temp[r]);
    if (n->op == IR_LOAD)
      load_bounds(w, r, n);
    else
      op_bounds(w, n);
    writer_line_end(w, n);
  }
  const char *kept = bounds_of(w, keep);
  text_add(&w->out, "return !%s.can_be_true ? TILE_EMPTY : %s.can_be_false ? TILE_PARTIAL : TILE_FULL;\n",
           kept, kept);
  close_function(w);
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

void emit_tiles(writer *w) {
  const mask_info *m = w->f->mask;
  tile_class(w);
  range(w, "Range kv_range(" P ", int q0, int q1)", "s.kv_len", m->kv_lo, m->kv_hi);
  range(w, "Range q_range(" P ", int kv0, int kv1)", "s.q_len", m->q_lo, m->q_hi);
}
