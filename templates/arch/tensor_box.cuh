// arch/tensor_box.cuh: where a box of a TMA descriptor begins (tma/bulk_copies.cuh). A Sequence says it of its rows.
#pragma once

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
