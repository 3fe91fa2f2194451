/* part.h: what is prepared around the main kernel of a launch, part by part. Each part has the same shape: the role of
 * the entry that makes it, a function that takes room for it, one that checks it with LUATTN_CHECK=1, and one that says
 * its entry's grid; the table of launch/launch_parts.c has a row for each. */
#ifndef LUATTN_RUNTIME_PART_H
#define LUATTN_RUNTIME_PART_H

#include "runtime/call/args_call.h"
#include "runtime/device/kernel.h"
#include "runtime/parts/room.h"

/* The parameters of a launch, its workspace, and which parts it makes there. What it does not make it lacks, or takes
 * from its batch. */
typedef struct prepared {
  LuattnCallParams all;
  room room;                   /* of the workspace, part by part: each starts at a multiple of 256 bytes */
  size_t sums, sums_size;      /* the range of it that must start as zeros */
  bool makes_bits;             /* evaluates the mask */
  bool makes_order;            /* orders tiles by the bits */
  bool has_table, makes_table; /* has a list of packed tiles */
  bool has_list, makes_list;   /* decode: has a list of its blocks */
  unsigned *orders;            /* of tiles, beside the bits of a batch; or NULL */
} prepared;

/* Enters the part into p->all: from the batch, or in room that it takes from p->room. Called after args_fill, in the
 * order of roles. Errors: LUATTN_INVALID. */
typedef luattn_status part_take(const args_call *c, prepared *p);

/* With LUATTN_CHECK=1: compares what a launch takes from its batch with what the batch should hold, waiting for
 * `stream`; does nothing while that is captured. Errors: LUATTN_INVALID, LUATTN_NO_MEMORY, LUATTN_CUDA. */
typedef luattn_status part_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream);

/* Enters the blocks of the entry's grid, once all parts are taken; size[1] and size[2] are the heads and batch entries
 * before, and size[0] is 0. A size of 0 means that there is nothing to launch. Errors: LUATTN_INVALID. */
typedef luattn_status part_grid(const args_call *c, const manifest_entry *entry, const prepared *p, int64_t size[3]);

/* Begins with nothing but p->all; base: of the workspace, 0 to measure it. */
void prepared_begin(prepared *p, uintptr_t base);

/* The grid of one entry. Errors: LUATTN_INVALID (a limit of the device). */
luattn_status part_find_grid(const args_call *c, const manifest_entry *entry, part_grid *of, const prepared *p,
                             unsigned grid[3]);

/* Launches the entry of this role alone, outside of a launch; `params`: what its kernel takes. The device's context is
 * current. Errors: LUATTN_INVALID (a limit of the device), LUATTN_INTERNAL (the image has no such entry),
 * LUATTN_CUDA. */
luattn_status part_launch(const luattn_kernel *kernel, const args_call *c, luattn_role role, part_grid *of,
                          const prepared *p, void *params, cu_stream stream);

#endif
