/* mask_boxes.h: how many boxes of a mask over a grid kernels compute, in all batch entries and heads. */
#ifndef LUATTN_GEN_MASK_BOXES_H
#define LUATTN_GEN_MASK_BOXES_H

#include <stdbool.h>

#include "gen/plan/boxes.h"

typedef struct mask_boxes_call {
  const luattn_spec *spec;
  const luattn_args *args; /* choices_take_dense */
  luattn_pass pass;
  box_pair pair;              /* its boxes and origin */
  luattn_mask_counts *counts; /* filled: tiles, full, partial, needed, and their errors */
  bool is_product; /* filled; false: of such a mask the axes do not say the classes, and counts are as they were */
} mask_boxes_call;

/* For host_run. */
luattn_status mask_boxes_run(void *call, luattn_error *err);

#endif
