/* bounded.h: limits functions of Lua's own library that can run long in one call, which the instruction hook
 * cannot interrupt. */
#ifndef LUATTN_GEN_LUA_BOUNDED_H
#define LUATTN_GEN_LUA_BOUNDED_H

#include <lua.h>

/* Each replaces the functions of that name in the table at the top. */
void bounded_string(lua_State *L);
void bounded_table(lua_State *L);

#endif
