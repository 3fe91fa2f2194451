/* called_hooks.c: prints outlined hooks with their parameters, and their calls. */
#include <string.h>

#include "gen/emit/write.h"

void outline_open(writer *w, const char *type, const char *name, int has, const char *state, const ir_ref *roots, int n,
                  int flags) {
  text call;
  text_init(&call, w->f->a);
  body_begin(w, has, state);
  const bool with_p =
      lowered_choose_parameters(w->f, has, roots, n, w->need, w->param) || (flags & OUTLINE_WITH_P) != 0;
  const bool is_template = (flags & OUTLINE_WITH_INPUTS) != 0;
  if (is_template) text_add(&w->out, "template <bool with_inputs>\n");
  text_add(&w->out, "LUATTN_OUTLINED %s %s_outlined(%s", type, name, with_p ? "const LuattnParams &p" : "");
  if (with_p && w->f->plan->offsets) text_add(&w->out, ", Offsets whole");
  if (with_p && entry_rows_are_read(w)) text_add(&w->out, ", EntryRows entry_rows");
  text_add(&call, "%s_outlined%s(%s", name, is_template ? "<with_inputs>" : "", with_p ? "p" : "");
  if (with_p && w->f->plan->offsets) text_add(&call, ", whole");
  if (with_p && entry_rows_are_read(w)) text_add(&call, ", entry_rows");
  const char *comma = with_p ? ", " : "";
  if ((flags & OUTLINE_WITH_KEPT) != 0) {
    text_add(&w->out, "%sbool kept", comma);
    text_add(&call, "%sacc.lanes.kept", comma);
    comma = ", ";
  }
  for (uint32_t r = 1; r < w->f->num_nodes; r++) {
    if (w->param[r] == 0) continue;
    text_add(&w->out, "%s%s %s", comma, writer_type(w, r), writer_parameter(w, r));
    text_add(&call, "%s%s", comma, body_value(w, r));
    comma = ", ";
  }
  text_add(&w->out, ") {\n");
  text_add(&call, ")");
  w->out.indent++;
  w->outlined = true;
  w->calls_ops = lowered_calls_ops(w->f, name);
  w->call = text_get(&call);
  if (w->call == NULL) w->failed = true;
}

const char *outline_close(writer *w) {
  w->outlined = w->calls_ops = false;
  w->out.indent--;
  text_add(&w->out, "}\n");
  return w->call;
}

/* Defines the long functions that hooks call. */
void called_ops(writer *w) {
  bool printed[IR_OP_COUNT] = {false};
  bool any = w->f->sums_call_ops;
  for (int i = 0; i < w->f->num_hooks; i++) any |= w->f->hook[i].calls_ops;
  for (uint32_t r = 1; any && r < w->f->num_nodes; r++) {
    const ir_node *n = ir_get(w->f->g, r);
    const char *spelling = ir_op_cuda((ir_op)n->op);
    if (!lowered_is_long(w->f, r) || printed[n->op]) continue;
    printed[n->op] = true;
    const int name = (int)strcspn(spelling, "(");
    text_add(&w->out, "LUATTN_OUTLINED Real %.*s_called(%s) { return %.*s(%s); }\n", name, spelling,
             n->nargs == 2 ? "Real x, Real y" : "Real x", name, spelling, n->nargs == 2 ? "x, y" : "x");
  }
}
