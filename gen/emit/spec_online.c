/* spec_online.c: prints struct Online: the online function, and what forward saves of a row for backward; and struct
 * Merge, how parts of a row are merged. */
#include "gen/emit/sections.h"

#define STEP PHR BREAK "const State &old, const Real *red"
#define PARTS PHR BREAK "const Online::State &mine, const Online::State &theirs"

enum { HAS = HAS_HEAD | HAS_ROW };

static void state_function(writer *w, const char *signature, const char *state, const ir_ref *values) {
  open_function(w, signature);
  body_begin(w, HAS, state);
  return_array(w, values, writer_traced(w)->online.num_state);
  close_function(w);
}

static void terms(writer *w) {
  const int n = w->f->step.num_red;
  const char *call[SPEC_MAX_RED] = {NULL};
  for (int k = 0; k < n; k++) {
    if (!lowered_is_called(w->f, lowered_term_name[k])) continue;
    outline_open(w, "Real", lowered_term_name[k], HAS, "old", &w->f->step.term[k], 1, 0);
    body_return(w, w->f->step.term[k]);
    call[k] = outline_close(w);
  }
  text_add(&w->out, "template <int K>\n");
  open_function(w, "Real term(" STEP ", Real score, int element)");
  for (int k = 0; k < n; k++) {
    text_add(&w->out, k == 0 ? "if constexpr (K == %d) {\n" : "} else if constexpr (K == %d) {\n", k);
    w->out.indent++;
    body_begin(w, HAS, "old");
    w->element = "element";
    if (call[k] != NULL)
      text_add(&w->out, "return %s;\n", call[k]);
    else
      body_return(w, w->f->step.term[k]);
    w->out.indent--;
  }
  text_add(&w->out, "}\n");
  close_function(w);
}

static void save(writer *w) {
  const ir_ref *saved = w->f->saved;
  const int num_saved = w->f->spec->derived.num_saved;
  open_function(w, "void save(" PHR ", const State &state, Real *out)");
  body_begin(w, HAS, "state");
  body_lines(w, saved, num_saved);
  for (int i = 0; i < num_saved; i++) text_add(&w->out, "out[%d] = %s;\n", i, body_value(w, saved[i]));
  close_function(w);
}

/* Prints the reductions and the state. */
static void tables(writer *w) {
  static const char *const truth[] = {"false", "true"};
  const lowered *f = w->f;
  const int num_state = writer_traced(w)->online.num_state;
  const char *kinds[SPEC_MAX_RED], *shifted[SPEC_MAX_RED], *deferred[SPEC_MAX_STATE];
  for (int k = 0; k < f->step.num_red; k++)
    kinds[k] = f->red_place[k]                    ? "REDUCE_PLACE"
               : f->step.kind[k] == IR_REDUCE_MAX ? "REDUCE_MAX"
               : f->red_deferred[k]               ? "REDUCE_SUM_DEFERRED"
                                                  : "REDUCE_SUM";
  for (int k = 0; k < f->step.num_red; k++) shifted[k] = truth[f->red_shifted[k]];
  for (int i = 0; i < num_state; i++) deferred[i] = truth[f->state_deferred[i]];
  print_table(w, "int", "reduction", kinds, f->step.num_red, "REDUCE_SUM");
  if (f->row_shift != IR_NONE) print_table(w, "bool", "red_shifted", shifted, f->step.num_red, "false");
  print_table(w, "bool", "state_deferred", deferred, num_state, "false");
}

static void constants(writer *w) {
  const lowered *f = w->f;
  const bool forward = writer_steps(w);
  const int num_saved = f->spec->derived.num_saved, num_state = writer_traced(w)->online.num_state;
  const constant flags[] = {{"has_online", true, !forward},
                            {"has_lse", true, f->lse == IR_NONE},
                            {"has_rescale", true, !forward || !f->has_rescale},
                            {"lazy_rescaling", true, !forward || !f->lazy_rescale},
                            {"has_softcap_poly", true, !forward || f->softcap_limit == IR_NONE},
                            {"mask_by_inf", f->mask_by_inf, !forward},
                            {"mask_by_zero", f->mask_by_zero, !forward},
                            {"prob_is_sigmoid", f->prob_is_sigmoid, !forward}};
  const constant numbers[] = {{"num_saved", num_saved, num_saved == 0},
                              {"num_state", num_state, !forward},
                              {"num_reductions", f->step.num_red, !forward},
                              {"prob_term", f->prob_term, !forward}};
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", numbers, COUNT(numbers));
}

static void steps(writer *w) {
  const lowered *f = w->f;
  state_function(w, "State init(" PHR ")", "", f->init);
  if (f->step.num_red > 0) terms(w);
  if (f->prob_term < 0)
    expression_function(w, "prob", "Real prob(" STEP ", Real score, int element)", HAS, "old", "element", f->step.prob);
  if (f->has_rescale)
    expression_function(w, "rescale", "Real rescale(" STEP ")", HAS, "old", NO_ELEMENT, f->step.rescale);
  state_function(w, "State next(" STEP ")", "old", f->step.next);
  if (f->lazy_rescale) state_function(w, "State raise_max(" STEP ")", "old", f->raise);
  if (f->softcap_limit == IR_NONE) return;
  expression_function(w, "softcap_poly_limit", "Real softcap_poly_limit(" PH ")", HAS_HEAD, "", NO_ELEMENT,
                      f->softcap_limit);
  expression_function(w, "softcap_poly_prob", "Real softcap_poly_prob(" PH ", Real dot, Real term)", HAS_HEAD, "",
                      NO_ELEMENT, f->softcap_prob);
}

const char *emit_online(writer *w) {
  const lowered *f = w->f;
  const bool forward = writer_steps(w);
  const absence lacks[] = {{!forward, "NoOnline"},
                           {f->lse == IR_NONE, "NoLse"},
                           {f->spec->derived.num_saved == 0, "NoSavedRows"},
                           {forward && !f->has_rescale, "NoRescale"},
                           {forward && !f->lazy_rescale, "NoLazyRescaling"},
                           {forward && f->softcap_limit == IR_NONE, "NoSoftcapPoly"}};
  text_add(&w->out, "\n");
  open_struct(w, "Online", "Hoisted", lacks, COUNT(lacks));
  if (forward) {
    const int num_state = writer_traced(w)->online.num_state;
    text_add(&w->out, "struct State { Real x[%d]; };\n", num_state > 0 ? num_state : 1);
  }
  constants(w);
  if (forward) {
    tables(w);
    steps(w);
    expression_function(w, "out_scale", "Real out_scale(" PHR ", const State &state)", HAS, "state", NO_ELEMENT,
                        f->out_scale);
    if (f->lse != IR_NONE)
      expression_function(w, "lse", "Real lse(" PHR ", const State &state)", HAS, "state", NO_ELEMENT, f->lse);
    if (f->spec->derived.num_saved > 0) save(w);
  }
  close_struct(w);
  return "Online";
}

const char *emit_merge(writer *w) {
  const lowered *f = w->f;
  if (!f->has_merge) return "NoMerge";
  const constant flags[] = {{"has_merge", true, false}, {"merge_weighs", f->merge_weighs, false}};
  text_add(&w->out, "\n");
  open_struct(w, "Merge", "Hoisted", NULL, 0);
  print_constants(w, "bool", flags, COUNT(flags));
  state_function(w, "Online::State merge(" PARTS ")", "mine", f->merged);
  expression_function(w, "merge_factor", "Real merge_factor(" PARTS ")", HAS, "mine", NO_ELEMENT, f->merge_factor);
  close_struct(w);
  return "Merge";
}
