/* partition.h: gives the chunks of a sequence to ranks. */
#ifndef LUATTN_PARTITION_H
#define LUATTN_PARTITION_H

#include <stdbool.h>

#include "luattn/parallel.h"

/* Tiles by chunk of queries and chunk of keys: the sum of all layers by their weights. */
typedef struct chunk_counts {
  int chunks;
  const double *tiles; /* [chunks][chunks] */
} chunk_counts;

/* Whether `chunks` can be shared out in this way. */
bool partition_suits(luattn_partition partition, int chunks, int ranks);

/* Fills rank_of [chunks]. false: out of memory. */
bool partition_fill(luattn_partition partition, const chunk_counts *counts, int ranks, int *rank_of);

#endif
