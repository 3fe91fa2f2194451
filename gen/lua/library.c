#include "gen/lua/library.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "gen/lua/declare.h"
#include "gen/lua/fields.h"
#include "gen/lua/gather.h"
#include "gen/lua/hooks.h"
#include "gen/lua/makers.h"
#include "gen/lua/replay.h"
#include "gen/lua/scan.h"

enum { MOST_FIELDS = 8 };

static int num_axes(lua_State *L) {
  lua_pushinteger(L, gather_num_axes(L, 1));
  return 1;
}

/* axis_size(input, i): of its i-th axis, from 1; 0: of any size, or there are fewer */
static int axis_size(lua_State *L) {
  lua_pushinteger(L, gather_axis_size(L, 1, (int)lua_tointeger(L, 2)));
  return 1;
}

/* shown(x): for a message */
static int shown(lua_State *L) {
  lua_pushstring(L, fields_shown(L, 1));
  return 1;
}

static unsigned types_named(const char *name) {
  return strcmp(name, "table") == 0     ? FIELD_TABLE
         : strcmp(name, "integer") == 0 ? FIELD_INTEGER
         : strcmp(name, "string") == 0  ? FIELD_STRING
                                        : FIELD_BOOLEAN;
}

/* check_fields(owner, t, { {name, type, what it must be}, .. }) */
static int check_fields(lua_State *L) {
  field_row rows[MOST_FIELDS];
  const int n = (int)lua_rawlen(L, 3);
  if (n > MOST_FIELDS) return luaL_error(L, "check_fields: %d fields, and %d have room", n, MOST_FIELDS);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1);
    for (int k = 1; k <= 3; k++) lua_rawgeti(L, 4, k);
    rows[i] = (field_row){front_format(L, "%s", lua_tostring(L, 5)), types_named(lua_tostring(L, 6)),
                          front_format(L, "%s", lua_tostring(L, 7))};
    lua_settop(L, 3);
  }
  fields_check(L, 2, lua_tostring(L, 1), rows, n);
  return 0;
}

/* check_entries(owner, list, how to write it) returns how many it has */
static int check_entries(lua_State *L) {
  lua_pushinteger(L, fields_check_list(L, 2, lua_tostring(L, 1), lua_tostring(L, 3)));
  return 1;
}

/* check_function(what, f, hook): f is called as a mask, as a mod or with (b, h). */
static int check_function(lua_State *L) {
  const char *what = lua_tostring(L, 1), *hook = lua_tostring(L, 3), *call = makers_call(L, 2);
  if (call != NULL)
    front_raise(L, "%s is a function of the standard library that makes one; call it, as in %s", what, call);
  if (!lua_isfunction(L, 2)) front_raise(L, "%s is %s; give a function", what, fields_shown(L, 2));
  lua_settop(L, 2);
  if (strcmp(hook, "mask") == 0) hook_check(L, HOOK_BLOCK_MASK, what);
  if (strcmp(hook, "head") == 0) hook_check(L, HOOK_INIT, what);
  if (strcmp(hook, "write") == 0) hook_check(L, HOOK_LINEAR_WRITE, what);
  return 0;
}

/* Raises at the function's own line: it has returned by now. */
static void raise_of(lua_State *L, int function, const char *message) __attribute__((noreturn));
static void raise_of(lua_State *L, int function, const char *message) {
  front_raise_at(L, hook_line_of(L, function), "%s", message);
}

/* check_result(what, f, "boolean" or "number", results of f ..) returns the only one */
static int check_result(lua_State *L) {
  const char *what = lua_tostring(L, 1);
  const bool wants_boolean = strcmp(lua_tostring(L, 3), "boolean") == 0;
  const int n = lua_gettop(L) - 3;
  if (n > 1) raise_of(L, 2, front_format(L, "%s returned %d values; return one", what, n));
  lua_settop(L, 4);
  if (wants_boolean ? lua_isboolean(L, 4) : lua_type(L, 4) == LUA_TNUMBER || value_is_traced(L, 4)) return 1;
  gather_refuse_unindexed(L, 4, what);
  const char *call = makers_call(L, 4);
  const char *remedy = lua_isfunction(L, 4) ? front_format(L, "; a function that makes one is called, as in %s",
                                                           call != NULL    ? call
                                                           : wants_boolean ? "causal()"
                                                                           : "softcap(50)")
                       : !wants_boolean && lua_isboolean(L, 4) ? " such as where(condition, a, b)"
                                                               : "";
  raise_of(L, 2,
           front_format(L, "%s returned %s; return %s%s", what, front_kind(L, 4),
                        !wants_boolean    ? "a number"
                        : *remedy != '\0' ? "a boolean"
                                          : "a boolean such as kv_idx <= q_idx",
                        remedy));
}

/* The length up to which this position stays below n; -1: another expression, of which that is not known. */
static int64_t longest_below(lua_State *L, int index, int64_t n) {
  const front_state *s = front_of(L);
  const ir_ref x = value_get(L, index, "a position").ref;
  double c;
  if (replay_implies_less(L, x, ir_int(s->g, n))) return INT64_MAX;
  const ir_node *node = ir_get(s->g, x);
  if (node->op == IR_VAR) return n;
  const bool adds = node->op == IR_ADD, shifts = adds || node->op == IR_SUB;
  if (!shifts || ir_get(s->g, node->arg[0])->op != IR_VAR || !ir_is_const(s->g, node->arg[1], &c)) return -1;
  return n - (adds ? (int64_t)c : -(int64_t)c);
}

/* Raises if a position is another less a constant, which may be below 0. */
static void refuse_negative(lua_State *L, int index, const char *what) {
  const front_state *s = front_of(L);
  const ir_ref x = value_get(L, index, "a position").ref;
  const ir_node n = *ir_get(s->g, x);
  double c;
  if ((n.op != IR_SUB && n.op != IR_ADD) || !ir_is_const(s->g, n.arg[1], &c)) return;
  const int64_t less = n.op == IR_SUB ? (int64_t)c : -(int64_t)c;
  if (less <= 0 || ir_get(s->g, n.arg[0])->op != IR_VAR) return;
  const ir_ref below = ir_int(s->g, less - 1), minus_one = ir_int(s->g, -1);
  if (replay_implies_less(L, below, n.arg[0]) || replay_implies_less(L, minus_one, x)) return;
  const char *name = ir_var_name(ir_var_of(ir_get(s->g, n.arg[0])));
  front_raise(L,
              "%s: is asked for the position %s - %lld, which is below 0 where %s is below %lld; ask it under `if %s "
              ">= %lld`, or move the grid "
              "by the padding it has",
              what, name, (long long)less, name, (long long)less, name, (long long)less);
}

/* covers(what, q_idx, kv_idx, n): limits lengths, if the positions are not known to be below n. */
static int covers(lua_State *L) {
  front_state *s = front_of(L);
  const int64_t n = lua_tointeger(L, 4);
  int64_t longest = 0;
  if (s->spec->grid_axes > 1)
    front_raise(L,
                "%s: has a number of tokens, and the extents of the spec's grid come with each call; leave it out, "
                "and write positions along an axis",
                lua_tostring(L, 1));
  for (int i = 2; i <= 3; i++) {
    if (!value_is_traced(L, i)) {
      if (lua_tointeger(L, i) >= n || lua_tointeger(L, i) < 0)
        front_raise(L, "%s: position %lld is outside of its %lld tokens", lua_tostring(L, 1),
                    (long long)lua_tointeger(L, i), (long long)n);
      continue;
    }
    refuse_negative(L, i, lua_tostring(L, 1));
    const int64_t side = longest_below(L, i, n);
    if (side < 0 || side == INT64_MAX) return 0;
    if (side > longest) longest = side;
  }
  if (longest > 0 && (s->spec->most_len == 0 || longest < s->spec->most_len)) s->spec->most_len = longest;
  return 0;
}

/* grid_names() returns the names of the grid's axes; nil: the spec has no grid */
static int grid_names(lua_State *L) {
  const traced_spec *t = front_of(L)->spec;
  if (t->grid_axes == 0) return lua_pushnil(L), 1;
  lua_createtable(L, t->grid_axes, 0);
  for (int a = 0; a < t->grid_axes; a++) {
    lua_pushstring(L, t->grid_axis[a]);
    lua_rawseti(L, -2, a + 1);
  }
  return 1;
}

/* needs_extent(what, axis, least): calls whose keys have fewer places along axis, from 1, are refused */
static int needs_extent(lua_State *L) {
  const front_state *s = front_of(L);
  traced_spec *t = s->spec;
  const int axis = (int)lua_tointeger(L, 2) - 1, least = (int)lua_tointeger(L, 3);
  if (s->mode != FRONT_TRACING || least <= t->least_extent[axis]) return 0;
  t->least_extent[axis] = least;
  t->least_extent_of[axis] = front_format(L, "%s", lua_tostring(L, 1));
  return 0;
}

static double limit_at(lua_State *L, int index, const char *field, double otherwise) {
  lua_getfield(L, index, field);
  const double x = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : otherwise;
  lua_pop(L, 1);
  return x;
}

static bool flag_at(lua_State *L, int index, const char *field) {
  lua_getfield(L, index, field);
  const bool is = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return is;
}

/* Both of two ranges; the words are those of the narrower. */
static void narrow(scalar_range *to, const scalar_range *more) {
  if (to->by[0] == '\0') {
    *to = *more;
    return;
  }
  const bool higher = more->least > to->least || (more->least == to->least && more->above);
  if (higher || more->most < to->most || more->whole > to->whole) snprintf(to->by, sizeof to->by, "%s", more->by);
  if (higher) to->least = more->least, to->above = more->above;
  if (more->most < to->most) to->most = more->most;
  to->whole |= more->whole;
}

/* takes(what, x, {least = .., most = .., whole = .., above = ..}): notes what the scalar x, if it is one, is taken for;
 * true: x is a plain number. */
static int takes(lua_State *L) {
  front_state *s = front_of(L);
  if (s->mode != FRONT_TRACING) return 0;
  if (!value_is_traced(L, 2)) return lua_pushboolean(L, 1), 1;
  const ir_node *n = ir_get(s->g, value_get(L, 2, lua_tostring(L, 1)).ref);
  if (n->op != IR_VAR || ir_var_of(n) != VAR_SCALAR) return 0;
  traced_spec *t = s->spec;
  const uint32_t i = ir_index_of(n);
  scalar_range r = {.least = limit_at(L, 3, "least", -DBL_MAX), .most = limit_at(L, 3, "most", DBL_MAX)};
  r.whole = flag_at(L, 3, "whole"), r.above = flag_at(L, 3, "above");
  snprintf(r.by, sizeof r.by, "%s", lua_tostring(L, 1));
  t->num_ranges += t->scalar_range[i].by[0] == '\0';
  narrow(&t->scalar_range[i], &r);
  if (scalar_range_has(&t->scalar_range[i], t->scalar_default[i])) return 0;
  char words[128];
  scalar_range_words(&t->scalar_range[i], words, sizeof words);
  front_raise(L, "%s is the scalar '%s', whose default is %s; give %s", r.by, t->scalar_name[i],
              front_format(L, "%.14g", t->scalar_default[i]), words);
}

/* An input that is read as a flag is a common one: it says how to declare it. */
static void refuse_number(lua_State *L) __attribute__((noreturn));
static void refuse_number(lua_State *L) {
  const front_state *s = front_of(L);
  const ir_node *n = ir_get(s->g, value_get(L, 1, "a condition").ref);
  if (scan_negates_side(s->source, s->source_size, front_line(L)))
    front_raise(L, "a traced number is negated: `not a < b` is (not a) < b; write `not (a < b)`");
  if (n->op != IR_LOAD)
    front_raise(L,
                "a traced number stands where a condition is needed, and in Lua each number is true; compare it, as in "
                "x > 0 or ne(x, 0)");
  const char *name = s->spec->input[n->imm.integer].name;
  front_raise(L,
              "input '%s': is read, but nothing is made of its numbers, and as a condition each is true in Lua; write "
              "ne(%s[..], 0), "
              "declare it with dtype = \"bool\", or leave the read out",
              name, name);
}

int library_truth(lua_State *L) {
  const bool is_call = lua_toboolean(L, 2);
  const int decides = (int)lua_tointeger(L, 3);
  lua_settop(L, 1);
  if (value_is_traced(L, 1)) refuse_number(L);
  if (lua_type(L, 1) == LUA_TNUMBER && (decides == 2 || (decides == 1 && lua_tonumber(L, 1) == 0)))
    front_raise(L,
                "the number %s stands where a condition is needed, and in Lua each number is true, 0 too; write true "
                "or false, compare it, "
                "as in x > 0, or ask whether it is given by x ~= nil",
                fields_shown(L, 1));
  gather_refuse_unindexed(L, 1, "a condition");
  if (!lua_isfunction(L, 1)) return 1;
  const char *call = makers_call(L, 1);
  if (call != NULL)
    front_raise(
        L, "a function stands where a condition is needed, and in Lua each function is true; it is called, as in %s",
        call);
  if (!is_call && front_of(L)->mode == FRONT_LOADING) return 1; /* whether one is given */
  front_raise(L,
              "a function stands where a condition is needed, and in Lua each function is true; join masks by "
              "mask_and(..), mask_or(..) and "
              "mask_not(..), and call one in a hook, as in mask(b, h, q_idx, kv_idx)");
}

static int raise_called(lua_State *L) {
  const char *name = lua_tostring(L, lua_upvalueindex(1));
  front_raise(L, "%s is an online function itself, and is not called; write online_func = %s", name, name);
}

/* uncalled(t, name): a call of the table t raises */
static int uncalled(lua_State *L) {
  lua_settop(L, 2);
  lua_createtable(L, 0, 1);
  lua_insert(L, 2);
  lua_pushcclosure(L, raise_called, 1);
  lua_setfield(L, 2, "__call");
  lua_setmetatable(L, 1);
  return 0;
}

/* field(name): errors from now on are of that field's line; nil: no longer */
static int field(lua_State *L) {
  fields_name(L, lua_tostring(L, 1));
  return 0;
}

/* other_names(f): f(t) is t, or of one with another library's names the same with luattn's */
static int other_names(lua_State *L) {
  lua_settop(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, DECLARE_OTHER_NAMES);
  return 0;
}

static int look_up(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 2);
  lua_call(L, 1, 1);
  return 1;
}

/* looked_up(f): a table of which every field that is read is f(name) */
static int looked_up(lua_State *L) {
  lua_settop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushvalue(L, 1);
  lua_pushcclosure(L, look_up, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  return 1;
}

int library_push(lua_State *L) {
  static const lua_CFunction functions[] = {num_axes,       axis_size,    shown,        check_fields, check_entries,
                                            check_function, check_result, makers_makes, makers_made,  covers,
                                            takes,          uncalled,     grid_names,   needs_extent, looked_up,
                                            field,          other_names};
  const int n = sizeof functions / sizeof *functions;
  luaL_checkstack(L, n, NULL);
  for (int i = 0; i < n; i++) lua_pushcfunction(L, functions[i]);
  return n;
}
