/* work_counters.h: work counters, from which the blocks of a launch draw their tiles
 * (templates/work/tile_scheduler.cuh).
 *
 * A launch leaves its counter as it found it, at 0, so nothing has to zero it, but two launches that overlap
 * need two counters. A workspace is not zeroed, so the kernel owns the memory of its counters:
 * - Launches that overlap never share a workspace (luattn/tensors.h): the kernel has a counter for each
 *   workspace that it has met, and never gives it to another one, because a CUDA graph may keep it. So their
 *   number is limited.
 * - Launches on one stream never overlap: the kernel has a counter for each stream, for launches that have no
 *   workspace counter and are not captured into a graph. Only a captured launch without a workspace counter
 *   uses one in its workspace, and zeroes it first. */
#ifndef LUATTN_RUNTIME_WORK_COUNTERS_H
#define LUATTN_RUNTIME_WORK_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/device/driver.h"

/* Counters lie apart, so that concurrent launches do not share a sector of the L2 cache. */
enum {
  COUNTER_WORKSPACES = 1024,
  COUNTER_STREAMS = 256,
  COUNTER_STRIDE = 32,
  COUNTER_BYTES = (COUNTER_WORKSPACES + COUNTER_STREAMS) * COUNTER_STRIDE
};

typedef struct counter_table {
  cu_pointer counters;                             /* COUNTER_BYTES of device memory, zeros between
                                                    * launches */
  _Atomic(uint64_t) workspace[COUNTER_WORKSPACES]; /* which workspace has each counter: its address / 256; 0:
                                                    * none yet */
  _Atomic(uint64_t) stream[COUNTER_STREAMS];       /* likewise: 1 + the driver's number of a stream */
} counter_table;

/* The counter of `workspace`, the same one each time; NULL if its entries are taken. Any number of
 * threads. */
unsigned *counter_of_workspace(counter_table *table, const void *workspace);

/* The same for a stream by its number, which no other stream of the process ever has (cuStreamGetId). */
unsigned *counter_of_stream(counter_table *table, uint64_t number);

/* The counter of a launch; NULL: it has none, and uses one in its workspace. */
unsigned *counter_find(counter_table *table, const luattn_driver *d, const void *workspace, cu_stream stream);

#endif
