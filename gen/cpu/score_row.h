/* score_row.h: computes the scores of one row within one tile: dot products, mask, score_mod. Shared by
 * forward and backward. */
#ifndef LUATTN_GEN_CPU_TILE_H
#define LUATTN_GEN_CPU_TILE_H

#include "gen/cpu/cpu.h"

typedef struct cpu_scores {
  const cpu_problem *p;
  cpu_program keep, mod;
  double kv_idx[IR_LANES]; /* positions of the kept columns, ascending */
} cpu_scores;

luattn_status scores_open(const cpu_problem *p, cpu_scores *out, luattn_error *err);

/* Writes scale * dot of row (b, h, q_idx) of `lanes` for the kept columns of the tile at kv0, and returns
 * their number. Sets lanes->kv_idx. `partial`: evaluate the mask. */
int scores_kept(cpu_scores *s, cpu_lanes *lanes, int kv0, bool partial, double *score);
void scores_mod(const cpu_scores *s, cpu_lanes *lanes, int count, double *score); /* score_mod, in place */

/* Classes of the tiles of rows [q0, q1], one for each CPU_TILE columns. */
void tile_row_classes(cpu_problem *p, int b, int h, int q0, int q1, unsigned char *out);

#endif
