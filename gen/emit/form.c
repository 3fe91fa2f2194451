/* form.c: from a traced and derived spec to the expressions of a kernel. */
#include "gen/emit/form.h"

#include <math.h>
#include <string.h>

#include "gen/ir/passes.h"

static const traced_spec *traced(const emit_form *f) { return &f->spec->traced; }

static bool has_maximum(const emit_form *f) {
  const traced_online *o = &traced(f)->online;
  bool found = ir_uses_op(f->g, o->prob, IR_REDUCE_MAX) || ir_uses_op(f->g, o->rescale, IR_REDUCE_MAX);
  for (int i = 0; i < o->num_state; i++) found |= ir_uses_op(f->g, o->next[i], IR_REDUCE_MAX);
  return found;
}

/* Before a maximum, and with no score_mod, or one that only adds to the score, score() gives score / scale:
 * the dot product itself, or one addition. The online function then sees scale * VAR_SCORE, and its factor
 * joins those that are there already. The scale is positive, so a maximum of scaled scores is the scaled
 * maximum. */
static void choose_unit(emit_form *f) {
  ir *g = f->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), dot = ir_variable(g, VAR_DOT, 0),
               scale = ir_variable(g, VAR_SCALE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, scale, dot);
  const ir_ref mod = shift_source(f);
  ir_ref rest = IR_NONE;
  f->dot_unit = has_maximum(f) && fold_is_shift(f, mod, score, &rest);
  if (!f->dot_unit)
    f->score = ir_substitute(g, mod, &score, &scaled, 1);
  else
    f->score = rest == IR_NONE ? dot : ir_op2(g, IR_ADD, dot, ir_op2(g, IR_DIV, rest, scale));
}

static void rewrite_step(emit_form *f) {
  ir *g = f->g;
  online_split *s = &f->step;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), score);
  ir_ref from[1 + SPEC_MAX_RED] = {score}, to[1 + SPEC_MAX_RED] = {scaled};
  int n = 1;
  for (int k = 0; k < s->num_red; k++) {
    s->term[k] = ir_substitute(g, s->term[k], from, to, n);
    if (s->kind[k] != IR_REDUCE_MAX || s->term[k] != scaled) continue;
    s->term[k] = score;
    from[n] = ir_variable(g, VAR_RED, (uint32_t)k);
    to[n] = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), from[n]);
    n++;
  }
  s->prob = ir_substitute(g, s->prob, from, to, n);
  s->rescale = ir_substitute(g, s->rescale, from, to, n);
  for (int i = 0; i < traced(f)->online.num_state; i++)
    s->next[i] = ir_substitute(g, s->next[i], from, to, n);
}

static bool uses_node(ir *g, ir_ref r, ir_ref node) {
  if (r == IR_NONE) return false;
  const ir_ref marker = ir_variable(g, VAR_DELTA, 0); /* never in an online step */
  return ir_substitute(g, r, &node, &marker, 1) != r;
}

/* Is `x` used in the step anywhere but in next[state]? */
static bool used_elsewhere(emit_form *f, ir_ref x, int state) {
  const online_split *s = &f->step;
  for (int k = 0; k < s->num_red; k++)
    if (uses_node(f->g, s->term[k], x)) return true;
  for (int i = 0; i < traced(f)->online.num_state; i++)
    if (i != state && uses_node(f->g, s->next[i], x)) return true;
  return uses_node(f->g, s->prob, x) || uses_node(f->g, s->rescale, x);
}

/* next = a * old + c * red with a and c free of both: then each thread may keep its own part of the sum until
 * the end. */
static bool is_linear_update(emit_form *f, ir_ref next, ir_ref old, ir_ref red) {
  ir *g = f->g;
  const ir_ref one = ir_real(g, 1), from[2] = {old, red}, zero[2] = {ir_real(g, 0), ir_real(g, 0)};
  ir_ref d[2] = {IR_NONE, IR_NONE};
  ir_grad(g, &next, &one, 1, from, d, 2);
  ir_simplify(g, d, 2);
  for (int i = 0; i < 2; i++)
    if (d[i] == IR_NONE || uses_node(g, d[i], old) || uses_node(g, d[i], red)) return false;
  ir_ref rest = ir_substitute(g, next, from, zero, 2);
  ir_simplify(g, &rest, 1);
  double x;
  /* floor and its kind have derivative zero without being constant: rebuild the update from its parts and
   * compare. */
  if (!ir_is_const(g, rest, &x) || x != 0) return false;
  return !ir_uses_op(g, next, IR_FLOOR) && !ir_uses_op(g, next, IR_SIGN) && !ir_uses_op(g, next, IR_MOD) &&
         !ir_uses_op(g, next, IR_FLOORDIV) && !ir_uses_op(g, next, IR_SELECT) &&
         !ir_uses_op(g, next, IR_STOP_GRADIENT);
}

static void choose_deferred(emit_form *f) {
  const traced_online *o = &traced(f)->online;
  for (int k = 0; k < f->step.num_red; k++) {
    if (f->step.kind[k] != IR_REDUCE_SUM) continue;
    const ir_ref red = ir_variable(f->g, VAR_RED, (uint32_t)k);
    for (int i = 0; i < o->num_state; i++) {
      double init;
      const ir_ref old = ir_variable(f->g, VAR_STATE, (uint32_t)i);
      if (!uses_node(f->g, f->step.next[i], red)) continue;
      f->red_deferred[k] = f->state_deferred[i] = ir_is_const(f->g, o->init[i], &init) && init == 0 &&
                                                  !used_elsewhere(f, red, i) && !used_elsewhere(f, old, i) &&
                                                  is_linear_update(f, f->step.next[i], old, red);
      break;
    }
  }
}

static void choose_prob_term(emit_form *f) {
  f->prob_term = -1;
  for (int k = 0; k < f->step.num_red; k++) {
    if (f->prob_term >= 0 && ir_uses(f->g, f->step.term[k], VAR_SCORE)) f->prob_term = -1;
    if (f->step.kind[k] == IR_REDUCE_SUM && f->step.term[k] == f->step.prob) f->prob_term = k;
  }
}

/* All roots of the step, taken out and put back. */
enum { STEP_ROOTS = SPEC_MAX_RED + SPEC_MAX_STATE + 2 };
static int step_roots(const emit_form *f, ir_ref *root) {
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) root[n++] = f->step.term[k];
  for (int i = 0; i < traced(f)->online.num_state; i++) root[n++] = f->step.next[i];
  root[n++] = f->step.prob;
  root[n++] = f->step.rescale;
  return n;
}
static void set_step_roots(emit_form *f, const ir_ref *root) {
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) f->step.term[k] = root[n++];
  for (int i = 0; i < traced(f)->online.num_state; i++) f->step.next[i] = root[n++];
  f->step.prob = root[n++];
  f->step.rescale = root[n++];
}

/* The only node under the roots that reads x; IR_NONE: x is a root itself, or several read it, or none. */
static ir_ref only_reader(const emit_form *f, const ir_ref *root, int n, ir_ref x) {
  const uint32_t count = ir_count(f->g);
  bool *need = arena_array(f->a, count, sizeof *need);
  ir_ref reader = IR_NONE;
  if (need == NULL) return IR_NONE;
  for (int i = 0; i < n; i++) need[root[i]] = true;
  if (need[x]) return IR_NONE;
  for (ir_ref r = count; r-- > 1;) {
    const ir_node *node = ir_get(f->g, r);
    for (int i = 0; i < node->nargs && need[r]; i++) {
      need[node->arg[i]] = true;
      if (node->arg[i] != x || r == reader) continue;
      if (reader != IR_NONE) return IR_NONE;
      reader = r;
    }
  }
  return reader;
}

/* Where the online function reads nothing but a * score + b, with numbers of the head, score() gives that:
 * its own last multiply-add takes a and b. Not where -inf would no longer leave an element out. */
static luattn_status choose_stored(emit_form *f, luattn_error *err) {
  ir *g = f->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  ir_ref root[STEP_ROOTS], stored = score;
  const int n = step_roots(f, root);
  for (ir_ref r = only_reader(f, root, n, score); r != IR_NONE; r = only_reader(f, root, n, r)) {
    const ir_node node = *ir_get(g, r);
    const bool sum = node.op == IR_ADD || (node.op == IR_SUB && node.arg[0] == stored);
    if ((!sum && node.op != IR_MUL) || node.arg[0] == node.arg[1]) break;
    const ir_ref other = node.arg[node.arg[0] == stored ? 1 : 0];
    if ((deps_of(&f->deps, other) & ~DEP_SITE) != 0) break;
    stored = r;
  }
  if (stored == score) return LUATTN_OK;
  const online_split before = f->step;
  for (int i = 0; i < n; i++) root[i] = ir_substitute(g, root[i], &stored, &score, 1);
  set_step_roots(f, root);
  bool by_inf;
  TRY(claims_mask_by_inf(f, &by_inf, err));
  if (by_inf != f->mask_by_inf) {
    f->step = before;
    return LUATTN_OK;
  }
  f->step_unit = true;
  f->score = ir_substitute(g, stored, &score, &f->score, 1);
  fold_roots(f, &f->score, 1);
  choose_prob_term(f);
  return LUATTN_OK;
}

/* What a row's first scores give stays its maximum while weights are in range, which the kernel sees to. */
static void lag_step(emit_form *f) {
  ir *g = f->g;
  online_split *s = &f->step;
  const ir_ref peak = s->next[f->lagging], red = ir_variable(g, VAR_RED, 0),
               max = ir_variable(g, VAR_STATE, (uint32_t)f->lagging),
               sum = ir_variable(g, VAR_STATE, (uint32_t)(1 - f->lagging));
  const ir_ref prob = ir_substitute(g, s->prob, &peak, &max, 1);
  f->lags = f->lags && f->mask_by_inf && f->prob_term == 1 && !uses_node(g, prob, red);
  if (!f->lags) return;
  f->raise[f->lagging] = peak;
  f->raise[1 - f->lagging] = ir_op2(g, IR_MUL, sum, s->rescale);
  s->term[1] = s->prob = prob;
  s->next[f->lagging] = max;
  s->next[1 - f->lagging] = ir_op2(g, IR_ADD, sum, ir_variable(g, VAR_RED, 1));
}

static luattn_status build_online(emit_form *f, luattn_error *err) {
  ir *g = f->g;
  const traced_online *o = &traced(f)->online;
  TRY(split_online(g, o, traced(f)->file, &f->step, err));
  memcpy(f->init, o->init, sizeof f->init);
  f->tail[0] = o->out;
  f->tail[1] = o->lse >= 0 ? o->final[o->lse] : IR_NONE;
  TRY(reach_choose(f, err));
  TRY(claims_bounded_scores(f, err));
  TRY(claims_lagging_maximum(f, err));
  if (f->dot_unit) rewrite_step(f);
  shift_step(f);
  choose_deferred(f);

  ir_ref root[STEP_ROOTS];
  fold_roots(f, root, step_roots(f, root));
  set_step_roots(f, root);
  choose_prob_term(f);
  TRY(claims_mask_by_inf(f, &f->mask_by_inf, err));
  TRY(choose_stored(f, err));
  if (!f->mask_by_inf) TRY(claims_mask_by_zero(f, &f->mask_by_zero, err));
  lag_step(f);

  double rescale;
  f->has_rescale = !ir_is_const(g, f->step.rescale, &rescale) || rescale != 1;
  small_choose(f);
  const ir_ref sum = ir_variable(g, VAR_OUT, 0), one = ir_real(g, 1);
  f->out_scale = ir_substitute(g, f->tail[0], &sum, &one, 1);
  ir_simplify(g, &f->out_scale, 1);
  f->lse = f->tail[1];
  return LUATTN_OK;
}

/* Everything that a gradient computes from the row's numbers alone moves into prepare, so that an element of
 * a softmax costs one multiply-add, one exp2, one subtraction and one product. */
static void hoist_bwd_rows(emit_form *f, ir_ref *roots, int n) {
  ir *g = f->g;
  const uint32_t count = ir_count(g);
  bool *need = arena_array(f->a, count, sizeof *need), *found = arena_array(f->a, count, sizeof *found);
  if (need == NULL || found == NULL) return; /* no harm: the rows stay as they are */
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) need[roots[i]] = true;
  for (uint32_t r = count; r-- > 1;) {
    if (!need[r]) continue;
    const int mask = deps_of(&f->deps, r);
    if ((mask & DEP_ROW) != 0 && !deps_element(mask)) {
      found[r] = ir_typeof(g, r) == IR_REAL;
      if (found[r]) continue;
    }
    const ir_node *node = ir_get(g, r);
    for (int i = 0; i < node->nargs; i++) need[node->arg[i]] = true;
  }
  ir_ref from[DERIVED_MAX_ROWS], to[DERIVED_MAX_ROWS], old[DERIVED_MAX_ROWS], row[DERIVED_MAX_ROWS];
  int num = 0;
  for (uint32_t r = 1; r < count; r++) {
    if (!found[r]) continue;
    if (num == DERIVED_MAX_ROWS || num > f->num_rows)
      return; /* more numbers a row than before: not worth it */
    from[num++] = r;
  }
  for (int i = 0; i < f->num_rows; i++) old[i] = ir_variable(g, VAR_ROW, (uint32_t)i);
  for (int j = 0; j < num; j++) {
    to[j] = ir_variable(g, VAR_ROW, (uint32_t)j);
    row[j] = ir_substitute(g, from[j], old, f->row, f->num_rows);
  }
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) roots[i] = ir_substitute(g, roots[i], from, to, num);
  memcpy(f->row, row, sizeof row);
  f->num_rows = num;
}

static void keep_wanted(const emit_form *f, const derived_terms *from, derived_terms *to) {
  to->count = 0;
  for (int i = 0; i < from->count; i++)
    if (form_wants(f, &from->term[i])) to->term[to->count++] = from->term[i];
}

/* A few instructions that give a finite number whatever the positions: sums and products of them. `left`: how
 * many may be. */
enum { FEW = 4 };
static bool is_plain(emit_form *f, ir_ref r, int *left) {
  const ir_node *n = ir_get(f->g, r);
  if ((deps_of(&f->deps, r) & ~DEP_SITE) == 0 || n->op == IR_VAR) return true;
  const bool plain = n->op == IR_ADD || n->op == IR_SUB || n->op == IR_NEG || n->op == IR_MUL ||
                     n->op == IR_ABS || n->op == IR_MIN || n->op == IR_MAX || n->op == IR_CLAMP ||
                     n->op == IR_TO_REAL;
  if (!plain || (*left)-- == 0) return false;
  for (int i = 0; i < n->nargs; i++)
    if (!is_plain(f, n->arg[i], left)) return false;
  return true;
}

/* What is the same for all elements whose dS are summed before they reach the parameter. -1: nothing, grad
 * adds them. Rows are summed where there is no Acc. Where a thread has 64 scores, ptxas spills
 * 500 bytes for a sum over each of them, and none for sums along diagonals, which take twice the
 * instructions. */
static int sum_kind(emit_form *f, const derived_term *t) {
  double by_q, by_kv;
  if (t->factor == IR_NONE) return -1;
  ir_ref part[5] = {t->factor};
  int mask = deps_of(&f->deps, t->factor), place = 0, left = FEW;
  for (int i = 0; i < t->num_index; i++) {
    part[1 + i] = t->index[i];
    place |= deps_of(&f->deps, t->index[i]);
  }
  mask |= place;
  const bool one_place = (place & ~DEP_SITE) == 0;
  if ((mask & ~(DEP_SITE | DEP_KV)) == 0) return SUM_COL;
  if ((mask & ~(DEP_SITE | DEP_Q | DEP_KV)) != 0) return -1;
  if (one_place && analyse_linear(f->a, f->g, t->factor, &by_q, &by_kv)) return SUM_LINEAR;
  const bool distance = analyse_distance(f->a, f->g, part, 1 + t->num_index);
  const bool crowds = f->plan->family == LUATTN_SM90 && f->plan->tile_m == 128;
  if (one_place && is_plain(f, t->factor, &left) && !(distance && crowds)) return SUM_HERE;
  if (distance) return SUM_DISTANCE;
  if (one_place) return -1;
  return (mask & DEP_KV) == 0 ? SUM_ROW : SUM_HERE;
}

/* factor * sum, and 0 for a sum of nothing, whatever the factor is there. */
static ir_ref value_of_sum(emit_form *f, int kind, ir_ref factor) {
  ir *g = f->g;
  double x;
  const ir_ref sum = ir_variable(g, VAR_GRAD, 0), zero = ir_real(g, 0);
  int left = FEW;
  const bool plain = is_plain(f, factor, &left);
  if (kind == SUM_HERE) fold_roots(f, &factor, 1);
  const ir_ref product = ir_op2(g, IR_MUL, factor, sum);
  if ((kind == SUM_HERE && plain) || kind == SUM_LINEAR || ir_is_const(g, factor, &x)) return product;
  return ir_op3(g, IR_SELECT, ir_op2(g, IR_NE, sum, zero), product, zero);
}

/* Where one term alone is of `kind`, and the last index of its place moves by one element as q does
 * (SUM_DISTANCE) or as kv does (SUM_HERE): by 1, or by -1. Its factor and its other indices may not move. */
static int step_of_line(emit_form *f, int kind) {
  const derived_term *t = &f->sum[kind].term[0];
  const int last = t->num_index - 1, fixed = kind == SUM_HERE ? DEP_SITE | DEP_Q : DEP_SITE;
  double q, kv;
  if (f->sum[kind].count != 1 || last < 0 || (deps_of(&f->deps, t->factor) & ~DEP_SITE) != 0) return 0;
  for (int i = 0; i < last; i++)
    if ((deps_of(&f->deps, t->index[i]) & ~fixed) != 0) return 0;
  if (!analyse_linear(f->a, f->g, t->index[last], &q, &kv)) return 0;
  if (kind == SUM_HERE) return q == 0 && kv == 1 ? 1 : 0;
  return q == 1 || q == -1 ? (int)q : 0;
}

/* Does a kernel sum dS for these, behind its mask? In the simt and sm80 families grad adds what takes a
 * multiply-add for each element and no memory, which costs less there (in sm80 0.95 to 0.99 of the speed by
 * products). */
static bool makes_sum(const plan *p, int kind) {
  if (p->family == LUATTN_SM90) return kind >= 0;
  return kind == SUM_DISTANCE || kind == SUM_ROW || kind == SUM_COL;
}

/* Of the terms of an element, those that kernels make from dS. */
static void take_sums(emit_form *f) {
  derived_terms *from = &f->element_terms;
  const plan *p = f->plan;
  int left = 0;
  if (p->pass != LUATTN_BACKWARD) return;
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
  f->distance_step = step_of_line(f, SUM_DISTANCE);
  f->pairs_in_line = step_of_line(f, SUM_HERE) == 1;
  if (!f->pairs_in_line) return;
  const derived_term *pairs = &f->sum[SUM_HERE].term[0];
  f->pairs_axis = line_pitched_axis(f, pairs->input, pairs->index, pairs->num_index);
}

static int terms_of_input(const emit_form *f, const derived_terms *terms, int input,
                          const derived_term **last) {
  int n = 0;
  for (int i = 0; i < terms->count; i++) {
    if (terms->term[i].input != input || !form_wants(f, &terms->term[i])) continue;
    *last = &terms->term[i];
    n++;
  }
  return n;
}

static uint32_t index_of(const emit_form *f, ir_ref r) {
  const ir_node *n = ir_get(f->g, r);
  const int var = n->op == IR_VAR ? (int)ir_var_of(n) : -1;
  return var == VAR_B    ? LUATTN_INDEX_B
         : var == VAR_H  ? LUATTN_INDEX_H
         : var == VAR_Q  ? LUATTN_INDEX_Q
         : var == VAR_KV ? LUATTN_INDEX_KV
                         : LUATTN_INDEX_OTHER;
}

/* luattn_input_info.pairs: of inputs to which one term alone adds, for each score by itself. */
static void find_pairs(emit_form *f) {
  const derived_spec *d = &f->spec->derived;
  const derived_terms *const all[] = {
      &f->element_terms,     &f->sum[SUM_HERE], /* for each score; and others: */
      &f->sum[SUM_DISTANCE], &f->sum[SUM_ROW],    &f->sum[SUM_COL],  &f->sum[SUM_LINEAR],
      &f->row_terms,         &d->query_mod.terms, &d->key_mod.terms, &d->value_mod.terms};
  for (int input = 0; input < f->spec->traced.num_inputs; input++) {
    const derived_term *t = NULL, *ignored;
    const int by_score = terms_of_input(f, all[0], input, &t) + terms_of_input(f, all[1], input, &t);
    int others = 0, has = 0;
    for (size_t i = 2; i < sizeof all / sizeof *all; i++)
      others += terms_of_input(f, all[i], input, &ignored);
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

static luattn_status build_gradient(emit_form *f, luattn_error *err) {
  ir *g = f->g;
  const derived_spec *d = &f->spec->derived;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), ir_variable(g, VAR_DOT, 0));
  keep_wanted(f, &d->element_terms, &f->element_terms);
  keep_wanted(f, &d->row_terms, &f->row_terms);
  for (int i = 0; i < f->element_terms.count; i++) {
    derived_term *t = &f->element_terms.term[i];
    for (int k = 0; k < t->num_index; k++) t->index[k] = ir_substitute(g, t->index[k], &score, &scaled, 1);
  }
  take_sums(f);
  find_pairs(f);
  f->num_rows = d->num_rows;
  memcpy(f->row, d->row, sizeof f->row);
  ir_ref roots[DERIVED_MAX_TERMS + 2];
  int n = 0;
  roots[n++] = d->prob;
  roots[n++] = d->ds;
  for (int i = 0; i < f->element_terms.count; i++) roots[n++] = f->element_terms.term[i].value;
  for (int i = 0; i < n; i++)
    roots[i] = roots[i] == IR_NONE ? ir_real(g, 0) : ir_substitute(g, roots[i], &score, &scaled, 1);
  fold_roots(f, roots, n);
  hoist_bwd_rows(f, roots, n);
  if (f->plan->pass == LUATTN_BACKWARD) distance_take_gradient(f, roots, n);
  if (f->plan->pass == LUATTN_BACKWARD && f->plan->family == LUATTN_SM90 && !f->plan->no_lines)
    line_take_gradient(f, roots, n);
  f->grad_prob = roots[0];
  f->grad_ds = roots[1];
  for (int i = 0; i < f->element_terms.count; i++) f->element_terms.term[i].value = roots[2 + i];
  uniform_take(f);
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", traced(f)->name)
                      : LUATTN_OK;
}

luattn_status form_build(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p,
                         emit_form *out, luattn_error *err) {
  memset(out, 0, sizeof *out);
  out->a = a;
  out->g = spec->traced.g;
  out->spec = spec;
  out->mask = mask;
  out->plan = p;
  deps_open(&out->deps, a, out->g);
  choose_unit(out);
  shift_score(out);
  out->keep = mask->keep;
  TRY(build_online(out, err));
  if (p->pass == LUATTN_FORWARD) distance_take(out);
  if (p->pass == LUATTN_FORWARD && p->family == LUATTN_SM90) line_take(out);
  TRY(build_gradient(out, err)); /* in forward images too: a Spec without a hook is no Spec */
  return ir_failed(out->g) ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", spec->traced.name)
                           : LUATTN_OK;
}
