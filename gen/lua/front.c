#include "gen/lua/front.h"

#include "common/fail.h"
#include "gen/ir/passes.h"
#include "gen/lua/declare.h"
#include "gen/lua/hooks.h"
#include "gen/lua/trace_linear.h"
#include "gen/lua/trace_online.h"
#include "gen/lua/value.h"

static void trace_attention(lua_State *L, int table) {
  front_state *s = front_of(L);
  traced_spec *spec = s->spec;
  spec->score_mod = hook_trace(L, table, HOOK_SCORE_MOD);
  if (spec->score_mod == IR_NONE) spec->score_mod = ir_variable(s->g, VAR_SCORE, 0);
  spec->block_mask = hook_trace(L, table, HOOK_BLOCK_MASK);
  if (spec->block_mask == ir_bool(s->g, true)) spec->block_mask = IR_NONE;
  spec->query_mod = hook_trace(L, table, HOOK_QUERY_MOD);
  spec->key_mod = hook_trace(L, table, HOOK_KEY_MOD);
  spec->value_mod = hook_trace(L, table, HOOK_VALUE_MOD);
  online_trace(L, table);
}

static int trace_main(lua_State *L) {
  front_state *s = front_of(L);
  front_load_file(L);
  const int table = lua_gettop(L);
  s->mode = FRONT_TRACING;
  if (s->spec->form == LUATTN_FORM_LINEAR)
    linear_trace(L, table);
  else
    trace_attention(L, table);
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
    return luattn_fail(err, LUATTN_SPEC,
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

enum { ROOTS_MAX = 15 + 2 * SPEC_MAX_STATE + SPEC_MAX_FINAL };

/* The expressions of a trace. */
static int find_roots(traced_spec *t, ir_ref *root[ROOTS_MAX]) {
  int n = 0;
  traced_online *o = &t->online;
  traced_linear *l = &t->linear;
  ir_ref *const single[] = {&t->score_mod, &t->block_mask, &t->query_mod, &t->key_mod, &t->value_mod,
                            &o->prob,      &o->rescale,    &o->out,       &o->forward, &o->backward,
                            &l->decay,     &l->write,      &l->read,      &l->erase,   &l->skip};
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
    if (*single[i] != IR_NONE) root[n++] = single[i];
  }
  for (int i = 0; i < o->num_state; i++) {
    root[n++] = &o->init[i];
    root[n++] = &o->next[i];
  }
  for (int i = 0; i < o->num_final; i++) root[n++] = &o->final[i];
  return n;
}

/* Raises if an integer constant under the roots has more than 32 bits. */
static luattn_status check_constants(const traced_spec *t, const ir_ref *root, int n, luattn_error *err) {
  static const struct {
    ir_op op;
    const char *sign;
  } signs[] = {
      {IR_ADD, "+"},      {IR_SUB, "-"},         {IR_MUL, "*"},         {IR_FLOORDIV, "//"},   {IR_MOD, "%"},
      {IR_BAND, "&"},     {IR_BOR, "|"},         {IR_BXOR, "~"},        {IR_SHL, "<<"},        {IR_SHR, ">>"},
      {IR_SHR_BAND, "&"}, {IR_LT, "comparison"}, {IR_LE, "comparison"}, {IR_EQ, "comparison"}, {IR_NE, "comparison"},
  };
  const uint32_t count = ir_count(t->g);
  bool *reached = arena_array(t->a, count, sizeof *reached);
  if (reached == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  for (int i = 0; i < n; i++) reached[root[i]] = true;
  for (ir_ref r = count - 1; r > 0; r--) {
    const ir_node *node = ir_get(t->g, r);
    const char *sign = ir_op_name((ir_op)node->op);
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
      if (signs[i].op == (ir_op)node->op) sign = signs[i].sign;
    for (int i = 0; reached[r] && i < node->nargs; i++) {
      const ir_node *x = ir_get(t->g, node->arg[i]);
      reached[node->arg[i]] = true;
      if (ir_is_wide(t->g, r) || ir_compares_wide(t->g, r)) continue;
      if (x->op == IR_CONST_INT && (x->imm.integer < INT32_MIN || x->imm.integer > INT32_MAX))
        return luattn_fail(err, LUATTN_SPEC, "%s:%d: " VALUE_TOO_LARGE, t->file, (int)node->line, sign,
                           (long long)x->imm.integer);
    }
  }
  return LUATTN_OK;
}

/* Brings integers into the 32 bits of kernels, and verifies what tracing built: a failure of ir_check is a bug of
 * luattn, not of the spec. */
static luattn_status finish_trace(traced_spec *t, luattn_error *err) {
  ir_ref *at[ROOTS_MAX], root[ROOTS_MAX];
  const int n = find_roots(t, at);
  if (!ir_keep_low_bits(t->g, at, n)) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", t->file);
  for (int i = 0; i < n; i++) root[i] = *at[i];
  TRY(check_constants(t, root, n, err));
  return ir_check(t->g, root, n, "trace", err);
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
    if (spec.g == NULL || spec.file == NULL) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
    status = run(&s, err);
    if (s.wants_selects == NULL || empty.num_select_hooks == FRONT_MAX_SELECT_HOOKS) break;
    empty.select_hook[empty.num_select_hooks++] = s.wants_selects;
  }
  if (status != LUATTN_OK) return status;
  if (ir_failed(spec.g)) return luattn_fail(err, LUATTN_NO_MEMORY, "%s: out of memory", name);
  TRY(finish_trace(&spec, err));
  TRY(check_reads(&s, err));
  spec.random = calls_random(&spec);
  *out = spec;
  return LUATTN_OK;
}

luattn_status front_trace_within(arena *a, const char *name, const char *source, size_t size, double cpu_seconds,
                                 traced_spec *out, luattn_error *err) {
  const front_options options = {.cpu_seconds = cpu_seconds};
  return front_trace_with(a, name, source, size, &options, out, err);
}
