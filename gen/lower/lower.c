/* lower.c: lowers a traced and derived spec to the expressions of a kernel: the passes in their order. */
#include <string.h>

#include "gen/lower/lowering.h"

static void keep_wanted(const lowered *f, const derived_terms *from, derived_terms *to) {
  to->count = 0;
  for (int i = 0; i < from->count; i++)
    if (lowered_wants(f, &from->term[i])) to->term[to->count++] = from->term[i];
}

/* A row that keeps nothing has neither delta nor dlse, of which these values are multiples, but may have 1 / 0. A
 * block's sums leave it out (around/before/prepare.cuh); what is added to memory row by row is 0 by a select. */
static void leave_out_empty_rows(lowered *f) {
  ir *g = f->g;
  const ir_ref zero = ir_real(g, 0), delta = ir_variable(g, VAR_DELTA, 0), dlse = ir_variable(g, VAR_DLSE, 0);
  const ir_ref no_delta = ir_op2(g, IR_EQ, delta, zero), no_dlse = ir_op2(g, IR_EQ, dlse, zero);
  for (int i = 0; i < f->row_terms.count; i++) {
    derived_term *t = &f->row_terms.term[i];
    if (lowered_has_one_place(f, t)) continue;
    const ir_ref empty = ir_uses(g, t->value, VAR_DLSE) ? ir_op2(g, IR_AND, no_delta, no_dlse) : no_delta;
    t->value = ir_op3(g, IR_SELECT, empty, zero, t->value);
  }
}

/* Chunks have no bias rows: one would be of the positions of one chunk. */
static bool stages_bias_rows(const plan *p) {
  return p->family->stages_bias_rows && !p->no_bias_rows && p->offsets != LUATTN_OFFSET_CHUNKS;
}

static luattn_status lower_gradient(lowered *f, luattn_error *err) {
  ir *g = f->g;
  const derived_spec *d = &f->spec->derived;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), ir_variable(g, VAR_DOT, 0));
  f->mod_grad[0] = &d->query_mod, f->mod_grad[1] = &d->key_mod, f->mod_grad[2] = &d->value_mod;
  keep_wanted(f, &d->element_terms, &f->element_terms);
  keep_wanted(f, &d->row_terms, &f->row_terms);
  leave_out_empty_rows(f);
  for (int i = 0; i < f->element_terms.count; i++) {
    derived_term *t = &f->element_terms.term[i];
    for (int k = 0; k < t->num_index; k++) t->index[k] = ir_substitute(g, t->index[k], &score, &scaled, 1);
  }
  gradient_sums_take(f);
  f->num_rows = d->num_rows;
  memcpy(f->row, d->row, sizeof d->row);
  ir_ref roots[DERIVED_MAX_TERMS + 2];
  int n = 0;
  roots[n++] = d->prob;
  roots[n++] = d->ds;
  for (int i = 0; i < f->element_terms.count; i++) roots[n++] = f->element_terms.term[i].value;
  for (int i = 0; i < n; i++)
    roots[i] = roots[i] == IR_NONE ? ir_real(g, 0) : ir_substitute(g, roots[i], &score, &scaled, 1);
  multiply_add_roots(f, roots, n);
  prepared_rows_take(f, roots, n);
  if (f->plan->pass == LUATTN_BACKWARD) distance_term_take_gradient(f, roots, n);
  if (f->plan->pass == LUATTN_BACKWARD && stages_bias_rows(f->plan)) bias_row_take_gradient(f, roots, n);
  f->grad_prob = roots[0];
  f->grad_ds = roots[1];
  for (int i = 0; i < f->element_terms.count; i++) f->element_terms.term[i].value = roots[2 + i];
  head_factors_take(f);
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", lowered_traced(f)->name)
                      : LUATTN_OK;
}

/* Every expression of spec.cuh. */
static luattn_status lower_expressions(lowered *f, luattn_error *err) {
  const plan *p = f->plan;
  if (p->tangents != 0) TRY(dual_step_build(f, err));
  approximate_score(f);
  if (p->tangents == 0) online_step_choose_unit(f);
  if (p->tangents == 0) row_shift_score(f);
  if (f->mask->keep != IR_NONE) lists_take(f);
  if (p->tangents == 0) TRY(online_step_build(f, err));
  approximate_nothing(f);
  if (p->merges) TRY(row_parts_merge(f, err));
  if (p->family->merges && !f->has_merge)
    return luattn_fail(err, LUATTN_UNSUPPORTED, "target: decode: is 1, and %s; or leave it 0", f->why_no_merge);
  if (plan_kernel(p)->has_distance_terms) distance_term_take(f);
  if (p->pass == LUATTN_FORWARD && stages_bias_rows(p)) bias_row_take(f);
  approximate_gradient(f);
  if (lowered_dual_gradient(f))
    TRY(dual_gradient_build(f, err));
  else
    TRY(lower_gradient(f, err)); /* in forward images too: a Spec without a hook does not satisfy the
                                  * contract */
  return ir_failed(f->g) ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", f->spec->traced.name)
                         : LUATTN_OK;
}

static void write_notes(const lowered *f, text *why) {
  if (f->bounded) text_add(why, "scores lie within %g and %g: no running maximum\n", f->score_lo, f->score_hi);
  if (f->bounds_are_long)
    text_add(why, "scores fall with positions, but are too long to bound: no tiles are skipped for their weights\n");
  if (f->score_bounds != IR_NONE)
    text_add(why,
             "scores fall with positions: at long lengths tiles are skipped whose weights norms of q and k prove "
             "to be negligible (luattn_args.skip)\n");
}

/* Says how kernels test the scores of a tile that an evaluated mask keeps in part, where not one by one. */
static void note_partial_tiles(const lowered *f, text *why) {
  const bool forward = f->plan->pass == LUATTN_FORWARD, every = forward || plan_kernel(f->plan)->regroups_all_masks;
  if (!every && (f->num_keep_beside > 0 || f->facts.keep_is_cheap || f->facts.grad_adds_to_memory)) return;
  if (f->flag_line != IR_NONE)
    text_add(why,
             "mask: in tiles kept in part, flags of '%s' are read 16 at a time, where a query's lie side by "
             "side\n",
             lowered_traced(f)->input[ir_index_of(ir_get(f->g, f->flag_line))].name);
  else if (f->keep_of_query)
    text_add(why, "mask: in tiles kept in part, a list of a query is read once for keys that are of one block\n");
  else if (f->facts.keep_runs)
    text_add(why, "mask: in tiles kept in part, it is asked once for each run of %s that are the same to it\n",
             forward ? "keys" : "queries");
}

luattn_status lower_spec(arena *a, const struct luattn_spec *spec, const mask_info *mask, const plan *p, lowered *out,
                         luattn_error *err) {
  text why;
  memset(out, 0, sizeof *out);
  text_init(&why, a);
  out->a = a;
  out->g = spec->traced.g;
  out->spec = spec;
  out->mask = mask;
  out->plan = p;
  deps_open(&out->deps, a, out->g);
  TRY(lower_expressions(out, err));
  TRY(hoist_open(out, err)); /* nodes are fixed from here on */
  TRY(accumulators_collect(out, err));
  write_notes(out, &why);
  row_width_choose(out, &why);
  hooks_plan_slots(out);
  if (!out->failed) hooks_choose_called(out, &why);
  if (!out->failed) facts_find(out);
  if (!out->failed) facts_find_rows(out);
  if (!out->failed) note_partial_tiles(out, &why);
  if (!out->failed) compile_work_count(out);
  out->notes = text_get(&why);
  if (out->notes == NULL || ir_failed(out->g) || arena_failed(a))
    return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", spec->traced.name);
  if (out->failed)
    return luattn_fail(err, LUATTN_INTERNAL, "emit: %s: has more hooks than a kernel can call; please report the spec",
                       spec->traced.name);
  return LUATTN_OK;
}
