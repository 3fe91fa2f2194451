/* grid_axes.h: the axes of a spec's grid: attention { grid = {"t", "y", "x"} }, the last one innermost. Without it,
 * positions are numbers.
 */
#ifndef LUATTN_GEN_LUA_GRID_AXES_H
#define LUATTN_GEN_LUA_GRID_AXES_H

#include "gen/lua/state.h"

#define PLACE_METATABLE "place on the grid" /* also how messages call it */

/* A position or length of a spec with a grid, as hooks see it (grid_positions.h). */
typedef struct place {
  ir_var v;
  const char *name; /* in hooks */
  uint32_t generation;
} place;

/* Reads `grid` of the table of attention {..} at `table`. */
void grid_declare(lua_State *L, int table);
/* Raises if the value at `index` is a place, of which an axis is wanted. what: where it is used */
void grid_refuse_place(lua_State *L, int index, const char *what);
/* The axis of this name; raises if there is none. is: what would have it, for messages */
int grid_axis_named(lua_State *L, const char *is, const char *axis);
/* "q_idx.y and q_idx.x" */
const char *grid_all_written(lua_State *L, const char *name);

/* The axis of an input that is written `q.y` or `kv.x`; 0: it is written otherwise. Raises where the grid has none of
 * that name, and for `q` and `kv` if there is a grid. owner: for messages */
int32_t grid_axis_of(lua_State *L, const char *owner, const char *axis);
/* The number of the axis that LUATTN_AXIS_Q_GRID - a or LUATTN_AXIS_KV_GRID - a is of; -1: another one. */
static inline int grid_axis_number(int32_t axis) {
  return axis <= LUATTN_AXIS_T         ? -1
         : axis <= LUATTN_AXIS_KV_GRID ? LUATTN_AXIS_KV_GRID - axis
         : axis <= LUATTN_AXIS_Q_GRID  ? LUATTN_AXIS_Q_GRID - axis
                                       : -1;
}
/* "q.y", or "q_idx.y" as an index, of that number. side: "q", "q_idx", .. */
const char *grid_axis_text(lua_State *L, const char *side, int axis);

#endif
