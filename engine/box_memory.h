/* box_memory.h: remembers which pair of boxes calls over grids take, by their extents. */
#ifndef LUATTN_ENGINE_BOX_MEMORY_H
#define LUATTN_ENGINE_BOX_MEMORY_H

#include <pthread.h>

#include "engine/engine.h"
#include "gen/compile/box_choice.h"

enum { BOX_MEMORY = 64 };

typedef struct known_boxes {
  kernel_key key; /* without boxes */
  box_call of;
  int boxes;
  box_sizes sizes;
} known_boxes;

typedef struct box_memory {
  pthread_mutex_t lock;
  known_boxes of[BOX_MEMORY];
  unsigned count, next;
} box_memory;

box_memory *box_memory_open(void); /* NULL: out of memory, or no lock */
void box_memory_close(box_memory *m);

/* Fills key->boxes, or the tile sizes of a pair that was tuned, for tensors q and k that have the spec's axes, unless the
 * call names its boxes. What cannot be planned keeps 0: compiling it says why. */
void box_memory_choose(box_memory *m, const engine_place *at, const DLTensor *q, const DLTensor *k, kernel_key *key);
/* Forgets what calls of a spec take, so that the next one reads what was tuned. */
void box_memory_forget(box_memory *m, const luattn_spec *spec);
/* Says in a line which pair a call takes that names none, and why; an empty text where there are no pairs. */
void box_memory_explain(const engine_place *at, const DLTensor *q, const DLTensor *k, const kernel_key *key, char *text,
                        size_t size);

#endif
