/* mod_rows.h: what the head dim makes of a spec: head_dim becomes a constant, and x[..] of the input mods
 * permutations of a row, of which the derivative takes the inverse. */
#ifndef LUATTN_GEN_MOD_ROWS_H
#define LUATTN_GEN_MOD_ROWS_H

#include "gen/spec.h"

/* Does the spec mean something else for another head dim? Where not, mod_rows_resolve changes nothing. */
bool mod_rows_need_dim(const traced_spec *t);

/* Rewrites every expression of `spec`, whose graph must be the caller's own clone, for rows of q and k of `dim`
 * channels and rows of v of `dim_v`, both 1 to 65536; fills traced.rows, from `a`. Fails where x[..] has the same
 * channel for two d that both read it, or one outside of the row. */
luattn_status mod_rows_resolve(arena *a, struct luattn_spec *spec, int dim, int dim_v, luattn_error *err);

#endif
