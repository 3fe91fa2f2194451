/* outline.c: chooses the hooks that are called instead of inlined.
 *
 * A kernel unrolls over the scores that a thread holds, so an inlined hook has up to a hundred copies, and
 * compile time grows with the product. Small hooks are best inlined. Large ones become separate functions,
 * compiled once and called for each score; they take only values, because a reference to the kernel's state
 * would force it from registers to memory.
 */
#include <string.h>

#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"

/* Whether a producer warp of the sm90 forward, which has few registers, computes the hook. ptxas 13.0 crashes
 * on its calls of functions with a local array, such as sin and cos, which reduce large arguments. */
static bool is_fetched(const plan *p, const char *name) {
  return plan_kernel(p)->fetches_columns && strcmp(name, "col") == 0;
}

void outline_add(lowered *f, const char *name, int has, int copies, const ir_ref *roots, int n) {
  const bool *need = lowered_needed(f, has, roots, n);
  ir_ref *kept = arena_array(f->a, (size_t)n + 1, sizeof *kept);
  if (need == NULL || kept == NULL || f->num_hooks == LOWERED_MAX_HOOKS) {
    f->failed = true;
    return;
  }
  if (n > 0) memcpy(kept, roots, (size_t)n * sizeof *kept);
  hook *h = &f->hook[f->num_hooks++];
  *h = (hook){.name = name, .copies = copies, .has = has, .num_roots = n, .roots = kept, .need = need};
  for (uint32_t r = 1; r < f->num_nodes; r++) {
    if (!need[r] || lowered_in_slot(f, has, r)) continue;
    const ir_op op = ir_get(f->g, r)->op;
    h->cost += lowered_op_cost(f, r);
    h->inlined |= (op == IR_SIN || op == IR_COS) && is_fetched(f->plan, name);
  }
}

/* The next hook to outline: of the hooks with at least `least` instructions, the one with the most inlined
 * code. */
static hook *largest(lowered *f, int least) {
  hook *most = NULL;
  for (int i = 0; i < f->num_hooks; i++) {
    hook *h = &f->hook[i];
    if (h->outlined || h->inlined || h->cost < least) continue;
    if (most == NULL || h->cost * h->copies > most->cost * most->copies) most = h;
  }
  return most;
}

/* Calls `grad` where a warp's lanes share its sums: 32 terms and their exchanges are too much for copies. */
static void call_for_lanes(lowered *f, text *why) {
  for (int i = 0; i < f->num_hooks; i++) {
    hook *h = &f->hook[i];
    if (f->num_lane_sums == 0 || strcmp(h->name, "grad") != 0) continue;
    h->outlined = true;
    text_add(why, "hook grad: out of line, since it has %d sums, more than %d: a warp's lanes share them\n",
             f->num_lane_sums, LOWERED_MAX_ACC);
  }
}

/* Calls the largest hooks until what is inlined compiles fast. */
static void outline_largest(lowered *f, text *why) {
  int inlined = 0;
  for (int i = 0; i < f->num_hooks; i++)
    if (!f->hook[i].outlined) inlined += f->hook[i].cost * f->hook[i].copies;
  for (hook *h;
       (h = largest(f, inlined > POLICY_INLINED_MAX ? POLICY_OUTLINED_MIN : POLICY_OUTLINED_ALWAYS)) != NULL;) {
    h->outlined = true;
    inlined -= h->cost * h->copies;
    text_add(why,
             "hook %s: out of line, one copy of about %d instructions instead of %d inlined, which would compile "
             "slowly\n",
             h->name, h->cost, h->copies);
  }
}

/* Where the sm90 forward does not stage numbers of keys, consumers compute them for each column that a thread has,
 * which a function can do for them; producers, which cannot call it, have no part in that. */
static bool leave_to_consumers(lowered *f) {
  if (!plan_kernel(f->plan)->fetches_columns) return false;
  if (!facts_score_reads_col(f) || facts_stage_columns(f)) return false;
  for (int i = 0; i < f->num_hooks; i++) {
    hook *h = &f->hook[i];
    if (strcmp(h->name, "col") != 0) continue;
    h->copies = tiles_copies(f->plan).col_apart;
    h->inlined = false;
    return true;
  }
  return false;
}

void outline_choose(lowered *f, text *why) {
  call_for_lanes(f, why);
  outline_largest(f, why);
  if (leave_to_consumers(f)) outline_largest(f, why);
}

bool lowered_is_long(const lowered *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const char *spelling = ir_op_cuda((ir_op)n->op);
  return n->type == IR_REAL && spelling != NULL && strncmp(spelling, "op_", 3) == 0 && strstr(spelling, "%t") == NULL &&
         lowered_op_cost(f, r) >= POLICY_LONG_OP;
}

/* ptxas crashes on calls of functions with a local array in warps that released registers (is_fetched), such
 * as the warps that fill Row and Col in the sm90 family. */
static bool may_call(const lowered *f, const char *name) {
  return !f->plan->family->fills_slots_apart || (strcmp(name, "row") != 0 && strcmp(name, "col") != 0);
}

/* Counts the instructions of long functions that are inlined in a function with parameters `has`. */
static int long_work(const lowered *f, int has, const bool *need) {
  int work = 0;
  for (uint32_t r = 1; r < f->num_nodes; r++)
    if (need[r] && !lowered_in_slot(f, has, r) && lowered_is_long(f, r)) work += lowered_op_cost(f, r);
  return work;
}

/* Decides for called hooks and for sums of gradients. The d256 backward computes the sums in a warp with few
 * registers. */
void outline_choose_ops(lowered *f) {
  ir_ref roots[LOWERED_MAX_TERM_ROOTS];
  int sums = 0;
  for (int i = 0; i < f->num_hooks; i++) {
    hook *h = &f->hook[i];
    h->calls_ops = h->outlined && may_call(f, h->name) && long_work(f, h->has, h->need) > POLICY_CALLED_OPS_MIN;
  }
  for (int kind = 0; kind < SUM_KINDS; kind++) {
    const bool *need = lowered_needed(f, lowered_sum_has[kind], roots, lowered_term_roots(f, &f->sum[kind], roots));
    if (need == NULL)
      f->failed = true;
    else
      sums += long_work(f, lowered_sum_has[kind], need);
  }
  f->sums_call_ops = sums > POLICY_CALLED_OPS_MIN / 2 && !plan_kernel(f->plan)->sums_in_small_warp;
}
