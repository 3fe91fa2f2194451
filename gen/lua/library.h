/* library.h: what the standard library of specs (prelude.lua) calls: checks of what a spec passes to it. */
#ifndef LUATTN_GEN_LUA_LIBRARY_H
#define LUATTN_GEN_LUA_LIBRARY_H

#include "gen/lua/state.h"

/* Pushes these functions, which have no global names, so that a spec cannot call them; returns how many. */
int library_push(lua_State *L);

/* SCAN_TRUTH of scan.h: returns its argument, or raises where Lua's truth of it says nothing. */
int library_truth(lua_State *L);

#endif
