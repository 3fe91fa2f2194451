/* box_within.h: the choice of a pair of boxes, and what it is made by, within a compilation. */
#ifndef LUATTN_GEN_BOX_WITHIN_H
#define LUATTN_GEN_BOX_WITHIN_H

#include "gen/compile/box_choice.h"
#include "gen/compile/compilation.h"

/* As box_choice_find; starts c->at.plan. */
luattn_status box_choice_within(compilation *c, const box_call *of, box_choice *out, luattn_error *err);
/* What the mask keeps along each axis of the grid, where axes that it has not are one place long. */
luattn_status box_choice_axes(compilation *c, const box_call *of, box_axis axis[LUATTN_GRID_AXES], luattn_error *err);
/* Fills p->phase: of a backward that walks over boxes of queries for one of keys, where these begin if no box is to lie
 * across the beginning of what the middle one of keys keeps. That is of long axes, as a mask near their ends and the
 * middle of short ones differ in it, which costs a box and no more. */
luattn_status box_phases_take(compilation *c, plan *p, luattn_error *err);

#endif
