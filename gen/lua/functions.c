#include "gen/lua/functions.h"

#include <math.h>
#include <string.h>

#include "gen/lua/numbers.h"
#include "gen/lua/grid_positions.h"
#include "gen/lua/replay.h"

static void check_count(lua_State *L, const char *name, int least, int most) {
  const int n = lua_gettop(L);
  if (n >= least && n <= most) return;
  if (least == most) front_raise(L, "%s: takes %d argument%s, got %d", name, least, least == 1 ? "" : "s", n);
  front_raise(L, "%s: takes %d to %d arguments, got %d", name, least, most, n);
}

/* True if all arguments are plain numbers; otherwise at least one is traced, and the others are numbers. */
static bool plain(lua_State *L, const char *name) {
  bool traced = false;
  for (int i = 1; i <= lua_gettop(L); i++) {
    if (value_is_traced(L, i))
      traced = true;
    else if (lua_type(L, i) != LUA_TNUMBER)
      value_get(L, i, name); /* raises */
  }
  return !traced;
}

/* An op of ops.def that specs call by its name. */
static int call_op(lua_State *L) {
  const ir_op op = (ir_op)lua_tointeger(L, lua_upvalueindex(1));
  const char *name = ir_op_name(op);
  check_count(L, name, 1, 1);
  if (!plain(L, name)) {
    value_push(L, value_unary(L, op, value_get(L, 1, name)));
  } else if (op == IR_ABS && lua_isinteger(L, 1)) {
    const lua_Integer x = lua_tointeger(L, 1);
    lua_pushinteger(L, x < 0 ? (lua_Integer)(0 - (lua_Unsigned)x) : x);
  } else {
    lua_pushnumber(L, ir_value(op, IR_REAL, lua_tonumber(L, 1), 0, 0));
  }
  return 1;
}

static int push_floor(lua_State *L, double x) {
  lua_Integer whole;
  if (lua_numbertointeger(floor(x), &whole))
    lua_pushinteger(L, whole);
  else
    lua_pushnumber(L, floor(x));
  return 1;
}

static int call_floor(lua_State *L) {
  check_count(L, "floor", 1, 1);
  if (plain(L, "floor")) {
    if (lua_isinteger(L, 1)) return 1;
    return push_floor(L, lua_tonumber(L, 1));
  }
  value_push(L, value_floor(L, value_get(L, 1, "floor")));
  return 1;
}

static int call_ceil(lua_State *L) {
  check_count(L, "ceil", 1, 1);
  if (plain(L, "ceil")) {
    if (lua_isinteger(L, 1)) return 1;
    return push_floor(L, ceil(lua_tonumber(L, 1)));
  }
  const operand negative = value_unary(L, IR_NEG, value_get(L, 1, "ceil"));
  value_push(L, value_unary(L, IR_NEG, value_floor(L, negative)));
  return 1;
}

static int call_log(lua_State *L) {
  check_count(L, "log", 1, 2);
  const bool has_base = lua_gettop(L) == 2;
  if (plain(L, "log")) {
    const double x = lua_tonumber(L, 1), base = has_base ? lua_tonumber(L, 2) : 0;
    lua_pushnumber(L, !has_base ? log(x) : base == 2 ? log2(x) : base == 10 ? log10(x) : log(x) / log(base));
    return 1;
  }
  const operand x = value_get(L, 1, "log");
  if (has_base && lua_type(L, 2) == LUA_TNUMBER && lua_tonumber(L, 2) == 2) {
    value_push(L, value_unary(L, IR_LOG2, x));
    return 1;
  }
  operand result = value_unary(L, IR_LOG, x);
  if (has_base) result = value_arith(L, IR_DIV, result, value_unary(L, IR_LOG, value_get(L, 2, "log")));
  value_push(L, result);
  return 1;
}

static int call_pow(lua_State *L) {
  check_count(L, "pow", 2, 2);
  if (plain(L, "pow"))
    lua_pushnumber(L, pow(lua_tonumber(L, 1), lua_tonumber(L, 2)));
  else
    value_push(L, value_arith(L, IR_POW, value_get(L, 1, "pow"), value_get(L, 2, "pow")));
  return 1;
}

/* Pushes the smaller or larger of the values at indices a and b. */
static void push_extreme(lua_State *L, bool max, int a, int b) {
  const char *name = max ? "max" : "min";
  a = lua_absindex(L, a);
  b = lua_absindex(L, b);
  if (value_is_traced(L, a) || value_is_traced(L, b)) {
    const operand x = value_get(L, a, name), y = value_get(L, b, name);
    value_push(L, value_arith(L, max ? IR_MAX : IR_MIN, x, y));
    return;
  }
  lua_pushvalue(L, lua_compare(L, max ? a : b, max ? b : a, LUA_OPLT) ? b : a);
}

static int call_extreme(lua_State *L) {
  const bool max = lua_toboolean(L, lua_upvalueindex(1));
  const int n = lua_gettop(L);
  check_count(L, max ? "max" : "min", 1, 100);
  plain(L, max ? "max" : "min");
  lua_pushvalue(L, 1);
  for (int i = 2; i <= n; i++) {
    push_extreme(L, max, -1, i);
    lua_remove(L, -2);
  }
  return 1;
}

static int call_clamp(lua_State *L) {
  check_count(L, "clamp", 3, 3);
  if (!plain(L, "clamp")) {
    const operand x = value_get(L, 1, "clamp"), lo = value_get(L, 2, "clamp"), hi = value_get(L, 3, "clamp");
    value_push(L, value_clamp(L, x, lo, hi));
    return 1;
  }
  push_extreme(L, true, 1, 2);
  push_extreme(L, false, -1, 3);
  return 1;
}

#define CONDITION "condition"

typedef struct condition {
  ir_ref ref;
} condition;

int functions_condition(lua_State *L) {
  const front_state *s = front_of(L);
  lua_settop(L, 1);
  if (s->mode != FRONT_TRACING || !s->selects || replay_reduces(L)) {
    lua_call(L, 0, 1);
    return 1;
  }
  const ir_ref value = replay_condition(L, 1);
  if (value == IR_NONE) return 1; /* where() refuses it */
  if (value == ir_bool(s->g, true) || value == ir_bool(s->g, false)) {
    lua_pushboolean(L, value == ir_bool(s->g, true));
    return 1;
  }
  condition *c = lua_newuserdatauv(L, sizeof *c, 0);
  c->ref = value;
  luaL_setmetatable(L, CONDITION);
  return 1;
}

/* Pushes condition ? x : y as one value. False: one of them is no number, or they are of two types. */
static bool push_select(lua_State *L, ir_ref c) {
  const front_state *s = front_of(L);
  ir *g = s->g;
  double constant;
  for (int i = 2; i <= 3; i++)
    if (lua_type(L, i) != LUA_TNUMBER && !value_is_traced(L, i)) return false;
  operand x = value_get(L, 2, "where"), y = value_get(L, 3, "where");
  if (x.ref == IR_NONE || y.ref == IR_NONE) return false;
  const ir_type type = ir_typeof(g, x.ref);
  if (type != ir_typeof(g, y.ref)) {
    /* Only an integer that floats of 32 bits have may become one. */
    operand *whole = type == IR_INT ? &x : &y;
    if (!ir_is_const(g, whole->ref, &constant) || fabs(constant) > 1 << 24) return false;
    whole->ref = ir_to_real(g, whole->ref);
  }
  const uint32_t depth = 1 + (x.depth > y.depth ? x.depth : y.depth);
  value_push(L, (operand){.ref = join_values(g, c, x.ref, y.ref, false), .depth = depth});
  return true;
}

static int call_where(lua_State *L) {
  check_count(L, "where", 3, 3);
  const condition *c = luaL_testudata(L, 1, CONDITION);
  if (c != NULL && push_select(L, c->ref)) return 1;
  if (c == NULL && !lua_isboolean(L, 1)) {
    front_raise(L, "where: the condition is %s; write a comparison such as where(x > 0, a, b)", front_kind(L, 1));
  }
  const bool holds = c != NULL ? replay_truth(L, c->ref) : lua_toboolean(L, 1);
  lua_pushvalue(L, holds ? 2 : 3);
  return 1;
}

static int call_eq(lua_State *L) {
  const bool equal = lua_toboolean(L, lua_upvalueindex(1));
  const char *name = equal ? "eq" : "ne";
  check_count(L, name, 2, 2);
  bool answer;
  const int type = lua_type(L, 1);
  if (type == lua_type(L, 2) && (type == LUA_TSTRING || type == LUA_TBOOLEAN))
    answer = lua_rawequal(L, 1, 2); /* conditions are decided by now */
  else if (plain(L, name))
    answer = lua_compare(L, 1, 2, LUA_OPEQ);
  else
    answer = value_compare(L, IR_EQ, value_get(L, 1, name), value_get(L, 2, name));
  lua_pushboolean(L, answer == equal);
  return 1;
}

/* Rows of the oracle have one element; of linear attention, it is told their sums one after another. */
static int sum_number(lua_State *L) {
  const front_state *s = front_of(L);
  struct front_numbers *n = s->numbers;
  if (s->spec->form == LUATTN_FORM_ATTENTION) return 1;
  const int at = n->asked_sums++;
  if (at == n->known_sums) n->next_term = lua_tonumber(L, 1);
  lua_pushnumber(L, at < n->known_sums ? n->sums[at] : 0);
  return 1;
}

static int call_reduce(lua_State *L) {
  const bool max = lua_toboolean(L, lua_upvalueindex(1));
  const char *name = max ? "reduce_max" : "reduce_sum";
  check_count(L, name, 1, 1);
  if (front_of(L)->mode == FRONT_NUMBERS) return sum_number(L);
  value_push(L, replay_reduce(L, max ? IR_REDUCE_MAX : IR_REDUCE_SUM, value_get(L, 1, name)));
  return 1;
}

/* Draws where positions are those of one score, or of one element: an online function steps over many of them. */
static void check_draws(lua_State *L) {
  static const char *const hooks[] = {"score_mod", "block_mask", "mask_mod", "query_mod", "key_mod", "value_mod"};
  const front_state *s = front_of(L);
  if (s->spec->form == LUATTN_FORM_LINEAR)
    front_raise(L, "random: linear_attention draws no random numbers; give them as an input with the axes they have");
  for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
    if (strcmp(s->hook, hooks[i]) == 0) return;
  front_raise(L, "random: is called in %s; draw in score_mod, block_mask, query_mod, key_mod or value_mod", s->hook);
}

/* The oracle's number for four integers. */
static int draw_number(lua_State *L) {
  const front_numbers *numbers = front_of(L)->numbers;
  long long at[4];
  for (int i = 0; i < 4; i++) at[i] = lua_tointeger(L, 1 + i);
  if (numbers->random == NULL) front_raise(L, "random: the oracle has no numbers to draw");
  lua_pushnumber(L, numbers->random(numbers->user, at));
  return 1;
}

int functions_random(lua_State *L) {
  static const char *const names[] = {"b", "h", "q_idx", "kv_idx"};
  front_state *s = front_of(L);
  ir_ref at[4];
  uint32_t depth = 0;
  check_count(L, "random", 4, 4);
  check_draws(L);
  for (int i = 3; i <= 4; i++) places_flatten(L, i);
  for (int i = 0; i < 4; i++) {
    const bool is_integer = value_is_traced(L, 1 + i) || lua_isinteger(L, 1 + i);
    operand x = s->mode == FRONT_TRACING || !is_integer ? value_get(L, 1 + i, "random") : (operand){0};
    if (s->mode == FRONT_TRACING) x = value_whole(L, x);
    if (!is_integer || (s->mode == FRONT_TRACING && ir_typeof(s->g, x.ref) != IR_INT))
      front_raise(L, "random: %s is a float; give an integer, as floor(x)", names[i]);
    at[i] = x.ref;
    if (x.depth > depth) depth = x.depth;
  }
  if (s->mode == FRONT_NUMBERS) return draw_number(L);
  value_push(L, (operand){.ref = ir_random(s->g, at), .depth = depth + 1});
  return 1;
}

static int call_tointeger(lua_State *L) {
  check_count(L, "tointeger", 1, 1);
  lua_Integer whole;
  if (value_is_traced(L, 1)) {
    const operand x = value_whole(L, value_get(L, 1, "tointeger"));
    if (ir_typeof(front_of(L)->g, x.ref) != IR_INT)
      front_raise(L, "tointeger: a traced float may not be whole; use floor()");
  } else if (lua_isinteger(L, 1)) {
    return 1;
  } else if (lua_type(L, 1) == LUA_TNUMBER && lua_numbertointeger(lua_tonumber(L, 1), &whole) &&
             (double)whole == lua_tonumber(L, 1)) {
    lua_pushinteger(L, whole);
  } else {
    luaL_pushfail(L);
  }
  return 1;
}

/* math.type */
static int call_math_type(lua_State *L) {
  check_count(L, "type", 1, 1);
  if (value_is_traced(L, 1)) {
    const operand x = value_whole(L, value_get(L, 1, "type"));
    lua_pushstring(L, ir_typeof(front_of(L)->g, x.ref) == IR_INT ? "integer" : "float");
  } else if (lua_type(L, 1) == LUA_TNUMBER) {
    lua_pushstring(L, lua_isinteger(L, 1) ? "integer" : "float");
  } else {
    luaL_pushfail(L);
  }
  return 1;
}

static void add(lua_State *L, const char *name, lua_CFunction f) {
  lua_pushcfunction(L, f);
  lua_setfield(L, -2, name);
}

static void add_flagged(lua_State *L, const char *name, lua_CFunction f, bool flag) {
  lua_pushboolean(L, flag);
  lua_pushcclosure(L, f, 1);
  lua_setfield(L, -2, name);
}

void functions_add(lua_State *L, bool also_math) {
  for (ir_op op = 0; op < IR_OP_COUNT; op++) {
    if (!ir_op_called(op)) continue;
    lua_pushinteger(L, op);
    lua_pushcclosure(L, call_op, 1);
    lua_setfield(L, -2, ir_op_name(op));
  }
  add(L, "floor", call_floor);
  add(L, "ceil", call_ceil);
  add(L, "log", call_log);
  add(L, "pow", call_pow);
  add(L, "clamp", call_clamp);
  add_flagged(L, "min", call_extreme, false);
  add_flagged(L, "max", call_extreme, true);
  luaL_newmetatable(L, CONDITION);
  lua_pop(L, 1);
  if (also_math) {
    add(L, "tointeger", call_tointeger);
    add(L, "type", call_math_type);
    return;
  }
  add(L, "where", call_where);
  add_flagged(L, "eq", call_eq, true);
  add_flagged(L, "ne", call_eq, false);
  add_flagged(L, "reduce_max", call_reduce, true);
  add_flagged(L, "reduce_sum", call_reduce, false);
}
