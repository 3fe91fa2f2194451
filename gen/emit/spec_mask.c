/* spec_mask.c: prints struct Mask: keep, tile_class by interval arithmetic, the closed-form ranges, and the
 * block bounds of integer inputs; also bounds of other expressions over a tile. */
#include "gen/emit/sections.h"

#include <string.h>

/* Returns the block length of a stat along its position. It equals the tile length, so each tile needs one
 * lookup. */
static int stat_block(const writer *w, int stat) {
  return w->f->mask->stat[stat].along_q ? w->f->plan->tile_m : tiles_walk_columns(w->f->plan);
}

/* Prints the function that reads a number for block bounds, if some input is not int. */
static void stat_values(writer *w) {
  const mask_info *m = w->f->mask;
  const luattn_input_info *input = w->f->spec->traced.input;
  bool all_int = true;
  for (int i = 0; i < m->num_stats; i++) all_int &= input[m->stat[i].input].dtype == LUATTN_INPUT_I32;
  if (all_int) return;
  open_function(w, "int block_bounds_value(int i, const void *data, i64 at)");
  for (int i = 0; i < m->num_stats; i++) {
    if (i + 1 < m->num_stats) text_add(&w->out, "if (i == %d) ", i);
    text_add(&w->out, "return read_input(static_cast<const %s *>(data) + at);\n",
             writer_input_type(w, (uint32_t)m->stat[i].input));
  }
  close_function(w);
}

static void stat_tables(writer *w) {
  const mask_info *m = w->f->mask;
  if (m->num_stats == 0) return;
  const char *input[8], *axis[8], *block[8], *set[8];
  for (int i = 0; i < m->num_stats; i++) {
    input[i] = writer_format(w, "%d", m->stat[i].input);
    axis[i] = writer_format(w, "%d", m->stat[i].axis);
    block[i] = writer_format(w, "%d", stat_block(w, i));
    set[i] = m->stat[i].is_set ? "true" : "false";
  }
  print_table(w, "int", "block_bounds_input", input, m->num_stats, "0");
  print_table(w, "int", "block_bounds_axis", axis, m->num_stats, "0");
  print_table(w, "int", "block_bounds_size", block, m->num_stats, "1");
  if (m->stat[m->num_stats - 1].is_set) print_table(w, "bool", "block_bounds_is_set", set, m->num_stats, "false");
  stat_values(w);
}

/* ---- tile_class
 * ------------------------------------------------------------------------------------------------------- */

static const char *bounds_type(const writer *w, ir_ref r) {
  const ir_type t = ir_typeof(w->f->g, r);
  return t == IR_REAL ? "iv" : t == IR_INT ? "ivi" : "tri";
}

const char *bounds_of(writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const bool wide = n->type == IR_INT && writer_is_wide(w, r);
  if (lowered_is_point(w->f, r))
    return writer_format(w, wide ? "ivi_wide(%s_point(%s), true)" : "%s_point(%s)", bounds_type(w, r),
                         body_value(w, r));
  if (n->op == IR_VAR && (ir_var_of(n) == VAR_Q || ir_var_of(n) == VAR_KV)) {
    const char *side = ir_var_of(n) == VAR_Q ? "q" : "kv";
    const unsigned i = ir_index_of(n);
    if (w->f->plan->axes == 0) return offsets_tile(w, ir_var_of(n));
    if (!writer_forward(w)) /* of a part of a box */
      return writer_format(w, "ivi_make(%s_from<%u>(p, %s0), %s_to<%u>(p, %s1))", side, i, side, side, i, side);
    return writer_format(w, "ivi_make(%s_first<%u>(p, %s0), %s_last<%u>(p, %s0))", side, i, side, side, i, side);
  }
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCORE) return "iv_make(least, most, !(most < IV_INF))";
  return writer_format(w, "b%d", w->temp[r]);
}

const char *bounds_of_index(writer *w, unsigned input, int axis, ir_ref r) {
  return offsets_bounds(w, input, axis, r, bounds_of(w, r));
}

/* Minima and maxima of the block, or its set. */
static void stat_bounds(writer *w, const ir_node *n, int stat) {
  const int last = n->nargs - 1;
  const unsigned input = ir_index_of(n);
  /* A tile of an entry that begins anywhere in the axis may lie in two blocks. */
  const bool in_one = offsets_is_place(w, input, last, n->arg[last]) && !entry_rows_shift(w, input, last);
  const char *function = w->f->mask->stat[stat].is_set ? in_one ? "block_set" : "stat_set"
                         : in_one                      ? "block_bounds"
                                                       : "stat_bounds"; /* stat_block */
  text_add(&w->out, "%s(p.scratch.stats[%d], p.inputs.input[%u], %d, %d, grad_offset(p.inputs.input[%u]", function,
           stat, input, last, stat_block(w, stat), input);
  body_index(w, input, n->arg, last);
  text_add(&w->out, "), %s)", bounds_of_index(w, input, last, n->arg[last]));
}

/* The number itself, where bounds leave one place. */
static void place_bounds(writer *w, const ir_node *n) {
  const unsigned input = ir_index_of(n);
  text_add(&w->out, "place_bounds<%s>(p.inputs.input[%u]", writer_input_type(w, input), input);
  for (int i = 0; i < n->nargs; i++) text_add(&w->out, ", %s", bounds_of_index(w, input, i, n->arg[i]));
  text_add(&w->out, ")");
}

/* Whether cells are parts of the blocks that minima are of. */
static bool has_cell_stats(const writer *w) {
  return w->f->plan->tile_m % MASK_CELL == 0 && tiles_walk_columns(w->f->plan) % MASK_CELL == 0;
}

static void load_bounds(writer *w, ir_ref r, const ir_node *n) {
  const int stat = n->type != IR_REAL && (!w->of_cells || has_cell_stats(w)) ? lowered_stat_of(w->f, n) : -1;
  if (n->type == IR_REAL || (stat < 0 && !w->of_cells)) {
    text_add(&w->out, "%s_all()", bounds_type(w, r));
    return;
  }
  const bool wide = n->type == IR_INT && writer_is_wide(w, r);
  if (n->type == IR_BOOL) text_add(&w->out, "tri_of(");
  if (wide) text_add(&w->out, stat >= 0 ? "ivi_of_32_bits(" : "ivi_wide(");
  if (stat >= 0)
    stat_bounds(w, n, stat);
  else
    place_bounds(w, n);
  if (n->type == IR_BOOL) text_add(&w->out, ")");
  if (wide) text_add(&w->out, stat >= 0 ? ")" : ", true)");
}

/* Of cells, bounds may leave one list. */
static void list_bounds(writer *w, const ir_node *n) {
  const ir_list l = ir_list_of(n);
  if (!w->of_cells) {
    text_add(&w->out, "tri_all()");
    return;
  }
  text_add(&w->out, "listed_bounds");
  body_list(w, n);
  text_add(&w->out, ", %s", bounds_of(w, l.x));
  for (int i = 0; i < l.num_axes - 1; i++)
    text_add(&w->out, ", %s", bounds_of_index(w, l.input, i + (i >= l.axis), l.index[i]));
  text_add(&w->out, ")");
}

/* Quotients and remainders by a positive divisor have a shorter function, which compiles faster. */
static bool is_by_positive(const writer *w, const ir_node *n) {
  const ir_node *by = n->op == IR_FLOORDIV || n->op == IR_MOD ? ir_get(w->f->g, n->arg[1]) : NULL;
  return by != NULL && n->type == IR_INT && by->op == IR_CONST_INT && by->imm.integer > 0;
}

static void bounds_of_op(writer *w, const ir_node *n) {
  const char *prefix = ir_interval_prefix(ir_typeof(w->f->g, n->arg[n->nargs - 1])),
             *name = ir_op_interval((ir_op)n->op);
  if (n->op == IR_MUL && n->arg[0] == n->arg[1]) { /* the two factors are the same value */
    text_add(&w->out, "%ssquare(%s)", prefix, bounds_of(w, n->arg[0]));
    return;
  }
  if (is_by_positive(w, n)) {
    const char *by = body_value(w, n->arg[1]);
    text_add(&w->out, "%s%s_positive(%s, %s, %s)", prefix, name, bounds_of(w, n->arg[0]), by, by);
    return;
  }
  int set[2];
  const bool by_sets = !w->of_cells && lowered_sets_of(w->f, n, set);
  text_add(&w->out, "%s%s%s(", by_sets ? "equal_if_met(" : "", prefix, name);
  for (int i = 0; i < n->nargs; i++) text_add(&w->out, i == 0 ? "%s" : ", %s", bounds_of(w, n->arg[i]));
  text_add(&w->out, ")");
  for (int i = 0; by_sets && i < 2; i++) {
    text_add(&w->out, ", ");
    stat_bounds(w, ir_get(w->f->g, n->arg[i]), set[i]);
  }
  if (by_sets) text_add(&w->out, ")");
}

static void op_bounds(writer *w, ir_ref r, const ir_node *n) {
  const bool wide = n->type == IR_INT && writer_is_wide(w, r);
  if (wide) text_add(&w->out, "ivi_wide(");
  bounds_of_op(w, n);
  if (wide) text_add(&w->out, ", false)");
}

void bounds_lines(writer *w, const ir_ref *roots, int n) {
  const bool *need = lowered_bounded_nodes(w->f, roots, n);
  ir_ref *points = arena_array(w->f->a, w->f->num_nodes, sizeof *points);
  int num_points = 0;
  if (need == NULL || points == NULL) {
    w->failed = true;
    return;
  }
  for (uint32_t r = w->f->num_nodes; r-- > 1;)
    if (need[r] && lowered_is_point(w->f, r)) points[num_points++] = r;
  body_begin(w, 0, "");
  body_lines(w, points, num_points);
  for (uint32_t r = 1; r < w->f->num_nodes; r++) {
    const ir_node *node = ir_get(w->f->g, r);
    if (!need[r] || lowered_is_point(w->f, r) || node->op == IR_VAR) continue;
    w->temp[r] = ++w->num_temps;
    text_add(&w->out, "const %s b%d = ", bounds_type(w, r), w->temp[r]);
    if (node->op == IR_LOAD)
      load_bounds(w, r, node);
    else if (node->op == IR_LISTED)
      list_bounds(w, node);
    else if (node->op == IR_RANDOM)
      text_add(&w->out, "iv_make(0, 1 - 0x1p-24, false)"); /* IR_RANDOM_MOST */
    else
      op_bounds(w, r, node);
    writer_line_end(w, node);
  }
}

/* Bounds of the mask, or a part of it. */
static void class_function(writer *w, const char *name, ir_ref keep) {
  const char *box = writer_key_box(w);
  open_function(w, writer_format(w, "TileClass %s(" P ", int q0, int q1, %skv0, %skv1)", name, box, box));
  bounds_lines(w, &keep, 1);
  const char *kept = bounds_of(w, keep);
  text_add(&w->out, "return !%s.can_be_true ? TILE_EMPTY : %s.can_be_false ? TILE_PARTIAL : TILE_FULL;\n", kept, kept);
  close_function(w);
}

/* Whether the mask reads what has no minima. Of cells, bounds of its index may leave one place. */
static bool reads_places(const writer *w) {
  const ir_ref keep = w->f->mask->keep;
  const bool *need = lowered_bounded_nodes(w->f, &keep, 1);
  bool any = false;
  for (uint32_t r = 1; need != NULL && r < w->f->num_nodes && !any; r++) {
    const ir_node *n = ir_get(w->f->g, r);
    any = need[r] &&
          ((n->op == IR_LISTED && !lowered_is_point(w->f, r)) ||
           (n->op == IR_LOAD && n->type != IR_REAL && !lowered_is_point(w->f, r) && lowered_stat_of(w->f, n) < 0));
  }
  return any;
}

/* Whether cells, which luattn_tile_bits evaluates, have tighter bounds than tiles; where one score of a cell stands for
 * all, they need none. */
static bool has_cell_class(const writer *w) {
  const mask_evaluated *e = &w->f->mask->evaluated;
  if (!w->f->facts.tile_bits || (e->rows == MASK_CELL && e->columns == MASK_CELL)) return false;
  return e->cell != IR_NONE || reads_places(w);
}

static void cell_class(writer *w) {
  const ir_ref cell = w->f->mask->evaluated.cell;
  if (!has_cell_class(w)) return;
  w->of_cells = true;
  class_function(w, "cell_class", cell != IR_NONE ? cell : w->f->mask->keep);
  w->of_cells = false;
}

/* Whether some positions are asked for together. */
static bool has_runs(const writer *w) { return w->f->facts.keep_runs || w->f->keep_of_query; }

static bool has_data_part(const writer *w) { return w->f->mask->rest != IR_NONE; }

/* A conjunct that reads memory along positions gets its own function, so it is evaluated once. */
static void tile_class(writer *w) {
  const mask_info *m = w->f->mask;
  if (!has_data_part(w)) {
    class_function(w, "tile_class", m->keep);
    return;
  }
  class_function(w, "data_class", m->rest);
  class_function(w, "position_class", m->bounds);
  const char *box = writer_key_box(w);
  open_function(w, writer_format(w, "TileClass tile_class(" P ", int q0, int q1, %skv0, %skv1)", box, box));
  text_add(&w->out,
           "const TileClass data = data_class(p, s, q0, q1, kv0, kv1);\n"
           "const TileClass position = position_class(p, s, q0, q1, kv0, kv1);\n"
           "return data < position ? data : position;\n");
  close_function(w);
}

/* ---- ranges
 * -----------------------------------------------------------------------------------------------------------
 */

static void range(writer *w, const char *signature, const char *axis, ir_ref lo, ir_ref hi) {
  open_function(w, signature);
  if (lo == IR_NONE && hi == IR_NONE) {
    text_add(&w->out, "return %s;\n", offsets_all(w, axis));
    close_function(w);
    return;
  }
  const ir_ref roots[2] = {lo, hi};
  body_begin(w, 0, "");
  body_lines(w, roots, 2);
  text_add(&w->out, "return %s;\n",
           offsets_range(w, lo == IR_NONE ? NULL : body_int(w, lo), hi == IR_NONE ? NULL : body_int(w, hi), axis));
  close_function(w);
}

/* A function of ranges along all axes, whose ends are `roots`, of keys or of queries. */
static void ranges_of_axes(writer *w, const char *signature, const ir_ref roots[2 * LUATTN_MAX_AXES], bool of_kv) {
  const mask_info *m = w->f->mask;
  const int first = LUATTN_MAX_AXES - m->num_axes;
  const char *side = of_kv ? "kv" : "q";
  open_function(w, signature);
  body_begin(w, 0, "");
  body_lines(w, roots, 2 * m->num_axes);
  for (int end = 0; end < 2; end++) {
    text_add(&w->out, end == 0 ? "return {{" : "}, {");
    for (int axis = 0; axis < LUATTN_MAX_AXES; axis++) {
      const int a = axis - first;
      const ir_ref r = a >= 0 ? roots[2 * a + end] : IR_NONE;
      const char *whole = end == 0 ? "0" : a < 0 ? "1" : writer_format(w, "%s_extent<%d>(p)", side, a);
      text_add(&w->out, "%s%s", axis > 0 ? ", " : "", r != IR_NONE ? body_int(w, r) : whole);
    }
  }
  text_add(&w->out, "}};\n");
  close_function(w);
}

/* The ranges along all axes of the places that a box keeps, of keys or of queries. */
static void box_range(writer *w, bool of_kv) {
  const mask_info *m = w->f->mask;
  ir_ref roots[2 * LUATTN_MAX_AXES];
  for (int a = 0; a < m->num_axes; a++) {
    roots[2 * a] = of_kv ? m->axis[a].kv_lo : m->axis[a].q_lo;
    roots[2 * a + 1] = of_kv ? m->axis[a].kv_hi : m->axis[a].q_hi;
  }
  ranges_of_axes(w, of_kv ? "GridRange kv_box_range(" P ", int q0)" : "GridRange q_box_range(" P ", int kv0)", roots,
                 of_kv);
}

/* The same that a query, or a key, keeps. */
static void place_range(writer *w, bool of_row) {
  const mask_info *m = w->f->mask;
  ir_ref roots[2 * LUATTN_MAX_AXES];
  for (int a = 0; a < m->num_axes; a++) {
    const mask_intervals *own = of_row ? &m->axis[a].rows : &m->axis[a].columns;
    roots[2 * a] = own->lo[0];
    roots[2 * a + 1] = own->hi[0];
  }
  w->of_place = true;
  ranges_of_axes(w, of_row ? "GridRange row_box_range(" P ", int q0)" : "GridRange column_box_range(" P ", int kv0)",
                 roots, of_row);
  w->of_place = false;
}

static void ranges(writer *w) {
  const mask_info *m = w->f->mask;
  if (m->num_axes > 0) {
    box_range(w, true);
    if (!writer_forward(w)) box_range(w, false);
    return;
  }
  range(w, "Range kv_range(" P ", int q0, int q1)", "kv", m->kv_lo, m->kv_hi);
  if (!writer_forward(w)) range(w, "Range q_range(" P ", int kv0, int kv1)", "q", m->q_lo, m->q_hi);
}

/* Remainders of positions modulo a period. */
static void remainders(writer *w, const char *signature, const mask_intervals *m) {
  const ir_ref roots[2] = {m->rest_lo, m->rest_hi};
  open_function(w, signature);
  body_begin(w, 0, "");
  body_lines(w, roots, 2);
  text_add(&w->out, "return {%s, %s};\n", body_int(w, roots[0]), body_int(w, roots[1]));
  close_function(w);
}

/* Prints the mask intervals of a row or a column: `name`_interval and, if needed, the second interval and
 * remainders. */
static void interval_functions(writer *w, const char *name, const char *position, const char *axis,
                               const mask_intervals *m, int ranges) {
  arena *a = w->f->a;
  if (ranges == 0) return;
  if (w->f->mask->num_axes > 0) {
    place_range(w, *name == 'r');
    return;
  }
  range(w, arena_printf(a, "Range %s_interval(" P ", int %s)", name, position), axis, m->lo[0], m->hi[0]);
  if (ranges == 2)
    range(w, arena_printf(a, "Range second_%s_interval(" P ", int %s)", name, position), axis, m->lo[1], m->hi[1]);
  if (m->period == 0) return;
  remainders(w, arena_printf(a, "Range %s_remainders(" P ", int %s)", name, position), m);
  open_function(w, arena_printf(a, "int %s_phase(" P ")", name));
  text_add(&w->out, "return %s;\n", offsets_phase(w, axis, m->period));
  close_function(w);
}

/* Forward kernels use the ranges of rows, backward kernels those of columns. */
static int row_intervals(const writer *w) { return writer_forward(w) ? w->f->facts.row_intervals : 0; }
static int column_intervals(const writer *w) { return writer_forward(w) ? 0 : w->f->facts.column_intervals; }

static void constants(writer *w) {
  const lowered_facts *t = &w->f->facts;
  const mask_info *m = w->f->mask;
  const bool rows = row_intervals(w) > 0, columns = column_intervals(w) > 0, parts = has_data_part(w),
             lines = w->f->flag_line != IR_NONE;
  const ir_node *line = lines ? ir_get(w->f->g, w->f->flag_line) : NULL;
  const constant flags[] = {{"has_mask", true, false},
                            {"keep_is_cheap", t->keep_is_cheap, false},
                            {"only_keep_reads_row", t->only_keep_reads_row, false},
                            {"row_from_start", t->row_from_start, !rows},
                            {"has_data_part", true, !parts},
                            {"rows_need_full_data", t->rows_need_full_data, !parts},
                            {"columns_need_full_data", t->columns_need_full_data, !parts},
                            {"has_tile_bits", true, !t->tile_bits},
                            {"has_cell_class", has_cell_class(w), !t->tile_bits},
                            {"has_flag_line", true, !lines},
                            {"has_keep_beside", w->f->num_keep_beside > 0, !lines && !w->f->keep_of_query},
                            {"flag_is_data_part", parts && m->rest == w->f->flag_line, !lines},
                            {"keep_of_query", w->f->keep_of_query, !has_runs(w)},
                            {"keep_by_column", t->keep_runs && writer_forward(w), !has_runs(w)},
                            {"keep_by_row", t->keep_runs && !writer_forward(w), !has_runs(w)}};
  const constant numbers[] = {{"row_intervals", row_intervals(w), !rows},
                              {"row_period", m->rows.period, !rows},
                              {"column_intervals", column_intervals(w), !columns},
                              {"column_period", m->columns.period, !columns},
                              {"num_block_bounds", m->num_stats, m->num_stats == 0},
                              {"cell_rows", m->evaluated.rows, !t->tile_bits},
                              {"cell_columns", m->evaluated.columns, !t->tile_bits},
                              {"flag_input", lines ? (int)ir_index_of(line) : 0, !lines},
                              {"flag_axes", lines ? line->nargs : 0, !lines},
                              {"walk_rows", w->f->plan->tile_m, m->num_stats == 0},
                              {"walk_columns", tiles_walk_columns(w->f->plan), m->num_stats == 0}};
  if (m->num_axes > 0) text_add(&w->out, "static constexpr bool over_grid = true;\n");
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", numbers, COUNT(numbers));
}

/* Prints where the flags of a query's keys begin, and what the mask asks besides. */
static void flag_line(writer *w) {
  const lowered *f = w->f;
  if (f->flag_line == IR_NONE) return;
  const ir_node n = *ir_get(f->g, f->flag_line);
  const unsigned input = ir_index_of(&n);
  ir_ref index[4];
  memcpy(index, n.arg, sizeof index);
  index[n.nargs - 1] = IR_NONE;
  open_function(w, "u64 flag_line(" PH ", int q)");
  body_begin(w, HAS_HEAD | HAS_Q, "");
  body_lines(w, index, n.nargs - 1);
  text_add(&w->out, "return flags_at(p.inputs.input[%u]", input);
  body_index(w, input, index, n.nargs - 1);
  text_add(&w->out, ");\n");
  close_function(w);
}

/* Prints some of the mask's conjuncts. */
static void conjunction(writer *w, const char *signature, const ir_ref *part, int n) {
  if (n == 0) return;
  open_function(w, signature);
  body_begin(w, HAS_ELEMENT, "");
  body_lines(w, part, n);
  for (int i = 0; i < n; i++) text_add(&w->out, i == 0 ? "return %s" : " & %s", body_value(w, part[i]));
  text_add(&w->out, ";\n");
  close_function(w);
}

/* Prints whether two keys, or in backward two queries, are the same to the mask. */
static void same_slots(writer *w) {
  const int kind = writer_forward(w) || w->f->keep_of_query ? SLOTS_COL : SLOTS_ROW;
  const slots *s = &w->f->slot[kind];
  const bool *read = has_runs(w) ? lowered_mask_slots(w->f, kind) : NULL;
  bool first = true;
  if (read == NULL) return;
  open_function(w, kind == SLOTS_COL ? "bool same_column(const Col &a, const Col &b)"
                                     : "bool same_row(const Row &a, const Row &b)");
  for (int i = 0; i < s->count; i++) {
    const char *member = strchr(w->slot_name[s->ref[i]], '.') + 1;
    if (!read[i]) continue;
    text_add(&w->out, "%sa.%s == b.%s", first ? "return " : " && ", member, member);
    first = false;
  }
  text_add(&w->out, first ? "return true;\n" : ";\n"); /* a list is of no block of keys */
  close_function(w);
}

const char *emit_mask(writer *w) {
  const mask_info *m = w->f->mask;
  if (w->f->keep == IR_NONE) return "EveryKv";
  const absence lacks[] = {{!has_data_part(w), "NoDataPart"},
                           {row_intervals(w) == 0, "NoRowIntervals"},
                           {column_intervals(w) == 0, "NoColumnIntervals"},
                           {m->num_stats == 0, "NoBlockBounds"},
                           {!w->f->facts.tile_bits, "NoTileBits"},
                           {w->f->facts.tile_bits && w->f->flag_line == IR_NONE, "NoFlagLine"},
                           {w->f->facts.tile_bits && !has_runs(w), "NoRuns"}};
  text_add(&w->out, "\n");
  open_struct(w, "Mask", "Hoisted", lacks, COUNT(lacks));
  constants(w);
  stat_tables(w);
  expression_function(w, "keep", writer_format(w, "bool keep(" PHR BREAK "const Col &col, int q, %skv)", writer_key(w)),
                      HAS_ELEMENT, "", NO_ELEMENT, w->f->keep);
  flag_line(w);
  conjunction(w, "bool keep_of_list(" PHR BREAK "const Col &col, int q)", w->f->keep_of_list, w->f->num_keep_of_list);
  conjunction(w, "bool keep_beside(" PHR BREAK "const Col &col, int q, int kv)", w->f->keep_beside,
              w->f->num_keep_beside);
  same_slots(w);
  tile_class(w);
  cell_class(w);
  ranges(w);
  interval_functions(w, "row", "q0", "kv", &m->rows, row_intervals(w));
  interval_functions(w, "column", "kv0", "q", &m->columns, column_intervals(w));
  close_struct(w);
  return "Mask";
}
