#include "gen/lua/gather.h"

#include "gen/lua/form.h"
#include "gen/lua/grid_axes.h"

const luattn_input_info *gather_info(lua_State *L, const gather *t) { return &front_of(L)->spec->input[t->input]; }

int gather_num_axes(lua_State *L, int index) {
  return (int)gather_info(L, luaL_checkudata(L, index, GATHER_METATABLE))->num_axes;
}

int gather_axis_size(lua_State *L, int index, int i) {
  const luattn_input_info *info = gather_info(L, luaL_checkudata(L, index, GATHER_METATABLE));
  return i >= 1 && i <= (int)info->num_axes && info->axis[i - 1] > 0 ? (int)info->axis[i - 1] : 0;
}

const char *gather_axes(lua_State *L, const luattn_input_info *info) {
  const char *text = "";
  for (uint32_t i = 0; i < info->num_axes; i++) {
    const char *comma = i > 0 ? ", " : "";
    const int along = grid_axis_number(info->axis[i]);
    const char *is = along >= 0           ? grid_axis_text(L, info->axis[i] <= LUATTN_AXIS_KV_GRID ? "kv" : "q", along)
                     : info->axis[i] == 0 ? "free"
                     : info->axis[i] < 0  ? form_axis_of(L, info->axis[i])->name
                                          : front_format(L, "%d", (int)info->axis[i]);
    text = front_format(L, "%s%s%s", text, comma, is);
  }
  return text;
}

bool gather_heads_are_kv(lua_State *L) {
  const hook_row *hook = hook_running(L);
  return hook != NULL && (hook->of & HOOK_HEADS_KV) != 0;
}

const char *gather_indexed(lua_State *L, const luattn_input_info *info) {
  const bool of_keys = gather_heads_are_kv(L);
  const char *const sides[] = {of_keys ? "pos" : "q_idx", of_keys ? "pos" : "kv_idx"}; /* on a grid */
  static const char *const other[] = {"i", "j", "k", "l"};
  const char *text = "";
  for (uint32_t i = 0; i < info->num_axes; i++) {
    const int32_t axis = info->axis[i];
    const int along = grid_axis_number(axis);
    const form_axis *row = axis < 0 && along < 0 ? form_axis_of(L, axis) : NULL;
    const char *is = along >= 0    ? grid_axis_text(L, sides[axis <= LUATTN_AXIS_KV_GRID], along)
                     : row != NULL ? (of_keys ? row->index_kv : row->index)
                                   : other[i];
    text = front_format(L, "%s%s%s", text, i > 0 ? ", " : "", is);
  }
  return front_format(L, info->num_axes == 1 ? "%s[%s]" : "%s[{%s}]", info->name, text);
}

void gather_refuse_count(lua_State *L, const gather *t, int count) {
  const luattn_input_info *info = gather_info(L, t);
  front_raise(L, "input '%s' has %u axes (%s), but %d %s given; write %s", info->name, info->num_axes,
              gather_axes(L, info), count, count == 1 ? "index is" : "indices are", gather_indexed(L, info));
}

void gather_refuse_unindexed(lua_State *L, int index, const char *what) {
  const gather *t = luaL_testudata(L, index, GATHER_METATABLE);
  grid_refuse_place(L, index, what);
  if (t == NULL) return;
  if (t->count > 0) gather_refuse_count(L, t, t->count);
  const luattn_input_info *info = gather_info(L, t);
  front_raise(L, "%s: input '%s' is used without an index; its axes are (%s), so write %s", what, info->name,
              gather_axes(L, info), gather_indexed(L, info));
}

void gather_push(lua_State *L, const gather *t) {
  gather *copy = lua_newuserdatauv(L, sizeof *copy, 0);
  *copy = *t;
  luaL_setmetatable(L, GATHER_METATABLE);
}
