#include "gen/lua/refuse.h"

#include <string.h>

#include "gen/lua/names.h"
#include "gen/lua/row.h"
#include "gen/lua/scan.h"
#include "gen/lua/value.h"

typedef struct refused_row {
  const char *event, *message;
} refused_row;

static const refused_row on_numbers[] = {
    {"__concat",
     ".. is not possible on a traced number, whose value is not known yet; to choose by it, read an input at "
     "it, as in t[h], "
     "or use where()"},
    {"__len", "# is not possible on a traced number"},
    {"__call", "a traced number is called like a function; multiplication is written a * b"},
    {"__newindex", "a field of a traced number is assigned; numbers have no fields"},
};

static const char number_needed[] =
    " on a condition: a boolean stands where a number is needed; write where(condition, 1, 0), or join "
    "conditions with `and`, `or`";
static const char chained[] = " on a condition: comparisons do not chain; write 0 <= x and x < 5 for 0 <= x < 5";
static const char negated[] = " on a condition: `not a < b` is (not a) < b; write `not (a < b)`";

static const refused_row on_booleans[] = {
    {"__band", "& between conditions; write `and`"},
    {"__bor", "| between conditions; write `or`"},
    {"__bxor", "~ between conditions; write (a and not c) or (c and not a)"},
    {"__bnot", "~ on a condition; write `not (..)`"},
    {"__add", "+"},
    {"__sub", "-"},
    {"__mul", "*"},
    {"__div", "/"},
    {"__mod", "%"},
    {"__idiv", "//"},
    {"__pow", "^"},
    {"__unm", "-"},
    {"__lt", "<"},
    {"__le", "<="},
};

static int raise_number(lua_State *L) {
  front_raise(L, "%s", on_numbers[lua_tointeger(L, lua_upvalueindex(1))].message);
}

static int raise_boolean(lua_State *L) {
  const refused_row *row = &on_booleans[lua_tointeger(L, lua_upvalueindex(1))];
  const bool compares = strcmp(row->event, "__lt") == 0 || strcmp(row->event, "__le") == 0;
  const bool whole = row->event[2] == 'b'; /* __band and the like: the message is complete */
  const front_state *s = front_of(L);
  const bool negates = compares && scan_negates_side(s->source, s->source_size, front_line(L));
  front_raise(L, "%s%s", row->message, whole ? "" : negates ? negated : compares ? chained : number_needed);
}

/* x[d + 1] is another element of the row in an input mod. score:tanh() and score.tanh() are Python's. */
static int read_or_raise(lua_State *L) {
  if (row_push_read(L)) return 1;
  if (lua_type(L, 2) != LUA_TSTRING) {
    const char *number = value_input_name(L, 1);
    if (number != NULL)
      front_raise(L, "input '%s' has no axes, so it is one number and takes no index; write %s", number, number);
    front_raise(L, "a traced number is indexed; only inputs and tables have elements%s",
                row_in_mod(L) ? ", and x its row's at a channel that is an integer" : "");
  }
  const char *name = lua_tostring(L, 2);
  if (names_defined(L, name))
    front_raise(L, "a traced number has no '%s'; functions stand in front: %s(x)", name, name);
  front_raise(L, "a traced number has no '%s'; functions stand in front, as in tanh(x)", front_shown(L, 2));
}

static void add_rows(lua_State *L, const refused_row *row, size_t count, lua_CFunction raise) {
  for (size_t i = 0; i < count; i++) {
    lua_pushinteger(L, (lua_Integer)i);
    lua_pushcclosure(L, raise, 1);
    lua_setfield(L, -2, row[i].event);
  }
}

static void refuse_on_numbers(lua_State *L) {
  luaL_getmetatable(L, VALUE_METATABLE);
  add_rows(L, on_numbers, sizeof on_numbers / sizeof *on_numbers, raise_number);
  lua_pushcfunction(L, read_or_raise);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

/* Conditions of a hook are plain booleans, on which Python would use a & b, a | b and ~a. */
static void refuse_on_booleans(lua_State *L) {
  lua_pushboolean(L, 0); /* all booleans share one metatable */
  lua_newtable(L);
  add_rows(L, on_booleans, sizeof on_booleans / sizeof *on_booleans, raise_boolean);
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

void refuse_open(lua_State *L) {
  refuse_on_numbers(L);
  refuse_on_booleans(L);
}

void refuse_operators(lua_State *L, lua_CFunction refuse) {
  static const char *const operators[][2] = {
      {"__add", "+"},         {"__sub", "-"},
      {"__mul", "*"},         {"__div", "/"},
      {"__mod", "%"},         {"__idiv", "//"},
      {"__pow", "^"},         {"__unm", "-"},
      {"__lt", "comparison"}, {"__le", "comparison"},
      {"__eq", "=="},         {"__concat", ".."},
      {"__len", "#"},         {"__tostring", "tostring"},
      {"__band", "&"},        {"__bor", "|"},
      {"__bxor", "~"},        {"__bnot", "~"},
      {"__shl", "<<"},        {"__shr", ">>"},
  };
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
    lua_pushstring(L, operators[i][1]);
    lua_pushcclosure(L, refuse, 1);
    lua_setfield(L, -2, operators[i][0]);
  }
}
