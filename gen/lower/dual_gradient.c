/* dual_gradient.c: in place of what lower_gradient does where backward has tangents: P, dS and the numbers of rows together
 * with their tangents, and of gradients of inputs and scalars the tangents alone. */
#include <math.h>

#include "gen/lower/lowering.h"

static ir_ref or_zero(ir *g, ir_ref r) { return r != IR_NONE ? r : ir_real(g, 0); }

/* Numbers of rows come first, then their tangents, all as numbers of a row. */
static void take_rows(lowered *f, const backward_tangents *b) {
  const derived_spec *d = &f->spec->derived;
  const int n = d->num_rows;
  for (int i = 0; i < n; i++) {
    f->row[i] = d->row[i];
    f->row[n + i] = or_zero(f->g, b->row[i]);
  }
  f->num_rows = 2 * n;
  for (int i = 0; i < d->num_saved; i++) f->saved_tangent[i] = b->saved[i];
}

/* ---- row passes ---- */

/* What an element adds (lowered.h), of VAR_SCORE as score_mod leaves it. */
static void take_pass_values(lowered *f, const backward_tangents *b) {
  ir *g = f->g;
  const derived_spec *d = &f->spec->derived;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0), lowest = ir_real(g, -INFINITY);
  const ir_ref counts = ir_op2(g, IR_LT, lowest, score);
  const ir_ref key = ir_to_real(g, ir_linear_index(g, VAR_KV, VAR_KV_LEN));
  int n = 0;
  for (int k = 0; k < d->num_passes; k++) f->pass_value[n] = d->pass[k].weight, f->pass_tangent[n++] = b->weight[k];
  for (int i = 0; i < d->num_sums; i++, n++) {
    const ir_ref x = d->sum[i].of;
    f->pass_value[n] = x, f->pass_tangent[n] = b->sum[i];
    if (d->sum[i].kind != PASS_PLACE) continue;
    f->pass_value[n] = x == score ? x : ir_op3(g, IR_SELECT, counts, x, lowest);
    f->pass_tangent[n] = key;
  }
  f->num_pass_values = n;
}

/* Puts what the score is made of in its place. */
static void lower_pass_values(lowered *f) {
  enum { MOST = DERIVED_MAX_PASSES + DERIVED_MAX_SUMS };
  ir *g = f->g;
  const int n = f->num_pass_values;
  const ir_ref score = ir_variable(g, VAR_SCORE, 0);
  const ir_ref scaled = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), ir_variable(g, VAR_DOT, 0));
  const ir_ref from[] = {score, ir_variable(g, VAR_SCORE_TANGENT, 0)};
  const ir_ref to[] = {ir_substitute(g, lowered_traced(f)->score_mod, &score, &scaled, 1),
                       or_zero(g, f->tangents.score_mod)};
  ir_ref root[2 * MOST];
  for (int i = 0; i < n; i++) {
    root[i] = ir_substitute(g, f->pass_value[i], from, to, 2);
    root[n + i] = ir_substitute(g, or_zero(g, f->pass_tangent[i]), from, to, 2);
  }
  multiply_add_roots(f, root, 2 * n);
  for (int i = 0; i < n; i++) f->pass_value[i] = root[i], f->pass_tangent[i] = root[n + i];
}

/* Kernels leave the sum of weights times dP for VAR_PASS[k]: multiplies it by the pass's factor. */
static void multiply_passes(lowered *f, const backward_tangents *b) {
  ir *g = f->g;
  const derived_spec *d = &f->spec->derived;
  ir_ref from[2 * DERIVED_MAX_PASSES], to[2 * DERIVED_MAX_PASSES];
  const int n = d->num_passes;
  if (n == 0) return;
  for (int k = 0; k < n; k++) {
    const ir_ref sum = ir_variable(g, VAR_PASS, (uint32_t)k), tangent = ir_variable(g, VAR_PASS_TANGENT, (uint32_t)k);
    const ir_ref by = d->pass[k].factor, by_tangent = or_zero(g, b->factor[k]);
    from[k] = sum, to[k] = ir_op2(g, IR_MUL, sum, by);
    from[n + k] = tangent;
    to[n + k] = ir_op2(g, IR_ADD, ir_op2(g, IR_MUL, tangent, by), ir_op2(g, IR_MUL, sum, by_tangent));
  }
  for (int i = 0; i < f->num_rows; i++) f->row[i] = ir_substitute(g, f->row[i], from, to, 2 * n);
  for (int i = 0; i < f->row_terms.count; i++) {
    derived_term *t = &f->row_terms.term[i];
    t->value = ir_substitute(g, t->value, from, to, 2 * n);
  }
}

/* ---- terms ---- */

/* Terms that are wanted and have a tangent, with this in place of their value. */
static void take_terms(const lowered *f, const derived_terms *from, const ir_ref *tangent, derived_terms *to) {
  to->count = 0;
  for (int i = 0; i < from->count; i++) {
    derived_term t = from->term[i];
    if (tangent[i] == IR_NONE || !lowered_wants(f, &t)) continue;
    t.value = tangent[i], t.factor = IR_NONE;
    to->term[to->count++] = t;
  }
}

/* The derivatives of mods, each with its tangent in its place. */
static luattn_status take_mods(lowered *f, const backward_tangents *b, luattn_error *err) {
  const derived_spec *d = &f->spec->derived;
  const derived_mod *const of[] = {&d->query_mod, &d->key_mod, &d->value_mod};
  for (int i = 0; i < 3; i++) {
    derived_mod *made = arena_new(f->a, sizeof *made);
    if (made == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", lowered_traced(f)->name);
    made->dx = b->dx[i];
    made->terms.count = 0;
    if (b->mod_terms[i] != NULL) take_terms(f, &of[i]->terms, b->mod_terms[i], &made->terms);
    f->mod_grad[i] = made;
  }
  return LUATTN_OK;
}

/* What a row that keeps nothing adds to memory, as in lower.c. */
static void leave_out_empty_rows(lowered *f) {
  static const ir_var of_row[] = {VAR_DELTA, VAR_DELTA_TANGENT, VAR_DLSE, VAR_DLSE_TANGENT};
  ir *g = f->g;
  const ir_ref zero = ir_real(g, 0);
  for (int i = 0; i < f->row_terms.count; i++) {
    derived_term *t = &f->row_terms.term[i];
    ir_ref empty = IR_NONE;
    if (lowered_has_one_place(f, t)) continue;
    for (int k = 0; k < 4; k++) {
      const ir_ref none = ir_op2(g, IR_EQ, ir_variable(g, of_row[k], 0), zero);
      if (k < 2 || ir_uses(g, t->value, of_row[k])) empty = empty == IR_NONE ? none : ir_op2(g, IR_AND, empty, none);
    }
    t->value = ir_op3(g, IR_SELECT, empty, zero, t->value);
  }
}

enum { ROOTS = 4 + DERIVED_MAX_TERMS };

/* Replaces the score by scale * dot, and tangents of a row's numbers by those that stand for them. */
static void substitute(lowered *f, ir_ref *root, int n) {
  ir *g = f->g;
  const int rows = f->num_rows / 2;
  ir_ref from[1 + LOWERED_MAX_ROWS], to[1 + LOWERED_MAX_ROWS];
  from[0] = ir_variable(g, VAR_SCORE, 0);
  to[0] = ir_op2(g, IR_MUL, ir_variable(g, VAR_SCALE, 0), ir_variable(g, VAR_DOT, 0));
  for (int i = 0; i < rows; i++) {
    from[1 + i] = ir_variable(g, VAR_ROW_TANGENT, (uint32_t)i);
    to[1 + i] = ir_variable(g, VAR_ROW, (uint32_t)(rows + i));
  }
  for (int i = 0; i < n; i++) root[i] = ir_substitute(g, or_zero(g, root[i]), from, to, 1 + rows);
}

luattn_status dual_gradient_build(lowered *f, luattn_error *err) {
  const derived_spec *d = &f->spec->derived;
  derived_terms *terms = &f->element_terms;
  backward_tangents b;
  ir_ref root[ROOTS];
  int n = 0;
  TRY(backward_tangents_of(f->a, lowered_traced(f), d, &f->tangents, &b, err));
  take_rows(f, &b);
  take_pass_values(f, &b);
  take_terms(f, &d->element_terms, b.element_terms, terms);
  take_terms(f, &d->row_terms, b.row_terms, &f->row_terms);
  TRY(take_mods(f, &b, err));
  multiply_passes(f, &b);
  leave_out_empty_rows(f);
  lower_pass_values(f);
  for (int i = 0; i < terms->count; i++) substitute(f, terms->term[i].index, terms->term[i].num_index);
  gradient_sums_take(f);
  root[n++] = d->prob, root[n++] = d->ds, root[n++] = b.prob, root[n++] = b.ds;
  for (int i = 0; i < terms->count; i++) root[n++] = terms->term[i].value;
  substitute(f, root, n);
  multiply_add_roots(f, root, n);
  prepared_rows_take(f, root, n);
  f->grad_prob = root[0], f->grad_ds = root[1];
  f->grad_prob_tangent = root[2], f->grad_ds_tangent = root[3];
  for (int i = 0; i < terms->count; i++) terms->term[i].value = root[4 + i];
  head_factors_take(f);
  return ir_failed(f->g) ? luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", lowered_traced(f)->name)
                         : LUATTN_OK;
}
