/* dual_mods.c: prints struct Mods where kernels have tangents: input mods with their tangents, and in backward the tangents
 * of their derivatives. */
#include <string.h>

#include "gen/emit/sections.h"

enum { MODS = 3 };
static const struct {
  const char *name, *grad_name, *constant, *values, *absence, *row, *places;
} known[MODS] = {
    {"query_mod_dual", "query_mod_grad_dual", "has_query_mod", "query_grad_values", "NoQueryMod", "QueryRow", "q"},
    {"key_mod_dual", "key_mod_grad_dual", "has_key_mod", "key_grad_values", "NoKeyMod", "KeyRow", "kv"},
    {"value_mod_dual", "value_mod_grad_dual", "has_value_mod", "value_grad_values", "NoValueMod", "ValueRow", "kv"}};

static void value_with_tangent(writer *w, const char *name, const char *row, ir_ref value, ir_ref tangent) {
  const ir_ref root[] = {value, tangent};
  open_function(w, writer_format(w, "Dual<Real> %s(" P ", Real x, Real x_tangent, %sint i, int d)", name, row));
  body_begin(w, 0, "");
  body_lines(w, root, 2);
  text_add(&w->out, "return {%s, ", body_value(w, value));
  text_add(&w->out, "%s};\n", tangent == IR_NONE ? "Real(0)" : body_value(w, tangent));
  close_function(w);
}

static void derivative_tangent(writer *w, const char *name, const char *row, const derived_mod *d) {
  open_function(w, writer_format(w,
                                 "Real %s(" P ", Real x, Real x_tangent, Real g, Real g_tangent, %sint i, int d, "
                                 "Grad::Acc &acc)",
                                 name, row));
  body_begin(w, 0, "");
  add_terms(w, &d->terms);
  if (d->dx == IR_NONE)
    text_add(&w->out, "return Real(0);\n");
  else
    body_return(w, d->dx);
  close_function(w);
}

static void constants(writer *w, const ir_ref mod[MODS]) {
  const plan *p = w->f->plan;
  const unsigned given = (unsigned)(p->tangents & (LUATTN_TANGENT_Q | LUATTN_TANGENT_K | LUATTN_TANGENT_V));
  const constant bits = {"given_tangents", (int)given, false};
  constant flags[2 * MODS + 1] = {{"has_dual_mods", true, false}};
  for (int i = 0; i < MODS; i++) {
    flags[1 + 2 * i] = (constant){known[i].constant, true, mod[i] == IR_NONE};
    flags[2 + 2 * i] = (constant){known[i].values, (p->mod_values >> i & 1) != 0, false};
  }
  print_constants(w, "bool", flags, COUNT(flags));
  print_constants(w, "int", &bits, 1);
}

const char *emit_dual_mods(writer *w) {
  const traced_spec *t = writer_traced(w);
  const spec_tangents *of = &w->f->tangents;
  const ir_ref mod[MODS] = {t->query_mod, t->key_mod, t->value_mod},
               tangent[MODS] = {of->query_mod, of->key_mod, of->value_mod};
  absence lacks[MODS];
  if (!w->f->plan->has_mods) return "NoMods";
  for (int i = 0; i < MODS; i++) lacks[i] = (absence){mod[i] == IR_NONE, known[i].absence};
  text_add(&w->out, "\n");
  open_struct(w, "Mods", "Hoisted", lacks, COUNT(lacks));
  constants(w, mod);
  for (int i = 0; i < MODS; i++) {
    if (mod[i] == IR_NONE) continue;
    w->places = known[i].places;
    const row_tables *rows = t->rows[i];
    const char *row = "";
    if (rows != NULL) {
      row = writer_format(w, "const DualRowValues<Real, %s::count> &row, ", known[i].row);
      emit_row_map(w, known[i].row, rows, w->f->row_width[i]);
    }
    value_with_tangent(w, known[i].name, row, mod[i], tangent[i]);
    if (!writer_forward(w)) derivative_tangent(w, known[i].grad_name, row, w->f->mod_grad[i]);
  }
  w->places = "q";
  close_struct(w);
  return "Mods";
}
