#include "gen/analysis/linear/linear_adjoint.h"

#include "common/fail.h"

const linear_hook_row linear_hook_rows[LINEAR_HOOKS] = {
    [LINEAR_QUERY] = {"query_mod", .of_queries = true, .reads_x = true},
    [LINEAR_KEY] = {"key_mod", .of_queries = true, .reads_x = true},
    [LINEAR_VALUE] = {"value_mod", .of_v = true, .reads_x = true},
    [LINEAR_DECAY] = {"decay"},
    [LINEAR_WRITE] = {"update.write", .of_v = true},
    [LINEAR_READ] = {"update.read", .reads_x = true},
    [LINEAR_ERASE] = {"update.erase", .reads_x = true},
    [LINEAR_SKIP] = {"skip", .of_v = true, .reads_x = true},
};

luattn_status derive_linear(const traced_spec *t, const derived_linear **out, luattn_error *err) {
  derived_linear *d = arena_new(t->a, sizeof *d);
  if (d == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  const ir_ref traced[LINEAR_HOOKS] = {
      [LINEAR_QUERY] = t->query_mod,    [LINEAR_KEY] = t->key_mod,        [LINEAR_VALUE] = t->value_mod,
      [LINEAR_DECAY] = t->linear.decay, [LINEAR_WRITE] = t->linear.write, [LINEAR_READ] = t->linear.read,
      [LINEAR_ERASE] = t->linear.erase, [LINEAR_SKIP] = t->linear.skip};
  for (int i = 0; i < LINEAR_HOOKS; i++) {
    linear_hook *hook = &d->hook[i];
    if (traced[i] == IR_NONE) continue;
    hook->given = true;
    TRY(channel_sums_cut(t, linear_hook_rows[i].name, traced[i], &hook->sums, err));
    hook->by_channel = channel_sums_by_channel(t->g, &hook->sums);
    TRY(channel_sums_derive(t, linear_hook_rows[i].name, &hook->sums, &hook->grad, err));
  }
  d->class = linear_class_of(t, d);
  if (d->class.normalizes && d->class.writes_channels)
    return luattn_fail(
        err, LUATTN_SPEC,
        "%s:%d: update.write: differs between channels of v (it depends on d), and normalize divides all of "
        "them by one sum; take d out of update.write, or normalize out of the spec",
        t->file, (int)ir_get(t->g, t->linear.write)->line);
  *out = d;
  return LUATTN_OK;
}
