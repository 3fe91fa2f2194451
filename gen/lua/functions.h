/* functions.h: the functions that a spec computes with: exp, min, where, .. on numbers and on traced values
 * alike. */
#ifndef LUATTN_GEN_LUA_FUNCTIONS_H
#define LUATTN_GEN_LUA_FUNCTIONS_H

#include "gen/lua/state.h"

/* Adds them to the table at the top of the stack: those that math has too (`also_math`), or those that are
 * ours alone. */
void functions_add(lua_State *L, bool also_math);

#endif
