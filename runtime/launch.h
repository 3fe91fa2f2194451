/* launch.h: from checked parameters to workspace, grids and launches. */
#ifndef LUATTN_RUNTIME_LAUNCH_H
#define LUATTN_RUNTIME_LAUNCH_H

#include "runtime/args.h"
#include "runtime/driver.h"
#include "runtime/maps.h"
#include "runtime/tickets.h"

/* The kernel itself never changes; what launches learn stands beside it. */
struct luattn_kernel {
  luattn_driver *driver;
  int device;
  int multiprocessors;
  cu_context context;
  cu_pointer zero;       /* 8 bytes of value 0, if there are inputs; see args_call */
  ticket_table *tickets; /* if the image draws tiles */
  map_memory *maps;      /* of the sm90 family */
  cu_module module;
  cu_function function[LUATTN_MAX_ENTRIES];
  luattn_image_info info;
};

/* Bytes of a workspace, and where in it the sums are that begin as zeros. */
typedef struct workspace_need {
  size_t size, sums, sums_size;
} workspace_need;

/* Lays out the workspace behind `base` (0: the size alone matters) and enters it into *params. Every part
 * starts at a multiple of 256 bytes. Errors: LUATTN_INVALID (more than a size_t can count). */
luattn_status workspace_layout(const args_call *c, uintptr_t base, LuattnParams *params, workspace_need *out);

/* Grid of one entry; a size of 0 means that there is nothing to launch. Errors: LUATTN_INVALID (a limit of
 * the device). */
luattn_status launch_grid(const args_call *c, const luattn_entry_info *entry, const LuattnParams *params,
                          unsigned grid[3]);

#endif
