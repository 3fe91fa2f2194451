/* batch_masks.h: the tile bits of a mask from data (LuattnTileBits), and the order of tiles by them: a launch makes
 * them in its workspace, or takes those that a luattn_batch holds for all launches of a spec. */
#ifndef LUATTN_RUNTIME_BATCH_MASKS_H
#define LUATTN_RUNTIME_BATCH_MASKS_H

#include "runtime/parts/part.h"

/* Errors: LUATTN_INVALID (the batch has bits of this spec's mask, made for other arguments; says which). */
part_take batch_masks_take;
part_check batch_masks_check; /* evaluates the mask again and compares, if a launch takes bits from its batch */
part_grid batch_masks_grid;

part_take tile_order_take; /* after the bits and the schedule */
part_grid tile_order_grid; /* a launch's own order, or all of a batch */

#endif
