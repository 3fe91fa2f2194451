/* value.h: traced values, which hooks compute with while they are traced. A traced value is a userdata that
 * names an IR node. */
#ifndef LUATTN_GEN_LUA_VALUE_H
#define LUATTN_GEN_LUA_VALUE_H

#include "gen/lua/state.h"

typedef struct operand {
  ir_ref ref;
  uint32_t depth; /* longest chain of operations under it; bounds the recursion of later passes */
} operand;

#define VALUE_METATABLE "traced number"

void value_open(lua_State *L);                 /* registers the metatable */
bool value_is_traced(lua_State *L, int index); /* a traced number */
void value_push(lua_State *L, operand x);      /* checks for memory and the limits of a trace */
void value_push_leaf(lua_State *L, ir_ref leaf);
/* The number or traced number at `index`. Raises for everything else; `what` names it in messages. */
operand value_get(lua_State *L, int index, const char *what);
/* The name of the input without axes behind the traced number at `index`; NULL: it is none. */
const char *value_input_name(lua_State *L, int index);

/* Arithmetic with Lua's rules: INT op INT stays INT where Lua says so, otherwise both become REAL. */
operand value_arith(lua_State *L, ir_op op, operand a, operand b);
/* &, |, ~, << and >> of INTs, as Lua has them. */
operand value_bits(lua_State *L, ir_op op, operand a, operand b);
/* min(max(x, lo), hi). Without a gradient (of integers, in a mask) it is built from MIN and MAX, which range
 * analysis knows. */
operand value_clamp(lua_State *L, operand x, operand lo, operand hi);
operand value_unary(lua_State *L, ir_op op, operand a); /* result REAL, except NEG and ABS of an INT */
operand value_floor(lua_State *L, operand a);           /* INT; of a number of 64 bits a REAL that is whole */
/* A REAL that is whole, as an INT, which beyond 32 bits is the nearest number of these; others as they are. */
operand value_whole(lua_State *L, operand a);
/* The answer of a comparison in this replay. op is LT, LE or EQ. */
bool value_compare(lua_State *L, ir_op op, operand a, operand b);

#define VALUE_TOO_LARGE "%s: integer %lld does not fit the 32 bits of index arithmetic; use a float such as math.huge"

#endif
