/* early_terms.c: chooses score terms computed before QK^T finishes: long terms that depend only on the
 * distance between query and key, over a grid along each axis (score/displacement_terms.cuh), and loads of an input along the keys (sm90/fwd/bias_staging.cuh).
 *
 * In a kernel with several rows a warp, many elements share a distance. T5's bucket and its bias are computed
 * once for all of them (score/distance_terms.cuh). ptxas would find that by itself for the elements of a
 * thread, but by then NVVM has written them out for each element, which takes compile time.
 */
#include "common/call/packed_axis.h"
#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"
#include "gen/plan/tiles.h"

#include <string.h>

/* Returns the cost without subexpressions that are constant per head. */
static int cost_of(lowered *f, ir_ref root, bool *need) {
  int cost = 0;
  for (ir_ref r = 1; r <= root; r++) need[r] = r == root;
  for (ir_ref r = root; r >= 1; r--) {
    if (!need[r] || (deps_of(&f->deps, r) & ~DEP_SITE) == 0) continue;
    const ir_node *n = ir_get(f->g, r);
    cost += n->op == IR_LOAD ? POLICY_LONG_TERM : ir_op_cost((ir_op)n->op, (ir_type)n->type, IR_FAST);
    for (int i = 0; i < n->nargs; i++) need[n->arg[i]] = true;
  }
  return cost;
}

/* Substitutes whole positions for their offsets and 0 for their bases, because the elements of one thread
 * differ only in the offsets. IR_NONE: out of memory. */
static ir_ref with_whole_positions(lowered *f, ir_ref r) {
  ir *g = f->g;
  const ir_ref zero = ir_int(g, 0);
  const ir_ref from[] = {ir_variable(g, VAR_PART, PART_Q_BASE), ir_variable(g, VAR_PART, PART_KV_BASE),
                         ir_variable(g, VAR_PART, PART_Q_OFFSET), ir_variable(g, VAR_PART, PART_KV_OFFSET)};
  const ir_ref to[] = {zero, zero, ir_variable(g, VAR_Q, 0), ir_variable(g, VAR_KV, 0)};
  return ir_substitute(g, r, from, to, 4);
}

static bool is_of_distance(lowered *f, ir_ref r) {
  const ir_ref root = with_whole_positions(f, r);
  return root != IR_NONE && analyse_distance(f->a, f->g, &root, 1);
}

/* Whether kernels take terms by distance at all: over a grid, if a table of those of a pair of boxes fits. */
static bool takes_distances(const lowered *f) { return f->plan->axes == 0 || tiles_have_displacements(f->plan); }

/* Finds, among the long subexpressions of `roots` that depend only on the distance, the most expensive one
 * that is not part of another or that several roots share. IR_NONE: there is none. */
static ir_ref longest_of_distance(lowered *f, const ir_ref *roots, int n) {
  ir_ref last = IR_NONE, best = IR_NONE, inner = IR_NONE;
  for (int i = 0; i < n; i++) last = roots[i] > last ? roots[i] : last;
  bool *inside = arena_array(f->a, (size_t)last + 1, sizeof *inside);
  bool *need = arena_array(f->a, (size_t)last + 1, sizeof *need);
  int *cost = arena_array(f->a, (size_t)last + 1, sizeof *cost); /* of such subexpressions */
  if (inside == NULL || need == NULL || cost == NULL) return IR_NONE;
  for (int i = 0; i < n; i++) inside[roots[i]] = true;
  for (ir_ref r = last; r >= 1; r--) {
    const ir_node node = *ir_get(f->g, r);
    const int mask = deps_of(&f->deps, r);
    if (!inside[r] || !deps_element(mask)) continue;
    if (node.type == IR_REAL && (mask & (DEP_ELEMENT | DEP_STEP | DEP_ROW)) == 0 && is_of_distance(f, r)) {
      cost[r] = cost_of(f, r, need);
      if (cost[r] >= POLICY_LONG_TERM && (best == IR_NONE || cost[r] > cost[best])) best = r;
      continue;
    }
    for (int i = 0; i < node.nargs; i++) inside[node.arg[i]] = true;
  }
  if (best == IR_NONE) return IR_NONE;
  (void)cost_of(f, best, need);
  for (ir_ref r = 1; r < best; r++)
    if (need[r] && cost[r] >= POLICY_LONG_TERM && (inner == IR_NONE || cost[r] > cost[inner])) inner = r;
  return inner != IR_NONE ? inner : best;
}

void distance_term_take(lowered *f) {
  const ir_ref best = takes_distances(f) ? longest_of_distance(f, &f->score, 1) : IR_NONE,
               term = ir_variable(f->g, VAR_TERM, 0);
  if (best == IR_NONE) return;
  f->distance_term = best;
  f->score_with = ir_substitute(f->g, f->score, &best, &term, 1);
}

void distance_term_take_gradient(lowered *f, ir_ref *roots, int n) {
  const ir_ref best = takes_distances(f) ? longest_of_distance(f, roots, n) : IR_NONE,
               term = ir_variable(f->g, VAR_TERM, 0);
  if (best == IR_NONE) return;
  f->distance_term = best;
  for (int i = 0; i < n; i++) roots[i] = ir_substitute(f->g, roots[i], &best, &term, 1);
}

int bias_row_axis(lowered *f, int input, const ir_ref *index, int num_index) {
  const int32_t *axis = f->spec->traced.input[input].axis;
  int found = -1;
  for (int i = 0; i + 1 < num_index; i++) {
    const ir_node *n = ir_get(f->g, index[i]);
    if ((deps_of(&f->deps, index[i]) & DEP_Q) == 0) continue;
    if (found >= 0 || n->op != IR_VAR || ir_var_of(n) != VAR_Q || axis[i] != LUATTN_AXIS_Q) return -1;
    found = i;
  }
  return (deps_of(&f->deps, index[num_index - 1]) & DEP_Q) == 0 ? found : -1;
}

bool row_in_place(const lowered *f, int input, int axis, ir_ref index) {
  const luattn_input_info *in = &f->spec->traced.input[input];
  const ir_node *n = ir_get(f->g, index);
  const bool is_q = in->axis[axis] == LUATTN_AXIS_Q;
  const bool is_kv = in->axis[axis] == LUATTN_AXIS_KV;
  if (!(f->plan->packed && is_q) && !((f->plan->packed || f->plan->pages) && is_kv)) return true;
  return packed_axis_of(in, f->plan->packed, f->plan->pages != 0) != axis && n->op == IR_VAR &&
         ir_var_of(n) == (is_q ? VAR_Q : VAR_KV);
}

/* Whether r loads half or single precision along kv, one element for each key, and differs between queries.
 * Writes the load's indices. */
static bool is_bias_row(lowered *f, ir_ref r, ir_ref index[4]) {
  const ir_node n = *ir_get(f->g, r);
  if (n.op != IR_LOAD || n.type != IR_REAL || n.nargs == 0) return false;
  const luattn_input_dtype dtype = f->spec->traced.input[ir_index_of(&n)].dtype;
  if (dtype != LUATTN_INPUT_F32 && dtype != LUATTN_INPUT_BF16 && dtype != LUATTN_INPUT_F16) return false;
  int of = 0;
  double q, kv;
  for (int i = 0; i < n.nargs; i++) {
    index[i] = with_whole_positions(f, n.arg[i]);
    if (index[i] == IR_NONE) return false;
    of |= deps_of(&f->deps, index[i]);
    if (i + 1 < n.nargs && (of & ~(DEP_SITE | DEP_Q)) != 0) return false;
  }
  if (!row_in_place(f, (int)ir_index_of(&n), n.nargs - 1, index[n.nargs - 1])) return false;
  return (of & DEP_Q) != 0 && analyse_linear(f->a, f->g, index[n.nargs - 1], &q, &kv) && kv == 1;
}

/* Finds the first such load in the roots. A kernel has room for either this load or a distance term. */
static void find_bias_row(lowered *f, const ir_ref *roots, int n) {
  ir_ref last = IR_NONE, index[4];
  for (int i = 0; i < n; i++) last = roots[i] > last ? roots[i] : last;
  bool *need = arena_array(f->a, (size_t)last + 1, sizeof *need);
  if (need == NULL || f->distance_term != IR_NONE) return;
  for (int i = 0; i < n; i++) need[roots[i]] = true;
  for (ir_ref r = last; r >= 1; r--) {
    if (!need[r]) continue;
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
    if (!is_bias_row(f, r, index)) continue;
    const ir_node *load = ir_get(f->g, r);
    const int pitched = bias_row_axis(f, (int)ir_index_of(load), index, load->nargs);
    if (f->plan->pass == LUATTN_BACKWARD && pitched < 0) continue;
    f->bias_row = r;
    f->bias_row_q_axis = pitched;
    memcpy(f->bias_row_index, index, sizeof index);
  }
  if (f->bias_row != IR_NONE) f->num_bias_row_index = ir_get(f->g, f->bias_row)->nargs;
}

void bias_row_take(lowered *f) {
  const ir_ref term = ir_variable(f->g, VAR_TERM, 0);
  find_bias_row(f, &f->score, 1);
  if (f->bias_row != IR_NONE) f->score_with = ir_substitute(f->g, f->score, &f->bias_row, &term, 1);
}

void bias_row_take_gradient(lowered *f, ir_ref *roots, int n) {
  const ir_ref term = ir_variable(f->g, VAR_TERM, 0);
  find_bias_row(f, roots, n);
  if (f->bias_row == IR_NONE) return;
  for (int i = 0; i < n; i++) roots[i] = ir_substitute(f->g, roots[i], &f->bias_row, &term, 1);
}
