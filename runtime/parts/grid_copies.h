/* grid_copies.h: copies of tensors over a grid whose groups of a far axis (LuattnFarPlaces) are of one length
 * (luattn_copy_in, luattn_copy_out). */
#ifndef LUATTN_RUNTIME_GRID_COPIES_H
#define LUATTN_RUNTIME_GRID_COPIES_H

#include "runtime/parts/part.h"

part_take grid_copies_take;
part_grid grid_copies_in_grid, grid_copies_out_grid;

/* Takes room for rows of a tensor of LuattnTensors, row-major in padded extents, and makes it that tensor's. */
void grid_copies_room(const args_call *c, prepared *p, LuattnTensor *t, bool of_keys, uint32_t dim);

#endif
