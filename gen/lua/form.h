/* form.h: what the forms of a spec, attention {..} and linear_attention {..}, differ in: their hooks and the axes of
 * their inputs. */
#ifndef LUATTN_GEN_LUA_FORM_H
#define LUATTN_GEN_LUA_FORM_H

#include "gen/lua/hook_rows.h"

/* What an index counts. */
typedef enum axis_kind {
  COUNTS_OTHER,
  COUNTS_BATCH,
  COUNTS_HEADS,
  COUNTS_HEADS_KV,
  COUNTS_POSITIONS,
  COUNTS_TOKENS,
  COUNTS_CHANNELS,
  COUNTS_CHANNELS_V
} axis_kind;

typedef struct form_axis {
  const char *name;
  int32_t axis; /* luattn_axis */
  axis_kind kind;
  /* How an input is indexed along it in a hook of query heads, and in one of kv heads, or value heads. */
  const char *index, *index_kv;
} form_axis;

/* A common name for an axis, which as a free axis would not be checked. */
typedef struct axis_synonym {
  const char *name, *means;
} axis_synonym;

typedef struct form_row {
  const char *name;      /* of the function that declares it */
  hook_id first, last;   /* the hooks that are fields */
  const form_axis *axis; /* ends at a NULL name */
  const char *listed;    /* their names, for messages */
  const axis_synonym *synonym;
  const char *kinds[COUNTS_CHANNELS_V + 1]; /* what an index is, for messages */
} form_row;

const form_row *form_of(lua_State *L); /* of the spec that is loaded; attention, as long as none is declared */
/* The axis of this number, which is one of the form's, and no grid's. */
const form_axis *form_axis_of(lua_State *L, int32_t axis);

#endif
