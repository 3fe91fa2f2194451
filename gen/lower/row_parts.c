/* row_parts.c: lowers the merge of two parts of a row, for kernels that share a row's keys among warps or blocks. */
#include "gen/analysis/online/merge.h"
#include "gen/ir/passes.h"
#include "gen/lower/lowering.h"

/* Without a maximum, its state says nothing: both parts have the number that stands for it. */
static void leave_out_maximum(lowered *f, ir_ref *roots, int n) {
  const uint32_t max = (uint32_t)f->bounded_state;
  const ir_ref from[2] = {ir_variable(f->g, VAR_STATE, max), ir_variable(f->g, VAR_OTHER, max)},
               number = ir_real(f->g, f->bounded_max), to[2] = {number, number};
  for (int i = 0; i < n; i++) roots[i] = ir_substitute(f->g, roots[i], from, to, 2);
  ir_simplify(f->g, roots, n);
  roots[max] = from[0];
}

luattn_status row_parts_merge(lowered *f, luattn_error *err) {
  const traced_spec *t = lowered_traced(f);
  const int num_state = t->online.num_state;
  online_merge *m = arena_new(f->a, sizeof *m);
  luattn_error why;
  if (m == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", t->name);
  const luattn_status status = merge_derive(f->a, t, m, &why);
  if (status == LUATTN_UNSUPPORTED) {
    f->why_no_merge = arena_printf(f->a, "%s", why.message);
    return LUATTN_OK;
  }
  if (status != LUATTN_OK) return luattn_fail(err, status, "%s", why.message);
  ir_ref root[SPEC_MAX_STATE + 1];
  for (int i = 0; i < num_state; i++) root[i] = m->state[i];
  root[num_state] = m->factor;
  if (f->bounded) leave_out_maximum(f, root, num_state + 1);
  multiply_add_roots(f, root, num_state + 1);
  for (int i = 0; i < num_state; i++) f->merged[i] = root[i];
  f->merge_factor = root[num_state];
  double factor;
  f->merge_weighs = !ir_is_const(f->g, f->merge_factor, &factor) || factor != 1;
  f->has_merge = true;
  return LUATTN_OK;
}
