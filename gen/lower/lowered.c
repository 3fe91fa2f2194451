/* lowered.c: what the hooks of a lowered spec are: their expressions in the order of the contract, and which are
 * called. */
#include "gen/lower/lowered.h"

#include <string.h>

#include "gen/lower/lowering.h"

const char *const lowered_term_name[SPEC_MAX_RED] = {"term_0", "term_1", "term_2", "term_3",
                                                     "term_4", "term_5", "term_6", "term_7"};
const int lowered_sum_has[SUM_KINDS] = {[SUM_DISTANCE] = HAS_HEAD | HAS_Q | HAS_KV,
                                        [SUM_ROW] = HAS_HEAD | HAS_Q,
                                        [SUM_COL] = HAS_HEAD | HAS_KV,
                                        [SUM_ELEMENT] = HAS_HEAD | HAS_Q | HAS_KV,
                                        [SUM_LINEAR] = HAS_HEAD | HAS_Q | HAS_KV};

int hooks_of_forward(const lowered *f, forward_part out[FORWARD_PARTS]) {
  const int step = HAS_HEAD | HAS_ROW, num_state = lowered_traced(f)->online.num_state;
  const spec_tangents *t = &f->tangents;
  const forward_part part[FORWARD_PARTS] = {{HAS_ELEMENT, &f->score, 1},
                                            {HAS_HEAD | HAS_Q | HAS_KV, &f->distance_term, 1},
                                            {HAS_ELEMENT, &f->score_with, 1},
                                            {HAS_HEAD | HAS_Q | HAS_KV, f->bias_row_index, f->num_bias_row_index},
                                            {HAS_ELEMENT, &f->row_shift, 1},
                                            {HAS_HEAD, &f->softcap_limit, 1},
                                            {HAS_HEAD, &f->softcap_prob, 1},
                                            {step, f->init, num_state},
                                            {step, f->step.term, f->step.num_red},
                                            {step, &f->step.prob, 1},
                                            {step, &f->step.rescale, 1},
                                            {step, f->step.next, num_state},
                                            {step, f->raise, f->lazy_rescale ? num_state : 0},
                                            {step, &f->out_scale, 1},
                                            {step, &f->lse, 1},
                                            {step, f->saved, f->spec->derived.num_saved},
                                            {step, f->merged, f->has_merge ? num_state : 0},
                                            {step, &f->merge_factor, f->has_merge ? 1 : 0},
                                            {HAS_ELEMENT, &t->score_mod, 1},
                                            {step, t->init, num_state},
                                            {step, t->term, f->step.num_red},
                                            {step, &t->prob, 1},
                                            {step, &t->rescale, 1},
                                            {step, t->next, num_state},
                                            {step, &t->out, 1},
                                            {step, &t->lse, 1},
                                            {step, f->saved_tangent, f->spec->derived.num_saved}};
  memcpy(out, part, sizeof part);
  return FORWARD_PARTS;
}

bool *lowered_needed(const lowered *f, int has, const ir_ref *roots, int n) {
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  if (need == NULL) return NULL;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = f->num_nodes; r-- > 1;) {
    if (!need[r] || lowered_in_slot(f, has, r)) continue;
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return need;
}

bool lowered_calls_ops(const lowered *f, const char *name) {
  for (int i = 0; i < f->num_hooks; i++)
    if (strcmp(f->hook[i].name, name) == 0) return f->hook[i].calls_ops;
  return false;
}

bool lowered_is_called(const lowered *f, const char *name) {
  for (int i = 0; i < f->num_hooks; i++)
    if (strcmp(f->hook[i].name, name) == 0) return f->hook[i].outlined;
  return false;
}
