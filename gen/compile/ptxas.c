#include "gen/compile/ptxas.h"

#include <limits.h>
#include <string.h>

static bool is_launched(const compilation *c, const char *entry) {
  for (int i = 0; i < c->at.plan.num_entries; i++)
    if (strcmp(c->at.plan.entry[i].name, entry) == 0) return true;
  return false;
}

/* Spilled bytes of the entries that will be launched and of what they call. */
static int spilled(const compilation *c, const nvrtc_result *r) {
  int bytes = r->called_spill_bytes;
  for (int i = 0; i < r->num_entries; i++)
    if (is_launched(c, r->entry[i].name)) bytes += r->entry[i].spill_bytes;
  return bytes;
}

/* A remark weighs more than any spill. */
static int damage(const compilation *c, const nvrtc_result *r) {
  return (r->remark != NULL ? 1 << 20 : 0) + spilled(c, r);
}

/* A few registers that are spilled outside of the inner loops cost less than smaller tiles would. So does
 * more of them beside hooks that are called, whose time no tiles change: four bytes are a store and a load,
 * so that a quarter of the hooks' instructions in bytes is an eighth of their time at most. But more bytes
 * than a thread has registers are accumulators, spilled around each product. What follows the sm90 backward's
 * first tiles is slower by a third; what follows it above head dim 128 takes 1.3 to 1.8 times as long, and
 * with gradients of parameters up to 80 times. There the loading warps, which have time, spill up to 200 of
 * the bytes, and the one that sums dS up to 400; below it up to 88, for lines that they fetch ahead: with 390
 * in all such a kernel is 1.4 times as fast as what follows. Three consumers of the sm90 forward spill around
 * each call: 144 bytes there cost two thirds of the speed. */
static int spills_accepted(const compilation *c) {
  const bool three =
      c->at.plan.family == LUATTN_SM90 && c->at.plan.pass == LUATTN_FORWARD && c->at.plan.threads == 512;
  const int beside_hooks = three ? 0 : c->at.lowered->outlined_work / 4;
  const bool slow_next = c->at.plan.family == LUATTN_SM90 && c->at.plan.pass == LUATTN_BACKWARD;
  const int loading = slow_next && c->at.lowered->rows.line_bytes > 0 ? 112 : 0;
  const int alone = tiles_wide(&c->at.plan) ? 768 : slow_next ? 288 + loading : 64;
  return alone + (beside_hooks < 1024 ? beside_hooks : 1024);
}

/* Each entry by itself, because it is to its own hooks that its spills compare. */
static bool is_accepted(const compilation *c, const nvrtc_result *r) {
  const int accepted = spills_accepted(c);
  if (c->at.lowered->outlined_work == 0) return damage(c, r) <= accepted;
  bool ok = r->remark == NULL && r->called_spill_bytes <= accepted;
  for (int i = 0; i < r->num_entries; i++)
    ok &= !is_launched(c, r->entry[i].name) || r->entry[i].spill_bytes <= accepted;
  return ok;
}

/* What ptxas could not keep in registers, by entry: a plan that spills after all says so. */
const char *ptxas_explain(const compilation *c, const nvrtc_result *r) {
  const char *why = compilation_why(c);
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
                                                                 : "no other tiles of the table do better");
    else if (e->stack_bytes > 0)
      line = arena_printf(c->a, "%s has %d bytes of stack, for accurate functions or hooks out of line",
                          e->name, e->stack_bytes);
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  if (r->called_spill_bytes > 0) {
    const char *line = arena_printf(c->a, "functions that are called spill %d bytes", r->called_spill_bytes);
    if (line != NULL) why = compilation_add_line(c->a, why, line);
  }
  return why;
}

/* Tiles that are picked were measured or are about to be. What ptxas could not do well does not take part. */
luattn_status ptxas_refuse_picked(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->at.plan;
  if (r->remark != NULL)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "plan: tiles: %d x %d, %d threads, %d stages: ptxas says: %.*s; pick other tiles",
                       p->tile_m, p->tile_n, p->threads, p->stages, (int)strcspn(r->remark, "\n"), r->remark);
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "plan: tiles: %d x %d, %d threads, %d stages: spill %d bytes of registers, more than %d; "
      "pick other tiles",
      p->tile_m, p->tile_n, p->threads, p->stages, spilled(c, r), spills_accepted(c));
}

/* After the last choice of tiles. */
luattn_status ptxas_refuse_all(const compilation *c, const nvrtc_result *r, luattn_error *err) {
  const plan *p = &c->at.plan;
  return luattn_fail(
      err, LUATTN_UNSUPPORTED,
      "plan: tiles: %d x %d, %d threads, %d stages: ptxas finds no registers for them%s: %.*s; "
      "%s, or use f32",
      p->tile_m, p->tile_n, p->threads, p->stages, p->forced ? "" : ", nor for others of the table",
      (int)strcspn(r->remark, "\n"), r->remark, p->forced ? "pick other tiles" : "write shorter hooks");
}

/* Bias rows that are read ahead make a sm90 backward kernel 1.05 to 1.5 times as fast up to 190 spilled
 * bytes, and cost it 0.09 of its speed at 270 and 290: then it is better off without, if it is accepted so.
 * Above head dim 128 they gain at 600 as well. */
static bool bias_rows_crowd(const compilation *c, const nvrtc_result *r) {
  if (c->at.plan.pass != LUATTN_BACKWARD || c->at.lowered->rows.line_bytes == 0 || tiles_wide(&c->at.plan))
    return false;
  for (int i = 0; i < r->num_entries; i++)
    if (strcmp(r->entry[i].name, "luattn_dkdv") == 0) return r->entry[i].spill_bytes > 240;
  return false;
}

ptxas_verdict ptxas_judge(const compilation *c, const nvrtc_result *r, int *spills) {
  *spills = r->cubin == NULL ? INT_MAX : damage(c, r);
  if (r->cubin == NULL || !is_accepted(c, r)) return PTXAS_SPILLS;
  return bias_rows_crowd(c, r) ? PTXAS_CROWDED : PTXAS_FITS;
}
