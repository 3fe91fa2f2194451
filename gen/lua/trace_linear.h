/* trace_linear.h: the fields of linear_attention {..} that are its own. */
#ifndef LUATTN_GEN_LUA_TRACE_LINEAR_H
#define LUATTN_GEN_LUA_TRACE_LINEAR_H

#include "gen/lua/hooks.h"

/* Reads update, normalize and scale of the table at `table`, and raises where they do not fit each other. */
void linear_declare(lua_State *L, int table);
/* Traces its hooks. */
void linear_trace(lua_State *L, int table);

#endif
