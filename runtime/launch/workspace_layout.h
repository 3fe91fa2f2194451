/* workspace_layout.h: the layout of a launch's workspace. */
#ifndef LUATTN_RUNTIME_WORKSPACE_LAYOUT_H
#define LUATTN_RUNTIME_WORKSPACE_LAYOUT_H

#include "runtime/call/args.h"

/* Bytes of a workspace, and the range of sums that must start as zeros. */
typedef struct workspace_need {
  size_t size, sums, sums_size;
  bool has_tile_bits;  /* the launch evaluates the mask into it */
  bool has_tile_order; /* the launch orders tiles by the bits in it */
  bool has_table, makes_table; /* the launch has a list of packed tiles; makes it in the workspace */
  LuattnTileTable table;
  LuattnSplits splits; /* decode; else all 0 */
  bool has_list, makes_list; /* decode: the launch has a list of its blocks; makes it in the workspace */
  LuattnSplitList list;      /* read only with has_list */
} workspace_need;

/* Lays out the workspace at `base` (0: computes the size only) and enters it into *all. Every part starts at a
 * multiple of 256 bytes. Errors: LUATTN_INVALID (the size overflows size_t; num_splits or skip asks for what the kernel has not). */
luattn_status workspace_layout(const args_call *c, uintptr_t base, LuattnCallParams *all, workspace_need *out);

/* Errors: LUATTN_INVALID (the caller's workspace is NULL, too small, or not aligned). */
luattn_status workspace_check(const args_call *c, size_t need);

/* Enters where minima of what a mask reads are, from `base` on, a multiple of 256 (0: only measures). Returns their bytes. */
size_t workspace_place_stats(const image_manifest *m, LuattnParams *params, uintptr_t base);

#endif
