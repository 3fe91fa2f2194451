/* box_call.h: a call over a grid, as the choice of its pair of boxes sees it, and what was measured for such calls. */
#ifndef LUATTN_GEN_BOX_CALL_H
#define LUATTN_GEN_BOX_CALL_H

#include <stdint.h>

#include "gen/compile/tuned_record.h"
#include "luattn/image.h"

/* Extents of q and k, as many as the spec's grid has axes, and heads. */
typedef struct box_call {
  int64_t q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
  int64_t heads, heads_kv;
} box_call;

/* Boxes as luattn_target.query_tile_size and key_tile_size. */
typedef struct box_sizes {
  uint64_t q, kv;
} box_sizes;

typedef struct tuned_boxes {
  tuned_state state;
  box_sizes boxes, own;
  double gain;
  char path[512];
} tuned_boxes;

#endif
