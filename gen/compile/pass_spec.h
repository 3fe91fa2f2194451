/* pass_spec.h: the spec whose forward is a row pass of another spec's backward. */
#ifndef LUATTN_GEN_PASS_SPEC_H
#define LUATTN_GEN_PASS_SPEC_H

#include "gen/spec.h"

/* The row numbers that pass `number` of `of` reads: -1: lse; i: row i of saved. Returns how many; -1: out of memory. */
enum { PASS_MAX_ROWS = DERIVED_MAX_ROWS + 1 };
int pass_spec_rows(arena *scratch, const luattn_spec *of, int number, int row[PASS_MAX_ROWS]);

/* Makes pass `number` of `of`, in the arena `a`, for kernels of `dtype`. What dO is multiplied by for VAR_PASS[number]
 * is its o; pass 0 saves the sums, VAR_PASS[num_passes], .., in their order. Its last inputs are the row numbers, each
 * along batch, head and query. The hash is that of `of`, so that a batch's tile bits serve both. Errors:
 * LUATTN_UNSUPPORTED (too many inputs), LUATTN_NO_MEMORY. */
luattn_status pass_spec_make(arena *a, const luattn_spec *of, int number, luattn_dtype dtype, luattn_spec *out,
                             luattn_error *err);

#endif
