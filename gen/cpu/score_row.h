/* score_row.h: computes the scores of one row within one tile: dot products, mask, score_mod. Shared by
 * forward and backward. */
#ifndef LUATTN_GEN_CPU_TILE_H
#define LUATTN_GEN_CPU_TILE_H

#include "gen/cpu/cpu.h"

typedef struct cpu_scores {
  const cpu_problem *p;
  cpu_program keep, mod;
} cpu_scores;

luattn_status scores_open(cpu_problem *p, cpu_scores *out, luattn_error *err);

/* Writes scale * dot of row (b, h, q_idx) of `lanes` for the kept columns of the tile at kv0, and returns
 * their number. Sets lanes->kv_idx, to that of its worker. `partial`: evaluate the mask. */
int scores_kept(const cpu_scores *s, cpu_lanes *lanes, int kv0, bool partial, double *score);
void scores_mod(const cpu_scores *s, cpu_lanes *lanes, int count, double *score); /* score_mod, in place */

#endif
