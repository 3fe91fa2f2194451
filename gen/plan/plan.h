/* plan.h: chooses the kernel family, tiles and stages, and records the reasons. */
#ifndef LUATTN_GEN_PLAN_H
#define LUATTN_GEN_PLAN_H

#include "gen/plan/candidates.h"

/* Starts a plan from a target, before tiles are chosen: checks it, fills its defaults, and chooses the
 * family. Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED. */
luattn_status plan_start(const struct luattn_spec *spec, const luattn_target *target, plan *out, luattn_error *err);

/* The target of a plan that was started, with its defaults filled in: 0 and the default spelt out give the same, as
 * does whatever changes no kernel. */
luattn_target plan_target(const plan *p, const luattn_target *given);

/* Chooses the best plan. Errors: LUATTN_INVALID (an impossible forced tile, by name and number),
 * LUATTN_UNSUPPORTED. */
luattn_status plan_choose(arena *a, const struct luattn_spec *spec, const luattn_target *target, plan *out,
                          luattn_error *err);

/* The same with choice `rank` of the table; false: there are fewer, or the target names a tile. */
bool plan_alternative(arena *a, const struct luattn_spec *spec, const luattn_target *target, bool softcap_poly,
                      int rank, plan *out);

/* Makes the plan of an existing image, given its family and tiles; false: this target has no such plan. */
bool plan_of_tiles(arena *a, const struct luattn_spec *spec, const luattn_target *target, luattn_family family,
                   const luattn_tiles *tiles, plan *out);

/* Lists the candidates for tuning a target. */
luattn_status plan_list(const struct luattn_spec *spec, const luattn_target *target,
                        luattn_tiles out[PLAN_MAX_CANDIDATES], int *count, luattn_error *err);

/* Lists the entries and their shared memory; *line describes it. Errors: LUATTN_UNSUPPORTED if they do not
 * fit (LUATTN_INVALID if the tiles were forced). */
luattn_status plan_entries(arena *a, plan *p, const struct luattn_spec *spec, const plan_rows *rows, const char **line,
                           luattn_error *err);

#endif
