// arch/tensor_box.cuh: where a box of a TMA descriptor begins (tma/bulk_copies.cuh). A Sequence says it of its rows.
#pragma once
#include "abi/params.h"
#include "arch/types.cuh"

// The row at which a box begins, as coordinates of a TMA descriptor with the axes channel, position, head and batch
// entry.
struct RowBox {
  int row, entry;
};
// The same for packed rows, with the axes channel, row, head, end and wrap (runtime/launch/tma_descriptors.c). The last
// coordinate is always 1 << LUATTN_WRAP_LOG2.
struct PackedRowBox {
  int row, end;
};

// The same for rows of a page of a head (LuattnPagedMaps), with the axes channel, row of the box, which is 0, and
// steps.
struct PageBox {
  int steps;
};

// A box of a grid, whose descriptor has the axes channel, the grid's up to three innermost ones, the innermost first, and
// units, which are steps to each head of each batch entry (LuattnGridUnits). Of four axes, the outermost one is among the
// units, too, and a box has a copy for each place along it.
struct GridBoxAt {
  int at[LUATTN_GRID_AXES];  // where it begins; of unused axes 0
  int entry;
  int rows, rows_within;   // of all; of one place along axis 0,
  int extent, outer_step;  // that axis' extent, and from one of its places to the next
  const LuattnGrid *grid;
  const LuattnGridUnits *units;
};

// The same box of another tensor than q or k.
template <class Box>
LUATTN_FN const Box &of_v(const Box &box) {
  return box;
}
template <class Box>
LUATTN_FN const Box &of_o(const Box &box) {
  return box;
}
template <class Box>
LUATTN_FN const Box &of_dout(const Box &box) {
  return box;
}
LUATTN_FN GridBoxAt of_v(GridBoxAt box) {
  box.units = &box.grid->units_v;
  return box;
}
// 16 rows of it.
LUATTN_FN GridBoxAt of_o(GridBoxAt box) {
  box.units = &box.grid->units_o;
  box.rows = 16;
  return box;
}
LUATTN_FN GridBoxAt of_dout(GridBoxAt box) {
  box.units = &box.grid->units_o;
  return box;
}
