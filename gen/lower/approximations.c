/* approximations.c: where kernels may take the coarse forms of sigmoids and hyperbolic tangents,
 * op_sigmoid2_alternating and op_rough_tanh: in a weight that is rounded to a half type and used for nothing else, and
 * in a score of which row sums see exponentials alone, as docs/numerics.md derives. Elements have them by their places
 * in a thread, so that what asks for the same bits whichever thread computes it has exact ones.
 */
#include "gen/lower/lowering.h"

/* Marks what `roots` need, down to exponentials: exp(x) is off by as much of itself as x is. */
static bool *mark_to_exponentials(const lowered *f, const ir_ref *roots, int n) {
  const uint32_t count = ir_count(f->g);
  bool *need = arena_array(f->a, count, sizeof *need);
  for (int i = 0; need != NULL && i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (ir_ref r = count; need != NULL && r-- > 1;) {
    const ir_node *node = ir_get(f->g, r);
    if (!need[r] || node->op == IR_EXP || node->op == IR_EXP2) continue;
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  return need;
}

static bool reads_score(const lowered *f, ir_ref argument) {
  const bool *need = mark_to_exponentials(f, &argument, 1);
  bool reads = need == NULL;
  for (ir_ref r = 1; need != NULL && r < ir_count(f->g); r++) reads |= need[r] && ir_is_var(f->g, r, VAR_SCORE);
  return reads;
}

/* Whether a row sum adds up scores otherwise than as exponentials: what they have in common is then the sum's error. */
static bool sums_scores(const lowered *f) {
  const traced_online *o = &lowered_traced(f)->online;
  const uint32_t count = ir_count(f->g);
  bool *need = arena_array(f->a, count, sizeof *need), any = need == NULL;
  for (int i = 0; need != NULL && i < o->num_state; i++) need[o->next[i]] = true;
  if (need != NULL && o->prob != IR_NONE) need[o->prob] = true;
  for (ir_ref r = count; need != NULL && r-- > 1;) {
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; need[r] && i < node->nargs; i++) need[node->arg[i]] = true;
    any |= need[r] && node->op == IR_REDUCE_SUM && reads_score(f, node->arg[0]);
  }
  return any;
}

void approximate_nothing(lowered *f) { f->approximate = APPROXIMATE_NOWHERE; }

void approximate_score(lowered *f) {
  f->approximate = f->plan->deterministic || sums_scores(f) ? APPROXIMATE_NOWHERE : APPROXIMATE_SCORE;
}

/* A step without reductions gives weights alone. */
void approximate_step(lowered *f) {
  f->approximate = f->plan->deterministic || f->step.num_red > 0 ? APPROXIMATE_NOWHERE : APPROXIMATE_WEIGHT;
}

/* P and dS are rounded, and numbers of a row are not computed again. */
void approximate_gradient(lowered *f) {
  const ir_ref score = lowered_traced(f)->score_mod;
  const bool weight = f->step.num_red == 0 && (score == IR_NONE || !ir_uses_op(f->g, score, IR_SIGMOID));
  f->approximate = f->plan->deterministic ? APPROXIMATE_NOWHERE : weight ? APPROXIMATE_WEIGHT : APPROXIMATE_SCORE;
}
