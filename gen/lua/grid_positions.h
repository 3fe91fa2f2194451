/* grid_positions.h: positions and lengths as hooks see them: numbers; with a grid, q_idx.y is one, and q_idx is none. */
#ifndef LUATTN_GEN_LUA_GRID_POSITIONS_H
#define LUATTN_GEN_LUA_GRID_POSITIONS_H

#include "gen/lua/state.h"

void places_open(lua_State *L);
/* Pushes VAR_Q, VAR_KV, VAR_POS, VAR_Q_LEN or VAR_KV_LEN, whose name in hooks is `name`. */
void places_push(lua_State *L, ir_var v, const char *name);
/* Puts the row-major number of a position at `index` in its place, for random(). Other values stay. */
void places_flatten(lua_State *L, int index);

#endif
