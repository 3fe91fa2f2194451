/* declare.h: checks the declarations of attention {..}. */
#ifndef LUATTN_GEN_LUA_DECLARE_H
#define LUATTN_GEN_LUA_DECLARE_H

#include "gen/lua/state.h"

void declare_open(lua_State *L); /* defines `attention` in the table at the top */
/* Pushes the table that the file returned, which must be the result of attention {..}; raises otherwise. */
void declare_push(lua_State *L, int returned);

/* In the registry: a function of the prelude that gives a table of linear_attention {..} its own names, where it has
 * AttentionEngine's. */
#define DECLARE_OTHER_NAMES "luattn.other_names"

#endif
