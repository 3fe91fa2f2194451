#include "gen/lower/linear_whole_hooks.h"

#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

enum { ROOTS = 1 + CHANNEL_SUMS_MAX, PLACES = 2 + 2 * CHANNEL_SUMS_MAX + 2 * 5 * DERIVED_MAX_TERMS };

/* The spec with a graph and types of its own. */
static luattn_status clone(linear_hooks *f, const luattn_spec *spec, uint32_t real, luattn_error *err) {
  luattn_spec *own = arena_new(f->a, sizeof *own);
  f->g = own != NULL ? ir_clone(f->a, spec->traced.g) : NULL;
  if (f->g == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "lower: out of memory");
  *own = *spec;
  own->traced.g = f->g;
  for (int i = 0; i < own->traced.num_inputs; i++) {
    luattn_input_info *in = &own->traced.input[i];
    if (in->dtype == LUATTN_INPUT_ANY) in->dtype = real;
    if (in->dtype == LUATTN_INPUT_F64) ir_input_wide(f->g, (uint32_t)i);
  }
  f->spec = own;
  return LUATTN_OK;
}

/* A hook's value, and what its sums are of. */
static int roots_of(const linear_hook *hook, ir_ref *root) {
  if (!hook->given) return 0;
  root[0] = hook->sums.value;
  for (int i = 0; i < hook->sums.count; i++) root[1 + i] = hook->sums.of[i];
  return 1 + hook->sums.count;
}

/* Where a hook has expressions: its value and sums, and in backward their derivatives. */
static int places_of(linear_hook *hook, bool backward, ir_ref **place) {
  const derived_terms *const of[] = {&hook->grad.by_value, &hook->grad.by_sums};
  int n = 0;
  place[n++] = &hook->sums.value;
  for (int i = 0; i < hook->sums.count; i++) place[n++] = &hook->sums.of[i];
  if (!backward) return n;
  for (int i = 0; i < hook->sums.count; i++) place[n++] = &hook->grad.weight[i];
  place[n++] = &hook->grad.dx;
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < of[k]->count; i++) {
      derived_term *t = (derived_term *)&of[k]->term[i];
      place[n++] = &t->value;
      for (int j = 0; j < t->num_index; j++) place[n++] = &t->index[j];
    }
  return n;
}

static void substitute(linear_hooks *f, linear_hook *hook, int k_dim, int v_dim) {
  const ir_ref from[] = {ir_variable(f->g, VAR_HEAD_DIM, 0), ir_variable(f->g, VAR_HEAD_DIM_V, 0)};
  const ir_ref to[] = {ir_int(f->g, k_dim), ir_int(f->g, v_dim)};
  ir_ref **const place = arena_array(f->a, PLACES, sizeof *place), *const root =
                                                                       arena_array(f->a, PLACES, sizeof *root);
  int n = 0;
  if (place == NULL || root == NULL) return; /* the arena has failed, which its user finds */
  for (int i = 0, all = places_of(hook, f->backward, place); i < all; i++)
    if (*place[i] != IR_NONE) place[n++] = place[i];
  for (int i = 0; i < n; i++) root[i] = ir_substitute(f->g, *place[i], from, to, 2);
  ir_simplify(f->g, root, n);
  for (int i = 0; i < n; i++) *place[i] = root[i];
}

/* Kernels compute integers in 32 bits, and add a batch of tokens to a position. */
static luattn_status bound_length(linear_hooks *f, luattn_error *err) {
  const int64_t most = INT64_C(1) << 30;
  ir_ref root[LINEAR_HOOKS * ROOTS];
  int n = 0;
  for (int i = 0; i < LINEAR_HOOKS; i++) n += roots_of(&f->hook[i], root + n);
  f->max_len = ir_int_limit(f->g, root, n);
  if (f->max_len < 0 || ir_failed(f->g)) return luattn_fail(err, LUATTN_NO_MEMORY, "lower: out of memory");
  if (f->max_len > most) f->max_len = most;
  if (f->max_len == 0) f->too_large = ir_int_overflow(f->g, root, n, 1, &f->reach);
  return LUATTN_OK;
}

luattn_status lower_linear_hooks(arena *a, const luattn_spec *spec, int k_dim, int v_dim, bool packed, bool backward,
                                 uint32_t real, linear_hooks *out, luattn_error *err) {
  *out = (linear_hooks){.a = a, .packed = packed, .backward = backward, .is_double = real == LUATTN_INPUT_F64};
  TRY(clone(out, spec, real, err));
  out->hook = arena_array(a, LINEAR_HOOKS, sizeof *out->hook);
  if (out->hook == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "lower: out of memory");
  for (int i = 0; i < LINEAR_HOOKS; i++) {
    out->hook[i] = spec->linear->hook[i];
    if (i == LINEAR_DECAY && spec->linear->class.decay == LINEAR_DECAY_NONE) out->hook[i].given = false;
    if (out->hook[i].given) substitute(out, &out->hook[i], k_dim, v_dim);
  }
  return bound_length(out, err);
}
