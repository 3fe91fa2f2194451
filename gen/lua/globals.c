/* globals.c: the names that a spec can use. All others are refused by name, with the reason or the nearest
 * name. */
#include <string.h>

#include "gen/lua/bounded.h"
#include "gen/lua/declare.h"
#include "gen/lua/form.h"
#include "gen/lua/functions.h"
#include "gen/lua/gather.h"
#include "gen/lua/hooks.h"
#include "gen/lua/input.h"
#include "gen/lua/names.h"
#include "gen/lua/value.h"

#define GUARD "luattn.guard" /* metatable of the spec's own tables */

typedef struct missing_row {
  const char *name, *reason;
} missing_row;

static const char no_files[] = "a spec reads and writes no files";
static const char one_file[] = "a spec is one file and loads no further code";
static const char no_output[] = "a spec has no output; look at its trace with `luattn emit --stage ir`";
static const char plain_tables[] = "tables of a spec are plain data";
static const char no_catch[] = "an error ends the run";
static const char no_patterns[] = "pattern matching has no limit on its time";
static const char no_state[] = "hooks are called again and again and must give the same result each time";

static const missing_row missing[] = {
    {"io", no_files},
    {"os", no_files},
    {"require", one_file},
    {"package", one_file},
    {"load", one_file},
    {"loadstring", one_file},
    {"loadfile", one_file},
    {"dofile", one_file},
    {"print", no_output},
    {"warn", no_output},
    {"debug", "it would open the sandbox"},
    {"collectgarbage", "memory is capped, and freed when the spec is loaded"},
    {"coroutine", no_state},
    {"pcall", no_catch},
    {"xpcall", no_catch},
    {"setmetatable", plain_tables},
    {"getmetatable", plain_tables},
    {"rawget", plain_tables},
    {"rawset", plain_tables},
    {"rawlen", plain_tables},
    {"rawequal", "use eq(a, b)"},
    {"utf8", "specs need no text beyond string"},
    {"_G", "name globals directly"},
    {"math.random",
     "hooks are called again and again and must give the same result each time; write random(b, h, q_idx, kv_idx), "
     "which is "
     "drawn for a score"},
    {"math.randomseed", no_state},
    {"string.find", no_patterns},
    {"string.match", no_patterns},
    {"string.gmatch", no_patterns},
    {"string.gsub", no_patterns},
    {"string.dump", one_file},
    {"string.pack", no_files},
    {"string.unpack", no_files},
    {"string.packsize", no_files},
    {"table.move", "its loop has no limit on its time"},
    {"table.pack", "write {...}"},
};

/* Names from other languages and libraries. A spec may declare them as its own. */
static const char stand_alone[] = "functions stand alone: where, exp, tanh, min, max, ..";
static const char by_name[] = "inputs and scalars are named directly: slopes[h], cap";
static const missing_row foreign[] = {
    {"torch", stand_alone},
    {"np", stand_alone},
    {"numpy", stand_alone},
    {"jnp", stand_alone},
    {"F", stand_alone},
    {"inputs", by_name},
    {"scalars", by_name},
    {"inf", "write math.huge"},
    {"float", "numbers need no conversion, and infinity is math.huge"},
    {"int", "write floor(x), or ceil(x) where x is negative"},
    {"trunc", "write floor(x), or ceil(x) where x is negative"},
    {"detach", "write stop_gradient(x)"},
    {"clip", "write clamp(x, low, high)"},
    {"square", "write x * x"},
    {"leaky_relu", "write where(x > 0, x, a * x)"},
    {"logsigmoid", "write log_sigmoid(x)"},
    {"swish", "write silu(x)"},
    {"num_heads", "write heads"},
    {"num_kv_heads", "write heads_kv"},
    {"range", "a loop is written for i = 0, n - 1 do .. end"},
    {"len", "write #t"},
    {"null", "write nil"},
    {"True", "write true"},
    {"False", "write false"},
    {"AND", "write a and b"},
    {"OR", "write a or b"},
    {"NOT", "write not a"},
    {"None", "write nil"},
    {"logical_and", "write a and b"},
    {"logical_or", "write a or b"},
    {"logical_not", "write not a"},
    {"maximum", "write max(a, b)"},
    {"minimum", "write min(a, b)"},
    {"round", "write floor(x + 0.5)"},
    {"and_masks", "write mask_and(a, b)"},
    {"or_masks", "write mask_or(a, b)"},
    {"noop_mask", "leave block_mask out"},
    {"create_block_mask", "give the function itself as block_mask"},
    {"softmax", "online_softmax is the default online_func"},
    {"sign", "write where(x > 0, 1, where(x < 0, -1, 0))"},
    {"tan", "write sin(x) / cos(x)"},
    {"sinh", "write (exp(x) - exp(-x)) / 2"},
    {"cosh", "write (exp(x) + exp(-x)) / 2"},
    {"elu", "write where(x > 0, x, exp(x) - 1)"},
    {"log10", "write log(x) / math.log(10)"},
    {"erfc", "write 1 - erf(x)"},
    {"neg", "write -x"},
    {"scale", "scores arrive multiplied by it; a number of your own goes into scalars"},
    {"math.inf", "write math.huge"},
};

static const char *foreign_hint(lua_State *L, const char *name) {
  for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
    if (strcmp(foreign[i].name, name) == 0) return front_format(L, "; %s", foreign[i].reason);
  }
  return NULL;
}

static const char *missing_reason(const char *name) {
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    if (strcmp(missing[i].name, name) == 0) return missing[i].reason;
  }
  return NULL;
}

static void suggest_keys(lua_State *L, int table, front_suggestion *s) {
  table = lua_absindex(L, table);
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TSTRING) front_suggest_try(s, lua_tostring(L, -1));
  }
}

/* Refuses a traced key, which would silently find nothing. */
static void refuse_traced_key(lua_State *L, int key) {
  if (!value_is_traced(L, key)) return;
  front_raise(L,
              "a Lua table is indexed by a traced number, whose value is not known yet; pass the table as "
              "an input and gather from it, or choose with where()");
}

/* __index of the environment. Upvalue 1: the globals. */
static int global_get(lua_State *L) {
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  refuse_traced_key(L, 2);
  if (lua_type(L, 2) != LUA_TSTRING) return 1;
  const char *name = lua_tostring(L, 2);
  const bool whole = strlen(name) == lua_rawlen(L, 2); /* no zero byte hides a part of it */
  if (whole && input_push_name(L, name)) return 1;
  const char *reason = missing_reason(name);
  if (reason != NULL) front_raise(L, "'%s' is not available in a spec: %s", name, reason);
  const char *hint = foreign_hint(L, name);
  if (hint != NULL) front_raise(L, "undefined name '%s'%s", name, hint);
  hook_refuse_argument(L, name);
  front_suggestion s;
  front_suggest_start(&s, name);
  suggest_keys(L, lua_upvalueindex(1), &s);
  input_suggest(L, &s);
  hook_suggest(L, &s);
  const char *end = front_suggest_end(L, &s);
  const bool loading = front_of(L)->mode == FRONT_LOADING;
  if (!loading && *end == '\0') end = "; declare it as an input or a scalar, or as a local";
  front_raise(L, "undefined name '%s'%s%s", front_shown(L, 2), end,
              loading ? " (inputs, scalars and lengths exist only inside hooks)" : "");
}

/* exp = math.exp changes nothing: whether both are the same function of luattn. */
static bool same_function(lua_State *L, int a, int b) {
  if (!lua_iscfunction(L, a) || lua_tocfunction(L, a) != lua_tocfunction(L, b)) return false;
  const int top = lua_gettop(L);
  bool same = true;
  for (int i = 1; same && lua_getupvalue(L, a, i) != NULL; i++)
    same = lua_getupvalue(L, b, i) != NULL && lua_rawequal(L, -1, -2);
  lua_settop(L, top);
  return same;
}

/* Refuses a new value: hooks would no longer find what is declared under that name, or luattn's own library
 * would call it. */
static void refuse_assignment(lua_State *L, const char *name) {
  const front_state *s = front_of(L);
  const bool is_function = lua_isfunction(L, 3);
  bool declared = false;
  for (int i = 0; i < s->spec->num_scalars; i++) declared |= strcmp(s->spec->scalar_name[i], name) == 0;
  for (int i = 0; i < s->spec->num_inputs; i++) declared |= strcmp(s->spec->input[i].name, name) == 0;
  if (declared)
    front_raise(L, "'%s' is assigned, but %s { .. } declares it; choose another name for one of them", name,
                form_of(L)->name);
  if (names_predefined(L, name))
    front_raise(L, "'%s' is predefined; choose another name, or write local %s%s%s", name,
                is_function ? "function " : "", name, is_function ? "(..)" : " = ..");
}

static int global_set(lua_State *L) {
  refuse_traced_key(L, 2);
  const char *name = luaL_tolstring(L, 2, NULL);
  if (front_of(L)->mode != FRONT_LOADING) {
    front_raise(L,
                "global '%s' is assigned inside a hook; a hook must not change anything outside itself, so "
                "write local %s",
                front_shown(L, -1), front_shown(L, -1));
  }
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL && same_function(L, -1, 3)) return 0;
  refuse_assignment(L, name);
  lua_pushvalue(L, 2);
  lua_pushvalue(L, 3);
  lua_rawset(L, lua_upvalueindex(1));
  return 0;
}

/* Upvalue 1: the members, 2: the library's name. */
static int library_get(lua_State *L) {
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  refuse_traced_key(L, 2);
  const char *library = lua_tostring(L, lua_upvalueindex(2)), *name = luaL_tolstring(L, 2, NULL);
  const char *shown = front_shown(L, -1);
  const char *full = front_format(L, "%s.%s", library, name), *hint = foreign_hint(L, full);
  if (hint != NULL) front_raise(L, "%s has no '%s'%s", library, name, hint);
  const char *reason = missing_reason(full);
  if (reason != NULL) front_raise(L, "'%s.%s' is not available in a spec: %s", library, name, reason);
  front_suggestion s;
  front_suggest_start(&s, name);
  suggest_keys(L, lua_upvalueindex(1), &s);
  front_raise(L, "%s has no '%s'%s", library, shown, front_suggest_end(L, &s));
}

static int library_set(lua_State *L) { front_raise(L, "%s is read-only", lua_tostring(L, lua_upvalueindex(2))); }

/* Replaces the members at the top of the stack by an empty proxy table. */
static void close_library(lua_State *L, const char *name) {
  lua_newtable(L);
  lua_newtable(L);
  lua_pushvalue(L, -3);
  lua_pushstring(L, name);
  lua_pushcclosure(L, library_get, 2);
  lua_setfield(L, -2, "__index");
  lua_pushvalue(L, -3);
  lua_pushstring(L, name);
  lua_pushcclosure(L, library_set, 2);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  lua_remove(L, -2);
}

/* Copies named members of the table at the top into the one below it, and pops the former. */
static void take(lua_State *L, const char *const *names) {
  for (; *names != NULL; names++) {
    lua_getfield(L, -1, *names);
    lua_setfield(L, -3, *names);
  }
  lua_pop(L, 1);
}

/* Lua's own gives nil for traced numbers. */
static int spec_tonumber(lua_State *L) {
  luaL_checkany(L, 1);
  gather_refuse_unindexed(L, 1, "tonumber");
  if (value_is_traced(L, 1) && lua_isnoneornil(L, 2)) {
    value_get(L, 1, "tonumber"); /* raises if it is stale */
    lua_settop(L, 1);
    return 1;
  }
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

static int spec_type(lua_State *L) {
  luaL_checkany(L, 1);
  lua_pushstring(L, value_is_traced(L, 1) ? "number" : luaL_typename(L, 1));
  return 1;
}

/* Moves members of an opened standard library to globals.<name>. */
static void open_library(lua_State *L, const char *name, lua_CFunction open, const char *const *names) {
  lua_newtable(L);
  lua_pushcfunction(L, open);
  lua_pushstring(L, name);
  lua_call(L, 1, 1);
  take(L, names);
  if (strcmp(name, LUA_MATHLIBNAME) == 0) functions_add(L, true);
  if (strcmp(name, LUA_STRLIBNAME) == 0) bounded_string(L);
  if (strcmp(name, LUA_TABLIBNAME) == 0) bounded_table(L);
  close_library(L, name);
  if (strcmp(name, LUA_STRLIBNAME) == 0) { /* methods of strings use the same members */
    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 2);
  }
  lua_setfield(L, -2, name);
}

/* __index and __newindex of the tables that a spec makes. */
static int guard_key(lua_State *L) {
  refuse_traced_key(L, 2);
  if (lua_gettop(L) == 3)
    lua_rawset(L, 1);
  else
    lua_pushnil(L);
  return lua_gettop(L) == 1 ? 0 : 1;
}

/* A constructor sets fields before the table has its guard. */
int globals_guard_table(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_pushnil(L);
  while (lua_next(L, 1) != 0) {
    if (value_is_traced(L, 2)) {
      front_raise(L,
                  "a table constructor has a traced number as a key, whose value is not known yet; choose "
                  "with where() or if");
    }
    lua_pop(L, 1);
  }
  luaL_setmetatable(L, GUARD);
  return 1;
}

static const char *const base_names[] = {"assert", "error",    "ipairs",   "next", "pairs",
                                         "select", "tonumber", "tostring", NULL};
static const char *const math_names[] = {"acos",       "asin", "atan", "deg", "fmod", "huge", "maxinteger",
                                         "mininteger", "modf", "pi",   "rad", "tan",  "ult",  NULL};
static const char *const string_names[] = {"byte", "char",    "format", "len",   "lower",
                                           "rep",  "reverse", "sub",    "upper", NULL};
static const char *const table_names[] = {"concat", "insert", "remove", "sort", "unpack", NULL};

void globals_open(lua_State *L) {
  luaL_newmetatable(L, GUARD);
  lua_pushnil(L); /* so that messages call these tables tables */
  lua_setfield(L, -2, "__name");
  lua_pushcfunction(L, guard_key);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, guard_key);
  lua_setfield(L, -2, "__newindex");
  lua_pop(L, 1);

  lua_newtable(L); /* globals */
  lua_pushcfunction(L, luaopen_base);
  lua_call(L, 0, 1);
  take(L, base_names);
  lua_getfield(L, -1, "tonumber");
  lua_pushcclosure(L, spec_tonumber, 1);
  lua_setfield(L, -2, "tonumber");
  lua_pushcfunction(L, spec_type);
  lua_setfield(L, -2, "type");
  open_library(L, LUA_MATHLIBNAME, luaopen_math, math_names);
  open_library(L, LUA_STRLIBNAME, luaopen_string, string_names);
  open_library(L, LUA_TABLIBNAME, luaopen_table, table_names);
  functions_add(L, false);
  declare_open(L);

  lua_newtable(L); /* environment */
  lua_newtable(L);
  lua_pushvalue(L, -3);
  lua_pushcclosure(L, global_get, 1);
  lua_setfield(L, -2, "__index");
  lua_pushvalue(L, -3);
  lua_pushcclosure(L, global_set, 1);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  names_open(L);
}
