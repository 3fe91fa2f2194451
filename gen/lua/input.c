#include "gen/lua/input.h"

#include <string.h>

#include "common/call/input_dtype.h"
#include "gen/lua/fields.h"
#include "gen/lua/form.h"
#include "gen/lua/functions.h"
#include "gen/lua/gather.h"
#include "gen/lua/grid_axes.h"
#include "gen/lua/numbers.h"
#include "gen/lua/grid_positions.h"
#include "gen/lua/refuse.h"
#include "gen/lua/replay.h"
#include "gen/lua/row.h"

static axis_kind kind_of(lua_State *L, const ir *g, ir_ref index) {
  const bool is_linear = front_of(L)->spec->form == LUATTN_FORM_LINEAR;
  const hook_row *hook = hook_running(L);
  if (ir_is_var(g, index, VAR_B)) return COUNTS_BATCH;
  if (ir_is_var(g, index, VAR_H)) return gather_heads_are_kv(L) ? COUNTS_HEADS_KV : COUNTS_HEADS;
  if (ir_is_var(g, index, VAR_D) && hook != NULL && (hook->of & HOOK_CHANNELS_K) != 0) return COUNTS_CHANNELS;
  if (ir_is_var(g, index, VAR_D) && hook != NULL && (hook->of & HOOK_CHANNELS_V) != 0) return COUNTS_CHANNELS_V;
  if (ir_is_var(g, index, VAR_POS) && is_linear) return COUNTS_TOKENS;
  return ir_is_var(g, index, VAR_Q) || ir_is_var(g, index, VAR_KV) || ir_is_var(g, index, VAR_POS) ? COUNTS_POSITIONS
                                                                                                   : COUNTS_OTHER;
}

/* A step of the recurrence sees one token. */
static void refuse_token(lua_State *L, const luattn_input_info *info, int position) __attribute__((noreturn));
static void refuse_token(lua_State *L, const luattn_input_info *info, int position) {
  front_raise(L,
              "input '%s': index %d is not t, and a hook of linear_attention reads the numbers of its own token alone; "
              "write %s, or give what another token has as an input of its own",
              info->name, position, gather_indexed(L, info));
}

/* Rows of the state are channels of q and k, and each is read, decayed and written for all channels of v at once. */
static void refuse_channels(lua_State *L, const luattn_input_info *info, int position) __attribute__((noreturn));
static void refuse_channels(lua_State *L, const luattn_input_info *info, int position) {
  front_raise(L,
              "input '%s': index %d is a channel of q and k, and its axis \"dv\" has those of v, on which %s cannot "
              "depend; declare the axis \"d\", or scale v itself by value_mod or update.write",
              info->name, position, front_of(L)->hook);
}

/* A bare b, h, q_idx or kv_idx on an axis of another kind is a swapped index: the gather would clamp it and
 * go on. q and kv may have the same length, as for document ids, so these two are not refused. */
static void check_kind(lua_State *L, const luattn_input_info *info, int position, ir_ref index) {
  const ir *g = front_of(L)->g;
  const form_row *form = form_of(L);
  const int32_t axis = info->axis[position - 1];
  const int along = grid_axis_number(axis);
  const axis_kind want = along >= 0 ? COUNTS_POSITIONS : axis < 0 ? form_axis_of(L, axis)->kind : COUNTS_OTHER;
  const axis_kind is = kind_of(L, g, index);
  const bool other_axis = want == COUNTS_POSITIONS && is == COUNTS_POSITIONS && along >= 0 &&
                          ir_index_of(ir_get(g, index)) != (uint32_t)along;
  if (want == COUNTS_TOKENS && is != COUNTS_TOKENS) refuse_token(L, info, position);
  if (is == COUNTS_CHANNELS && want == COUNTS_CHANNELS_V) refuse_channels(L, info, position);
  if ((want == COUNTS_OTHER || is == COUNTS_OTHER || want == is) && !other_axis) return;
  front_raise(L, "input '%s': index %d is %s, but its axes are (%s); write %s", info->name, position,
              other_axis ? "a position along another axis" : form->kinds[is], gather_axes(L, info),
              gather_indexed(L, info));
}

/* Appends the index at the top of the stack. */
static void add_index(lua_State *L, gather *t, int position) {
  const luattn_input_info *info = gather_info(L, t);
  if (t->count == (int)info->num_axes) gather_refuse_count(L, t, t->count + 1);
  const front_state *s = front_of(L);
  if (lua_type(L, -1) == LUA_TNUMBER && !lua_isinteger(L, -1)) {
    front_raise(L, "input '%s': index %d is the float %f; gathers take integers, so use // or floor()", info->name,
                position, lua_tonumber(L, -1));
  }
  if (lua_type(L, -1) == LUA_TSTRING) {
    front_raise(L, "input '%s': indexed by the name '%s'; write %s[i], with a variable or a number", info->name,
                front_shown(L, -1), info->name);
  }
  const int axis = info->axis[t->count];
  if (lua_isinteger(L, -1)) {
    const lua_Integer i = lua_tointeger(L, -1);
    if (s->mode == FRONT_TRACING && (i < 0 || (axis > 0 && i >= axis))) {
      front_raise(L, "input '%s': index %d is %lld, outside its axis (%s); indices count from 0", info->name, position,
                  (long long)i, axis > 0 ? front_format(L, "0 .. %d", axis - 1) : "0 and up");
    }
    t->number[t->count] = i;
  }
  if (s->mode == FRONT_TRACING) {
    const operand x = value_whole(L, value_get(L, -1, front_format(L, "index of input '%s'", info->name)));
    if (ir_typeof(s->g, x.ref) != IR_INT) {
      front_raise(L, "input '%s': index %d is a float expression; gathers take integers, so use // or floor()",
                  info->name, position);
    }
    check_kind(L, info, position, x.ref);
    t->index[t->count] = x;
  } else if (lua_type(L, -1) != LUA_TNUMBER) {
    front_raise(L, "input '%s': index %d is %s; gathers take integers", info->name, position, front_kind(L, -1));
  }
  t->count++;
}

static int push_number(lua_State *L, const gather *t) {
  const front_numbers *n = front_of(L)->numbers;
  const luattn_input_info *info = gather_info(L, t);
  const double x = n->load(n->user, info->name, t->count, t->number);
  if (info->dtype == LUATTN_INPUT_BOOL)
    lua_pushboolean(L, x != 0);
  else if (input_is_integer(info->dtype))
    lua_pushinteger(L, (lua_Integer)x);
  else
    lua_pushnumber(L, x);
  return 1;
}

/* An input without axes is read at index 0 of one axis, which has one element. */
static int push_load(lua_State *L, const gather *t) {
  front_state *s = front_of(L);
  if (s->mode == FRONT_NUMBERS) return push_number(L, t);
  const luattn_input_info *info = gather_info(L, t);
  const ir_type type = info->dtype == LUATTN_INPUT_BOOL ? IR_BOOL : input_is_integer(info->dtype) ? IR_INT : IR_REAL;
  ir_ref index[4];
  uint32_t depth = 0;
  for (int i = 0; i < t->count; i++) {
    index[i] = t->index[i].ref;
    if (t->index[i].depth > depth) depth = t->index[i].depth;
  }
  if (t->count == 0 && (index[0] = ir_int(s->g, 0)) == IR_NONE) front_no_memory(L);
  const ir_ref r = ir_load(s->g, t->input, type, index, t->count > 0 ? t->count : 1);
  if (r == IR_NONE) front_no_memory(L);
  if (type == IR_BOOL)
    lua_pushboolean(L, replay_truth(L, r));
  else
    value_push(L, (operand){.ref = r, .depth = depth + 1});
  return 1;
}

static int meta_index(lua_State *L) {
  gather t = *(gather *)luaL_checkudata(L, 1, GATHER_METATABLE);
  const front_state *s = front_of(L);
  if (t.generation != s->generation) {
    front_raise(L, "input '%s' was kept from an earlier call; name it where it is used", gather_info(L, &t)->name);
  }
  if (s->mode == FRONT_TRACING) ir_set_line(s->g, (uint32_t)front_line(L));
  if (lua_istable(L, 2)) {
    const int size = fields_check_list(L, 2, front_format(L, "input '%s': its index", gather_info(L, &t)->name),
                                       "list one index for each axis, as in {i, j}");
    if (t.count + size != (int)gather_info(L, &t)->num_axes) gather_refuse_count(L, &t, t.count + size);
    for (int i = 1; i <= size; i++) {
      lua_rawgeti(L, 2, i);
      add_index(L, &t, i);
      lua_pop(L, 1);
    }
  } else {
    lua_settop(L, 2);
    add_index(L, &t, t.count + 1);
  }
  if (t.count == (int)gather_info(L, &t)->num_axes) return push_load(L, &t);
  gather_push(L, &t);
  return 1;
}

static int meta_call(lua_State *L) {
  const luattn_input_info *info = gather_info(L, luaL_checkudata(L, 1, GATHER_METATABLE));
  front_raise(L, "input '%s' is called like a function; write %s", info->name, gather_indexed(L, info));
}

static int meta_assign(lua_State *L) {
  const gather *t = luaL_checkudata(L, 1, GATHER_METATABLE);
  front_raise(L, "an element of input '%s' is assigned; a hook reads inputs and returns its result",
              gather_info(L, t)->name);
}

static int meta_operator(lua_State *L) {
  const char *sign = lua_tostring(L, lua_upvalueindex(1));
  gather_refuse_unindexed(L, 1, sign);
  gather_refuse_unindexed(L, 2, sign);
  front_raise(L, "%s is not possible on an input", sign);
}

void input_open(lua_State *L) {
  luaL_newmetatable(L, GATHER_METATABLE);
  lua_pushcfunction(L, meta_index);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, meta_call);
  lua_setfield(L, -2, "__call");
  lua_pushcfunction(L, meta_assign);
  lua_setfield(L, -2, "__newindex");
  refuse_operators(L, meta_operator);
  lua_pop(L, 1);
}

static void push_variable(lua_State *L, ir_var var, uint32_t index) {
  value_push_leaf(L, ir_variable(front_of(L)->g, var, index));
}

/* Names that attention's hooks have, and results. */
static void refuse_length(lua_State *L, const char *name) {
  if (strcmp(name, "o") == 0 || strcmp(name, "state") == 0)
    front_raise(
        L,
        "undefined name '%s': a hook of linear_attention is computed before its token's step, from its arguments, "
        "inputs and scalars",
        name);
  for (int i = 0; i < NAMES_LENGTHS; i++) {
    if (strcmp(name, names_lengths[i].name) != 0) continue;
    if (names_lengths[i].var == VAR_HEADS_KV) front_raise(L, "undefined name '%s'; did you mean 'heads_v'?", name);
    front_raise(
        L, "undefined name '%s': a step of linear_attention sees its own token, and no length; give it as a scalar",
        name);
  }
}

bool input_push_name(lua_State *L, const char *name) {
  const front_state *s = front_of(L);
  const bool numbers = s->mode == FRONT_NUMBERS;
  if (s->mode == FRONT_LOADING) return false;
  for (int i = 0; i < NAMES_LENGTHS; i++) {
    if (!names_is_length(i, s->spec->form) || strcmp(name, names_lengths[i].name) != 0) continue;
    if (names_lengths[i].var == VAR_Q_LEN || names_lengths[i].var == VAR_KV_LEN)
      places_push(L, names_lengths[i].var, names_lengths[i].name);
    else if (numbers)
      lua_pushinteger(L, s->numbers->length[i]);
    else
      push_variable(L, names_lengths[i].var, 0);
    return true;
  }
  for (int i = 0; i < s->spec->num_scalars; i++) {
    if (strcmp(name, s->spec->scalar_name[i]) != 0) continue;
    if (numbers)
      lua_pushnumber(L, s->numbers->scalar[i]);
    else
      push_variable(L, VAR_SCALAR, (uint32_t)i);
    return true;
  }
  for (int i = 0; i < s->spec->num_inputs; i++) {
    if (strcmp(name, s->spec->input[i].name) != 0) continue;
    const gather t = {.input = (uint32_t)i, .generation = s->generation};
    if (s->spec->input[i].num_axes > 0)
      gather_push(L, &t);
    else
      push_load(L, &t);
    return true;
  }
  /* Looked up after the spec's declarations, so that a spec may have an input or a scalar of that name. */
  if (strcmp(name, "head_dim") == 0) return row_push_head_dim(L, false), true;
  if (strcmp(name, "head_dim_v") == 0 && s->spec->form == LUATTN_FORM_LINEAR) return row_push_head_dim(L, true), true;
  if (strcmp(name, "random") == 0) return lua_pushcfunction(L, functions_random), true;
  if (s->spec->form == LUATTN_FORM_LINEAR) refuse_length(L, name);
  return false;
}

void input_suggest(lua_State *L, front_suggestion *s) {
  const traced_spec *spec = front_of(L)->spec;
  for (int i = 0; i < NAMES_LENGTHS; i++)
    if (names_is_length(i, spec->form)) front_suggest_try(s, names_lengths[i].name);
  front_suggest_try(s, "head_dim");
  front_suggest_try(s, "random");
  for (int i = 0; i < spec->num_scalars; i++) front_suggest_try(s, spec->scalar_name[i]);
  for (int i = 0; i < spec->num_inputs; i++) front_suggest_try(s, spec->input[i].name);
}
