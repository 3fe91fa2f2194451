#include "gen/lower/linear_whole_hooks.h"

#include "common/fail.h"
#include "gen/ir/interval.h"
#include "gen/ir/passes.h"

enum { ROOTS = 1 + CHANNEL_SUMS_MAX };

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

static void substitute(linear_hooks *f, linear_hook *hook, int k_dim, int v_dim) {
  const ir_ref from[] = {ir_variable(f->g, VAR_HEAD_DIM, 0), ir_variable(f->g, VAR_HEAD_DIM_V, 0)};
  const ir_ref to[] = {ir_int(f->g, k_dim), ir_int(f->g, v_dim)};
  ir_ref root[ROOTS];
  const int n = roots_of(hook, root);
  for (int i = 0; i < n; i++) root[i] = ir_substitute(f->g, root[i], from, to, 2);
  ir_simplify(f->g, root, n);
  hook->sums.value = root[0];
  for (int i = 1; i < n; i++) hook->sums.of[i - 1] = root[i];
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

luattn_status lower_linear_hooks(arena *a, const luattn_spec *spec, int k_dim, int v_dim, bool packed, uint32_t real,
                                 linear_hooks *out, luattn_error *err) {
  *out = (linear_hooks){.a = a, .packed = packed};
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
