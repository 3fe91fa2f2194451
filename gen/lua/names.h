/* names.h: the environment that the file and the prelude run in (globals.c opens it), and which names it has. */
#ifndef LUATTN_GEN_LUA_NAMES_H
#define LUATTN_GEN_LUA_NAMES_H

#include "gen/lua/state.h"

void names_open(lua_State *L); /* pops the environment, and below it the table of globals, and keeps both */
void names_push(lua_State *L); /* leaves the environment on the stack */
void names_lock(lua_State *L); /* locks the names defined so far: a spec cannot redefine them */
bool names_predefined(lua_State *L, const char *name);
bool names_defined(lua_State *L, const char *name);

/* The integer variables that are visible to every hook of a form. */
typedef struct length_row {
  const char *name;
  ir_var var;
  unsigned forms; /* a bit for each luattn_form */
} length_row;
#define NAMES_LENGTHS 5
extern const length_row names_lengths[NAMES_LENGTHS];
static inline bool names_is_length(int i, luattn_form form) { return (names_lengths[i].forms >> form & 1) != 0; }

#endif
