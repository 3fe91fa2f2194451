/* launch_grids.h: how many blocks an entry of an image is launched with. */
#ifndef LUATTN_RUNTIME_LAUNCH_GRIDS_H
#define LUATTN_RUNTIME_LAUNCH_GRIDS_H

#include "runtime/launch/workspace_layout.h"

/* The grid of one entry, of parameters whose workspace is laid out; a size of 0 means that there is nothing to launch. Errors:
 * LUATTN_INVALID (a limit of the device). */
luattn_status grid_of_entry(const args_call *c, const manifest_entry *entry, const LuattnCallParams *all,
                            const workspace_need *need, unsigned grid[3]);

/* Errors: LUATTN_INVALID (more blocks along an axis than CUDA allows, on every architecture so far). */
luattn_status grid_check(const args_call *c, const manifest_entry *entry, const int64_t size[3]);

#endif
