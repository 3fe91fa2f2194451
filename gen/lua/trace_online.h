/* trace_online.h: online_func: its declaration, and its functions traced or run in numbers. */
#ifndef LUATTN_GEN_LUA_ONLINE_H
#define LUATTN_GEN_LUA_ONLINE_H

#include "gen/lua/hooks.h"

/* Checks field online_func of the table at `table` and fills the names in front_of(L)->spec->online. */
void online_declare(lua_State *L, int table);
/* Traces its functions into front_of(L)->spec->online. */
void online_trace(lua_State *L, int table);
/* FRONT_NUMBERS: calls one of its functions; the results are in numbers->result, in the order of
 * traced_online: init; prob, rescale, next..; out, final..; forward; backward. False: it has no such
 * function. */
bool online_run(lua_State *L, int table, hook_id id, int *count);

#endif
