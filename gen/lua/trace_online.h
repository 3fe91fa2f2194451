/* trace_online.h: online_func: checks its declaration, and traces its functions or runs them with numbers. */
#ifndef LUATTN_GEN_LUA_ONLINE_H
#define LUATTN_GEN_LUA_ONLINE_H

#include "gen/lua/hooks.h"

/* Checks field online_func of the table at `table` and fills the names in front_of(L)->spec->online. */
void online_declare(lua_State *L, int table);
/* Traces its functions into front_of(L)->spec->online. */
void online_trace(lua_State *L, int table);
/* FRONT_NUMBERS: calls one of its functions; the results are in numbers->result, in the order of
 * traced_online: init; prob, rescale, next..; out, final..; forward; backward. False: the function is
 * absent. */
bool online_run(lua_State *L, int table, hook_id id, int *count);

#endif
