#include "gen/lua/names.h"

#include <string.h>

#define GLOBALS "luattn.globals"         /* name -> value */
#define ENVIRONMENT "luattn.environment" /* an empty proxy table: every access goes through its metatable */
#define PREDEFINED "luattn.predefined"   /* set of names */

enum { OF_ATTENTION = 1 << LUATTN_FORM_ATTENTION, OF_LINEAR = 1 << LUATTN_FORM_LINEAR };

const length_row names_lengths[NAMES_LENGTHS] = {
    {"q_len", VAR_Q_LEN, OF_ATTENTION},
    {"kv_len", VAR_KV_LEN, OF_ATTENTION},
    {"heads", VAR_HEADS, OF_ATTENTION | OF_LINEAR},
    {"heads_kv", VAR_HEADS_KV, OF_ATTENTION},
    {"heads_v", VAR_HEADS_KV, OF_LINEAR},
};

void names_open(lua_State *L) {
  lua_setfield(L, LUA_REGISTRYINDEX, ENVIRONMENT);
  lua_setfield(L, LUA_REGISTRYINDEX, GLOBALS);
}

void names_push(lua_State *L) { lua_getfield(L, LUA_REGISTRYINDEX, ENVIRONMENT); }

void names_lock(lua_State *L) {
  lua_getfield(L, LUA_REGISTRYINDEX, GLOBALS);
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, -3) != 0) {
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_pushboolean(L, 1);
    lua_rawset(L, -4);
  }
  lua_setfield(L, LUA_REGISTRYINDEX, PREDEFINED);
  lua_pop(L, 1);
}

bool names_predefined(lua_State *L, const char *name) {
  const luattn_form form = front_of(L)->spec->form;
  bool found = false;
  for (int i = 0; i < NAMES_LENGTHS; i++)
    found = found || (names_is_length(i, form) && strcmp(name, names_lengths[i].name) == 0);
  const int top = lua_gettop(L);
  if (lua_getfield(L, LUA_REGISTRYINDEX, PREDEFINED) == LUA_TTABLE)
    found = found || lua_getfield(L, -1, name) != LUA_TNIL;
  lua_settop(L, top);
  return found;
}

bool names_defined(lua_State *L, const char *name) {
  lua_getfield(L, LUA_REGISTRYINDEX, GLOBALS);
  const bool found = lua_getfield(L, -1, name) != LUA_TNIL;
  lua_pop(L, 2);
  return found;
}
