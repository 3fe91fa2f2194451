/* refuse.h: refuses operators that are not defined for their operands, and says what to write instead. */
#ifndef LUATTN_GEN_LUA_REFUSE_H
#define LUATTN_GEN_LUA_REFUSE_H

#include <lua.h>

/* Completes the metatable of traced numbers (value_open), and gives booleans one. */
void refuse_open(lua_State *L);

#endif
