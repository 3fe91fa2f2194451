/* stats.h: block minima and maxima of what a mask reads (luattn_stats). */
#ifndef LUATTN_RUNTIME_STATS_H
#define LUATTN_RUNTIME_STATS_H

#include "runtime/parts/part.h"

part_take stats_take;
part_grid stats_grid;

/* Enters where they are, from `base` on, a multiple of 256 (0: only measures). Returns their bytes. */
size_t stats_place(const image_manifest *m, LuattnParams *params, uintptr_t base);

#endif
