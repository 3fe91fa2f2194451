/* contract_hooks.c: hoists the expressions of each function of the contract, and chooses those that are called. */
#include <string.h>

#include "gen/lower/lowering.h"

/* Sets facts.grad_reads_row: the hooks of backward's main kernel other than `keep` have slots in Row. */
static void plan_gradient_slots(lowered *f) {
  ir_ref roots[LOWERED_MAX_TERM_ROOTS];
  const int in_prepare = HAS_HEAD | HAS_ROW | HAS_Q;
  ir_ref grads[LOWERED_MAX_GRADS];
  const int num_grads = lowered_grads(f, grads);
  for (int i = 0; i < num_grads; i++) hoist_plan(f, HAS_ELEMENT, &grads[i], 1);
  hoist_plan(f, HAS_ELEMENT, roots, lowered_term_roots(f, &f->element_terms, roots));
  for (int kind = 0; kind < SUM_KINDS; kind++)
    hoist_plan(f, lowered_sum_has[kind], roots, lowered_term_roots(f, &f->sum[kind], roots));
  if (f->distance_step != 0) hoist_plan(f, HAS_HEAD, &f->sum[SUM_DISTANCE].term[0].factor, 1);
  if (f->pairs_in_row) hoist_plan(f, HAS_HEAD, &f->sum[SUM_ELEMENT].term[0].factor, 1);
  for (uint32_t r = 1; r < f->num_nodes; r++) f->facts.grad_reads_row |= f->slot_kind[r] == 1 + SLOTS_ROW;
  hoist_plan(f, HAS_ELEMENT, f->pass_value, f->num_pass_values);
  hoist_plan(f, HAS_ELEMENT, f->pass_tangent, f->num_pass_values);
  hoist_plan(f, in_prepare, f->row, f->num_rows);
  hoist_plan(f, in_prepare, roots, lowered_term_roots(f, &f->row_terms, roots));
}

static void plan_all_slots(lowered *f) {
  forward_part part[FORWARD_PARTS];
  if (f->plan->pass == LUATTN_BACKWARD) plan_gradient_slots(f);
  for (int i = hooks_of_forward(f, part); i-- > 0;) hoist_plan(f, part[i].has, part[i].root, part[i].n);
  hoist_plan(f, HAS_ELEMENT, &f->keep, 1);
}

/* Hoists nothing for hooks that a forward kernel never calls: each slot of a key takes shared memory. */
void hooks_plan_slots(lowered *f) {
  plan_all_slots(f);
  if (!f->failed && hoist_crowds_head(f)) {
    memset(f->slot_kind, 0, f->num_nodes * sizeof *f->slot_kind);
    f->reads_head_again = true;
    f->facts.grad_reads_row = false;
    plan_all_slots(f);
  }
  hoist_fix(f);
}

static void add_gradient_hook(lowered *f, const char *name, int has, int copies, const ir_ref *values, int n,
                              const derived_terms *terms) {
  ir_ref roots[LOWERED_MAX_TERM_ROOTS + LOWERED_MAX_GRADS];
  int num_roots = lowered_term_roots(f, terms, roots);
  for (int i = 0; i < n; i++) roots[num_roots++] = values[i];
  outline_add(f, name, has, copies, roots, num_roots);
}

static void add_gradient_hooks(lowered *f, const plan_copies *copies) {
  static const char *const of_mod[] = {"query_mod_grad", "key_mod_grad", "value_mod_grad"};
  ir_ref grads[LOWERED_MAX_GRADS];
  const int num_grads = lowered_grads(f, grads);
  add_gradient_hook(f, "grad", HAS_ELEMENT, copies->element, grads, num_grads, &f->element_terms);
  for (int i = 0; i < 3 && f->plan->tangents == 0; i++) /* beside tangents a loop has them, of one element */
    add_gradient_hook(f, of_mod[i], 0, copies->mod, &f->mod_grad[i]->dx, 1, &f->mod_grad[i]->terms);
}

/* Lists the hooks that the kernels of this pass repeat, and chooses those to call. */
void hooks_choose_called(lowered *f, text *why) {
  const traced_spec *t = lowered_traced(f);
  const plan_copies copies = tiles_copies(f->plan);
  const int step = HAS_HEAD | HAS_ROW;
  const slots *row = &f->slot[SLOTS_ROW], *col = &f->slot[SLOTS_COL];
  outline_add(f, "row", HAS_HEAD | HAS_Q, copies.row, row->ref, row->count);
  outline_add(f, "col", HAS_HEAD | HAS_KV, copies.col, col->ref, col->count);
  outline_add(f, "keep", HAS_ELEMENT, copies.element, &f->keep, 1);
  if (f->plan->tangents == 0) outline_add(f, "query_mod", 0, copies.mod, &t->query_mod, 1);
  for (int i = 0; i < 2 && f->plan->tangents == 0; i++) /* of luattn_mod or luattn_append */
    outline_add(f, i == 0 ? "key_mod" : "value_mod", 0, copies.mod,
                t->append_mod[i] != IR_NONE ? &t->append_mod[i]
                : i == 0                    ? &t->key_mod
                                            : &t->value_mod,
                1);
  if (f->plan->pass == LUATTN_FORWARD) {
    const bool without_term = f->plan->axes > 0 && f->distance_term != IR_NONE; /* its table is filled apart */
    outline_add(f, "score", HAS_ELEMENT, copies.element, without_term ? &f->score_with : &f->score, 1);
    for (int k = 0; k < f->step.num_red; k++)
      outline_add(f, lowered_term_name[k], step, copies.element, &f->step.term[k], 1);
    if (f->prob_term < 0) outline_add(f, "prob", step, copies.element, &f->step.prob, 1);
  } else {
    add_gradient_hooks(f, &copies);
  }
  outline_choose(f, why);
  outline_choose_ops(f);
}
