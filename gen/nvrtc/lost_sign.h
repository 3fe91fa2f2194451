/* lost_sign.h: finds PTX of which ptxas makes wrong code. */
#ifndef LUATTN_GEN_LOST_SIGN_H
#define LUATTN_GEN_LOST_SIGN_H

#include "common/fail.h"
#include "gen/base/arena.h"

/* For max(max(a, -b), c) of 32-bit integers, and likewise for min, ptxas for sm_90 and later (seen in 12.8, 12.9
 * and 13.0) writes one instruction, VIMNMX3, and leaves out the minus. Unsigned maxima are right, and so is a negated
 * operand of the outer one. Looks in `ptx` for such a maximum whose inner one has a negated operand. Returns in *entry
 * the function that has it, in the arena, or NULL. May report one that ptxas happens to handle otherwise, but misses
 * none that is written so in PTX. */
luattn_status ptx_find_lost_sign(arena *a, const char *ptx, const char **entry, luattn_error *err);

#endif
