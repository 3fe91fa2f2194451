/* distance.c: what a score takes from the distance between query and key alone, where that is long.
 *
 * A warp of a kernel with several rows has many elements at one distance. T5's bucket and its bias are
 * computed once for all of them (distance.cuh). ptxas would find that by itself for the elements of a thread,
 * but by then NVVM has written them out for each element, which takes time.
 */
#include "gen/emit/form.h"

/* A few instructions for each element take no time that is worth a value for each distance. What reads memory
 * is. */
enum { LONG = 16 };

/* Without what is the same for a head. */
static int cost_of(emit_form *f, ir_ref root, bool *need) {
  int cost = 0;
  for (ir_ref r = 1; r <= root; r++) need[r] = r == root;
  for (ir_ref r = root; r >= 1; r--) {
    if (!need[r] || (deps_of(&f->deps, r) & ~DEP_SITE) == 0) continue;
    const ir_node *n = ir_get(f->g, r);
    cost += n->op == IR_LOAD ? LONG : ir_op_cost((ir_op)n->op, (ir_type)n->type, IR_FAST);
    for (int i = 0; i < n->nargs; i++) need[n->arg[i]] = true;
  }
  return cost;
}

/* For one thread, whose elements differ in the offsets alone. */
static bool is_of_distance(emit_form *f, ir_ref r) {
  ir *g = f->g;
  const ir_ref zero = ir_int(g, 0);
  const ir_ref from[] = {ir_variable(g, VAR_PART, PART_Q_BASE), ir_variable(g, VAR_PART, PART_KV_BASE),
                         ir_variable(g, VAR_PART, PART_Q_OFFSET), ir_variable(g, VAR_PART, PART_KV_OFFSET)};
  const ir_ref to[] = {zero, zero, ir_variable(g, VAR_Q, 0), ir_variable(g, VAR_KV, 0)};
  const ir_ref root = ir_substitute(g, r, from, to, 4);
  return root != IR_NONE && analyse_distance(f->a, g, &root, 1);
}

/* Of what is of the distance alone and long, the most expensive part of `roots` that lies in no other such
 * part; or what of that another root has, too, if that is long. IR_NONE: nothing is. */
static ir_ref longest_of_distance(emit_form *f, const ir_ref *roots, int n) {
  ir_ref last = IR_NONE, best = IR_NONE, inner = IR_NONE;
  for (int i = 0; i < n; i++) last = roots[i] > last ? roots[i] : last;
  bool *inside = arena_array(f->a, (size_t)last + 1, sizeof *inside);
  bool *need = arena_array(f->a, (size_t)last + 1, sizeof *need);
  int *cost = arena_array(f->a, (size_t)last + 1, sizeof *cost); /* of such parts */
  if (inside == NULL || need == NULL || cost == NULL) return IR_NONE;
  for (int i = 0; i < n; i++) inside[roots[i]] = true;
  for (ir_ref r = last; r >= 1; r--) {
    const ir_node node = *ir_get(f->g, r);
    const int mask = deps_of(&f->deps, r);
    if (!inside[r] || !deps_element(mask)) continue;
    if (node.type == IR_REAL && (mask & (DEP_ELEMENT | DEP_STEP | DEP_ROW)) == 0 && is_of_distance(f, r)) {
      cost[r] = cost_of(f, r, need);
      if (cost[r] >= LONG && (best == IR_NONE || cost[r] > cost[best])) best = r;
      continue;
    }
    for (int i = 0; i < node.nargs; i++) inside[node.arg[i]] = true;
  }
  if (best == IR_NONE) return IR_NONE;
  (void)cost_of(f, best, need);
  for (ir_ref r = 1; r < best; r++)
    if (need[r] && cost[r] >= LONG && (inner == IR_NONE || cost[r] > cost[inner])) inner = r;
  return inner != IR_NONE ? inner : best;
}

void distance_take(emit_form *f) {
  const ir_ref best = longest_of_distance(f, &f->score, 1), term = ir_variable(f->g, VAR_TERM, 0);
  if (best == IR_NONE) return;
  f->distance_term = best;
  f->score_with = ir_substitute(f->g, f->score, &best, &term, 1);
}

void distance_take_gradient(emit_form *f, ir_ref *roots, int n) {
  const ir_ref best = longest_of_distance(f, roots, n), term = ir_variable(f->g, VAR_TERM, 0);
  if (best == IR_NONE) return;
  f->distance_term = best;
  for (int i = 0; i < n; i++) roots[i] = ir_substitute(f->g, roots[i], &best, &term, 1);
}
