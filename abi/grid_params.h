/* grid_params.h: sequences with axes, as kernels of a spec with `grid` take them. Plain C11 and CUDA C++.
 *
 * A position of a grid has a coordinate on each of its 1 to LUATTN_GRID_AXES axes, the innermost axis last, and a linear
 * index, which is row-major: lse, saved rows and whatever else a caller sees one row a position have that order. A tile
 * of a kernel is a box of positions whose extents were chosen when it was compiled, the innermost axis fastest. Boxes may
 * reach past an axis' end: what lies there does not exist. Rows of accumulators are in the order of boxes, with a row for
 * each position of a box, whether or not it exists.
 *
 * A grid of fewer axes has extent 1 along the first ones. */
#ifndef LUATTN_GRID_PARAMS_H
#define LUATTN_GRID_PARAMS_H

#include "abi/exact_divisor.h"
#include "abi/host_device.h"

#define LUATTN_GRID_AXES 4
#define LUATTN_GRID_EXTENT_MAX 32767        /* positions along an axis */
#define LUATTN_GRID_POSITIONS_MAX (1 << 30) /* positions of a grid */
#define LUATTN_TMA_STEPS 8                  /* the most by which TMA steps along an axis */
#define LUATTN_TMA_REACH 256                /* places along an axis, those between its steps included, of one copy */

/* Whether TMA cannot step along an axis whose boxes take every step-th place, at most `box` of them: then its groups are an
 * axis of the descriptor (LuattnFarPlaces). */
ABI_FN int grid_step_is_far(int step, int box) {
  return step > LUATTN_TMA_STEPS || (step > 1 && step * box > LUATTN_TMA_REACH);
}

/* Of an axis whose boxes take every step-th place: the extent at which all groups have as many places. */
ABI_FN int grid_padded_extent(int extent, int step) {
  return extent <= step ? extent : (extent + step - 1) / step * step;
}

/* The positions of queries, or of keys, along one axis. */
typedef struct LuattnGridSide {
  int extent;
  int first;           /* the coordinate at which the lattice's first box begins: its phase, in (-box, 0] */
  LuattnDivisor boxes; /* boxes of the lattice along the axis */
} LuattnGridSide;

typedef struct LuattnGridAxis {
  LuattnGridSide q, kv;
} LuattnGridAxis;

/* Strides of a tensor along all axes but the innermost one, whose stride is LuattnTensor.seq; in elements. */
typedef struct LuattnGridSteps {
  long long outer[LUATTN_GRID_AXES - 1];
} LuattnGridSteps;

/* Heads and batch entries of a tensor as one axis of its TMA descriptor: the steps along it from one head to the next,
 * from one entry, and, of a grid of four axes, from one position of the outermost axis. */
typedef struct LuattnGridUnits {
  int head, batch, outer;
} LuattnGridUnits;

typedef struct LuattnGrid {
  LuattnGridAxis axis[LUATTN_GRID_AXES];
  LuattnGridSteps q, k, v, src_q, src_k, src_v, o, dout, dq, dk, dv; /* of the tensors of LuattnTensors */
  LuattnGridUnits units_q, units_k, units_v, units_o; /* of LuattnTensorMaps, where kernels take it; else 0 */
} LuattnGrid;

#endif
