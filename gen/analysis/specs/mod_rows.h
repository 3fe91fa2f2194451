/* mod_rows.h: resolves a spec for given head dims: head_dim becomes a constant, and x[..] of the input mods
 * become permutations of a row, whose inverses the derivative uses. */
#ifndef LUATTN_GEN_MOD_ROWS_H
#define LUATTN_GEN_MOD_ROWS_H

#include "gen/spec.h"

/* Whether the spec depends on the head dim. If not, mod_rows_resolve changes nothing. */
bool mod_rows_need_dim(const traced_spec *t);

/* Rewrites every expression of `spec`, whose graph must be the caller's own clone, for rows of q and k of `dim`
 * channels and rows of v of `dim_v`, both 1 to 65536; fills traced.rows, from `a`. Fails if two channels d read
 * the same x[..], or if x[..] lies outside the row. */
luattn_status mod_rows_resolve(arena *a, struct luattn_spec *spec, int dim, int dim_v, luattn_error *err);

#endif
