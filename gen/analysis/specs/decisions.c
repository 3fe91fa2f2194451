#include "gen/analysis/specs/decisions.h"

#include "common/fail.h"
#include "gen/ir/passes.h"

/* Expressions to rewrite, where they lie. */
typedef struct expressions {
  int count;
  ir_ref **at;
} expressions;

enum { MOST = 4 * DERIVED_MAX_TERMS * 7 + 256 };

static void add(expressions *e, ir_ref *roots, int n) {
  for (int i = 0; i < n; i++)
    if (roots[i] != IR_NONE) e->at[e->count++] = &roots[i];
}

static void add_intervals(expressions *e, mask_intervals *m) {
  add(e, m->lo, 2), add(e, m->hi, 2), add(e, &m->rest_lo, 1), add(e, &m->rest_hi, 1);
}

static void add_mask(expressions *e, mask_info *m) {
  ir_ref *const single[] = {&m->keep, &m->kv_lo, &m->kv_hi,  &m->q_lo,
                            &m->q_hi, &m->rest,  &m->bounds, &m->evaluated.cell};
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) add(e, single[i], 1);
  add_intervals(e, &m->rows), add_intervals(e, &m->columns);
}

static void add_hooks(expressions *e, traced_spec *t) {
  traced_online *o = &t->online;
  ir_ref *const single[] = {&t->score_mod,     &t->query_mod, &t->key_mod, &t->value_mod, &t->append_mod[0],
                            &t->append_mod[1], &o->prob,      &o->rescale, &o->out};
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) add(e, single[i], 1);
  add(e, o->init, o->num_state), add(e, o->next, o->num_state), add(e, o->final, o->num_final);
}

static void add_terms(expressions *e, derived_terms *terms) {
  for (int i = 0; i < terms->count; i++) {
    derived_term *t = &terms->term[i];
    add(e, &t->value, 1), add(e, &t->factor, 1), add(e, &t->of_sum, 1), add(e, t->index, t->num_index);
  }
}

static void add_derived(expressions *e, derived_spec *d) {
  add(e, &d->prob, 1), add(e, &d->ds, 1);
  add(e, d->saved, d->num_saved), add(e, d->row, d->num_rows);
  add_terms(e, &d->element_terms), add_terms(e, &d->row_terms);
  for (int i = 0; i < 3; i++) {
    derived_mod *mod = i == 0 ? &d->query_mod : i == 1 ? &d->key_mod : &d->value_mod;
    add(e, &mod->dx, 1), add_terms(e, &mod->terms);
  }
}

luattn_status decisions_apply(arena *a, struct luattn_spec *spec, mask_info *mask, bool doubles, luattn_error *err) {
  traced_spec *t = &spec->traced;
  ir_decisions rule = {.of_kernel = true, .doubles = doubles};
  expressions e = {.at = arena_array(a, MOST, sizeof *e.at)};
  ir_ref *roots = arena_array(a, MOST, sizeof *roots);
  if (e.at == NULL || roots == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", t->name);
  for (int i = 0; i < t->num_inputs; i++)
    if (t->input[i].dtype == LUATTN_INPUT_F64) rule.double_inputs |= UINT32_C(1) << i;
  add_mask(&e, mask);
  add_hooks(&e, t);
  if (spec->derived.missing == NULL) add_derived(&e, &spec->derived);
  for (int i = 0; i < e.count; i++) roots[i] = *e.at[i];
  ir_decide(t->g, roots, e.count, &rule);
  for (int i = 0; i < e.count; i++) *e.at[i] = roots[i];
  ir_set_line(t->g, 0);
  return ir_failed(t->g) ? luattn_fail(err, LUATTN_NO_MEMORY, "compile: %s: out of memory", t->name) : LUATTN_OK;
}
