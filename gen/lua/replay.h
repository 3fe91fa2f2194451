/* replay.h: traces a hook by calling it for each combination of comparison outcomes.
 *
 * Lua turns the result of a comparison into a boolean, so a comparison of traced values must answer true or
 * false. A replay answers known questions as its script says, and the first new one with true; the other
 * answer is the next replay (depth first). Results of the two answers are joined: select nodes for numbers,
 * and/or/not for masks.
 *
 * Reductions. In online_fwd a question may concern one element (it depends on the score) or the whole row. A
 * reduction covers every element of the row, also those with other answers, so its argument is joined over
 * the element questions asked before it. While replays run, a reduction is therefore a placeholder (VAR_RED)
 * for what is known only at the end. Where the elements of one answer ask something about the row that the others do
 * not, as in where(where(s < x, s, x) < 3, ..), the hook is traced again with that as a question about an element.
 *
 * Values of conditions. The ways double with each where(condition, x, y) of a loop. If there are too many,
 * the spec is loaded again with each condition written as a function (scan_conditions), which is replayed by
 * itself, and where() gives a select node at once. What the condition says is then not known after where(),
 * so mask analysis may say less; hence only then.
 *
 * Each call is made twice: a hook that remembers something is not a function of its arguments, which shows as
 * another question or another result.
 */
#ifndef LUATTN_GEN_LUA_REPLAY_H
#define LUATTN_GEN_LUA_REPLAY_H

#include "gen/lua/value.h"

#define REPLAY_MAX_RESULTS 10 /* prob, rescale and 8 states */
#define REPLAY_MAX_REDUCTIONS 32

typedef struct replay_reduction {
  uint32_t placeholder;
  ir_ref argument;
} replay_reduction;

/* The results of one call of a hook: numbers (INT or REAL) or one BOOL. */
typedef struct replay_result {
  int count;
  ir_ref value[REPLAY_MAX_RESULTS];
  int num_reductions;
  replay_reduction reduction[REPLAY_MAX_REDUCTIONS];
} replay_result;

typedef struct replay_hook {
  const char *name;
  int line; /* where the hook was written */
  /* Calls the function at stack index `function` with fresh arguments and stores its checked results. */
  void (*call)(lua_State *L, int function, void *user, replay_result *out);
  void *user;
  bool reduces;       /* reduce_sum and reduce_max of the row's scores are allowed */
  bool sums_channels; /* reduce_sum of a row's channels is, one level */
} replay_hook;

/* Traces the function at stack index `function`. */
void replay_run(lua_State *L, int function, const replay_hook *hook, replay_result *out);

bool replay_compare(lua_State *L, ir_op op, ir_ref a, ir_ref b); /* op LT, LE or EQ; a and b of one type */
bool replay_truth(lua_State *L, ir_ref condition);               /* a BOOL that is not a comparison: a load */
bool replay_implies_less(lua_State *L, ir_ref a,
                         ir_ref b); /* a < b, by what this call has asked so far; asks nothing */
operand replay_reduce(lua_State *L, ir_op op, operand x);

/* The BOOL that the function at stack index `function` returns, called once for each combination of outcomes
 * of the comparisons in it alone. IR_NONE: it returned something else, which is left on the stack. */
ir_ref replay_condition(lua_State *L, int function);
bool replay_reduces(lua_State *L); /* the running hook may reduce rows */

/* join.c: an expression equal to `yes` where `condition` holds and to `no` elsewhere. `factors`: c ? x + y
 * : x becomes x + (c ? y : -0.0), so that a chain of joins grows like the chain. */
ir_ref join_values(ir *g, ir_ref condition, ir_ref yes, ir_ref no, bool factors);
ir_ref join_masks(ir *g, ir_ref condition, ir_ref yes, ir_ref no);

#endif
