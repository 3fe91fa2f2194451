#include "gen/lua/bounded.h"

#include "gen/lua/state.h"

#define REP_MAX (1 << 20)    /* bytes, or repetitions of an empty string */
#define LENGTH_MAX (1 << 20) /* entries that one call moves, in about a hundredth of a second */

/* The library's own function is upvalue 1. Calling it in this frame makes its errors name the arguments
 * correctly. */
static int call_own(lua_State *L) { return lua_tocfunction(L, lua_upvalueindex(1))(L); }

static int string_rep(lua_State *L) {
  size_t size, separator = 0;
  luaL_checklstring(L, 1, &size);
  const lua_Integer n = luaL_checkinteger(L, 2);
  luaL_optlstring(L, 3, "", &separator);
  if (n > 0 && size + separator == 0 && n > REP_MAX) {
    front_raise(L, "string.rep: an empty string is repeated %lld times; the limit is %d", (long long)n, REP_MAX);
  }
  if (n > 0 && size + separator > 0 && (lua_Unsigned)n > REP_MAX / (size + separator)) {
    front_raise(L, "string.rep: the result would be larger than %d bytes", REP_MAX);
  }
  return call_own(L);
}

/* table.insert and table.remove move the entries that follow; a table with holes may have any length, even
 * 2^62. */
static int table_shift(lua_State *L) {
  sandbox_check_time(L);
  if (lua_istable(L, 1) && lua_rawlen(L, 1) > LENGTH_MAX) {
    front_raise(L, "%s: the table has %llu entries; the limit is %d; keep its entries 1, 2, 3, .. without holes",
                lua_tostring(L, lua_upvalueindex(2)), (unsigned long long)lua_rawlen(L, 1), LENGTH_MAX);
  }
  return call_own(L);
}

static int table_timed(lua_State *L) {
  sandbox_check_time(L);
  return call_own(L);
}

/* Upvalue 2: a comparator in Lua. Comparisons in C would run through a whole sort without the instruction
 * hook. */
static int table_sort(lua_State *L) {
  sandbox_check_time(L);
  lua_settop(L, 2);
  if (lua_isnil(L, 2)) {
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_replace(L, 2);
  } else if (lua_iscfunction(L, 2)) {
    front_raise(L, "table.sort: the order is a predefined function; write function(x, y) return .. end");
  }
  return call_own(L);
}

/* Stores f, a closure over the function that it replaces and over the value at the top, in field `name`. */
static void replace(lua_State *L, const char *name, lua_CFunction f) {
  lua_getfield(L, -2, name);
  lua_insert(L, -2);
  lua_pushcclosure(L, f, 2);
  lua_setfield(L, -2, name);
}

void bounded_string(lua_State *L) {
  lua_pushnil(L);
  replace(L, "rep", string_rep);
}

void bounded_table(lua_State *L) {
  static const char order[] = "return function(x, y) return x < y end";
  if (luaL_loadbufferx(L, order, sizeof order - 1, CHUNK_PRELUDE, "t") != LUA_OK) lua_error(L);
  lua_call(L, 0, 1);
  replace(L, "sort", table_sort);
  lua_pushliteral(L, "table.insert");
  replace(L, "insert", table_shift);
  lua_pushliteral(L, "table.remove");
  replace(L, "remove", table_shift);
  lua_pushnil(L);
  replace(L, "concat", table_timed);
  lua_pushnil(L);
  replace(L, "unpack", table_timed);
}
