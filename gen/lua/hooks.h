/* hooks.h: calls the hooks of a spec, with traced values or numbers: their arguments and their results. */
#ifndef LUATTN_GEN_LUA_HOOKS_H
#define LUATTN_GEN_LUA_HOOKS_H

#include "gen/lua/hook_rows.h"
#include "gen/lua/replay.h"

/* Raises unless the value at the top of the stack is a function with the hook's parameters, the last of which
 * may be left out. `name` is for messages. */
void hook_check(lua_State *L, hook_id id, const char *name);
int hook_line_of(lua_State *L, int index); /* the line of the function, or of the form */

/* Raises if an undefined name is an argument of some hook: in this hook it has another name, or does not
 * exist. */
void hook_refuse_argument(lua_State *L, const char *name);
void hook_suggest(lua_State *L, front_suggestion *s); /* the arguments of the running hook */

/* Calls the function at stack index `function`; its results are on top. Returns how many. */
int hook_call(lua_State *L, hook_id id, int function);
/* Takes the number at `index` as the next result, as REAL. `what` names it ("score_mod", "online_fwd:
 * o_scale"). */
void hook_take_number(lua_State *L, int index, const char *what, replay_result *out);
void hook_take_leaf(lua_State *L, ir_var v, uint32_t index, replay_result *out);

/* The hooks of a form, form_row.first to last: traces field `id` of the table at `table`; IR_NONE if it is absent. */
ir_ref hook_trace(lua_State *L, int table, hook_id id);
void hook_run_mod(lua_State *L, int function, void *id, replay_result *out); /* user: const hook_id * */
const char *hook_push_field(lua_State *L, int table,
                            hook_id id); /* its name (mask_mod is another for block_mask), or NULL */

#endif
