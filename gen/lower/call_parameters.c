/* call_parameters.c: chooses the parameters of an outlined hook: slots and variables. The hook computes
 * everything else. */
#include <string.h>

#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

typedef struct call {
  const lowered *f;
  int has; /* slots that the caller has */
  bool *need;
  uint8_t *param;
} call;

/* Whether the node is read through p, which every call passes. */
static bool is_in_params(const ir_node *n) {
  if (n->op == IR_LOAD || n->op == IR_LISTED || n->op == IR_RANDOM) return true;
  if (n->op != IR_VAR) return false;
  const ir_var v = ir_var_of(n);
  return v == VAR_SCALAR || v == VAR_SCALE || v == VAR_HEADS || v == VAR_HEADS_KV;
}

/* A slot that can be recomputed. */
static bool of_position(const call *w, ir_ref r) {
  const int position = lowered_deps(w->f, r) & (DEP_Q | DEP_KV);
  return position != 0 && (w->has & ((position & DEP_Q) != 0 ? HAS_Q : HAS_KV)) != 0;
}

/* Marks what the body computes and what it takes as parameters, with positional slots either all passed or
 * all recomputed. */
static void mark_params(call *w, const ir_ref *roots, int n, bool positional) {
  memset(w->need, 0, w->f->num_nodes * sizeof *w->need);
  memset(w->param, 0, w->f->num_nodes * sizeof *w->param);
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) w->need[roots[i]] = true;
  for (uint32_t r = w->f->num_nodes; r-- > 1;) {
    const ir_node *node = ir_get(w->f->g, r);
    if (!w->need[r]) continue;
    if (lowered_in_slot(w->f, w->has, r) &&
        (!of_position(w, r) || (positional && w->f->cost[r] >= POLICY_HANDED_ON_MIN)))
      w->param[r] = PARAM_SLOT;
    else if (node->op == IR_VAR && !is_in_params(node))
      w->param[r] = PARAM_VARIABLE;
    for (int i = 0; i < node->nargs && w->param[r] == 0; i++) w->need[node->arg[i]] = true;
  }
}

static int count_cost(call *w, int *positional) {
  int cost = 0;
  *positional = 0;
  for (uint32_t r = 1; r < w->f->num_nodes; r++) {
    if (w->need[r] && w->param[r] == 0) cost += lowered_op_cost(w->f, r);
    *positional += w->param[r] == PARAM_SLOT && of_position(w, r);
  }
  return cost;
}

/* Positional slots are passed if that saves enough for each: they share most of their subexpressions. */
static void choose_positional(call *w, const ir_ref *roots, int n) {
  int num_slots, none;
  mark_params(w, roots, n, true);
  const int with = count_cost(w, &num_slots);
  if (num_slots == 0) return;
  mark_params(w, roots, n, false);
  if (count_cost(w, &none) - with >= num_slots * POLICY_HANDED_ON_MIN) mark_params(w, roots, n, true);
}

/* Whether one instruction computes the node from other parameters. */
static bool is_made_again(const call *w, ir_ref r) {
  const ir_node *n = ir_get(w->f->g, r);
  double constant;
  if (n->nargs == 0 || lowered_op_cost(w->f, r) > 1) return false;
  for (int i = 0; i < n->nargs; i++)
    if (w->param[n->arg[i]] == 0 && !ir_is_const(w->f->g, n->arg[i], &constant)) return false;
  return true;
}

bool lowered_choose_parameters(const lowered *f, int has, const ir_ref *roots, int n, bool *need, uint8_t *param) {
  call w = {f, has, need, param};
  bool with_p = false;
  choose_positional(&w, roots, n);
  for (uint32_t r = f->num_nodes; r-- > 1;) {
    if (need[r] && param[r] == 0) with_p |= is_in_params(ir_get(f->g, r));
    if (param[r] != 0 && is_made_again(&w, r)) param[r] = 0;
  }
  return with_p;
}
