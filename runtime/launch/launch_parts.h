/* launch_parts.h: the parts of a launch, one row a role: what takes room in the workspace, and which blocks each entry
 * has. */
#ifndef LUATTN_RUNTIME_LAUNCH_PARTS_H
#define LUATTN_RUNTIME_LAUNCH_PARTS_H

#include "runtime/parts/part.h"

/* Lays out the workspace at `base` (0: only measures) and enters all parts into *p, whose p->all args_fill has filled;
 * its bytes are then p->room.used. Errors: LUATTN_INVALID (more than can be addressed; a part is refused). */
luattn_status parts_take(const args_call *c, uintptr_t base, prepared *p);

/* Errors: LUATTN_INVALID (the caller's workspace is NULL, smaller than `need`, or not aligned). */
luattn_status parts_check_workspace(const args_call *c, size_t need);

/* The grids of all entries. Errors: LUATTN_INVALID (a limit of the device). */
luattn_status parts_grids(const args_call *c, const prepared *p, unsigned (*grid)[3]);

/* With LUATTN_CHECK=1: checks what comes from the batch. Errors: LUATTN_INVALID, LUATTN_NO_MEMORY, LUATTN_CUDA. */
luattn_status parts_check(const luattn_kernel *kernel, const args_call *c, const prepared *p, cu_stream stream);

#endif
