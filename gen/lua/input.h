/* input.h: the names that exist only inside hooks: extra inputs and their gathers, scalars and lengths. */
#ifndef LUATTN_GEN_LUA_INPUT_H
#define LUATTN_GEN_LUA_INPUT_H

#include "gen/lua/state.h"

void input_open(lua_State *L); /* registers the metatable */
/* Pushes the scalar, input or length of that name: traced, or as a number. False, pushing nothing: there is
 * none. */
bool input_push_name(lua_State *L, const char *name);
void input_suggest(lua_State *L, front_suggestion *s);

#endif
