/* spec_score.c: prints struct Score, which turns a dot product into a score. */
#include "gen/emit/sections.h"

static const char score_element[] = "kv.offset + kv.offset / 8";

static void bias_row(writer *w) {
  const lowered *f = w->f;
  text_add(&w->out, "using BiasElem = %s;\n", writer_input_type(w, ir_index_of(ir_get(f->g, f->bias_row))));
  open_function(w, "InputRow<BiasElem> bias_row(" PH ", int q, int kv)");
  body_begin(w, HAS_HEAD | HAS_Q | HAS_KV, "");
  body_lines(w, f->bias_row_index, f->num_bias_row_index);
  const unsigned input = ir_index_of(ir_get(f->g, f->bias_row));
  const int32_t last = writer_traced(w)->input[input].axis[f->num_bias_row_index - 1];
  /* Backward reads rows up to their ends: those of packed sequences end with the sequence. Forward copies whole
   * words. */
  const bool ends = f->plan->packed && !writer_forward(w) && last == LUATTN_AXIS_KV;
  text_add(&w->out, "return %sinput_row<BiasElem, %d>(p.inputs.input[%u]", ends ? "end_row(" : "", f->bias_row_q_axis,
           input);
  body_row_index(w, input, f->bias_row_index, f->num_bias_row_index);
  text_add(&w->out, ends ? "), s.kv_len);\n" : ");\n");
  close_function(w);
}

static void score_with(writer *w) {
  const char *const with = writer_format(
      w, "Real score_with(" PHR BREAK "const Col &col, Real dot, Position q, %skv, Real term)", writer_key_place(w));
  if (w->f->score_with != IR_NONE) {
    expression_function(w, "score_with", with, HAS_ELEMENT, "", score_element, w->f->score_with);
    return;
  }
  open_function(w, with);
  text_add(&w->out, "return score(p, s, head, row, col, dot, q, kv);\n");
  close_function(w);
}

static void score_bounds(writer *w) {
  open_function(w, "iv score_bounds(" P ", int q0, int q1, int kv0, int kv1, double least, double most)");
  bounds_lines(w, &w->f->score_bounds, 1);
  text_add(&w->out, "return %s;\n", bounds_of(w, w->f->score_bounds));
  close_function(w);
}

static void constants(writer *w) {
  const lowered *f = w->f;
  const lowered_facts *t = &f->facts;
  const bool forward = writer_steps(w), no_term = !t->has_distance_term && !t->has_displacement_term;
  const constant flags[] = {
      {"has_score", true, !forward},
      {"score_reads_col", t->score_reads_col, !forward},
      {"reads_columns", t->reads_columns, !forward},
      {"has_row_shift", true, f->row_shift == IR_NONE},
      {"has_distance_term", t->has_distance_term, no_term},
      {"has_displacement_term", t->has_displacement_term, no_term},
      {"adds_displacement_term", t->adds_displacement_term, no_term},
      {"has_bias_row", true, !t->has_bias_row},
      {"bias_row_shared", t->has_bias_row && !ir_uses(f->g, f->bias_row, VAR_B), !t->has_bias_row},
      {"has_score_bounds", true, f->score_bounds == IR_NONE}};
  const constant numbers[] = {{"score_reads", t->score_reads, !forward}};
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", numbers, COUNT(numbers));
}

const char *emit_score(writer *w) {
  const lowered *f = w->f;
  const bool forward = writer_steps(w), has_term = f->facts.has_distance_term, has_row = f->facts.has_bias_row,
             over_grid = f->facts.has_displacement_term;
  const absence lacks[] = {{!forward, "ScoreInGrad"},
                           {!has_term && !over_grid, "NoDistanceTerm"},
                           {!has_row, "NoBiasRow"},
                           {forward && f->row_shift == IR_NONE, "NoRowShift"},
                           {f->score_bounds == IR_NONE, "NoScoreBounds"}};
  text_add(&w->out, "\n");
  if (forward && f->step_unit)
    text_add(&w->out, "// A score is handed on with the factors of the online function.\n");
  else if (forward && f->dot_unit)
    text_add(&w->out, "// A score is handed on divided by the scale.\n");
  open_struct(w, "Score", "Hoisted", lacks, COUNT(lacks));
  constants(w);
  if (forward)
    expression_function(
        w, "score",
        writer_format(w, "Real score(" PHR BREAK "const Col &col, Real dot, Position q, %skv)", writer_key_place(w)),
        HAS_ELEMENT, "", score_element, f->score);
  if (has_term)
    expression_function(w, "distance_term", "Real distance_term(" PH ", Position q, Position kv)",
                        HAS_HEAD | HAS_Q | HAS_KV, "", NO_ELEMENT, f->distance_term);
  if (over_grid)
    expression_function(w, "displacement_term", "Real displacement_term(" PH ", Origin q, const Displacement &kv)",
                        HAS_HEAD | HAS_Q | HAS_KV, "", NO_ELEMENT, f->distance_term);
  if (has_row) bias_row(w);
  if (forward && (has_term || over_grid || has_row)) score_with(w);
  if (f->row_shift != IR_NONE)
    expression_function(w, "row_shift",
                        writer_format(w, "Real row_shift(" PHR ", Position q, %skv)", writer_key_place(w)), HAS_ELEMENT,
                        "", NO_ELEMENT, f->row_shift);
  if (f->score_bounds != IR_NONE) score_bounds(w);
  close_struct(w);
  return "Score";
}
