/* stage_model.h: predicts the time of attention over several GPUs.
 *
 * A rank computes scores with its own keys first. Meanwhile the chunks of keys that it needs of other ranks travel, those of
 * its node first, in stages of 1, 1, 2, 4, .. ranks' chunks: a stage starts when its keys are there and the one before it
 * is done. A stage of forward ends with a merge of o. Backward brings the keys again, and sends their gradients back in
 * float32. A chunk that several ranks of a node need crosses the network once. */
#ifndef LUATTN_STAGE_MODEL_H
#define LUATTN_STAGE_MODEL_H

#include "parallel/partition.h"

typedef struct stage_prediction {
  double seconds[2]; /* of the slowest rank: forward, backward */
  double alone[2];   /* of one GPU that has everything */
  double most_tiles; /* of a rank */
  double received;   /* bytes of keys and values in forward, the most of a rank */
  double in_flight;  /* those of the two largest successive stages, likewise */
} stage_prediction;

/* For one layer, whose counts those are. Members of `rates` are filled in. false: out of memory. */
bool stage_predict(const luattn_parallel_problem *problem, const luattn_parallel_rates *rates,
                   const chunk_counts *counts, int chunk_rows, const int *rank_of, stage_prediction *out);

#endif
