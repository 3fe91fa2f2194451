/* online_step.c: lowers the online function: chooses the unit of the stored score, which reductions are
 * deferred to the end and whether rescaling is lazy, and writes the epilogue. */
#include <string.h>

#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"

static bool has_maximum(const lowered *f) {
  const traced_online *o = &lowered_traced(f)->online;
  bool found = ir_uses_op(f->g, o->prob, IR_REDUCE_MAX) || ir_uses_op(f->g, o->rescale, IR_REDUCE_MAX);
  for (int i = 0; i < o->num_state; i++) found |= ir_uses_op(f->g, o->next[i], IR_REDUCE_MAX);
  return found;
}

/* Before a maximum, and with no score_mod, or one that only adds to the score, score() gives score / scale:
 * the dot product itself, or one addition. The online function then takes scale * VAR_SCORE, whose factor
 * merges with those that it already has. The scale is positive, so a maximum of scaled scores is the scaled
 * maximum. Not for large scores: the maximum that is saved is that of scores as they are rounded. */
void online_step_choose_unit(lowered *f) {
  ir *g = f->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), dot = ir_variable(g, VAR_DOT, 0),
               scale = ir_variable(g, VAR_SCALE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, scale, dot);
  const ir_ref mod = row_shift_source(f);
  ir_ref rest = IR_NONE;
  f->dot_unit = has_maximum(f) && !f->plan->large_scores && multiply_add_rest(f, mod, score, &rest);
  if (!f->dot_unit)
    f->score = ir_substitute(g, mod, &score, &scaled, 1);
  else
    f->score = rest == IR_NONE ? dot : ir_op2(g, IR_ADD, dot, ir_op2(g, IR_DIV, rest, scale));
}

void online_step_take_unit(lowered *f, ir_ref **more, int num_more) {
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
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++) s->next[i] = ir_substitute(g, s->next[i], from, to, n);
  for (int i = 0; i < num_more; i++)
    if (*more[i] != IR_NONE) *more[i] = ir_substitute(g, *more[i], from, to, n);
}

bool online_step_uses(ir *g, ir_ref r, ir_ref node) {
  if (r == IR_NONE) return false;
  const ir_ref marker = ir_variable(g, VAR_DELTA, 0); /* never occurs in an online step */
  return ir_substitute(g, r, &node, &marker, 1) != r;
}

/* Whether `x` is used in the step anywhere except in next[state]. */
static bool used_elsewhere(lowered *f, ir_ref x, int state) {
  const online_split *s = &f->step;
  for (int k = 0; k < s->num_red; k++)
    if (online_step_uses(f->g, s->term[k], x)) return true;
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++)
    if (i != state && online_step_uses(f->g, s->next[i], x)) return true;
  return online_step_uses(f->g, s->prob, x) || online_step_uses(f->g, s->rescale, x);
}

/* Whether next = a * old + c * red, where a and c do not depend on old or red: then each thread may keep a
 * partial sum until the end. */
static bool is_linear_update(lowered *f, ir_ref next, ir_ref old, ir_ref red) {
  ir *g = f->g;
  const ir_ref one = ir_real(g, 1), from[2] = {old, red}, zero[2] = {ir_real(g, 0), ir_real(g, 0)};
  ir_ref d[2] = {IR_NONE, IR_NONE};
  ir_grad(g, &next, &one, 1, from, d, 2);
  ir_simplify(g, d, 2);
  for (int i = 0; i < 2; i++)
    if (d[i] == IR_NONE || online_step_uses(g, d[i], old) || online_step_uses(g, d[i], red)) return false;
  ir_ref rest = ir_substitute(g, next, from, zero, 2);
  ir_simplify(g, &rest, 1);
  double x;
  /* floor and the like have derivative zero without being constant: rebuild the update from its parts and
   * compare. */
  if (!ir_is_const(g, rest, &x) || x != 0) return false;
  return !ir_uses_op(g, next, IR_FLOOR) && !ir_uses_op(g, next, IR_SIGN) && !ir_uses_op(g, next, IR_MOD) &&
         !ir_uses_op(g, next, IR_FLOORDIV) && !ir_uses_op(g, next, IR_SELECT) && !ir_uses_op(g, next, IR_STOP_GRADIENT);
}

void online_step_defer(lowered *f) {
  const traced_online *o = &lowered_traced(f)->online;
  for (int k = 0; k < f->step.num_red; k++) {
    if (f->step.kind[k] != IR_REDUCE_SUM) continue;
    const ir_ref red = ir_variable(f->g, VAR_RED, (uint32_t)k);
    for (int i = 0; i < o->num_state; i++) {
      double init;
      const ir_ref old = ir_variable(f->g, VAR_STATE, (uint32_t)i);
      if (!online_step_uses(f->g, f->step.next[i], red)) continue;
      f->red_deferred[k] = f->state_deferred[i] = ir_is_const(f->g, o->init[i], &init) && init == 0 &&
                                                  !used_elsewhere(f, red, i) && !used_elsewhere(f, old, i) &&
                                                  is_linear_update(f, f->step.next[i], old, red);
      break;
    }
  }
}

void online_step_choose_prob_term(lowered *f) {
  f->prob_term = -1;
  for (int k = 0; k < f->step.num_red; k++) {
    if (f->prob_term >= 0 && ir_uses(f->g, f->step.term[k], VAR_SCORE)) f->prob_term = -1;
    if (f->step.kind[k] == IR_REDUCE_SUM && f->step.term[k] == f->step.prob) f->prob_term = k;
  }
}

/* The number of roots of the step. */
enum { STEP_ROOTS = SPEC_MAX_RED + SPEC_MAX_STATE + 2 };
static int step_roots(const lowered *f, ir_ref *root) {
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) root[n++] = f->step.term[k];
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++) root[n++] = f->step.next[i];
  root[n++] = f->step.prob;
  root[n++] = f->step.rescale;
  return n;
}
static void set_step_roots(lowered *f, const ir_ref *root) {
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) f->step.term[k] = root[n++];
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++) f->step.next[i] = root[n++];
  f->step.prob = root[n++];
  f->step.rescale = root[n++];
}

/* The only node under the roots that reads x; IR_NONE: x is a root itself, or several nodes read it, or
 * none. */
static ir_ref only_reader(const lowered *f, const ir_ref *root, int n, ir_ref x) {
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

/* Where the online function reads only a * score + b, with numbers of the head, score() gives that: its own
 * last multiply-add includes a and b. The exception is a score of -inf that would then no longer mask its
 * element. */
static luattn_status choose_stored(lowered *f, luattn_error *err) {
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
  TRY(probe_mask_by_inf(f, &by_inf, err));
  if (by_inf != f->mask_by_inf) {
    f->step = before;
    return LUATTN_OK;
  }
  f->step_unit = true;
  f->score = ir_substitute(g, stored, &score, &f->score, 1);
  multiply_add_roots(f, &f->score, 1);
  online_step_choose_prob_term(f);
  return LUATTN_OK;
}

/* The row keeps the maximum of its first scores as long as P stay in range, which the kernel checks. */
static void rescale_lazily(lowered *f) {
  ir *g = f->g;
  online_split *s = &f->step;
  const ir_ref peak = s->next[f->max_state], red = ir_variable(g, VAR_RED, 0),
               max = ir_variable(g, VAR_STATE, (uint32_t)f->max_state),
               sum = ir_variable(g, VAR_STATE, (uint32_t)(1 - f->max_state));
  const ir_ref prob = ir_substitute(g, s->prob, &peak, &max, 1);
  f->lazy_rescale = f->lazy_rescale && f->mask_by_inf && f->prob_term == 1 && !online_step_uses(g, prob, red);
  if (!f->lazy_rescale) return;
  f->raise[f->max_state] = peak;
  f->raise[1 - f->max_state] = ir_op2(g, IR_MUL, sum, s->rescale);
  s->term[1] = s->prob = prob;
  s->next[f->max_state] = max;
  s->next[1 - f->max_state] = ir_op2(g, IR_ADD, sum, ir_variable(g, VAR_RED, 1));
}

/* Leaves positions to the kernel, of which the online function of a row pass alone reads any: in the maximum over
 * elements of x - kv_idx (gen/compile/pass_spec.c). */
static void take_places(lowered *f) {
  ir *g = f->g;
  const ir_ref kv = ir_to_real(g, ir_linear_index(g, VAR_KV, VAR_KV_LEN));
  for (int k = 0; k < f->step.num_red; k++) {
    const ir_node n = *ir_get(g, f->step.term[k]);
    f->red_place[k] = f->step.kind[k] == IR_REDUCE_MAX && n.op == IR_SUB && n.arg[1] == kv;
    if (f->red_place[k]) f->step.term[k] = n.arg[0];
  }
}

luattn_status online_step_build(lowered *f, luattn_error *err) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  TRY(split_online(g, o, lowered_traced(f)->file, &f->step, err));
  take_places(f);
  memcpy(f->init, o->init, sizeof f->init);
  memcpy(f->saved, f->spec->derived.saved, sizeof f->saved);
  f->tail[0] = o->out;
  f->tail[1] = o->lse >= 0 ? o->final[o->lse] : IR_NONE;
  TRY(tile_skipping_choose(f, err));
  TRY(probe_bounded_scores(f, err));
  TRY(probe_lazy_rescale(f, err));
  if (f->dot_unit) online_step_take_unit(f, NULL, 0);
  row_shift_step(f);
  online_step_defer(f);

  ir_ref root[STEP_ROOTS];
  approximate_step(f);
  multiply_add_roots(f, root, step_roots(f, root));
  approximate_score(f);
  set_step_roots(f, root);
  online_step_choose_prob_term(f);
  TRY(probe_mask_by_inf(f, &f->mask_by_inf, err));
  TRY(choose_stored(f, err));
  if (!f->mask_by_inf) TRY(probe_mask_by_zero(f, &f->mask_by_zero, err));
  rescale_lazily(f);

  double rescale;
  f->has_rescale = !ir_is_const(g, f->step.rescale, &rescale) || rescale != 1;
  softcap_poly_choose(f);
  const ir_ref sum = ir_variable(g, VAR_OUT, 0), one = ir_real(g, 1);
  f->out_scale = ir_substitute(g, f->tail[0], &sum, &one, 1);
  ir_simplify(g, &f->out_scale, 1);
  f->lse = f->tail[1];
  return LUATTN_OK;
}
