#include "gen/lua/grid_positions.h"

#include <string.h>

#include "gen/lua/grid_axes.h"
#include "gen/lua/numbers.h"
#include "gen/lua/refuse.h"
#include "gen/lua/value.h"

static double number_along(const front_numbers *n, ir_var v, int axis) {
  /* as names_lengths */
  return v == VAR_Q_LEN    ? (double)n->length[0 + NAMES_LENGTHS * axis]
         : v == VAR_KV_LEN ? (double)n->length[1 + NAMES_LENGTHS * axis]
                           : n->variable[(int)v + VAR_COUNT * axis];
}

void places_push(lua_State *L, ir_var v, const char *name) {
  const front_state *s = front_of(L);
  if (s->spec->grid_axes > 0) {
    place *p = lua_newuserdatauv(L, sizeof *p, 0);
    *p = (place){v, name, s->generation};
    luaL_setmetatable(L, PLACE_METATABLE);
  } else if (s->mode == FRONT_TRACING) {
    value_push_leaf(L, ir_variable(s->g, v, 0));
  } else {
    lua_pushinteger(L, (lua_Integer)number_along(s->numbers, v, 0));
  }
}

static int meta_index(lua_State *L) {
  const place *p = luaL_checkudata(L, 1, PLACE_METATABLE);
  const front_state *s = front_of(L);
  if (lua_type(L, 2) != LUA_TSTRING)
    front_raise(L, "%s is indexed by %s; its axes have names: write %s", p->name, front_kind(L, 2),
                grid_all_written(L, p->name));
  if (p->generation != s->generation)
    front_raise(L,
                "%s was kept from an earlier call; a hook is called many times and must not store values outside "
                "itself",
                p->name);
  const int axis = grid_axis_named(L, p->name, front_shown(L, 2));
  if (s->mode == FRONT_TRACING)
    value_push_leaf(L, ir_variable(s->g, p->v, (uint32_t)axis));
  else
    lua_pushinteger(L, (lua_Integer)number_along(s->numbers, p->v, axis));
  return 1;
}

static int meta_operator(lua_State *L) {
  const char *sign = lua_tostring(L, lua_upvalueindex(1));
  grid_refuse_place(L, 1, sign);
  grid_refuse_place(L, 2, sign);
  front_raise(L, "%s is not possible on a place", sign);
}

static int meta_assign(lua_State *L) {
  const place *p = luaL_checkudata(L, 1, PLACE_METATABLE);
  front_raise(L, "%s: one of its axes is assigned; a hook reads positions and returns its result", p->name);
}

void places_open(lua_State *L) {
  luaL_newmetatable(L, PLACE_METATABLE);
  lua_pushcfunction(L, meta_index);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, meta_assign);
  lua_setfield(L, -2, "__newindex");
  refuse_operators(L, meta_operator);
  lua_pushliteral(L, "call");
  lua_pushcclosure(L, meta_operator, 1);
  lua_setfield(L, -2, "__call");
  lua_pop(L, 1);
}

void places_flatten(lua_State *L, int index) {
  const front_state *s = front_of(L);
  const place *p = luaL_testudata(L, index, PLACE_METATABLE);
  if (p == NULL || (p->v != VAR_Q && p->v != VAR_KV)) return;
  const ir_var length = p->v == VAR_Q ? VAR_Q_LEN : VAR_KV_LEN;
  if (s->mode == FRONT_TRACING) {
    value_push(L, (operand){.ref = ir_linear_index(s->g, p->v, length), .depth = 2 * IR_MAX_AXES});
  } else {
    lua_Integer number = 0;
    for (int a = 0; a < s->spec->grid_axes; a++)
      number =
          number * (lua_Integer)number_along(s->numbers, length, a) + (lua_Integer)number_along(s->numbers, p->v, a);
    lua_pushinteger(L, number);
  }
  lua_replace(L, index);
}
