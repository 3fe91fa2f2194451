#include "gen/lua/hooks.h"

#include <string.h>

#include "gen/lua/gather.h"
#include "gen/lua/makers.h"
#include "gen/lua/numbers.h"
#include "gen/lua/grid_positions.h"

int hook_line_of(lua_State *L, int index) {
  lua_Debug info;
  lua_pushvalue(L, index);
  lua_getinfo(L, ">S", &info);
  if (strcmp(info.source, CHUNK_SPEC) == 0) return info.linedefined;
  const int line = makers_line(L, index);
  return line > 0 ? line : front_of(L)->declared_line;
}

/* The next name of a parameter list; NULL: it was the last. */
static const char *next_argument(const char *p) {
  p = strchr(p, ' ');
  return p != NULL ? p + 1 : NULL;
}

/* The position of the hook's argument with this name, from 1; 0: none. */
static int argument_at(const hook_row *row, const char *name) {
  const size_t n = strlen(name);
  int at = 1;
  for (const char *p = row->params; p != NULL; p = next_argument(p), at++) {
    if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return at;
  }
  return 0;
}

/* Also accepts the names that masks are often written with. */
static int argument_meant(const hook_row *row, const char *name) {
  static const char *const also[][2] = {
      {"q", "q_idx"}, {"k", "kv_idx"}, {"kv", "kv_idx"}, {"batch", "b"}, {"head", "h"},
  };
  for (size_t i = 0; i < sizeof also / sizeof *also; i++)
    if (strcmp(name, also[i][0]) == 0) name = also[i][1];
  return argument_at(row, name);
}

/* Only trailing parameters may be left out: in function(q_idx, kv_idx), q_idx would receive the batch entry.
 * Detects this mistake by the parameters' names. */
static void check_places(lua_State *L, const hook_row *row, const char *name, int num_params) {
  for (int i = 1; i <= num_params; i++) {
    const char *parameter = lua_getlocal(L, NULL, i);
    const int at = parameter != NULL ? argument_meant(row, parameter) : 0;
    if (at == 0 || at == i) continue;
    front_raise_at(L, hook_line_of(L, -1),
                   "%s: parameter %d of the function is '%s', but the hook is called with (%s); only "
                   "parameters at the end may be left out",
                   name, i, parameter, row->params);
  }
}

void hook_check(lua_State *L, hook_id id, const char *name) {
  const hook_row *row = hook_get(id);
  if (!lua_isfunction(L, -1)) {
    front_raise(L, "%s is %s; it must be a function(%s)", name, front_kind(L, -1), row->params);
  }
  const char *call = makers_call(L, -1);
  if (call != NULL)
    front_raise(L, "%s is a function of the standard library that makes one; call it, as in %s = %s", name, name, call);
  lua_Debug info;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">Su", &info);
  if (info.isvararg || info.nparams == row->count) return;
  if (info.nparams < row->count) {
    check_places(L, row, name, info.nparams);
    return;
  }
  front_raise_at(L, hook_line_of(L, -1),
                 "%s: the function has %d parameters, but is called with (%s); declare no more than these", name,
                 info.nparams, row->params);
}

void hook_suggest(lua_State *L, front_suggestion *s) {
  const hook_row *hook = hook_running(L);
  for (const char *p = hook != NULL ? hook->params : NULL; p != NULL; p = next_argument(p)) {
    const int n = (int)strcspn(p, ",");
    if (n > 2) front_suggest_try(s, front_format(L, "%.*s", n, p));
  }
}

/* "b, h, q, kv": the parameters of the innermost function of the spec that is running. */
static const char *running_parameters(lua_State *L) {
  lua_Debug frame;
  const char *list = "";
  for (int level = 0; lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "S", &frame);
    if (strcmp(frame.source, CHUNK_SPEC) != 0) continue;
    lua_getinfo(L, "fu", &frame);
    for (int i = 1; i <= frame.nparams; i++)
      list = front_format(L, "%s%s%.32s", list, i > 1 ? ", " : "", lua_getlocal(L, NULL, i));
    if (frame.isvararg) list = front_format(L, "%s%s...", list, frame.nparams > 0 ? ", " : "");
    lua_pop(L, 1);
    break;
  }
  return list;
}

void hook_refuse_argument(lua_State *L, const char *name) {
  int id = 0;
  while (id < HOOK_COUNT && (!hook_is_of_form(L, id) || argument_at(hook_get(id), name) == 0)) id++;
  if (id == HOOK_COUNT) return;
  if (front_of(L)->mode == FRONT_LOADING)
    front_raise(L, "undefined name '%s': it is an argument of hooks, and exists only inside them", name);
  const hook_row *hook = hook_running(L);
  if (hook == NULL) return;
  const char *called = front_of(L)->hook;
  if (argument_at(hook, name) == 0) {
    front_raise(L, "undefined name '%s': it is no argument of %s, which is called with (%s)", name, called,
                hook->params);
  }
  front_raise(L,
              "undefined name '%s': %s is called with (%s), but the function here has (%s); use these names, or "
              "hand %s to it",
              name, called, hook->params, running_parameters(L), name);
}

static bool is_position(ir_var v) { return v == VAR_Q || v == VAR_KV || v == VAR_POS; }

static bool is_integer(ir_var v) { return v == VAR_B || v == VAR_H || v == VAR_D; }

/* Pushes a variable: traced, or as a number. */
static void push_leaf(lua_State *L, ir_var v, uint32_t index) {
  const front_state *s = front_of(L);
  if (s->mode == FRONT_TRACING) {
    value_push_leaf(L, ir_variable(s->g, v, index));
    return;
  }
  const double x = v == VAR_STATE   ? s->numbers->state[index]
                   : v == VAR_FINAL ? s->numbers->final[index]
                                    : s->numbers->variable[v];
  if (is_integer(v))
    lua_pushinteger(L, (lua_Integer)x);
  else
    lua_pushnumber(L, x);
}

/* __index and __newindex of a table of row scalars: every known name is present, so only misspelt ones get
 * here. */
static int refuse_rowscale(lua_State *L) {
  const traced_online *online = &front_of(L)->spec->online;
  const bool final = lua_toboolean(L, lua_upvalueindex(1));
  const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : front_kind(L, 2);
  front_suggestion s;
  front_suggest_start(&s, name);
  for (int i = 0; i < (final ? online->num_final : online->num_state); i++) {
    front_suggest_try(&s, final ? online->final_name[i] : online->state_name[i]);
  }
  front_raise(L, "there is no row scalar '%s' in %s%s", front_shown(L, 2),
              final ? "final_rowscales" : "online_rowscales", front_suggest_end(L, &s));
}

static void push_rowscales(lua_State *L, ir_var v) {
  const traced_online *online = &front_of(L)->spec->online;
  const bool final = v == VAR_FINAL;
  lua_newtable(L);
  for (int i = 0; i < (final ? online->num_final : online->num_state); i++) {
    push_leaf(L, v, (uint32_t)i);
    lua_setfield(L, -2, final ? online->final_name[i] : online->state_name[i]);
  }
  lua_newtable(L);
  lua_pushboolean(L, final);
  lua_pushcclosure(L, refuse_rowscale, 1);
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__index");
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
}

int hook_call(lua_State *L, hook_id id, int function) {
  const hook_row *row = hook_get(id);
  const int base = lua_gettop(L);
  luaL_checkstack(L, HOOK_MAX_ARGS + 8, NULL);
  lua_pushvalue(L, function);
  for (int i = 0; i < row->count; i++) {
    if (row->arg[i] == VAR_STATE || row->arg[i] == VAR_FINAL)
      push_rowscales(L, row->arg[i]);
    else if (is_position(row->arg[i]))
      places_push(L, row->arg[i], ir_var_name(row->arg[i]));
    else
      push_leaf(L, row->arg[i], 0);
  }
  lua_call(L, row->count, LUA_MULTRET);
  return lua_gettop(L) - base;
}

void hook_take_number(lua_State *L, int index, const char *what, replay_result *out) {
  const front_state *s = front_of(L);
  if (lua_type(L, index) != LUA_TNUMBER && !value_is_traced(L, index)) {
    gather_refuse_unindexed(L, index, what);
    front_raise(L, "%s: returned %s; return a number%s", what, front_kind(L, index),
                lua_isboolean(L, index)    ? " such as where(condition, a, b)"
                : lua_isfunction(L, index) ? "; call that function where the hook is declared, as in softcap(50)"
                                           : "");
  }
  if (s->mode == FRONT_NUMBERS) {
    s->numbers->result[out->count++] = lua_tonumber(L, index);
    return;
  }
  const ir_ref r = ir_to_real(s->g, value_get(L, index, what).ref);
  if (r == IR_NONE) front_no_memory(L);
  out->value[out->count++] = r;
}

static void take_boolean(lua_State *L, int index, const char *what, replay_result *out) {
  const front_state *s = front_of(L);
  if (lua_isfunction(L, index)) {
    front_raise(L, "%s: returned a function; call the mask where it is declared, as in %s = causal()", what, what);
  }
  if (!lua_isboolean(L, index)) {
    front_raise(L, "%s: returned %s; return a boolean such as kv_idx <= q_idx", what, front_kind(L, index));
  }
  if (s->mode == FRONT_NUMBERS)
    s->numbers->result[out->count++] = lua_toboolean(L, index);
  else
    out->value[out->count++] = ir_bool(s->g, lua_toboolean(L, index));
}

void hook_take_leaf(lua_State *L, ir_var v, uint32_t index, replay_result *out) {
  push_leaf(L, v, index);
  hook_take_number(L, -1, "", out);
  lua_pop(L, 1);
}

/* Of the decay that was taken last. One that is an input's is the caller's affair (LUATTN_CHECK). */
static void refuse_growth(lua_State *L, const replay_result *out) {
  const front_state *s = front_of(L);
  double x;
  if (s->mode != FRONT_NUMBERS && ir_is_const(s->g, out->value[out->count - 1], &x) && x > 0)
    front_raise(
        L, "decay: returned %.14g; it is the logarithm of a factor of at most 1, as log(0.9) is: give at most 0", x);
}

void hook_run_mod(lua_State *L, int function, void *user, replay_result *out) {
  const hook_id id = *(const hook_id *)user;
  const char *name = front_of(L)->hook;
  const int n = hook_call(L, id, function);
  if (n > 1) front_raise(L, "%s: returned %d values; return one", name, n);
  if (n == 0) lua_pushnil(L);
  if (id == HOOK_BLOCK_MASK)
    take_boolean(L, -1, name, out);
  else
    hook_take_number(L, -1, name, out);
  if (id == HOOK_LINEAR_DECAY) refuse_growth(L, out);
  lua_pop(L, 1);
}

const char *hook_push_field(lua_State *L, int table, hook_id id) {
  const char *name = hook_get(id)->name, *dot = strchr(name, '.');
  table = lua_absindex(L, table);
  if (dot != NULL) { /* "update.write" */
    lua_pushlstring(L, name, (size_t)(dot - name));
    if (lua_rawget(L, table) == LUA_TTABLE) {
      lua_pushstring(L, dot + 1);
      lua_rawget(L, -2);
      lua_remove(L, -2);
    }
    if (!lua_isnil(L, -1)) return name;
    lua_pop(L, 1);
    return NULL;
  }
  lua_pushstring(L, name);
  if (lua_rawget(L, table) != LUA_TNIL) return name;
  lua_pop(L, 1);
  if (id != HOOK_BLOCK_MASK) return NULL;
  lua_pushliteral(L, "mask_mod");
  if (lua_rawget(L, table) != LUA_TNIL) return "mask_mod";
  lua_pop(L, 1);
  return NULL;
}

ir_ref hook_trace(lua_State *L, int table, hook_id id) {
  const char *name = hook_push_field(L, table, id);
  if (name == NULL) return IR_NONE;
  replay_result result;
  const replay_hook hook = {.name = name,
                            .line = hook_line_of(L, -1),
                            .call = hook_run_mod,
                            .user = &id,
                            .sums_channels = id >= HOOK_LINEAR_QUERY};
  replay_run(L, lua_gettop(L), &hook, &result);
  lua_pop(L, 1);
  return result.value[0];
}
