/* candidates.h: the tiles that tuning measures: the plan's table, and from its best rows one step in each direction. */
#ifndef LUATTN_GEN_CANDIDATES_H
#define LUATTN_GEN_CANDIDATES_H

#include "gen/plan/tiles.h"

/* What could be measured for p's family, pass and dims: the table, and what lies near it. At most
 * PLAN_MAX_CANDIDATES; returns how many. */
enum { PLAN_MAX_CANDIDATES = 64 };
int plan_candidates(const plan *p, luattn_tiles out[PLAN_MAX_CANDIDATES]);

#endif
