/* tile_table.h: the table by which kernels take the tiles of packed sequences, the longest sequence first
 * (LuattnTileTable, templates/work/tile_table.cuh): when a launch has one, its memory, and the one that a batch
 * holds. */
#ifndef LUATTN_RUNTIME_TILE_TABLE_H
#define LUATTN_RUNTIME_TILE_TABLE_H

#include "runtime/parts/part.h"

/* A launch takes tiles by a table where the image has luattn_tile_table: backward always does. In forward the mean
 * sequence must be shorter than 7/8 of the longest: otherwise the order of a batch of equal lengths is as good. Without
 * a table in the batch, the tiles that blocks would pass over must also take longer than making one, which is four for
 * each multiprocessor. Errors: LUATTN_INVALID (the batch's was made for a call with other totals of rows; says
 * which). */
part_take tile_table_take;
part_check tile_table_check;
part_grid tile_table_grid;

/* Tiles of `tile` queries along x, of a grid of other entries: those of all entries, or with a table at most as many as
 * there are, which then have no entries along z. Likewise of keys, for luattn_dkdv. */
void tile_table_q_tiles(const args_call *c, const prepared *p, int64_t tile, int64_t size[3]);
void tile_table_kv_tiles(const args_call *c, const prepared *p, const manifest_entry *entry, int64_t size[3]);

#endif
