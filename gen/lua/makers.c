#include "gen/lua/makers.h"

#define MAKERS "luattn.makers" /* function -> how a call of it is written */
#define LINES "luattn.lines"   /* what such a function has made -> the line of that call */

const char *makers_call(lua_State *L, int index) {
  index = lua_absindex(L, index);
  const int top = lua_gettop(L);
  const char *call = NULL;
  if (lua_getfield(L, LUA_REGISTRYINDEX, MAKERS) == LUA_TTABLE) {
    lua_pushvalue(L, index);
    if (lua_rawget(L, -2) == LUA_TSTRING) call = front_format(L, "%s", lua_tostring(L, -1));
  }
  lua_settop(L, top);
  return call;
}

/* makes(f, "causal()") */
int makers_makes(lua_State *L) {
  luaL_getsubtable(L, LUA_REGISTRYINDEX, MAKERS);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_rawset(L, -3);
  return 0;
}

/* made(f) returns f, whose line is from now on the one that asks for it */
int makers_made(lua_State *L) {
  lua_settop(L, 1);
  if (!lua_isfunction(L, 1)) return 1;
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LINES);
  lua_pushvalue(L, 1);
  lua_pushinteger(L, front_line(L));
  lua_rawset(L, -3);
  lua_settop(L, 1);
  return 1;
}

int makers_line(lua_State *L, int index) {
  index = lua_absindex(L, index);
  const int top = lua_gettop(L);
  int line = 0;
  if (lua_getfield(L, LUA_REGISTRYINDEX, LINES) == LUA_TTABLE) {
    lua_pushvalue(L, index);
    lua_rawget(L, -2);
    line = (int)lua_tointeger(L, -1);
  }
  lua_settop(L, top);
  return line;
}
