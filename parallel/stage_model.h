/* stage_model.h: predicts the time of attention over several GPUs.
 *
 * By stages, a rank computes scores with its own keys first. Meanwhile the chunks of keys that it needs of other ranks
 * travel, those of its node first, in stages of 1, 1, 2, 4, .. ranks' chunks: a stage starts when its keys are there and
 * the one before it is done. A stage of forward ends with a merge of o. Backward brings the keys again, and sends their
 * gradients back in float32, while launches with own keys run, of which all but the shortest come last.
 *
 * Gathered, all keys come in one exchange, and then each run of queries has all of them in one call: nothing merges.
 * Where copies run beside launches, runs are cut where they need keys of others: rows that need none come first in
 * forward, and but for the shortest run last in backward. Otherwise no copy is hidden.
 *
 * A launch has the chunks of queries that lie after each other, and a range of keys; each takes
 * luattn_parallel_rates.stage, and of the host .launch, as copies of five ranges of keys do; a pass takes the host's
 * time of two more. Backward ends with gradients that become those of the call, from float32. A chunk that several ranks
 * of a node need crosses the network once. */
#ifndef LUATTN_STAGE_MODEL_H
#define LUATTN_STAGE_MODEL_H

#include <stdbool.h>

#include "parallel/partition.h"

typedef struct stage_prediction {
  double seconds[2]; /* of the slowest rank: forward, backward */
  double alone[2];   /* of one GPU that has everything */
  double most_tiles; /* of a rank */
  double received;   /* bytes of keys and values in forward, the most of a rank */
  double
      in_flight; /* of forward, those that are there at once, likewise: of the two largest successive stages, or of all keys
                      * from the first that is needed to the last */
  bool gathered[2];   /* the schedules that these are of, forward and backward */
  bool overlapped[2]; /* whether they are of copies beside launches */
} stage_prediction;

/* Bytes of a number of o and of gradients where they are parts of a sum. */
double stage_part_bytes(const luattn_parallel_problem *problem);

/* For one layer, whose counts those are. Members of `rates` are filled in. false: out of memory. */
bool stage_predict(const luattn_parallel_problem *problem, const luattn_parallel_rates *rates,
                   const chunk_counts *counts, int chunk_rows, const int *rank_of, stage_prediction *out);

#endif
