/* slots.c: names the members of struct Head, Row and Col, and prints the functions that fill them. */
#include <string.h>

#include "gen/emit/sections.h"

/* Names a slot after its value; a number makes the name unique and different from C++ keywords. */
static const char *stem(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const traced_spec *t = &w->f->spec->traced;
  if (n->op == IR_LOAD) return t->input[ir_index_of(n) % SPEC_INPUT_TANGENT].name;
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR) return t->scalar_name[ir_index_of(n)];
  if (n->op == IR_VAR) return ir_var_name(ir_var_of(n));
  if (n->op == IR_TO_REAL && ir_get(w->f->g, n->arg[0])->op == IR_VAR)
    return ir_var_name(ir_var_of(ir_get(w->f->g, n->arg[0])));
  return ir_op_name((ir_op)n->op);
}

void emit_name_slots(writer *w) {
  static const char *const owner[SLOTS_KINDS] = {"head", "row", "col"};
  for (int kind = 0; kind < SLOTS_KINDS; kind++) {
    const slots *s = &w->f->slot[kind];
    for (int i = 0; i < s->count; i++)
      w->slot_name[s->ref[i]] = writer_format(w, "%s.%s_%d", owner[kind], stem(w, s->ref[i]), i);
  }
}

static void slots_body(writer *w, const char *type, const slots *s) {
  body_lines(w, s->ref, s->count);
  text_add(&w->out, "%s made;\n", type);
  for (int i = 0; i < s->count; i++)
    text_add(&w->out, "made.%s = %s;\n", strchr(w->slot_name[s->ref[i]], '.') + 1, body_value(w, s->ref[i]));
  text_add(&w->out, "return made;\n");
}

static const char *const type_name[SLOTS_KINDS] = {"Head", "Row", "Col"};

static void slot_type(writer *w, int kind) {
  static const char *const what[SLOTS_KINDS] = {"the same for all of one (b, h)", "of one query position",
                                                "of one key position"};
  const slots *s = &w->f->slot[kind];
  const bool shift = kind == SLOTS_ROW && w->f->row_shift != IR_NONE;
  if (s->count == 0 && !shift) {
    text_add(&w->out, "struct %s {};\n", type_name[kind]);
    return;
  }
  text_add(&w->out, "struct %s {  // %s\n", type_name[kind], what[kind]);
  w->out.indent++;
  for (int i = 0; i < s->count; i++)
    text_add(&w->out, "%s %s;\n", writer_type(w, s->ref[i]), strchr(w->slot_name[s->ref[i]], '.') + 1);
  if (shift) text_add(&w->out, "Real shift;  // of the tile at hand: the kernel's\n");
  w->out.indent--;
  text_add(&w->out, "};\n");
}

static void slot_function(writer *w, int kind) {
  const char *const signature[SLOTS_KINDS] = {"Head head(" P ")", "Row row(" PH ", int q)",
                                              writer_format(w, "Col col(" PH ", %skv)", writer_key(w))};
  static const char *const name[SLOTS_KINDS] = {"head", "row", "col"};
  const slots *s = &w->f->slot[kind];
  const char *call = NULL;
  if (s->count == 0) {
    text_add(&w->out, "LUATTN_FN %s { return {}; }\n", signature[kind]);
    return;
  }
  if (lowered_is_called(w->f, name[kind])) {
    outline_open(w, type_name[kind], name[kind], lowered_slot_has[kind], "", s->ref, s->count, 0);
    slots_body(w, type_name[kind], s);
    call = outline_close(w);
  }
  open_function(w, signature[kind]);
  body_begin(w, lowered_slot_has[kind], "");
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    slots_body(w, type_name[kind], s);
  close_function(w);
}

void emit_hoisted(writer *w) {
  text_add(&w->out, "\n");
  open_struct(w, "Hoisted", NULL, NULL, 0);
  text_add(&w->out, "using Real = %s;\n", w->f->plan->dtype == LUATTN_F64 ? "double" : "float");
  called_ops(w);
  for (int kind = 0; kind < SLOTS_KINDS; kind++) slot_type(w, kind);
  for (int kind = 0; kind < SLOTS_KINDS; kind++) slot_function(w, kind);
  close_struct(w);
}
