#include "gen/analysis/algebra/split.h"

#include "common/fail.h"

/* The reductions under `r` in dependency order, each once. */
static bool collect(const ir *g, ir_ref r, ir_ref *found, int *count) {
  if (r == IR_NONE || !(ir_uses_op(g, r, IR_REDUCE_SUM) || ir_uses_op(g, r, IR_REDUCE_MAX))) return true;
  const ir_node n = *ir_get(g, r);
  for (int i = 0; i < n.nargs; i++) {
    if (!collect(g, n.arg[i], found, count)) return false;
  }
  if (n.op != IR_REDUCE_SUM && n.op != IR_REDUCE_MAX) return true;
  for (int i = 0; i < *count; i++) {
    if (found[i] == r) return true;
  }
  if (*count == SPEC_MAX_RED) return false;
  found[(*count)++] = r;
  return true;
}

luattn_status split_online(ir *g, const traced_online *o, const char *file, online_split *out, luattn_error *err) {
  ir_ref red[SPEC_MAX_RED], var[SPEC_MAX_RED];
  int count = 0;
  bool fits = collect(g, o->prob, red, &count) && collect(g, o->rescale, red, &count);
  for (int i = 0; i < o->num_state && fits; i++) fits = collect(g, o->next[i], red, &count);
  if (!fits) {
    return luattn_fail(err, LUATTN_SPEC, "%s: online_func '%s': more than %d reductions in one online_fwd; use fewer",
                       file, o->name, SPEC_MAX_RED);
  }
  out->num_red = count;
  for (int k = 0; k < count; k++) {
    const ir_node n = *ir_get(g, red[k]);
    out->kind[k] = (ir_op)n.op;
    out->term[k] = ir_substitute(g, n.arg[0], red, var, k);
    var[k] = ir_variable(g, VAR_RED, (uint32_t)k);
  }
  out->prob = ir_substitute(g, o->prob, red, var, count);
  out->rescale = ir_substitute(g, o->rescale, red, var, count);
  for (int i = 0; i < o->num_state; i++) out->next[i] = ir_substitute(g, o->next[i], red, var, count);
  return ir_failed(g) ? luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", file) : LUATTN_OK;
}
