#include "gen/analysis/linear/channel_sums.h"

#include "common/fail.h"
#include "gen/analysis/online/online.h"
#include "gen/ir/passes.h"

#define MAX_LEAVES DERIVED_MAX_TERMS

static luattn_status no_memory(const traced_spec *t, luattn_error *err) {
  return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
}

luattn_status channel_sums_cut(const traced_spec *t, const char *hook, ir_ref r, channel_sums *out, luattn_error *err) {
  ir *g = t->g;
  ir_ref from[CHANNEL_SUMS_MAX], to[CHANNEL_SUMS_MAX];
  *out = (channel_sums){.value = r};
  if (!ir_uses_op(g, r, IR_REDUCE_SUM)) return LUATTN_OK;
  uint8_t *reached = arena_array(t->a, (size_t)r + 1, 1);
  if (reached == NULL) return no_memory(t, err);
  reached[r] = 1;
  for (ir_ref at = r; at > IR_NONE; at--) {
    if (!reached[at]) continue;
    const ir_node *n = ir_get(g, at);
    if (n->op == IR_REDUCE_SUM) {
      if (out->count == CHANNEL_SUMS_MAX)
        return luattn_fail(err, LUATTN_SPEC,
                           "%s:%d: %s: has more than %d sums over the row's channels; sum several terms at once",
                           t->file, (int)n->line, hook, CHANNEL_SUMS_MAX);
      from[out->count] = at;
      to[out->count] = ir_variable(g, VAR_RED, (uint32_t)out->count);
      out->of[out->count++] = n->arg[0]; /* of one level: it has no sums itself */
      continue;
    }
    for (int i = 0; i < n->nargs; i++) reached[n->arg[i]] = 1;
  }
  out->value = ir_substitute(g, r, from, to, out->count);
  return ir_failed(g) ? no_memory(t, err) : LUATTN_OK;
}

/* Adds the gradients of the roots' parameters; *dx: that of VAR_X. */
static luattn_status differentiate(const traced_spec *t, const char *hook, const ir_ref *y, const ir_ref *dy, int n,
                                   ir_ref *dx, derived_terms *terms, luattn_error *err) {
  ir_ref wrt[1 + MAX_LEAVES], grad[1 + MAX_LEAVES], root[1 + MAX_LEAVES];
  *dx = IR_NONE;
  terms->count = 0;
  if (n == 0) return LUATTN_OK;
  const int leaves = online_leaves(t, y, n, wrt + 1, MAX_LEAVES);
  if (leaves < 0) return no_memory(t, err);
  if (leaves > MAX_LEAVES)
    return luattn_fail(err, LUATTN_SPEC, "%s: %s: reads %d parameters with a gradient; at most %d are possible",
                       t->file, hook, leaves, MAX_LEAVES);
  wrt[0] = ir_variable(t->g, VAR_X, 0);
  ir_grad(t->g, y, dy, n, wrt, grad, 1 + leaves);
  *dx = grad[0];
  for (int i = 1; i <= leaves; i++)
    if (grad[i] != IR_NONE && !online_add_term(t->g, terms, wrt[i], grad[i]))
      return luattn_fail(err, LUATTN_SPEC, "%s: %s: more than %d parameter gradients; read fewer inputs", t->file, hook,
                         DERIVED_MAX_TERMS);
  for (int i = 0; i < terms->count; i++) root[i] = terms->term[i].value;
  if (*dx != IR_NONE) root[terms->count] = *dx;
  ir_simplify(t->g, root, terms->count + (*dx != IR_NONE));
  for (int i = 0; i < terms->count; i++) terms->term[i].value = root[i];
  if (*dx != IR_NONE) *dx = root[terms->count];
  return ir_failed(t->g) ? no_memory(t, err) : LUATTN_OK;
}

luattn_status channel_sums_derive(const traced_spec *t, const char *hook, const channel_sums *sums,
                                  channel_sums_grad *out, luattn_error *err) {
  ir *g = t->g;
  const ir_ref given = ir_variable(g, VAR_GRAD, 0);
  ir_ref red[CHANNEL_SUMS_MAX], by_sum[CHANNEL_SUMS_MAX], more = IR_NONE;
  for (int i = 0; i < sums->count; i++) {
    red[i] = ir_variable(g, VAR_RED, (uint32_t)i);
    by_sum[i] = ir_variable(g, VAR_ROW, (uint32_t)i);
  }
  TRY(differentiate(t, hook, &sums->value, &given, 1, &out->dx, &out->by_value, err));
  TRY(differentiate(t, hook, sums->of, by_sum, sums->count, &more, &out->by_sums, err));
  if (more != IR_NONE) out->dx = out->dx == IR_NONE ? more : ir_op2(g, IR_ADD, out->dx, more);
  ir_grad(g, &sums->value, &given, 1, red, out->weight, sums->count);
  for (int i = 0; i < sums->count; i++)
    if (out->weight[i] != IR_NONE) ir_simplify(g, &out->weight[i], 1);
  return ir_failed(g) ? no_memory(t, err) : LUATTN_OK;
}

bool channel_sums_by_channel(const ir *g, const channel_sums *sums) {
  return ir_uses(g, sums->value, VAR_D) || ir_uses(g, sums->value, VAR_X);
}
