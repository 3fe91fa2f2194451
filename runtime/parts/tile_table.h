/* tile_table.h: the table by which kernels take the tiles of packed sequences, the longest sequence first (LuattnTileTable,
 * templates/work/tile_table.cuh): when a launch has one, its memory, and the one that a batch holds. */
#ifndef LUATTN_RUNTIME_TILE_TABLE_H
#define LUATTN_RUNTIME_TILE_TABLE_H

#include "runtime/device/driver.h"
#include "runtime/launch/launch.h"

/* Whether a launch takes tiles by a table, for which the image must have luattn_tile_table. Backward always does. In forward the
 * mean sequence must be shorter than 7/8 of the longest: otherwise the order of a batch of equal lengths is as good. Without a
 * table in the batch, the tiles that blocks would pass over must also take longer than making one, which is four for each
 * multiprocessor. */
bool tile_table_pays(const args_call *c, const LuattnParams *p);

/* Takes the table of the call's batch; *found is false if it has none for this device. Errors: LUATTN_INVALID (it was made for a call
 * with other totals of rows; says which). */
luattn_status tile_table_take(const args_call *c, const LuattnParams *p, LuattnTileTable *out, bool *found);

/* With LUATTN_CHECK=1: makes the table again and compares, if a launch takes one from its batch, which is where `makes` is false. Waits
 * for `stream`, and does nothing while that is captured. Errors: LUATTN_INVALID (lengths have changed), LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status tile_table_check(const luattn_kernel *kernel, const args_call *c, const LuattnCallParams *params, bool makes,
                               cu_stream stream);

/* Places the sets that a launch needs from `base` on, a multiple of 256 (0: only measures). Returns their bytes. */
size_t tile_table_place(const args_call *c, const LuattnParams *p, uintptr_t base, LuattnTileTable *out);

/* Enters how many heads come together. */
void tile_table_order(const args_call *c, const LuattnParams *p, LuattnTileTable *out);

/* An upper bound of the tiles of `size` queries (side 0) or keys (side 1) that a head's sequences have together. */
int64_t tile_table_most(const args_call *c, const LuattnParams *p, int side, int64_t size);

#endif
