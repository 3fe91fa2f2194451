/* linear_growth.c: see linear_growth.h. */
#include "gen/cpu/linear_growth.h"

#include "common/host.h"
#include "gen/cpu/linear_rows.h"

luattn_status linear_growth_fail(const linear_growth *g, const char *function, luattn_error *err) {
  return luattn_fail(
      err, LUATTN_INVALID,
      "%s: decay: is %g at entry %d, value head %d, token %lld; it is the logarithm of a factor of at most "
      "1, so give numbers of at most 0 (LUATTN_CHECK=1 asks for this check)",
      function, g->value, g->entry, g->head, (long long)g->token);
}

typedef struct growth_call {
  const luattn_spec *spec;
  const luattn_linear_args *args;
  const char *function;
} growth_call;

static void look_at_all(const linear_problem *p, linear_worker *w) {
  for (int entry = 0; entry < p->entries && !w->growth.found; entry++)
    for (int head = 0; head < p->heads_v && !w->growth.found && linear_state_row(p, entry) >= 0; head++)
      for (int64_t first = 0, tokens = linear_tokens(p, entry); first < tokens && !w->growth.found; first += w->block)
        linear_look_for_growth(w, entry, head, first, (int)(tokens - first < w->block ? tokens - first : w->block));
}

static luattn_status look(const growth_call *call, arena *a, luattn_error *err) {
  linear_problem *p = arena_new(a, sizeof *p);
  linear_worker w;
  if (p == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", call->function);
  TRY(linear_open(call->spec, call->args, true, a, p, err));
  if (!p->derived->hook[LINEAR_DECAY].given) return LUATTN_OK;
  if (!linear_worker_open(p, linear_block(p), true, &w))
    return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", call->function);
  w.checks = true;
  look_at_all(p, &w);
  return w.growth.found ? linear_growth_fail(&w.growth, call->function, err) : LUATTN_OK;
}

static luattn_status look_within(void *of_call, luattn_error *err) {
  const growth_call *call = of_call;
  arena *a = arena_open(arena_allocator(call->spec->a));
  if (a == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", call->function);
  const luattn_status status = look(call, a, err);
  arena_close(a);
  return status;
}

luattn_status linear_refuse_growth(const luattn_spec *spec, const luattn_linear_args *args, const char *function,
                                   luattn_error *err) {
  growth_call call = {spec, args, function};
  return host_run(look_within, &call, err);
}
