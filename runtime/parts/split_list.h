/* split_list.h: how many blocks of a decode kernel share the keys of a tile of rows: as many for each entry, or by a list of blocks
 * that a small kernel makes of the entries' lengths (LuattnSplitList, templates/work/split_list.cuh), in the workspace or in a batch. */
#ifndef LUATTN_RUNTIME_SPLIT_LIST_H
#define LUATTN_RUNTIME_SPLIT_LIST_H

#include "runtime/device/driver.h"
#include "runtime/launch/launch.h"

/* The number for each entry, where there is no list. A deterministic kernel's depends on kv_len alone. */
int split_count(const args_call *c, const LuattnParams *p);

/* Whether a launch takes its blocks from a list: a decode kernel of packed sequences or of keys in pages, unless num_splits is given.
 * A deterministic one always does, another one if the batch holds a list: making one takes longer than a layer gains. */
bool split_list_pays(const args_call *c, const LuattnParams *p);

/* Enters the sizes of the list that a launch makes, without its memory. Errors: LUATTN_INVALID (too many blocks). */
luattn_status split_list_sizes(const args_call *c, const LuattnParams *p, LuattnSplitList *out);

/* Takes the list of the call's batch; *found is false if it has none for this device. Errors: LUATTN_INVALID (it was made for another
 * call; says which). */
luattn_status split_list_take(const args_call *c, const LuattnParams *p, LuattnSplitList *out, bool *found);

/* Places a list of these sizes from `base` on, a multiple of 256 (0: only measures). Returns its bytes. */
size_t split_list_place(const LuattnParams *p, uintptr_t base, LuattnSplitList *list);

/* Whether the kernel can take a list; luattn_batch_tiles_size and luattn_batch_prepare_tiles for such a kernel. */
bool split_list_of(const image_manifest *m);
luattn_status split_list_batch_size(const luattn_kernel *kernel, const luattn_args *used, size_t *size, luattn_error *err);
luattn_status split_list_prepare(luattn_batch *batch, const luattn_kernel *kernel, const luattn_args *used, void *memory, size_t size,
                                 void *stream, luattn_error *err);

/* With LUATTN_CHECK=1: makes the list again, if a launch takes one from its batch, which is where `makes` is false, and compares the
 * tiles of rows, and the splits of a deterministic kernel. Waits for `stream`, and does nothing while that is captured. Errors:
 * LUATTN_INVALID (lengths have changed), LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status split_list_check(const luattn_kernel *kernel, const args_call *c, const LuattnCallParams *params, bool makes,
                               cu_stream stream);

#endif
