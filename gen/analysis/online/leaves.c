/* leaves.c: the parameters that an online function reads, and the terms of their gradients. */
#include "gen/analysis/online/online.h"
#include "gen/analysis/online/steps.h"

bool online_add_term(ir *g, derived_terms *terms, ir_ref leaf, ir_ref value) {
  const ir_node n = *ir_get(g, leaf);
  derived_term new_term = {.input = -1, .value = value};
  if (n.op == IR_LOAD) {
    new_term.input = (int)n.imm.integer;
    new_term.num_index = n.nargs;
    for (int i = 0; i < n.nargs; i++) new_term.index[i] = n.arg[i];
  } else {
    new_term.scalar = (int)ir_index_of(&n);
  }
  for (int k = 0; k < terms->count; k++) {
    derived_term *old = &terms->term[k];
    bool same = old->input == new_term.input && old->scalar == new_term.scalar && old->num_index == new_term.num_index;
    for (int i = 0; i < new_term.num_index && same; i++) same = old->index[i] == new_term.index[i];
    if (!same) continue;
    old->value = ir_op2(g, IR_ADD, old->value, value);
    old->factor = IR_NONE;
    return true;
  }
  if (terms->count == DERIVED_MAX_TERMS) return false;
  terms->term[terms->count++] = new_term;
  return true;
}

static void find_leaves(const traced_spec *t, uint8_t *seen, ir_ref r, ir_ref *leaf, int *count, int max) {
  if (r == IR_NONE || seen[r]) return;
  seen[r] = 1;
  const ir_node *n = ir_get(t->g, r);
  const bool scalar = n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR;
  const bool input = n->op == IR_LOAD && n->type == IR_REAL && t->input[n->imm.integer].grad;
  if (scalar || input) {
    if (*count < max) leaf[*count] = r;
    ++*count;
  }
  for (int i = 0; i < n->nargs; i++) find_leaves(t, seen, n->arg[i], leaf, count, max);
}

int online_leaves(const traced_spec *t, const ir_ref *roots, int n, ir_ref *leaf, int max) {
  int count = 0;
  uint8_t *seen = arena_array(t->a, ir_count(t->g), 1);
  if (seen == NULL) return -1;
  for (int i = 0; i < n; i++) find_leaves(t, seen, roots[i], leaf, &count, max);
  return count;
}

int derivation_leaves(const derivation *d, ir_ref leaf[ONLINE_MAX_LEAVES]) {
  ir_ref root[SPEC_MAX_RED + 2];
  int n = 0;
  for (int k = 0; k < d->num_red; k++) root[n++] = d->term[k];
  root[n++] = d->p;
  if (d->o->lse >= 0) root[n++] = d->final[d->o->lse];
  return online_leaves(d->t, root, n, leaf, ONLINE_MAX_LEAVES);
}
