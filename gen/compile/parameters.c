/* parameters.c: says what the inputs and scalars of a spec do in it, for calls that have a part of the keys. */
#include "gen/spec.h"
#include "luattn/compiler.h"

/* The number of the input or scalar that a node reads, as luattn_spec_parameter counts them; -1: it reads none. */
static int64_t parameter_of(const traced_spec *t, const ir_node *n) {
  if (n->op == IR_LOAD) return ir_index_of(n);
  if (n->op == IR_LISTED) return ir_list_of(n).input;
  if (n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR) return (int64_t)t->num_inputs + ir_index_of(n);
  return -1;
}

typedef struct one_parameter {
  const traced_spec *t;
  int64_t number;
} one_parameter;
static bool is_parameter(const void *of, const ir_node *n) {
  const one_parameter *p = of;
  return parameter_of(p->t, n) == p->number;
}
static bool reads(const traced_spec *t, ir_ref root, int64_t number) {
  return ir_reads(t->g, root, is_parameter, &(one_parameter){t, number});
}

static bool has_term(const traced_spec *t, const derived_terms *terms, int64_t parameter) {
  for (int i = 0; i < terms->count; i++) {
    const derived_term *term = &terms->term[i];
    if ((term->input >= 0 ? term->input : (int64_t)t->num_inputs + term->scalar) == parameter) return true;
  }
  return false;
}

unsigned luattn_spec_parameter(const luattn_spec *spec, size_t i) {
  if (spec == NULL || i >= (size_t)spec->traced.num_inputs + (size_t)spec->traced.num_scalars) return 0;
  const traced_spec *t = &spec->traced;
  const derived_spec *d = &spec->derived;
  const derived_terms *of_scores[] = {&d->element_terms, &d->query_mod.terms, &d->key_mod.terms, &d->value_mod.terms};
  const int64_t parameter = (int64_t)i;
  unsigned found = reads(t, t->block_mask, parameter) ? LUATTN_PARAMETER_MASKS : 0;
  if (d->missing != NULL) return found;
  if (has_term(t, &d->row_terms, parameter)) found |= LUATTN_PARAMETER_OF_ROWS;
  for (size_t k = 0; k < sizeof of_scores / sizeof *of_scores; k++)
    if (has_term(t, of_scores[k], parameter)) found |= LUATTN_PARAMETER_OF_SCORES;
  return found;
}

unsigned luattn_spec_mask_differs(const luattn_spec *spec) {
  if (spec == NULL || spec->traced.block_mask == IR_NONE) return 0;
  const ir *g = spec->traced.g;
  const ir_ref mask = spec->traced.block_mask;
  return (ir_uses(g, mask, VAR_B) ? LUATTN_MASK_BY_BATCH : 0u) | (ir_uses(g, mask, VAR_H) ? LUATTN_MASK_BY_HEAD : 0u);
}
