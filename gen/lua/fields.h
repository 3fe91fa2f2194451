/* fields.h: checks the tables that a spec passes to the library: the names of their fields, and the types. */
#ifndef LUATTN_GEN_LUA_FIELDS_H
#define LUATTN_GEN_LUA_FIELDS_H

#include "gen/lua/state.h"

enum { FIELD_BOOLEAN = 1, FIELD_STRING = 2, FIELD_TABLE = 4, FIELD_INTEGER = 8, FIELD_ANY = 255, FIELD_HIDDEN = 256 };

/* A field that a table may have. types: a bit each, of FIELD_TABLE and so on; FIELD_HIDDEN: messages do not name it.
 * valid: for a message, as "a table such as { cap = 50.0 }"; FIELD_ANY needs none. */
typedef struct field_row {
  const char *name;
  unsigned types;
  const char *valid;
} field_row;

/* Errors from now on, until NULL, are of the line of this field, if the file has one of that name; else of the field before. */
void fields_name(lua_State *L, const char *name);

/* Raises unless each key of the table at `table` is the name of a row, and its value of a type of that row. `owner` is
 * for messages. */
void fields_check(lua_State *L, int table, const char *owner, const field_row *rows, int n);

/* Raises unless the table at `table` has the keys 1, 2, .. alone, and returns how many. `example` says how to write
 * it. */
int fields_check_list(lua_State *L, int table, const char *owner, const char *example);

/* Whether the string is a name in Lua: of letters, digits and _. */
bool fields_is_identifier(const char *name, size_t size);
/* The sorted string keys of the table at `table`, in the arena; raises on other keys and past `most`. */
int fields_names(lua_State *L, int table, const char *owner, const char **names, int most);

/* For a message: 2.5, 'text', true, or as front_kind. */
const char *fields_shown(lua_State *L, int index);

#endif
