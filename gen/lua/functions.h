/* functions.h: the functions that a spec computes with, such as exp, min and where, on numbers and on traced
 * values. */
#ifndef LUATTN_GEN_LUA_FUNCTIONS_H
#define LUATTN_GEN_LUA_FUNCTIONS_H

#include "gen/lua/state.h"

/* Adds them to the table at the top of the stack: those that math also has (`also_math`), or the others. */
void functions_add(lua_State *L, bool also_math);

int functions_random(lua_State *L); /* a lua_CFunction: random(b, h, q_idx, kv_idx) */

/* A lua_CFunction, for the text that scan_conditions writes: the value of the condition that a function
 * returns, for where() alone. Outside of tracing, and where rows are reduced, what the function returns. */
int functions_condition(lua_State *L);

#endif
