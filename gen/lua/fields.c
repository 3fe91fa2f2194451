#include "gen/lua/fields.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "gen/lua/scan.h"

/* The row of the name at the top of the stack. A zero byte would hide the rest of a name. */
static const field_row *find(lua_State *L, const field_row *rows, int n) {
  const char *key = lua_tostring(L, -1);
  for (int i = 0; i < n && strlen(key) == lua_rawlen(L, -1) && *key != '\0'; i++)
    if (strcmp(rows[i].name, key) == 0) return &rows[i];
  return NULL;
}

void fields_name(lua_State *L, const char *name) {
  front_state *s = front_of(L);
  const int line = name != NULL ? scan_find_field(s->source, s->source_size, name) : 0;
  if (name == NULL || line > 0) s->field_line = line;
}

static void refuse_name(lua_State *L, const char *owner, const field_row *rows, int n) __attribute__((noreturn));
static void refuse_name(lua_State *L, const char *owner, const field_row *rows, int n) {
  fields_name(L, lua_tostring(L, -1));
  const char *shown = front_shown(L, -1), *list = "";
  front_suggestion s;
  front_suggest_start(&s, lua_tostring(L, -1));
  for (int i = 0; i < n; i++)
    if ((rows[i].types & FIELD_HIDDEN) == 0) front_suggest_try(&s, rows[i].name);
  if (s.best != NULL) front_raise(L, "%s: unknown field '%s'%s", owner, shown, front_suggest_end(L, &s));
  for (int i = 0; i < n; i++)
    if ((rows[i].types & FIELD_HIDDEN) == 0)
      list = front_format(L, "%s%s%s", list, *list != '\0' ? ", " : "", rows[i].name);
  front_raise(
      L, *list != '\0' ? "%s: unknown field '%s'; its fields are %s" : "%s: unknown field '%s'; it has no fields%s",
      owner, shown, list);
}

static unsigned type_of(lua_State *L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TBOOLEAN:
      return FIELD_BOOLEAN;
    case LUA_TSTRING:
      return FIELD_STRING;
    case LUA_TTABLE:
      return FIELD_TABLE;
    case LUA_TNUMBER:
      return lua_isinteger(L, index) ? FIELD_INTEGER : 0;
    default:
      return 0;
  }
}

/* Names first, then types in the order of the rows, so that a table with several faults gives one message. */
void fields_check(lua_State *L, int table, const char *owner, const field_row *rows, int n) {
  table = lua_absindex(L, table);
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      front_raise(L, "%s: field [%s] has no name; write name = value", owner, fields_shown(L, -1));
    if (find(L, rows, n) == NULL) refuse_name(L, owner, rows, n);
  }
  for (int i = 0; i < n; i++) {
    lua_pushstring(L, rows[i].name);
    const bool given = lua_rawget(L, table) != LUA_TNIL, any = (rows[i].types & FIELD_ANY) == FIELD_ANY;
    if (given && !any && (rows[i].types & type_of(L, -1)) == 0) {
      fields_name(L, rows[i].name);
      front_raise(L, "%s: %s is %s; it must be %s", owner, rows[i].name, fields_shown(L, -1), rows[i].valid);
    }
    lua_pop(L, 1);
  }
}

int fields_check_list(lua_State *L, int table, const char *owner, const char *example) {
  table = lua_absindex(L, table);
  const lua_Unsigned n = lua_rawlen(L, table);
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    lua_pop(L, 1);
    if (lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 1 && (lua_Unsigned)lua_tointeger(L, -1) <= n) continue;
    front_raise(L, "%s has the entry [%s]; %s", owner,
                lua_type(L, -1) == LUA_TSTRING ? front_shown(L, -1) : fields_shown(L, -1), example);
  }
  return n > INT_MAX ? INT_MAX : (int)n;
}

const char *fields_shown(lua_State *L, int index) {
  if (lua_type(L, index) == LUA_TSTRING) return front_format(L, "'%s'", front_shown(L, index));
  if (lua_type(L, index) == LUA_TBOOLEAN) return lua_toboolean(L, index) ? "true" : "false";
  if (lua_type(L, index) != LUA_TNUMBER) return front_kind(L, index);
  if (lua_isinteger(L, index)) return front_format(L, "%lld", (long long)lua_tointeger(L, index));
  const double x = lua_tonumber(L, index);
  return x != x ? "nan" : front_format(L, "%.14g", x); /* printf may show its sign, which says nothing */
}

bool fields_is_identifier(const char *name, size_t size) {
  if (strlen(name) != size) return false;
  if (!isalpha((unsigned char)*name) && *name != '_') return false;
  while (*name != '\0' && (isalnum((unsigned char)*name) || *name == '_')) name++;
  return *name == '\0';
}

int fields_names(lua_State *L, int table, const char *owner, const char **names, int most) {
  int n = 0;
  table = lua_absindex(L, table);
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    lua_pop(L, 1);
    const char *key = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (key == NULL) front_raise(L, "%s: entry [%s] has no name; write name = ..", owner, fields_shown(L, -1));
    if (!fields_is_identifier(key, lua_rawlen(L, -1))) {
      front_raise(L, "%s: '%s' is not a name; use letters, digits and _", owner, front_shown(L, -1));
    }
    if (scan_is_keyword(key) || strlen(key) >= LUATTN_NAME_SIZE) fields_name(L, key);
    if (scan_is_keyword(key))
      front_raise(L, "%s: '%s' is a keyword of Lua, which no hook can read; choose another name", owner, key);
    if (strlen(key) >= LUATTN_NAME_SIZE) {
      front_raise(L, "%s: the name '%s' has %zu characters; the limit is %d", owner, front_shown(L, -1), strlen(key),
                  LUATTN_NAME_SIZE - 1);
    }
    if (n == most) front_raise(L, "%s: more than %d entries; the limit is %d", owner, most, most);
    int at = n++;
    for (; at > 0 && strcmp(names[at - 1], key) > 0; at--) names[at] = names[at - 1];
    names[at] = front_format(L, "%s", key);
  }
  return n;
}
