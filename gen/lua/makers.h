/* makers.h: which functions of the standard library make masks, mods and online functions, and where a spec called
 * them. */
#ifndef LUATTN_GEN_LUA_MAKERS_H
#define LUATTN_GEN_LUA_MAKERS_H

#include "gen/lua/state.h"

/* How a call of the function at `index` is written, as "causal()", if it is one of the standard library that makes a
 * mask, a mod or an online function; else NULL. */
const char *makers_call(lua_State *L, int index);

/* The line that has called one of these to make the function at `index`; 0: none has. */
int makers_line(lua_State *L, int index);

/* Of the prelude, as lua_CFunctions. */
int makers_makes(lua_State *L); /* makes(f, "causal()") */
int makers_made(lua_State *L);  /* made(f) returns f, whose line is from now on the one that asks for it */

#endif
