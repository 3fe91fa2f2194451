/* dual_step.c: lowers the score and the online function together with their tangents, where the plan has these. A
 * running maximum stays: what forward alone rewrites is not proved for tangents. Tangents of scores are in natural units. */
#include <string.h>

#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"

static tangent_sources sources_of(const lowered *f) {
  const uint64_t bits = f->plan->tangents;
  return (tangent_sources){.q = bits & LUATTN_TANGENT_Q,
                           .k = bits & LUATTN_TANGENT_K,
                           .v = bits & LUATTN_TANGENT_V,
                           .inputs = (uint32_t)(bits / LUATTN_TANGENT_INPUT(0)) & ((1u << SPEC_INPUT_TANGENT) - 1),
                           .scalars = (uint32_t)(bits / LUATTN_TANGENT_SCALAR(0)),
                           .stabilisers = f->spec->derived.stabilisers};
}

/* Whether the tangent of a maximum counts, which is that of the element that it is. */
static bool maximum_moves(const lowered *f) {
  const spec_tangents *t = &f->tangents;
  bool moves = false;
  for (int k = 0; k < t->split.num_red; k++) moves |= t->split.kind[k] == IR_REDUCE_MAX && t->term[k] != IR_NONE;
  return moves;
}

enum { ROOTS = 2 * (SPEC_MAX_RED + SPEC_MAX_STATE + 2) };

static int tangent_places(lowered *f, ir_ref **at) {
  spec_tangents *t = &f->tangents;
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) at[n++] = &t->term[k];
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++) at[n++] = &t->next[i];
  at[n++] = &t->prob, at[n++] = &t->rescale;
  return n;
}

/* The expressions of a step, then their tangents. */
static int step_places(lowered *f, ir_ref **at) {
  int n = 0;
  for (int k = 0; k < f->step.num_red; k++) at[n++] = &f->step.term[k];
  for (int i = 0; i < lowered_traced(f)->online.num_state; i++) at[n++] = &f->step.next[i];
  at[n++] = &f->step.prob, at[n++] = &f->step.rescale;
  return n + tangent_places(f, at + n);
}

static void fold(lowered *f, ir_ref **at, int n) {
  ir_ref root[ROOTS];
  for (int i = 0; i < n; i++) root[i] = *at[i];
  multiply_add_roots(f, root, n);
  for (int i = 0; i < n; i++) *at[i] = root[i];
}

/* Whether y' is y times the tangent of the score, or 0 beside a y that does not read the score. */
static bool grows_as_score(ir *g, ir_ref y, ir_ref y_tangent) {
  return y_tangent == ir_op2(g, IR_MUL, y, ir_variable(g, VAR_SCORE_TANGENT, 0));
}

/* Along scores' tangents of 1, tangents of sums and states are these themselves, as with exponentials of scores. */
static bool steps_as_itself(lowered *f) {
  ir *g = f->g;
  const spec_tangents *t = &f->tangents;
  const traced_online *o = &lowered_traced(f)->online;
  ir_ref from[SPEC_MAX_STATE + SPEC_MAX_RED], to[SPEC_MAX_STATE + SPEC_MAX_RED];
  double start;
  int n = 0;
  if (t->score_mod == IR_NONE || t->rescale != IR_NONE || !grows_as_score(g, t->split.prob, t->prob)) return false;
  for (int k = 0; k < t->split.num_red; k++) {
    if (t->term[k] == IR_NONE) continue;
    if (!grows_as_score(g, t->split.term[k], t->term[k])) return false;
    from[n] = ir_variable(g, VAR_RED_TANGENT, (uint32_t)k), to[n++] = ir_variable(g, VAR_RED, (uint32_t)k);
  }
  for (int i = 0; i < o->num_state; i++)
    from[n] = ir_variable(g, VAR_STATE_TANGENT, (uint32_t)i), to[n++] = ir_variable(g, VAR_STATE, (uint32_t)i);
  for (int i = 0; i < o->num_state; i++) {
    if (t->of.stabilisers >> i & 1) continue;
    if (t->init[i] != IR_NONE || !ir_is_const(g, o->init[i], &start) || start != 0 || t->next[i] == IR_NONE ||
        ir_substitute(g, t->next[i], from, to, n) != t->split.next[i])
      return false;
  }
  return true;
}

static void build_score(lowered *f) {
  ir *g = f->g;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0),
               scaled = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), ir_variable(g, VAR_DOT, 0));
  online_step_choose_unit(f);
  ir_ref root[2] = {f->score, f->tangents.score_mod};
  if (root[1] != IR_NONE) root[1] = ir_substitute(g, root[1], &score, &scaled, 1);
  approximate_score(f);
  multiply_add_roots(f, root, 2);
  f->score = root[0], f->tangents.score_mod = root[1];
}

static void build_step(lowered *f) {
  ir_ref *at[ROOTS];
  if (f->dot_unit) online_step_take_unit(f, at, tangent_places(f, at));
  online_step_defer(f);
  const int n = step_places(f, at);
  approximate_step(f);
  fold(f, at, n);
  approximate_nothing(f);
  online_step_choose_prob_term(f);
}

static void build_epilogue(lowered *f) {
  ir *g = f->g;
  const traced_online *o = &lowered_traced(f)->online;
  const ir_ref sum = ir_variable(g, VAR_OUT, 0), one = ir_real(g, 1);
  ir_ref *const factor[] = {&f->out_scale, &f->tangents.out};
  f->tail[0] = f->out_scale = o->out;
  f->tail[1] = f->lse = o->lse >= 0 ? o->final[o->lse] : IR_NONE;
  for (int i = 0; i < 2; i++) {
    if (*factor[i] == IR_NONE) continue;
    *factor[i] = ir_substitute(g, *factor[i], &sum, &one, 1);
    ir_simplify(g, factor[i], 1);
  }
}

/* Where any number serves as the maximum, so does one that is a little too small: A and B are then rarely rescaled. Not
 * in f16, whose range large tangents times P need. */
static luattn_status let_maximum_lag(lowered *f, luattn_error *err) {
  TRY(probe_lazy_rescale(f, err));
  f->max_lags = f->lazy_rescale && f->plan->dtype == LUATTN_BF16 && !maximum_moves(f);
  f->lazy_rescale = false; /* a step of forward alone */
  return LUATTN_OK;
}

luattn_status dual_step_build(lowered *f, luattn_error *err) {
  const tangent_sources of = sources_of(f);
  double rescale;
  TRY(spec_tangents_of(f->a, lowered_traced(f), &of, &f->tangents, err));
  f->centres = steps_as_itself(f);
  f->step = f->tangents.split;
  memcpy(f->init, lowered_traced(f)->online.init, sizeof f->init);
  memcpy(f->saved, f->spec->derived.saved, sizeof f->saved);
  TRY(let_maximum_lag(f, err));
  build_score(f);
  build_step(f);
  TRY(probe_mask_by_inf(f, &f->mask_by_inf, err));
  if (!f->mask_by_inf) TRY(probe_mask_by_zero(f, &f->mask_by_zero, err));
  f->has_rescale = !ir_is_const(f->g, f->step.rescale, &rescale) || rescale != 1;
  build_epilogue(f);
  return LUATTN_OK;
}
