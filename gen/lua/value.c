#include "gen/lua/value.h"

#include <math.h>
#include <string.h>

#include "gen/lua/gather.h"
#include "gen/lua/replay.h"

#define DEPTH_MAX 4096u
#define NODES_MAX 262144u
#define EXACT_INT (INT64_C(1) << 53) /* of doubles, in which constants are folded */

typedef struct traced_value {
  operand x;
  uint32_t generation;
} traced_value;

bool value_is_traced(lua_State *L, int index) { return luaL_testudata(L, index, VALUE_METATABLE) != NULL; }

void value_push(lua_State *L, operand x) {
  const front_state *s = front_of(L);
  if (x.ref == IR_NONE || ir_failed(s->g)) front_no_memory(L);
  if (x.depth > DEPTH_MAX) {
    front_raise(L, "%s: an expression is nested deeper than %u operations; shorten the loop that builds it", s->hook,
                DEPTH_MAX);
  }
  if (ir_count(s->g) > NODES_MAX) {
    front_raise(L, "%s: the trace is longer than %u operations; shorten the loop that builds it", s->hook, NODES_MAX);
  }
  traced_value *v = lua_newuserdatauv(L, sizeof *v, 0);
  *v = (traced_value){.x = x, .generation = s->generation};
  luaL_setmetatable(L, VALUE_METATABLE);
}

void value_push_leaf(lua_State *L, ir_ref leaf) { value_push(L, (operand){.ref = leaf, .depth = 1}); }

static operand constant(lua_State *L, int index, const char *what) {
  ir *g = front_of(L)->g;
  if (lua_isinteger(L, index)) {
    const lua_Integer x = lua_tointeger(L, index);
    /* Beyond 32 bits it may yet be that only its low bits count: front.c. */
    if (x < -EXACT_INT || x > EXACT_INT) front_raise(L, VALUE_TOO_LARGE, what, (long long)x);
    return (operand){.ref = ir_int(g, x), .depth = 1};
  }
  const double x = lua_tonumber(L, index);
  if (isnan(x)) front_raise(L, "%s: the number is NaN; a spec computes with numbers that compare", what);
  return (operand){.ref = ir_real(g, x), .depth = 1};
}

static void note_operand(front_state *s, ir_ref r) {
  const ir_node *n = ir_get(s->g, r);
  if (n->op == IR_LOAD) s->computed_with |= UINT32_C(1) << n->imm.integer;
}

operand value_get(lua_State *L, int index, const char *what) {
  ir_set_line(front_of(L)->g, (uint32_t)front_line(L)); /* nodes built next carry the calling line */
  const traced_value *v = luaL_testudata(L, index, VALUE_METATABLE);
  if (v != NULL) {
    if (v->generation != front_of(L)->generation) {
      front_raise(L,
                  "%s: a traced value was kept from an earlier call; a hook is called many times and must "
                  "not store values "
                  "outside itself",
                  what);
    }
    note_operand(front_of(L), v->x.ref);
    return v->x;
  }
  if (lua_type(L, index) == LUA_TNUMBER) return constant(L, index, what);
  gather_refuse_unindexed(L, index, what);
  if (lua_isboolean(L, index)) {
    front_raise(L, "%s: a boolean stands where a number is needed; write where(condition, 1, 0)", what);
  }
  front_raise(L, "%s: %s stands where a number is needed%s", what, front_kind(L, index),
              lua_isfunction(L, index) ? "; call it, as in softcap(50)(score, b, h, q_idx, kv_idx)" : "");
}

const char *value_input_name(lua_State *L, int index) {
  const front_state *s = front_of(L);
  const ir_node *n = ir_get(s->g, value_get(L, index, "an index").ref);
  if (n->op != IR_LOAD || s->spec->input[n->imm.integer].num_axes > 0) return NULL;
  return s->spec->input[n->imm.integer].name;
}

static uint32_t deeper(operand a, operand b) { return 1 + (a.depth > b.depth ? a.depth : b.depth); }

operand value_unary(lua_State *L, ir_op op, operand a) {
  ir *g = front_of(L)->g;
  if (a.ref == IR_NONE) front_no_memory(L);
  const bool keeps_int = op == IR_NEG || op == IR_ABS;
  const ir_ref x = keeps_int ? a.ref : ir_to_real(g, a.ref);
  return (operand){.ref = ir_op1(g, op, x), .depth = a.depth + 1};
}

operand value_floor(lua_State *L, operand a) {
  ir *g = front_of(L)->g;
  if (a.ref == IR_NONE) front_no_memory(L);
  if (ir_typeof(g, a.ref) == IR_INT) return a;
  return (operand){.ref = ir_op1(g, ir_is_wide(g, a.ref) ? IR_FLOOR : IR_FLOOR_INT, a.ref), .depth = a.depth + 1};
}

/* Whether a REAL is made of floor() and integers so that it is one. */
static bool is_whole(const ir *g, ir_ref r) {
  const ir_node *n = ir_get(g, r);
  double c;
  if (ir_is_const(g, r, &c)) return c == floor(c) && isfinite(c);
  if (n->op == IR_FLOOR || n->op == IR_TO_REAL) return true;
  if (n->op != IR_ADD && n->op != IR_SUB && n->op != IR_MUL && n->op != IR_NEG && n->op != IR_MOD &&
      n->op != IR_FLOORDIV && n->op != IR_MIN && n->op != IR_MAX && n->op != IR_CLAMP && n->op != IR_ABS)
    return false;
  for (int i = 0; i < n->nargs; i++)
    if (!is_whole(g, n->arg[i])) return false;
  return true;
}

/* Whether min, max or clamp keep a number within 32 bits. */
static bool is_bounded(const ir *g, ir_ref r) {
  bool above = false, below = false;
  double c;
  for (const ir_node *n = ir_get(g, r); n->op == IR_MIN || n->op == IR_MAX || n->op == IR_CLAMP;
       n = ir_get(g, n->arg[0]))
    for (int i = 1; i < n->nargs; i++) {
      const bool upper = n->op == IR_MIN || i == 2;
      if (ir_is_const(g, n->arg[i], &c) && fabs(c) <= INT32_MAX) *(upper ? &above : &below) = true;
    }
  return above && below;
}

operand value_whole(lua_State *L, operand a) {
  ir *g = front_of(L)->g;
  if (ir_typeof(g, a.ref) == IR_INT || !ir_is_wide(g, a.ref) || !is_whole(g, a.ref)) return a;
  return (operand){.ref = ir_op1(g, IR_FLOOR_INT, a.ref), .depth = a.depth + 1};
}

static bool is_zero(const ir *g, ir_ref r) {
  double x;
  return ir_is_const(g, r, &x) && x == 0;
}

operand value_arith(lua_State *L, ir_op op, operand a, operand b) {
  ir *g = front_of(L)->g;
  if (a.ref == IR_NONE || b.ref == IR_NONE) front_no_memory(L);
  const bool ints = ir_typeof(g, a.ref) == IR_INT && ir_typeof(g, b.ref) == IR_INT;
  const uint32_t depth = deeper(a, b);
  if (ints && op != IR_DIV && op != IR_POW) {
    if ((op == IR_FLOORDIV || op == IR_MOD) && is_zero(g, b.ref)) {
      front_raise(L, "%s: an integer is divided by zero" DIVIDED_BY_ZERO, op == IR_MOD ? "%" : "//");
    }
    return (operand){.ref = ir_op2(g, op, a.ref, b.ref), .depth = depth};
  }
  const ir_ref x = ir_to_real(g, a.ref), y = ir_to_real(g, b.ref);
  return (operand){.ref = ir_op2(g, op, x, y), .depth = depth};
}

/* Whether an integer is provably never below 0. `deep` bounds the search. */
static bool never_negative(const front_state *s, ir_ref r, int deep) {
  const ir *g = s->g;
  const ir_node n = *ir_get(g, r);
  double c;
  if (deep == 0) return false;
  switch (n.op) {
    case IR_CONST_INT:
      return n.imm.integer >= 0;
    case IR_VAR: /* positions, lengths and the numbers of batch entries, heads and channels */
      return true;
    case IR_LOAD:
      return s->spec->input[n.imm.integer].dtype == LUATTN_INPUT_U8;
    case IR_MOD:
      return ir_is_const(g, n.arg[1], &c) && c > 0;
    case IR_FLOORDIV:
      return ir_is_const(g, n.arg[1], &c) && c > 0 && never_negative(s, n.arg[0], deep - 1);
    case IR_MAX:
    case IR_BAND:
      return never_negative(s, n.arg[0], deep - 1) || never_negative(s, n.arg[1], deep - 1);
    case IR_SHR_BAND:
      return never_negative(s, n.arg[2], deep - 1);
    case IR_ABS: /* of -2^63 it is that */
      return !ir_is_wide(g, r);
    case IR_ADD:
    case IR_MUL:
    case IR_MIN:
    case IR_BOR:
    case IR_BXOR:
      return never_negative(s, n.arg[0], deep - 1) && never_negative(s, n.arg[1], deep - 1);
    case IR_SELECT:
      return never_negative(s, n.arg[1], deep - 1) && never_negative(s, n.arg[2], deep - 1);
    default:
      return false;
  }
}

enum { LOOKED_AT = 12 };

/* x << n for n from -63 to 63. A shift by a constant becomes a product, or a quotient if x is not negative,
 * because mask analysis understands these. */
static ir_ref shifted(const front_state *s, ir_ref x, int n) {
  ir *g = s->g;
  if (n >= 0 && n <= 30) return ir_op2(g, IR_MUL, x, ir_int(g, INT64_C(1) << n));
  if (n < 0 && n >= -30 && never_negative(s, x, LOOKED_AT))
    return ir_op2(g, IR_FLOORDIV, x, ir_int(g, INT64_C(1) << -n));
  return n >= 0 ? ir_op2(g, IR_SHL, x, ir_int(g, n)) : ir_op2(g, IR_SHR, x, ir_int(g, -n));
}

/* x & m with a constant m: a remainder, if m + 1 is a power of two. */
static ir_ref masked(ir *g, ir_ref x, ir_ref m) {
  double c;
  if (ir_get(g, x)->op == IR_SHR) {
    const ir_node n = *ir_get(g, x);
    return ir_op3(g, IR_SHR_BAND, n.arg[0], n.arg[1], m);
  }
  if (!ir_is_const(g, m, &c) || c < 1 || c >= INT32_MAX) return IR_NONE;
  const int64_t size = (int64_t)c + 1;
  return (size & (size - 1)) == 0 ? ir_op2(g, IR_MOD, x, ir_int(g, size)) : IR_NONE;
}

operand value_bits(lua_State *L, ir_op op, operand a, operand b) {
  ir *g = front_of(L)->g;
  if (a.ref == IR_NONE || b.ref == IR_NONE) front_no_memory(L);
  const uint32_t depth = deeper(a, b);
  double n;
  if (op == IR_SHL || op == IR_SHR) {
    if (!ir_is_const(g, b.ref, &n)) return (operand){.ref = ir_op2(g, op, a.ref, b.ref), .depth = depth};
    if (!(n > -64 && n < 64)) return (operand){.ref = ir_int(g, 0), .depth = depth};
    return (operand){.ref = shifted(front_of(L), a.ref, op == IR_SHL ? (int)n : -(int)n), .depth = depth};
  }
  ir_ref r = op == IR_BAND ? masked(g, a.ref, b.ref) : IR_NONE;
  if (op == IR_BAND && r == IR_NONE) r = masked(g, b.ref, a.ref);
  return (operand){.ref = r != IR_NONE ? r : ir_op2(g, op, a.ref, b.ref), .depth = depth};
}

operand value_clamp(lua_State *L, operand x, operand lo, operand hi) {
  front_state *s = front_of(L);
  ir *g = s->g;
  if (x.ref == IR_NONE || lo.ref == IR_NONE || hi.ref == IR_NONE) front_no_memory(L);
  const bool ints = ir_typeof(g, x.ref) == IR_INT && ir_typeof(g, lo.ref) == IR_INT && ir_typeof(g, hi.ref) == IR_INT;
  const bool of_mask = s->hook != NULL && strcmp(s->hook, "block_mask") == 0;
  if (ints || of_mask) return value_arith(L, IR_MIN, value_arith(L, IR_MAX, x, lo), hi);
  const ir_ref a = ir_to_real(g, x.ref), b = ir_to_real(g, lo.ref), c = ir_to_real(g, hi.ref);
  const uint32_t bounds = deeper(lo, hi);
  return (operand){.ref = ir_op3(g, IR_CLAMP, a, b, c), .depth = x.depth >= bounds ? x.depth + 1 : bounds};
}

/* Compares an integer with a float constant as integers, as Lua does: i < 2.5 is i < 3. Index arithmetic
 * stays exact beyond 2^24, and mask analysis gets an integer comparison. */
static ir_ref round_constant(ir *g, ir_op op, ir_ref r, bool wide, double x, bool constant_is_left, int *answer) {
  if (wide ? fabs(x) > 0x1p63 : x > INT32_MAX || x < INT32_MIN) {
    *answer = op != IR_EQ && (x > 0) != constant_is_left;
    return r;
  }
  const double whole = floor(x);
  if (fabs(x) > 0x1p53) return r; /* compared as floats, as Lua does */
  if (whole == x) return ir_int(g, (int64_t)x);
  if (op == IR_EQ) {
    *answer = false;
    return r;
  }
  const bool up = (op == IR_LT) != constant_is_left;
  return ir_int(g, (int64_t)whole + up);
}

/* floor(x) of data, which may lie beyond 32 bits. */
static bool is_floor_of_data(const ir *g, ir_ref r) {
  return ir_get(g, r)->op == IR_FLOOR_INT && (ir_uses_op(g, r, IR_LOAD) || ir_uses(g, r, VAR_SCORE));
}

bool value_compare(lua_State *L, ir_op op, operand a, operand b) {
  ir *g = front_of(L)->g;
  ir_ref x = a.ref, y = b.ref;
  if (x == IR_NONE || y == IR_NONE) front_no_memory(L);
  if (is_floor_of_data(g, x) && is_floor_of_data(g, y)) {
    x = ir_op1(g, IR_FLOOR, ir_get(g, x)->arg[0]);
    y = ir_op1(g, IR_FLOOR, ir_get(g, y)->arg[0]);
  }
  const bool x_int = ir_typeof(g, x) == IR_INT, y_int = ir_typeof(g, y) == IR_INT;
  if (x_int != y_int) {
    double value;
    int answer = -1;
    if (x_int && ir_is_const(g, y, &value)) y = round_constant(g, op, y, ir_is_wide(g, x), value, false, &answer);
    if (y_int && ir_is_const(g, x, &value)) x = round_constant(g, op, x, ir_is_wide(g, y), value, true, &answer);
    if (answer >= 0) return answer;
    if (ir_typeof(g, x) != ir_typeof(g, y)) {
      x = ir_to_real(g, x);
      y = ir_to_real(g, y);
    }
  }
  return replay_compare(L, op, x, y);
}

/* Metamethods. */

typedef struct arith_row {
  const char *event, *sign;
  ir_op op;
} arith_row;

static const arith_row arithmetic[] = {
    {"__add", "+", IR_ADD}, {"__sub", "-", IR_SUB},        {"__mul", "*", IR_MUL}, {"__div", "/", IR_DIV},
    {"__mod", "%", IR_MOD}, {"__idiv", "//", IR_FLOORDIV}, {"__pow", "^", IR_POW},
};

static int meta_arith(lua_State *L) {
  const arith_row *row = &arithmetic[lua_tointeger(L, lua_upvalueindex(1))];
  const operand a = value_get(L, 1, row->sign);
  const operand b = value_get(L, 2, row->sign);
  value_push(L, value_arith(L, row->op, a, b));
  return 1;
}

static const arith_row bitwise[] = {
    {"__band", "&", IR_BAND}, {"__bor", "|", IR_BOR},  {"__bxor", "~", IR_BXOR},
    {"__shl", "<<", IR_SHL},  {"__shr", ">>", IR_SHR},
};

/* Accepts a float constant with an integral value, as Lua does. */
static operand get_bits(lua_State *L, int index, const char *sign) {
  ir *g = front_of(L)->g;
  operand x = value_get(L, index, sign);
  double c;
  if (ir_typeof(g, x.ref) == IR_INT) return x;
  if (ir_is_wide(g, x.ref) && is_whole(g, x.ref) && is_bounded(g, x.ref)) return value_whole(L, x);
  if (ir_is_wide(g, x.ref) && is_whole(g, x.ref))
    front_raise(L,
                "%s takes integers of 32 bits, and floor(x) of an f64 input is not bound to them; write "
                "clamp(floor(x), 0, 2147483647)",
                sign);
  if (!ir_is_const(g, x.ref, &c))
    front_raise(L, "%s takes integers, and this is a float; write floor(x), which is an integer", sign);
  if (c != floor(c) || fabs(c) > (double)EXACT_INT)
    front_raise(L, "%s takes integers, and %.14g is none, or is too large for one", sign, c);
  x.ref = ir_int(g, (int64_t)c);
  return x;
}

static int meta_bits(lua_State *L) {
  const arith_row *row = &bitwise[lua_tointeger(L, lua_upvalueindex(1))];
  const operand a = get_bits(L, 1, row->sign);
  const operand b = get_bits(L, 2, row->sign);
  value_push(L, value_bits(L, row->op, a, b));
  return 1;
}

/* ~x is -1 - x. */
static int meta_bnot(lua_State *L) {
  const operand x = get_bits(L, 1, "~");
  const operand ones = {.ref = ir_int(front_of(L)->g, -1), .depth = 1};
  value_push(L, value_arith(L, IR_SUB, ones, x));
  return 1;
}

static int meta_unm(lua_State *L) {
  value_push(L, value_unary(L, IR_NEG, value_get(L, 1, "-")));
  return 1;
}

static int meta_compare(lua_State *L) {
  const bool strict = lua_toboolean(L, lua_upvalueindex(1));
  const operand a = value_get(L, 1, "comparison");
  const operand b = value_get(L, 2, "comparison");
  lua_pushboolean(L, value_compare(L, strict ? IR_LT : IR_LE, a, b));
  return 1;
}

static int meta_eq(lua_State *L) { front_raise(L, "== cannot compare traced values; use eq(a, b) or ne(a, b)"); }

static int meta_tostring(lua_State *L) {
  front_raise(L,
              "a traced number is made a string, but its value is not known yet; a hook computes with "
              "numbers, and `luattn emit --stage ir` shows the trace");
}

void value_open(lua_State *L) {
  luaL_newmetatable(L, VALUE_METATABLE);
  for (size_t i = 0; i < sizeof arithmetic / sizeof *arithmetic; i++) {
    lua_pushinteger(L, (lua_Integer)i);
    lua_pushcclosure(L, meta_arith, 1);
    lua_setfield(L, -2, arithmetic[i].event);
  }
  for (size_t i = 0; i < sizeof bitwise / sizeof *bitwise; i++) {
    lua_pushinteger(L, (lua_Integer)i);
    lua_pushcclosure(L, meta_bits, 1);
    lua_setfield(L, -2, bitwise[i].event);
  }
  lua_pushcfunction(L, meta_bnot);
  lua_setfield(L, -2, "__bnot");
  for (int strict = 0; strict < 2; strict++) {
    lua_pushboolean(L, strict);
    lua_pushcclosure(L, meta_compare, 1);
    lua_setfield(L, -2, strict ? "__lt" : "__le");
  }
  lua_pushcfunction(L, meta_unm);
  lua_setfield(L, -2, "__unm");
  lua_pushcfunction(L, meta_eq);
  lua_setfield(L, -2, "__eq");
  lua_pushcfunction(L, meta_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_pop(L, 1);
}
