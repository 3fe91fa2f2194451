/* dual_hooks.c: prints struct Tangents: the hooks of a forward kernel together with their tangents. */
#include "gen/emit/sections.h"

#define DUAL_STEP                                                              \
  PHR BREAK "const Online::State &old, const Online::State &old_tangent" BREAK \
            "const Real *red, const Real *red_tangent"
#define ENDED PHR BREAK "const Online::State &state, const Online::State &state_tangent"

enum { HAS = HAS_HEAD | HAS_ROW };

/* Prints `return {value, tangent};`. */
static void return_dual(writer *w, ir_ref value, ir_ref tangent) {
  const ir_ref root[] = {value, tangent};
  body_lines(w, root, 2);
  text_add(&w->out, "return {%s, ", body_value(w, value));
  text_add(&w->out, "%s};\n", tangent == IR_NONE ? "Real(0)" : body_value(w, tangent));
}

static void dual_function(writer *w, const char *signature, int has, const char *state, const char *element,
                          ir_ref value, ir_ref tangent) {
  open_function(w, signature);
  body_begin(w, has, state);
  w->element = element;
  return_dual(w, value, tangent);
  close_function(w);
}

static void dual_terms(writer *w) {
  const lowered *f = w->f;
  text_add(&w->out, "template <int K>\n");
  open_function(w, "Dual<Real> term_dual(" DUAL_STEP BREAK "Real score, Real score_tangent, int element)");
  for (int k = 0; k < f->step.num_red; k++) {
    text_add(&w->out, k == 0 ? "if constexpr (K == %d) {\n" : "} else if constexpr (K == %d) {\n", k);
    w->out.indent++;
    body_begin(w, HAS, "old");
    w->element = "element";
    return_dual(w, f->step.term[k], f->tangents.term[k]);
    w->out.indent--;
  }
  text_add(&w->out, "}\n");
  close_function(w);
}

static void states(writer *w, const char *signature, const char *state, const ir_ref *values, const ir_ref *tangents) {
  const int n = writer_traced(w)->online.num_state;
  ir_ref root[2 * SPEC_MAX_STATE];
  for (int i = 0; i < n; i++) root[i] = values[i], root[n + i] = tangents[i];
  open_function(w, signature);
  body_begin(w, HAS, state);
  body_lines(w, root, 2 * n);
  text_add(&w->out, "return {{{");
  for (int i = 0; i < 2 * n; i++)
    text_add(&w->out, "%s%s",
             i == 0   ? ""
             : i == n ? "}}, {{"
                      : ", ",
             root[i] == IR_NONE ? "Real(0)" : body_value(w, root[i]));
  text_add(&w->out, n > 0 ? "}}};\n" : "}}, {{}}};\n");
  close_function(w);
}

/* What backward reads of a row besides lse. */
static void save_dual(writer *w) {
  const lowered *f = w->f;
  const int n = f->spec->derived.num_saved;
  open_function(w, "void save_dual(" ENDED ", Real *saved, Real *saved_tangent)");
  body_begin(w, HAS, "state");
  body_lines(w, f->saved, n), body_lines(w, f->saved_tangent, n);
  for (int i = 0; i < n; i++) {
    const ir_ref tangent = f->saved_tangent[i];
    text_add(&w->out, "saved[%d] = %s;\n", i, body_value(w, f->saved[i]));
    text_add(&w->out, "saved_tangent[%d] = %s;\n", i, tangent == IR_NONE ? "Real(0)" : body_value(w, tangent));
  }
  close_function(w);
}

static void constants(writer *w) {
  const lowered *f = w->f;
  const spec_tangents *t = &f->tangents;
  const char *terms[SPEC_MAX_RED];
  for (int k = 0; k < f->step.num_red; k++) terms[k] = t->term[k] != IR_NONE ? "true" : "false";
  const uint64_t bits = f->plan->tangents;
  const unsigned of = f->plan->tangents_of;
  const bool backward = f->plan->pass == LUATTN_BACKWARD;
  const constant flags[] = {{"has_tangents", true, false},
                            {"tangent_of_dout", (bits & LUATTN_TANGENT_DOUT) != 0, !backward},
                            {"tangent_of_dlse", (bits & LUATTN_TANGENT_DLSE) != 0, !backward},
                            {"tangent_of_q", (of & LUATTN_TANGENT_Q) != 0, false},
                            {"tangent_of_k", (of & LUATTN_TANGENT_K) != 0, false},
                            {"tangent_of_v", (of & LUATTN_TANGENT_V) != 0, false},
                            {"has_score_tangent", t->score_mod != IR_NONE, false},
                            {"score_tangent_as_is", t->score_mod == ir_variable(f->g, VAR_SCORE_TANGENT, 0), false},
                            {"has_prob_tangent", t->prob != IR_NONE, false},
                            {"has_rescale_tangent", t->rescale != IR_NONE, false},
                            {"has_out_tangent", t->out != IR_NONE, false},
                            {"centres", f->centres, false},
                            {"dot_unit", f->dot_unit, false}};
  const constant lagging = {"lagging_max", f->max_lags ? f->max_state : -1, false};
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", &lagging, 1);
  print_table(w, "bool", "term_has_tangent", terms, f->step.num_red, "false");
}

const char *emit_tangents(writer *w) {
  const lowered *f = w->f;
  const spec_tangents *t = &f->tangents;
  text_add(&w->out, "\n");
  open_struct(w, "Tangents", "Hoisted", NULL, 0);
  constants(w);
  dual_function(w,
                writer_format(w,
                              "Dual<Real> score_dual(" PHR BREAK "const Col &col, Real dot, Real score_tangent, "
                              "Position q, %skv)",
                              writer_key_place(w)),
                HAS_ELEMENT, "", "kv.offset + kv.offset / 8", f->score, t->score_mod);
  states(w, "DualState<Online::State> init_dual(" PHR ")", "", f->init, t->init);
  if (f->step.num_red > 0) dual_terms(w);
  if (f->prob_term < 0)
    dual_function(w, "Dual<Real> prob_dual(" DUAL_STEP BREAK "Real score, Real score_tangent, int element)", HAS, "old",
                  "element", f->step.prob, t->prob);
  if (f->has_rescale)
    dual_function(w, "Dual<Real> rescale_dual(" DUAL_STEP ")", HAS, "old", NO_ELEMENT, f->step.rescale, t->rescale);
  states(w, "DualState<Online::State> next_dual(" DUAL_STEP ")", "old", f->step.next, t->next);
  dual_function(w, "Dual<Real> out_dual(" ENDED ")", HAS, "state", NO_ELEMENT, f->out_scale, t->out);
  if (f->lse != IR_NONE) dual_function(w, "Dual<Real> lse_dual(" ENDED ")", HAS, "state", NO_ELEMENT, f->lse, t->lse);
  if (lowered_dual_gradient(f) && f->spec->derived.num_saved > 0) save_dual(w);
  close_struct(w);
  return "Tangents";
}
