/* launch_grids.h: the grids of the main kernels: how many blocks attention itself is launched with. */
#ifndef LUATTN_RUNTIME_LAUNCH_GRIDS_H
#define LUATTN_RUNTIME_LAUNCH_GRIDS_H

#include "runtime/parts/part.h"

part_grid forward_grid, dkdv_grid, dq_grid;

#endif
