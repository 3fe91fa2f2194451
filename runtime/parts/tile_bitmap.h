/* tile_bitmap.h: tile skipping: bounds of norms (luattn_norms), and the bitmap of tiles that are computed
 * (luattn_tile_bitmap). */
#ifndef LUATTN_RUNTIME_TILE_BITMAP_H
#define LUATTN_RUNTIME_TILE_BITMAP_H

#include "runtime/parts/part.h"

part_take tile_bitmap_take; /* with the norms. Errors: LUATTN_INVALID (skip asks for what the kernel has not) */
part_grid tile_bitmap_norms_grid, tile_bitmap_grid;

#endif
