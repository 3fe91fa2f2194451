#include "gen/lua/declare.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "common/call/input_dtype.h"
#include "gen/lua/fields.h"
#include "gen/lua/form.h"
#include "gen/lua/hooks.h"
#include "gen/lua/names.h"
#include "gen/lua/grid_axes.h"
#include "gen/lua/scan.h"
#include "gen/lua/trace_linear.h"
#include "gen/lua/trace_online.h"

#define DECLARED "luattn.declared" /* the argument of attention {..}, or of linear_attention {..} */

static void check_new_name(lua_State *L, const char *owner, const char *name) {
  const bool predefined = names_predefined(L, name);
  if (predefined || names_defined(L, name)) {
    if (predefined)
      front_raise(L, "%s: '%s' is already the name of something predefined; choose another name", owner, name);
    front_raise(L,
                "%s: '%s' is already the name of a global of this file, which hooks would read in its place; "
                "choose another name for one of them",
                owner, name);
  }
}

static void declare_scalars(lua_State *L, int table) {
  traced_spec *spec = front_of(L)->spec;
  lua_pushliteral(L, "scalars");
  if (lua_rawget(L, table) == LUA_TNIL) {
    lua_pop(L, 1);
    return;
  }
  spec->num_scalars = fields_names(L, -1, "scalars", spec->scalar_name, 32);
  for (int i = 0; i < spec->num_scalars; i++) {
    const char *name = spec->scalar_name[i];
    fields_name(L, name);
    check_new_name(L, "scalars", name);
    lua_pushstring(L, name);
    if (lua_rawget(L, -2) != LUA_TNUMBER) {
      front_raise(L, "scalars: '%s' is %s; its value must be a number, the default", name, front_kind(L, -1));
    }
    spec->scalar_default[i] = lua_tonumber(L, -1);
    if (!isfinite(spec->scalar_default[i])) {
      front_raise(L, "scalars: the default of '%s' is %s; it must be a finite number", name,
                  isnan(spec->scalar_default[i]) ? "NaN" : "infinite");
    }
    lua_pop(L, 1);
  }
  fields_name(L, NULL);
  lua_pop(L, 1);
}

static int32_t axis_of(lua_State *L, const char *owner) {
  const form_row *form = form_of(L);
  if (lua_isinteger(L, -1)) {
    const lua_Integer size = lua_tointeger(L, -1);
    if (size < 1 || size > INT32_MAX)
      front_raise(L, "%s: axis size %lld must be 1 to %d", owner, (long long)size, INT32_MAX);
    return (int32_t)size;
  }
  if (lua_type(L, -1) == LUA_TNUMBER)
    front_raise(L, "%s: an axis is the float %s; a size is an integer, 1 to %d", owner, fields_shown(L, -1), INT32_MAX);
  if (lua_type(L, -1) != LUA_TSTRING) {
    front_raise(L,
                "%s: an axis is %s; it must be %s, a size, or another "
                "name for any size",
                owner, front_kind(L, -1), form->listed);
  }
  const char *axis = lua_tostring(L, -1);
  const int32_t of_grid = front_of(L)->spec->form == LUATTN_FORM_ATTENTION ? grid_axis_of(L, owner, axis) : 0;
  if (of_grid != 0) return of_grid;
  if (!fields_is_identifier(axis, lua_rawlen(L, -1))) {
    front_raise(L, "%s: axis '%s' is not a name; use letters, digits and _", owner, front_shown(L, -1));
  }
  for (const form_axis *row = form->axis; row->name != NULL; row++)
    if (strcmp(axis, row->name) == 0) return row->axis;
  for (const axis_synonym *row = form->synonym; row->name != NULL; row++)
    if (strcmp(axis, row->name) == 0) front_raise(L, "%s: axis '%s' is written '%s'", owner, axis, row->means);
  return LUATTN_AXIS_FREE;
}

/* Formats the axis at the top of the stack as the spec writes it. */
static const char *axis_text(lua_State *L) {
  const char *written = front_format(L, "%s", luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return written;
}

static void declare_axes(lua_State *L, const char *owner, luattn_input_info *info, const char *names[4]) {
  lua_pushliteral(L, "axes");
  if (lua_rawget(L, -2) != LUA_TTABLE) {
    front_raise(L, "%s: axes is %s; write axes = {\"h\"} and so on, one entry for each dimension, or {} for one number",
                owner, front_kind(L, -1));
  }
  const uint32_t n = (uint32_t)fields_check_list(L, -1, front_format(L, "%s: axes", owner),
                                                 "list the axes in order, as in axes = {\"h\", \"q\"}");
  if (n > 4) front_raise(L, "%s: has %u axes; inputs have 0 to 4", owner, n);
  for (info->num_axes = 0; info->num_axes < n; info->num_axes++) {
    lua_rawgeti(L, -1, (lua_Integer)info->num_axes + 1);
    info->axis[info->num_axes] = axis_of(L, owner);
    names[info->num_axes] = axis_text(L);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Other names of types. PyTorch's and NumPy's sized names are accepted, because they are unambiguous; for
 * others the message says what to write. */
typedef struct dtype_row {
  const char *name, *means; /* means: NULL: no input can have it */
} dtype_row;

static const dtype_row dtype_names[] = {
    {"float64", "f64"}, {"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"},
    {"int32", "i32"},   {"int64", "i64"},   {"int16", "i16"},     {"uint8", "u8"},
};
static const dtype_row dtype_synonyms[] = {
    {"fp64", "f64"}, {"double", "f64"}, {"fp32", "f32"},     {"float", "f32"}, {"fp16", "f16"},
    {"half", "f16"}, {"int", "i32"},    {"boolean", "bool"}, {"long", "i64"},  {"short", "i16"},
    {"byte", "u8"},  {"i8", NULL},      {"int8", NULL},      {"u16", NULL},    {"uint16", NULL},
    {"u32", NULL},   {"uint32", NULL},  {"u64", NULL},       {"uint64", NULL},
};

static void refuse_dtype(lua_State *L, const char *owner, const char *name) {
  for (size_t i = 0; i < sizeof dtype_synonyms / sizeof *dtype_synonyms; i++) {
    const dtype_row *row = &dtype_synonyms[i];
    if (name == NULL || strcmp(name, row->name) != 0) continue;
    if (row->means != NULL) front_raise(L, "%s: dtype '%s' is written %s", owner, name, row->means);
    front_raise(L,
                "%s: dtype '%s' cannot be read; declare i32, i64, i16, u8, or bool for flags, and convert "
                "the tensor, "
                "whose values must fit",
                owner, name);
  }
  if (lua_type(L, -1) != LUA_TSTRING)
    front_raise(L, "%s: dtype is %s; it must be a name in quotes: f64, f32, bf16, f16, i32, i64, i16, u8, bool or any",
                owner, fields_shown(L, -1));
  front_raise(L, "%s: dtype '%s' is not one of f64, f32, bf16, f16, i32, i64, i16, u8, bool, any", owner,
              front_shown(L, -1));
}

static const char *const dtype_short[] = {"f64",  "f32", "bf16", "f16", "i32",
                                          "bool", "i64", "i16",  "u8",  "any"}; /* as luattn_input_dtype */

/* The dtype at the top of the stack. */
static uint32_t dtype_at_top(lua_State *L, const char *owner) {
  const char *given = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL, *name = given;
  if (given != NULL && strlen(given) != lua_rawlen(L, -1)) name = given = NULL; /* it contains a zero byte */
  for (size_t i = 0; given != NULL && i < sizeof dtype_names / sizeof *dtype_names; i++)
    if (strcmp(given, dtype_names[i].name) == 0) name = dtype_names[i].means;
  for (uint32_t dtype = 0; name != NULL && dtype < INPUT_DTYPES; dtype++)
    if (strcmp(name, dtype_short[dtype]) == 0) return dtype;
  refuse_dtype(L, owner, given);
  return LUATTN_INPUT_F32;
}

static uint32_t dtype_of(lua_State *L, const char *owner) {
  lua_pushliteral(L, "dtype");
  const uint32_t dtype = lua_rawget(L, -2) != LUA_TNIL ? dtype_at_top(L, owner) : LUATTN_INPUT_F32;
  lua_pop(L, 1);
  return dtype;
}

/* The spelling {"h", "q"} of an input that is declared by its axes only. */
static const char *listed_axes(lua_State *L) {
  const lua_Unsigned n = lua_rawlen(L, -1);
  const char *list = "";
  for (lua_Unsigned i = 1; i <= n && i <= 4; i++) {
    const int type = lua_rawgeti(L, -1, (lua_Integer)i);
    const char *comma = i > 1 ? ", " : "";
    if (type == LUA_TSTRING)
      list = front_format(L, "%s%s\"%s\"", list, comma, front_shown(L, -1));
    else if (lua_isinteger(L, -1))
      list = front_format(L, "%s%s%lld", list, comma, (long long)lua_tointeger(L, -1));
    lua_pop(L, 1);
    if (type != LUA_TSTRING && type != LUA_TNUMBER) return "\"h\"";
  }
  return n > 4 ? front_format(L, "%s, ..", list) : list;
}

static void declare_input(lua_State *L, const char *name, luattn_input_info *info, const char *axis_names[4]) {
  static const field_row fields[] = {
      {"axes", FIELD_ANY, NULL}, {"dtype", FIELD_ANY, NULL}, {"grad", FIELD_BOOLEAN, "true or false"}};
  const char *owner = front_format(L, "input '%s'", name);
  check_new_name(L, "inputs", name);
  for (int i = 0; i < front_of(L)->spec->num_scalars; i++) {
    if (strcmp(name, front_of(L)->spec->scalar_name[i]) == 0) {
      front_raise(L, "inputs: '%s' is also the name of a scalar; choose another name", name);
    }
  }
  if (!lua_istable(L, -1)) {
    front_raise(L, "%s is %s; write %s = { axes = {\"h\"} }", owner, front_kind(L, -1), name);
  }
  if (lua_rawlen(L, -1) > 0) {
    front_raise(L, "%s: its axes stand in a field of that name; write %s = { axes = {%s} }", owner, name,
                listed_axes(L));
  }
  fields_check(L, -1, owner, fields, sizeof fields / sizeof *fields);
  memcpy(info->name, name, strlen(name) + 1);
  declare_axes(L, owner, info, axis_names);
  info->dtype = dtype_of(L, owner);
  lua_pushliteral(L, "grad");
  lua_rawget(L, -2);
  info->grad = (uint32_t)lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (info->grad != 0 && (input_is_integer(info->dtype) || info->dtype == LUATTN_INPUT_BOOL)) {
    front_raise(L, "%s: grad = true, but dtype %s has no gradient; use f32, or leave grad out", owner,
                dtype_short[info->dtype]);
  }
}

static void declare_inputs(lua_State *L, int table) {
  traced_spec *spec = front_of(L)->spec;
  const char *names[12];
  lua_pushliteral(L, "inputs");
  if (lua_rawget(L, table) == LUA_TNIL) {
    lua_pop(L, 1);
    return;
  }
  const int n = fields_names(L, -1, "inputs", names, 12);
  for (int i = 0; i < n; i++) {
    lua_pushstring(L, names[i]);
    lua_rawget(L, -2);
    fields_name(L, names[i]);
    declare_input(L, names[i], &spec->input[i], &spec->axis_name[4 * i]);
    fields_name(L, NULL);
    const bool wide = spec->input[i].dtype == LUATTN_INPUT_I64 || spec->input[i].dtype == LUATTN_INPUT_F64;
    if (wide && spec->g != NULL) ir_input_wide(spec->g, (uint32_t)i); /* NULL: hooks are run, not traced */
    lua_pop(L, 1);
    spec->num_inputs = i + 1;
  }
  lua_pop(L, 1);
}

/* "dir/my spec.lua" -> "my_spec" */
static const char *default_name(lua_State *L) {
  const char *file = front_of(L)->path, *slash = strrchr(file, '/');
  const char *stem = slash != NULL ? slash + 1 : file, *dot = strchr(stem, '.');
  char name[LUATTN_NAME_SIZE] = "spec";
  size_t n = dot != NULL && dot != stem ? (size_t)(dot - stem) : strlen(stem);
  if (n >= sizeof name) n = sizeof name - 1;
  for (size_t i = 0; i < n; i++) name[i] = isalnum((unsigned char)stem[i]) ? stem[i] : '_';
  if (n > 0) name[n] = '\0';
  return front_format(L, "%s", name);
}

static void declare_name(lua_State *L, int table) {
  lua_pushliteral(L, "name");
  const int type = lua_rawget(L, table);
  if (type == LUA_TNIL) {
    front_of(L)->spec->name = default_name(L);
    lua_pop(L, 1);
    return;
  }
  size_t n;
  const char *name = lua_tolstring(L, -1, &n), *shown = front_shown(L, -1);
  if (n == 0 || n >= LUATTN_NAME_SIZE) {
    front_raise(L, "%s: name '%s' has %zu characters; it must have 1 to %d", form_of(L)->name, shown, n,
                LUATTN_NAME_SIZE - 1);
  }
  for (size_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)name[i];
    if (isalnum(c) || (c != '\0' && strchr("_-.", c) != NULL)) continue;
    if (c >= ' ' && c < 0x7f)
      front_raise(L, "%s: name '%s' contains '%c'; use letters, digits, _, - and .", form_of(L)->name, shown, c);
    front_raise(L, "%s: name '%s' contains the byte %d; use letters, digits, _, - and .", form_of(L)->name, shown, c);
  }
  front_of(L)->spec->name = front_format(L, "%s", name);
  lua_pop(L, 1);
}

static void refuse_two_masks(lua_State *L, int table) {
  lua_pushliteral(L, "block_mask");
  lua_pushliteral(L, "mask_mod");
  if (lua_rawget(L, table) != LUA_TNIL) {
    lua_insert(L, -2);
    if (lua_rawget(L, table) != LUA_TNIL) {
      front_raise(L, "attention: both block_mask and mask_mod are given; they are two names of one field, so keep one");
    }
  }
  lua_settop(L, table);
}

static void check_hooks(lua_State *L, int table) {
  for (hook_id id = form_of(L)->first; id <= form_of(L)->last; id++) {
    const char *name = hook_push_field(L, table, id);
    if (name == NULL) continue;
    hook_check(L, id, name);
    lua_pop(L, 1);
  }
}

/* Takes the call of a form with one table, the first of the file; its line is that of messages from now on. */
static void take_form(lua_State *L, luattn_form form, const char *example) {
  front_state *s = front_of(L);
  const luattn_form before = s->spec->form;
  s->spec->form = form;
  const char *name = form_of(L)->name;
  if (s->mode != FRONT_LOADING)
    front_raise(L, "%s is called inside a hook; call it once, in the file's return statement", name);
  if (lua_gettop(L) != 1 || !lua_istable(L, 1)) front_raise(L, "%s: takes one table: %s", name, example);
  s->hook_line = s->declared_line = front_line(L);
  if (lua_getfield(L, LUA_REGISTRYINDEX, DECLARED) != LUA_TNIL) {
    if (form == before) front_raise(L, "%s is called twice; one file is one spec", name);
    front_raise(L, "both attention and linear_attention are called; one file is one spec");
  }
  lua_pop(L, 1);
}

static int finish_form(lua_State *L) {
  lua_settop(L, 1);
  lua_pushvalue(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, DECLARED);
  return 1;
}

static int attention(lua_State *L) {
  static const field_row fields[] = {
      {"name", FIELD_STRING, "a string"},
      {"grid", FIELD_ANY, NULL},
      {"scalars", FIELD_TABLE, "a table such as { cap = 50.0 }"},
      {"inputs", FIELD_TABLE, "a table such as { slopes = { axes = {\"h\"} } }"},
      {"score_mod", FIELD_ANY, NULL},
      {"block_mask", FIELD_ANY, NULL},
      {"mask_mod", FIELD_ANY, NULL},
      {"query_mod", FIELD_ANY, NULL},
      {"key_mod", FIELD_ANY, NULL},
      {"value_mod", FIELD_ANY, NULL},
      {"online_func", FIELD_ANY, NULL},
  };
  take_form(L, LUATTN_FORM_ATTENTION, "attention { name = .., score_mod = .. }");
  fields_check(L, 1, "attention", fields, sizeof fields / sizeof *fields);
  declare_name(L, 1);
  declare_scalars(L, 1);
  grid_declare(L, 1);
  declare_inputs(L, 1);
  refuse_two_masks(L, 1);
  check_hooks(L, 1);
  online_declare(L, 1);
  return finish_form(L);
}

static int linear_attention(lua_State *L) {
  static const field_row fields[] = {
      {"name", FIELD_STRING, "a string"},
      {"scalars", FIELD_TABLE, "a table such as { bound = -5.0 }"},
      {"inputs", FIELD_TABLE, "a table such as { g = { axes = {\"b\", \"t\", \"hv\"} } }"},
      {"query_mod", FIELD_ANY, NULL},
      {"key_mod", FIELD_ANY, NULL},
      {"value_mod", FIELD_ANY, NULL},
      {"decay", FIELD_ANY, NULL},
      {"update", FIELD_ANY, NULL},
      {"skip", FIELD_ANY, NULL},
      {"normalize", FIELD_BOOLEAN, "true or false"},
      {"scale", FIELD_ANY, NULL},
  };
  take_form(L, LUATTN_FORM_LINEAR, "linear_attention { name = .., decay = .. }");
  lua_getfield(L, LUA_REGISTRYINDEX, DECLARE_OTHER_NAMES);
  lua_insert(L, 1);
  lua_call(L, 1, 1);
  fields_check(L, 1, "linear_attention", fields, sizeof fields / sizeof *fields);
  declare_name(L, 1);
  declare_scalars(L, 1);
  declare_inputs(L, 1);
  linear_declare(L, 1);
  check_hooks(L, 1);
  return finish_form(L);
}

void declare_open(lua_State *L) {
  lua_pushcfunction(L, attention);
  lua_setfield(L, -2, "attention");
  lua_pushcfunction(L, linear_attention);
  lua_setfield(L, -2, "linear_attention");
}

void declare_push(lua_State *L, int returned) {
  if (lua_getfield(L, LUA_REGISTRYINDEX, DECLARED) == LUA_TNIL) {
    front_raise_at(L, 0, "the file never calls attention; end it with: return attention { .. }");
  }
  if (lua_rawequal(L, returned, -1)) return;
  front_raise(L, "the file returns %s instead of its %s { .. }; end it with: return %s { .. }", front_kind(L, returned),
              form_of(L)->name, form_of(L)->name);
}
