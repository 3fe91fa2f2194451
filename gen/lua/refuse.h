/* refuse.h: operators that mean nothing to what they are applied to, and what to write instead. */
#ifndef LUATTN_GEN_LUA_REFUSE_H
#define LUATTN_GEN_LUA_REFUSE_H

#include <lua.h>

/* Completes the metatable of traced numbers, which is at the top of the stack. */
void refuse_on_numbers(lua_State *L);
/* Gives booleans a metatable: a condition of a hook is a plain boolean, where Python writes a & b, a | b and
 * ~a. */
void refuse_on_booleans(lua_State *L);

#endif
