/* tile_bounds.c: finds the nodes that tile_class bounds by interval arithmetic, and their number types. */
#include "gen/lower/lowering.h"

static int stat_of(const lowered *f, const ir_node *n, bool is_set) {
  const int last = n->nargs - 1, along = lowered_deps(f, n->arg[last]) & (DEP_Q | DEP_KV);
  for (int i = 0; i < last; i++)
    if (!lowered_is_point(f, n->arg[i])) return -1;
  if (along != DEP_Q && along != DEP_KV) return -1;
  return mask_find_stat(f->mask, (mask_stat){(int)ir_index_of(n), last, along == DEP_Q, is_set});
}

int lowered_stat_of(const lowered *f, const ir_node *n) { return stat_of(f, n, false); }

bool lowered_sets_of(const lowered *f, const ir_node *n, int stat[2]) {
  if (n->op != IR_EQ) return false;
  for (int i = 0; i < 2; i++) {
    const ir_node *x = ir_get(f->g, n->arg[i]);
    stat[i] = x->op == IR_LOAD && x->type == IR_INT ? stat_of(f, x, true) : -1;
  }
  return stat[0] >= 0 && stat[1] >= 0;
}

bool *lowered_bounded_nodes(const lowered *f, const ir_ref *roots, int n) {
  bool *need = arena_array(f->a, f->num_nodes, sizeof *need);
  if (need == NULL) return NULL;
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = f->num_nodes; r-- > 1;) {
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; need[r] && i < node->nargs && !lowered_is_point(f, r); i++) need[node->arg[i]] = true;
  }
  return need;
}

/* An index of a gradient that is a nonlinear function of q - kv may be the same for all distances of a tile.
 * That helps only if the factor is the same, too. */
static bool has_same_bucket(const lowered *f) {
  const derived_terms *terms = &f->sum[SUM_DISTANCE];
  for (int i = 0; i < terms->count; i++)
    if (terms->term[i].num_index == 0 || !lowered_is_point(f, terms->term[i].factor)) return false;
  return terms->count > 0 && f->distance_step == 0 && f->plan->axes == 0 && f->plan->family->tests_buckets;
}

int lowered_distance_indices(const lowered *f, ir_ref index[4 * DERIVED_MAX_TERMS]) {
  const derived_terms *terms = &f->sum[SUM_DISTANCE];
  int n = 0;
  for (int i = 0; i < terms->count; i++)
    for (int j = 0; j < terms->term[i].num_index; j++) index[n++] = terms->term[i].index[j];
  return n;
}

/* Collects the roots of tile classes and gradient indices; returns their number. */
static int class_roots(const lowered *f, ir_ref root[LOWERED_MAX_BOUNDED]) {
  int n = 0;
  if (f->keep != IR_NONE) root[n++] = f->keep;
  if (f->mask->rest != IR_NONE) root[n++] = f->mask->rest;
  return n + (f->facts.same_bucket ? lowered_distance_indices(f, root + n) : 0);
}

int lowered_bounded_roots(const lowered *f, ir_ref root[LOWERED_MAX_BOUNDED]) {
  int n = class_roots(f, root);
  if (f->score_bounds != IR_NONE) root[n++] = f->score_bounds;
  return n;
}

static bool uses_reals(const lowered *f, const ir_ref *root, int n) {
  const bool *need = lowered_bounded_nodes(f, root, n);
  bool any = false;
  for (uint32_t r = 1; need != NULL && r < f->num_nodes; r++) any |= need[r] && ir_typeof(f->g, r) == IR_REAL;
  return any;
}

/* Whether the node converts a real number to an integer, whose bounds are then unknown. */
static bool is_rounded(const lowered *f, const ir_node *n) {
  return n->type == IR_INT && n->nargs > 0 && n->op != IR_LOAD && ir_typeof(f->g, n->arg[n->nargs - 1]) == IR_REAL;
}

static bool bounds_small(const lowered *f) {
  ir_ref root[LOWERED_MAX_BOUNDED];
  bool all = !uses_reals(f, root, class_roots(f, root));
  const int n = lowered_bounded_roots(f, root);
  const bool *need = lowered_bounded_nodes(f, root, n);
  all = all && need != NULL && ir_ints_fit(f->g, root, n, f->mask->max_len);
  for (uint32_t r = 1; all && r < f->num_nodes; r++) {
    const ir_node *node = ir_get(f->g, r);
    if (need[r] && !lowered_is_point(f, r) && is_rounded(f, node)) all = false;
    if (need[r] && node->op == IR_LOAD && node->type == IR_INT && !lowered_is_point(f, r))
      all = lowered_stat_of(f, node) >= 0;
    if (need[r] && node->type == IR_INT && ir_is_wide(f->g, r)) all = false;
  }
  return all;
}

void tile_bounds_find(lowered *f) {
  ir_ref root[LOWERED_MAX_BOUNDED];
  f->facts.same_bucket = has_same_bucket(f);
  f->facts.bounds_reals = uses_reals(f, root, lowered_bounded_roots(f, root));
  f->facts.bounds_small = bounds_small(f);
}
