/* grid_boxes.h: boxes of a tensor over a grid, as TMA descriptors take them. */
#ifndef LUATTN_RUNTIME_GRID_BOXES_H
#define LUATTN_RUNTIME_GRID_BOXES_H

#include "runtime/call/args_call.h"

enum { GRID_TMA_AXES = LUATTN_GRID_AXES - 1 };

/* The axes of a descriptor after the channel: up to three of the grid, the innermost one first, and units. */
typedef struct grid_boxes {
  int axes; /* of the grid, but for the outermost of four, which is among the units */
  int extent[GRID_TMA_AXES], box[GRID_TMA_AXES], step[GRID_TMA_AXES];
  long long stride[GRID_TMA_AXES + 1]; /* in elements; the last one is of a unit */
  int64_t units;
} grid_boxes;

/* Which tensor of LuattnTensorMaps. */
typedef enum grid_tensor { GRID_Q, GRID_K, GRID_V, GRID_O } grid_tensor;

/* The boxes of so many rows. Fills the tensor's units in all->grid, too. Errors: LUATTN_INVALID (more units than a
 * coordinate has numbers). */
luattn_status grid_boxes_of(const args_call *c, LuattnCallParams *all, grid_tensor which, const LuattnTensor *t,
                            const char *name, int rows, grid_boxes *out);

/* Says that no descriptor can hold the tensor's strides. */
luattn_status grid_no_descriptor(const args_call *c, const char *name, const LuattnTensor *t, const grid_boxes *boxes);

#endif
