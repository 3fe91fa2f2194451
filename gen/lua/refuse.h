/* refuse.h: refuses operators that are not defined for their operands, and says what to write instead. */
#ifndef LUATTN_GEN_LUA_REFUSE_H
#define LUATTN_GEN_LUA_REFUSE_H

#include <lua.h>

/* Completes the metatable of traced numbers (value_open), and gives booleans one. */
void refuse_open(lua_State *L);
/* Gives the metatable at the top `refuse` for every operator, with the operator's sign as upvalue 1. */
void refuse_operators(lua_State *L, lua_CFunction refuse);

#endif
