/* split_list.h: how many blocks of a decode kernel share the keys of a tile of rows: as many for each entry, or by a
 * list of blocks that a small kernel makes of the entries' lengths (LuattnSplitList, templates/work/split_list.cuh), in
 * the workspace or in a batch; and room for what the blocks leave for luattn_merge (LuattnSplits). */
#ifndef LUATTN_RUNTIME_SPLIT_LIST_H
#define LUATTN_RUNTIME_SPLIT_LIST_H

#include "runtime/parts/part.h"

/* A launch takes its blocks from a list where a decode kernel is of packed sequences or of keys in pages, unless
 * num_splits is given. A deterministic one always does, another one if the batch holds a list. Else blocks of up to
 * LUATTN_SPLIT_PLACES entries find their places in the lengths themselves (templates/work/split_places.cuh), and a
 * launch of more entries makes a list, where the call is long enough. Without either, all entries have as many splits,
 * by kv_len alone. Errors:
 * LUATTN_INVALID (too many blocks; num_splits; the batch's list was made for another call, and which). */
part_take split_list_take;

/* Makes the list again, if a launch takes one from its batch, and compares the tiles of rows, and the splits of a
 * deterministic kernel. */
part_check split_list_check;
part_grid split_list_grid;
part_grid split_merge_grid;

/* The items of each kv head that forward's blocks begin with, of a launch with a list or in place. */
int64_t split_list_items(const args_call *c, const prepared *p);

/* Whether the kernel can take a list; luattn_batch_tiles_size and luattn_batch_prepare_tiles for such a kernel. */
bool split_list_of(const image_manifest *m);
luattn_status split_list_batch_size(const luattn_kernel *kernel, const luattn_args *used, size_t *size,
                                    luattn_error *err);
luattn_status split_list_prepare(luattn_batch *batch, const luattn_kernel *kernel, const luattn_args *used,
                                 void *memory, size_t size, void *stream, luattn_error *err);

#endif
