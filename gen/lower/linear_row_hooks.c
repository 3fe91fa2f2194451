/* linear_row_hooks.c: lowers hooks of rows, and the gradients of inputs and scalars. */
#include <string.h>

#include "common/fail.h"
#include "gen/ir/passes.h"
#include "gen/lower/linear_lowering.h"

ir_ref linear_for_dims(linear_work *w, ir_ref r) {
  if (r == IR_NONE) return r;
  r = ir_substitute(w->f->g, r, w->from, w->to, 2);
  ir_simplify(w->f->g, &r, 1);
  return r;
}

static bool is_wanted(const linear_work *w, const derived_term *t) {
  return (w->wants & (t->input >= 0 ? LUATTN_WANT_INPUTS : LUATTN_WANT_SCALARS)) != 0;
}

static linear_term_kind kind_of(const ir *g, const derived_term *t) {
  linear_term_kind kind = LINEAR_TERM_RUN;
  for (int i = 0; i < t->num_index; i++) {
    const ir_ref r = t->index[i];
    if (ir_uses(g, r, VAR_X) || ir_uses(g, r, VAR_D)) return LINEAR_TERM_ELEMENT;
    if (ir_uses(g, r, VAR_POS) || ir_uses(g, r, VAR_RED) || ir_uses_op(g, r, IR_LOAD)) kind = LINEAR_TERM_ROW;
  }
  return kind;
}

static bool take(linear_work *w, const derived_terms *from, const ir_ref *was, const ir_ref *is, int n,
                 linear_terms *out) {
  ir *g = w->f->g;
  for (int i = 0; i < from->count; i++) {
    if (!is_wanted(w, &from->term[i])) continue;
    derived_term t = from->term[i];
    for (int k = 0; k < t.num_index; k++) {
      if (n > 0) t.index[k] = ir_substitute(g, t.index[k], was, is, n);
      t.index[k] = linear_for_dims(w, t.index[k]);
    }
    if (n > 0) t.value = ir_substitute(g, t.value, was, is, n);
    t.value = linear_for_dims(w, t.value);
    const linear_term_kind kind = kind_of(g, &t);
    out->kind[out->count] = (uint8_t)kind;
    out->kinds[kind]++;
    out->term[out->count++] = t;
  }
  return !ir_failed(g);
}

static luattn_status no_memory(const linear_work *w) {
  return luattn_fail(w->err, LUATTN_NO_MEMORY, "lower: out of memory");
}

/* Room for so many terms more. */
static bool grow(linear_work *w, int more, linear_terms *t) {
  const size_t all = (size_t)(t->count + more);
  derived_term *terms = arena_array(w->f->a, all + 1, sizeof *terms);
  uint8_t *kinds = arena_array(w->f->a, all + 1, 1);
  if (terms == NULL || kinds == NULL) return false;
  if (t->count > 0) {
    memcpy(terms, t->term, (size_t)t->count * sizeof *terms);
    memcpy(kinds, t->kind, (size_t)t->count);
  }
  t->term = terms, t->kind = kinds;
  return true;
}

luattn_status linear_lower_row(linear_work *w, linear_hook_id id, bool made, linear_row_hook *out) {
  const linear_hook *hook = &w->d->hook[id];
  *out = (linear_row_hook){.made = made,
                           .of_queries = linear_hook_rows[id].of_queries,
                           .of_v = linear_hook_rows[id].of_v,
                           .num_sums = hook->sums.count,
                           .value = linear_for_dims(w, hook->sums.value)};
  for (int i = 0; i < hook->sums.count; i++) out->sum[i] = linear_for_dims(w, hook->sums.of[i]);
  if (!w->backward) return ir_failed(w->f->g) ? no_memory(w) : LUATTN_OK;
  for (int i = 0; i < hook->sums.count; i++) out->weight[i] = linear_for_dims(w, hook->grad.weight[i]);
  out->dx = linear_for_dims(w, hook->grad.dx);
  const derived_terms *by_value = &hook->grad.by_value, *by_sums = &hook->grad.by_sums;
  if (!grow(w, by_value->count + by_sums->count, &out->terms)) return no_memory(w);
  if (!take(w, by_value, NULL, NULL, 0, &out->terms) || !take(w, by_sums, NULL, NULL, 0, &out->terms))
    return no_memory(w);
  return LUATTN_OK;
}

luattn_status linear_lower_terms(linear_work *w, linear_hook_id id, ir_ref by, linear_terms *out) {
  ir *g = w->f->g;
  const derived_terms *terms = &w->d->hook[id].grad.by_value;
  const ir_ref grad = ir_variable(g, VAR_GRAD, 0), was[] = {grad, ir_variable(g, VAR_X, 0)},
               is[] = {by != IR_NONE ? ir_op2(g, IR_MUL, grad, by) : grad, ir_real(g, 1)};
  if (!w->d->hook[id].given) return LUATTN_OK;
  if (!grow(w, terms->count, out) || !take(w, terms, was, is, 2, out)) return no_memory(w);
  return LUATTN_OK;
}

bool linear_has_terms(const linear_work *w, linear_hook_id id) {
  const channel_sums_grad *grad = &w->d->hook[id].grad;
  if (!w->d->hook[id].given) return false;
  for (int i = 0; i < grad->by_value.count; i++)
    if (is_wanted(w, &grad->by_value.term[i])) return true;
  for (int i = 0; i < grad->by_sums.count; i++)
    if (is_wanted(w, &grad->by_sums.term[i])) return true;
  return false;
}

/* Whether a term's indices are the token and the value head themselves, so that others add to other elements. */
static bool has_own_place(const linear_work *w, const derived_term *t) {
  const luattn_input_info *in = &w->f->spec->traced.input[t->input];
  bool by_token = false, by_head = false;
  for (int i = 0; i < t->num_index; i++) {
    by_token |= in->axis[i] == LUATTN_AXIS_T; /* whose index is always t */
    by_head |= in->axis[i] == LUATTN_AXIS_HV && ir_is_var(w->f->g, t->index[i], VAR_H);
    if (ir_uses(w->f->g, t->index[i], VAR_D) && !ir_is_var(w->f->g, t->index[i], VAR_D)) return false;
    if (in->axis[i] == LUATTN_AXIS_B && !ir_is_var(w->f->g, t->index[i], VAR_B)) return false;
  }
  return by_token && by_head;
}

void linear_find_alone(linear_work *w) {
  linear_lowered *f = w->f;
  unsigned seen = 0, again = 0, shared = 0;
  const linear_terms *const of_numbers[] = {&f->of_decay, &f->of_write, &f->of_read}, *const others[] = {
                                                                                          &f->row[0].terms,
                                                                                          &f->row[1].terms,
                                                                                          &f->row[2].terms,
                                                                                          &f->skipped.terms};
  for (size_t i = 0; i < sizeof of_numbers / sizeof *of_numbers; i++)
    for (int k = 0; k < of_numbers[i]->count; k++) {
      const derived_term *t = &of_numbers[i]->term[k];
      if (t->input < 0) continue;
      if (of_numbers[i]->kind[k] != LINEAR_TERM_ELEMENT) again |= 1u << t->input; /* a sum is added */
      again |= seen & 1u << t->input;
      seen |= 1u << t->input;
      if (!has_own_place(w, t)) shared |= 1u << t->input;
    }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    for (int k = 0; k < others[i]->count; k++)
      if (others[i]->term[k].input >= 0) shared |= 1u << others[i]->term[k].input;
  f->alone = seen & ~shared;
  f->sole = f->alone & ~again;
}
