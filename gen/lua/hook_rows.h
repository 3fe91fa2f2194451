/* hook_rows.h: the table of hooks: their names, their arguments, and what they count. */
#ifndef LUATTN_GEN_LUA_HOOK_ROWS_H
#define LUATTN_GEN_LUA_HOOK_ROWS_H

#include "gen/lua/state.h"

#define HOOK_MAX_ARGS 9

typedef enum hook_id {
  HOOK_SCORE_MOD,
  HOOK_BLOCK_MASK,
  HOOK_QUERY_MOD,
  HOOK_KEY_MOD,
  HOOK_VALUE_MOD, /* fields of attention {..} */
  HOOK_INIT,
  HOOK_ONLINE_FWD,
  HOOK_EPILOGUE,
  HOOK_FORWARD,
  HOOK_BACKWARD, /* fields of online_func */
  HOOK_LINEAR_QUERY,
  HOOK_LINEAR_KEY,
  HOOK_LINEAR_VALUE,
  HOOK_LINEAR_DECAY,
  HOOK_LINEAR_WRITE,
  HOOK_LINEAR_READ,
  HOOK_LINEAR_ERASE,
  HOOK_LINEAR_SKIP, /* fields of linear_attention {..}, and of its `update` */
  HOOK_COUNT
} hook_id;

/* What h counts in a hook, and whose channels d counts. */
enum { HOOK_HEADS_KV = 1, HOOK_CHANNELS_K = 2, HOOK_CHANNELS_V = 4 };

typedef struct hook_row {
  const char *name, *params;
  int count;                 /* number of arguments; the function may have fewer parameters */
  ir_var arg[HOOK_MAX_ARGS]; /* VAR_STATE and VAR_FINAL stand for the table of row scalars */
  unsigned of;               /* HOOK_HEADS_KV, .. */
} hook_row;

const hook_row *hook_get(hook_id id);
/* Whether the hook is a field of the form that the file declares; while it is loaded, of any. */
bool hook_is_of_form(lua_State *L, hook_id id);
const hook_row *hook_running(lua_State *L); /* NULL: none */

#endif
