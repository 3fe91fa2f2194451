/* tickets.h: the counters from which the blocks of a launch draw their tiles (templates/work/tile_scheduler.cuh).
 *
 * A launch leaves its counter as it found it, at 0, so nothing has to zero it, but two launches that overlap
 * need two. A workspace is not zeroed, so the kernel owns the memory of its counters:
 *  - No two launches that overlap share a workspace (luattn/tensors.h): hence a counter for each workspace
 * that the kernel has met. It is never given to another one, because a CUDA graph may keep it; so there are
 * only so many.
 *  - Launches on one stream never overlap: hence a counter for each stream, for launches with other
 * workspaces that are not captured into a graph. Only a captured launch with a workspace that has no counter
 * has one in its workspace, and zeroes it first. */
#ifndef LUATTN_RUNTIME_TICKETS_H
#define LUATTN_RUNTIME_TICKETS_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/driver.h"

/* Counters stand apart, so that launches side by side do not meet in one sector of the L2 cache. */
enum {
  TICKETS_WORKSPACES = 1024,
  TICKETS_STREAMS = 256,
  TICKETS_STRIDE = 32,
  TICKETS_BYTES = (TICKETS_WORKSPACES + TICKETS_STREAMS) * TICKETS_STRIDE
};

typedef struct ticket_table {
  cu_pointer counters;                             /* TICKETS_BYTES of the device, of value 0 */
  _Atomic(uint64_t) workspace[TICKETS_WORKSPACES]; /* that has the counter, its address / 256; 0: none yet */
  _Atomic(uint64_t) stream[TICKETS_STREAMS];       /* likewise: 1 + the driver's number of a stream */
} ticket_table;

/* The counter of `workspace`, the same one each time; NULL if those that it may have are others'. Any number
 * of threads. */
unsigned *tickets_of_workspace(ticket_table *table, const void *workspace);

/* The same for a stream by its number, which no other stream of the process ever has (cuStreamGetId). */
unsigned *tickets_of_stream(ticket_table *table, uint64_t number);

/* The counter of a launch; NULL: it has none, and takes one in its workspace. */
unsigned *tickets_find(ticket_table *table, const luattn_driver *d, const void *workspace, cu_stream stream);

#endif
