/* emit.c: spec.cuh, in the order of templates/contract/contract.cuh. */
#include "gen/emit/parts.h"

#include <string.h>

#define P "const LuattnParams &p, const Site &s"
#define PH P ", const Head &head"
#define PHR PH ", const Row &row"
#define BREAK ",\n    "
#define NO_TURN "0"
#define STEP PHR BREAK "const State &old, const Real *red"

static const traced_spec *traced(const writer *w) { return &w->f->spec->traced; }

void open_function(writer *w, const char *signature) {
  text_add(&w->out, "LUATTN_FN %s {\n", signature);
  w->out.indent++;
}

void close_function(writer *w) {
  w->out.indent--;
  text_add(&w->out, "}\n");
}

/* A function of one expression. */
static void expression_function(writer *w, const char *name, const char *signature, int has,
                                const char *state, const char *turn, ir_ref r) {
  const char *call = NULL;
  if (outline_is(w, name)) {
    outline_open(w, writer_type(w, r), name, has, state, &r, 1, 0);
    body_return(w, r);
    call = outline_close(w);
  }
  open_function(w, signature);
  body_begin(w, has, state);
  w->turn = turn;
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    body_return(w, r);
  close_function(w);
}

/* ---- types
 * ------------------------------------------------------------------------------------------------------------
 */

static void array_type(writer *w, const char *name, int n) {
  text_add(&w->out, "struct %s { Real x[%d]; };\n", name, n > 0 ? n : 1);
}

static void slot_type(writer *w, int kind, const char *name, const char *what) {
  const slots *s = &w->slot[kind];
  const bool shift = kind == SLOTS_ROW && w->f->shift != IR_NONE, empty = s->count == 0 && !shift;
  text_add(&w->out, "struct %s {%s", name, empty ? "" : "  // ");
  text_add(&w->out, empty ? "};\n" : "%s\n", what);
  if (empty) return;
  w->out.indent++;
  for (int i = 0; i < s->count; i++)
    text_add(&w->out, "%s %s;\n", writer_type(w, s->ref[i]), strchr(w->slot_name[s->ref[i]], '.') + 1);
  if (shift) text_add(&w->out, "Real shift;  // of the tile at hand: the kernel's\n");
  w->out.indent--;
  text_add(&w->out, "};\n");
}

static void types(writer *w) {
  text_add(&w->out, "using Real = %s;\n", w->f->plan->dtype == LUATTN_F64 ? "double" : "float");
  text_add(&w->out, "using LineElem = %s;\n",
           emit_has_line(w) ? writer_input_type(w, ir_index_of(ir_get(w->f->g, w->f->line))) : "float");
  slot_type(w, SLOTS_HEAD, "Head", "the same for all of one (b, h)");
  slot_type(w, SLOTS_ROW, "Row", "of one query position");
  slot_type(w, SLOTS_COL, "Col", "of one key position");
  array_type(w, "State", traced(w)->online.num_state);
  array_type(w, "BwdRow", w->f->num_rows);
  array_type(w, "Acc", w->num_acc);
}

/* ---- forward
 * ----------------------------------------------------------------------------------------------------------
 */

static void scores(writer *w) {
  static const char score_turn[] = "kv.offset + kv.offset / 8";
  static const char term[] = "Real distance_term(" PH ", Position q, Position kv)",
                    with[] = "Real score_with(" PHR BREAK
                             "const Col &col, Real dot, Position q, Position kv, Real term)";
  expression_function(w, "score",
                      "Real score(" PHR BREAK "const Col &col, Real dot, Position q, Position kv)",
                      HAS_ELEMENT, "", score_turn, w->f->score);
  const bool has_term = emit_has_distance_term(w);
  if (has_term) {
    expression_function(w, "distance_term", term, HAS_HEAD | HAS_Q | HAS_KV, "", NO_TURN,
                        w->f->distance_term);
  } else {
    open_function(w, term);
    text_add(&w->out, "return Real(0);\n");
    close_function(w);
  }
  if ((has_term || emit_has_line(w)) && w->f->score_with != IR_NONE) {
    expression_function(w, "score_with", with, HAS_ELEMENT, "", score_turn, w->f->score_with);
    return;
  }
  open_function(w, with);
  text_add(&w->out, "return score(p, s, head, row, col, dot, q, kv);\n");
  close_function(w);
}

static void score_line(writer *w) {
  const emit_form *f = w->f;
  open_function(w, "InputLine<LineElem> score_line(" PH ", int q, int kv)");
  if (emit_has_line(w)) {
    body_begin(w, HAS_HEAD | HAS_Q | HAS_KV, "");
    body_lines(w, f->line_index, f->num_line_index);
    text_add(&w->out, "return input_line<LineElem, %d>(p.input[%u]", f->line_pitched,
             ir_index_of(ir_get(f->g, f->line)));
    for (int i = 0; i < f->num_line_index; i++) text_add(&w->out, ", %s", body_value(w, f->line_index[i]));
    text_add(&w->out, ");\n");
  } else {
    text_add(&w->out, "return {};\n");
  }
  close_function(w);
}

/* Of dots alone. */
static void small(writer *w, const char *signature, ir_ref r) {
  open_function(w, signature);
  if (r != IR_NONE) {
    body_begin(w, HAS_HEAD, "");
    body_return(w, r);
  } else {
    text_add(&w->out, "return Real(0);\n");
  }
  close_function(w);
}

static void elements(writer *w) {
  scores(w);
  score_line(w);
  if (w->f->shift != IR_NONE) {
    expression_function(w, "shift", "Real shift(" PHR ", Position q, Position kv)", HAS_ELEMENT, "", NO_TURN,
                        w->f->shift);
  } else {
    open_function(w, "Real shift(" PHR ", Position q, Position kv)");
    text_add(&w->out, "return Real(0);\n");
    close_function(w);
  }
  if (w->f->keep != IR_NONE) {
    expression_function(w, "keep", "bool keep(" PHR BREAK "const Col &col, int q, int kv)", HAS_ELEMENT, "",
                        NO_TURN, w->f->keep);
  } else {
    open_function(w, "bool keep(" PHR BREAK "const Col &col, int q, int kv)");
    text_add(&w->out, "return true;\n");
    close_function(w);
  }
  small(w, "Real small_limit(" PH ")", w->f->small_limit);
  small(w, "Real small_weight(" PH ", Real dot, Real term)", w->f->small_weight);
}

/* `Result made; made.x[i] = ..; return made;` */
static void array_body(writer *w, const char *type, const ir_ref *values, int n) {
  body_lines(w, values, n);
  text_add(&w->out, n > 0 ? "%s made;\n" : "return {};\n", type);
  for (int i = 0; i < n; i++) text_add(&w->out, "made.x[%d] = %s;\n", i, body_value(w, values[i]));
  if (n > 0) text_add(&w->out, "return made;\n");
}

static const char *const term_name[] = {"term_0", "term_1", "term_2", "term_3",
                                        "term_4", "term_5", "term_6", "term_7"};
_Static_assert(sizeof term_name / sizeof term_name[0] == SPEC_MAX_RED, "one name for each reduction");

static void terms(writer *w) {
  const int n = w->f->step.num_red, has = HAS_HEAD | HAS_ROW;
  const char *call[SPEC_MAX_RED] = {NULL};
  for (int k = 0; k < n; k++) {
    if (!outline_is(w, term_name[k])) continue;
    outline_open(w, "Real", term_name[k], has, "old", &w->f->step.term[k], 1, 0);
    body_return(w, w->f->step.term[k]);
    call[k] = outline_close(w);
  }
  text_add(&w->out, "template <int K>\n");
  open_function(w, "Real term(" STEP ", Real score, int turn)");
  for (int k = 0; k < n; k++) {
    text_add(&w->out, k == 0 ? "if constexpr (K == %d) {\n" : "} else if constexpr (K == %d) {\n", k);
    w->out.indent++;
    body_begin(w, has, "old");
    w->turn = "turn";
    if (call[k] != NULL)
      text_add(&w->out, "return %s;\n", call[k]);
    else
      body_return(w, w->f->step.term[k]);
    w->out.indent--;
  }
  if (n > 0)
    text_add(&w->out, "}\n");
  else
    text_add(&w->out, "return score;\n");
  close_function(w);
}

/* How a lagging maximum is taken in. */
static void raise(writer *w) {
  const emit_form *f = w->f;
  const int has = HAS_HEAD | HAS_ROW;
  open_function(w, "State raise(" STEP ")");
  if (f->lags) {
    body_begin(w, has, "old");
    array_body(w, "State", f->raise, traced(w)->online.num_state);
  } else {
    text_add(&w->out, "return old;\n");
  }
  close_function(w);
}

static void online(writer *w) {
  const emit_form *f = w->f;
  const int has = HAS_HEAD | HAS_ROW;
  open_function(w, "State init(" PHR ")");
  body_begin(w, has, "");
  array_body(w, "State", f->init, traced(w)->online.num_state);
  close_function(w);
  terms(w);
  expression_function(w, "prob", "Real prob(" STEP ", Real score, int turn)", has, "old", "turn",
                      f->step.prob);
  expression_function(w, "rescale", "Real rescale(" STEP ")", has, "old", NO_TURN, f->step.rescale);
  open_function(w, "State next(" STEP ")");
  body_begin(w, has, "old");
  array_body(w, "State", f->step.next, traced(w)->online.num_state);
  close_function(w);
  raise(w);

  expression_function(w, "out_scale", "Real out_scale(" PHR ", const State &state)", has, "state", NO_TURN,
                      f->out_scale);
  if (f->lse != IR_NONE) {
    expression_function(w, "lse", "Real lse(" PHR ", const State &state)", has, "state", NO_TURN, f->lse);
  } else {
    open_function(w, "Real lse(" PHR ", const State &state)");
    text_add(&w->out, "return Real(0);\n");
    close_function(w);
  }
  open_function(w, "void save(" PHR ", const State &state, Real *out)");
  body_begin(w, has, "state");
  body_lines(w, f->spec->derived.saved, f->spec->derived.num_saved);
  for (int i = 0; i < f->spec->derived.num_saved; i++)
    text_add(&w->out, "out[%d] = %s;\n", i, body_value(w, f->spec->derived.saved[i]));
  close_function(w);
}

/* ---- the file
 * ---------------------------------------------------------------------------------------------------------
 */

int emit_forward_parts(const writer *w, forward_part out[FORWARD_PARTS]) {
  const emit_form *f = w->f;
  const int step = HAS_HEAD | HAS_ROW, num_state = traced(w)->online.num_state;
  const forward_part part[FORWARD_PARTS] = {{HAS_ELEMENT, &f->score, 1},
                                            {HAS_HEAD | HAS_Q | HAS_KV, &f->distance_term, 1},
                                            {HAS_ELEMENT, &f->score_with, 1},
                                            {HAS_HEAD | HAS_Q | HAS_KV, f->line_index, f->num_line_index},
                                            {HAS_ELEMENT, &f->shift, 1},
                                            {HAS_HEAD, &f->small_limit, 1},
                                            {HAS_HEAD, &f->small_weight, 1},
                                            {step, f->init, num_state},
                                            {step, f->step.term, f->step.num_red},
                                            {step, &f->step.prob, 1},
                                            {step, &f->step.rescale, 1},
                                            {step, f->step.next, num_state},
                                            {step, f->raise, f->lags ? num_state : 0},
                                            {step, &f->out_scale, 1},
                                            {step, &f->lse, 1},
                                            {step, f->spec->derived.saved, f->spec->derived.num_saved}};
  memcpy(out, part, sizeof part);
  return FORWARD_PARTS;
}

/* Of what a forward kernel never calls nothing is computed ahead: a strip would have it of each key. */
static void plan_slots(writer *w) {
  forward_part part[FORWARD_PARTS];
  if (w->f->plan->pass == LUATTN_BACKWARD) plan_gradient_slots(w);
  for (int i = emit_forward_parts(w, part); i-- > 0;) writer_plan(w, part[i].has, part[i].root, part[i].n);
  writer_plan(w, HAS_ELEMENT, &w->f->keep, 1);
  writer_fix(w);
}

/* What the kernels of this pass repeat. */
static void choose_outlined(writer *w, text *why) {
  const emit_form *f = w->f;
  const traced_spec *t = traced(w);
  const plan_copies copies = tiles_copies(f->plan);
  const int step = HAS_HEAD | HAS_ROW;
  const slots *row = &w->slot[SLOTS_ROW], *col = &w->slot[SLOTS_COL];
  outline_add(w, "row", HAS_HEAD | HAS_Q, copies.row, row->ref, row->count);
  outline_add(w, "col", HAS_HEAD | HAS_KV, copies.col, col->ref, col->count);
  outline_add(w, "keep", HAS_ELEMENT, copies.element, &f->keep, 1);
  outline_add(w, "query_mod", 0, copies.mod, &t->query_mod, 1);
  outline_add(w, "key_mod", 0, copies.mod, &t->key_mod, 1);
  outline_add(w, "value_mod", 0, copies.mod, &t->value_mod, 1);
  if (f->plan->pass == LUATTN_FORWARD) {
    outline_add(w, "score", HAS_ELEMENT, copies.element, &f->score, 1);
    for (int k = 0; k < f->step.num_red; k++)
      outline_add(w, term_name[k], step, copies.element, &f->step.term[k], 1);
    if (f->prob_term < 0) outline_add(w, "prob", step, copies.element, &f->step.prob, 1);
  } else {
    add_gradient_hooks(w, &copies);
  }
  outline_choose(w, why);
}

static void section(writer *w, const char *title) { text_add(&w->out, "\n// %s\n", title); }

static bool sums_gradients(const traced_spec *t) {
  bool any = t->num_scalars > 0;
  for (int i = 0; i < t->num_inputs; i++) any |= t->input[i].grad != 0;
  return any;
}

/* What the spec does without is not even read: that takes time too. */
static void write_includes(writer *w) {
  const traced_spec *t = traced(w);
  text_add(&w->out, "#pragma once\n");
  if (!sums_gradients(t)) text_add(&w->out, "#define LUATTN_NO_GRADIENTS    // of inputs and scalars\n");
  if (!emit_bounds_reals(w))
    text_add(&w->out, "#define LUATTN_NO_REAL_BOUNDS  // the mask computes with integers\n");
  if (w->f->score_bounds != IR_NONE)
    text_add(&w->out, "#define LUATTN_SCORE_BOUNDS    // some tiles may have no weight\n");
  if (emit_bounds_small(w))
    text_add(&w->out, "#define LUATTN_SMALL_BOUNDS    // of 32 bits, at every length\n");
  text_add(&w->out,
           "#include \"config.cuh\"\n#include \"contract/contract.cuh\"\n#include \"ops/math.cuh\"\n"
           "#include \"ops/input.cuh\"\n#include \"ops/input_bounds.cuh\"\n\n");
  if (w->f->mask->num_stats == 0 || plan_prepares_stats(w->f->plan, w->f->score_bounds != IR_NONE))
    text_add(&w->out, "#define LUATTN_NO_STATS  // nor an entry for them\n");
  if (t->query_mod == IR_NONE && t->key_mod == IR_NONE && t->value_mod == IR_NONE)
    text_add(&w->out, "#define LUATTN_NO_MODS   // of q, k and v, nor an entry for them\n");
}

static void write_spec(writer *w) {
  const traced_spec *t = traced(w);
  text_add(&w->out,
           "// spec.cuh: the spec '%s', written by luattn from %s. The names are those of contract/contract.cuh.\n",
           t->name, writer_file(w));
  write_includes(w);
  text_add(&w->out, "\nstruct Spec {\n");
  w->out.indent++;
  types(w);
  section(w, "What a kernel has to know.");
  emit_constants(w);
  section(w, "Computed once per head, per row and per column.");
  for (int kind = 0; kind < SLOTS_KINDS; kind++) writer_slots(w, kind);
  section(w, w->f->step_unit  ? "Elements. A score is handed on with the factors of the online function."
             : w->f->dot_unit ? "Elements. A score is handed on divided by the scale."
                              : "Elements.");
  elements(w);
  section(w, "Online function.");
  online(w);
  section(w, "Backward.");
  emit_gradients(w);
  section(w, "Elements of q, k and v.");
  emit_mods(w);
  section(w, "Tiles.");
  emit_tiles(w);
  w->out.indent--;
  text_add(&w->out, "};\n");
}

/* sizeof(struct Row) on the device. */
static int slot_bytes(const writer *w, int kind) {
  const int real = w->f->plan->dtype == LUATTN_F64 ? 8 : 4;
  int size = 0, align = 1;
  for (int i = 0; i < w->slot[kind].count; i++) {
    const ir_type t = ir_typeof(w->f->g, w->slot[kind].ref[i]);
    const int bytes = t == IR_REAL ? real : t == IR_INT ? 4 : 1;
    size = (size + bytes - 1) / bytes * bytes + bytes;
    if (bytes > align) align = bytes;
  }
  return (size + align - 1) / align * align;
}

/* Of an element of the input that scores read along the keys. */
static int line_bytes(const writer *w) {
  return traced(w)->input[ir_index_of(ir_get(w->f->g, w->f->line))].dtype == LUATTN_INPUT_F32 ? 4 : 2;
}

/* Whether a kernel keeps Row. Where queries come from their side, the sm90 backward does without for masks.
 */
static bool needs_rows(const writer *w) {
  const plan *p = w->f->plan;
  if (p->family != LUATTN_SM90 || p->pass != LUATTN_BACKWARD || tiles_wide(p) || w->grad_reads_row)
    return true;
  return w->f->keep != IR_NONE && (emit_column_ranges(w) == 0 || w->f->mask->columns.apart);
}

static int outlined_work(const writer *w) {
  int work = 0;
  for (int i = 0; i < w->num_hooks; i++)
    if (w->hook[i].outlined) work += w->hook[i].cost * w->hook[i].copies;
  return work;
}

/* mask_analyse knows how long the integers of the spec stay exact; positions that became floats count to
 * 2^24. */
static int64_t max_len(const emit_form *f) {
  const int64_t limit = f->mask->max_len, exact = 1 << 24;
  return f->positions_in_real && f->plan->dtype != LUATTN_F64 && limit > exact ? exact : limit;
}

/* For these other tiles are better than the table's first of sm90; it need not be found out by ptxas, each of
 * whose answers takes as long as a compilation. Forward: lines of an input that shared memory has no room
 * for; up to head dim 64 three consumers beside a hook that is called, who have registers for 96 columns of
 * scores, and beside weights masked by scores of 0, which do not take the places of their scores: two
 * consumers are faster; and lines, whose fetchers need the registers of the third. Backward: gradients of
 * pairs; and lines, which take a register for each score. */
static bool is_crowded(writer *w, const plan *p, const plan_rows *rows) {
  if (p->family != LUATTN_SM90) return false;
  const bool calls = outlined_work(w) > 0, full = p->head_dim > 48 || p->head_dim_v > 48;
  if (p->pass == LUATTN_FORWARD && rows->line_bytes > 0 && !tiles_have_lines(p, rows)) return true;
  if (p->pass == LUATTN_FORWARD)
    return p->tile_m == 192 &&
           ((calls && p->tile_n == 128) || (full && w->f->mask_by_zero) || rows->line_bytes > 0);
  bool pairs = false;
  for (int i = 0; i < traced(w)->num_inputs; i++) pairs |= w->f->pairs[i] != 0;
  return p->tile_m == 128 && ((full && !calls && pairs) || rows->line_bytes > 0);
}

luattn_status emit_spec(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p,
                        emitted *out, luattn_error *err) {
  emit_form *f = arena_new(a, sizeof *f);
  writer *w = arena_new(a, sizeof *w);
  if (f == NULL || w == NULL)
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", spec->traced.name);
  TRY(form_build(a, spec, mask, p, f, err));
  TRY(writer_open(w, f, err));
  TRY(collect_acc(w, err));
  text why;
  text_init(&why, a);
  if (f->bounded)
    text_add(&why, "scores lie within %g and %g: no running maximum\n", f->score_lo, f->score_hi);
  if (f->score_bounds != IR_NONE)
    text_add(
        &why,
        "scores fall with positions: at long lengths tiles are skipped whose weights norms of q and k prove "
        "to be negligible (luattn_args.skip)\n");
  plan_slots(w);
  if (!w->failed) choose_outlined(w, &why);
  if (!w->failed) write_spec(w);
  out->outlined = text_get(&why);
  out->outlined_work = outlined_work(w);
  out->spec = text_get(&w->out);
  out->num_bwd_rows = f->num_rows;
  out->rows.row_bytes = needs_rows(w) ? slot_bytes(w, SLOTS_ROW) : 0;
  out->rows.bwd_row_bytes = (f->num_rows > 0 ? f->num_rows : 1) * (p->dtype == LUATTN_F64 ? 8 : 4);
  out->rows.num_acc = w->num_acc;
  out->rows.num_stats = mask->num_stats;
  out->rows.skips = f->score_bounds != IR_NONE;
  out->rows.sums_distances = f->sum[SUM_DISTANCE].count > 0;
  out->rows.line_bytes = emit_has_line(w) ? line_bytes(w) : 0;
  out->rows.col_bytes = !w->failed && emit_reads_columns(w) ? slot_bytes(w, SLOTS_COL) : 0;
  if (out->rows.col_bytes % 4 != 0) out->rows.col_bytes = 0;
  out->rows.has_distance_term = emit_has_distance_term(w);
  memcpy(out->pairs, f->pairs, sizeof out->pairs);
  out->max_len = max_len(f);
  out->small_dots = f->small_limit != IR_NONE;
  out->crowded = !w->failed && is_crowded(w, p, &out->rows);
  if (text_failed(&w->out) || out->spec == NULL || out->outlined == NULL || ir_failed(f->g) ||
      arena_failed(a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", spec->traced.name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL,
                       "emit: %s: an expression holds what no kernel has; please report the spec",
                       spec->traced.name);
  return LUATTN_OK;
}
