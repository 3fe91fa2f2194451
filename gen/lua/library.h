/* library.h: what the standard library of specs (prelude.lua) calls: checks of what a spec passes to it. */
#ifndef LUATTN_GEN_LUA_LIBRARY_H
#define LUATTN_GEN_LUA_LIBRARY_H

#include "gen/lua/state.h"

/* Pushes these functions, which have no global names, so that a spec cannot call them; returns how many. */
int library_push(lua_State *L);

/* How a call of the function at `index` is written, as "causal()", if it is one of the standard library that makes a
 * mask, a mod or an online function; else NULL. */
const char *library_maker(lua_State *L, int index);

/* The line that has called one of these to make the function at `index`; 0: none has. */
int library_line(lua_State *L, int index);

/* SCAN_TRUTH of scan.h: returns its argument, or raises where Lua's truth of it says nothing. */
int library_truth(lua_State *L);

#endif
