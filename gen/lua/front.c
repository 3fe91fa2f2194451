#include "gen/lua/front.h"

#include "common/fail.h"
#include "gen/ir/passes.h"
#include "gen/lua/declare.h"
#include "gen/lua/hooks.h"
#include "gen/lua/trace_online.h"

static int trace_main(lua_State *L) {
  front_state *s = front_of(L);
  traced_spec *spec = s->spec;
  front_load_file(L);
  const int table = lua_gettop(L);
  s->mode = FRONT_TRACING;
  spec->score_mod = hook_trace(L, table, HOOK_SCORE_MOD);
  if (spec->score_mod == IR_NONE) spec->score_mod = ir_variable(s->g, VAR_SCORE, 0);
  spec->block_mask = hook_trace(L, table, HOOK_BLOCK_MASK);
  if (spec->block_mask == ir_bool(s->g, true)) spec->block_mask = IR_NONE;
  spec->query_mod = hook_trace(L, table, HOOK_QUERY_MOD);
  spec->key_mod = hook_trace(L, table, HOOK_KEY_MOD);
  spec->value_mod = hook_trace(L, table, HOOK_VALUE_MOD);
  online_trace(L, table);
  return 0;
}

/* Reports an unused read of an input in a hook. Usually the read is used as a condition, as in `padding[i]
 * and kv_idx <= q_idx`, and in Lua any number is true. */
static luattn_status check_reads(const front_state *s, luattn_error *err) {
  const traced_spec *t = s->spec;
  for (ir_ref r = 1; r < ir_count(t->g); r++) {
    const ir_node *node = ir_get(t->g, r);
    if (node->op != IR_LOAD || node->type == IR_BOOL) continue;
    if (s->computed_with >> node->imm.integer & 1) continue;
    const char *name = t->input[node->imm.integer].name;
    return luattn_fail(
        err, LUATTN_SPEC,
        "%s:%d: input '%s': is read, but nothing is made of its numbers, and as a condition each "
        "is true in Lua; write ne(%s[..], 0), declare it with dtype = \"bool\", or leave the "
        "read out",
        t->file, (int)node->line, name, name);
  }
  return LUATTN_OK;
}

static bool calls_random(const traced_spec *t) {
  const ir_ref hook[] = {t->score_mod, t->block_mask, t->query_mod, t->key_mod, t->value_mod};
  for (size_t i = 0; i < sizeof hook / sizeof *hook; i++)
    if (hook[i] != IR_NONE && ir_uses_op(t->g, hook[i], IR_RANDOM)) return true;
  return false;
}

/* Verifies what tracing built: a failure is a bug of luattn, not of the spec. */
static luattn_status check_trace(const traced_spec *t, luattn_error *err) {
  ir_ref roots[10 + 2 * SPEC_MAX_STATE + SPEC_MAX_FINAL];
  int n = 0;
  const traced_online *o = &t->online;
  const ir_ref single[] = {t->score_mod, t->block_mask, t->query_mod, t->key_mod, t->value_mod,
                           o->prob,      o->rescale,    o->out,       o->forward, o->backward};
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
    if (single[i] != IR_NONE) roots[n++] = single[i];
  }
  for (int i = 0; i < o->num_state; i++) {
    roots[n++] = o->init[i];
    roots[n++] = o->next[i];
  }
  for (int i = 0; i < o->num_final; i++) roots[n++] = o->final[i];
  return ir_check(t->g, roots, n, "trace", err);
}

luattn_status front_trace(arena *a, const char *name, const char *source, size_t size, traced_spec *out,
                          luattn_error *err) {
  return front_trace_within(a, name, source, size, 0, out, err);
}

static luattn_status run(front_state *s, luattn_error *err) {
  lua_State *L = NULL;
  TRY(sandbox_open(s, &L, err));
  const luattn_status status = sandbox_call(L, trace_main, err);
  sandbox_close(L);
  return status;
}

luattn_status front_trace_with(arena *a, const char *name, const char *source, size_t size,
                               const front_options *options, traced_spec *out, luattn_error *err) {
  front_state empty = {.a = a,
                       .file = front_label(a, name),
                       .path = name,
                       .source = source,
                       .source_size = size,
                       .cpu_limit = options->cpu_seconds,
                       .all_select = options->selects};
  luattn_status status;
  traced_spec spec;
  front_state s;
  for (;;) {
    spec = (traced_spec){.a = a, .g = ir_open(a), .file = empty.file};
    s = empty;
    s.g = spec.g;
    s.spec = &spec;
    if (spec.g == NULL || spec.file == NULL)
      return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
    status = run(&s, err);
    if (s.wants_selects == NULL || empty.num_select_hooks == FRONT_MAX_SELECT_HOOKS) break;
    empty.select_hook[empty.num_select_hooks++] = s.wants_selects;
  }
  if (status != LUATTN_OK) return status;
  if (ir_failed(spec.g)) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
  TRY(check_trace(&spec, err));
  TRY(check_reads(&s, err));
  spec.random = calls_random(&spec);
  *out = spec;
  return LUATTN_OK;
}

luattn_status front_trace_within(arena *a, const char *name, const char *source, size_t size,
                                 double cpu_seconds, traced_spec *out, luattn_error *err) {
  const front_options options = {.cpu_seconds = cpu_seconds};
  return front_trace_with(a, name, source, size, &options, out, err);
}
