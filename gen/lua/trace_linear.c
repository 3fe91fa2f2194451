#include "gen/lua/trace_linear.h"

#include <math.h>

#include "gen/lua/fields.h"

/* Pushes field `name` of the table at `table`; false: it is absent, and nothing is pushed. */
static bool push_given(lua_State *L, int table, const char *name) {
  lua_pushstring(L, name);
  if (lua_rawget(L, table) != LUA_TNIL) return true;
  lua_pop(L, 1);
  return false;
}

static bool has(lua_State *L, int table, const char *name) {
  const bool is = push_given(L, table, name);
  if (is) lua_pop(L, 1);
  return is;
}

static bool flag_of(lua_State *L, int table, const char *name) {
  const bool is = push_given(L, table, name) && lua_toboolean(L, -1);
  lua_settop(L, table);
  return is;
}

/* Returns whether the state is read. */
static bool declare_update(lua_State *L, int table) {
  static const field_row fields[] = {
      {"write", FIELD_ANY, NULL},
      {"read", FIELD_ANY, NULL},
      {"erase", FIELD_ANY, NULL},
      {"before", FIELD_BOOLEAN, "true or false"},
  };
  traced_linear *l = &front_of(L)->spec->linear;
  if (!push_given(L, table, "update")) return false;
  fields_name(L, "update");
  if (!lua_istable(L, -1))
    front_raise(L,
                "linear_attention: update is %s; it must be delta_rule(f), or a table of write, read, erase and before",
                fields_shown(L, -1));
  fields_check(L, -1, "update", fields, sizeof fields / sizeof *fields);
  const int update = lua_gettop(L);
  const bool reads = has(L, update, "read");
  if (has(L, update, "erase") && !reads) {
    fields_name(L, "erase");
    front_raise(L, "update: erase without read: it removes what read has read of the state; give read as well");
  }
  l->before = flag_of(L, update, "before");
  if (l->before && !reads) {
    fields_name(L, "before");
    front_raise(L,
                "update: before without read: it says that read reads the state before its decay; give read as well");
  }
  fields_name(L, NULL);
  lua_settop(L, table);
  return reads;
}

static void declare_scale(lua_State *L, int table) {
  if (!push_given(L, table, "scale")) return;
  fields_name(L, "scale");
  const double scale = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
  if (!isfinite(scale) || scale == 0)
    front_raise(L, "linear_attention: scale is %s; give a finite number other than 0, or leave it out for K^-1/2",
                fields_shown(L, -1));
  front_of(L)->spec->linear.scale = scale;
  fields_name(L, NULL);
  lua_pop(L, 1);
}

void linear_declare(lua_State *L, int table) {
  traced_linear *l = &front_of(L)->spec->linear;
  front_of(L)->spec->online = (traced_online){.name = "linear_attention", .lse = -1, .keep = SPEC_KEEP_ALL};
  const bool reads = declare_update(L, table);
  l->normalize = flag_of(L, table, "normalize");
  if (l->normalize && reads) {
    fields_name(L, "normalize");
    front_raise(L,
                "linear_attention: normalize with update.read: what is erased leaves no sum of weights to divide by; "
                "leave one of them out");
  }
  declare_scale(L, table);
}

void linear_trace(lua_State *L, int table) {
  traced_spec *t = front_of(L)->spec;
  const struct {
    hook_id id;
    ir_ref *to;
  } hooks[] = {{HOOK_LINEAR_QUERY, &t->query_mod},    {HOOK_LINEAR_KEY, &t->key_mod},
               {HOOK_LINEAR_VALUE, &t->value_mod},    {HOOK_LINEAR_DECAY, &t->linear.decay},
               {HOOK_LINEAR_WRITE, &t->linear.write}, {HOOK_LINEAR_READ, &t->linear.read},
               {HOOK_LINEAR_ERASE, &t->linear.erase}, {HOOK_LINEAR_SKIP, &t->linear.skip}};
  for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) *hooks[i].to = hook_trace(L, table, hooks[i].id);
}
