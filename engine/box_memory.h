/* box_memory.h: remembers which pair of boxes calls over grids take, by their extents. */
#ifndef LUATTN_ENGINE_BOX_MEMORY_H
#define LUATTN_ENGINE_BOX_MEMORY_H

#include <pthread.h>

#include "engine/kernel_key.h"

enum { BOX_MEMORY = 64 };

typedef struct known_boxes {
  kernel_key key; /* with `boxes` 0 */
  int64_t q[LUATTN_MAX_AXES], kv[LUATTN_MAX_AXES];
  int boxes;
} known_boxes;

typedef struct box_memory {
  pthread_mutex_t lock;
  known_boxes of[BOX_MEMORY];
  unsigned count, next;
} box_memory;

box_memory *box_memory_open(void); /* NULL: out of memory, or no lock */
void box_memory_close(box_memory *m);

/* Fills key->boxes for tensors q and k that have the spec's axes, at this place of arch and family, unless the call names
 * its boxes. What cannot be planned keeps 0: compiling it says why. */
void box_memory_choose(box_memory *m, int arch, int family, const DLTensor *q, const DLTensor *k, kernel_key *key);

#endif
