/* lowering.h: the passes of lower_spec, each in a file of its own, in the order in which they run.
 * Internal to gen/lower. */
#ifndef LUATTN_GEN_LOWERING_H
#define LUATTN_GEN_LOWERING_H

#include "gen/base/text.h"
#include "gen/lower/lowered.h"

static inline const traced_spec *lowered_traced(const lowered *f) { return &f->spec->traced; }

/* The same for all of one (b, h)? */
static inline bool lowered_of_head(lowered *f, ir_ref r) { return (deps_of(&f->deps, r) & ~DEP_SITE) == 0; }

/* A place that is the same for the whole head: the block sums what goes there, and adds it once. */
static inline bool lowered_has_one_place(lowered *f, const derived_term *t) {
  for (int i = 0; i < t->num_index; i++)
    if (!lowered_of_head(f, t->index[i])) return false;
  return true;
}

/* online_step.c: chooses the unit of the stored score, then takes the online function apart into what a step
 * does, what is deferred to the end, and the epilogue. */
void online_step_choose_unit(lowered *f);
luattn_status online_step_build(lowered *f, luattn_error *err);
bool online_step_uses(ir *g, ir_ref r, ir_ref node);

/* probe.c. Leaves the step as it is, or takes its maximum away and writes `bounded` and `tail`. */
luattn_status probe_bounded_scores(lowered *f, luattn_error *err);
luattn_status probe_lazy_rescale(lowered *f, luattn_error *err); /* writes `lazy_rescale` and `max_state` */
/* Is it a softmax, whose weights, small enough, may be left out of both passes? Before a maximum is taken
 * away. */
luattn_status probe_softmax(lowered *f, bool *hold, luattn_error *err);
luattn_status probe_mask_by_inf(lowered *f, bool *hold, luattn_error *err);
luattn_status probe_mask_by_zero(lowered *f, bool *hold, luattn_error *err);

/* multiply_add.c: exp and log in base 2, linear combinations as chains of multiply-adds with everything
 * uniform in one coefficient. */
void multiply_add_roots(lowered *f, ir_ref *roots, int n);
/* If r = x + rest with `rest` free of x, writes rest (IR_NONE: zero). */
bool multiply_add_rest(lowered *f, ir_ref r, ir_ref x, ir_ref *rest);
/* Rewrites a score and takes from it what is the same for all elements that a thread has of one row in a
 * tile. IR_NONE: nothing is, and the score is as it was. */
ir_ref multiply_add_shift(lowered *f, ir_ref *score);

/* row_shift.c: `score` without what is the same for a row in a tile, which the online function gets by
 * itself. */
ir_ref row_shift_source(const lowered *f); /* the score_mod to start from */
void row_shift_score(lowered *f);
void row_shift_step(lowered *f);

luattn_status tile_skipping_choose(lowered *f,
                                   luattn_error *err); /* tile_skipping.c; writes `score_bounds` */

/* softcap_poly.c: how to tell that scores are far below a soft cap, and P of such; whether P are sigmoids. */
void softcap_poly_choose(lowered *f);

/* early_terms.c. Write `distance_term` or `bias_row`, and `score_with` or `roots`, what grad computes, with
 * VAR_TERM in its place. */
void distance_term_take(lowered *f);
void distance_term_take_gradient(lowered *f, ir_ref *roots, int n);
void bias_row_take(lowered *f);
void bias_row_take_gradient(lowered *f, ir_ref *roots, int n);
/* Of an input read at these indices: the axis of q whose index q is itself, where no other moves with q; -1:
 * there is none. */
int bias_row_axis(lowered *f, int input, const ir_ref *index, int num_index);

/* gradient_sums.c: of the terms of an element, those that kernels make from sums of dS; writes `sum` and what
 * goes with it, and `pairs`. */
void gradient_sums_take(lowered *f);
/* prepared_rows.c: moves what gradients compute from a row's numbers alone into prepare; writes `row`. */
void prepared_rows_take(lowered *f, ir_ref *roots, int n);
/* head_factors.c: element_terms without factors and conditions that a head's elements share. */
void head_factors_take(lowered *f);

/* accumulators.c: which parameter gradients a block sums before it adds them; writes `acc`. */
luattn_status accumulators_collect(lowered *f, luattn_error *err);

/* hoist.c: which subexpressions are computed once per head, row or column and kept in a slot. First every
 * function plans its expressions, then the slots are fixed. */
luattn_status hoist_open(lowered *f, luattn_error *err);
void hoist_plan(lowered *f, int has, const ir_ref *roots, int n);
void hoist_fix(lowered *f);

/* outline.c: a hook whose inlined copies would take long to compile is one function, called. */
void outline_add(lowered *f, const char *name, int has, int copies, const ir_ref *roots, int n);
void outline_choose(lowered *f, text *why); /* adds a line to the plan's reasons for each */

/* contract_hooks.c: which expressions the functions of the contract are made of. */
typedef struct forward_part {
  int has;
  const ir_ref *root;
  int n;
} forward_part;
enum { FORWARD_PARTS = 16 };
int hooks_of_forward(const lowered *f, forward_part out[FORWARD_PARTS]); /* but `keep`; how many */
void hooks_plan_slots(lowered *f);
void hooks_choose_called(lowered *f, text *why);

/* tile_bounds.c: what tile_class and what goes with it bound. Write `facts`. */
void tile_bounds_find(lowered *f);
/* facts.c: the other facts, and what the plan and the image ask. */
void facts_find(lowered *f);
void facts_find_rows(lowered *f);

#endif
