/* lowering.h: the passes of lower_spec, each in a file of its own, in the order in which they run.
 * Internal to gen/lower. */
#ifndef LUATTN_GEN_LOWERING_H
#define LUATTN_GEN_LOWERING_H

#include "gen/base/text.h"
#include "gen/lower/lowered.h"

static inline const traced_spec *lowered_traced(const lowered *f) { return &f->spec->traced; }

/* Whether r is constant per (b, h). */
static inline bool lowered_of_head(lowered *f, ir_ref r) { return (deps_of(&f->deps, r) & ~DEP_SITE) == 0; }

/* Whether the term's address is constant per head: the block then sums the term, and adds the sum once. */
static inline bool lowered_has_one_place(lowered *f, const derived_term *t) {
  for (int i = 0; i < t->num_index; i++)
    if (!lowered_of_head(f, t->index[i])) return false;
  return true;
}

/* online_step.c: chooses the unit of the stored score, then splits the online function into the step, the
 * deferred reductions and the epilogue. */
void online_step_choose_unit(lowered *f);
/* Where `dot_unit`: has the step, and `more` expressions, take scores and their maxima in that unit. */
void online_step_take_unit(lowered *f, ir_ref **more, int num_more);
luattn_status online_step_build(lowered *f, luattn_error *err);
bool online_step_uses(ir *g, ir_ref r, ir_ref node);
void online_step_defer(lowered *f);            /* chooses the sums that threads keep apart */
void online_step_choose_prob_term(lowered *f); /* the reduction whose term is prob */

/* dual_step.c: in place of online_step.c where the plan has tangents: the score, the step and the epilogue, and the
 * tangents of each. */
luattn_status dual_step_build(lowered *f, luattn_error *err);

/* dual_gradient.c: P, dS and numbers of rows with their tangents, where backward has these. */
luattn_status dual_gradient_build(lowered *f, luattn_error *err);

/* probe.c. Leaves the step as it is, or removes its maximum and sets `bounded` and `tail`. */
luattn_status probe_bounded_scores(lowered *f, luattn_error *err);
luattn_status probe_lazy_rescale(lowered *f, luattn_error *err); /* sets `lazy_rescale` and `max_state` */
/* Whether the online function is a softmax whose small P may be left out in both passes. Called before a
 * maximum is removed. */
luattn_status probe_softmax(lowered *f, bool *hold, luattn_error *err);
luattn_status probe_mask_by_inf(lowered *f, bool *hold, luattn_error *err);
luattn_status probe_mask_by_zero(lowered *f, bool *hold, luattn_error *err);

/* row_parts.c: how two parts of a row are merged, where the plan asks for it. */
luattn_status row_parts_merge(lowered *f, luattn_error *err);

/* multiply_add.c: exp and log in base 2, linear combinations as chains of multiply-adds with all uniform
 * factors in one coefficient. */
void multiply_add_roots(lowered *f, ir_ref *roots, int n);
/* approximations.c: sets `approximate` for what is lowered next. */
void approximate_score(lowered *f);
void approximate_step(lowered *f);
void approximate_gradient(lowered *f);
void approximate_nothing(lowered *f);
/* If r = x + rest with `rest` free of x, writes rest (IR_NONE: zero). */
bool multiply_add_rest(lowered *f, ir_ref r, ir_ref x, ir_ref *rest);
/* Rewrites a score and splits off the part that is constant over the elements of a thread in one row and
 * tile. IR_NONE: there is none, and the score is unchanged. */
ir_ref multiply_add_shift(lowered *f, ir_ref *score);

/* row_shift.c: splits the terms that are constant per row and tile off `score`; the online function adds them
 * separately. */
ir_ref row_shift_source(const lowered *f); /* the score_mod to start from */
void row_shift_score(lowered *f);
void row_shift_step(lowered *f);

luattn_status tile_skipping_choose(lowered *f, luattn_error *err); /* tile_skipping.c; writes `score_bounds` */

/* softcap_poly.c: the test for scores far below a soft cap, and P of such scores; whether P are sigmoids. */
void softcap_poly_choose(lowered *f);

/* early_terms.c. Set `distance_term` or `bias_row`, and `score_with` or `roots`, what grad computes, with
 * VAR_TERM in its place. */
void distance_term_take(lowered *f);
void distance_term_take_gradient(lowered *f, ir_ref *roots, int n);
void bias_row_take(lowered *f);
void bias_row_take_gradient(lowered *f, ir_ref *roots, int n);
/* Returns the axis of an input whose index is q itself, if no other index depends on q; -1: none. */
int bias_row_axis(lowered *f, int input, const ir_ref *index, int num_index);
/* Whether a row along the axis that `index` counts lies in one piece. Where sequences are packed, and the axis is q or
 * kv, it must be of one query alone, and the index the position itself: a row of keys of all sequences has neighbours'
 * numbers. */
bool row_in_place(const lowered *f, int input, int axis, ir_ref index);

/* gradient_sums.c: moves the terms of an element that kernels compute from sums of dS; sets `sum` with its
 * fields, and `pairs`. */
void gradient_sums_take(lowered *f);
/* prepared_rows.c: moves what gradients compute only from row numbers into prepare; sets `row`. */
void prepared_rows_take(lowered *f, ir_ref *roots, int n);
/* head_factors.c: moves factors and conditions that are constant per head out of element_terms. */
void head_factors_take(lowered *f);

/* row_width.c: chooses how many channels an input mod that reads x[..] takes at once; sets `row_width`. */
void row_width_choose(lowered *f, text *why);

/* accumulators.c: chooses the parameter gradients that a block sums before it adds them; sets `acc`. */
luattn_status accumulators_collect(lowered *f, luattn_error *err);

/* lists.c: reads lists of chosen blocks as lists: sets `keep`, `mask` and `has_lists`. */
void lists_take(lowered *f);

/* hoist.c: chooses the subexpressions that are computed once per head, row or column and kept in a slot.
 * Every function first registers its expressions; then the slots are chosen. */
luattn_status hoist_open(lowered *f, luattn_error *err);
void hoist_plan(lowered *f, int has, const ir_ref *roots, int n);
void hoist_fix(lowered *f);
/* Whether numbers of a head are planned for more slots than a kernel has registers for. */
bool hoist_crowds_head(const lowered *f);

/* outline.c: turns a hook whose inlined copies would take long to compile into one called function. */
void outline_add(lowered *f, const char *name, int has, int copies, const ir_ref *roots, int n);
void outline_choose_ops(lowered *f);        /* chooses the hooks that call their long functions */
void outline_choose(lowered *f, text *why); /* adds a line to the plan's reasons for each */

/* lowered.c: the expressions of the contract's functions in forward. */
typedef struct forward_part {
  int has;
  const ir_ref *root;
  int n;
} forward_part;
enum { FORWARD_PARTS = 27 };
int hooks_of_forward(const lowered *f, forward_part out[FORWARD_PARTS]); /* except `keep`; returns how many */

/* contract_hooks.c: hoists and calls them. */
void hooks_plan_slots(lowered *f);
void hooks_choose_called(lowered *f, text *why);

/* compile_work.c: the code of hooks, for an estimate of the time to compile it. Writes `work`. */
void compile_work_count(lowered *f);

/* tile_bounds.c: finds what tile_class and the other tile bounds need; sets `facts`. */
void tile_bounds_find(lowered *f);
/* Whether the sm90 forward stages Col, and whether scores read it; known once hooks to call are. */
bool facts_stage_columns(const lowered *f);
bool facts_score_reads_col(const lowered *f);
/* facts.c: the other facts, and what the plan and the image need. */
void facts_find(lowered *f);
void facts_find_rows(lowered *f);

#endif
