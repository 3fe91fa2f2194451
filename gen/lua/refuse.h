/* refuse.h: refuses operators that are not defined for their operands, and says what to write instead. */
#ifndef LUATTN_GEN_LUA_REFUSE_H
#define LUATTN_GEN_LUA_REFUSE_H

#include <lua.h>

/* Completes the metatable of traced numbers, which is at the top of the stack. */
void refuse_on_numbers(lua_State *L);
/* Gives booleans a metatable: conditions of a hook are plain booleans, on which Python would use a & b, a | b
 * and ~a. */
void refuse_on_booleans(lua_State *L);

#endif
