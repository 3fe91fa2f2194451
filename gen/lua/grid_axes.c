#include "gen/lua/grid_axes.h"

#include <string.h>

#include "gen/lua/fields.h"

/* "t, y, x" */
static const char *axes_text(lua_State *L) {
  const traced_spec *t = front_of(L)->spec;
  const char *text = "";
  for (int a = 0; a < t->grid_axes; a++) text = front_format(L, "%s%s%s", text, a > 0 ? ", " : "", t->grid_axis[a]);
  return text;
}

const char *grid_all_written(lua_State *L, const char *name) {
  const traced_spec *t = front_of(L)->spec;
  const char *text = "";
  for (int a = 0; a < t->grid_axes; a++)
    text = front_format(L, "%s%s%s.%s", text,
                        a == 0                  ? ""
                        : a == t->grid_axes - 1 ? " and "
                                                : ", ",
                        name, t->grid_axis[a]);
  return text;
}

int grid_axis_named(lua_State *L, const char *is, const char *axis) {
  const traced_spec *t = front_of(L)->spec;
  front_suggestion s;
  front_suggest_start(&s, axis);
  for (int a = 0; a < t->grid_axes; a++) {
    if (strcmp(axis, t->grid_axis[a]) == 0) return a;
    front_suggest_try(&s, t->grid_axis[a]);
  }
  front_raise(L, "%s has no axis '%s'; the grid has %s%s", is, axis, axes_text(L), front_suggest_end(L, &s));
}

void grid_refuse_place(lua_State *L, int index, const char *what) {
  const place *p = luaL_testudata(L, index, PLACE_METATABLE);
  if (p == NULL) return;
  front_raise(L, "%s: %s is a place on the grid (%s), and no number; write %s", what, p->name, axes_text(L),
              grid_all_written(L, p->name));
}

static const char example[] = "name its axes, the last one innermost, as in grid = {\"y\", \"x\"}";

void grid_declare(lua_State *L, int table) {
  traced_spec *t = front_of(L)->spec;
  lua_pushliteral(L, "grid");
  if (lua_rawget(L, table) != LUA_TNIL) {
    fields_name(L, "grid");
    if (!lua_istable(L, -1)) front_raise(L, "attention: grid is %s; %s", fields_shown(L, -1), example);
    const int n = fields_check_list(L, -1, "attention: grid", example);
    if (n < 1 || n > IR_MAX_AXES)
      front_raise(L, "attention: grid has %d axes; 1 to %d are possible: %s", n, IR_MAX_AXES, example);
    for (int a = 0; a < n; a++) {
      lua_rawgeti(L, -1, a + 1);
      if (lua_type(L, -1) != LUA_TSTRING || !fields_is_identifier(lua_tostring(L, -1), lua_rawlen(L, -1)))
        front_raise(L, "attention: grid has the axis %s, which is no name; use letters, digits and _",
                    fields_shown(L, -1));
      t->grid_axis[a] = front_format(L, "%s", lua_tostring(L, -1));
      for (int i = 0; i < a; i++)
        if (strcmp(t->grid_axis[i], t->grid_axis[a]) == 0)
          front_raise(L, "attention: grid has two axes '%s'; give each its own name", t->grid_axis[a]);
      lua_pop(L, 1);
    }
    t->grid_axes = n;
    if (t->g != NULL) ir_set_axes(t->g, n);
    fields_name(L, NULL);
  }
  lua_pop(L, 1);
}

int32_t grid_axis_of(lua_State *L, const char *owner, const char *axis) {
  const traced_spec *t = front_of(L)->spec;
  const char *dot = strchr(axis, '.');
  const bool of_q = strncmp(axis, "q", 1) == 0, of_kv = strncmp(axis, "kv", 2) == 0;
  const size_t side = of_kv ? 2 : 1;
  if (!of_q && !of_kv) return 0;
  if (axis[side] == '\0' && t->grid_axes > 0)
    front_raise(L, "%s: axis '%s' is that of positions along a line, and the spec has the grid (%s); write %s", owner,
                axis, axes_text(L), grid_all_written(L, axis));
  if (dot != axis + side) return 0;
  if (t->grid_axes == 0)
    front_raise(L, "%s: axis '%s' is that of a grid, and the spec has none; write '%s', or declare grid = {\"%s\"}",
                owner, axis, of_kv ? "kv" : "q", dot + 1);
  const int a = grid_axis_named(L, owner, dot + 1);
  if (t->grid_axes == 1) return of_kv ? LUATTN_AXIS_KV : LUATTN_AXIS_Q;
  return (of_kv ? LUATTN_AXIS_KV_GRID : LUATTN_AXIS_Q_GRID) - a;
}

const char *grid_axis_text(lua_State *L, const char *side, int axis) {
  return front_format(L, "%s.%s", side, front_of(L)->spec->grid_axis[axis]);
}
