/* row_blocks.h: walks the rows of a call in blocks of CPU_TILE, a run of blocks at a time, with the
 * classes of their tiles. Shared by forward and backward. */
#ifndef LUATTN_GEN_CPU_ROW_BLOCKS_H
#define LUATTN_GEN_CPU_ROW_BLOCKS_H

#include "gen/cpu/cpu.h"

/* A run of blocks of CPU_TILE rows, numbered in the order of batch, head and position. */
typedef struct row_blocks {
  const cpu_problem *p;
  int per_head, kv_tiles; /* blocks of a head, tiles of a row */
  int64_t first;          /* number of the first block */
  int count, most;        /* blocks of the current run, and the most */
  unsigned char *classes; /* [most][kv_tiles]: of their tiles */
} row_blocks;

/* The rows of a block are shared among threads, so many at a time. */
enum { ROWS_OF_UNIT = 8, UNITS_OF_BLOCK = CPU_TILE / ROWS_OF_UNIT };

typedef struct block_place {
  int b, h, q0, rows;
} block_place;

luattn_status blocks_open(const cpu_problem *p, int64_t most, row_blocks *out, luattn_error *err);
int64_t blocks_in_all(const cpu_problem *p);
/* Advances to the next run, and classifies its tiles; false: there is none. */
bool blocks_next(row_blocks *r);
/* Block `i` of the current run, and its rows [*from, *to) for unit `i` of UNITS_OF_BLOCK * count. */
block_place blocks_place(const row_blocks *r, int i);
block_place blocks_rows(const row_blocks *r, int64_t unit, int *from, int *to);

#endif
