/* gather.h: an input of the spec with the indices given so far, as a userdata, and how messages show it. */
#ifndef LUATTN_GEN_LUA_GATHER_H
#define LUATTN_GEN_LUA_GATHER_H

#include "gen/lua/value.h"

#define GATHER_METATABLE "input" /* of which input.c makes an input that can be indexed */

/* t, then t[i] of t[i][j]. */
typedef struct gather {
  uint32_t input, generation;
  int count;
  operand index[4];    /* FRONT_TRACING */
  long long number[4]; /* FRONT_NUMBERS */
} gather;

const luattn_input_info *gather_info(lua_State *L, const gather *t);
void gather_push(lua_State *L, const gather *t);
int gather_num_axes(lua_State *L, int index);
int gather_axis_size(lua_State *L, int index, int i); /* of axis i of the input, from 1; 0: it is no size of the spec */

const char *gather_axes(lua_State *L, const luattn_input_info *info); /* "h, q, 16" */
const char *gather_indexed(lua_State *L,
                           const luattn_input_info *info); /* slopes[h], bias[{h, q_idx, i}]: how it is read */
bool gather_heads_are_kv(lua_State *L);                    /* in the running hook h is the kv head, or the value head */

/* Raises: `count` indices are given. */
void gather_refuse_count(lua_State *L, const gather *t, int count) __attribute__((noreturn));
/* Raises if the value at `index` is an input with indices still missing, or a place on the grid without an axis. */
void gather_refuse_unindexed(lua_State *L, int index, const char *what);

#endif
