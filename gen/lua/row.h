/* row.h: x[..]: other elements of the row that an input mod changes one element of. */
#ifndef LUATTN_GEN_LUA_ROW_H
#define LUATTN_GEN_LUA_ROW_H

#include "gen/lua/state.h"

/* Is the hook that is running query_mod, key_mod or value_mod? */
bool row_in_mod(lua_State *L);
/* __index of traced numbers. False: neither is the value at 1 the element of a mod, nor the key at 2 a number.
 * Else pushes the element of the row at that channel, or raises. */
bool row_push_read(lua_State *L);
/* FRONT_NUMBERS: from now on numbers have an __index, which reads front_numbers.row. */
void row_open_numbers(lua_State *L);
/* Pushes head_dim as this mode of running has it: in value_mod, how long a row of v is. */
void row_push_head_dim(lua_State *L, bool of_v);

#endif
