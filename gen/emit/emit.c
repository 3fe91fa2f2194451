/* emit.c: prints spec.cuh, in the order of templates/contract/contract.cuh. */
#include "gen/emit/sections.h"

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
  if (lowered_is_called(w->f, name)) {
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
  const slots *s = &w->f->slot[kind];
  const bool shift = kind == SLOTS_ROW && w->f->row_shift != IR_NONE, empty = s->count == 0 && !shift;
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
           w->f->facts.has_bias_row ? writer_input_type(w, ir_index_of(ir_get(w->f->g, w->f->bias_row)))
                                    : "float");
  slot_type(w, SLOTS_HEAD, "Head", "the same for all of one (b, h)");
  slot_type(w, SLOTS_ROW, "Row", "of one query position");
  slot_type(w, SLOTS_COL, "Col", "of one key position");
  array_type(w, "State", traced(w)->online.num_state);
  array_type(w, "BwdRow", w->f->num_rows);
  array_type(w, "Acc", w->f->num_acc);
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
  const bool has_term = w->f->facts.has_distance_term;
  if (has_term) {
    expression_function(w, "distance_term", term, HAS_HEAD | HAS_Q | HAS_KV, "", NO_TURN,
                        w->f->distance_term);
  } else {
    open_function(w, term);
    text_add(&w->out, "return Real(0);\n");
    close_function(w);
  }
  if ((has_term || w->f->facts.has_bias_row) && w->f->score_with != IR_NONE) {
    expression_function(w, "score_with", with, HAS_ELEMENT, "", score_turn, w->f->score_with);
    return;
  }
  open_function(w, with);
  text_add(&w->out, "return score(p, s, head, row, col, dot, q, kv);\n");
  close_function(w);
}

static void score_line(writer *w) {
  const lowered *f = w->f;
  open_function(w, "InputLine<LineElem> score_line(" PH ", int q, int kv)");
  if (w->f->facts.has_bias_row) {
    body_begin(w, HAS_HEAD | HAS_Q | HAS_KV, "");
    body_lines(w, f->bias_row_index, f->num_bias_row_index);
    text_add(&w->out, "return input_line<LineElem, %d>(p.input[%u]", f->bias_row_q_axis,
             ir_index_of(ir_get(f->g, f->bias_row)));
    for (int i = 0; i < f->num_bias_row_index; i++)
      text_add(&w->out, ", %s", body_value(w, f->bias_row_index[i]));
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
  if (w->f->row_shift != IR_NONE) {
    expression_function(w, "shift", "Real shift(" PHR ", Position q, Position kv)", HAS_ELEMENT, "", NO_TURN,
                        w->f->row_shift);
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
  small(w, "Real small_limit(" PH ")", w->f->softcap_limit);
  small(w, "Real small_weight(" PH ", Real dot, Real term)", w->f->softcap_prob);
}

/* `Result made; made.x[i] = ..; return made;` */
static void array_body(writer *w, const char *type, const ir_ref *values, int n) {
  body_lines(w, values, n);
  text_add(&w->out, n > 0 ? "%s made;\n" : "return {};\n", type);
  for (int i = 0; i < n; i++) text_add(&w->out, "made.x[%d] = %s;\n", i, body_value(w, values[i]));
  if (n > 0) text_add(&w->out, "return made;\n");
}

static void terms(writer *w) {
  const int n = w->f->step.num_red, has = HAS_HEAD | HAS_ROW;
  const char *call[SPEC_MAX_RED] = {NULL};
  for (int k = 0; k < n; k++) {
    if (!lowered_is_called(w->f, lowered_term_name[k])) continue;
    outline_open(w, "Real", lowered_term_name[k], has, "old", &w->f->step.term[k], 1, 0);
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
  const lowered *f = w->f;
  const int has = HAS_HEAD | HAS_ROW;
  open_function(w, "State raise(" STEP ")");
  if (f->lazy_rescale) {
    body_begin(w, has, "old");
    array_body(w, "State", f->raise, traced(w)->online.num_state);
  } else {
    text_add(&w->out, "return old;\n");
  }
  close_function(w);
}

static void online(writer *w) {
  const lowered *f = w->f;
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
  if (!w->f->facts.bounds_reals)
    text_add(&w->out, "#define LUATTN_NO_REAL_BOUNDS  // the mask computes with integers\n");
  if (w->f->score_bounds != IR_NONE)
    text_add(&w->out, "#define LUATTN_SCORE_BOUNDS    // some tiles may have no weight\n");
  if (w->f->facts.bounds_small)
    text_add(&w->out, "#define LUATTN_SMALL_BOUNDS    // of 32 bits, at every length\n");
  text_add(&w->out,
           "#include \"config.cuh\"\n#include \"contract/contract.cuh\"\n#include \"ops/math.cuh\"\n"
           "#include \"ops/input.cuh\"\n#include \"ops/input_bounds.cuh\"\n\n");
  if (w->f->mask->num_stats == 0 || tiles_prepares_stats(w->f->plan, w->f->score_bounds != IR_NONE))
    text_add(&w->out, "#define LUATTN_NO_STATS  // nor an entry for them\n");
  if (t->query_mod == IR_NONE && t->key_mod == IR_NONE && t->value_mod == IR_NONE)
    text_add(&w->out, "#define LUATTN_NO_MODS   // of q, k and v, nor an entry for them\n");
}

static void write_spec(writer *w) {
  const traced_spec *t = traced(w);
  text_add(&w->out,
           "// spec.cuh: the spec '%s', written by luattn from %s. The names are those of "
           "contract/contract.cuh.\n",
           t->name, writer_file(w));
  write_includes(w);
  text_add(&w->out, "\nstruct Spec {\n");
  w->out.indent++;
  types(w);
  section(w, "What a kernel has to know.");
  emit_constants(w);
  section(w, "Computed once per head, per row and per column.");
  for (int kind = 0; kind < SLOTS_KINDS; kind++) emit_slots(w, kind);
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

luattn_status emit_spec(const lowered *f, const char **out, luattn_error *err) {
  writer *w = arena_new(f->a, sizeof *w);
  const char *name = f->spec->traced.name;
  if (w == NULL || !writer_open(w, f))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", name);
  emit_name_slots(w);
  if (!w->failed) write_spec(w); /* a name that is missing was refused memory */
  *out = text_get(&w->out);
  if (text_failed(&w->out) || *out == NULL || arena_failed(f->a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", name);
  if (w->failed)
    return luattn_fail(err, LUATTN_INTERNAL,
                       "emit: %s: an expression holds what no kernel has; please report the spec", name);
  return LUATTN_OK;
}
