#include "gen/compile/attempt.h"

#include "gen/compile/box_within.h"
#include "gen/compile/fill_manifest.h"
#include "gen/emit/emit.h"
#include "gen/plan/tiles.h"

/* Warns if launches at common lengths will be refused. */
static const char *length_fact(const compilation *c) {
  if (c->at.lowered->max_len >= 1 << 24) return "";
  const int64_t longest = c->at.lowered->max_len;
  return arena_printf(c->a, "lengths up to %lld: beyond, %s\n", (long long)longest,
                      longest == c->spec.traced.most_len ? "positions lie outside of the spec's grid"
                                                         : "the spec's index arithmetic leaves 32 bits");
}

/* A gather clamps its index: an input along q that is read at kv_idx, such as document ids, needs kv_len =
 * q_len. */
static const char *gather_fact(const compilation *c) {
  const traced_spec *t = &c->spec.traced;
  for (ir_ref r = 1; r < ir_count(c->loaded); r++) {
    const ir_node *n = ir_get(c->loaded, r);
    for (int i = 0; n->op == IR_LOAD && i < n->nargs; i++) {
      const luattn_input_info *in = &t->input[n->imm.integer];
      const bool q_at_kv = in->axis[i] == LUATTN_AXIS_Q && ir_is_var(c->loaded, n->arg[i], VAR_KV),
                 kv_at_q = in->axis[i] == LUATTN_AXIS_KV && ir_is_var(c->loaded, n->arg[i], VAR_Q);
      if (q_at_kv || kv_at_q)
        return arena_printf(c->a,
                            "input '%s': its axis %s is read at %s too: right where q_len = kv_len; a free "
                            "axis serves both\n",
                            in->name, q_at_kv ? "q" : "kv", q_at_kv ? "kv_idx" : "q_idx");
    }
  }
  return "";
}

static const char *phase_fact(const compilation *c) {
  if (!tiles_have_phases(&c->at.plan)) return "";
  return arena_printf(
      c->a,
      "boxes of queries begin %s places before the first one, so that none lies across the beginning of "
      "what a box of keys keeps\n",
      family_box_text(c->a, &c->at.plan, c->at.plan.phase));
}

/* Joins all reasons: the plan's, and those of lowering. */
static const char *explain(const compilation *c, const char *shared_memory) {
  const attempt *at = &c->at;
  const char *lengths = length_fact(c), *gathers = gather_fact(c), *phases = phase_fact(c);
  if (lengths == NULL || gathers == NULL || phases == NULL) return NULL;
  return arena_printf(c->a, "%s%s%s%s%s%s%s", at->plan.why, phases, at->lowered->notes, lengths, gathers, shared_memory,
                      at->plan.no_bias_rows
                          ? "scores read every input themselves: ahead of them it would take too many registers\n"
                          : "");
}

luattn_status attempt_make(compilation *c, luattn_error *err) {
  attempt *at = &c->at;
  const char *shared_memory;
  lowered *f = arena_new(c->a, sizeof *f);
  if (f == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "emit: %s: out of memory", c->spec.traced.name);
  TRY(box_phases_take(c, &at->plan, err));
  TRY(lower_spec(c->a, &c->spec, &c->mask, &at->plan, f, err));
  at->lowered = f;
  TRY(emit_spec(f, &at->spec_text, err));
  TRY(emit_config(c->a, &at->plan, &f->rows, &at->config, err));
  TRY(plan_entries(c->a, &at->plan, &c->spec, &f->rows, &shared_memory, err));
  at->why = explain(c, shared_memory);
  if (at->why == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  return manifest_fill(c, &at->info, err);
}

bool attempt_next_tiles(compilation *c) {
  const plan *p = &c->at.plan;
  return plan_alternative(c->a, &c->spec, &c->target, p->softcap_poly, p->rank + 1, &c->at.plan);
}

/* Whether two plans spill alike. */
static bool spill_alike(const plan *a, const plan *b) {
  luattn_tiles x = plan_tiles(a), y = plan_tiles(b);
  if (a->family != b->family) return false;
  if (plan_kernel(a)->stages_spill_alike) x.stages = y.stages;
  return plan_same_tiles(&x, &y);
}

bool attempt_skip_tiles(compilation *c, int skipped) {
  bool any = false;
  for (plan before = c->at.plan; attempt_next_tiles(c); before = c->at.plan) {
    if (spill_alike(&before, &c->at.plan)) continue;
    any = true;
    if (skipped-- == 0) break;
  }
  return any;
}

bool attempt_without_bias_rows(compilation *c) {
  plan *p = &c->at.plan;
  if (p->pass != LUATTN_BACKWARD || p->no_bias_rows || c->at.lowered->rows.bias_row_bytes == 0) return false;
  return p->no_bias_rows = true;
}

bool attempt_for_softcap(compilation *c) {
  plan other;
  if (c->at.lowered->softcap_limit == IR_NONE || c->at.plan.softcap_poly || c->at.plan.rank > 0) return false;
  if (!plan_alternative(c->a, &c->spec, &c->target, true, 0, &other)) return false;
  const luattn_tiles now = plan_tiles(&c->at.plan), then = plan_tiles(&other);
  if (plan_same_tiles(&now, &then)) return false;
  c->at.plan = other;
  return true;
}
