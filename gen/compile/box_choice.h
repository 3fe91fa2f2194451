/* box_choice.h: which pair of boxes a kernel over a grid takes for a call's extents. */
#ifndef LUATTN_GEN_BOX_CHOICE_H
#define LUATTN_GEN_BOX_CHOICE_H

#include "gen/compile/box_call.h"
#include "gen/plan/boxes.h"

enum { BOX_PAIRS = 3 };

/* What each of the kernel's pairs computes. */
typedef struct box_choice {
  box_origin origin;        /* of the boxes of keys, in backward of queries, with pairs or not */
  int count;                /* 0: the target's kernel has no pairs to choose from */
  int best;                 /* luattn_target.boxes; 0 without pairs */
  box_pair pair[BOX_PAIRS]; /* with counts and cycles of one head */
  tuned_boxes tuned;        /* what was measured on target->device for such calls */
} box_choice;

/* Counts the pairs of the kernel of `target` for the extents of q and k, which have as many as the spec's grid has axes. A
 * mask is taken at batch entry 0, head 0, with the defaults of scalars and inputs of 0, and where it is no product of axes
 * by its ranges along each. Errors: those of planning. */
luattn_status box_choice_find(const luattn_spec *spec, const luattn_target *target, const box_call *of, box_choice *out,
                              luattn_error *err);

/* Refuses extents of q, or of k, that no kernel of a spec over a grid takes. Errors: LUATTN_INVALID. */
luattn_status box_call_check(const luattn_spec *spec, const char *place, bool of_keys, const int64_t *extent,
                             luattn_error *err);

/* Makes the choice part of a target: what was tuned, else what is counted to take the least time. */
void box_choice_take(const box_choice *choice, luattn_target *target);
/* Says in a line by what pair of boxes calls run, and why, as much as `size`, at least 1, has room for; an empty text
 * without pairs. */
void box_choice_explain(const luattn_spec *spec, const box_choice *choice, char *out, size_t size);

/* A box as luattn_target.query_tile_size and key_tile_size are. */
uint64_t box_size_of(const int extent[LUATTN_GRID_AXES]);

#endif
