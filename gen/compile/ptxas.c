#include "gen/compile/ptxas.h"

#include <limits.h>
#include <string.h>

#include "gen/plan/policy.h"

static bool is_launched(const compilation *c, const char *entry) {
  for (int i = 0; i < c->at.plan.num_entries; i++)
    if (strcmp(c->at.plan.entry[i].name, entry) == 0) return true;
  return false;
}

/* Spilled bytes of the entries that will be launched and of the functions that they call. */
static int spilled(const compilation *c, const nvrtc_result *r) {
  int bytes = r->called_spill_bytes;
  for (int i = 0; i < r->num_entries; i++)
    if (is_launched(c, r->entry[i].name)) bytes += r->entry[i].spill_bytes;
  return bytes;
}

/* A remark on wgmma weighs more than any spill. */
static int damage(const compilation *c, const nvrtc_result *r) {
  return (r->remark != NULL ? PTXAS_UNUSABLE : 0) + spilled(c, r);
}

static int spills_accepted(const compilation *c) {
  return policy_spills_accepted(&c->at.plan, &c->at.lowered->rows, c->at.lowered->outlined_work);
}

/* Counts each entry by itself, so that its spills compare with its own hooks. */
static bool is_accepted(const compilation *c, const nvrtc_result *r) {
  const int accepted = spills_accepted(c);
  if (c->at.lowered->outlined_work == 0) return damage(c, r) <= accepted;
  bool ok = r->remark == NULL; /* spills of called hooks are the same in any tiles */
  for (int i = 0; i < r->num_entries; i++)
    ok &= !is_launched(c, r->entry[i].name) || r->entry[i].spill_bytes <= accepted;
  return ok;
}

/* Reports, by entry, what ptxas could not keep in registers, for plans that spill after all. */
const char *ptxas_explain(const compilation *c, const nvrtc_result *r) {
  const char *why = c->at.why;
  if (r->remark != NULL) {
    const char *line = arena_copy(c->a, r->remark, strcspn(r->remark, "\n"));
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  for (int i = 0; i < r->num_entries; i++) {
    const nvrtc_entry *e = &r->entry[i];
    const char *line = NULL;
    if (!is_launched(c, e->name)) continue;
    if (e->spill_bytes > 0)
      line = arena_printf(c->a, "%s spills %d bytes: %s", e->name, e->spill_bytes,
                          c->at.plan.forced                      ? "the tiles were asked for"
                          : e->spill_bytes <= spills_accepted(c) ? "less than smaller tiles would cost"
                                                                 : "the other tiles that were tried do no better");
    else if (e->stack_bytes > 0)
      line = arena_printf(c->a, "%s has %d bytes of stack, for accurate functions or hooks out of line", e->name,
                          e->stack_bytes);
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  if (r->called_spill_bytes > 0) {
    const char *line = arena_printf(c->a, "functions that are called spill %d bytes", r->called_spill_bytes);
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  return why;
}

/* Requested tiles were measured or are about to be: those that ptxas handles badly are refused. */
luattn_status ptxas_refuse_picked(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->at.plan;
  if (r->remark != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "plan: tiles: %d x %d, %d threads, %d stages: ptxas says: %.*s; pick other tiles", p->tile_m,
                       p->tile_n, p->threads, p->stages, (int)strcspn(r->remark, "\n"), r->remark);
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "plan: tiles: %d x %d, %d threads, %d stages: spill %d bytes of registers, more than %d; "
                     "pick other tiles",
                     p->tile_m, p->tile_n, p->threads, p->stages, spilled(c, r), spills_accepted(c));
}

/* Decides after the last choice of tiles. */
luattn_status ptxas_refuse_all(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->at.plan;
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "plan: tiles: %d x %d, %d threads, %d stages: ptxas finds no registers for them%s: %.*s; "
                     "%s, or use f32",
                     p->tile_m, p->tile_n, p->threads, p->stages, p->forced ? "" : ", nor for others of the table",
                     (int)strcspn(r->remark, "\n"), r->remark, p->forced ? "pick other tiles" : "write shorter hooks");
}

static bool bias_rows_crowd(const compilation *c, const nvrtc_result *r) {
  for (int i = 0; i < r->num_entries; i++)
    if (strcmp(r->entry[i].name, "luattn_dkdv") == 0)
      return policy_bias_rows_crowd(&c->at.plan, &c->at.lowered->rows, r->entry[i].spill_bytes);
  return false;
}

ptxas_verdict ptxas_judge(const compilation *c, const nvrtc_result *r, int *spills) {
  *spills = r->cubin == NULL ? INT_MAX : damage(c, r);
  if (r->cubin == NULL || !is_accepted(c, r)) return PTXAS_SPILLS;
  return bias_rows_crowd(c, r) ? PTXAS_CROWDED : PTXAS_FITS;
}
