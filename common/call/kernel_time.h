/* kernel_time.h: predicts how long a forward takes by the decode kernel, for each number of blocks that share the keys
 * of a tile of rows, and by the kernel for all lengths. A launch chooses its splits by it, an engine its kernel. Times
 * are microseconds of an H200; other GPUs differ by their multiprocessors alone, so that times of one call compare. */
#ifndef LUATTN_COMMON_KERNEL_TIME_H
#define LUATTN_COMMON_KERNEL_TIME_H

#include <stdbool.h>
#include <stdint.h>

/* A call of the decode kernel. */
typedef struct decode_sizes {
  double tiles;   /* of rows, of all entries and kv heads */
  double keys;    /* of an entry, on average */
  double longest; /* those of the longest entry */
  int tile_m, tile_n, head_dim, head_dim_v;
  int multiprocessors, blocks_each; /* blocks_each: of a multiprocessor, at once */
} decode_sizes;

double decode_time(const decode_sizes *s, int splits);
/* The number of splits that takes the least time, at most CHOICES_MAX_SPLITS, and that time; without tiles 1 and 0. */
int decode_best_splits(const decode_sizes *s, double *time);

/* A call of either kernel. */
typedef struct forward_sizes {
  double entries, queries, keys, longest; /* queries: of the longest entry; keys, longest: as in decode_sizes */
  double all_queries;                     /* of all entries */
  int64_t heads, heads_kv;
  int head_dim, head_dim_v, multiprocessors;
} forward_sizes;

/* What is predicted for a call. */
typedef struct kernel_times {
  double decode, general; /* general: of the kernel for all lengths */
  double rows;            /* of a kv head: queries times its query heads */
  decode_sizes as_decode;
  int splits;
} kernel_times;

kernel_times kernel_times_of(const forward_sizes *s);
/* Whether the decode kernel takes no longer. */
bool kernel_takes_decode(const forward_sizes *s);

#endif
