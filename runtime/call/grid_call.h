/* grid_call.h: calls of a spec with a grid of several axes: extents of q and k, and strides along axes. */
#ifndef LUATTN_RUNTIME_GRID_CALL_H
#define LUATTN_RUNTIME_GRID_CALL_H

#include "runtime/call/tensor_rule.h"

enum { GRID_AXES_TEXT = 160 };

/* Checks that q, k and v have the grid's axes. */
luattn_status grid_ranks(const args_call *c);
/* Checks q and k, and fills lengths, in slots of boxes, and out->grid. For images with a grid, in the place of what
 * takes lengths along a line. */
luattn_status grid_fill(const args_call *c, LuattnCallParams *out);

/* Puts the axes of the grid in the place of axis `at` of a rule, which are those of keys or of queries; `axes` becomes
 * the text in messages. */
void grid_rule(const args_call *c, const LuattnCallParams *all, bool of_keys, int at, tensor_rule *rule,
               char axes[GRID_AXES_TEXT]);
/* The strides of a tensor of LuattnTensors that was checked by such a rule: axis `at` is the grid's first one. `out` is
 * the tensor, in all->dense.tensors. */
void grid_strides(const args_call *c, LuattnCallParams *all, LuattnTensor *out, const long long *stride, int at);
/* Strides of an array whose rows are those of all places in row-major order, in padded extents. */
void grid_contiguous(const args_call *c, LuattnCallParams *all, LuattnTensor *out, bool of_keys);

/* The step of boxes along an axis of LuattnGrid, and whether it is one that TMA does not take (LuattnFarPlaces). */
int grid_step(const args_call *c, int axis);
bool grid_is_far(const args_call *c, int axis);
/* The places of a copy, whose extents along far axes are such that all groups have as many places, and whether these are
 * more than all. */
int64_t grid_padded_places(const args_call *c, const LuattnCallParams *all, bool of_keys);
bool grid_is_ragged(const args_call *c, const LuattnCallParams *all, bool of_keys);

/* All places of keys or of queries. */
int64_t grid_places(const LuattnCallParams *all, bool of_keys);
/* The extent of an input's axis LUATTN_AXIS_Q_GRID - a or LUATTN_AXIS_KV_GRID - a. */
int64_t grid_extent(const args_call *c, const LuattnCallParams *all, int32_t axis);

#endif
