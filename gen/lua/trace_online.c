#include "gen/lua/trace_online.h"

#include <math.h>
#include <string.h>

#include "gen/lua/fields.h"
#include "gen/lua/names.h"
#include "gen/lua/numbers.h"

/* Pushes online_func, by default online_softmax. */
static void push_online(lua_State *L, int table) {
  table = lua_absindex(L, table);
  lua_pushliteral(L, "online_func");
  if (lua_rawget(L, table) != LUA_TNIL) return;
  lua_pop(L, 1);
  names_push(L);
  lua_getfield(L, -1, "online_softmax");
  lua_remove(L, -2);
}

/* Pushes field `name` of the table at the top; nil if absent. */
static int push_raw(lua_State *L, const char *name) {
  lua_pushstring(L, name);
  return lua_rawget(L, -2);
}

static void declare_states(lua_State *L, traced_online *o) {
  if (push_raw(L, "online_rowscales") != LUA_TNIL) {
    o->num_state = fields_names(L, -1, "online_rowscales", o->state_name, SPEC_MAX_STATE);
    for (int i = 0; i < o->num_state; i++) {
      const int type = push_raw(L, o->state_name[i]);
      if (type == LUA_TFUNCTION)
        hook_check(L, HOOK_INIT, front_format(L, "online_rowscales.%s", o->state_name[i]));
      else if (type != LUA_TNUMBER) {
        front_raise(L, "online_rowscales: the initial value of '%s' is %s; it must be a number or a function(b, h)",
                    o->state_name[i], front_kind(L, -1));
      }
      if (type == LUA_TNUMBER && isnan(lua_tonumber(L, -1))) {
        front_raise(L, "online_rowscales: the initial value of '%s' is NaN", o->state_name[i]);
      }
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
}

/* { "lse", "r" } or, as AttentionEngine writes it, { lse = .., r = .. }: the names, lse first. */
static void declare_finals(lua_State *L, traced_online *o) {
  o->lse = -1;
  if (push_raw(L, "final_rowscales") == LUA_TNIL) {
    lua_pop(L, 1);
    return;
  }
  const bool is_list = lua_rawlen(L, -1) > 0;
  const int listed =
      !is_list ? 0
               : fields_check_list(L, -1, "online_func: final_rowscales",
                                   "list the names, as in { \"lse\", \"r\" }, or write name = value for each");
  lua_newtable(L);
  for (int i = 1; i <= listed; i++) {
    if (lua_rawgeti(L, -2, i) != LUA_TSTRING) {
      front_raise(L, "final_rowscales: entry %d is %s; it must be a name", i, front_kind(L, -1));
    }
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
  }
  o->num_final = fields_names(L, listed > 0 ? -1 : -2, "final_rowscales", o->final_name, SPEC_MAX_FINAL);
  for (int i = 0; i < o->num_final; i++) {
    if (strcmp(o->final_name[i], "lse") != 0) continue;
    memmove(o->final_name + 1, o->final_name, (size_t)i * sizeof *o->final_name);
    o->final_name[0] = "lse";
    o->lse = 0;
  }
  lua_pop(L, 2);
}

/* dropout() of the standard library sets `keep`: of 256 weights, how many are kept. */
static void declare_keep(lua_State *L, traced_online *o) {
  o->keep = SPEC_KEEP_ALL;
  const int type = push_raw(L, "keep");
  if (type != LUA_TNIL) {
    if (!lua_isinteger(L, -1) || lua_tointeger(L, -1) < 1 || lua_tointeger(L, -1) > SPEC_KEEP_ALL)
      front_raise(L, "online_func: keep is %s; it must be an integer, 1 to %d, as dropout() sets it",
                  type == LUA_TNUMBER ? lua_tostring(L, -1) : front_kind(L, -1), SPEC_KEEP_ALL);
    o->keep = (int)lua_tointeger(L, -1);
  }
  lua_pop(L, 1);
}

void online_declare(lua_State *L, int table) {
  static const field_row fields[] = {
      {"name", FIELD_STRING, "a string"},
      {"online_rowscales", FIELD_TABLE, "a table such as { m = -math.huge, l = 0 }"},
      {"final_rowscales", FIELD_TABLE, "a table such as { \"lse\" }"},
      {"online_fwd", FIELD_ANY, NULL},
      {"online_fwd_epilogue", FIELD_ANY, NULL},
      {"forward", FIELD_ANY, NULL},
      {"backward", FIELD_ANY, NULL},
      {"keep", FIELD_ANY | FIELD_HIDDEN, NULL}, /* of the standard library */
  };
  traced_online *o = &front_of(L)->spec->online;
  push_online(L, table);
  if (lua_isfunction(L, -1)) {
    front_raise(L,
                "attention: online_func is a function; call it where it is declared, as in "
                "attention_sink(\"logits\"), or give "
                "a table with online_fwd");
  }
  if (!lua_istable(L, -1)) {
    front_raise(L,
                "attention: online_func is %s; it must be a table with online_fwd, or a predefined one "
                "such as online_softmax",
                front_kind(L, -1));
  }
  fields_check(L, -1, "online_func", fields, sizeof fields / sizeof *fields);
  const int type = push_raw(L, "name");
  o->name = type == LUA_TSTRING ? front_shown(L, -1) : "online_func";
  lua_pop(L, 1);
  declare_keep(L, o);
  declare_states(L, o);
  declare_finals(L, o);
  for (hook_id id = HOOK_ONLINE_FWD; id <= HOOK_BACKWARD; id++) {
    const char *name = hook_get(id)->name;
    if (push_raw(L, name) != LUA_TNIL) {
      hook_check(L, id, front_format(L, "online_func: %s", name));
    } else if (id == HOOK_ONLINE_FWD) {
      front_raise(L, "online_func: online_fwd is missing; it must be a function(%s)", hook_get(id)->params);
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Checks that the table at `index` names only known row scalars. */
static void check_returned(lua_State *L, int index, bool final) {
  const traced_online *o = &front_of(L)->spec->online;
  const char *hook = front_of(L)->hook;
  field_row rows[SPEC_MAX_STATE + SPEC_MAX_FINAL];
  const int n = final ? o->num_final : o->num_state;
  if (n == 0 && lua_isnil(L, index)) return;
  if (n == 0 && !lua_istable(L, index))
    front_raise(L, "%s: the second result is %s; return no second one, as %s declares no names", hook,
                front_kind(L, index), final ? "final_rowscales" : "online_rowscales");
  if (!lua_istable(L, index)) {
    front_raise(L, "%s: the second result is %s; return a table of %s such as { %s = .. }", hook, front_kind(L, index),
                final ? "final row scalars" : "new row scalars", final ? o->final_name[0] : o->state_name[0]);
  }
  for (int i = 0; i < n; i++) rows[i] = (field_row){final ? o->final_name[i] : o->state_name[i], FIELD_ANY, NULL};
  fields_check(L, index, front_format(L, "%s: the second result", hook), rows, n);
}

static void take_states(lua_State *L, int results, replay_result *out) {
  const traced_online *o = &front_of(L)->spec->online;
  check_returned(L, results + 1, false);
  for (int i = 0; i < o->num_state; i++) {
    lua_pushstring(L, o->state_name[i]);
    if (lua_rawget(L, results + 1) == LUA_TNIL)
      hook_take_leaf(L, VAR_STATE, (uint32_t)i, out); /* the state keeps its value */
    else
      hook_take_number(L, -1, front_format(L, "online_fwd: new row scalar '%s'", o->state_name[i]), out);
    lua_pop(L, 1);
  }
}

static void run_fwd(lua_State *L, int function, void *user, replay_result *out) {
  (void)user;
  const int results = lua_gettop(L) + 1, n = hook_call(L, HOOK_ONLINE_FWD, function);
  if (n > 3) front_raise(L, "online_fwd: returned %d values; return p, new_rowscales, o_scale", n);
  lua_settop(L, results + 2);
  hook_take_number(L, results, "online_fwd: p", out);
  if (lua_isnil(L, results + 2)) {
    lua_pushnumber(L, 1);
    lua_replace(L, results + 2);
  }
  hook_take_number(L, results + 2, "online_fwd: o_scale", out);
  take_states(L, results, out);
  lua_settop(L, results - 1);
}

static void run_epilogue(lua_State *L, int function, void *user, replay_result *out) {
  (void)user;
  const traced_online *o = &front_of(L)->spec->online;
  const int results = lua_gettop(L) + 1, n = hook_call(L, HOOK_EPILOGUE, function);
  if (n > 2) front_raise(L, "online_fwd_epilogue: returned %d values; return o, final_rowscales", n);
  lua_settop(L, results + 1);
  hook_take_number(L, results, "online_fwd_epilogue: o", out);
  check_returned(L, results + 1, true);
  for (int i = 0; i < o->num_final; i++) {
    lua_pushstring(L, o->final_name[i]);
    if (lua_rawget(L, results + 1) == LUA_TNIL) {
      front_raise(L, "online_fwd_epilogue: final row scalar '%s' is declared in final_rowscales but not returned",
                  o->final_name[i]);
    }
    hook_take_number(L, -1, front_format(L, "online_fwd_epilogue: final row scalar '%s'", o->final_name[i]), out);
    lua_pop(L, 1);
  }
  lua_settop(L, results - 1);
}

static void run_single(lua_State *L, int function, void *user, replay_result *out) {
  const hook_id id = *(const hook_id *)user;
  const char *name = hook_get(id)->name;
  const int n = hook_call(L, id, function);
  if (n > 1) front_raise(L, "%s: returned %d values; return one", name, n);
  if (n == 0) lua_pushnil(L);
  hook_take_number(L, -1, name, out);
  lua_pop(L, 1);
}

/* Whether r depends on one element, not only on reductions over the row. */
static bool depends_on_element(lua_State *L, ir_ref r) {
  const front_state *s = front_of(L);
  if (!ir_uses(s->g, r, VAR_SCORE)) return false;
  uint8_t *reached = arena_new(s->a, r + 1);
  if (reached == NULL) front_no_memory(L);
  reached[r] = 1;
  for (ir_ref i = r; i > 0; i--) {
    const ir_node *n = ir_get(s->g, i);
    if (!reached[i] || n->op == IR_REDUCE_SUM || n->op == IR_REDUCE_MAX) continue;
    if (n->op == IR_VAR && ir_var_of(n) == VAR_SCORE) return true;
    for (int k = 0; k < n->nargs; k++) reached[n->arg[k]] = 1;
  }
  return false;
}

enum { FREE, LINEAR, NONLINEAR };

static bool is_zero(const ir *g, ir_ref r) {
  double x;
  while (ir_get(g, r)->op == IR_DIV) r = ir_get(g, r)->arg[0];
  return ir_is_const(g, r, &x) && x == 0;
}

/* How a node depends on VAR_OUT, given how its arguments do: FREE, LINEAR (a multiple of it), or
 * NONLINEAR. */
static int linearity(const ir *g, const ir_node *n, const uint8_t *of) {
  if (n->op == IR_VAR) return ir_var_of(n) == VAR_OUT ? LINEAR : FREE;
  int at[4] = {FREE, FREE, FREE, FREE}, most = FREE;
  for (int k = 0; k < n->nargs; k++) {
    at[k] = of[n->arg[k]];
    if (at[k] > most) most = at[k];
  }
  if (most != LINEAR) return most;
  switch (n->op) {
    case IR_NEG:
      return LINEAR;
    case IR_ADD:
    case IR_SUB:
      return at[0] == at[1] ? LINEAR : NONLINEAR;
    case IR_MUL:
      return at[0] != at[1] ? LINEAR : NONLINEAR;
    case IR_DIV:
      return at[1] == FREE ? LINEAR : NONLINEAR;
    case IR_SELECT: {
      const bool yes = at[1] == LINEAR || is_zero(g, n->arg[1]), no = at[2] == LINEAR || is_zero(g, n->arg[2]);
      return at[0] == FREE && yes && no ? LINEAR : NONLINEAR;
    }
    default:
      return NONLINEAR;
  }
}

static void check_linear(lua_State *L, ir_ref out) {
  const front_state *s = front_of(L);
  uint8_t *of = arena_new(s->a, out + 1);
  if (of == NULL) front_no_memory(L);
  for (ir_ref i = 1; i <= out; i++) of[i] = (uint8_t)linearity(s->g, ir_get(s->g, i), of);
  if (of[out] != LINEAR && !is_zero(s->g, out)) {
    front_raise(L,
                "online_fwd_epilogue: o must come back multiplied or divided by numbers of the row, as in o "
                "/ rowscales.l; what "
                "is returned is not a multiple of o");
  }
}

/* Traces function `id` of the online_func at the top of the stack. False: it is absent. */
static bool trace_function(lua_State *L, hook_id id, replay_result *result) {
  const char *name = hook_get(id)->name;
  if (push_raw(L, name) == LUA_TNIL) {
    lua_pop(L, 1);
    return false;
  }
  replay_hook hook = {.name = name, .line = hook_line_of(L, -1), .call = run_single, .user = &id, .reduces = false};
  if (id == HOOK_ONLINE_FWD) hook.call = run_fwd, hook.reduces = true;
  if (id == HOOK_EPILOGUE) hook.call = run_epilogue;
  replay_run(L, lua_gettop(L), &hook, result);
  lua_pop(L, 1);
  return true;
}

static void trace_fwd(lua_State *L, traced_online *o) {
  replay_result r;
  trace_function(L, HOOK_ONLINE_FWD, &r);
  o->prob = r.value[0];
  o->rescale = r.value[1];
  if (depends_on_element(L, o->rescale)) {
    front_raise(L, "online_fwd: o_scale depends on one element of the row; make it of row scalars and reductions");
  }
  for (int i = 0; i < o->num_state; i++) {
    o->next[i] = r.value[2 + i];
    if (depends_on_element(L, o->next[i])) {
      front_raise(L, "online_fwd: new row scalar '%s' depends on one element of the row; use reduce_sum or reduce_max",
                  o->state_name[i]);
    }
  }
}

static void trace_epilogue(lua_State *L, traced_online *o) {
  replay_result r;
  if (!trace_function(L, HOOK_EPILOGUE, &r)) {
    if (o->num_final > 0) {
      front_raise(L, "online_func: final_rowscales names '%s', but there is no online_fwd_epilogue to return it",
                  o->final_name[0]);
    }
    o->out = ir_variable(front_of(L)->g, VAR_OUT, 0);
    return;
  }
  o->out = r.value[0];
  check_linear(L, o->out);
  for (int i = 0; i < o->num_final; i++) {
    o->final[i] = r.value[1 + i];
    if (!ir_uses(front_of(L)->g, o->final[i], VAR_OUT)) continue;
    front_raise(L,
                "online_fwd_epilogue: final row scalar '%s' is made of o, which is a row of numbers; make it "
                "of rowscales",
                o->final_name[i]);
  }
}

/* Pushes the initial value of state i of the online_func at the top; true if it is a function. */
static bool push_init(lua_State *L, const char *name) {
  push_raw(L, "online_rowscales");
  push_raw(L, name);
  lua_remove(L, -2);
  return lua_isfunction(L, -1);
}

void online_trace(lua_State *L, int table) {
  front_state *s = front_of(L);
  traced_online *o = &s->spec->online;
  replay_result r;
  push_online(L, table);
  for (int i = 0; i < o->num_state; i++) {
    if (push_init(L, o->state_name[i])) {
      hook_id id = HOOK_INIT;
      const replay_hook hook = {
          .name = "online_rowscales", .line = hook_line_of(L, -1), .call = run_single, .user = &id};
      replay_run(L, lua_gettop(L), &hook, &r);
      o->init[i] = r.value[0];
    } else {
      o->init[i] = ir_real(s->g, lua_tonumber(L, -1));
    }
    lua_pop(L, 1);
  }
  trace_fwd(L, o);
  trace_epilogue(L, o);
  o->forward = trace_function(L, HOOK_FORWARD, &r) ? r.value[0] : IR_NONE;
  o->backward = trace_function(L, HOOK_BACKWARD, &r) ? r.value[0] : IR_NONE;
  lua_pop(L, 1);
}

bool online_run(lua_State *L, int table, hook_id id, int *count) {
  front_state *s = front_of(L);
  replay_result result = {.count = 0};
  push_online(L, table);
  if (id == HOOK_INIT) {
    for (int i = 0; i < s->spec->online.num_state; i++) {
      if (push_init(L, s->spec->online.state_name[i]))
        run_single(L, lua_gettop(L), &id, &result);
      else
        hook_take_number(L, -1, "online_rowscales", &result);
      lua_pop(L, 1);
    }
  } else if (push_raw(L, hook_get(id)->name) == LUA_TNIL) {
    if (id != HOOK_EPILOGUE) return false;
    hook_take_leaf(L, VAR_OUT, 0, &result);
  } else if (id == HOOK_ONLINE_FWD) {
    run_fwd(L, lua_gettop(L), NULL, &result);
  } else if (id == HOOK_EPILOGUE) {
    run_epilogue(L, lua_gettop(L), NULL, &result);
  } else {
    run_single(L, lua_gettop(L), &id, &result);
  }
  *count = result.count;
  return true;
}
