#include "gen/lua/row.h"

#include <string.h>

#include "gen/lua/numbers.h"
#include "gen/lua/value.h"

bool row_in_mod(lua_State *L) {
  static const char *const mods[] = {"query_mod", "key_mod", "value_mod"};
  const char *hook = front_of(L)->hook;
  for (size_t i = 0; hook != NULL && i < sizeof mods / sizeof *mods; i++)
    if (strcmp(hook, mods[i]) == 0) return true;
  return false;
}

/* What an index depends on besides the channel; NULL: nothing. */
static const char *other_leaf(const ir *g, ir_ref index) {
  for (int v = 0; v < VAR_COUNT; v++)
    if (v != VAR_D && v != VAR_HEAD_DIM && v != VAR_HEAD_DIM_V && ir_uses(g, index, (ir_var)v))
      return v == VAR_SCALAR ? "a scalar" : ir_var_name((ir_var)v);
  return ir_uses_op(g, index, IR_LOAD) ? "an input" : ir_uses_op(g, index, IR_RANDOM) ? "random()" : NULL;
}

/* An integer of d and constants: which permutation of the channels it is can be told once the head dim is
 * known. */
static ir_ref take_index(lua_State *L) {
  const front_state *s = front_of(L);
  if (lua_type(L, 2) == LUA_TNUMBER && !lua_isinteger(L, 2))
    front_raise(L, "x[..]: the channel is the float %f; channels are integers, so use // or floor()",
                lua_tonumber(L, 2));
  const ir_ref index = value_get(L, 2, "x[..]").ref;
  if (ir_typeof(s->g, index) != IR_INT)
    front_raise(L, "x[..]: the channel is a float expression; channels are integers, so use // or floor()");
  const char *other = other_leaf(s->g, index);
  if (other != NULL)
    front_raise(L, "x[..]: the channel depends on %s; compute it from d and head_dim alone, as in x[d ~ 1]", other);
  return index;
}

static uint32_t number_of(lua_State *L, ir_ref index) {
  traced_spec *t = front_of(L)->spec;
  for (int i = 0; i < t->num_reads; i++)
    if (t->read[i] == index) return (uint32_t)i;
  if (t->num_reads == SPEC_MAX_READS)
    front_raise(L,
                "x[..]: the input mods read their rows at more than %d channels, each way through a "
                "comparison counting apart; compute the channel without branches, as in x[(d + n) %% (2 * n)]",
                SPEC_MAX_READS);
  t->read[t->num_reads] = index;
  t->read_line[t->num_reads] = front_line(L);
  return (uint32_t)t->num_reads++;
}

bool row_push_read(lua_State *L) {
  front_state *s = front_of(L);
  if (s->mode != FRONT_TRACING || !row_in_mod(L)) return false;
  if (lua_type(L, 2) != LUA_TNUMBER && !value_is_traced(L, 2)) return false;
  if (s->spec->form == LUATTN_FORM_LINEAR)
    front_raise(
        L,
        "x[..]: a hook of linear_attention has one channel of its row, and sums over all of them by reduce_sum; "
        "permute channels before the call");
  if (value_input_name(L, 1) != NULL) return false; /* an input of no axes */
  const operand x = value_get(L, 1, "x[..]");
  if (!ir_is_var(s->g, x.ref, VAR_X))
    front_raise(L,
                "a number that %s has computed is indexed; only the element that it is given has others "
                "beside it, so read x[..] first (in chain, the function that reads x[..] comes first)",
                s->hook);
  const ir_ref index = take_index(L);
  if (ir_is_var(s->g, index, VAR_D)) return value_push(L, x), true;
  value_push_leaf(L, ir_variable(s->g, VAR_READ, number_of(L, index)));
  return true;
}

/* Of any number: x is one, and no other is read in a spec that could be traced. */
static int read_number(lua_State *L) {
  const front_numbers *n = front_of(L)->numbers;
  if (!row_in_mod(L) || n->row == NULL || !lua_isinteger(L, 2))
    front_raise(L, "a number is indexed; only inputs and tables have elements");
  const lua_Integer d = lua_tointeger(L, 2);
  if (d < 0 || d >= n->row_size)
    front_raise(L, "x[..]: channel %lld is outside of 0 .. %d", (long long)d, n->row_size - 1);
  lua_pushnumber(L, n->row[d]);
  return 1;
}

void row_open_numbers(lua_State *L) {
  lua_pushnumber(L, 0); /* all numbers share one metatable */
  lua_newtable(L);
  lua_pushcfunction(L, read_number);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_pop(L, 1);
}

void row_push_head_dim(lua_State *L, bool of_v) {
  const front_state *s = front_of(L);
  const bool is_attention = s->spec->form == LUATTN_FORM_ATTENTION;
  of_v |= is_attention && s->hook != NULL && strcmp(s->hook, "value_mod") == 0;
  if (s->mode == FRONT_NUMBERS)
    lua_pushinteger(L, of_v ? s->numbers->head_dim_v : s->numbers->head_dim);
  else
    value_push_leaf(L, ir_variable(s->g, of_v ? VAR_HEAD_DIM_V : VAR_HEAD_DIM, 0));
}
