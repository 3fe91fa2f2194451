/* candidates.h: lists the tiles that tuning measures: the plan's table, and one step in each direction from
 * its best rows. */
#ifndef LUATTN_GEN_CANDIDATES_H
#define LUATTN_GEN_CANDIDATES_H

#include "gen/plan/tiles.h"

/* The candidates for p's family, pass and dims: the table, and its neighbours. At most PLAN_MAX_CANDIDATES;
 * returns how many. */
int plan_candidates(const plan *p, luattn_tiles out[PLAN_MAX_CANDIDATES]);

#endif
