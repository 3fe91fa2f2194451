/* slots.c: prints the names of what struct Head, Row and Col hold, and the functions that fill them. */
#include <string.h>

#include "gen/emit/sections.h"

/* A slot is named for what it holds: the number keeps names apart, and off the words of C++. */
static const char *stem(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  const traced_spec *t = &w->f->spec->traced;
  if (n->op == IR_LOAD) return t->input[ir_index_of(n)].name;
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
  if (s->count == 0) {
    text_add(&w->out, "return {};\n");
    return;
  }
  body_lines(w, s->ref, s->count);
  text_add(&w->out, "%s made;\n", type);
  for (int i = 0; i < s->count; i++)
    text_add(&w->out, "made.%s = %s;\n", strchr(w->slot_name[s->ref[i]], '.') + 1, body_value(w, s->ref[i]));
  text_add(&w->out, "return made;\n");
}

void emit_slots(writer *w, int kind) {
  static const char *const type[SLOTS_KINDS] = {"Head", "Row", "Col"};
  static const char *const signature[SLOTS_KINDS] = {
      "Head head(const LuattnParams &p, const Site &s)",
      "Row row(const LuattnParams &p, const Site &s, const Head &head, int q)",
      "Col col(const LuattnParams &p, const Site &s, const Head &head, int kv)"};
  static const char *const name[SLOTS_KINDS] = {"head", "row", "col"};
  const slots *s = &w->f->slot[kind];
  const char *call = NULL;
  if (lowered_is_called(w->f, name[kind])) {
    outline_open(w, type[kind], name[kind], lowered_slot_has[kind], "", s->ref, s->count, 0);
    slots_body(w, type[kind], s);
    call = outline_close(w);
  }
  text_add(&w->out, "LUATTN_FN %s {\n", signature[kind]);
  w->out.indent++;
  body_begin(w, lowered_slot_has[kind], "");
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    slots_body(w, type[kind], s);
  w->out.indent--;
  text_add(&w->out, "}\n");
}
