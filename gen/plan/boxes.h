/* boxes.h: boxes of a mask over a grid: how many a kernel computes, how many of them are full, and which pair of boxes
 * costs the least.
 *
 * A kernel has an outer box, whose rows it keeps, and walks over inner boxes: forward over keys for a box of queries,
 * backward over queries for a box of keys. Of a mask that is a product of axes, an inner box is empty, full or partial
 * along each axis by itself. So the boxes of all axes together are products of sums along one, and counts of millions of
 * boxes take as many steps as the axes have positions. Of a mask that is no product (a disc) the axes' intervals bound
 * it, and its counts are upper bounds. */
#ifndef LUATTN_GEN_BOXES_H
#define LUATTN_GEN_BOXES_H

#include "abi/grid_params.h"
#include "luattn/compiler.h"

/* What a mask keeps along one axis: of a query at coordinate i, keys in [lo[i], hi[i]) whose distance from i is a
 * multiple of `step`. lo >= hi: nothing. */
typedef struct box_axis {
  int q_extent, kv_extent, step;
  const int *lo, *hi; /* [q_extent] */
} box_axis;

typedef struct grid_box {
  int extent[LUATTN_GRID_AXES]; /* of unused axes, which come first: 1 */
} grid_box;

/* Where inner boxes begin along an axis. */
typedef enum box_origin {
  BOX_LATTICE, /* at multiples of their extent */
  BOX_PHASE,   /* the same from box_pair.first on, a number of the launch: 0, or where the middle outer box's range
                * begins, whichever computes fewer boxes */
  BOX_GIVEN,   /* from box_pair.first on, as it is given */
  BOX_FREE     /* where the outer box's range begins */
} box_origin;

/* Of one head, exact below 2^53. */
typedef struct box_counts {
  double kept;           /* scores */
  double outer;          /* outer boxes */
  double computed, full; /* pairs of boxes: those of which a score may be kept; those of which all are */
} box_counts;

typedef struct box_pair {
  grid_box q, kv;
  box_origin origin;
  int first[LUATTN_GRID_AXES]; /* where the lattice of inner boxes begins: LuattnGridSide.first */
  box_counts counts;
  double cycles; /* of one multiprocessor, for one head: the cost model of boxes.c */
} box_pair;

/* What a kernel can run: boxes of `rows` outer positions, a power of two up to 256, by one of `columns` inner ones, up to
 * 256, at the end 0. */
typedef struct box_kernel {
  luattn_pass pass;
  int head_dim, rows;
  const int *columns;
  box_origin origin;
} box_kernel;

/* Fills `first`, unless the origin is BOX_GIVEN, and `counts` of a pair of boxes. Axes are numbered as the extents of a box.
 * Errors: LUATTN_NO_MEMORY. */
luattn_status box_count(luattn_pass pass, const box_axis axis[LUATTN_GRID_AXES], box_pair *pair, luattn_error *err);

/* The pairs that the kernel can run, the least cycles first; at most `most`. *count: how many. An outer box has powers of
 * two, so that 64 and 16 of its rows are boxes, too. The innermost extent of an inner box is a multiple of 4, for mask
 * bits. Axes along which a query's keys have extent 1 get boxes of extent 1. Errors: LUATTN_NO_MEMORY. */
luattn_status box_choose(const box_kernel *kernel, const box_axis axis[LUATTN_GRID_AXES], box_pair *out, int most,
                         int *count, luattn_error *err);

/* Cycles of a pair whose counts are known. */
double box_cycles(const box_kernel *kernel, const box_pair *pair);

#endif
