#include "gen/plan/tangent_mods.h"

#include "luattn/compiler.h"

/* Whether a node reads an input or a scalar with a tangent. */
static bool has_tangent(const void *of, const ir_node *n) {
  const uint64_t bits = *(const uint64_t *)of;
  if (n->type != IR_REAL) return false;
  if (n->op == IR_LOAD) return (bits & LUATTN_TANGENT_INPUT(ir_index_of(n))) != 0;
  return n->op == IR_VAR && ir_var_of(n) == VAR_SCALAR && (bits & LUATTN_TANGENT_SCALAR(ir_index_of(n))) != 0;
}

static bool reads_tangent(const ir *g, ir_ref root, uint64_t bits) { return ir_reads(g, root, has_tangent, &bits); }

unsigned tangent_mods_of(const traced_spec *t, uint64_t bits) {
  const ir_ref mod[] = {t->query_mod, t->key_mod, t->value_mod};
  const uint64_t own[] = {LUATTN_TANGENT_Q, LUATTN_TANGENT_K, LUATTN_TANGENT_V};
  unsigned out = 0;
  for (int i = 0; i < 3; i++)
    if ((bits & own[i]) != 0 || reads_tangent(t->g, mod[i], bits)) out |= 1u << i;
  return out;
}

/* Whether the tangent of an expression that is linear in VAR_GRAD has a part that is. */
static bool multiplies(const ir *g, ir_ref r, bool of_tensor, uint64_t bits) {
  return reads_tangent(g, r, bits) || (of_tensor && (ir_uses(g, r, VAR_X) || ir_uses(g, r, VAR_READ)));
}

unsigned tangent_mods_values(const struct luattn_spec *spec, uint64_t bits) {
  const derived_spec *d = &spec->derived;
  const derived_mod *const of[] = {&d->query_mod, &d->key_mod, &d->value_mod};
  const ir_ref mod[] = {spec->traced.query_mod, spec->traced.key_mod, spec->traced.value_mod};
  const uint64_t own[] = {LUATTN_TANGENT_Q, LUATTN_TANGENT_K, LUATTN_TANGENT_V};
  const ir *g = spec->traced.g;
  unsigned out = 0;
  for (int i = 0; i < 3; i++) {
    const bool of_tensor = (bits & own[i]) != 0;
    bool needed = mod[i] != IR_NONE && multiplies(g, of[i]->dx, of_tensor, bits);
    for (int k = 0; k < of[i]->terms.count && mod[i] != IR_NONE; k++)
      needed |= multiplies(g, of[i]->terms.term[k].value, of_tensor, bits);
    out |= (unsigned)needed << i;
  }
  return out;
}
