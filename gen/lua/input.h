/* input.h: the names that exist only inside hooks: extra inputs and their gathers, scalars and lengths. */
#ifndef LUATTN_GEN_LUA_INPUT_H
#define LUATTN_GEN_LUA_INPUT_H

#include "gen/lua/state.h"

void input_open(lua_State *L); /* registers the metatable */
/* Pushes the scalar, input or length of that name: traced, or as a number. False, pushing nothing: there is
 * none. */
bool input_push_name(lua_State *L, const char *name);
void input_suggest(lua_State *L, front_suggestion *s);
/* Raises if the value at `index` is an input with indices still missing. */
void input_refuse_unindexed(lua_State *L, int index, const char *what);
int input_num_axes(lua_State *L, int index);
int input_axis_size(lua_State *L, int index, int i); /* of axis i of the input, from 1; 0: it is no size of the spec */
/* The name of the input without axes behind the traced number at `index`; NULL: it is none. */
const char *input_number_name(lua_State *L, int index);

/* The integer variables that are visible to every hook. */
typedef struct length_row {
  const char *name;
  ir_var var;
} length_row;
#define INPUT_LENGTHS 4
extern const length_row input_lengths[INPUT_LENGTHS];

#endif
