/* gradient_sums.c: finds parameter gradients that kernels compute from sums of dS over rows, columns or
 * distances. */
#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"
#include "gen/plan/policy.h"
#include "gen/plan/tiles.h"

/* Whether an expression is a few instructions whose result is finite for all positions: sums and products of
 * them. `left`: the remaining budget. */
static bool is_plain(lowered *f, ir_ref r, int *left) {
  const ir_node *n = ir_get(f->g, r);
  if ((deps_of(&f->deps, r) & ~DEP_SITE) == 0 || n->op == IR_VAR) return true;
  const bool plain = n->op == IR_ADD || n->op == IR_SUB || n->op == IR_NEG || n->op == IR_MUL || n->op == IR_ABS ||
                     n->op == IR_MIN || n->op == IR_MAX || n->op == IR_CLAMP || n->op == IR_TO_REAL;
  if (!plain || (*left)-- == 0) return false;
  for (int i = 0; i < n->nargs; i++)
    if (!is_plain(f, n->arg[i], left)) return false;
  return true;
}

/* Whether kernels sum dS over elements with the same q - kv, over a grid along each axis. */
static bool sums_distances(const plan *p) { return p->axes == 0 || tiles_sum_displacements(p); }

/* Returns over which elements dS is summed before it is added to the parameter. -1: none; grad adds each
 * element separately. Rows are summed only if there is no Acc. */
static int sum_kind(lowered *f, const derived_term *t) {
  double by_q, by_kv;
  if (t->factor == IR_NONE) return -1;
  ir_ref part[5] = {t->factor};
  int mask = deps_of(&f->deps, t->factor), place = 0, left = POLICY_FEW_OPERATIONS;
  for (int i = 0; i < t->num_index; i++) {
    part[1 + i] = t->index[i];
    place |= deps_of(&f->deps, t->index[i]);
  }
  mask |= place;
  const bool one_place = (place & ~DEP_SITE) == 0;
  if ((mask & ~(DEP_SITE | DEP_KV)) == 0) return SUM_COL;
  if ((mask & ~(DEP_SITE | DEP_Q | DEP_KV)) != 0) return -1;
  if (one_place && analyse_linear(f->a, f->g, t->factor, &by_q, &by_kv)) return SUM_LINEAR;
  const bool distance = sums_distances(f->plan) && analyse_distance(f->a, f->g, part, 1 + t->num_index);
  const bool crowds = !policy_sums_elements_of_distances(f->plan);
  if (one_place && is_plain(f, t->factor, &left) && !(distance && crowds)) return SUM_ELEMENT;
  if (distance) return SUM_DISTANCE;
  if (one_place) return -1;
  return (mask & DEP_KV) == 0 ? SUM_ROW : SUM_ELEMENT;
}

/* Builds factor * sum, but 0 for an empty sum even if the factor is infinite or NaN. */
static ir_ref value_of_sum(lowered *f, int kind, ir_ref factor) {
  ir *g = f->g;
  double x;
  const ir_ref sum = ir_variable(g, VAR_GRAD, 0), zero = ir_real(g, 0);
  int left = POLICY_FEW_OPERATIONS;
  const bool plain = is_plain(f, factor, &left);
  if (kind == SUM_ELEMENT) multiply_add_roots(f, &factor, 1);
  const ir_ref product = ir_op2(g, IR_MUL, factor, sum);
  if ((kind == SUM_ELEMENT && plain) || kind == SUM_LINEAR || ir_is_const(g, factor, &x)) return product;
  return ir_op3(g, IR_SELECT, ir_op2(g, IR_NE, sum, zero), product, zero);
}

/* Returns 1 or -1 if there is only one term of `kind`, and the last index that it adds to moves by this step
 * with q (SUM_DISTANCE) or kv (SUM_ELEMENT), while its factor and its other indices do not move; else 0. */
static int step_of_row(lowered *f, int kind) {
  const derived_term *t = &f->sum[kind].term[0];
  const int last = t->num_index - 1, fixed = kind == SUM_ELEMENT ? DEP_SITE | DEP_Q : DEP_SITE;
  double q, kv;
  if (f->sum[kind].count != 1 || last < 0 || (deps_of(&f->deps, t->factor) & ~DEP_SITE) != 0) return 0;
  for (int i = 0; i < last; i++)
    if ((deps_of(&f->deps, t->index[i]) & ~fixed) != 0) return 0;
  if (!row_in_place(f, t->input, last, t->index[last])) return 0;
  if (!analyse_linear(f->a, f->g, t->index[last], &q, &kv)) return 0;
  if (kind == SUM_ELEMENT) return q == 0 && kv == 1 ? 1 : 0;
  return q == 1 || q == -1 ? (int)q : 0;
}

/* Whether a kernel sums dS for these, after its mask. */
static bool makes_sum(const plan *p, int kind) {
  if (policy_sums_elements(p)) return kind >= 0;
  return kind == SUM_DISTANCE || kind == SUM_ROW || kind == SUM_COL;
}

/* Moves terms out of element_terms that kernels compute from sums of dS. */
static void take_sums(lowered *f) {
  derived_terms *from = &f->element_terms;
  const plan *p = f->plan;
  int left = 0;
  if (p->pass != LUATTN_BACKWARD || lowered_dual_gradient(f)) return;
  for (int i = 0; i < from->count; i++) {
    derived_term t = from->term[i];
    const int kind = sum_kind(f, &t);
    if (!makes_sum(p, kind)) {
      from->term[left++] = t;
      continue;
    }
    t.value = value_of_sum(f, kind, t.factor);
    double by_q, by_kv;
    if (kind == SUM_LINEAR && analyse_linear(f->a, f->g, t.factor, &by_q, &by_kv))
      f->factor_of_q[f->sum[kind].count] = by_q;
    f->sum[kind].term[f->sum[kind].count++] = t;
  }
  from->count = left;
  f->distance_step = step_of_row(f, SUM_DISTANCE);
  f->pairs_in_row = step_of_row(f, SUM_ELEMENT) == 1;
  if (!f->pairs_in_row) return;
  const derived_term *pairs = &f->sum[SUM_ELEMENT].term[0];
  f->pairs_q_axis = bias_row_axis(f, pairs->input, pairs->index, pairs->num_index);
}

static int terms_of_input(const lowered *f, const derived_terms *terms, int input, const derived_term **last) {
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    if (terms->term[i].input != input || !lowered_wants(f, &terms->term[i])) continue;
    *last = &terms->term[i];
    n++;
  }
  return n;
}

static uint32_t index_of(const lowered *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const int var = n->op == IR_VAR && ir_is_line(f->g) ? (int)ir_var_of(n) : -1;
  return var == VAR_B    ? LUATTN_INDEX_B
         : var == VAR_H  ? LUATTN_INDEX_H
         : var == VAR_Q  ? LUATTN_INDEX_Q
         : var == VAR_KV ? LUATTN_INDEX_KV
                         : LUATTN_INDEX_OTHER;
}

/* luattn_input_info.pairs: for inputs to which only one term adds, once for each score. */
static void find_pairs(lowered *f) {
  const derived_terms *const all[] = {
      &f->element_terms,     &f->sum[SUM_ELEMENT], /* once for each score; the others: */
      &f->sum[SUM_DISTANCE], &f->sum[SUM_ROW],       &f->sum[SUM_COL],       &f->sum[SUM_LINEAR],
      &f->row_terms,         &f->mod_grad[0]->terms, &f->mod_grad[1]->terms, &f->mod_grad[2]->terms};
  for (int input = 0; input < f->spec->traced.num_inputs; input++) {
    const derived_term *t = NULL, *ignored;
    const int by_score = terms_of_input(f, all[0], input, &t) + terms_of_input(f, all[1], input, &t);
    int others = 0, has = 0;
    for (size_t i = 2; i < sizeof all / sizeof *all; i++) others += terms_of_input(f, all[i], input, &ignored);
    f->pairs[input] = 0;
    if (by_score != 1 || others != 0) continue;
    uint32_t pairs = 0;
    for (int a = 0; a < t->num_index; a++) {
      const uint32_t index = index_of(f, t->index[a]);
      pairs |= index << 4 * a;
      has |= 1 << index;
    }
    if ((has >> LUATTN_INDEX_Q & 1) != 0 && (has >> LUATTN_INDEX_KV & 1) != 0) f->pairs[input] = pairs;
  }
}

void gradient_sums_take(lowered *f) {
  take_sums(f);
  find_pairs(f);
}
