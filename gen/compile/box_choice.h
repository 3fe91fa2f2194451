/* box_choice.h: which pair of boxes a kernel over a grid takes for a call's extents. */
#ifndef LUATTN_GEN_BOX_CHOICE_H
#define LUATTN_GEN_BOX_CHOICE_H

#include "gen/plan/boxes.h"

enum { BOX_PAIRS = 3 };

/* What each of the kernel's pairs computes. */
typedef struct box_choice {
  box_origin origin;        /* of the boxes of keys, with pairs or not */
  int count;                /* 0: the target's kernel has no pairs to choose from */
  int best;                 /* luattn_target.boxes; 0 without pairs */
  box_pair pair[BOX_PAIRS]; /* with counts and cycles of one head */
} box_choice;

/* Counts the pairs of the kernel of `target` for the extents of q and k, which have as many as the spec's grid has axes. A
 * mask is taken at batch entry 0, head 0, with the defaults of scalars and inputs of 0, and where it is no product of axes
 * by its ranges along each. Errors: those of planning. */
luattn_status box_choice_find(const luattn_spec *spec, const luattn_target *target, const int64_t *q, const int64_t *kv,
                              box_choice *out, luattn_error *err);

#endif
