/* tickets.h: the counters from which the blocks of a launch draw their tiles (templates/schedule.cuh).
 *
 * A launch leaves its counter as it found it, at 0, so nothing has to zero it, but two launches that overlap
 * need two. No two of them share a workspace (luattn/tensors.h): hence a counter for each workspace that a
 * kernel has met, in memory of the kernel's own, since nobody promises what a workspace holds. A counter is
 * never given to another workspace, because a CUDA graph may keep it; so there are only so many. */
#ifndef LUATTN_RUNTIME_TICKETS_H
#define LUATTN_RUNTIME_TICKETS_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/driver.h"

/* Counters stand apart, so that launches side by side do not meet in one sector of the L2 cache. */
enum { TICKETS_COUNTERS = 256, TICKETS_STRIDE = 32, TICKETS_BYTES = TICKETS_COUNTERS * TICKETS_STRIDE };

typedef struct ticket_table {
  cu_pointer counters;                            /* TICKETS_BYTES of the device, of value 0 */
  _Atomic(uintptr_t) workspace[TICKETS_COUNTERS]; /* that has the counter; 0: none yet */
} ticket_table;

/* The counter of `workspace`, the same one each time; NULL if all are others'. Any number of threads. */
unsigned *tickets_find(ticket_table *table, const void *workspace);

#endif
