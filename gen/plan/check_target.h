/* check_target.h: checks what a target asks for, before anything is planned. */
#ifndef LUATTN_GEN_CHECK_TARGET_H
#define LUATTN_GEN_CHECK_TARGET_H

#include "common/fail.h"
#include "luattn/compiler.h"

/* Whether each fact is in its range, and possible beside the others. Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED. */
luattn_status target_check(const luattn_target *target, luattn_error *err);

/* Whether each fact is in its range, whatever the form. Errors: LUATTN_INVALID. */
luattn_status target_check_ranges(const luattn_target *target, luattn_error *err);

/* What the decode kernel (luattn_target.decode) lacks for a target, except for an online function that does not merge.
 * Errors: LUATTN_INVALID, LUATTN_UNSUPPORTED. */
luattn_status target_check_decode(const luattn_target *target, luattn_error *err);

#endif
