/* called_hooks.c: prints hooks out of line, with the parameters that they are given, and the calls of them.
 */
#include <string.h>

#include "gen/emit/write.h"

/* Read through p, which is given whole. */
static bool is_in_params(const ir_node *n) {
  if (n->op == IR_LOAD) return true;
  if (n->op != IR_VAR) return false;
  const ir_var v = ir_var_of(n);
  return v == VAR_SCALAR || v == VAR_SCALE || v == VAR_HEADS || v == VAR_HEADS_KV;
}

/* What is handed on lies in a register of every thread until the call. A number of a row or a column that
 * took fewer instructions than this is computed again instead, where its position is at hand. */
enum { HANDED_ON_MIN = 32 };

/* A slot that can be computed again. */
static bool of_position(writer *w, ir_ref r) {
  const int position = lowered_deps(w->f, r) & (DEP_Q | DEP_KV);
  return position != 0 && (w->has & ((position & DEP_Q) != 0 ? HAS_Q : HAS_KV)) != 0;
}

/* Marks what the body computes or is given, with a slot as a parameter, or all positional ones computed
 * again. */
static void mark_params(writer *w, const ir_ref *roots, int n, bool positional) {
  memset(w->need, 0, w->f->num_nodes * sizeof *w->need);
  memset(w->param, 0, w->f->num_nodes * sizeof *w->param);
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) w->need[roots[i]] = true;
  for (uint32_t r = w->f->num_nodes; r-- > 1;) {
    const ir_node *node = ir_get(w->f->g, r);
    if (!w->need[r]) continue;
    if (writer_in_slot(w, r) && (!of_position(w, r) || (positional && w->f->cost[r] >= HANDED_ON_MIN)))
      w->param[r] = PARAM_SLOT;
    else if (node->op == IR_VAR && !is_in_params(node))
      w->param[r] = PARAM_VARIABLE;
    for (int i = 0; i < node->nargs && w->param[r] == 0; i++) w->need[node->arg[i]] = true;
  }
}

static int count_cost(writer *w, int *positional) {
  int cost = 0;
  *positional = 0;
  for (uint32_t r = 1; r < w->f->num_nodes; r++) {
    if (w->need[r] && w->param[r] == 0) cost += lowered_op_cost(w->f, r);
    *positional += w->param[r] == PARAM_SLOT && of_position(w, r);
  }
  return cost;
}

/* Positional slots are handed on if together they save that much for each: they share most of what they are
 * made of. */
static void choose_positional(writer *w, const ir_ref *roots, int n) {
  int num_slots, none;
  mark_params(w, roots, n, true);
  const int with = count_cost(w, &num_slots);
  if (num_slots == 0) return;
  mark_params(w, roots, n, false);
  if (count_cost(w, &none) - with >= num_slots * HANDED_ON_MIN) mark_params(w, roots, n, true);
}

/* One instruction makes it of other parameters. */
static bool is_made_again(const writer *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  double constant;
  if (n->nargs == 0 || lowered_op_cost(w->f, r) > 1) return false;
  for (int i = 0; i < n->nargs; i++)
    if (w->param[n->arg[i]] == 0 && !ir_is_const(w->f->g, n->arg[i], &constant)) return false;
  return true;
}

/* Chooses the parameters; true if p is one. */
static bool choose_params(writer *w, const ir_ref *roots, int n) {
  bool with_p = false;
  choose_positional(w, roots, n);
  for (uint32_t r = w->f->num_nodes; r-- > 1;) {
    if (w->need[r] && w->param[r] == 0) with_p |= is_in_params(ir_get(w->f->g, r));
    if (w->param[r] != 0 && is_made_again(w, r)) w->param[r] = 0;
  }
  return with_p;
}

void outline_open(writer *w, const char *type, const char *name, int has, const char *state,
                  const ir_ref *roots, int n, int flags) {
  text call;
  text_init(&call, w->f->a);
  body_begin(w, has, state);
  const bool with_p = choose_params(w, roots, n) || (flags & OUTLINE_WITH_P) != 0;
  const bool is_template = (flags & OUTLINE_WITH_INPUTS) != 0;
  if (is_template) text_add(&w->out, "template <bool with_inputs>\n");
  text_add(&w->out, "LUATTN_OUTLINED %s %s_outlined(%s", type, name, with_p ? "const LuattnParams &p" : "");
  text_add(&call, "%s_outlined%s(%s", name, is_template ? "<with_inputs>" : "", with_p ? "p" : "");
  const char *comma = with_p ? ", " : "";
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
  w->call = text_get(&call);
  if (w->call == NULL) w->failed = true;
}

const char *outline_close(writer *w) {
  w->outlined = false;
  w->out.indent--;
  text_add(&w->out, "}\n");
  return w->call;
}
