/* tile_bits.h: the memory and the launch of luattn_tile_bits, which evaluates a mask from data for cells of scores
 * (LuattnTileBits, templates/around/before/tile_bits.cuh), and of luattn_tile_order, which orders tiles by them
 * (LuattnTileOrder, templates/around/before/tile_order.cuh). Nothing here knows where the memory is, so that one set of
 * bits may serve several launches. */
#ifndef LUATTN_RUNTIME_TILE_BITS_H
#define LUATTN_RUNTIME_TILE_BITS_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/manifest.h"
#include "abi/params.h"

/* Whether a launch of an image with tile bits evaluates the mask. `skip` is a luattn_skip: always, never, or where the
 * evaluation takes at most half of the work of the main kernels on all tiles, and that is long enough, for at most
 * 65535 sets. */
bool tile_bits_pay(const image_manifest *m, const LuattnShape *shape, int skip);

/* The sets of bits, for which batch entries and heads; and how many 32-bit words one set of `rows` has, and one of
 * `columns`, which are as many where there are as many cells both ways. */
void tile_bits_sets(const image_manifest *m, const LuattnShape *shape, LuattnTileBits *out);
int64_t tile_bits_row_words(const LuattnShape *shape);
int64_t tile_bits_column_words(const LuattnShape *shape);

/* The grid of luattn_tile_bits. */
void tile_bits_grid(const LuattnTileBits *bits, const LuattnShape *shape, int64_t size[3]);

/* Enters the order of the tiles of a launch whose bits are known, except for its address; returns the 32-bit words of
 * all of its sets. 0: tiles keep the order of their positions, because the image has no luattn_tile_order, or every
 * multiprocessor has at most one tile, or all take too little time; with skip always, time does not matter. *out is
 * then zero. */
int64_t tile_order_fill(const image_manifest *m, const LuattnParams *p, const LuattnTileBits *bits, int skip,
                        int multiprocessors, LuattnTileOrder *out);

/* The orders that lie beside the bits of a batch (workspace_order_words): the 32-bit words of all of them, 0 if the
 * image writes none; and the address of the one that a launch has filled in, or NULL if it is none of them. */
int64_t tile_orders_words(const image_manifest *m, const LuattnShape *shape, const LuattnTileBits *bits);
unsigned *tile_orders_find(const image_manifest *m, const LuattnShape *shape, const LuattnTileBits *bits,
                           const LuattnTileOrder *order, unsigned *orders);

/* Whether all kernels of a launch whose bits are known take the classes of tiles from them, and read no block
 * minima. */
bool tile_bits_decide(const image_manifest *m);

#endif
