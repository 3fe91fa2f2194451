#include "gen/compile/search.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "common/real.h"
#include "gen/compile/attempt.h"
#include "gen/compile/programs.h"
#include "gen/compile/ptxas.h"
#include "gen/plan/policy.h"

/* The verdict on an attempt. CROWDED: other tiles are known to be faster. */
typedef enum verdict { FITS, REPLANNED, CROWDED, UNFIT, SPILLS } verdict;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

search *search_new(compilation *c) {
  search *s = arena_new(c->a, sizeof *s);
  if (s != NULL) s->least = -1;
  return s;
}

static luattn_status refuse(const search *s, luattn_status status, luattn_error *err) {
  if (err != NULL) *err = s->refusal;
  return status;
}

static luattn_status open_nvrtc(compilation *c, search *s, luattn_error *err) {
  nvrtc *lib = &s->lib;
  if (s->is_open) return LUATTN_OK;
  c->nvrtc_is_useless = true;
  TRY(nvrtc_open(&c->nvrtc, lib, err));
  TRY(nvrtc_check_driver(&c->search, lib, err));
  if (!nvrtc_supports(lib, c->at.plan.arch))
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "nvrtc: '%s': is version %d.%d, which does not know sm_%d; name another with LUATTN_NVRTC",
                       lib->path, lib->major, lib->minor, c->at.plan.arch);
  c->nvrtc_is_useless = false;
  s->is_open = true;
  return LUATTN_OK;
}

/* Reads LUATTN_COMPILE_LIMIT, in units of the time for `causal`; 0: no limit. */
static luattn_status get_limit(double *limit, luattn_error *err) {
  const char *text = getenv("LUATTN_COMPILE_LIMIT");
  char *end = NULL;
  *limit = POLICY_COMPILE_LIMIT;
  if (text == NULL || text[0] == 0) return LUATTN_OK;
  *limit = real_read(text, &end);
  if (end == text || *end != 0 || !(*limit >= 0))
    return luattn_fail(err, LUATTN_INVALID,
                       "LUATTN_COMPILE_LIMIT: '%s' is not a limit; give times of what `causal` takes to compile, as "
                       "8, or 0 for none",
                       text);
  if (*limit == 0) *limit = INFINITY;
  return LUATTN_OK;
}

static luattn_status refuse_work(const compilation *c, double estimate, double limit, luattn_error *err) {
  const traced_spec *t = &c->spec.traced;
  const compile_work *w = &c->at.lowered->work;
  const char *what = kernel_pass_name(c->at.plan.pass);
  if (w->line == 0)
    return luattn_fail(err, LUATTN_UNSUPPORTED,
                       "%s: %s: to compile it is estimated at %.1f times what `causal` takes, more than %g; write "
                       "shorter hooks, or set LUATTN_COMPILE_LIMIT",
                       t->file, what, estimate, limit);
  return luattn_fail(err, LUATTN_UNSUPPORTED,
                     "%s:%u: %s: to compile the spec is estimated at %.1f times what `causal` takes, more than %g, and "
                     "%.0f %% of that is this line; do less in it, as by a table in an input in place of a loop, or "
                     "set LUATTN_COMPILE_LIMIT",
                     t->file, w->line, what, estimate, limit, 100 * w->share);
}

/* Whether tiles that were passed over for the time that they take to compile are a fact in the plan. */
static luattn_status tell_why(compilation *c, const search *s, luattn_error *err) {
  if (s->passed_over == 0) return LUATTN_OK;
  const char *line = arena_printf(c->a, "tiles before these are estimated at %.1f times what `causal` takes to compile",
                                  s->passed_over);
  if (line == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "compile: out of memory");
  c->at.why = compilation_add_line(c->a, c->at.why, line);
  return LUATTN_OK;
}

/* Adds c->at to the estimated work so far. *allowed: the sum is within the limit. The first tiles beyond it say why a
 * spec is refused, if all that follow are beyond it as well: smaller ones have fewer copies, and another family may be
 * next. */
static luattn_status account(compilation *c, search *s, bool *allowed, luattn_error *err) {
  const double estimate = policy_compile_estimate(&c->at.plan, &c->at.lowered->work);
  double limit;
  TRY(get_limit(&limit, err));
  *allowed = s->work + estimate * (s->passed_over > 0 ? POLICY_LATER_TILES : 1) <= limit;
  if (*allowed) s->work += estimate;
  if (*allowed) return tell_why(c, s, err);
  if (s->least >= 0 && s->least < PTXAS_UNUSABLE) return LUATTN_OK;
  if (s->work > 0 || c->at.plan.forced) return refuse_work(c, s->work + estimate, limit, err);
  if (s->passed_over == 0) (void)refuse_work(c, s->passed_over = estimate, limit, &s->refusal);
  return LUATTN_OK;
}

/* Runs NVRTC over c->at, and keeps the result if it is the best so far. A good result is kept even if a later
 * attempt fails. */
static luattn_status ask_ptxas(compilation *c, search *s, verdict *v, luattn_error *err) {
  nvrtc_result others;
  TRY(open_nvrtc(c, s, err));
  const double start = now_ms();
  const luattn_status status = programs_compile(c, &s->lib, c->target.ptx, &s->last, &others, err);
  s->nvrtc_ms += now_ms() - start;
  s->takes_crowded = true;
  s->compiled++;
  s->spills = PTXAS_UNUSABLE;
  *v = UNFIT;
  if (status != LUATTN_OK && s->found) return LUATTN_OK;
  if (status == LUATTN_COMPILE) programs_keep(c, s->dir, s->key, err);
  if (status != LUATTN_OK) return status;
  const ptxas_verdict said = ptxas_judge(c, &s->last, &s->spills);
  if (s->least < 0 || said != PTXAS_SPILLS || (s->spills < s->least && !s->found))
    s->best = c->at, s->result = s->last, s->others = others, s->least = s->spills;
  s->found |= said == PTXAS_CROWDED;
  s->fits |= said != PTXAS_SPILLS;
  *v = said == PTXAS_FITS ? FITS : SPILLS;
  return LUATTN_OK;
}

/* Whether the same tiles may fit without bias rows: they spill little, or ptxas's log does not tell. */
static bool is_close(const compilation *c, const search *s) {
  const attempt *at = &c->at;
  return s->spills >= PTXAS_UNUSABLE ||
         s->spills <=
             policy_spills_accepted(&at->plan, &at->lowered->rows, at->lowered->outlined_work) + POLICY_BIAS_ROWS_SPILL;
}

static bool surely_spills(const compilation *c) {
  return !c->at.plan.forced && policy_surely_spills(&c->at.plan, &c->at.lowered->work);
}

/* Plans the next attempt, given the verdict on c->at; false: there is none. A plan that spills too much first
 * drops staged bias rows, and then gives way to the table's next tiles. */
static bool replan(compilation *c, search *s, verdict v) {
  if (v == REPLANNED) return true;
  if (v == CROWDED && s->crowded.lowered == NULL) s->crowded = c->at;
  if (v == CROWDED && surely_spills(c)) s->compiled++; /* in place of a compilation that would be rejected */
  if (v == UNFIT && s->crowded.lowered == NULL) s->takes_crowded = true;
  if (v == SPILLS && is_close(c, s) && attempt_without_bias_rows(c)) return true;
  const int most = POLICY_COMPILES_MAX + c->at.plan.may_fall_back;
  if (s->found || (s->compiled >= most && s->least < PTXAS_UNUSABLE)) return false;
  if (v == SPILLS || (v == CROWDED && surely_spills(c))
          ? attempt_skip_tiles(c, policy_tiles_skipped(&c->at.plan, v == SPILLS ? s->spills : POLICY_SURE_SPILLS))
          : attempt_next_tiles(c))
    return true;
  if (s->takes_crowded) return false;
  c->at = s->crowded; /* all others are crowded as well */
  return s->takes_crowded = s->made = true;
}

/* Tiles of sm90 that no kernel can have: another family is next. */
static bool lacks_registers(const compilation *c) {
  return c->at.plan.may_fall_back && policy_lacks_registers(&c->at.plan, &c->at.lowered->work);
}

/* Estimates before asking ptxas, each of whose answers takes as long as a compilation. */
static verdict judge_lowered(compilation *c) {
  if (attempt_for_softcap(c)) return REPLANNED;
  return (c->at.lowered->crowded && !c->at.plan.forced) || surely_spills(c) ? CROWDED : FITS;
}

luattn_status search_tiles(compilation *c, search *s, luattn_error *err) {
  TRY(plan_choose(c->a, &c->spec, &c->target, &c->at.plan, err));
  for (verdict v = REPLANNED; replan(c, s, v);) {
    const bool first = c->at.plan.rank == 0 && !c->at.plan.no_bias_rows;
    const luattn_status status = s->made ? LUATTN_OK : attempt_make(c, first ? &s->refusal : NULL);
    s->made = false;
    if (status != LUATTN_OK && status != LUATTN_UNSUPPORTED && first) return refuse(s, status, err);
    v = status != LUATTN_OK || lacks_registers(c) ? UNFIT : s->takes_crowded ? FITS : judge_lowered(c);
    bool allowed = true;
    if (v == FITS && s->compiles) TRY(account(c, s, &allowed, err));
    if (!allowed && s->work > 0) break;
    if (!allowed) v = UNFIT;
    if (v == FITS && s->compiles) TRY(ask_ptxas(c, s, &v, err));
    if (v == FITS) return compilation_memory(c, err);
  }
  TRY(compilation_memory(c, err));
  return s->least >= 0 ? LUATTN_OK : refuse(s, LUATTN_UNSUPPORTED, err);
}
